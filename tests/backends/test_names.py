"""Every name of the language can be the name of a value, whatever generated modules use it for."""

import builtins
import keyword
from functools import cache

import pytest

from mtfc.backends.common.prelude import definitions
from mtfc.backends.jax import backend as jax_backend
from mtfc.backends.numpy import backend as numpy_backend
from mtfc.compiler.diagnostics import CompileError
from tests.harness import agree, load
from tests.sampling import some

PROGRAM = """
dim batch = 4
dim time = 2
dim io = 2
mesh line = [all: 2]
layout dp on line = {{ batch: all }}
layout wide on line = {{ io: all }}

model m({0}: [batch, time, io], {1}: [batch, time, io]) {{
  param {2}: [io] = ones()
  {3} = sum({0}, over = time)
  {4} = cumsum({3}, over = io)
  {5} = {4} * {2} + shift({3}, io, by = 1)
  {6} = max({5}, over = io)
  {7} = zeros([batch, io])
  {8} = ones([batch, io])
  scan {9} = {0}, {10} = {1} along time {{
    {11} = tanh({7} + {9} * {3} * {2})
    {7} = {11} + {6}
    {8} = {8} * {10} + {4} + {7}
    yield {12} = {8}
  }}
  loss = mean(square({12})) + mean({7}) + mean({5})
  return loss
}}

train m {{
  minimize loss
  optimizer = momentum(learning_rate = 0.1)
}}
"""
NEEDED = 13

LAYOUTS = ("layout dp on line = { batch: all }\n", "layout wide on line = { io: all }\n")
"""Programs have them in turn, and each name is in two programs."""

FILES = (*numpy_backend.PRELUDE, *jax_backend.PRELUDE, *jax_backend.RANDOM)
MODULE = [
    "MESH", "PARAMETERS", "INPUTS", "OUTPUTS", "STATE", "BATCHES", "TYPES", "SENT", "NARROWED", "LAYOUTS", "np", "jnp", "jax",
    "lax", "math", "re", "zlib", "P", "partial", "wraps", "signature", "init", "init_state", "forward", "gradients",
    "train_step", "value_and_grad", "averaged", "shard", "unshard", "checked", "make_mesh", "bfloat16", "AxisType", "params",
    "state", "inputs", "step", "outputs", "carry", "slices", "reversed", "bound", "index", "i", "i_2", "scan_body",
    "time_body", "loop_body", "self", "cls", "x", "y", "a", "b", "c", "d", "e", "_", "__", "___", "_1", "__name__", "__file__",
    "__debug__", "__class__", "__doc__", "__builtins__", "__import__", "d_x", "d_loss", "loss_2", "h_2", "h_1", "h_1_1", "x_1",
    "x_1_1",
]  # fmt: skip


def candidates() -> list[str]:
    """Return names that mean something in Python or in generated modules, as far as the language allows them."""
    names = {*keyword.kwlist, *keyword.softkwlist, *dir(builtins), *definitions(FILES), *MODULE}
    return [name for name in sorted(names) if _is_allowed(name)]


def _is_allowed(name: str) -> bool:
    try:
        load(f"dim n = 2\nmesh line = [all: 1]\nmodel m(x: [n]) {{\n  {name} = x + 1\n  return {name}\n}}\n")
    except CompileError:
        return False
    return True


@cache
def programs() -> list[str]:
    """Return programs that use each name once, and at another place in a second program."""
    names = candidates()
    orders = (names, [*names[5::7], *(name for i, name in enumerate(names) if i % 7 != 5)])
    return [
        PROGRAM.format(*[*order[first:], *order][:NEEDED])
        for order in orders
        for first in range(0, len(order), NEEDED)
    ]


PARTS = 10


@pytest.mark.parametrize("part", some(range(PARTS), 3))
def test_values_of_any_name(part: int) -> None:
    """Run all programs under one layout on NumPy, and every eleventh on JAX.

    The number of tests is known before the names, which take a second to find.
    """
    for number, source in list(enumerate(programs()))[part::PARTS]:
        agree(source.replace(LAYOUTS[number % 2], ""), jax=number % 11 == 0)


def test_most_names_are_allowed() -> None:
    assert len(candidates()) > 200
    assert {"carry", "slices", "reversed", "range", "float", "lambda", "None", "np", "self", "psum"} <= {
        *candidates()
    }


def test_names_that_python_takes_for_the_same() -> None:
    """`a.b` and `a_b` are two names of the language, and one word in Python."""
    source = """
dim n = 4
mesh line = [all: 2]
layout l on line = { n: all }

fn a(x: [n]) -> [n] {
  param b: [n] = ones()
  return x * b
}

model m(x: [n]) {
  param a_b: [n] = zeros()
  y = a(x) + a_b
  return y
}
"""
    agree(source)
