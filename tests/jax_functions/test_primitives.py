"""Every primitive: the imported program computes what JAX computes, whole and split along any dimension."""

from functools import cache
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mtfc
from mtfc.compiler.ir.types import Layout, Mesh, Rules
from mtfc.compiler.passes.pipelines import lower
from mtfc.driver.jax_functions.imported_program import ImportedProgram
from tests.jax_functions.arguments import Arrays, data, interpreted, program_arguments, run
from tests.jax_functions.primitives import CASES
from tests.sampling import some

MESH = Mesh("mesh", (("x", 2), ("y", 2)))

UNCOMPILED = ("foreign",)
"""The cases that JAX computes op by op only: XLA compiles the others as a whole, which is quicker."""


def drawn(spec: Any, random: Any) -> Any:
    """Draw an argument: floats with ties and zeros, small integers, or a key."""
    if spec == "key":
        return jax.random.key(7)
    shape, dtype = spec if isinstance(spec[0], tuple) else (spec, "float32")
    if "int" in dtype:
        return jax.numpy.asarray(random.integers(0, 3, shape).astype(dtype))
    numbers = random.standard_normal(shape)
    return jax.numpy.asarray(np.where(random.random(shape) < 0.2, np.round(numbers), numbers), "float32")


def layouts(program: ImportedProgram) -> list[Layout]:
    """Return the layouts that split one dimension over both axes, or two over one each: so each is split over one, too."""
    names = [name for name, size in program.dims.items() if size % 2 == 0]
    found = [Rules(((name, ("x",)),)) for name in names] if len(names) == 1 else []
    found += [Rules(((name, ("x", "y")),)) for name in names if program.dims[name] % 4 == 0]
    found += [Rules(((a, ("x",)), (b, ("y",)))) for a, b in pairwise(names)]
    return [Layout("split", rules) for rules in found]


def assert_same(found: list[Any], expected: list[Any], what: str) -> None:
    for left, right in zip(found, expected, strict=True):
        assert left.dtype == right.dtype, what
        wide = [x.astype(np.float64) for x in (left, right)]
        np.testing.assert_allclose(*wide, rtol=3e-5, atol=3e-5, err_msg=what)


@cache
def imported(name: str) -> tuple[ImportedProgram, tuple[Any, ...]]:
    """Return a case's program, and arguments of its function."""
    function, specs = CASES[name]
    random = np.random.default_rng(3)
    args = tuple(drawn(spec, random) for spec in specs)
    return mtfc.from_jax(function, *args, parameters=()), args


@cache
def prepared(name: str) -> tuple[ImportedProgram, Arrays, list[Any]]:
    """Return a case's program, its arguments and the results of JAX."""
    program, args = imported(name)
    function, _ = CASES[name]
    by_jax = function if name in UNCOMPILED else jax.jit(function)
    expected = [data(x) for x in jax.tree.leaves(by_jax(*args))]
    return program, program_arguments(program, args), expected


@pytest.mark.parametrize("name", CASES)
def test_primitive(name: str) -> None:
    program, arguments, expected = prepared(name)
    assert_same(interpreted(program, arguments), expected, "interpreter")
    for layout in layouts(program):
        lowered = lower(program.program, MESH, layout)
        assert_same(run(program, lowered, arguments, "numpy"), expected, str(layout.rules))


@pytest.mark.parametrize(
    "name",
    [
        "ragged_dot_batches", "ragged_dot_of_one", "ragged_dot_of_pairs", "switch", "long_branches", "while_inside",
        "closing_over", "matrices", "spectrum", "betainc", "linear_call", "foreign", "over_axes", "counted_rows", "sparse",
        "approx_top_k", "top_k_of_bytes", "largest_of_windows", "bits_of_widths", "split",
    ],
)  # fmt: skip
def test_no_device_computes_the_whole(name: str) -> None:
    assert not prepared(name)[0].coverage().opaque


ON_JAX = (
    "log1p", "bits", "is_finite", "atan2", "sort", "running", "cond", "cholesky", "dropout", "inside_a_loop",
    "lookup_default", "along_gradient", "depthwise_gradients", "max_pool_gradient", "update", "pad",
    "max_pool_with_a_rest", "empty", "gather_planes", "gather_own", "set_own", "ragged_dot_batches", "bytes", "quantized",
    "counted_while", "bounded_while", "while_inside", "while_with_a_long_counter", "long_branches", "random_branch",
    "closing_over", "raising_branch", "keys_of_examples", "set_in_constants", "betainc", "matrices",
    "counted_rows", "sparse", "general_windows", "largest_of_windows", "approx_top_k", "bits_of_widths", "split",
)  # fmt: skip
"""The cases that run on JAX, too: calls, random keys, and ops that no example of the language has."""


@pytest.mark.parametrize("name", some(ON_JAX, 12))
def test_primitive_on_jax(name: str) -> None:
    program, arguments, expected = prepared(name)
    found = layouts(program)
    for layout in (found[0], found[-1]) if found else ():
        lowered = lower(program.program, MESH, layout)
        assert_same(run(program, lowered, arguments, "jax"), expected, str(layout.rules))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_finiteness_and_integer_powers_are_ops_with_the_numbers_of_jax(dtype: str) -> None:
    """Emitted text of them needs no mtfc."""

    def outputs(x: Any, n: Any) -> Any:
        return jnp.isfinite(x), x**n, jnp.where(jnp.isfinite(x), x, 0)

    x = jnp.array([1.0, jnp.inf, -jnp.inf, jnp.nan, 0.0, -2.0, 3e4, -0.0], dtype)
    n = jnp.array([0, 1, 2, 3, -1, 3, 2, -3])
    plan = mtfc.from_jax(outputs, x, n).plan({}, {"a": 2})
    for found, expected in zip(plan.step(x, n), jax.jit(outputs)(x, n), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(np.asarray(found, "f"), np.asarray(expected, "f"))
    assert "mtfc" not in plan.jax()
