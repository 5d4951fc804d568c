"""Test that mtfc has no known bug of other systems.

Bugs of Mesh-TensorFlow were reproduced with version 0.1.21; the others are named by their issue.
"""

import numpy as np
import pytest

from mtfc.compiler.cost.sizes import Numbers
from mtfc.compiler.cost.volumes import charges, total
from mtfc.compiler.ir.core import walk
from mtfc.compiler.ir.ops.collectives import KINDS
from tests.harness import agree, communication, diagnose, load, lowered, reference, simulate

# Mesh-TensorFlow


def test_one_name_cannot_have_two_sizes() -> None:
    """Mesh-TensorFlow's einsum of tensors whose dimensions share a name but not a size has two dimensions of that name."""
    (found,) = diagnose("dim d = 4\ndim d = 8\nmodel f(x: [d]) { return x }\n")
    assert found.code.startswith("E1")
    assert found.span.line == 2


def test_layout_errors_name_operation_sizes_and_source_and_come_all_at_once() -> None:
    source = """dim batch = 6
dim io = 8
dim hidden = 8
mesh grid = [rows: 4, cols: 2]
layout a = { batch: rows }
layout b = { io: cols, hidden: cols }
layout c = { batch: cols, oi: rows }
model f(x: [batch, io], w: [io, hidden]) {
  h = einsum(x, w -> [batch, hidden])
  return h
}
"""
    found = diagnose(source)
    assert [(d.code, d.span.line) for d in found if d.severity == "error"] == [
        ("E302", 5),
        ("E301", 6),
        ("E303", 7),
    ]
    indivisible, not_injective, _ = found
    assert "6" in indivisible.message and "4" in indivisible.message
    places = {not_injective.span.line, *(label.span.line for label in not_injective.labels)}
    assert {6, 8} <= places, "it points at the rule and at the value that is split twice"


HEADER = """
dim a = 4; dim b = 8; dim c = 8; dim joined = 16
mesh grid = [rows: 2, cols: 4]
layout none = {}
layout one = { b: cols }
layout two = { a: rows, b: cols }
layout both = { b: (rows, cols) }
layout stored = { a: rows, params: { b: cols } }
"""


@pytest.mark.parametrize("op", ["maximum", "minimum"])
@pytest.mark.parametrize("operands", ["p, q", "q, p", "p, p", "p, 0.25", "q, 0.25 + 0.0 * q"])
def test_gradient_of_an_extremum_with_broadcasting_and_ties(op: str, operands: str) -> None:
    """In Mesh-TensorFlow, a broadcast operand's gradient has the result's shape, and at a tie both operands get all of it."""
    agree(HEADER + f"model f(p: [a, b], q: [b]) {{ y = {op}({operands}) * p; return y }}")


def test_gradient_of_a_tie_is_shared() -> None:
    source = HEADER + "model f(p: [a], q: [a]) { y = maximum(p, q); return y }"
    arrays = {"p": np.array([1, 2, 3, 4], np.float32), "q": np.array([1, 1, 3, 5], np.float32)}
    found = simulate(source, "gradients", arrays, layout="two")
    np.testing.assert_array_equal(found["d_p"], [0.5, 1.0, 0.5, 0.0])
    np.testing.assert_array_equal(found["d_q"], [0.5, 0.0, 0.5, 1.0])


STEP = """
model f(x: [a, b]) {
  param w: [b, c] = normal(stddev = 0.5)
  param unused: [b, c] = normal(stddev = 0.5)
  h = einsum(x, w -> [a, c])
  loss = mean(square(h))
  return loss
}
train f { minimize loss; optimizer = sgd(learning_rate = 0.5) }
"""


def test_gradients_that_nobody_asked_for_are_not_computed() -> None:
    """The step has two dots, x with w and x with the cotangent of h: x's own gradient is not computed."""
    program = lowered(HEADER + STEP, "step", layout="none")
    backward = [
        eqn for eqn in program.function("step").body if eqn.op == "einsum" and eqn.stage == "backward"
    ]
    assert len(backward) == 1
    assert communication(HEADER + STEP, "step", layout="one") == [("all_reduce", ("cols",), 4 * 8)]


def test_simulated_all_to_all_keeps_every_bit() -> None:
    """Mesh-TensorFlow's simulated all-to-all rounds to bfloat16."""
    layout = "layout moved = { b: cols, value y: { a: cols } }"
    source = HEADER + layout + "\nmodel f(x: [b, a]) { y = rename(x, b -> c); return y }"
    x = np.arange(32, dtype=np.float32).reshape(8, 4) / 3
    assert [kind for kind, _, _ in communication(source, layout="moved")] == ["all_to_all"]
    np.testing.assert_array_equal(simulate(source, "forward", {"x": x}, layout="moved")["y"], x)


