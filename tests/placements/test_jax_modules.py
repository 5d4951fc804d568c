"""Placements on JAX devices: modules compute what the undistributed program computes, forward, backward and in training."""

import re
from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np
import pytest

from mtfc.backends.common.prelude import definitions
from mtfc.backends.jax.backend import ATTENTION, PRELUDE, RANDOM
from mtfc.compiler.diagnostics import CompileError
from mtfc.compiler.ir.core import Program
from mtfc.compiler.passes.pipelines import run, simplification
from mtfc.driver.data.inputs import draw_batch
from mtfc.driver.loading.cases import PlacementCase
from mtfc.driver.loading.selection import ONE_DEVICE, UNDISTRIBUTED, LayoutOnMesh
from mtfc.driver.running.execution import Session, loaded
from mtfc.frontend.hardware_targets import find_hardware
from mtfc.placements.declarations import placement_text
from mtfc.placements.operators.strategy import random_strategy
from mtfc.placements.placement_search import placement_space
from mtfc.placements.running.jax.plan import ModulePlan
from mtfc.placements.running.jax.step import FunctionWriter
from mtfc.placements.running.placed_program import PlacedProgram
from tests.harness import load
from tests.placements.placement_programs import DENSE, PROGRAMS, SCALARS, prepared

STEPS = 3

MIXED = """
import nn
dim batch = 8
dim io = 6
dim hidden = io
model mixed(x: [batch, io], y: [batch, io]) {
  param w: [io, hidden] = normal(stddev = 0.5)
  param gain: [io] = ones()
  h = nn.dropout(tanh(einsum(x, w -> [batch, hidden])), rate = 0.5)
  z = einsum(rename(h, hidden -> io) * gain, w -> [batch, hidden])
  loss = mean(square(z - rename(y, io -> hidden)))
  return z, loss
}
train mixed {
  minimize loss
  accumulate = 2
  clip = 0.1
  average = 0.5
  report grad_norm, learning_rate
  frozen "gain"
  optimizer = adam(learning_rate = 0.1)
}
placement two on 2 = { dropout.dropped: { batch: 2 } on [0, 1], loss: { hidden: 2 } on [1, 0] }
"""
"""Two operators on other parts of two devices share a parameter. Another parameter is frozen."""

STACK = """
dim batch = 4
dim io = 4
dim out = io
dim layers = 3
optimizer trust(learning_rate) (p, g) {
  p = p - learning_rate * sqrt(sum(square(p))) * g
}
model stack(x: [batch, io]) {
  h = x
  repeat layers {
    param w: [io, out] = normal(stddev = 0.3)
    y = tanh(einsum(h, w -> [batch, out]))
    h = rename(y, out -> io)
  }
  loss = mean(square(h))
  return h, loss
}
train stack { minimize loss; optimizer = trust(learning_rate = 0.1) }
placement wide on 2 = {
  layers.y[0]: { batch: 2 } on [0, 1]
  layers.y[1]: { out: 2 } on [0, 1]
  loss: { batch: 2 } on [0, 1]
}
"""
"""The optimizer looks at whole parameters, and each layer has one."""

HALF = (
    "import nn\nimport losses\n"
    + DENSE.replace(
        "minimize loss;", "minimize loss; precision = { params: f32, compute: f16, loss_scale: dynamic };"
    )
    + "placement half on 2 = { h: { batch: 2 } on [0, 1], softmax_cross_entropy.cross_entropy.wide: { batch: 2 } on [1, 0] }\n"
)

PIPELINE = (
    "import nn\nimport losses\n"
    + DENSE.replace("minimize loss;", "minimize loss; accumulate = 4;")
    + """
placement stages on 4 = {
  h: { batch: 2 } on [0, 1]
  logits: { batch: 2 } on [2, 3]
  loss: { batch: 2 } on [2, 3]
}
"""
)
"""Operators follow one another over two groups of devices, with micro-batches."""


WHOLE = """
dim batch = 8
dim io = 6
dim hidden = io
model whole(x: [batch, io], y: [batch, io]) {
  param gain: [] = constant(0.7)
  param w: [io, hidden] = normal(stddev = 0.5)
  h = gain * tanh(einsum(x, w -> [batch, hidden]))
  loss = mean(square(h - rename(y, io -> hidden)))
  return h, loss
}
train whole {
  minimize loss
  clip = 0.01
  average = 0.9
  report grad_norm, h
  optimizer = adafactor(learning_rate = 0.1)
}
"""
"""A parameter is a number, the optimizer looks at whole parameters, and an array is reported."""

