"""Which buffers a function needs, and from when to when.

Values are computed in program order. A value has a buffer of its own, from the equation that defines it to the last one that
uses it (to the end, if it is an output), with three exceptions:

- A view that shows more than there is, such as windows or a broadcast, is read where its source lies; what a `fold` adds up, the
  product before it gives it piece by piece. Neither has a buffer, unless a loop, a collective or the caller needs the array.
- A result takes over the buffer of an operand that is not used later, where each of its elements depends on that operand
  only through the element at the same place (`takes_over`): component-wise ops, `rename`, an all-reduce.
- An output that replaces an argument is written into the argument's buffer (the backends donate it), and so needs none,
  unless the old value is used once more after the new one is there.

Arguments are the caller's: they stay for the whole execution, and nothing else is written over them.

A loop's last values take over the buffers that they start from, if nothing else needs those. While it runs it also needs what
one iteration needs at its peak: copies of the slices, and the values of its body.
"""

from __future__ import annotations

from itertools import accumulate

import attrs

from mtfc.compiler.analysis.buffer_kinds import enlarged, folded
from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.loops import carried, region_of
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.types import Mesh


@attrs.define(eq=False)
class Buffer:
    """The values that share it one after the other; equations `birth` to `death` (inclusive) need it."""

    values: list[Value]
    birth: int
    death: int


def unstored(function: Function) -> dict[Value, tuple[Value, ...]]:
    """The views and windows that have no buffer, in order of definition, and what is read in their place."""
    arrays = {output.value for output in function.outputs}
    for eqn in function.body:
        if eqn.regions or has_trait(eqn, "sends"):
            arrays.update(eqn.operands)
    views, windows = enlarged(function.body), folded(function)
    return {
        eqn.result: eqn.operands
        for eqn in function.body
        if len(eqn.results) == 1
        and eqn.result not in arrays
        and (eqn.result in views or eqn.result in windows)
    }


def last_uses(function: Function) -> dict[Value, int]:
    """The number of the last equation that uses each value or a view of it; outputs are used by one after the last."""
    last = {value: i for i, eqn in enumerate(function.body) for value in (*eqn.results, *eqn.operands)}
    last |= {output.value: len(function.body) for output in function.outputs}
    for value, read in reversed(unstored(function).items()):
        last |= {source: max(last[value], last[source]) for source in read}
    return last


def takes_over(eqn: Equation, operand: Value, result: Value, mesh: Mesh) -> bool:
    """Whether the operand's dimensions run along the result's, in order and split alike, and both are of one size."""
    if eqn.regions:
        return _goes_around(eqn, operand, result)
    index, before, after = OPS[eqn.op].layout_rule(eqn).index, operand.type, result.type
    along = tuple(index.get(name, name) for name in before.names)
    alike = along == after.names and before.splits == after.splits
    return alike and before.local_bytes(mesh) == after.local_bytes(mesh)


def _goes_around(eqn: Equation, operand: Value, result: Value) -> bool:
    """Whether a loop carries the operand until it leaves as the result."""
    count = len(carried(region_of(eqn)))
    return (operand, result) in zip(eqn.operands[:count], eqn.results[:count], strict=True)


def _inside(eqn: Equation, number: int, mesh: Mesh) -> list[Buffer]:
    """What one iteration of a loop holds at its peak, for as long as equation `number`, the loop, runs."""
    region = region_of(eqn)
    last = last_uses(region)
    slices = [Buffer([a.value], 0, last.get(a.value, 0)) for a in region.arguments if a.role == "sliced"]
    found = [*slices, *buffers(region, mesh)]
    at = peak(found, mesh)
    return [Buffer(b.values, number, number) for b in found if b.birth <= at <= b.death]


def donated(function: Function, last: dict[Value, int]) -> set[Value]:
    """The outputs that are written into the buffers of the arguments that they replace."""
    arguments = {argument.value.name: argument.value for argument in function.arguments}
    birth = {value: i for i, eqn in enumerate(function.body) for value in eqn.results}
    return {
        output.value
        for output in function.outputs
        if output.updates and last.get(arguments[output.updates], -1) <= birth.get(output.value, -1)
    }


def buffers(function: Function, mesh: Mesh) -> list[Buffer]:
    """All buffers but those of the arguments."""
    last = last_uses(function)
    in_arguments = donated(function, last)
    without = unstored(function)
    found: list[Buffer] = []
    holder: dict[Value, Buffer] = {}
    for i, eqn in enumerate(function.body):
        found += _inside(eqn, i, mesh) if eqn.regions else []
        free = [value for value in dict.fromkeys(eqn.operands) if value in holder and last[value] == i]
        for result in eqn.results:
            if result in in_arguments or result in without:
                continue
            donor = next((value for value in free if takes_over(eqn, value, result, mesh)), None)
            if donor is None:
                holder[result] = Buffer([result], i, last[result])
                found.append(holder[result])
                continue
            free.remove(donor)
            holder[result] = holder[donor]
            holder[result].values.append(result)
            holder[result].death = last[result]
    return found


def peak(buffers: list[Buffer], mesh: Mesh) -> int:
    """The number of the first equation during which the buffers alive hold most bytes."""
    changes = [0] * (max((buffer.death for buffer in buffers), default=0) + 2)
    for buffer in buffers:
        size = buffer.values[0].type.local_bytes(mesh)
        changes[buffer.birth] += size
        changes[buffer.death + 1] -= size
    alive = list(accumulate(changes))
    return alive.index(max(alive))
