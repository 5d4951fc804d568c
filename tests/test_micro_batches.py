"""`accumulate = K`: a step over K micro-batches equals a step over one batch K times as large, if the loss is a mean."""

from pathlib import Path

import numpy as np
import pytest

from mtfc.backends.hlo import collectives
from mtfc.backends.jax import runtime as jax_runtime
from mtfc.compiler.cost.effects.memory import MemoryUse, memory_of
from mtfc.compiler.cost.sizes import Numbers
from mtfc.compiler.ir.core import Program, walk
from mtfc.compiler.ir.loops import region_of
from mtfc.compiler.ir.ops.collectives import KIND_OF
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import choose
from tests.harness import SINGLE, Arrays, call, communication, jax_module, lowered, reference, simulate

SOURCE = """
dim batch = {batch}; dim io = 4; dim hidden = 6
mesh grid = [rows: 2, cols: 2]
layout plain on grid = {{ batch: rows, hidden: cols }}
layout stored on grid = {{ batch: rows, params: {{ io: cols }}, optimizer: {{ hidden: rows }} }}
layout sharded on grid = {{ batch: rows, hidden: cols, params: {{ io: rows }} }}
model m(x: [batch, io]) {{
  param w: [io, hidden] = normal(stddev = 0.5)
  loss = mean(square(tanh(einsum(x, w -> [batch, hidden]))))
  return loss
}}
train m {{ minimize loss; optimizer = momentum(learning_rate = 0.5); clip = 0.01; accumulate = {accumulate} }}
"""

LAYERED = """
dim batch = {batch}; dim d = 8; dim hidden = 16; dim layers = 3
mesh line = [data: 4]
layout fsdp = {{ batch: data, params: {{ d: data }} }}
layout replicated = {{ batch: data }}
layout optimizer_sharded = {{ batch: data, optimizer: {{ d: data }} }}
model m(x: [batch, d]) {{
  param scale: [d] = ones()
  x = x * scale
  repeat layers {{
    param w: [d, hidden] = normal(stddev = 0.5)
    param v: [hidden, d] = normal(stddev = 0.5)
    x = x + einsum(tanh(einsum(x, w -> [batch, hidden])), v -> [batch, d])
  }}
  loss = mean(square(x))
  return loss
}}
train m {{ minimize loss; optimizer = momentum(learning_rate = 0.5); accumulate = {accumulate} }}
"""


def drawn(**shapes: tuple[int, ...]) -> Arrays:
    random = np.random.default_rng(0)
    return {name: (random.standard_normal(shape) / 2).astype(np.float32) for name, shape in shapes.items()}


def small() -> Arrays:
    return drawn(x=(12, 4), w=(4, 6), **{"w.velocity": (4, 6)})


def layered() -> Arrays:
    parameters = {"scale": (8,), "layers.w": (3, 8, 16), "layers.v": (3, 16, 8)}
    return drawn(x=(12, 8), **parameters, **{f"{name}.velocity": shape for name, shape in parameters.items()})


CASES = [
    (SOURCE, "plain"),
    (SOURCE, "stored"),
    (SOURCE, "sharded"),
    (LAYERED, "fsdp"),
    (LAYERED, "replicated"),
    (LAYERED, "optimizer_sharded"),
]


@pytest.mark.parametrize("backend", ["numpy", "jax"])
@pytest.mark.parametrize(("source", "layout"), CASES)
def test_micro_batches_are_one_batch(source: str, layout: str, backend: str) -> None:
    given = small() if source is SOURCE else layered()
    expected = reference(source.format(batch=12, accumulate=1), "step", given)
    parts = {**given, "x": given["x"].reshape(3, 4, -1)}
    several = source.format(batch=4, accumulate=3)
    if backend == "numpy":
        actual = simulate(several, "step", parts, layout)
    else:
        placed = lowered(several, "step", layout)
        actual = call(jax_module(placed), placed.function("step"), parts)
    SINGLE.check(actual, expected, f"{layout} on {backend}")


# Communication


def sent(layout: str, accumulate: int) -> list[tuple[str, tuple[str, ...], int]]:
    return communication(LAYERED.format(batch=4, accumulate=accumulate), "step", layout)


def elements(found: list[tuple[str, tuple[str, ...], int]], kind: str) -> int:
    return sum(size for each, _, size in found if each == kind)


