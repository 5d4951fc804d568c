"""What a step computes and moves: each equation of the undistributed program that every layout has, split over its dimensions."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from mtfc.compiler.analysis.roofline import Memory
from mtfc.compiler.analysis.sizes import Numbers
from mtfc.compiler.hardware import Device
from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.loops import dim_of, region_of
from mtfc.compiler.ir.opdef import BY_NAME
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.views import folded
from mtfc.compiler.search.rules.arrays import SINGLE, Array, Sure, array_of, own_dims
from mtfc.compiler.search.rules.naming import Dims, Naming, called, iteration


@attrs.frozen
class Work:
    """Seconds of FLOPs at the peak rate, split over `dims`; bytes of arrays, each the smallest of several that it can be read as;
    `overhead` seconds. All `trips` times.
    """

    seconds: float
    dims: Dims
    moved: tuple[tuple[Array, ...], ...]
    overhead: float
    trips: int


def work_of(function: Function, naming: Naming, device: Device, trips: int, sure: Sure) -> Iterator[Work]:
    """What is sure; of what unsure equations make, or fold, it is not known whether it is stored."""
    body = tuple(eqn for eqn in function.body if eqn.regions or sure(eqn))
    memory = Memory(attrs.evolve(function, body=body), SINGLE)
    memory.stored -= folded(function.body)
    known = {*memory.makers, *(argument.value for argument in function.arguments)}
    reads = _Reads(memory, known, naming, function)
    for eqn in body:
        if eqn.regions:
            yield from work_of(region_of(eqn), naming, device, trips * dim_of(eqn).size, sure)
        elif OPS[eqn.op].storage not in ("view", "made"):
            yield _of_equation(eqn, memory, reads, naming, device, trips)


def _of_equation(
    eqn: Equation, memory: Memory, reads: _Reads, naming: Naming, device: Device, trips: int
) -> Work:
    written = [(array_of(value, naming),) for value in eqn.results if value in memory.stored]
    dtype = (eqn.operands or eqn.results)[0].type.dtype
    flops = 0 if reads.may_be_for_others(eqn) else OPS[eqn.op].flops(eqn, Numbers(SINGLE))
    return Work(
        seconds=flops / device.rate(dtype).peak,
        dims=_split(eqn, naming),
        moved=(*written, *reads.of(eqn)),
        overhead=device.overhead if memory.is_stored(eqn) else 0.0,
        trips=trips,
    )


class _Reads:
    """What equations read. Which kernel a fused one is part of depends on the layout, and the first equation of a kernel reads an
    array for all: sure is what a single equation reads, or one whose result is stored. What is read through a view may be
    read with something else.
    """

    def __init__(self, memory: Memory, known: set[Value], naming: Naming, function: Function) -> None:
        self.memory, self.known, self.naming = memory, known, naming
        self.viewed = {value for eqn in function.body if _is_view(eqn) for value in eqn.operands}
        self.readers: dict[Value, list[Equation]] = {}
        for eqn in function.body:
            for value in dict.fromkeys(eqn.operands):
                self.readers.setdefault(value, []).append(eqn)

    def of(self, eqn: Equation) -> Iterator[tuple[Array, ...]]:
        """For each array that is read what it can be read as."""
        for value in dict.fromkeys(eqn.operands):
            if value in self.viewed or value not in self.known or self.memory.views(value) != [value]:
                continue
            if not self.memory.is_stored(eqn) and len(self.readers[value]) > 1:
                continue
            is_sure = len(self.readers[value]) == 1 or all(map(self._is_stored, self.readers[value]))
            array = _operand(eqn, value, self.naming) if is_sure else array_of(value, self.naming)
            is_looked_up = OPS[eqn.op].storage == "lookup" and value is eqn.operands[0]
            yield (array, array_of(eqn.result, self.naming)) if is_looked_up else (array,)

    def _is_stored(self, eqn: Equation) -> bool:
        return bool(eqn.regions) or self.memory.is_stored(eqn)

    def may_be_for_others(self, eqn: Equation) -> bool:
        """Whether what the equation reads may take longer than it computes, and be what others are taken to read."""
        shares = any(len(self.readers[value]) > 1 for value in eqn.operands)
        return shares and not self._is_stored(eqn)


def _is_view(eqn: Equation) -> bool:
    return not eqn.regions and OPS[eqn.op].storage in ("view", "made")


def _operand(eqn: Equation, value: Value, naming: Naming) -> Array:
    """An operand, split as the equation needs it."""
    rule = OPS[eqn.op].layout_rule(eqn)
    if rule.reduced:
        return Array(value.type.local_bytes(SINGLE), iteration(eqn, rule, value))
    if rule is BY_NAME and len(eqn.results) == 1:
        return Array(value.type.local_bytes(SINGLE), naming.names[eqn.result])
    return array_of(value, naming)


def is_ordered(eqn: Equation) -> bool:
    """Products of several operands are taken in an order that depends on the layout."""
    return eqn.op != "einsum" or len(eqn.operands) == 2


def _split(eqn: Equation, naming: Naming) -> Dims:
    """The dimensions of the iteration space that can be computed in parts, under whatever name."""
    rule = OPS[eqn.op].layout_rule(eqn)
    if rule.reduced:
        return own_dims(eqn, rule)
    whole = {called(eqn, name) for name in rule.whole}
    return frozenset().union(*(naming.names[value] for value in eqn.results)) - whole
