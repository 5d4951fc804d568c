"""Test the library's optimizers and schedules against optax, step by step, under layouts and on both backends."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from benchmarks.peer_optax import relative
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.parser import read_program
from mtfc.compiler.ir.printer import print_program
from tests.harness import Arrays, jax_module, load, lowered, numpy_module
from tests.program_equality import same_program

STEPS, FEW = 24, 12
LAYERS = 3
LIMIT = 1e-6
"""The largest accepted difference from optax in f32, relative to the largest element of a parameter."""

SOURCE = """
import schedules

dim io = 4
dim hidden = 8
dim layers = 3
mesh grid = [rows: 2, cols: 2]
layout alone    on grid = {}
layout split    on grid = { hidden: cols, io: rows }
layout stored   on grid = { hidden: cols, optimizer: { io: rows } }
layout sharded  on grid = { params: { hidden: cols }, optimizer: { hidden: cols, io: rows } }

DECLARATIONS

# The gradients of w and b are the inputs; those of layer i of v and c are 2 ** (2 - i) times as large.
model m(gw: [io, hidden], gb: [hidden]) {
  param w: [io, hidden] = normal()
  param b: [hidden] = normal()
  loss = 0.0 * sum(gb)
  repeat layers {
    param v: [io, hidden] = normal()
    param c: [hidden] = normal()
    loss = 2.0 * loss + sum(v * gw) + sum(c * gb)
  }
  loss = loss + sum(w * gw) + sum(b * gb)
  return loss
}

