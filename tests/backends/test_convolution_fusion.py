"""Convolution fusion: the equations that one convolution or pooling replaces in JAX, and its results."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtfc.backends.interpreter import interpret
from mtfc.backends.jax import backend as jax_backend
from mtfc.backends.jax import runtime as jax_runtime
from mtfc.compiler.ir.core import Program
from tests.harness import ROUGH, SINGLE, Arrays, call, differentiated, generic_data, load, lowered

UNFUSED = re.compile(r"= (?:window|fold)\(")


def text_of(program: Program, function: str) -> str:
    """Return the generated text of one function's body."""
    found = re.search(rf"^def {function}\(.*?^    return", jax_backend.generate(program), re.S | re.M)
    assert found is not None
    return found[0]


def run(program: Program, function: str, arrays: Arrays) -> Arrays:
    module = jax_runtime.load(jax_backend.generate(program))
    return call(module, program.function(function), arrays)


def check(source: str, convolutions: int, poolings: int = 0) -> None:
    """Assert the number of fused calls in forward and gradients together, and that results equal the interpreter's."""
    (original,) = load(source).programs
    whole = differentiated(original, "gradients")
    arrays = generic_data(whole.function("gradients"), seed=2)
    expected = interpret(whole.function("gradients"), whole, arrays)
    program = lowered(source, "gradients")
    text = text_of(program, "gradients")
    assert text.count("lax.conv_general_dilated(") == convolutions
    assert text.count("lax.reduce_window(") == poolings
    assert not (convolutions and UNFUSED.search(text))
    SINGLE.check(run(program, "gradients", arrays), expected, "JAX")


# Convolutions


@st.composite
def convolutions(draw: Any) -> str:
    """Draw a convolution of one to three dimensions, with any batch, feature, filter and group dimensions, in any order."""
    names = {
        part: [f"{part}{i}" for i in range(draw(st.sampled_from(counts)))] for part, counts in PARTS.items()
    }
    sizes = {name: draw(st.sampled_from((1, 2, 3))) for part in names.values() for name in part}
    windows, value = [], "x"
    for i in range(draw(st.sampled_from((1, 1, 2, 2, 3)))):
        size, kernel, numbers = draw(geometries())
        sizes |= {f"h{i}": size, f"k{i}": kernel, f"o{i}": _count(size, kernel, **numbers)}
        padding = f"({numbers['before']}, {numbers['after']})"
        windows.append(
            f"  w{i} = window({value}, h{i} -> [o{i}, k{i}], stride = {numbers['stride']}, padding = {padding},"
            f" dilation = {numbers['dilation']})"
        )
        value = f"w{i}"
    spatial = range(len(windows))
    shapes = {
        "x": [*names["b"], *names["c"], *names["g"], *(f"h{i}" for i in spatial)],
        "f": [*names["c"], *names["g"], *names["d"], *(f"k{i}" for i in spatial)],
        "y": [*names["b"], *names["g"], *names["d"], *(f"o{i}" for i in spatial)],
    }
    x, f, y = (f"[{', '.join(draw(st.permutations(shape)))}]" for shape in shapes.values())
    operands = draw(st.sampled_from((f"{value}, f", f"f, {value}")))
    split = draw(st.sampled_from(["", *(f"{name}: all" for name in names["b"] if sizes[name] == 2)]))
    lines = [
        *(f"dim {name} = {size}" for name, size in sizes.items()),
        f"mesh line = [all: 2]\nlayout main = {{ {split} }}\nmodel m(x: f32{x}, f: f32{f}) {{",
        *windows,
        f"  y = einsum({operands} -> {y})\n  loss = sum(square(y))\n  return y, loss\n}}",
    ]
    return "\n".join(lines) + "\n"


PARTS = {"b": (0, 1, 1, 2), "c": (0, 1, 1, 2), "g": (0, 0, 0, 1, 2), "d": (0, 1, 1, 2)}
"""The numbers of dimensions of the batch, features, groups and filters."""


def _count(size: int, kernel: int, stride: int, before: int, after: int, dilation: int) -> int:
    return (size + before + after - dilation * (kernel - 1) - 1) // stride + 1


@st.composite
def geometries(draw: Any) -> tuple[int, int, dict[str, int]]:
    size, kernel = draw(st.integers(4, 8)), draw(st.integers(1, 3))
    ranges = {"stride": (1, 3), "before": (0, 3), "after": (0, 3), "dilation": (1, 2)}
    return size, kernel, {name: draw(st.integers(*limits)) for name, limits in ranges.items()}


