"""`mtfc verify`: agreement of right cases, and detection of wrong ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtfc.backends.numpy import backend as numpy_backend
from mtfc.compiler.ir.core import Program
from mtfc.compiler.passes.mixed_precision import everything_in
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import choose
from mtfc.driver.running import execution
from mtfc.driver.verification import reference, verify
from tests.cli.conftest import Mtfc
from tests.sampling import some


def errors(compared: dict[str, dict[str, float]]) -> list[float]:
    """Return the errors of the arrays of a part."""
    return [each["error"] for each in compared.values()]


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
        assert max(*errors(case["outputs"]), *errors(case["gradients"]), *errors(case["parameters"])) < 1e-5


def test_in_f64_hardly_anything_is_rounded(mtfc: Mtfc) -> None:
    outcome = mtfc("verify", "model.mtf", "--layout", "both", "--dtype", "f64", "--format", "json")
    assert outcome.status == 0
    for case in outcome.json["cases"]:
        assert max(case["gradients"][name]["bound"] for name in ("w", "bias")) < 1e-12
        assert case["f64"]["gradients"] == {}


def test_text(mtfc: Mtfc) -> None:
    outcome = mtfc("verify", "model.mtf", "--layout", "both", "--backend", "numpy")
    assert outcome.status == 0
    gradients, exact, step, first, verdict = outcome.out.splitlines()
    assert step.startswith("training step        f64    ok     as declared ")
    assert gradients.split()[:3] == ["gradients", "exact", "ok"] and exact.split()[:3] == [
        "both",
        "exact",
        "ok",
    ]
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
"""Sums of a thousand numbers in another order differ by about 1e-6, which then grows above the tolerance."""


@pytest.mark.parametrize(("factor", "initial"), [("60.0", "ones()"), ("3000.0", "normal(stddev = 1.0)")])
def test_rounding_that_grows_is_told_from_a_wrong_result(
    mtfc: Mtfc, folder: Path, factor: str, initial: str
) -> None:
    """The undistributed program under other sums differs as much as the layouts do."""
    (folder / "steep.mtf").write_text(STEEP.replace("60.0", factor).replace("ones()", initial))
    outcome = mtfc("verify", "steep.mtf", "--layout", "split", "--format", "json")
    assert outcome.status == 0
    cases = outcome.json["cases"]
    assert [case["backend"] for case in cases] == ["numpy", "jax"]
    for case in cases:
        y, wide = case["outputs"]["y"], case["f64"]["outputs"]["y"]
        assert (case["ok"], case["wrong"]) == (True, [])
        assert y["bound"] >= y["error"] > 1e-4 and wide["error"] <= wide["bound"] < 1e-8


def test_numbers_of_jax_are_as_wide_as_before(mtfc: Mtfc, folder: Path) -> None:
    """A second run in f64 turns 64-bit numbers on; they must be off again for the other cases."""
    import jax

    (folder / "steep.mtf").write_text(STEEP)
    before = jax.config.jax_enable_x64
    mtfc("verify", "steep.mtf", "--layout", "split", "--backend", "jax")
    assert jax.config.jax_enable_x64 == before


@pytest.mark.parametrize("factor", some(["1.2", "1.002", "1.000001", "1.0000000001"], 2))
def test_a_difference_is_wrong_however_small_in_f64(
    mtfc: Mtfc, monkeypatch: pytest.MonkeyPatch, factor: str
) -> None:
    generate = numpy_backend.generate
    monkeypatch.setattr(
        numpy_backend, "generate", lambda program: generate(program).replace(" + bias", f" * {factor} + bias")
    )
    outcome = mtfc("verify", "model.mtf", "--layout", "both", "--format", "json", "--backend", "numpy")
    (case,) = outcome.json["cases"]
    assert outcome.status == 1 and not case["ok"]
    assert case["f64"]["outputs"]["y"]["fault"] == "differs"


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
    assert "1 skipped" in mtfc("verify", "model.mtf", "--layout", "both").out.splitlines()[-1]


def test_coarse_dtypes_have_a_coarse_bound(mtfc: Mtfc, folder: Path) -> None:
    """In bf16 the layouts differ by rounding, which is no error."""
    text = (folder / "model.mtf").read_text().replace("f32[", "bf16[")
    (folder / "model.mtf").write_text(
        text.replace("one_hot(labels, classes)", "cast(one_hot(labels, classes), bf16)")
    )
    outcome = mtfc("verify", "model.mtf", "--layout", "both", "--format", "json")
    assert (outcome.status, outcome.err) == (0, "")
    for case in outcome.json["cases"]:
        rough, fine = case["gradients"]["w"], case["f64"]["gradients"]["w"]
        assert 1e-3 * rough["scale"] < rough["bound"] < 0.5 * rough["scale"]
        assert fine["bound"] < 1e-12


TRAINING = """
dim batch = 8
dim io = 6
dim classes = 3
mesh grid = [rows: 2, cols: 2]
layout both on grid = { batch: rows, io: cols }
layout sharded on grid = { batch: (rows, cols), params: { io: cols }, optimizer: { io: cols } }
model small(x: f32[batch, io], labels: i32[batch], scale: f32[]) {
  param w: f32[io, classes] = normal(stddev = 0.5)
  param shift: f32[classes] = zeros()
  y = scale * einsum(x, w -> [batch, classes]) + shift
  loss = mean(square(y - one_hot(labels, classes)))
  return loss
}
train small {
  minimize loss
  clip = 0.5
  accumulate = 2
  optimizer = adamw(learning_rate = 0.01)
}
"""


def test_training_is_compared(mtfc: Mtfc, folder: Path) -> None:
    """Parameters and the optimizer's state, clipped and accumulated, under every layout on both backends."""
    (folder / "train.mtf").write_text(TRAINING)
    outcome = mtfc("verify", "train.mtf", "--format", "json")
    assert (outcome.status, outcome.err) == (0, "")
    assert len(outcome.json["cases"]) == 4
    for case in outcome.json["cases"]:
        assert case["training"].keys() >= {"w", "shift"} and len(case["training"]) > 4
        assert max(errors(case["training"])) < 1e-4
    text = mtfc("verify", "train.mtf", "--layout", "both", "--backend", "numpy").out
    assert "  training " in text


