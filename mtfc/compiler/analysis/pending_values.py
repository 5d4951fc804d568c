"""Pending values: the values of a function in which a sum may be pending, by the rule in `ir/sharding_rules.py`.

A loop carries a sum in all iterations if the value that updates the carry may be pending too. Slices in which a sum is pending
make a stack in which the sum is pending. Passes and searches ask this module about functions, and the rule about one equation.
"""

from collections.abc import Collection, Iterable

from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Value
from mtfc.compiler.ir.loops import carried, outputs_of, region_of
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.sharding_rules import (
    is_split,
    leaves_sums,
    may_hold,
    own_axes,
    passing_groups,
    pending_groups,
)


def may_be_pending(function: Function, axis: str | None = None, given: Collection[Value] = ()) -> set[Value]:
    """Return the values in which a sum over `axis` may be pending, also those in loops; of the arguments only those `given`.

    With an axis the layouts of equations count. Without one the sum may be over any axis, under any layout.
    """
    found = set(given)
    for eqn in function.body:
        if eqn.regions:
            found |= _in_loop(eqn, axis)
        elif _may_leave(eqn, axis, found):
            found.update(filter(may_hold, eqn.results))
    return found


def pending_carries(eqn: Equation, axis: str | None = None) -> set[Value]:
    """Return the carries of a loop in which a sum may stay pending in all iterations, such as a sum of pending sums."""
    region = region_of(eqn)
    updates = {output.updates: output.value for output in region.outputs}
    kept = {a.value for a in carried(region) if may_hold(a.value) and not _is_split(a, axis)}
    while True:
        inside = may_be_pending(region, axis, kept)
        fewer = {value for value in kept if updates[value.name] in inside}
        if fewer == kept:
            return kept
        kept = fewer


def axes_pending(function: Function, axes: Iterable[str]) -> dict[Value, set[str]]:
    """Return the axes over which a sum may be pending in each value under the layouts of the equations."""
    found: dict[Value, set[str]] = {}
    for axis in axes:
        for value in may_be_pending(function, axis):
            found.setdefault(value, set()).add(axis)
    return found


def _is_split(end: Argument | Output, axis: str | None) -> bool:
    """Return True if an argument or output is split by the axis, if there is one."""
    return axis is not None and is_split(end, axis)


def _may_leave(eqn: Equation, axis: str | None, pending: set[Value]) -> bool:
    """Return True if the equation leaves a sum pending, or passes one on."""
    opdef = OPS[eqn.op]
    rule = opdef.layout_rule(eqn)
    if leaves_sums(rule) and (axis is None or axis in own_axes(rule, eqn)):
        return True
    if pending.isdisjoint(eqn.operands):
        return False
    if axis is None:
        return bool(pending_groups(opdef, eqn, pending.__contains__))
    return bool(passing_groups(opdef, eqn, axis, pending.__contains__))


def _in_loop(eqn: Equation, axis: str | None) -> set[Value]:
    """Return the values in a loop, and those of its results, in which a sum over an axis may be pending."""
    region, carries = region_of(eqn), pending_carries(eqn, axis)
    inside, names = may_be_pending(region, axis, carries), {value.name for value in carries}
    return inside | {
        result
        for result, output in outputs_of(eqn)
        if (
            output.updates in names
            if output.updates
            else output.value in inside and not _is_split(output, axis)
        )
    }
