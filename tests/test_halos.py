"""Test ops along a split dimension: processors send their neighbours only the needed elements, and results do not change.

Each case states all collectives of a function: kind, mesh axes, and elements of one processor's operand.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import mtfc
from mtfc.backends import hlo
from mtfc.backends.jax import runtime as jax_runtime
from mtfc.compiler.cost.sizes import Numbers
from mtfc.compiler.cost.volumes import charges, total
from mtfc.compiler.ir.parser import read_program
from mtfc.compiler.ir.types import Layout, Mesh, Rules
from mtfc.compiler.passes.pipelines import lower
from tests.harness import agree, call, communication, exact_data, jax_module, lowered, numpy_module

DIMS = """
dim b = 2; dim n = 16; dim w = 8; dim c = 3; dim d = 5
dim half = 8; dim third = 12; dim valid = 12; dim m = 32; dim wide = 20; dim four = 4
dim one = 1; dim two = 2; dim k = 3; dim l = 3; dim five = 5; dim nine = 9; dim fifteen = 15
mesh grid = [rows: 2, cols: 4]
"""

Sent = list[tuple[str, tuple[str, ...], int]]


def source(layout: str, body: str, inputs: str = "x: [b, n]") -> str:
    return f"{DIMS}layout main = {layout}\nmodel m({inputs}) {{\n{body}\n}}\n"


def sent(layout: str, body: str, inputs: str = "x: [b, n]", of: str = "forward") -> Sent:
    return communication(source(layout, body, inputs), of)


SPLIT = "{ n: cols, half: cols, valid: cols, wide: cols, third: cols, m: cols }"
COLS, BOTH = ("cols",), ("cols", "rows")


@pytest.mark.parametrize(
    ("layout", "arguments", "expected"),
    [
        (SPLIT, "by = 1", [2]),
        (SPLIT, "by = -1", [2]),
        (SPLIT, "by = 3", [6]),
        (SPLIT, "by = 1, wrap = true", [2]),
        (SPLIT, "by = 15, wrap = true", [2]),
        (SPLIT, "by = 4", [8]),
        (SPLIT, "by = 8, wrap = true", [8]),
        (SPLIT, "by = 5", [2, 6]),
        (SPLIT, "by = 14", [4]),
        (SPLIT, "by = 16", []),
        (SPLIT, "by = 32, wrap = true", []),
        ("{ n: (cols, rows) }", "by = 1", [2]),
        ("{ n: (cols, rows) }", "by = 2", [4]),
        ("{ b: rows, n: cols }", "by = 1", [1]),
        ("{}", "by = 1", []),
    ],
)
def test_shift_hands_on_what_leaves_a_block(layout: str, arguments: str, expected: list[int]) -> None:
    """Blocks have four elements, or two; the gradient sends the elements back."""
    body, axes = f"y = shift(x, n, {arguments}); return y", BOTH if "(cols, rows)" in layout else COLS
    forward = [("permute", axes, n) for n in expected]
    assert sorted(sent(layout, body)) == forward
    assert sorted(sent(layout, body, of="gradients")) == sorted(2 * forward)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("n -> [n, k], padding = (1, 1)", [2, 2]),
        ("n -> [n, k], padding = (2, 0)", [4]),
        ("n -> [n, five], padding = (2, 2)", [4, 4]),
        ("n -> [n, k], padding = (2, 2), dilation = 2", [4, 4]),
        ("n -> [n, k], padding = (1, 1), value = -0.5", [2, 2]),
        ("n -> [half, two], stride = 2", []),
        ("n -> [half, one], stride = 2", []),
        ("n -> [half, k], stride = 2, padding = (1, 1)", [2]),
        ("n -> [half, five], stride = 2, padding = (1, 2)", [2, 4]),
        ("n -> [n, nine], padding = (4, 4)", [8, 8]),
        ("n -> [n, nine], padding = (5, 3)", [2, 8, 6]),
        ("n -> [valid, five]", [6, 6]),
        ("n -> [wide, one], padding = (2, 2)", [4, 4]),
    ],
)
def test_windows_take_their_halos(arguments: str, expected: list[int]) -> None:
    """Blocks have four elements; the gradient sends halos back."""
    body = f"y = window(x, {arguments}); return y"
    forward = [("permute", COLS, n) for n in expected]
    assert sent(SPLIT, body) == forward
    assert sorted(sent(SPLIT, body, of="gradients")) == sorted(2 * forward)


def test_a_dimension_is_gathered_where_windows_are_not_split_alike() -> None:
    body = "y = window(x, n -> [half, k], stride = 2, padding = (1, 1)); return y"
    assert sent("{ n: cols }", body) == [("all_gather", COLS, 8)]
    assert sent("{ n: cols, half: rows }", body) == [("all_gather", COLS, 8)]
    assert sent("{ half: cols }", body) == []


def test_a_dimension_is_gathered_where_halos_are_no_less() -> None:
    """Windows reach over all 16 elements, of which each processor lacks 12."""
    body = "y = window(x, n -> [n, nine], padding = (16, 16), dilation = 4); return y"
    assert sent(SPLIT, body) == [("all_gather", COLS, 8)]


TWO_DIMS = """
  p = window(x, n -> [n, k], padding = (1, 1))
  q = window(p, w -> [w, l], padding = (1, 1))
  y = einsum(q, f -> [b, n, w, d])
  return y
