"""`mtfc verify`: agreement of all cases, and that it notices when one is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtfc.backends import numpy_backend
from mtfc.cli import verify
from mtfc.compiler.ir.core import Program
from tests.cli.conftest import Mtfc


def test_all_layouts_on_both_backends(mtfc: Mtfc) -> None:
    outcome = mtfc("verify", "model.mtf", "--format", "json")
    assert outcome.status == 0
    found = outcome.json
    assert found["ok"] is True
    cases = {(case["layout"], case["backend"]): case for case in found["cases"]}
    assert set(cases) == {
        (layout, backend) for layout in ("replicated", "data", "both") for backend in ("numpy", "jax")
    }
    for case in cases.values():
        assert case["outputs"].keys() == {"y", "loss"}
        assert case["gradients"].keys() == {"x", "w", "bias"}
        assert (
            max(*case["outputs"].values(), *case["gradients"].values(), *case["parameters"].values()) < 1e-5
        )


def test_in_f64_hardly_anything_is_rounded(mtfc: Mtfc) -> None:
    outcome = mtfc("verify", "model.mtf", "--dtype", "f64", "--format", "json")
    assert outcome.status == 0
    assert outcome.json["tolerance"] == 1e-6
    for case in outcome.json["cases"]:
        assert max(case["gradients"].values()) < 1e-12


def test_text(mtfc: Mtfc) -> None:
    outcome = mtfc("verify", "model.mtf", "--layout", "both", "--backend", "numpy")
    assert outcome.status == 0
    first, verdict = outcome.out.splitlines()
    assert first.startswith("both                 numpy  ok     outputs ")
    assert verdict == "1 of 1 cases agree with the undistributed program"


def test_a_wrong_result_is_found(mtfc: Mtfc, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that adds wrongly: outputs and gradients differ, and the status says so."""
    generate = numpy_backend.generate
    monkeypatch.setattr(
        numpy_backend, "generate", lambda program: generate(program).replace(" + bias", " - bias + 1")
    )
    outcome = mtfc("verify", "model.mtf", "--layout", "both", "--format", "json", "--backend", "numpy")
    assert outcome.status == 1
    (case,) = outcome.json["cases"]
    assert (outcome.json["ok"], case["ok"]) == (False, False)
    assert "output y" in case["wrong"] and "gradient w" in case["wrong"]
    text = mtfc("verify", "model.mtf", "--layout", "both", "--backend", "numpy")
    assert text.status == 1
    assert "WRONG" in text.out
    assert text.out.splitlines()[-1] == "0 of 1 cases agree with the undistributed program"


STEEP = """
dim batch = 64
dim io    = 1024
mesh line = [all: 4]
layout split on line = { io: all }
model steep(x: [batch, io]) {
  param w: [io] = ones()
  y = sin(60.0 * einsum(x, w -> [batch]))
  return y
}
"""
"""Sums of a thousand numbers in another order differ by some 1e-6, which becomes more than what passes for rounding."""


def test_rounding_that_grows_is_told_from_a_wrong_result(mtfc: Mtfc, folder: Path) -> None:
    (folder / "steep.mtf").write_text(STEEP)
    outcome = mtfc("verify", "steep.mtf", "--layout", "split", "--format", "json")
    assert outcome.status == 0
    cases = outcome.json["cases"]
    assert [case["backend"] for case in cases] == ["numpy", "jax"]
    for case in cases:
        assert (case["ok"], case["wrong"]) == (True, [])
        assert case["outputs"]["y"] > 1e-4 > 1e-9 > case["in_f64"]
    text = mtfc("verify", "steep.mtf", "--layout", "split", "--backend", "numpy").out
    assert "  which is rounding: " in text and text.endswith(
        "1 of 1 cases agree with the undistributed program\n"
    )


def test_rounding_may_grow_as_it_does_in_f64(mtfc: Mtfc, folder: Path) -> None:
    """Sums of products are rounded in f64, too, and what becomes of that shows what becomes of rounding in f32."""
    steeper = STEEP.replace("60.0", "3000.0").replace("ones()", "normal(stddev = 1.0)")
    (folder / "steep.mtf").write_text(steeper)
    outcome = mtfc("verify", "steep.mtf", "--layout", "split", "--format", "json")
    assert outcome.status == 0
    for case in outcome.json["cases"]:
        assert case["outputs"]["y"] > verify.DOUBTFUL
        assert case["in_f64"] is not None
    (folder / "steep.mtf").write_text(STEEP.replace("60.0", "6000.0"))
    outcome = mtfc("verify", "steep.mtf", "--layout", "split", "--format", "json", "--backend", "numpy")
    assert outcome.status == 1  # sums of numbers in f32 are exact in f64, and nothing grows
    assert outcome.json["cases"][0]["in_f64"] is None


