"""`report`: the values that a training step returns besides the loss."""

import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from mtfc.compiler.ir.core import walk
from mtfc.compiler.ir.parser import read_program
from mtfc.compiler.ir.printer import print_program
from mtfc.compiler.ir.verifier import VerifyError, verify
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import RunOptions
from mtfc.driver.running.run import run
from mtfc.reports.array_summary import step_text
from tests.harness import (
    STEP,
    agree,
    call,
    diagnose,
    exact_data,
    jax_module,
    load,
    lowered,
    numpy_module,
    reference,
)
from tests.program_equality import same_program

HEAD = """
import nn
import schedules
dim batch = 8; dim io = 4; dim hidden = 16
mesh line = [all: 4]
mesh grid = [rows: 2, cols: 2]
layout data on line = { batch: all }
layout both on grid = { batch: rows, hidden: cols }
layout zero on grid = { batch: rows, optimizer: { hidden: rows, io: cols } }
layout fsdp on grid = { batch: (rows, cols), params: { hidden: (rows, cols) }, optimizer: { hidden: (rows, cols) } }
"""

MODEL = """
model m(x: [batch, io], y: [batch, hidden]) {
  param w: [io, hidden] = normal(stddev = 0.5)
  param b: [hidden] = zeros()
  error = tanh(einsum(x, w -> [batch, hidden]) + b) - y
  close = mean(cast(abs(error) < 0.5, f32))
  worst = max(abs(error), over = hidden)
  where_worst = argmax(abs(error), over = hidden)
  loss = mean(square(error))
  return loss, close, worst, where_worst
}
"""


def source(
    report: str, settings: str = "", optimizer: str = "sgd(learning_rate = 0.5)", model: str = MODEL
) -> str:
    train = f"train m {{ minimize loss; optimizer = {optimizer}; {settings}; report {report} }}"
    return HEAD + model + train.replace("; ;", ";") + "\n"


def stepped(text: str, seed: int = 3) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments and the results of a step of the undistributed program."""
    arrays = exact_data(lowered(text).function("step"), seed)
    return arrays, reference(text, "step", arrays)


def norm(text: str, arrays: dict[str, Any]) -> float:
    """Return the norm of the parameters' gradients, in f64."""
    given = {name: arrays[name] for name in ("x", "y", "w", "b")}
    found = reference(text, "gradients", given)
    return math.sqrt(sum(float(np.square(found[f"d_{name}"].astype(np.float64)).sum()) for name in "wb"))


@pytest.mark.parametrize("settings", ["", "clip = 0.01", "clip = 1000.0"])
def test_the_norm_is_that_of_all_gradients_before_clipping(settings: str) -> None:
    text = source("grad_norm", settings)
    arrays, found = stepped(text)
    assert found["grad_norm"].shape == () and found["grad_norm"].dtype == np.float32
    assert float(found["grad_norm"]) == pytest.approx(norm(text, arrays), rel=1e-6)
    agree(text, jax=settings == "clip = 0.01")


def test_the_norm_of_gradients_in_16_bits_is_added_up_in_32() -> None:
    text = source("grad_norm", "precision = { params: bf16, compute: bf16 }")
    arrays, found = stepped(text)
    assert found["grad_norm"].dtype == np.float32
    assert float(found["grad_norm"]) == pytest.approx(norm(text, arrays), rel=1e-3)


SCHEDULED = "schedules.cosine(step, peak = 0.5, warmup = 2, steps = 10)"
RATES = {
    "sgd(0.25)": 0.25,
    "adam(learning_rate = 1 / (step + 1))": 1 / (STEP + 1),
    f"momentum(momentum = 0.5, learning_rate = {SCHEDULED})": 0.25 * (1 + math.cos(math.pi * 3 / 8)),
    "own()": 0.125,
    "own(weight = 2, learning_rate = 2 * step)": 2 * STEP,
}
GROUPS = {
    'optimizer for "*" = sgd(0.25)': 0.25,
    'optimizer for "w" = sgd(0.25); optimizer for "b" = momentum(momentum = 0.5, learning_rate = 0.25)': 0.25,
    'frozen "w"; optimizer for "b" = adam(1 / (step + 1))': 1 / (STEP + 1),
    'optimizer for "*" = adam(3.0); optimizer for "w", "b" = sgd(0.25)': 0.25,
    'optimizer = sgd(0.25); optimizer for "w" = sgd(0.5)': 0.25,
    'optimizer = sgd(0.25); optimizer for "*" = sgd(0.5)': 0.5,
}


def grouped(entries: str) -> str:
    return HEAD + MODEL + f"train m {{ minimize loss; {entries}; report learning_rate }}\n"


@pytest.mark.parametrize("entries", GROUPS)
def test_the_learning_rate_is_that_of_the_groups(entries: str) -> None:
    found = stepped(grouped(entries))[1]["learning_rate"]
    assert float(found) == pytest.approx(GROUPS[entries], rel=1e-6)
    agree(grouped(entries), jax="3.0" in entries)