"""


def test_windows_of_two_dims_send_halos_of_their_operand() -> None:
    """Halos are of the image, not of the windows, which are three times as large. The second halo has the corners: 4 + 2 rows
    of 2 x 1 x 3."""
    layout, inputs = "{ n: cols, w: rows }", "x: [b, n, w, c], f: [k, l, c, d]"
    forward = [("permute", COLS, 24)] * 2 + [("permute", ("rows",), 36)] * 2
    assert sent(layout, TWO_DIMS, inputs) == forward
    backward = [("all_reduce", ("rows", "cols"), 135)]
    assert sorted(sent(layout, TWO_DIMS, inputs, "gradients")) == sorted(2 * forward + backward)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("slice(x, n -> half, stride = 2)", []),
        ("slice(x, n -> half, start = 1, stride = 2)", []),
        ("slice(x, n -> four, start = 3, stride = 4)", []),
        ("slice(x, n -> valid, start = 4)", [6]),
        ("slice(x, n -> valid, start = 2)", [2, 2]),
        ("pad(x, n -> wide, before = 2)", [4, 4]),
        ("pad(x, n -> wide, before = 4, value = 1.0)", [8]),
    ],
)
def test_slice_and_pad_take_what_lies_elsewhere(expression: str, expected: list[int]) -> None:
    layout = SPLIT.replace("{", "{ four: cols,")
    assert sorted(sent(layout, f"y = {expression}; return y")) == [
        ("permute", COLS, n) for n in sorted(expected)
    ]


@pytest.mark.parametrize(
    ("expression", "elements"),
    [
        ("slice(x, n -> one)", 2),
        ("slice(x, n -> one, start = 15)", 2),
        ("slice(x, n -> k, start = 3)", 6),
        ("slice(x, n -> five, start = 1, stride = 3)", 10),
        ("slice(x, n -> fifteen, start = 1)", None),
    ],
)
@pytest.mark.parametrize("layout", ["{ n: cols }", "{ n: cols, b: rows }", "{ n: cols, one: rows }"])
def test_a_few_elements_come_from_the_blocks_that_have_them(
    expression: str, elements: int | None, layout: str
) -> None:
    """Fifteen of 16 elements are gathered with the other one. The gradient goes back to the blocks, and sends nothing."""
    if "one: rows" in layout and "-> one" in expression:
        return
    text, size = f"y = {expression}; return y", 1 if "b: rows" in layout else 2
    ways = (
        [("all_gather", COLS, 4 * size)] if elements is None else [("all_reduce", COLS, elements * size // 2)]
    )
    assert sent(layout, text) == sent(layout, text, of="gradients") == ways
    agree(source(layout, text))


def test_a_slice_that_is_whole_is_gathered_after_it_is_cut() -> None:
    """Every second element lies where it is needed; nine elements from the third on take halos first."""
    cut = "y = slice(x, n -> half, stride = 2); return y"
    assert sent("{ n: cols }", cut) == sent("{ n: cols }", cut, of="gradients") == [("all_gather", COLS, 4)]
    nine = "y = slice(x, n -> nine, start = 2); return y"
    assert sorted(sent("{ n: cols }", nine)) == [
        ("all_gather", COLS, 6),
        ("permute", COLS, 2),
        ("permute", COLS, 2),
    ]
    for body in (cut, nine):
        agree(source("{ n: cols }", body))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8", "int8", "bool"])
def test_a_few_elements_of_every_dtype(dtype: str) -> None:
    x = jnp.arange(64).reshape(16, 4).astype(dtype)
    program = mtfc.from_jax(lambda x: (x[9], x[-3:], x[::-1]), x, names={"x": "rows cols"})
    plan = program.plan({"rows": "a"}, {"a": 4})
    sizes = plan.cost()["forward"]["collectives"]
    assert sizes["all_gather"]["count"] == 0 and sizes["permute"]["count"] == 1
    for found, expected in zip(plan.step(x), (x[9], x[-3:], x[::-1]), strict=True):
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


PADDED = """\
program padded
dim n = 16
dim wide = {wide}