@settings(
    max_examples=16, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True
)
@given(convolutions())
def test_a_convolution_and_both_its_gradients_are_one_call_each(source: str) -> None:
    check(source, convolutions=3)


DIMS = """
dim b = 2; dim h = 8; dim w = 8; dim c = 4; dim d = 6; dim g = 3
dim oh = 4; dim ow = 8; dim k = 3; dim l = 3
mesh grid = [rows: 2, cols: 4]
"""
TWO_DIMS = """
  p = window(x, h -> [oh, k], stride = 2, padding = (1, 0))
  q = window(p, w -> [ow, l], padding = (2, 2), dilation = 2)
"""


def model(body: str, inputs: str, layout: str = "{}", dtype: str = "f32") -> str:
    arguments = inputs.replace("[", f"{dtype}[")
    return f"{DIMS}layout main = {layout}\nmodel m({arguments}) {{\n{body}\n}}\n"


CONVOLUTION = TWO_DIMS + "  y = einsum(q, f -> [b, oh, ow, d])\n  return y"
INPUTS = "x: [b, h, w, c], f: [k, l, c, d]"


def test_a_convolution_is_that_of_lax() -> None:
    """Check a program and its gradients. They are those of the sum of the result, as there is no loss."""
    import jax

    program = lowered(model(CONVOLUTION, INPUTS), "gradients")
    arrays = generic_data(program.function("gradients"), seed=0)

    def convolved(x: Any, f: Any) -> Any:
        numbers = {"rhs_dilation": (1, 2), "dimension_numbers": ("NHWC", "HWIO", "NHWC")}
        return jax.lax.conv_general_dilated(x, f, (2, 1), ((1, 0), (2, 2)), **numbers)

    y, back = jax.vjp(convolved, arrays["x"], arrays["f"])
    d_x, d_f = back(np.ones_like(y))
    expected = {name: np.asarray(value) for name, value in {"y": y, "d_x": d_x, "d_f": d_f}.items()}
    SINGLE.check(run(program, "gradients", arrays), expected, "lax")


@pytest.mark.parametrize(
    "layout",
    [
        "{ b: rows }", "{ c: cols }", "{ h: rows, oh: rows }", "{ h: cols, oh: cols, b: rows }",
        "{ h: rows, oh: rows, w: cols, ow: cols }", "{ w: (cols, rows), ow: (cols, rows) }", "{ h: cols }",
    ],
)  # fmt: skip
def test_a_distributed_convolution_is_one_call_on_every_device(layout: str) -> None:
    check(model(CONVOLUTION, INPUTS, layout), convolutions=3)


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        (TWO_DIMS + "y = einsum(q, f -> [b, oh, ow, c, g])", "x: [b, h, w, c], f: [k, l, c, g]"),
        (TWO_DIMS + "y = einsum(f, q -> [oh, ow, d])", "x: [h, c, w], f: [d, l, c, k]"),
        (TWO_DIMS + "y = einsum(f, q -> [oh, ow])", "x: [h, w], f: [l, k]"),
        (TWO_DIMS + "y = einsum(f, q -> [ow, b, g, oh])", "x: [c, h, w, b], f: [g, k, c, l]"),
        (TWO_DIMS + "y = einsum(f, q -> [k, l, c, d])", "x: [b, h, w, c], f: [b, oh, ow, d]"),
    ],
    ids=["depthwise", "one", "plain", "turned", "filter"],
)
def test_other_windows_with_dots_are_convolutions(body: str, inputs: str) -> None:
    check(model(f"{body}; z = square(y); return z", inputs), convolutions=3)


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        (TWO_DIMS + "y = einsum(q, f -> [b, oh, ow, d]); return y", "x: [b, h, w], f: [k, l, oh, d]"),
        (TWO_DIMS + "y = einsum(q, f -> [b, oh, ow, k]); return y", "x: [b, h, w], f: [k, l]"),
        (TWO_DIMS + "y = einsum(q, f -> [b, d]); return y", "x: [b, h, w], f: [k, l, oh, ow, d]"),
        ("q = window(x, w -> [ow, l], padding = (1, 1), value = 0.5); y = einsum(q, f -> [b, ow]); return y",
         "x: [b, w], f: [l]"),
    ],
    ids=["a filter for each place", "a kernel that stays", "everything summed", "numbers around"],
)  # fmt: skip
def test_other_equations_stay_as_they_are(body: str, inputs: str) -> None:
    program = lowered(model(body, inputs))
    assert "conv_general_dilated" not in text_of(program, "forward")
    assert UNFUSED.search(text_of(program, "forward"))
    (original,) = load(model(body, inputs)).programs
    arrays = generic_data(program.function("forward"), seed=3)
    expected = interpret(original.function("forward"), original, arrays)
    SINGLE.check(run(program, "forward", arrays), expected, "JAX")


