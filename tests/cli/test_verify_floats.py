"""`mtfc verify` by floats alone: tampered modules, small gradients, special numbers, every model, and `jax.grad`."""

import re
from pathlib import Path

import attrs
import pytest

from mtfc.backends.jax import backend as jax_backend
from mtfc.backends.numpy import backend as numpy_backend
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.ops import OPS
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import choose
from mtfc.driver.verification.verify import wrong_sums
from tests.cli.conftest import Mtfc

BACKENDS = {"numpy": numpy_backend, "jax": jax_backend}

SMALL = """
dim batch = 8
dim io = 8
dim out = io
mesh line = [all: 4]
layout dp on line = { batch: all }
model m(x: [batch, io], target: [batch, out]) {
  param w: [io, out] = normal(stddev = 0.1)
  y = einsum(x, w -> [batch, out])
  loss = SCALE * mean(square(y - target))
  return loss
}
train m {
  minimize loss
  optimizer = sgd(learning_rate = 0.1)
}
"""
"""With a small scale all gradients lie far below any tolerance that is relative to 1."""


def tamper(monkeypatch: pytest.MonkeyPatch, backend: str, pattern: str, replacement: str) -> None:
    """Let a backend generate another text."""
    generate = BACKENDS[backend].generate

    def tampered(program: Program) -> str:
        text, count = re.subn(pattern, replacement, generate(program))
        changed.append(count)
        return text

    changed: list[int] = []
    monkeypatch.setattr(BACKENDS[backend], "generate", tampered)


@pytest.mark.parametrize(("backend", "scale"), [("numpy", "1.0"), ("numpy", "1e-30"), ("jax", "1e-4")])
def test_a_gradient_that_is_not_all_reduced_is_found(
    mtfc: Mtfc, folder: Path, monkeypatch: pytest.MonkeyPatch, backend: str, scale: str
) -> None:
    (folder / "small.mtf").write_text(SMALL.replace("SCALE", scale))
    asked = ("verify", "small.mtf", "--backend", backend, "--format", "json")
    assert mtfc(*asked).status == 0
    # each processor keeps its own gradient; the loss is still summed
    tamper(monkeypatch, backend, r"(\w+), d_w_2 = (?:lax\.)?psum\(\((\w+), d_w\), \"all\"\)", KEPT[backend])
    outcome = mtfc(*asked)
    assert outcome.status == 1
    (case,) = outcome.json["cases"]
    assert "gradient w" in case["wrong"]
    assert case["gradients"]["w"]["fault"] == case["f64"]["gradients"]["w"]["fault"] == "differs"


KEPT = {
    "numpy": r'\1, d_w_2 = psum(\2, "all"), d_w[:1]',
    "jax": r'\1, d_w_2 = lax.psum((\2, jnp.where(lax.axis_index("all") == 0, d_w, 0)), "all")',
}