function forward {{
  input %x: {dtype}[n]
  %y: {dtype}[wide] = pad %x source=n target=wide before={before} stride=2 value={zero}
  output y = %y
}}
"""


@pytest.mark.parametrize("dtype", ["f32", "i32", "u8", "i8", "bool"])
@pytest.mark.parametrize(("wide", "before"), [(32, 0), (32, 1), (64, 5)])
def test_a_pad_between_elements_is_split_in_every_dtype(dtype: str, wide: int, before: int) -> None:
    """Such a pad is the transpose of a slice: of integers and truth values, too. No element is gathered."""
    zero = {"bool": "false", "f32": "0.0"}.get(dtype, "0")
    program = read_program(PADDED.format(dtype=dtype, wide=wide, before=before, zero=zero))
    mesh = Mesh("line", (("cols", 4),))
    split = lower(program, mesh, Layout("split", Rules((("n", ("cols",)), ("wide", ("cols",))))), "forward")
    forward = split.function("forward")
    assert not any(eqn.op == "all_gather" for eqn in forward.body)
    x = (np.arange(16) * 37 % 101).astype(
        {"f32": "f4", "i32": "i4", "u8": "u1", "i8": "i1", "bool": "?"}[dtype]
    )
    expected = np.zeros(wide, x.dtype)
    expected[before : before + 31 : 2] = x
    for module in (numpy_module(split), jax_module(split)):
        found = call(module, forward, {"x": x})["y"]
        assert found.dtype == x.dtype
        np.testing.assert_array_equal(found, expected)


def test_a_search_prices_pads_of_integers() -> None:
    """A search asks whether each pad can be split, also of dtypes that have no gradient."""
    x = np.ones((16, 64), np.int32)

    def padded(x: Any) -> Any:
        return lax.pad(x, 0, [(0, 0, 0), (0, 1, 1)]), lax.pad(x > 0, False, [(0, 0, 0), (0, 1, 1)])

    for function in (padded, lambda x: lax.associative_scan(jnp.add, x, axis=-1)):
        assert mtfc.from_jax(function, x).search(devices=8, budget=30.0).found.is_optimal


def test_concat_gathers() -> None:
    assert sent(SPLIT, "y = concat(x, x, n -> m); return y") == [("all_gather", COLS, 8)]


# Results


POOLED = """
  p = window(x, n -> [half, k], stride = 2, padding = (1, 1), value = -1.0)
  q = window(p, w -> [w, l], padding = (2, 0))
  y = max(q, over = [k, l])
  z = sum(window(x, n -> [valid, five]), over = [five, w])
  return y, z