def test_sixteen_bits_are_summed_in_thirty_two() -> None:
    """The result equals the result in f32, rounded once."""
    program = lowered(model(CONVOLUTION, INPUTS, dtype="bf16"))
    assert "preferred_element_type=jnp.float32" in text_of(program, "forward")
    arrays = generic_data(program.function("forward"), seed=1)
    wide = lowered(model(CONVOLUTION, INPUTS))
    y = run(wide, "forward", {name: x.astype(np.float32) for name, x in arrays.items()})["y"]
    found = run(program, "forward", arrays)["y"]
    np.testing.assert_allclose(found.astype(np.float32), y, rtol=2**-8)


# Pooling

STRIDED = "window(x, h -> [oh, k], stride = 2, padding = (1, 0))"
WINDOWS = {
    "strided": STRIDED,
    "dilated": "window(x, w -> [ow, l], padding = (2, 2), dilation = 2)",
    "numbers around": "window(x, w -> [ow, l], padding = (1, 1), value = -1.5)",
    "numbers later": f"window({STRIDED}, w -> [ow, l], padding = (1, 1), value = 2.0)",
    "numbers first": "window(window(x, w -> [ow, l], padding = (1, 1), value = 2.0), h -> [oh, k], stride = 2, padding = (1, 0))",
}


@pytest.mark.parametrize("reduction", ["max", "min", "sum"])
@pytest.mark.parametrize("layout", ["{}", "{ h: cols, oh: cols, w: rows, ow: rows }"])
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_a_reduction_over_windows_is_one_call(window: str, layout: str, reduction: str) -> None:
    kernels = [name for name in ("k", "l") if f", {name}]" in window]
    body = f"y = {reduction}({window}, over = [{', '.join(kernels)}]); return y"
    check(model(body, "x: [b, h, w, c]", layout), convolutions=0, poolings=1)


@pytest.mark.parametrize("layout", ["{}", "{ b: rows }", "{ h: cols, oh: cols, w: rows, ow: rows }"])
@pytest.mark.parametrize("window", [text for text in WINDOWS.values() if "dilation" not in text])
def test_the_gradient_of_a_maximum_over_windows_is_one_call(window: str, layout: str) -> None:
    """Gradients agree also if some elements are equal, and if XLA computes the pooled array twice with different rounding."""
    kernels = [name for name in ("k", "l") if f", {name}]" in window]
    pooled = window.replace("x,", "relu(sin(x) * 100 - 20),")
    body = f"y = max({pooled}, over = [{', '.join(kernels)}]); loss = sum(square(y)); return loss"
    source = model(body, "x: [b, h, w, c]", layout)
    check(source, convolutions=0, poolings=2)
    text = text_of(lowered(source, "gradients"), "gradients")
    assert "jax.vjp(" in text
    assert not UNFUSED.search(text)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "i32", "u32"])
@pytest.mark.parametrize("reduction", ["max", "min", "sum"])
def test_pooling_in_every_dtype(reduction: str, dtype: str) -> None:
    """16-bit numbers are summed in 32 bits: the result equals the interpreter's, rounded once."""
    body = f"y = {reduction}({STRIDED}, over = k); return y"
    source = model(body, "x: [b, h]", dtype=dtype)
    (original,) = load(source).programs
    arrays = generic_data(original.function("forward"), seed=5)
    program = lowered(source)
    assert "lax.reduce_window(" in text_of(program, "forward")
    expected = interpret(original.function("forward"), original, arrays)
    (ROUGH if dtype in ("bf16", "f16") else SINGLE).check(run(program, "forward", arrays), expected, dtype)


@pytest.mark.parametrize(
    "body",
    [
        f"y = max({STRIDED}, over = [k, c]); return y",
        f"y = max(window({STRIDED}, w -> [ow, l], padding = (1, 1)), over = l); return y",
        f"y = sum({STRIDED}, over = [oh]); return y",
        f"y = prod({STRIDED}, over = k); return y",
    ],
    ids=["features, too", "one of two", "windows", "product"],
)
def test_a_reduction_over_anything_else_is_not(body: str) -> None:
    source = model(body, "x: [b, h, w, c]")
    check(source, convolutions=0, poolings=0)
    assert UNFUSED.search(text_of(lowered(source), "forward"))
