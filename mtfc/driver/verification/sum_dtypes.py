"""Check the dtype of each pending sum where a collective completes it.

Sums of f16 overflow where those of f32 do not, so f16 terms are sent in f32. The gradient of a parameter is summed in the dtype
that `reduce` states (`docs/precision.md`). Terms in bf16 may be rounded before they are sent (decision 34).
"""

from __future__ import annotations

from collections.abc import Iterator

from mtfc.compiler.ir.core import Equation, Function, Program, Value, walk
from mtfc.compiler.ir.loops import region_of
from mtfc.compiler.ir.opdef import no_flops
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.types import FLOATS, ITEM_BYTES


def wrong_sums(program: Program) -> Iterator[str]:
    """Yield a text for each pending sum of a lowered program that is completed in a wrong dtype."""
    asked = program.training.reduce if program.training else None
    for function in program.functions:
        for eqn in filter(_completes, walk(function.body)):
            if asked != "f16":
                yield from (f"sum {v.name} in f16" for v in eqn.operands if v.type.local_dtype == "f16")
        if function.name == "step" and asked is not None:
            for eqn in _sums_of_gradients(function):
                narrow = (v for v in eqn.operands if ITEM_BYTES[v.type.local_dtype] < ITEM_BYTES[asked])
                yield from (f"sum {v.name} in {v.type.dtype}, and not in {asked}" for v in narrow)


def _completes(eqn: Equation) -> bool:
    """True for a collective that completes a pending sum of floats."""
    first, result = (eqn.operands or eqn.results)[0].type, eqn.results[0].type
    is_sum = first.reduction == "sum" and len(result.pending) < len(first.pending)
    return has_trait(eqn, "placement") and is_sum and first.dtype in FLOATS


def _sums_of_gradients(step: Function) -> Iterator[Equation]:
    """Yield the collectives that complete gradients: those between a dot or sum of the backward pass and the update."""
    made = {value: eqn for eqn in walk(step.body) for value in eqn.results}
    waiting = [v for eqn in step.body if eqn.stage == "update" for v in eqn.operands]
    seen = set[Value]()
    while waiting:
        value = waiting.pop()
        eqn = made.get(value)
        if eqn is None or eqn.stage == "forward" or value in seen:
            continue
        seen.add(value)
        if eqn.regions:
            waiting.append(region_of(eqn).outputs[eqn.results.index(value)].value)
        elif _hands_on(eqn):
            waiting += eqn.operands
            if _completes(eqn):
                yield eqn


def _hands_on(eqn: Equation) -> bool:
    """True for a collective, a cast, an addition, or an op that only moves elements."""
    moves = OPS[eqn.op].flops is no_flops and bool(eqn.operands)
    return moves or has_trait(eqn, "cast", "add", "placement")