def test_stored_parameters_are_gathered_and_gradients_scattered_in_each_micro_batch() -> None:
    """The loop has the collectives of one batch: the same slices of layers, and the same sums."""
    one, several = sent("fsdp", 1), sent("fsdp", 3)
    for kind in ("all_gather", "reduce_scatter"):
        assert elements(several, kind) == elements(one, kind) > 0


@pytest.mark.parametrize(
    "precision",
    ["", "compute: bf16", "compute: bf16, reduce: f32", "compute: f16, loss_scale: dynamic"],
)
def test_each_layer_is_gathered_inside_of_the_loops(precision: str) -> None:
    """No micro-batch holds the gathered parameters, or the whole gradients, of two layers at once."""
    entry = f"precision = {{ {precision} }}; accumulate" if precision else "accumulate"
    source = LAYERED.format(batch=4, accumulate=3).replace("accumulate", entry)
    (loop,) = [eqn for eqn in lowered(source, "step", "fsdp").function("step").body if eqn.regions]
    inside = [eqn for eqn in walk(region_of(loop).body) if "axes" in eqn.attrs]
    moved = [value for eqn in inside for value in (*eqn.operands, *eqn.results)]
    assert {dim.name for value in moved for dim in value.type.dims} == {"d", "hidden"}
    layers = [region_of(eqn) for eqn in region_of(loop).body if eqn.regions]
    for kind, number in (("all_gather", 4), ("reduce_scatter", 2)):
        ops = [each for region in layers for each in walk(region.body) if KIND_OF.get(each.op) == kind]
        assert sum(len(each.operands) for each in ops) == number


@pytest.mark.parametrize("layout", ["replicated", "optimizer_sharded"])
def test_other_gradients_are_completed_once_per_step(layout: str) -> None:
    """A parameter that is stored as it is used causes no communication in the loop."""
    source = LAYERED.format(batch=4, accumulate=3)
    program = lowered(source, "step", layout)
    (loop,) = [eqn for eqn in program.function("step").body if eqn.regions]
    assert not [eqn.op for eqn in walk(region_of(loop).body) if "axes" in eqn.attrs]
    kind = "all_reduce" if layout == "replicated" else "reduce_scatter"
    assert elements(sent(layout, 3), kind) >= 8 + 2 * 3 * 8 * 16


# Memory

LLAMA = Path(__file__).parents[1] / "examples" / "llama.mtf"


def llama(accumulate: int, **dims: int) -> Program:
    """Return the step of the example under the layout `fsdp`, on 8 devices if dimensions are given."""
    text = LLAMA.read_text("utf-8").replace("  clip = 1.0", f"  clip = 1.0\n  accumulate = {accumulate}")
    text = text.replace("[data: 64, model: 8]", "[data: 4, model: 2]") if dims else text
    selection = choose(text, str(LLAMA), Choice("llama", "fsdp", None, dims))
    return selection.cases[0].lower(selection.program)


def memory(program: Program) -> MemoryUse:
    return memory_of(program.function("step"), program.placed_on, Numbers(program.placed_on))


def test_micro_batches_of_llama_need_the_memory_of_one() -> None:
    one, several = memory(llama(1)), memory(llama(4))
    assert several.total <= 1.15 * one.total + one.gradients
    assert several.gradients - one.gradients in (0, 4)  # the loss may travel with the gradients
    assert one.gradients == one.parameters


SMALL = {
    "batch": 8, "length": 32, "vocab": 256, "d_model": 256, "kv_heads": 2, "sharers": 2, "d_k": 16, "d_ff": 512, "layers": 6,
    "choices": 4,
}  # fmt: skip


def test_xla_allocates_the_memory_of_one_micro_batch() -> None:
    """XLA keeps each gather in the loop: otherwise it would hold whole parameters from before the first micro-batch on."""
    one, several = (jax_runtime.lowered(llama(number, **SMALL), "step").compile() for number in (1, 4))
    gathers = [collectives(each.as_text())["all_gather"]["count"] for each in (one, several)]
    assert gathers[1] == 4 * gathers[0]
    needed = [
        each.memory_analysis().temp_size_in_bytes + each.memory_analysis().argument_size_in_bytes
        for each in (one, several)
    ]
    gradients = memory(llama(1, **SMALL)).gradients
    assert needed[1] <= 1.15 * needed[0] + gradients