def test_groups_with_different_learning_rates_report_none() -> None:
    (error,) = diagnose(grouped('optimizer for "w" = sgd(0.25); optimizer for "b" = sgd(0.5)'))
    assert error.code == "E410" and "could be any of them" in error.message
    assert len(error.labels) == 2


OWN = "optimizer own(weight = 1.0, learning_rate = 0.125) (p, g) { p = p - learning_rate * weight * g }\n"


@pytest.mark.parametrize("optimizer", RATES)
def test_the_learning_rate_is_that_of_the_step(optimizer: str) -> None:
    text = OWN + source("learning_rate", optimizer=optimizer)
    found = stepped(text)[1]["learning_rate"]
    assert found.shape == () and found.dtype == np.float32
    assert float(found) == pytest.approx(RATES[optimizer], rel=1e-6)
    agree(text, jax="cosine" in optimizer)


def test_any_output_is_reported_as_the_step_computes_it() -> None:
    text = source("close, worst, where_worst, loss")
    arrays, found = stepped(text)
    forward = reference(text, "forward", {name: arrays[name] for name in ("x", "y", "w", "b")})
    for name in ("close", "worst", "where_worst", "loss"):
        np.testing.assert_array_equal(found[name], forward[name])
    assert [o.name for o in lowered(text).function("step").outputs if not o.updates] == [
        "loss", "close", "worst", "where_worst",
    ]  # fmt: skip
    agree(text)


@pytest.mark.parametrize("layout", ["data", "both", "zero", "fsdp"])
def test_the_mean_over_micro_batches_is_reported(layout: str) -> None:
    text = source("worst, close, grad_norm, learning_rate", "accumulate = 3; clip = 0.01", "sgd(0.1 * step)")
    program = lowered(text, layout=layout)
    step = program.function("step")
    arrays = exact_data(step, 3)
    found = call(numpy_module(program), step, arrays)
    each = [
        reference(text, "gradients", {**arrays, "x": arrays["x"][i], "y": arrays["y"][i]}) for i in range(3)
    ]
    for name in ("loss", "worst", "close"):
        np.testing.assert_allclose(found[name], np.mean([one[name] for one in each], 0), rtol=1e-6)
    means = [np.mean([one[f"d_{name}"] for one in each], 0) for name in "wb"]
    wanted = math.sqrt(sum(float(np.square(mean).sum()) for mean in means))
    assert float(found["grad_norm"]) == pytest.approx(wanted, rel=1e-5)
    assert float(found["learning_rate"]) == pytest.approx(0.1 * STEP)


def test_many_micro_batches_in_16_bits_have_a_mean() -> None:
    """Sums of bf16 stop growing at 256 ones."""
    model = MODEL.replace("close = mean(", "close = cast(mean(").replace("f32))\n", "f32)), bf16)\n")
    text = source("close", "accumulate = 600", model=model)
    step = lowered(text).function("step")
    arrays = {
        **exact_data(step, 3),
        "y": np.zeros((600, 8, 16), np.float32),
        "w": np.zeros((4, 16), np.float32),
    }
    arrays["b"] = np.zeros(16, np.float32)
    found = reference(text, "step", arrays)["close"]
    assert found.dtype.itemsize == 2 and float(found) == 1


def test_an_output_of_the_model_comes_before_what_steps_know() -> None:
    model = MODEL.replace("close", "grad_norm").replace("worst", "learning_rate")
    text = source("grad_norm, learning_rate", "clip = 0.5", model=model)
    found = stepped(text)[1]
    assert found["learning_rate"].shape == (8,)
    same = stepped(source("close", "clip = 0.5"))[1]
    np.testing.assert_array_equal(found["grad_norm"], same["close"])
    np.testing.assert_array_equal(found["w"], same["w"])


@pytest.mark.parametrize("backend", [numpy_module, jax_module], ids=["numpy", "jax"])
def test_an_output_may_have_the_name_of_a_parameter(backend: Any) -> None:
    text = (
        HEAD
        + """
    model m(x: [io]) {
      param w: [io] = ones()
      param v: [io] = ones()
      v = w * v * x
      w = sum(v)
      return w, v
    }
    train m { minimize w; optimizer = momentum(learning_rate = 0.5); report v }
    """
    )
    program = lowered(text)
    module = backend(program)
    x = np.arange(4, dtype=np.float32)
    params = module.shard({"w": np.ones(4, np.float32), "v": np.ones(4, np.float32)}, module.PARAMETERS)
    placed = module.shard({"x": x}, module.INPUTS)
    outputs, params, state = module.train_step(params, module.init_state(), placed, 0)
    outputs = module.unshard(outputs, module.OUTPUTS["train_step"])
    params = module.unshard(params, module.PARAMETERS)
    assert float(outputs["w"]) == 6
    np.testing.assert_array_equal(outputs["v"], x)
    np.testing.assert_array_equal(params["w"], 1 - 0.5 * x)
    np.testing.assert_array_equal(params["v"], 1 - 0.5 * x)
    assert sorted(state) == ["v.velocity", "w.velocity"]


