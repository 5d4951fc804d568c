"""Random numbers: JAX's streams, drawn from the global index, with the same bits on all devices and backends."""

import re
import zlib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh as Devices
from jax.sharding import PartitionSpec as P
from scipy import special

from mtfc.backends.common import random_numbers as on_numpy
from mtfc.backends.jax import backend as jax_backend
from mtfc.backends.jax.runtime import load
from mtfc.backends.numpy import backend as numpy_backend
from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Argument, Function, Initializer, Output, Parameter, Program, Value
from mtfc.compiler.ir.ops.elementwise import numpy_dtype
from mtfc.compiler.ir.types import Dim, Layout, Mesh, Rules, TensorType
from mtfc.compiler.passes.pipelines import lower
from tests.backends.small import type_of
from tests.sampling import some

pytestmark = pytest.mark.usefixtures("optimized")

DRAWS: list[tuple[int, str, tuple[int, ...]]] = [
    (0, "w", (1000, 100)),
    (7, "layers.ffn.wi", (33,)),
    (2**31 - 1, "b", (3, 5, 7)),
    (1, "s", ()),
]

INPUTS = np.arange(2**23, dtype=np.uint32)
"""All random bits that a draw depends on."""


def over_jax() -> Any:
    """Return the same functions as they are in JAX modules."""
    source = (
        Path(on_numpy.__file__).read_text("utf-8").replace("import numpy as np", "import jax.numpy as jnp")
    )
    functions: dict[str, Any] = {}
    exec(re.sub(r"\bnp\.", "jnp.", source), functions)
    return SimpleNamespace(**functions)


ON_JAX = over_jax()


def jax_key(seed: int, *folded: int) -> Any:
    key = jax.random.key(seed, impl="threefry2x32")
    for number in folded:
        key = jax.random.fold_in(key, number)
    return key


def name_key(seed: int, name: str, *folded: int) -> Any:
    return jax_key(seed, zlib.crc32(name.encode()), *folded)


def quantiles(functions: Any, np: Any, bits: Any) -> Any:
    """Return the normal number that `random_normal` makes of 23 random bits."""
    number = bits.astype(np.int32) * 4 + (1 - 2**24)
    return functions.normal_quantile(number.astype(np.float32) * np.float32(2**-24))


@cache
def by_numpy() -> Any:
    """Return the normal number of every input, by NumPy."""
    return quantiles(on_numpy, np, INPUTS)


def units_apart(x: Any, y: Any) -> int:
    """Return the largest distance of two arrays in units in the last place."""
    assert (np.signbit(x) == np.signbit(y)).all()
    return int(np.abs(x.view(np.int32).astype(np.int64) - y.view(np.int32)).max())


# The streams


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_its_authors_known_answers(key: Any, counter: Any, expected: Any) -> None:
    words = on_numpy.threefry([on_numpy.word(x) for x in key], *map(on_numpy.word, counter))
    assert tuple(int(word[0]) for word in words) == expected


@pytest.mark.parametrize("folded", [(), (3,), (0, 2**31 - 1, 5)])
@pytest.mark.parametrize(("seed", "name", "shape"), DRAWS)
def test_bits_and_uniform_numbers_equal_those_of_jax(
    seed: int, name: str, shape: tuple[int, ...], folded: tuple[int, ...]
) -> None:
    key, theirs = on_numpy.random_key(seed, name, *folded), name_key(seed, name, *folded)
    np.testing.assert_array_equal(on_numpy.random_bits(key, shape), jax.random.bits(theirs, shape))
    found = on_numpy.random_uniform(key, shape)
    assert found.dtype == np.float32 and found.shape == shape
    np.testing.assert_array_equal(found, jax.random.uniform(theirs, shape))


@pytest.mark.parametrize(("seed", "name", "shape"), DRAWS)
def test_normal_numbers_are_those_of_jax_up_to_rounding(seed: int, name: str, shape: tuple[int, ...]) -> None:
    found = on_numpy.random_normal(on_numpy.random_key(seed, name), shape)
    assert found.dtype == np.float32 and found.shape == shape
    expected = np.asarray(jax.random.normal(name_key(seed, name), shape))
    np.testing.assert_array_max_ulp(found, expected, maxulp=5)


def test_no_normal_number_is_further_from_that_of_jax() -> None:
    """Compare the normal numbers of all 2**23 inputs. JAX draws a uniform number first."""

    def theirs(bits: Any) -> Any:
        lowest = np.nextafter(np.float32(-1), np.float32(0))
        fraction = (bits | np.uint32(0x3F800000)).view(np.float32) - np.float32(1)
        return np.float32(np.sqrt(2)) * jax.lax.erf_inv(jnp.maximum(lowest, fraction * (1 - lowest) + lowest))

    assert units_apart(by_numpy(), np.asarray(theirs(INPUTS))) <= 5


