"""Find the batches of a primitive: leading axes along which it does the same for each element.

JAX's own batching rule proves them. If `jax.vmap` of the primitive on arrays without their first axis is the primitive itself,
with the same parameters, the first axis is a batch. So layouts split it, whatever the primitive computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mtfc.compiler.ir.types import ARRAY_DTYPES
from mtfc.frontend.jaxpr.equations import bound
from mtfc.frontend.jaxpr.flat import AppliedPrimitive, Operand


def batch_axes(step: AppliedPrimitive) -> int:
    """Return the number of leading axes of all operands and results that are batches."""
    from jax.extend.core import Primitive

    if step.bodies or not isinstance(step.bind, Primitive):
        return 0
    shapes, number = [_struct(x).shape for x in (*step.operands, *step.results)], 0
    for sizes in zip(*shapes, strict=False):
        if len({*sizes}) > 1 or not _is_mapped(step, number):
            break
        number += 1
    return number


def _is_mapped(step: AppliedPrimitive, number: int) -> bool:
    """Return True if the primitive, on arrays without so many axes, is what `jax.vmap` makes of it without one axis more."""
    import jax

    def structs(first: int) -> list[Any]:
        struct: Any = jax.ShapeDtypeStruct
        return [struct(x.shape[first:], x.dtype) for x in map(_struct, step.operands)]

    def function(*operands: Any) -> Sequence[Any]:
        return bound(step.bind, operands, step.params)

    try:
        jax.eval_shape(function, *structs(number + 1))
        eqn = _only_equation(jax.make_jaxpr(jax.vmap(function))(*structs(number)).jaxpr)
        return eqn is not None and eqn.primitive is step.bind and dict(eqn.params) == dict(step.params)
    except Exception:  # a primitive without a batching rule, or one that asks for more axes
        return False


def _struct(operand: Operand) -> Any:
    """Return the shape and the dtype that JAX gives an array: random keys have no axis for their data."""
    import jax

    struct: Any = jax.ShapeDtypeStruct
    if operand.key is not None:
        return struct(operand.shape[:-1], jax.random.key(0, impl=operand.key).dtype)
    return struct(operand.shape, ARRAY_DTYPES[operand.dtype])


def _only_equation(jaxpr: Any) -> Any | None:
    """Return the equation of a jaxpr that applies one primitive to its arguments and returns the results; None for others."""
    if len(jaxpr.eqns) != 1:
        return None
    (eqn,) = jaxpr.eqns
    if eqn.invars != jaxpr.invars or eqn.outvars != jaxpr.outvars:
        return None
    return _only_equation(eqn.params["jaxpr"].jaxpr) if eqn.primitive.name in ("jit", "pjit") else eqn
