"""Random bits of JAX's default generator: each element is a function of the key and of the element's index.

So every processor draws its own part of an array, and all layouts draw the numbers that JAX draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.types import Dim
from mtfc.frontend.jaxpr.emitting import JaxprEmitter, dims_of_result
from mtfc.frontend.jaxpr.factors import axis
from mtfc.frontend.jaxpr.flat import AppliedPrimitive, Var
from mtfc.frontend.jaxpr.linking import Linker, PrimitiveRule
from mtfc.frontend.jaxpr.rules.calls import add_call

GENERATOR = "threefry2x32"


def _is_by_index(step: AppliedPrimitive) -> bool:
    """Accept 32 bits for each element from a single key of the default generator, if JAX draws them by index."""
    import jax

    (key,) = step.operands
    return (
        isinstance(key, Var)
        and key.key in ("fry", GENERATOR)
        and key.shape == (2,)
        and step.params["bit_width"] == 32
        and bool(jax.config.values["jax_threefry_partitionable"])
        and prod(step.params["shape"]) < 2**32
    )


def _link(linker: Linker, step: AppliedPrimitive) -> None:
    linker.give(step.results[0], tuple(map(axis, step.results[0].shape)))


def _emit(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    build, dims = emitter.build, dims_of_result(emitter, step)
    key = emitter.whole(emitter.operand(step, 0), step.axes(0))
    index = build.constant(0, "u32")
    for i, dim in enumerate(dims):
        stride = build.constant(prod(d.size for d in dims[i + 1 :]), "u32")
        place = build("mul", build.cast(build("range", dim=dim), "u32"), stride)
        index = emitter.elementwise("add", index, place)
    results: list[tuple[Dim, ...]] = [()]
    return add_call(emitter, step, _bits, [key, build.ordered(index, dims)], dims, results)


def _bits(key: Any, index: Any) -> list[Any]:
    """Return the bits of one element; the array has fewer than 2**32 of them."""
    from jax import numpy as jnp
    from jax.extend.random import threefry2x32_p

    primitive: Any = threefry2x32_p
    high, low = primitive.bind(key[0], key[1], jnp.zeros_like(index), index)
    return [high ^ low]


RULES: dict[str, PrimitiveRule] = {"random_bits": PrimitiveRule(_link, _emit, _is_by_index, takes_keys=True)}
