"""Reductions, largest elements and running sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.types import FLOATS
from mtfc.frontend.jaxpr.emitting import JaxprEmitter
from mtfc.frontend.jaxpr.flat import AppliedPrimitive
from mtfc.frontend.jaxpr.linking import Linker, PrimitiveRule
from mtfc.frontend.jaxpr.rules.elementwise import BOOL, NUMBERS


def _axes(step: AppliedPrimitive) -> tuple[int, ...]:
    """Return the reduced axes, counted from 0."""
    rank = len(step.operands[0].shape)
    return tuple(j % rank for j in step.params["axes"])


def link(linker: Linker, step: AppliedPrimitive) -> None:
    """Give the result the axes that stay."""
    gone = _axes(step)
    linker.keep(step, [j for j in range(len(step.operands[0].shape)) if j not in gone])


def _emit(op: str) -> Callable[[JaxprEmitter, AppliedPrimitive], Sequence[Value]]:
    def emit(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
        """Reduce along the dimensions that the value has. It repeats elements along the others."""
        x = emitter.operand(step, 0)
        gone = emitter.dims.of(f for j in _axes(step) for f in step.operands[0].axes[j])
        absent = tuple(dim for dim in gone if dim not in x.type.dims)
        if absent and op == "prod":
            x, absent = emitter.with_dims(x, (*x.type.dims, *absent)), ()
        over = tuple(dim for dim in gone if dim in x.type.dims)
        found = emitter.build(op, x, over=over) if over else x
        if op != "sum":
            return (found,)
        for dim in absent:
            found = emitter.times(found, dim.size)
        return (found,)

    return emit


def reduction(op: str, accepted: frozenset[str]) -> PrimitiveRule:
    return PrimitiveRule(link, _emit(op), lambda step: step.operands[0].dtype in accepted)


def _emit_argmax(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    (j,) = _axes(step)
    x, dim = emitter.merged(emitter.operand(step, 0), step.operands[0].axes, j)
    return (emitter.build("argmax", x, over=(dim,)),)


def _is_plain_argmax(step: AppliedPrimitive) -> bool:
    return step.params["index_dtype"].name == "int32" and step.operands[0].dtype in FLOATS


def _link_along(linker: Linker, step: AppliedPrimitive) -> None:
    linker.give(step.results[0], step.operands[0].axes)


def _emit_cumsum(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    axes, j = step.operands[0].axes, step.params["axis"]
    x, dim = emitter.merged(emitter.operand(step, 0), axes, j)
    found = emitter.build("cumsum", x, dim=dim, exclusive=False, reverse=step.params["reverse"])
    return (emitter.parted(found, dim, axes[j]),)


RULES: dict[str, PrimitiveRule] = {
    "reduce_sum": reduction("sum", NUMBERS),
    "reduce_max": reduction("max", NUMBERS),
    "reduce_min": reduction("min", NUMBERS),
    "reduce_prod": reduction("prod", FLOATS),
    "reduce_and": reduction("all", BOOL),
    "reduce_or": reduction("any", BOOL),
    "argmax": PrimitiveRule(link, _emit_argmax, _is_plain_argmax),
    "cumsum": PrimitiveRule(_link_along, _emit_cumsum, lambda step: step.operands[0].dtype in NUMBERS),
}