NORMALIZED = """
model m(x: [batch, io]) {
  param w: [io, hidden] = normal(stddev = 0.5)
  h = einsum(x, w -> [batch, hidden])
  y = nn.batch_norm(h)
  average, variance = nn.moments(h)
  loss = mean(square(y - relu(y)))
  return loss, average, variance
}
"""


@pytest.mark.parametrize("layout", ["data", "both", "zero"])
def test_moments_of_batch_norm_cost_nothing_more(layout: str) -> None:
    """The reported statistics are those that normalize: they are computed once, and reduced once."""
    reporting = lowered(source("average, variance", model=NORMALIZED), layout=layout).function("step")
    silent = lowered(source("loss", model=NORMALIZED), layout=layout).function("step")
    assert Counter(eqn.op for eqn in walk(reporting.body)) == Counter(eqn.op for eqn in walk(silent.body))


def test_moments_are_right_and_serve_another_pass() -> None:
    """One model normalizes by batch statistics in training, and by given statistics in evaluation."""
    model = """
    model m(x: [batch, io], mean_so_far: [io], variance_so_far: [io]) {
      average, variance = nn.moments(x)
      y = nn.normalize(
        x, where(training, average, mean_so_far), where(training, variance, variance_so_far)
      ) as batch_norm
      loss = mean(square(y - 1))
      return loss, average, variance, y
    }
    """
    text = source("average, variance", model=model)
    arrays, found = stepped(text)
    np.testing.assert_allclose(found["average"], arrays["x"].mean(0), atol=1e-6)
    np.testing.assert_allclose(found["variance"], arrays["x"].var(0), atol=1e-6)
    given = {"mean_so_far": arrays["x"].mean(0), "variance_so_far": arrays["x"].var(0)}
    arrays = {name: x for name, x in arrays.items() if name != "step"} | given
    evaluated = reference(text, "forward", {**arrays, "x": arrays["x"] + 1})["y"]
    trained = reference(text, "gradients", arrays)["y"]
    scale = arrays["batch_norm.scale"] / np.sqrt(arrays["x"].var(0) + 1e-5)
    np.testing.assert_allclose(evaluated, trained + scale, atol=1e-4)
    agree(text)


def test_the_text_of_the_program_keeps_what_is_reported() -> None:
    (program,) = load(source("close, grad_norm, learning_rate", optimizer=f"adam({SCHEDULED})")).programs
    text = print_program(program, locations=True)
    assert "report (close, grad_norm, learning_rate)" in text
    assert same_program(read_program(text), program)
    verify(program, "global")


WRONG = (
    ({"report": ("close", "close")}, "two values of one name"),
    ({"report": ("loss",)}, "two values of one name"),
    ({"report": ("nothing",)}, "no output"),
    ({"report": ("learning_rate",), "learning_rate": None}, "no function computes it"),
    ({"report": ()}, "not reported"),
)


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_the_verifier_knows_what_can_be_reported(changes: dict[str, Any], message: str) -> None:
    (program,) = load(source("learning_rate")).programs
    assert program.training is not None
    with pytest.raises(VerifyError, match=message):
        verify(attrs.evolve(program, training=attrs.evolve(program.training, **changes)), "global")


def test_run_shows_and_saves(tmp_path: Path) -> None:
    path = tmp_path / "model.mtf"
    path.write_text(
        source("close, worst, grad_norm, learning_rate", optimizer="sgd(0.5 / (step + 1))"), "utf-8"
    )
    options = RunOptions(str(path), train=True, steps=3, save=str(tmp_path / "saved.npz"))
    lines: list[str] = []
    done = run(options, Sources(), lambda step: lines.append(step_text(step)))
    assert done.status == 0
    result = done.record()
    reports = [step["report"] for step in result["steps"]]
    assert [list(report) for report in reports] == [["close", "worst", "grad_norm", "learning_rate"]] * 3
    np.testing.assert_allclose([report["learning_rate"] for report in reports], [0.5, 0.25, 0.5 / 3])
    assert list(result["outputs"]) == ["loss", "close", "worst", "grad_norm", "learning_rate"]
    with np.load(tmp_path / "saved.npz") as saved:
        assert sorted(saved) == ["b", "loss", "w"]
    shown = re.sub(r"\[[^]]*\]", "[]", lines[1]).split()
    assert shown[4:12:2] == ["close", "worst", "grad_norm", "learning_rate"]
    assert (shown[7], shown[11]) == ("[]", "0.25")