WEIGHED = """
dim batch = 8
dim io = 6
dim hidden = io
model weighed(x: [batch, io], m: [batch]) {
  param w: [io, hidden] = normal(stddev = 0.3)
  state seen: [] = 1.0
  update seen = seen * 0.5 + mean(x)
  h = seen * tanh(einsum(x, w -> [batch, hidden]))
  n = sum(square(m))
  loss = sum(square(h) * m * m) / n
  other = mean(h)
  return loss, n, other
}
train weighed {
  minimize loss
  accumulate = 3
  weigh_by = n
  clip = 0.01
  report n, other, grad_norm
  optimizer = adam(learning_rate = 0.1)
}
"""
"""Micro-batches have weights, and the model has a state."""


def case_of(text: str) -> tuple[Program, PlacementCase]:
    module = load(text)
    return module.programs[0], PlacementCase(module.placements[0], module.programs[0])


def random_case(name: str, seed: int, devices: int) -> tuple[Program, PlacementCase]:
    """Return a program under a random placement."""
    return drawn(PROGRAMS[name], seed, devices)


def drawn(text: str, seed: int, devices: int) -> tuple[Program, PlacementCase]:
    """Return the program of a text under a random placement."""
    program = run(load(text).programs[0], simplification())
    space = placement_space(program, find_hardware("k80_cluster", {}), devices)
    strategy = random_strategy(space.choices, Random(seed))
    return case_of(text + placement_text("drawn", devices, space.graph, strategy))


def trained(session: Session, program: Program) -> dict[str, Any]:
    """Return the outputs of the forward pass and of each step, and the parameters and states after the last step."""
    accumulate = program.training.accumulate if program.training else 1
    batches = draw_batch(program.function("forward"), 0, STEPS * accumulate)
    found = {f"forward {name}": x for name, x in session.evaluate("forward", batches[0]).items()}
    if program.training is None:
        return found
    for number in range(STEPS):
        outputs = session.train(batches.step(number, accumulate), number)
        found |= {f"step {number} {name}": x for name, x in outputs.items()}
    found |= gradients_of(session, program, batches)
    averages = {f"given out {name}": x for name, x in session.averages().items()}
    return {**found, **session.parameters(), **session.optimizer_state(), **averages}


def gradients_of(session: Session, program: Program, batches: Any) -> dict[str, Any]:
    """Return loss and gradients of a step, as `value_and_grad` returns them with and without each of its options."""
    module, training, found = session.module, program.training, dict[str, Any]()
    assert training is not None
    several = ({"accumulate": True},) if training.accumulate > 1 else ()
    clips = ({"clip": True},) if training.clip is not None else ()
    for options in ({}, *several, *clips):
        accumulates = "accumulate" in options
        batch = batches.step(0, training.accumulate) if accumulates else batches[0]
        placed = module.shard(dict(batch), module.BATCHES if accumulates else module.INPUTS)
        loss, gradients = module.value_and_grad(session.params, placed, 2, **options)
        whole = module.unshard(gradients, module.PARAMETERS)
        found |= {f"gradient {name} {options}": x for name, x in whole.items()}
        found[f"loss {options}"] = np.asarray(loss).reshape(())
    return found


def undistributed(program: Program) -> dict[str, Any]:
    text = LayoutOnMesh(ONE_DEVICE, UNDISTRIBUTED).source(program, "numpy", "module")
    return trained(Session.start(loaded(text, "numpy"), 0, {}), program)


def placed(program: Program, case: PlacementCase) -> dict[str, Any]:
    return trained(Session.start(loaded(case.source(program, of="module"), "jax"), 0, {}), program)


def agree(found: Mapping[str, Any], wanted: Mapping[str, Any], tolerance: float = 1e-5) -> None:
    assert found.keys() == wanted.keys()
    for name, x in wanted.items():
        assert found[name].shape == x.shape
        assert found[name].dtype == x.dtype
        np.testing.assert_allclose(
            found[name].astype(np.float64), x.astype(np.float64), 1e-3, tolerance, err_msg=name
        )


@pytest.mark.parametrize("text", [MIXED, STACK, PIPELINE], ids=["mixed", "stack", "pipeline"])
def test_training_is_that_of_the_undistributed_program(text: str) -> None:
    program, case = case_of(text)
    agree(placed(program, case), undistributed(program))


@pytest.mark.parametrize("text", [WHOLE, WEIGHED], ids=["whole", "weighed"])
def test_what_follows_the_passes_is_that_of_the_undistributed_program(text: str) -> None:
    program, case = drawn(text, 7, 2)
    agree(placed(program, case), undistributed(program))


def test_gradients_stored_in_16_bits_are_added_in_32_bits() -> None:
    """The gradient of each micro-batch is 1 for `w`; a sum of 16 bits would stop to grow at 256."""
    program, case = case_of("""
dim batch = 2
dim d = 4
model net(x: [batch, d]) { param w: [d] = zeros(); y = einsum(x, w -> [batch]); loss = mean(y); return loss }
train net {
  minimize loss
  accumulate = 512
  optimizer = sgd(learning_rate = 1.0)
  precision = { params: bf16, compute: bf16 }
}
placement alone on 1 = {}
""")
    session = Session.start(loaded(case.source(program, of="module"), "jax"), 0, {})
    session.train({"x": np.ones((512, 2, 4), np.float32)}, 0)
    np.testing.assert_array_equal(session.parameters()["w"].astype(float), -1.0)