train m { minimize loss; optimizer = OPTIMIZER }
"""
LAYOUTS = ("alone", "stored", "sharded")


def source(optimizer: str, declarations: str = "") -> str:
    return SOURCE.replace("OPTIMIZER", optimizer).replace("DECLARATIONS", declarations)


def gradients(step: int) -> Arrays:
    """Return the gradients of a step: generic numbers, smaller from step to step, and some zeros."""
    random = np.random.default_rng(step)
    drawn = {"gw": random.standard_normal((4, 8)), "gb": random.standard_normal(8)}
    return {name: (x * (np.abs(x) > 0.1) / (1 + step)).astype(np.float32) for name, x in drawn.items()}


def trained(module: Any, steps: int) -> tuple[list[Arrays], Arrays]:
    """Return the parameters before the first step and after each step, and the last state."""
    params, state = module.init(seed=1), module.init_state() if module.STATE else {}
    found = [dict(module.unshard(params, module.PARAMETERS))]
    for step in range(steps):
        inputs = module.shard(gradients(step), module.INPUTS)
        _, params, state = module.train_step(params, state, inputs, step)
        found.append({name: np.array(x) for name, x in module.unshard(params, module.PARAMETERS).items()})
    return found, dict(module.unshard(state, module.STATE))


def by_layer(params: Arrays) -> Arrays:
    """Split stacked parameters into one for each layer."""
    return {
        (name, i): x[i] if name.startswith("layers.") else x
        for name, x in params.items()
        for i in range(LAYERS if name.startswith("layers.") else 1)
    }


def by_optax(optimizer: optax.GradientTransformation, start: Arrays, steps: int) -> list[Arrays]:
    """Compute the same steps with optax, with separate parameters for each layer."""

    @jax.jit
    def updated(params: Arrays, state: Any, given: Arrays) -> Any:
        grads = {
            (name, i): given["gw" if x.ndim == 2 else "gb"]
            * (2.0 ** (LAYERS - 1 - i) if name.startswith("layers.") else 1.0)
            for (name, i), x in params.items()
        }
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    params = {key: jnp.asarray(x) for key, x in by_layer(start).items()}
    state, found = optimizer.init(params), [params]
    for step in range(steps):
        params, state = updated(params, state, gradients(step))
        found.append(params)
    return found


def check(
    optimizer: str, expected: optax.GradientTransformation, declarations: str = "", steps: int = FEW
) -> None:
    """Assert every step under every layout, and on both backends under a layout that splits all state."""
    text = source(optimizer, declarations)
    programs = {layout: lowered(text, layout=layout) for layout in LAYOUTS}
    modules = {f"numpy, {layout}": numpy_module(program) for layout, program in programs.items()}
    modules["jax, sharded"] = jax_module(programs["sharded"])
    actual = {name: trained(module, steps)[0] for name, module in modules.items()}
    wanted = by_optax(expected, actual["numpy, alone"][0], steps)
    for name, found in actual.items():
        for step, (params, right) in enumerate(zip(found, wanted, strict=True)):
            for key, x in by_layer(params).items():
                assert relative(x, right[key]) <= LIMIT, f"{key} after {step} steps: {name}"


OPTIMIZERS: dict[str, optax.GradientTransformation] = {
    "sgd(0.1)": optax.sgd(0.1),
    "sgdw(0.1, weight_decay = 0.2)": optax.chain(optax.add_decayed_weights(0.2), optax.sgd(0.1)),
    "momentum(0.1)": optax.sgd(0.1, momentum=0.9),
    "nesterov(0.1, momentum = 0.8)": optax.sgd(0.1, momentum=0.8, nesterov=True),
    "adam(0.1)": optax.adam(0.1),
    "adamw(0.1, weight_decay = 0.2)": optax.adamw(0.1, weight_decay=0.2),
    "adafactor(0.1)": optax.adafactor(0.1, min_dim_size_to_factor=1),
    "sgd(schedules.linear_warmup(step, peak = 0.2, warmup = 5))": optax.sgd(optax.linear_schedule(0, 0.2, 5)),
    "adafactor(1 / (step + 2))": optax.adafactor(lambda step: 1 / (step + 2), min_dim_size_to_factor=1),
}
"""Calls, and their equals in optax, which by default factors only matrices of 128 rows and columns. `test_optax.py` has more."""


@pytest.mark.parametrize("call", OPTIMIZERS)
def test_optimizers_make_the_steps_of_optax(call: str) -> None:
    check(call, OPTIMIZERS[call], steps=STEPS)


ADAGRAD = """
optimizer adagrad(learning_rate, start = 0.1, epsilon = 1e-7) (p: [...], g) {
  state sums = full([...], 0.1, dtype = any)
  sums = sums + square(g)
  p = p - learning_rate * g * rsqrt(sums + epsilon)
}
"""
COUNTING = """
optimizer counting(learning_rate) (p, g) {
  state count = 0
  state m = zeros_like(p)
  count = count + 1
  m = 0.9 * m + 0.1 * g
  p = p - learning_rate * m / (1 - 0.9 ** count)
}
"""
NORMS = """
optimizer by_norm(rate) (p: [..., d], g) {
  norm = sqrt(einsum(g, g -> [...]))
  half = 0.5 * ones([..., d])
  wide = transpose(broadcast(norm -> [d, ...]) -> [..., d])
  p = p - rate * (g * wide + half * norm)
}
"""
EXTREMES = """
optimizer extremes(rate) (p: [..., d], g) {
  best = argmax(abs(g), over = d)
  p = p - rate * (g * one_hot(best, d) + gather(g, best, d) * ones([..., d]))
}
"""
OVERLOADED = """
optimizer sgd(rate) (p: [row, col], g) { p = p - rate * sign(g) }
optimizer sgd(rate) (p, g) { p = p - rate * g }
"""


def norm(g: Any) -> Any:
    return jnp.sqrt(jnp.sum(g * g, axis=-1, keepdims=True))


def extremes(g: Any) -> Any:
    """Return each row's largest element, at its own place and added to the whole row."""
    best = jnp.argmax(jnp.abs(g), axis=-1, keepdims=True)
    largest = jnp.take_along_axis(g, best, axis=-1)
    return jnp.where(jnp.arange(g.shape[-1]) == best, g, 0.0) + largest