def test_a_wrong_forward_beside_right_gradients_is_found(
    mtfc: Mtfc, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`mtfc run` executes `forward`, whose sums are completed apart from those of the step."""
    (folder / "small.mtf").write_text(SMALL.replace("SCALE", "1e-4"))
    generate = numpy_backend.generate

    def wrong(program: Program) -> str:
        head, forward, rest = generate(program).partition("def forward(")
        body, after, others = rest.partition("\ndef ")
        return head + forward + re.sub(r"psum\((\w+), \"all\"\)", r"\1[:1]", body) + after + others

    monkeypatch.setattr(numpy_backend, "generate", wrong)
    outcome = mtfc("verify", "small.mtf", "--backend", "numpy", "--format", "json")
    assert outcome.status == 1
    assert "output loss" in outcome.json["cases"][0]["wrong"]
    assert "gradient w" not in outcome.json["cases"][0]["wrong"]


def test_the_text_has_the_numbers_of_a_wrong_array(
    mtfc: Mtfc, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "small.mtf").write_text(SMALL.replace("SCALE", "1e-4"))
    every = mtfc("verify", "small.mtf", "--backend", "numpy", "--verbose").out
    assert re.search(r"^  gradient w: error \S+, scale \S+, bound \S+$", every, re.M)
    assert re.search(r"^  gradient w in f64: error \S+, scale \S+, bound \S+$", every, re.M)
    tamper(monkeypatch, "numpy", r"(\w+), d_w_2 = psum\(\((\w+), d_w\), \"all\"\)", KEPT["numpy"])
    wrong = mtfc("verify", "small.mtf", "--backend", "numpy").out
    assert re.search(r"^  gradient w: error \S+, scale \S+, bound \S+$", wrong, re.M)
    assert "  gradient x:" not in wrong


def test_every_model_is_compared(mtfc: Mtfc, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    second = "model other(x: [batch, io]) {\n  total = sum(exp(x), over = batch)\n  return total\n}\n"
    (folder / "two.mtf").write_text(SMALL.replace("SCALE", "1.0") + second)
    outcome = mtfc("verify", "two.mtf", "--backend", "numpy", "--format", "json")
    assert [case["model"] for case in outcome.json["cases"]] == ["m", "other"]
    assert outcome.status == 0
    tamper(monkeypatch, "numpy", r"np\.exp\(", "np.expm1(")
    outcome = mtfc("verify", "two.mtf", "--backend", "numpy", "--format", "json")
    assert (outcome.status, [case["ok"] for case in outcome.json["cases"]]) == (1, [True, False])
    chosen = mtfc("verify", "two.mtf", "--backend", "numpy", "--model", "m", "--format", "json")
    assert [case["model"] for case in chosen.json["cases"]] == ["m"]


SUMS = """
dim batch = 64
dim c = 4
mesh two = [a: 2]
layout split on two = { batch: a }
model net(x: [batch, c], ids: i32[batch], table: [c], s: [c]) {
  largest = max(x, over = c)
  total = sum(x, over = batch)
  shares = exp(x - largest) / (1.0 + square(s))
  first = argmax(x, over = c)
  read = gather(table, ids, c)
  return largest, total, shares, first, read
}
"""


def test_layouts_agree_on_special_numbers(mtfc: Mtfc, folder: Path) -> None:
    """NaN, infinities, signed zeros, ties, huge and tiny numbers, and indices out of range."""
    (folder / "sums.mtf").write_text(SUMS)
    outcome = mtfc("verify", "sums.mtf", "--format", "json")
    assert outcome.status == 0, outcome.out
    for case in outcome.json["cases"]:
        assert case["special"]["draws"] == 1 + 3 * 8
        assert case["special"]["wrong"] == {}


@pytest.mark.parametrize(
    ("backend", "pattern", "replacement", "what"),
    [
        ("numpy", r"np\.max\(x", "np.fmax.reduce(x", "output largest where x has a NaN"),
        ("numpy", r"= gather\(table, ", "= gather(table, 0 * ", "output read where ids has indices out of range"),
        ("jax", r"jnp\.max\(x", "jnp.nanmax(x", "output largest where x has a NaN"),
    ],
)  # fmt: skip
def test_a_backend_that_loses_special_numbers_is_found(
    mtfc: Mtfc,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    pattern: str,
    replacement: str,
    what: str,
) -> None:
    (folder / "sums.mtf").write_text(SUMS)
    tamper(monkeypatch, backend, pattern, replacement)
    outcome = mtfc("verify", "sums.mtf", "--backend", backend, "--format", "json")
    assert outcome.status == 1
    assert what in outcome.json["cases"][0]["wrong"]


HALF = """
dim batch = 8
dim io = 4
mesh line = [all: 4]
layout dp on line = { batch: all }
model m(x: [batch, io]) {
  param w: [io] = normal(stddev = 0.5)
  loss = mean(square(cast(einsum(x, w -> [batch]), f32)))
  return loss
}
train m {
  minimize loss
  optimizer = sgd(learning_rate = 0.1)
  precision = { params: f32, compute: bf16, reduce: f32 }
}
"""


def test_the_dtype_of_pending_sums() -> None:
    """Terms in bf16 may be sent; the sum of a gradient has the dtype of `reduce`."""
    asked = choose(HALF, "half.mtf", Choice())
    case = asked.cases[0]
    assert list(wrong_sums(case.lower(asked.program))) == []
    in_bf16 = choose(HALF.replace(", reduce: f32", ""), "half.mtf", Choice())
    lowered = case.lower(in_bf16.program)
    assert list(wrong_sums(lowered)) == []
    training = asked.program.training
    assert training is not None
    # a compiler that forgets `reduce`: the program without it, checked against the file with it
    (found,) = wrong_sums(attrs.evolve(lowered, training=training))
    assert found.endswith(" in bf16, and not in f32")


def test_gradients_are_compared_with_those_of_jax(
    mtfc: Mtfc, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "small.mtf").write_text(SMALL.replace("SCALE", "1e-4"))
    asked = ("verify", "small.mtf", "--backend", "jax")
    found = mtfc(*asked, "--format", "json").json["jax_gradients"]["m"]
    assert found.keys() == {"x", "target", "w"}
    assert all(each["fault"] is None and each["scale"] > 0 for each in found.values())
    square = OPS["square"]

    def doubled(b: object, e: object, g: object) -> object:
        (x,) = square.gradient(b, e, g)  # type: ignore[arg-type]
        return (b("add", x, x),)  # type: ignore[operator]

    monkeypatch.setitem(OPS, "square", attrs.evolve(square, gradient=doubled))
    outcome = mtfc(*asked)
    assert outcome.status == 1
    assert "WRONG: jax.grad of the undistributed program differs" in outcome.out