def test_the_loss_scale_is_that_of_the_undistributed_program() -> None:
    program, case = case_of(HALF)
    agree(placed(program, case), undistributed(program), tolerance=1e-3)


@pytest.mark.parametrize(("name", "seed"), [("scalars", 3), ("padding", 4), ("swapped", 5), ("untrained", 6)])
def test_random_placements_compute_the_program(name: str, seed: int) -> None:
    program, case = random_case(name, seed, 2)
    agree(placed(program, case), undistributed(program))


def test_one_device_needs_no_transfers() -> None:
    text = MIXED[: MIXED.index("placement two")] + "placement alone on 1 = {}\n"
    program, case = case_of(text)
    assert not re.search(r"= send\(", case.source(program))


def step_writer(program: Program, case: PlacementCase) -> FunctionWriter:
    writer = FunctionWriter(ModulePlan(PlacedProgram(program, case.placement, case.declared)))
    writer.with_passes("step")
    return writer


@pytest.mark.parametrize("name", ["dense", "convolutions", "attention"])
def test_passes_send_no_more_than_the_task_graph_says(name: str) -> None:
    """A device that needs the same elements twice receives them once."""
    graph = placement_space(prepared(name), find_hardware("k80_cluster", {}), 4)
    for seed in range(4):
        strategy = random_strategy(graph.choices, Random(seed))
        text = PROGRAMS[name] + placement_text("drawn", 4, graph.graph, strategy)
        program, case = case_of(text)
        said = graph.evaluator.full(strategy).sent
        # the step's number, and the outputs, which are whole on one device
        outputs = 4 * 64
        assert step_writer(program, case).tasks.sent <= said + outputs


def test_a_pipeline_overlaps_and_holds_few_micro_batches() -> None:
    """The second stage begins before the first has seen all micro-batches, and backward passes begin before that, too."""
    program, case = case_of(PIPELINE)
    step = case.source(program).partition("def train_step")[2]
    calls = [match[1] for match in re.finditer(r"= (part_\w+)\(", step)]
    first = [i for i, name in enumerate(calls) if name == "part_h"]
    second = [i for i, name in enumerate(calls) if name == "part_logits"]
    back = [i for i, name in enumerate(calls) if name == "part_h_backward"]
    assert len(first) == len(second) == len(back) == 8  # two parts of four micro-batches
    assert second[0] < first[-1]
    assert back[0] < second[-1]


def test_equal_parts_and_equal_layers_share_a_function() -> None:
    """The first layer reads the input, which has no gradient; the two layers after it are one function in each direction."""
    text = STACK.replace("layers = 3", "layers = 4").replace("out: 2", "batch: 2")
    program, case = case_of(text.replace("  loss: {", "  layers.y[2]: { batch: 2 } on [0, 1]\n  loss: {"))
    found = re.findall(r"^def (part_layers\w+)", case.source(program), re.MULTILINE)
    first, others = (
        ("part_layers_y_0_", "part_layers_y_0__backward"),
        ("part_layers_y_1_", "part_layers_y_1__backward"),
    )
    assert found == [*first, *others]


def test_functions_of_placed_modules_have_names_of_their_own() -> None:
    own = definitions(("../placements/running/jax/prelude.py",)).keys()
    others = definitions((*PRELUDE, *ATTENTION, *RANDOM, "common/checks.py")).keys()
    assert own & others == set()


def test_a_parameter_whose_slices_are_updated_together_is_refused() -> None:
    whole = "optimizer trust(rate) (p, g) { p = p - rate * sqrt(sum(square(p))) * g }\n"
    text = whole + SCALARS.replace("sgd(learning_rate", "trust(rate")
    program, case = case_of(text + "placement p on 1 = {}\n")
    with pytest.raises(CompileError, match="`gain` cannot be split: a loop slices it"):
        case.source(program)


def test_a_smaller_batch_leaves_out_the_splits_that_do_not_divide_it() -> None:
    program, case = case_of(
        "import nn\nimport losses\n"
        + DENSE
        + "placement p on 4 = { h: { batch: 2, hidden: 2 } on [0, 1, 2, 3] }\n"
    )
    smaller = load("import nn\nimport losses\n" + DENSE.replace("batch = 8", "batch = 3")).programs[0]
    pieces = ModulePlan(PlacedProgram(smaller, case.placement, program)).parameters["w"]
    assert [(each.device, each.ends) for each in pieces] == [(0, ((0, 12), (0, 8))), (1, ((0, 12), (8, 16)))]
