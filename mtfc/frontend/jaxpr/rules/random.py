"""Random bits and new keys of JAX's default generator: each is a function of the key and of its index.

So every processor draws its own part of an array, and all layouts draw the numbers that JAX draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.types import Dim
from mtfc.frontend.jaxpr.flat import AppliedPrimitive
from mtfc.frontend.jaxpr.primitive_rules import JaxprEmitter, Linker, PrimitiveRule
from mtfc.frontend.jaxpr.rules.calls import add_call

GENERATOR = "threefry2x32"


def _is_by_index(step: AppliedPrimitive) -> bool:
    """Accept elements, or new keys, that JAX draws by index from a single key of the default generator, fewer than 2**32."""
    import jax

    (key,) = step.operands
    is_known = key.key in ("fry", GENERATOR) and key.shape == (2,)
    is_by_index = bool(jax.config.values["jax_threefry_partitionable"])
    return is_known and is_by_index and prod(step.params["shape"]) < 2**32


def _link(linker: Linker, step: AppliedPrimitive) -> None:
    linker.arguments(step.results)


def _emit(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Draw each element by its index in row-major order. New keys have two numbers each."""
    dims = emitter.dims.of_axes(step.results[0].axes)
    own: tuple[Dim, ...] = () if step.primitive == "random_bits" else dims[-1:]
    mapped = dims[: len(dims) - len(own)]
    key = emitter.whole(emitter.operand(step, 0), step.axes(0))
    function = partial(_bits, step.params["bit_width"]) if not own else _keys
    return add_call(emitter, step, function, [key, _index(emitter, mapped)], mapped, [own])


def _index(emitter: JaxprEmitter, dims: tuple[Dim, ...]) -> Value:
    """Return the index of each element in row-major order."""
    build = emitter.build
    index = build.constant(0, "u32")
    for i, dim in enumerate(dims):
        stride = build.constant(prod(d.size for d in dims[i + 1 :]), "u32")
        place = build("mul", build.cast(build("range", dim=dim), "u32"), stride)
        index = emitter.elementwise("add", index, place)
    return build.ordered(index, dims)


def _pair(key: Any, index: Any) -> Any:
    """Return two numbers of 32 bits for one element; the array has fewer than 2**32 elements."""
    from jax import numpy as jnp
    from jax.extend.random import threefry2x32_p

    primitive: Any = threefry2x32_p
    return primitive.bind(key[0], key[1], jnp.zeros_like(index), index)


def _bits(width: int, key: Any, index: Any) -> list[Any]:
    high, low = _pair(key, index)
    if width == 64:
        return [(high.astype("uint64") << 32) | low.astype("uint64")]
    return [(high ^ low).astype(f"uint{width}")]


def _keys(key: Any, index: Any) -> list[Any]:
    from jax import numpy as jnp

    return [jnp.stack(_pair(key, index))]


RULES: dict[str, PrimitiveRule] = {
    name: PrimitiveRule(_link, _emit, _is_by_index, takes_keys=True, moves=True)
    for name in ("random_bits", "random_split")
}