"""
MOVED = """
  y = shift(x, n, by = 5) + shift(x, n, by = -6, wrap = true)
  z = slice(y, n -> valid, start = 3) * slice(y, n -> valid, start = 1)
  v = pad(z, valid -> n, before = 1, value = 0.5)
  u = slice(x, n -> half, start = 1, stride = 2)
  return z, v, u
"""


@pytest.mark.parametrize("body", [TWO_DIMS, POOLED, MOVED], ids=["convolution", "pooling", "moves"])
@pytest.mark.parametrize(
    "layout",
    [
        "{ n: cols, half: cols, valid: cols }",
        "{ n: cols, half: cols, valid: cols, w: rows }",
        "{ n: (rows, cols), half: (rows, cols) }",
        "{ n: rows, half: cols }",
        "{ w: cols, n: rows, half: rows, valid: rows }",
    ],
)
def test_split_results_and_gradients_are_those_of_the_whole(body: str, layout: str) -> None:
    inputs = "x: [b, n, w, c]" + (", f: [k, l, c, d]" if body is TWO_DIMS else "")
    agree(source(layout, body, inputs))


@pytest.mark.parametrize("layout", ["{ n: cols }", "{ n: (rows, cols) }", "{ n: (cols, rows) }"])
@pytest.mark.parametrize("wrap", ["false", "true"])
def test_every_shift_in_every_order_of_the_axes(layout: str, wrap: str) -> None:
    """Devices are counted along the axes in the order in which they split the dimension."""
    distances = (1, -1, 2, -3, 5, 8, -11, 15)
    lines = [f"y{i} = shift(x, n, by = {by}, wrap = {wrap})" for i, by in enumerate(distances)]
    returned = ", ".join(f"y{i}" for i in range(len(distances)))
    agree(source(layout, "\n".join([*lines, f"return {returned}"])))


def test_shards_that_need_nothing_of_their_own_block() -> None:
    """Two windows of one element, one in the padding and one in the first block: no shard needs its own elements."""
    text = """\
dim b = 4
dim two = 2
dim one = 1
mesh line = [all: 2]
layout main = { b: all, two: all }
model m(x: [b]) {
  y = window(x, b -> [two, one], stride = 3, padding = (2, 0), value = 2.0)
  return y
}
"""
    assert communication(text, "forward") == [("permute", ("all",), 2)]
    agree(text)


@pytest.mark.parametrize("body", [TWO_DIMS, POOLED, MOVED], ids=["convolution", "pooling", "moves"])
def test_cost_predicts_the_bytes_that_are_sent(body: str) -> None:
    """Count them in the simulation, and in the XLA program of the JAX module."""
    inputs = "x: [b, n, w, c]" + (", f: [k, l, c, d]" if body is TWO_DIMS else "")
    layout = "{ n: cols, half: cols, valid: cols, w: rows }"
    program = lowered(source(layout, body, inputs), "gradients")
    function = program.function("gradients")
    module = numpy_module(program, checked=False)
    call(module, function, exact_data(function, seed=1))
    assert program.mesh is not None
    found = total(charges(function, Numbers(program.mesh))).collectives
    predicted = {kind: (sent.elements, sent.bytes) for kind, sent in found.items()}
    simulated = {
        k: (v["elements_per_device"], v["bytes_per_device"]) for k, v in module.SENT.items() if v["count"]
    }
    compiled = hlo.collectives(jax_runtime.lowered(program, "gradients").compile().as_text())
    in_hlo = {kind: (v["elements_per_device"], v["bytes_per_device"]) for kind, v in compiled.items()}
    assert predicted == simulated == in_hlo
    assert predicted["permute"][0] > 0


def test_windows_of_windows_pad_with_values_of_their_own() -> None:
    """The padding of inner windows must not be that of the outer ones, although halos are padded before any windows."""
    agree("""\
dim b = 8
dim w = 2
dim k = 3
dim n = 4
dim l = 3
mesh line = [all: 4]
layout main = { b: all, n: all }
model m(x: [b, w]) {
  y = window(x, w -> [w, k], dilation = 2, padding = (3, 1), value = 0.75)
  z = window(y, b -> [n, l], stride = 2, padding = (0, 1), value = 0.5)
  return z
}
""")
