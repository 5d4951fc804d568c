"""Texts of ops that keep `jax.grad` of an emitted `forward` equal to the compiler's own gradients.

JAX has no derivative of `lax.pmax`. The prelude's `pmax` and `pmin` have one, which sends more. Most maxima over devices belong
to a softmax that the file wraps in `stop_gradient`: their operands are written as constants for differentiation. On one device
the module calls `largest` or `smallest`, as `jnp.max` shares a gradient among equal elements. `jnp.abs` has the slope 1 at 0,
where the language says 0.
"""

from __future__ import annotations

from collections.abc import Set

import attrs

from mtfc.compiler.ir.core import Equation, Function, Value, walk
from mtfc.compiler.ir.loops import pairs, region_of
from mtfc.compiler.ir.opdef import Code, Text, no_gradient
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.ops.collectives import ALL_REDUCE
from mtfc.compiler.ir.types import FLOATS


def differentiable(function: Function, differentiated: Set[Value]) -> dict[Value, Text]:
    """Return the text of each equation that must differ from the text of its op, by the first result."""
    found: dict[Value, Text] = {}
    for eqn in walk(function.body):
        if not eqn.operands or eqn.operands[0].type.dtype not in FLOATS:
            continue
        passes = not differentiated.isdisjoint(eqn.results)
        own = None if eqn.regions else OPS[eqn.op].jax_differentiated
        if has_trait(eqn, "all_reduce") and eqn.operands[0].type.reduction != "sum":
            found.update({} if passes else {eqn.results[0]: _constant})
        elif own is not None and passes:
            found[eqn.result] = own
    return found


def _constant(code: Code) -> str:
    """Return `pmax(lax.stop_gradient(x), "cols")`."""
    text = ALL_REDUCE.jax
    assert callable(text)
    return text(attrs.evolve(code, args=tuple(f"lax.stop_gradient({arg})" for arg in code.args)))


def differentiated(function: Function) -> frozenset[Value]:
    """Return the float values through which a gradient of the outputs passes, inside loops too."""
    found = {output.value for output in function.outputs}
    _reach(function, found)
    return frozenset(found)


def _reach(function: Function, found: set[Value]) -> None:
    """Add to `found` the values that the gradient reaches from the results in it.

    Collectives have no gradient rule, as they are inserted after differentiation. JAX differentiates them all the same.
    """
    for eqn in reversed(function.body):
        if not found.intersection(eqn.results):
            continue
        if eqn.regions:
            _reach_loop(eqn, found)
        elif has_trait(eqn, "placement") or OPS[eqn.op].gradient is not no_gradient:
            found.update(value for value in eqn.operands if value.type.dtype in FLOATS)


def _reach_loop(eqn: Equation, found: set[Value]) -> None:
    """Add the values that the gradient reaches through a loop.

    Go through the body until the carries reach no more values, as an iteration's result may depend on any earlier iteration. A
    carry is
    reached with its update: JAX differentiates the initial value even if the first iteration overwrites it.
    """
    region = region_of(eqn)
    carries = [(o.value, _named(region, o.updates)) for o in region.outputs if o.updates is not None]
    found.update(o.value for o, v in zip(region.outputs, eqn.results, strict=True) if v in found)
    before = 0
    while len(found) > before:
        before = len(found)
        _reach(region, found)
        for pair in carries:
            found.update(pair if not found.isdisjoint(pair) else ())
    found.update(value for value, argument in pairs(eqn) if argument.value in found)


def _named(region: Function, name: str) -> Value:
    return next(argument.value for argument in region.arguments if argument.value.name == name)
