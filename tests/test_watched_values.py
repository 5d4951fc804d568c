"""`watch` hands out values beside the outputs: from functions and loops, in `forward` and in training steps."""

import re

import numpy as np
import pytest

import mtfc
from mtfc.compiler.ir.parser import read_program
from mtfc.compiler.ir.printer import print_program
from mtfc.driver.loading.selection import LayoutOnMesh
from mtfc.driver.verification.exact_cases import exact_cases
from tests.harness import agree, differentiated, load
from tests.program_equality import same_program

HEAD = """
dim batch = 8; dim io = 4; dim hidden = 8; dim layers = 3; dim time = 2
mesh grid = [rows: 2, cols: 2]
layout both = { batch: rows, hidden: cols }
layout fsdp = { batch: (rows, cols), params: { *: (rows, cols) } }
fn half[d](x: [..., d]) -> [..., d] {
  scores = tanh(x)
  size = mean(square(scores))
  watch scores, size
  return scores * 0.5
}
"""

WATCHING = """
  watch h, x
  h = half(half(h))
  repeat layers checkpoint {
    param u: [hidden] = ones()
    h = half(h * u)
    top = max(h -> [])
    count = sum(cast(h > 0, i32))
    watch top, count
  }
  steps = broadcast(h -> [time, batch, hidden])
  scan step = steps along time {
    state = tanh(h + step)
    watch state
    h = state
  }
  watch = 2
  h = h * watch
"""

SHAPES = {
    "h.watched": (8, 8),
    "x": (8, 4),
    "half.scores": (8, 8),
    "half.size": (),
    "half_2.scores": (8, 8),
    "half_2.size": (),
    "layers.half.scores": (3, 8, 8),
    "layers.half.size": (3,),
    "layers.top": (3,),
    "layers.count": (3,),
    "state": (2, 8, 8),
}


def model(body: str, settings: str = "", after: str = "") -> str:
    return f"""{HEAD}
model m(x: [batch, io]) {{
  param w: [io, hidden] = normal(stddev = 0.5)
  h = einsum(x, w -> [batch, hidden])
  {body}
  loss = mean(square(h))
  {after}
  return h, loss
}}
train m {{ minimize loss; optimizer = sgd(learning_rate = 0.1); {settings} }}
"""


@pytest.mark.parametrize("settings", ["", "accumulate = 2"])
def test_every_layout_hands_out_the_same_values(settings: str) -> None:
    agree(model(WATCHING, settings), jax=False)


def compared(source: str) -> int:
    """Return the number of elements that the exact check compares under the layout `both`, all of which are right."""
    module = load(source)
    (program,) = module.programs
    both = next(each for each in module.layouts if each.name == "both")
    _, case = exact_cases(program, [LayoutOnMesh(both.mesh, both.layout)], seed=0)
    assert case.ok
    return case.found.elements


def test_the_exact_check_compares_watched_values() -> None:
    watching = model("repeat layers { h = half(h) }")
    plain = watching.replace("watch scores, size\n", "\n")
    assert compared(watching) > compared(plain)


def test_the_text_of_the_ir_keeps_watched_values() -> None:
    (program,) = load(model(WATCHING)).programs
    assert same_program(read_program(print_program(program, locations=True)), program)


PRECISE = "precision = { params: f32, compute: bf16 }; accumulate = 2"