def test_normal_numbers_are_quantiles() -> None:
    """Normal numbers are right to 4 units in the last place but for the tails, where 1 - x**2 is coarse in JAX too."""
    x = (INPUTS.astype(np.float64) * 4 + 1 - 2**24) / 2**24
    inner = np.abs(x) < 0.99
    exact = np.sqrt(2) * special.erfinv(x)
    found = by_numpy()
    error = np.abs(found - exact) / np.spacing(np.abs(exact).astype(np.float32))
    assert error[inner].max() < 4 and error.max() < 100
    assert (np.diff(found[np.abs(found) < 3]) >= -1e-6).all()


# The same bits everywhere


def on_shards(functions: Callable[..., Any]) -> Callable[..., Any]:
    """Return the functions on 8 devices, each with an eighth of the inputs."""
    mesh = Devices(np.asarray(jax.devices()[:8]), ("all",))
    return jax.shard_map(functions, mesh=mesh, in_specs=P("all"), out_specs=P("all"))


CONTEXTS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "alone": lambda f: f,
    "in a loop": lambda f: lambda x: jax.lax.map(f, x.reshape(512, -1)).reshape(-1),
    "one by one": lambda f: lambda x: jax.lax.map(f, x[: 2**10]),
    "in a tail": lambda f: lambda x: f(x[:13]),
    "batched": lambda f: lambda x: jax.vmap(f)(x.reshape(-1, 2)).reshape(-1),
    "beside a sum": lambda f: lambda x: jax.lax.optimization_barrier((f(x), f(x).sum()))[0],
    "added and taken away": lambda f: lambda x: jnp.where(f(x) + 1 > 0.3 * f(x) - 8, f(x), f(x) + 1),
    "reversed": lambda f: lambda x: f(x[::-1])[::-1],
    "on shards": on_shards,
}


@pytest.mark.parametrize("context", CONTEXTS)
def test_numpy_and_compiled_jax_draw_the_same_bits(context: str) -> None:
    """The same text gives the same number for every input, whatever XLA fuses."""
    draw = jax.jit(CONTEXTS[context](lambda bits: quantiles(ON_JAX, jnp, bits)))
    found = np.asarray(draw(INPUTS))
    np.testing.assert_array_equal(found.view(np.uint32), by_numpy()[: found.size].view(np.uint32))


def has_fused_products() -> bool:
    """Return True if XLA rounds a product and a sum once here, as processors do that have an instruction for both."""
    x = np.full(8, 1 + 2**-12, np.float32)
    return bool(jax.jit(lambda x, y: x * x - y)(x, x * x).any())


def test_without_the_bound_xla_rounds_otherwise() -> None:
    """XLA fuses a plain product and sum; without this, `times` would be needless."""
    if not has_fused_products():
        pytest.skip("this processor rounds every product")
    functions = over_jax()
    functions.normal_quantile.__globals__["times"] = lambda x, y: x * y
    found = np.asarray(jax.jit(lambda bits: quantiles(functions, jnp, bits))(INPUTS))
    assert (found != by_numpy()).any()