def test_without_training_nothing_is_said_of_it(mtfc: Mtfc, folder: Path) -> None:
    (folder / "train.mtf").write_text(TRAINING[: TRAINING.index("train small")])
    options = ["--layout", "both", "--backend", "numpy"]
    assert mtfc("verify", "train.mtf", *options, "--format", "json").json["cases"][0]["training"] == {}
    assert "training" not in mtfc("verify", "train.mtf", *options).out


def test_training_on_data_that_is_given(mtfc: Mtfc, folder: Path) -> None:
    """The file holds one batch for all steps, or batches in order."""
    (folder / "train.mtf").write_text(TRAINING)
    rng = np.random.default_rng(0)
    for rows in (8, 24):
        x, labels = rng.standard_normal((rows, 6)), rng.integers(0, 3, rows)
        np.savez("data.npz", x=x, labels=labels, scale=1.5)
        outcome = mtfc("verify", "train.mtf", "--data", "data.npz", "--backend", "numpy", "--format", "json")
        assert outcome.json["ok"] is True


def change_steps(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Let modules of layouts train by another function of parameters, state, inputs and the number of the step."""
    load = execution.loaded

    def changed(text: str, backend: str) -> object:
        module = load(text, backend)
        if hasattr(module, "train_step"):
            module.train_step = change(module.train_step)
        return module

    monkeypatch.setattr(reference, "loaded", changed)


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_a_wrong_update_is_found(
    mtfc: Mtfc, folder: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """Outputs and gradients are right; the second step computes a wrong state."""
    (folder / "train.mtf").write_text(TRAINING)
    change_steps(
        monkeypatch, lambda step: lambda *given: step(*given[:3], 2 * given[3] if given[3] == 1 else given[3])
    )
    outcome = mtfc("verify", "train.mtf", "--layout", "both", "--backend", backend, "--format", "json")
    assert outcome.status == 1
    (case,) = outcome.json["cases"]
    assert set(case["wrong"]) >= {"training of w", "training of shift"}
    assert all(name.startswith("training of") for name in case["wrong"])


def test_rounding_that_an_optimizer_magnifies_is_told_apart(mtfc: Mtfc, folder: Path) -> None:
    """No loss depends on `common`, whose gradient is rounding alone: Adam takes full steps from this rounding."""
    (folder / "noise.mtf").write_text(NOISE)
    outcome = mtfc("verify", "noise.mtf", "--layout", "data", "--format", "json")
    assert outcome.status == 0
    assert max(max(errors(case["training"])) for case in outcome.json["cases"]) > 1e-3
    lines = mtfc("verify", "noise.mtf", "--layout", "data", "--backend", "numpy").out.splitlines()
    (case,) = (i for i, line in enumerate(lines) if " numpy " in line)
    assert lines[case + 1].startswith("  rounding alone: `gradient common`, `training of common`, ")
    assert "`gradient w`" not in lines[case + 1]


NOISE = """
dim batch = 64
dim io = 32
dim classes = 16
mesh grid = [rows: 2, cols: 2]
layout data on grid = { batch: (rows, cols) }
layout both on grid = { batch: rows, io: cols }

optimizer lion(learning_rate, beta1 = 0.9, beta2 = 0.99) (p, g) {
  state m = zeros_like(p)
  u = beta1 * m + (1.0 - beta1) * g
  m = beta2 * m + (1.0 - beta2) * g
  p = p - learning_rate * where(u > 0.0, 1.0, where(u < 0.0, -1.0, 0.0))
}

model small(x: f32[batch, io], labels: i32[batch]) {
  param w: f32[io, classes] = normal(stddev = 0.5)
  param common: f32[] = zeros()
  y = einsum(x, w -> [batch, classes]) + common
  shifted = y - max(y, over = classes)
  loss = mean(log(sum(exp(shifted), over = classes)) - sum(shifted * one_hot(labels, classes), over = classes))
  return loss
}

train small {
  minimize loss
  optimizer = adam(learning_rate = 0.1)
}
"""


def test_rounding_that_decides_a_sign_is_told_apart(mtfc: Mtfc, folder: Path) -> None:
    """The optimizer takes the sign of rounding, a full step in f64, too."""
    (folder / "noise.mtf").write_text(NOISE.replace("adam(", "lion("))
    for options in ([], ["--dtype", "f64", "--backend", "numpy"]):
        outcome = mtfc("verify", "noise.mtf", "--layout", "both", "--format", "json", *options)
        assert outcome.status == 0
        common = [case["training"]["common"] for case in outcome.json["cases"]]
        assert max(each["error"] for each in common) > 1e-3
        assert all(case["training"]["w"]["bound"] < 1.0 for case in outcome.json["cases"])


def test_noise_excuses_no_wrong_update(mtfc: Mtfc, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A parameter whose difference is larger than the effect of noise is wrong, even next to parameters that noise explains."""
    (folder / "noise.mtf").write_text(NOISE.replace("adam(", "lion("))

    def wrong(outputs: object, new: dict[str, Any], kept: object) -> object:
        return outputs, {**new, "w": 1.001 * new["w"]}, kept

    change_steps(monkeypatch, lambda step: lambda *given: wrong(*step(*given)))
    outcome = mtfc("verify", "noise.mtf", "--backend", "numpy", "--format", "json")
    assert outcome.status == 1
    assert all("training of w" in case["wrong"] for case in outcome.json["cases"])


def test_in_f64_updates_are_not_rounded_either() -> None:
    """Otherwise f64 would hardly show the growth of rounding from step to step."""
    program = choose(TRAINING, "train.mtf", Choice(None, "both", None, {})).program
    wide = everything_in(program, "f64")
    assert wide.training is not None and wide.training.updates
    for update in wide.training.updates:
        values = [argument.value for argument in update.function.arguments]
        values += [value for eqn in update.function.body for value in eqn.results]
        values += [output.value for output in update.function.outputs]
        assert {value.type.dtype for value in values} <= {"f64", "i32"}


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
    assert [case["layout"] for case in outcome.json["cases"]] == ["data", "data", "halves", "halves"]
    assert list(outcome.json["cases"][0]["outputs"]) == ["loss", "loss in evaluation"]
    generate = numpy_backend.generate

    def wrong_in_forward(program: Program) -> str:
        head, forward, rest = generate(program).partition("def forward(")
        return head + forward + rest.replace("np.square(", "np.abs(", 1)

    monkeypatch.setattr(numpy_backend, "generate", wrong_in_forward)
    outcome = mtfc("verify", "faces.mtf", "--backend", "numpy", "--layout", "data", "--format", "json")
    wrong = outcome.json["cases"][0]["wrong"]
    assert "output loss in evaluation" in wrong
    assert all(name.startswith("output loss in evaluation") for name in wrong)


@pytest.mark.parametrize("backend", ["numpy", "jax"])
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_results_that_are_not_finite_are_named(
    mtfc: Mtfc, folder: Path, recwarn: pytest.WarningsRecorder, backend: str, number: float
) -> None:
    """Agreement of NaN with NaN says nothing, so a result without a number fails."""
    np.savez(folder / "bad.npz", w=np.full((6, 3), number, np.float32), bias=np.zeros(3, np.float32))
    asked = ("verify", "model.mtf", "--layout", "both", "--backend", backend, "--params", "bad.npz")
    outcome = mtfc(*asked)
    assert outcome.status == 1
    nothing, verdict = outcome.out.splitlines()[-2:]
    assert nothing.startswith("NOT COMPARED, as all numbers are NaN or infinite") and "output y" in nothing
    assert "1 of 1 cases agree" in verdict and "results are not finite there: " in verdict
    assert "`output loss`" in verdict and "`gradient w`" in verdict
    for case in mtfc(*asked, "--format", "json").json["cases"]:
        assert {"output y", "output loss", "gradient w", "parameter w"} <= set(case["not_finite"])
    assert not [each for each in recwarn if issubclass(each.category, RuntimeWarning)]


OF_POSITIVE = """
dim batch = 8
dim io = 16
mesh grid = [rows: 2]
layout data on grid = {{ batch: rows }}
model m(x: [batch, io]) {{
  param w: [io] = ones()
  y = {y} + w
  z = x + w
  return y, z
}}
"""


@pytest.mark.parametrize(
    ("y", "status"), [("log(min(x -> []))", 0), ("log(log(min(x -> [])))", 0), ("log(-abs(x))", 1)]
)
def test_a_result_that_is_nan_wholly_is_drawn_again(mtfc: Mtfc, folder: Path, y: str, status: int) -> None:
    (folder / "positive.mtf").write_text(OF_POSITIVE.format(y=y), "utf-8")
    outcome = mtfc("verify", "positive.mtf", "--backend", "numpy", "--format", "json")
    assert outcome.status == status
    names = ["output y of m"] if status else []
    assert (outcome.json["ok"], outcome.json["without_numbers"]) == (not status, names)


def test_finite_results_are_not_named(mtfc: Mtfc) -> None:
    outcome = mtfc("verify", "model.mtf", "--backend", "numpy")
    assert outcome.out.splitlines()[-1] == "3 of 3 cases agree with the undistributed program"
    case = mtfc("verify", "model.mtf", "--backend", "numpy", "--format", "json").json["cases"][0]
    assert case["not_finite"] == []


def test_a_model_that_is_too_large_is_refused(mtfc: Mtfc, folder: Path) -> None:
    outcome = mtfc("verify", "model.mtf", "--dim", f"batch={6 * 2**40}")
    assert (outcome.status, outcome.out) == (2, "")
    assert "elements, and `verify` computes all of them on this machine" in outcome.err
    assert "--dim" in outcome.err