@pytest.mark.parametrize("settings", ["", PRECISE], ids=["plain", "bf16, micro-batches"])
def test_python_gets_the_values_of_forward_and_of_a_step(settings: str) -> None:
    """JAX on four devices gives what NumPy gives on one; a step of micro-batches gives means."""
    source = model(WATCHING, settings)
    compiled = mtfc.compile_text(source, layout="both")
    x = np.random.default_rng(0).standard_normal((2, 8, 4), np.float32)
    state = compiled.init(seed=1)
    params = {name: np.asarray(value) for name, value in state.params.items()}
    outputs = [compiled.forward(state.params, {"x": each}) for each in x]
    _, metrics = compiled.train_step(state, {"x": x if settings else x[0]})
    alone = mtfc.compile_text(source, mesh="one", layout="{}").load()
    placed = alone.shard(params, alone.PARAMETERS)
    single = [alone.forward(placed, alone.shard({"x": each}, alone.INPUTS)) for each in x]
    expected = [alone.unshard(each, alone.OUTPUTS["forward"]) for each in single]
    shapes = {"h": (8, 8), "loss": (), **SHAPES}
    assert {name: np.shape(value) for name, value in outputs[0].items()} == shapes
    assert {name: np.shape(value) for name, value in metrics.items()} == {"loss": (), **SHAPES}
    tolerance = {"rtol": 0.02, "atol": 0.02} if settings else {"rtol": 1e-5, "atol": 1e-6}
    for name in shapes:
        first, second = (np.asarray(each[name], np.float32) for each in expected)
        found = np.asarray(outputs[0][name], np.float32)
        np.testing.assert_allclose(found, first, **tolerance, err_msg=name)
        if name in metrics:
            mean = (first + second) / 2 if settings else first
            np.testing.assert_allclose(np.asarray(metrics[name], np.float32), mean, **tolerance, err_msg=name)
    scores = np.asarray(outputs[0]["layers.half.scores"], np.float32)
    np.testing.assert_allclose(outputs[0]["layers.top"], 0.5 * np.max(scores, (1, 2)), rtol=0.01)


def test_a_watched_value_changes_no_number_of_training() -> None:
    plain = re.sub(r"watch [a-z, ]+\n", "\n", model(WATCHING))
    x = np.random.default_rng(0).standard_normal((8, 4), np.float32)
    ends = []
    for source in (model(WATCHING), plain):
        compiled = mtfc.compile_text(source, layout="fsdp")
        state = compiled.init(seed=1)
        for _ in range(2):
            state, _ = compiled.train_step(state, {"x": x})
        ends.append(state.params)
    for name, value in ends[0].items():
        np.testing.assert_allclose(value, ends[1][name], rtol=1e-6, err_msg=name)


def test_micro_batches_hand_out_means_of_integers_too() -> None:
    (program,) = load(model(WATCHING, "accumulate = 2")).programs
    step = differentiated(program, "step").function("step")
    types = {output.name: str(output.value.type) for output in step.handed_out}
    assert types["layers.count"] == "f32[layers]" and types.keys() == {"loss", *SHAPES}


def test_a_value_that_is_an_output_comes_back_once() -> None:
    (program,) = load(model("", after="watch h, loss")).programs
    assert [output.name for output in program.function("forward").outputs] == ["h", "loss"]
    assert program.training is not None and program.training.report == ("h",)


def test_names_that_mean_something_else_already() -> None:
    """Outputs and built-in reports keep their names, and so do other watched values; a watched loss need not be returned."""
    source = """
fn h[d](x: [..., d]) -> [..., d] {
  state new: [] = 1
  update new = new + 1
  watched = tanh(x)
  watch watched, new
  return watched
}
model m(x: [batch, io]) {
  param w: [io] = ones()
  h = x * w
  grad_norm = mean(h)
  loss = mean(square(h))
  watch h, grad_norm, loss
  h = h(h)
  return h
}
train m { minimize loss; optimizer = sgd(learning_rate = 0.1); report grad_norm }"""
    (program,) = load(HEAD + source).programs
    outputs = [output.name for output in program.function("forward").outputs]
    assert outputs == ["h", "h.watched_2", "grad_norm.watched", "loss", "h.watched", "h.new", "h.new.new"]
    assert program.training is not None
    assert program.training.report == (
        *("grad_norm", "h.watched_2", "grad_norm.watched", "h.watched", "h.new"),
    )
    agree(HEAD + source, jax=False)


def test_a_name_of_two_scopes_gets_a_number() -> None:
    body = """
  repeat layers { g = tanh(h); watch g; h = g }
  repeat layers { g = tanh(h); watch g; h = g }"""
    (program,) = load(model(body)).programs
    assert [output.name for output in program.function("forward").outputs][2:] == ["layers.g", "layers_2.g"]