@st.composite
def parts(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Draw the sizes of a part, the sizes of the whole array, maybe above 2**32 elements, and the start of the part."""
    whole = draw(st.lists(st.one_of(st.integers(1, 9), st.integers(1, 2**18)), min_size=0, max_size=4))
    sizes = tuple(draw(st.integers(1, min(size, 4))) for size in whole)
    start = tuple(draw(st.integers(0, n - size)) for n, size in zip(whole, sizes, strict=True))
    return sizes, tuple(whole), start


@settings(max_examples=20)
@given(parts())
def test_the_index_is_the_global_one(drawn: Any) -> None:
    """The words of the global index are right for parts of arrays of any size."""
    sizes, whole, start = drawn
    places = [np.arange(n, dtype=object) + first for n, first in zip(sizes, start, strict=True)]
    expected: Any = np.zeros((), object)
    for n, index in zip(whole, places, strict=True):
        expected = expected[..., None] * n + index
    by_jax = jax.jit(partial(ON_JAX.global_index, sizes, whole))
    for function, np_ in ((partial(on_numpy.global_index, sizes, whole), np), (by_jax, jnp)):
        words = function(tuple(np_.int32(first) for first in start))
        high, low = (np.broadcast_to(np.asarray(word)[..., 0], sizes).astype(object) for word in words)
        assert ((high << 32) + low == np.broadcast_to(expected, sizes)).all()


@given(parts(), st.integers(0, 2**31 - 1))
def test_a_part_is_drawn_as_in_the_whole(drawn: Any, seed: int) -> None:
    sizes, whole, start = drawn
    if np.prod(whole) > 10**5:
        whole = tuple(first + size for first, size in zip(start, sizes, strict=True))
        whole = whole if np.prod(whole) <= 10**5 else sizes
        start = tuple(min(first, n - size) for first, n, size in zip(start, whole, sizes, strict=True))
    key, region = (
        on_numpy.random_key(seed, "w"),
        tuple(slice(first, first + size) for first, size in zip(start, sizes, strict=True)),
    )
    part = on_numpy.random_normal(key, sizes, whole, start)
    np.testing.assert_array_equal(part, on_numpy.random_normal(key, whole)[region])


# In programs

LAYOUTS = [
    (Mesh("alone", (("all", 1),)), {}),
    (Mesh("grid", (("rows", 2), ("cols", 4))), {"p": ("rows",), "q": ("cols",)}),
    (Mesh("cube", (("rows", 2), ("cols", 2), ("planes", 2))), {"p": ("planes", "rows"), "r": ("cols",)}),
]
DIMS = tuple(Dim(name, size) for name, size in (("p", 8), ("q", 16), ("r", 6)))
STARTS = {
    "w": ("f32", Initializer("normal", (("stddev", 0.37),))),
    "net.v": ("f32", Initializer("normal", (("mean", -0.3), ("stddev", 0.7)))),
    "u": ("f32", Initializer("uniform", (("low", -0.1), ("high", 0.6)))),
    "h": ("bf16", Initializer("normal", (("mean", 3.1), ("stddev", 0.5)))),
    "d": ("f16", Initializer("uniform", (("low", 1.3), ("high", 1.9)))),
}


def drawing_program() -> Program:
    """Return a program of parameters with every initializer, and an output for every draw."""
    b = Builder(Names())
    step = b("step_number")
    outputs = [
        Output(f"{op}_{dtype}", b(op, step, dims=DIMS, stream="net.noise", dtype=dtype))
        for op in ("uniform", "normal")
        for dtype in ("f32", "bf16", "f16")
    ]
    outputs.append(Output("bernoulli", b("bernoulli", step, dims=DIMS[1:], stream="net.mask", p=0.3)))
    parameters = tuple(
        Parameter(name, TensorType(dtype, DIMS), init) for name, (dtype, init) in STARTS.items()
    )
    arguments = tuple(Argument(Value(p.name, p.type), "parameter") for p in parameters)
    forward = Function("forward", arguments, tuple(b.body), tuple(outputs))
    return Program("drawing", {dim.name: dim for dim in DIMS}, parameters, (forward,))


def test_all_draws_are_bit_identical_on_all_layouts_and_backends() -> None:
    """Initial values and drawn numbers are equal on both backends."""
    expected: dict[str, Any] = {}
    for mesh, rules in some(LAYOUTS, 2):
        local = lower(drawing_program(), mesh, Layout("main", Rules(tuple(rules.items()))))
        for module in (numpy_backend.load(numpy_backend.generate(local)), load(jax_backend.generate(local))):
            params = module.init(seed=11)
            found = module.unshard(params, module.PARAMETERS)
            found |= module.unshard(module.forward(params, {}), module.OUTPUTS["forward"])
            for name, value in found.items():
                first = expected.setdefault(name, value)
                assert first.tobytes() == np.asarray(value).tobytes() and first.dtype == value.dtype, name


def test_devices_draw_their_own_part_only() -> None:
    """No array in the compiled program is larger than one device's part, initial values included."""
    mesh, rules = LAYOUTS[1]
    local = lower(drawing_program(), mesh, Layout("main", Rules(tuple(rules.items()))))
    module: dict[str, Any] = {}
    exec(jax_backend.generate(local), module)
    with jax.set_mesh(module["make_mesh"]()):
        params = module["init"]()
        texts = [
            module["init"].lower().compile().as_text(),
            module["forward"].lower(params, {}).compile().as_text(),
        ]
    shapes = {shape for text in texts for shape in re.findall(r"\b[a-z]+\d+\[([\d,]+)\]", text)}
    sizes = {int(np.prod([int(size) for size in shape.split(",")])) for shape in shapes}
    assert max(sizes) == 8 * 16 * 6 // 8


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
    """Return the numbers by JAX: standard ones in f32, scaled, shifted, and then cast."""
    type: TensorType = type_of(f"{dtype} a b")
    parameter = Parameter("net.w", type, init)
    forward = Function("forward", (Argument(Value("net.w", type), "parameter"),), (), ())
    program = Program("p", {}, (parameter,), (forward,), mesh=Mesh("single", ()))
    module = numpy_backend.load(numpy_backend.generate(program))
    (found,) = module.init(seed=5).values()
    if isinstance(expected, tuple):
        kind, start, scale = expected
        standard = np.asarray(getattr(jax.random, kind)(name_key(5, "net.w"), (6, 12), jnp.float32))
        expected = np.float32(start) + np.float32(scale) * standard
    assert found.dtype == numpy_dtype(np, dtype)
    tolerance = 5e-3 if dtype == "bf16" else 1e-5
    np.testing.assert_allclose(found.astype(float), np.broadcast_to(expected, (6, 12)), rtol=tolerance)
