"""Which values may hold a pending sum: of those alone the search looks at placements in which they do."""

from __future__ import annotations

from collections.abc import Collection

from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.loops import carried, region_of
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.types import FLOATS


def may_be_pending(function: Function, given: Collection[Value] = ()) -> set[Value]:
    """The values, those of loops' bodies too, if the arguments `given` may be.

    A contraction leaves a sum pending, what is linear passes it on, and a loop may carry it all the way around.
    """
    found = set(given)
    for eqn in function.body:
        if eqn.regions:
            found |= _in_loop(eqn)
        elif _makes(eqn) or any(
            found.issuperset(eqn.operands[i] for i in g) for g in OPS[eqn.op].linear(eqn)
        ):
            found.update(value for value in eqn.results if value.type.dtype in FLOATS)
    return found


def _makes(eqn: Equation) -> bool:
    rule = OPS[eqn.op].layout_rule(eqn)
    return bool(rule.reduced) and rule.reduction == "sum"


def _in_loop(eqn: Equation) -> set[Value]:
    region = region_of(eqn)
    updates = {output.updates: output.value for output in region.outputs}
    going = {a.value for a in carried(region) if a.value.type.dtype in FLOATS}
    while True:
        inside = may_be_pending(region, going)
        kept = {value for value in going if updates[value.name] in inside}
        if kept == going:
            pairs = zip(eqn.results, region.outputs, strict=True)
            names = {value.name for value in going}
            return inside | {result for result, output in pairs if output.updates in names}
        going = kept
