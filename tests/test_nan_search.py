"""The search for the equation that makes the first number that is not finite in a training step."""

from typing import Any

import numpy as np
import pytest

from mtfc.compiler.diagnostics import Diagnostic
from mtfc.compiler.passes.pipelines import lower
from mtfc.driver.running.nan_search import StepInputs, find_not_finite
from tests.harness import Arrays, chosen_layout, load

MODEL = """
dim batch = 4; dim io = 4; dim hidden = 8; dim layers = 3
mesh line = [data: 2]
layout data on line = { batch: data, params: { *: data } }
fn safe_log(x: [...]) -> [...] {
  return where(x > 0.0, log(x), 0.0)
}
fn sharpened(x: [...]) -> [...] {
  return exp(x)
}
model m(x: [batch, io], target: [batch]) {
  param scale: [io] = ones()
  h = x * scale
  repeat layers {
    param w: [io, hidden] = normal(stddev = 0.5)
    param v: [hidden, io] = normal(stddev = 0.5)
    h = h + einsum(tanh(einsum(h, w -> [batch, hidden])), v -> [batch, io])
  }
  y = sum(h -> [batch])
  loss = BODY
  return loss
}
train m { minimize loss; optimizer = momentum(learning_rate = 0.5); accumulate = COUNT }
"""


def line_of(start: str) -> int:
    """Return the line of the model that starts with a text."""
    return next(i for i, line in enumerate(MODEL.splitlines(), 1) if line.strip().startswith(start))


def given() -> tuple[Arrays, Arrays]:
    """Draw parameters and inputs."""
    random = np.random.default_rng(0)
    shapes = {"scale": (4,), "layers.w": (3, 4, 8), "layers.v": (3, 8, 4)}
    parameters = {n: random.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    return parameters, {"x": random.standard_normal((4, 4)), "target": np.ones(4)}


def step_of(body: str, scale: float, count: int, **changed: Any) -> tuple[str, StepInputs]:
    """Return the source with this loss, and the arguments of its step 12: inputs `scale` times as large, some arrays changed."""
    parameters, inputs = given()
    inputs["x"] = scale * inputs["x"]
    for name, value in changed.items():
        (inputs if name in inputs else parameters)[name.replace("__", ".")] = value
    state = {f"{name}.velocity": np.zeros_like(value) for name, value in parameters.items()}
    stacked = {n: np.stack([x] * count) if count > 1 else x for n, x in inputs.items()}
    batch = {name: x.astype(np.float32) for name, x in stacked.items()}
    return MODEL.replace("BODY", body).replace("COUNT", str(count)), StepInputs(parameters, state, batch, 11)


def cause(
    body: str, scale: float = 1.0, count: int = 1, entry: str = "", **changed: Any
) -> Diagnostic | None:
    text, inputs = step_of(body, scale, count, **changed)
    (program,) = load(text.replace("minimize loss;", f"minimize loss; {entry};") if entry else text).programs
    return find_not_finite(program, inputs)


def test_finite_step_has_no_cause() -> None:
    assert cause("mean(square(y - target))") is None


@pytest.mark.parametrize("count", [1, 2])
def test_forward_pass(count: int) -> None:
    problem = cause("mean(square(exp(y) - target))", scale=3000.0, count=count)
    assert problem is not None
    assert (problem.code, problem.line) == ("E701", line_of("loss ="))
    loop = ", at micro = 0" if count > 1 else ""
    number = problem.message.split()[0]
    assert (
        problem.message
        == f"{number} of 4 numbers that `exp` makes are infinite, in the forward pass of step 12{loop}"
    )
    assert problem.help is not None and problem.help.startswith("y: f32[batch] is from ")


def test_backward_pass() -> None:
    """The loss is finite. The slope of a square root at 0 is infinite, and reaches the parameters."""
    problem = cause("mean(sqrt(square(y - y)))")
    assert problem is not None and problem.line == line_of("loss =")
    assert "that `div` makes" in problem.message and "in the backward pass of step 12" in problem.message


def test_library_function_is_shown_in_both_places() -> None:
    problem = cause("mean(sharpened(y))", scale=3000.0)
    assert problem is not None
    assert "`exp`" in problem.message
    assert {problem.line, *(label.line for label in problem.labels)} == {
        line_of("loss ="),
        line_of("return exp"),
    }


@pytest.mark.parametrize(
    "body",
    [
        "mean(safe_log(y - 1000.0))",
        "mean(y) + mean(stop_gradient(exp(0.0 - exp(y * y))))",
        "mean(exp(where(y > 1e9, y, stop_gradient(0.0 - 1.0 / square(y - y)))))",
    ],
)
def test_discarded_numbers_are_no_cause(body: str) -> None:
    """Infinite numbers are made, and never reach the loss."""
    assert cause(body, scale=100.0) is None


def test_nan_from_infinity_is_found_where_the_infinity_is_made() -> None:
    problem = cause("mean(exp(y) - exp(y) * 2.0)", scale=3000.0)
    assert problem is not None and "`exp` makes are infinite" in problem.message


def test_iteration_of_a_loop() -> None:
    """The parameter of the last layer alone is too large."""
    random = np.random.default_rng(0)
    v = random.standard_normal((3, 8, 4)).astype(np.float32)
    v[2] *= 1e38
    problem = cause("mean(y)", layers__v=v)
    assert problem is not None
    assert "`einsum` makes are infinite, in the forward pass of step 12, at layers = 2" in problem.message


def test_half_precision_is_explained() -> None:
    problem = cause("mean(cast(y, f32))", scale=50000.0, entry="precision = { compute: f16 }")
    assert problem is not None and problem.help is not None
    assert "f16 holds numbers up to 65504" in problem.help


def test_arguments() -> None:
    x = np.ones((4, 4))
    x[1, 2] = np.nan
    problem = cause("mean(y)", x=x)
    assert problem is not None and problem.line == line_of("model m")
    assert problem.message == "1 of 16 numbers in input `x` are NaN before step 12"
    assert problem.help == "the first is at batch = 1, io = 2: look for such numbers in the data"
    problem = cause("mean(y)", layers__w=np.full((3, 4, 8), np.inf))
    assert problem is not None
    assert problem.message == "96 of 96 numbers in parameter `layers.w` are infinite before step 12"


def test_program_under_its_layout_is_searched_last() -> None:
    """Two parts of a sum overflow by themselves, and the whole does not, or the other way round: the layout's order counts."""
    text, inputs = step_of("mean(exp(y) * 0.0 + y)", 3000.0, 1)
    module = load(text)
    declared = chosen_layout(module, "data")
    placed = lower(module.programs[0], declared.mesh, declared.layout)
    here, there = (find_not_finite(module.programs[0], inputs, each) for each in (None, placed))
    assert here == there is not None