def test_communication_of_a_loop_is_counted_on_every_trip() -> None:
    """Mesh-TensorFlow counts the body once, whatever the number of trips."""
    body = "model f(x: [a, b]) { y = sum(x); repeat c { y = tanh(sum(x * y)) }; return y }"
    program = lowered(HEADER + body, layout="one")
    sent = total(charges(program.function("forward"), Numbers(program.placed_on))).sent
    assert sent.count == sent.elements == 1 + 8


PROGRAMS = {
    "Mesh-TensorFlow: a loop carries the unreduced sum": """
model f(x: [a, b]) {
  param w: [b] = normal(stddev = 0.5)
  total = sum(x)
  repeat c { total = 0.5 * total + sum(einsum(x, w -> [a])) * total }
  return total
}""",
    "Mesh-TensorFlow: uniform numbers depend on the layout": "model f(x: [b, a]) { y = random.uniform([b, a]) * x; return y }",
    "Mesh-TensorFlow: normal numbers depend on the layout": "model f(x: [b, a]) { y = random.normal([b, a]) * x; return y }",
    "Mesh-TensorFlow: truth values depend on the layout":
        "model f(x: [b, a]) { y = cast(random.bernoulli([b, a], 0.5), f32) * x; return y }",
    "jax#21403: each device sums only its own part": "model f(x: [a, b]) { y = cumsum(x, over = b); return y }",
    "jax#21403, exclusive": "model f(x: [a, b]) { y = cumsum(x, over = b, exclusive = true); return y }",
    "jax#21403, reverse": "model f(x: [a, b]) { y = cumsum(x, over = b, reverse = true); return y }",
    "jax#16894: the windows at the edges of a device's part are wrong": """
dim out = 4; dim k = 3
layout split = { b: cols, out: cols }
model f(x: [a, b], w: [k]) {
  y = einsum(window(x, b -> [out, k], stride = 2, padding = (1, 0)), w -> [a, out])
  return y
}""",
    "jax#24576: the concatenation of arrays split over a mesh comes out multiplied":
        "model f(x: [b], y: [c]) { z = concat(x, y, b -> joined, c -> joined); return z }",
    "jax#24576, of an array with its own values": "model f(x: [a, b]) { z = concat(x, tanh(x), b -> joined); return z }",
    "jax#36886: per-example gradients inside shard_map are summed over the devices": """
model f(x: [b, a]) {
  param p: [a] = ones()
  each = broadcast(p -> [b, a])
  y = einsum(each, x -> [b])
  return y, each
}""",
    "pytorch#179502: a view that needs data of other devices uses the local data": """
dim long = 12; dim d = 6
layout minor = { b: cols }
layout major = { long: cols }
layout result = { b: rows, joined: rows }
layout other = { long: rows, d: rows }
model f(x: [long, b]) { y = reshape(x -> [joined, d]); return y }""",
    "pytorch#163193: a scalar is added once per device":
        "model f(x: [b], s: []) { y = sum(x) + 10.0; z = sum(x) + s; u = 3 - sum(x); return y, z, u }",
    "scaling a partial sum":
        "model f(x: [a, b]) { p = sum(x, over = [b]); y = p * 3.0; z = p / 7.0; u = -p; return y, z, u }",
    "product of two partial sums": "model f(x: [b], z: [b]) { y = sum(x) * sum(z); u = square(sum(x)); return y, u }",
    "haliax#13: a tensor has each name once, so self-attention renames a dimension": """
dim length = 8; dim memory = length; dim model = 4
layout queries = { length: cols }
layout keys = { memory: cols }
layout crossed = { length: cols, memory: rows }
model f(x: [length, model]) {
  scores = einsum(x, rename(x, length -> memory) -> [length, memory])
  weights = exp(scores - max(scores, over = [memory]))
  y = einsum(weights / sum(weights, over = [memory]), rename(x, length -> memory) -> [length, model])
  return y
}""",
}  # fmt: skip
"""The bug of another system -> a program without it."""


@pytest.mark.parametrize("bug", PROGRAMS)
def test_every_layout_has_the_numbers_of_one_device(bug: str) -> None:
    agree(HEADER + PROGRAMS[bug])


@pytest.mark.parametrize("clip", [0.001, 0.5, 1000.0])
def test_gradient_clipping_under_pending_sums(clip: float) -> None:
    """pytorch#149768: the norm was that of each device's part of the gradient."""
    agree(HEADER + STEP.replace("optimizer", f"clip = {clip}; optimizer"))


def test_every_collective_knows_its_source_line() -> None:
    """jax#18591: a full rematerialization was reported without saying where."""
    source = HEADER + STEP
    for layout in load(source).layouts:
        program = lowered(source, "step", layout=layout.name)
        for function in program.functions:
            assert all(eqn.span is not None for eqn in walk(function.body) if eqn.op in KINDS)


def test_reference_is_not_the_simulator() -> None:
    """The expected numbers of this file are computed without any layout."""
    source = HEADER + "model f(x: [b]) { y = sum(x); return y }"
    np.testing.assert_array_equal(
        reference(source, "forward", {"x": np.arange(8, dtype=np.float32)})["y"], 28.0
    )
