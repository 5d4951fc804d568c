"""Initial values: JAX's numbers, drawn with NumPy from the global index."""

from __future__ import annotations

import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from mtfc.backends.numpy_backend import generate, load
from mtfc.backends.random import erf_inv, random_bits, random_key, random_normal, random_uniform, threefry
from mtfc.compiler.ir.core import Argument, Function, Initializer, Parameter, Program, Value
from mtfc.compiler.ir.ops.componentwise import numpy_dtype
from mtfc.compiler.ir.types import Mesh, TensorType
from tests.backends.small import type_of

DRAWS: list[tuple[int, str, tuple[int, ...]]] = [
    (0, "w", (1000, 100)),
    (7, "layers.ffn.wi", (33,)),
    (2**31 - 1, "b", (3, 5, 7)),
    (1, "s", ()),
]


def jax_key(seed: int, name: str) -> Any:
    return jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), zlib.crc32(name.encode()))


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_its_authors_known_answers(key: Any, counter: Any, expected: Any) -> None:
    high, low = threefry(key, *(np.asarray([word], np.uint32) for word in counter))
    assert (high[0], low[0]) == expected


@pytest.mark.parametrize(("seed", "name", "shape"), DRAWS)
def test_bits_and_uniform_numbers_equal_those_of_jax(seed: int, name: str, shape: tuple[int, ...]) -> None:
    key, theirs = random_key(seed, name), jax_key(seed, name)
    np.testing.assert_array_equal(random_bits(key, shape), jax.random.bits(theirs, shape))
    found = random_uniform(key, shape)
    assert found.dtype == np.float32 and found.shape == shape
    np.testing.assert_array_equal(found, jax.random.uniform(theirs, shape))


@pytest.mark.parametrize(("seed", "name", "shape"), DRAWS)
def test_normal_numbers_are_within_a_few_units_in_the_last_place(
    seed: int, name: str, shape: tuple[int, ...]
) -> None:
    found, expected = (
        random_normal(random_key(seed, name), shape),
        jax.random.normal(jax_key(seed, name), shape),
    )
    assert found.dtype == np.float32 and found.shape == shape
    np.testing.assert_array_max_ulp(found, np.asarray(expected), maxulp=4)


def test_erf_inv_inverts_the_error_function_up_to_its_tails() -> None:
    inner = np.linspace(-0.99999, 0.99999, 100_001, dtype=np.float32)
    outer = np.float32(1) - np.float32(2) ** -np.arange(2, 25, dtype=np.float32)
    x = np.concatenate([inner, outer, -outer])
    np.testing.assert_allclose(erf_inv(x), special.erfinv(x.astype(np.float64)), rtol=1e-5)


@pytest.mark.parametrize(
    ("init", "dtype", "expected"),
    [
        (Initializer("zeros"), "f32", 0.0),
        (Initializer("ones"), "f16", 1.0),
        (Initializer("constant", (("value", -2.5),)), "f64", -2.5),
        (Initializer("normal", (("stddev", 0.5),)), "f32", ("normal", 0.0, 0.5)),
        (Initializer("normal", (("mean", 3.0), ("stddev", 0.5))), "bf16", ("normal", 3.0, 0.5)),
        (Initializer("uniform", (("low", -1.0), ("high", 3.0))), "f64", ("uniform", -1.0, 4.0)),
    ],
)
def test_parameters_start_as_declared(init: Initializer, dtype: str, expected: Any) -> None:
    """In JAX's words: standard numbers in f32, scaled, shifted, and then cast."""
    type: TensorType = type_of(f"{dtype} a b")
    parameter = Parameter("net.w", type, init)
    forward = Function("forward", (Argument(Value("net.w", type), "parameter"),), (), ())
    module = load(generate(Program("p", {}, (parameter,), (forward,), mesh=Mesh("single", ()))))
    (found,) = module.init(seed=5).values()
    if isinstance(expected, tuple):
        kind, start, scale = expected
        standard = np.asarray(getattr(jax.random, kind)(jax_key(5, "net.w"), (6, 12), jnp.float32))
        expected = np.float32(start) + np.float32(scale) * standard
    assert found.dtype == numpy_dtype(np, dtype)
    tolerance = 5e-3 if dtype == "bf16" else 1e-5
    np.testing.assert_allclose(found.astype(float), np.broadcast_to(expected, (6, 12)), rtol=tolerance)