def test_optimizers_of_a_file() -> None:
    """A file's optimizer hides the library's; its states may start at any number, be scalars, and differ by the type's case."""
    check("adagrad(0.1)", optax.adagrad(0.1, initial_accumulator_value=0.1), ADAGRAD)
    check("counting(0.1)", optax.chain(optax.ema(0.9), optax.scale(-0.1)), COUNTING)
    norms = optax.stateless(lambda updates, _: {key: (g + 0.5) * norm(g) for key, g in updates.items()})
    check("by_norm(0.1)", optax.chain(norms, optax.sgd(0.1)), NORMS)
    largest = optax.stateless(lambda updates, _: {key: extremes(g) for key, g in updates.items()})
    check("extremes(0.1)", optax.chain(largest, optax.sgd(0.1)), EXTREMES)
    signs = optax.stateless(
        lambda updates, _: {key: jnp.sign(g) if g.ndim == 2 else g for key, g in updates.items()}
    )
    check("sgd(0.1)", optax.chain(signs, optax.sgd(0.1)), OVERLOADED)


def test_state_has_the_dimensions_that_it_needs() -> None:
    """Adafactor keeps a row and a column for each matrix of each layer, split by the rules of optimizer state."""
    module = numpy_module(lowered(source("adafactor(0.1)"), layout="sharded"))
    shapes = {name: np.shape(x) for name, x in trained(module, 1)[1].items()}
    assert shapes == {
        "w.by_row": (4,),
        "w.by_col": (8,),
        "b.squares": (8,),
        "layers.v.by_row": (3, 4),
        "layers.v.by_col": (3, 8),
        "layers.c.squares": (3, 8),
    }
    assert module.STATE["layers.v.by_row"] == (None, "rows")
    assert module.STATE["layers.v.by_col"] == (None, "cols")


@pytest.mark.parametrize("call", ["adam(0.1)", "adafactor(schedules.warmup_rsqrt(step, 0.1, 4))"])
def test_state_and_update_are_of_the_stored_dtype(call: str) -> None:
    """Steps of bf16 parameters follow those of f32 up to rounding; numbers of the step are computed in f32."""
    text = source(call)
    exact, _ = trained(numpy_module(lowered(text, layout="split")), FEW)
    for dtype, tolerance in (("bf16", 0.1), ("f64", 1e-5)):
        narrow = text.replace("train m {", f"train m {{ precision = {{ params: {dtype}, compute: f32 }};")
        program = lowered(narrow, layout="split")
        for module in (numpy_module(program), jax_module(program)):
            found, state = trained(module, FEW)
            assert {np.asarray(x).dtype.name for x in (*found[-1].values(), *state.values())} == {
                {"bf16": "bfloat16", "f64": "float64"}[dtype]
            }
            for name, x in found[-1].items():
                np.testing.assert_allclose(x.astype(np.float64), exact[-1][name], atol=tolerance)


def test_clipping_and_micro_batches_go_before_the_update() -> None:
    """Two micro-batches with the same gradients give one gradient, clipped to a norm of 1."""
    text = source("adam(0.1)").replace("train m {", "train m { clip = 1.0; accumulate = 2;")
    module = numpy_module(lowered(text, layout="stored"))
    params, state = module.init(seed=1), module.init_state()
    start = dict(module.unshard(params, module.PARAMETERS))
    twice = {name: np.stack([x, x]) for name, x in gradients(0).items()}
    _, params, _ = module.train_step(params, state, module.shard(twice, module.BATCHES), 0)
    grads = {
        key: gradients(0)["gw" if x.ndim == 2 else "gb"] * (2.0 ** (2 - key[1]) if "layers" in key[0] else 1)
        for key, x in by_layer(start).items()
    }
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1))
    updates, _ = optimizer.update(grads, optimizer.init(by_layer(start)))
    found = by_layer(module.unshard(params, module.PARAMETERS))
    for key, x in found.items():
        np.testing.assert_allclose(x, by_layer(start)[key] + np.asarray(updates[key]), rtol=1e-5, atol=1e-6)


def test_updates_are_part_of_the_text() -> None:
    for call in OPTIMIZERS:
        (program,) = load(source(call)).programs
        for locations in (True, False):
            again = read_program(print_program(program, locations))
            assert same_program(again, program, locations)
        assert names(program) == [("w",), ("b",)] or names(program) == [("w", "layers.v"), ("b", "layers.c")]


def names(program: Program) -> list[tuple[str, ...]]:
    assert program.training is not None
    return [update.parameters for update in program.training.updates]