def test_numbers_of_jax_are_as_wide_as_before(mtfc: Mtfc, folder: Path) -> None:
    """What is run again in f64 turns on 64-bit numbers, which would change what other cases compute."""
    import jax

    (folder / "steep.mtf").write_text(STEEP)
    before = jax.config.jax_enable_x64
    mtfc("verify", "steep.mtf", "--layout", "split", "--backend", "jax")
    assert jax.config.jax_enable_x64 == before


@pytest.mark.parametrize(("factor", "is_wrong"), [("1.002", True), ("1.2", True), ("1.000001", False)])
def test_a_small_difference_is_wrong_if_f64_has_it_too(
    mtfc: Mtfc, monkeypatch: pytest.MonkeyPatch, factor: str, is_wrong: bool
) -> None:
    """No matter whether it is small enough to be looked at again."""
    generate = numpy_backend.generate
    monkeypatch.setattr(
        numpy_backend, "generate", lambda program: generate(program).replace(" + bias", f" * {factor} + bias")
    )
    outcome = mtfc("verify", "model.mtf", "--layout", "both", "--format", "json", "--backend", "numpy")
    (case,) = outcome.json["cases"]
    assert (outcome.status == 1, not case["ok"], case["in_f64"]) == (is_wrong, is_wrong, None)


def test_initial_parameters_that_depend_on_the_layout_are_found(
    mtfc: Mtfc, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = numpy_backend.generate
    monkeypatch.setattr(
        numpy_backend,
        "generate",
        lambda program: (
            generate(program).replace('"w"), ', '"w2"), ')
            if program.layout.name == "both"
            else generate(program)
        ),
    )
    outcome = mtfc("verify", "model.mtf", "--layout", "both", "--format", "json", "--backend", "numpy")
    assert outcome.json["cases"][0]["wrong"] == ["parameter w"]


def test_a_mesh_too_large_for_jax_is_passed_over_in_the_open(
    mtfc: Mtfc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "MOST_VIRTUAL_DEVICES", 4)
    outcome = mtfc("verify", "model.mtf", "--format", "json")
    assert outcome.status == 0
    skipped = [(case["layout"], case["backend"]) for case in outcome.json["cases"] if case["skipped"]]
    assert skipped == [("both", "jax")]
    assert "1 skipped" in mtfc("verify", "model.mtf").out.splitlines()[-1]


def test_coarse_dtypes_have_a_coarse_tolerance(mtfc: Mtfc, folder: Path) -> None:
    """In bf16 the layouts differ by rounding, which is no error."""
    text = (folder / "model.mtf").read_text().replace("f32[", "bf16[")
    (folder / "model.mtf").write_text(
        text.replace("one_hot(labels, classes)", "cast(one_hot(labels, classes), bf16)")
    )
    outcome = mtfc("verify", "model.mtf", "--format", "json")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.json["tolerance"] == verify.TOLERANCE["bf16"]


TWO_FACES = """
import nn
dim batch = 8; dim io = 4
mesh line = [all: 2]
layout data on line = { batch: all }
placement halves on 2 = {}
model net(x: [batch, io]) {
  param w: [io] = ones()
  h = nn.dropout(x * w, rate = 0.5)
  loss = mean(square(h))
  return loss
}
train net { minimize loss; optimizer = sgd(learning_rate = 0.1) }
"""


def test_a_model_that_drops_in_training_is_compared_in_both_faces(
    mtfc: Mtfc, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "faces.mtf").write_text(TWO_FACES, "utf-8")
    outcome = mtfc("verify", "faces.mtf", "--format", "json")
    assert outcome.status == 0
    assert [case["layout"] for case in outcome.json["cases"]] == ["data", "data", "halves"]
    assert list(outcome.json["cases"][0]["outputs"]) == ["loss", "loss in evaluation"]
    generate = numpy_backend.generate

    def wrong_in_forward(program: Program) -> str:
        head, forward, rest = generate(program).partition("def forward(")
        return head + forward + rest.replace("np.square(", "np.abs(", 1)

    monkeypatch.setattr(numpy_backend, "generate", wrong_in_forward)
    outcome = mtfc("verify", "faces.mtf", "--backend", "numpy", "--layout", "data", "--format", "json")
    assert outcome.json["cases"][0]["wrong"] == ["output loss in evaluation"]
