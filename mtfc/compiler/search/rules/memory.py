"""How much a step holds at least at one time, at any point of the program.

Under every layout the equations run in the same order, and what one of them makes is there until its last use, split over the
axes of its dimensions at most. An equation that mixes positions of a split dimension is replaced by others, which may read
something that was made of a value before: so what such an equation makes, and what nothing but such equations still needs, counts
where these dimensions are whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs
import numpy as np
from numpy.typing import NDArray

from mtfc.compiler.analysis.liveness import buffers, last_uses, unstored
from mtfc.compiler.analysis.memory import gradients
from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.loops import region_of
from mtfc.compiler.search.rules.arrays import SINGLE, bridge_of
from mtfc.compiler.search.rules.naming import Dims, Naming, computed

KEPT = 3
"""Points that are looked at for each dimension that is split, those that hold most then."""

SPLIT = 8.0
"""Over so many processors."""

Bytes = NDArray[np.float64]


@attrs.frozen
class Kind:
    """Values of these dimensions, which count where those of `unless` are whole."""

    dims: Dims
    unless: Dims


@attrs.frozen
class Points:
    """bytes: [point, kind]."""

    kinds: tuple[Kind, ...]
    bytes: Bytes


@attrs.frozen
class _Life:
    """From the equation `birth` to the equation `death`, of one function."""

    kind: Kind
    bytes: int
    birth: int
    death: int


def points_of(function: Function, naming: Naming, positions: Mapping[Equation, Dims | None]) -> Points:
    """The points at which most is held besides arguments and gradients, for one layout or the other."""
    numbers: dict[Kind, int] = {}
    found = list(_Finder(naming, positions, numbers).points(function, _shared_with_gradients(function)))
    bytes = np.array([_row(each, len(numbers)) for each in found])
    return Points(tuple(numbers), bytes[sorted(_largest(tuple(numbers), bytes))])


def _row(point: Mapping[int, int], length: int) -> Bytes:
    row = np.zeros(length)
    row[list(point)] = list(point.values())
    return row


def _largest(kinds: tuple[Kind, ...], bytes: Bytes) -> set[int]:
    """The points that hold most where nothing is split, or one dimension is; and of what counts always."""
    always = np.array([not kind.unless for kind in kinds])
    found: set[int] = set()
    for name in ("", *sorted(computed(frozenset[str]().union(*(kind.dims for kind in kinds))))):
        share = np.array([1 / SPLIT if name in kind.dims else 1.0 for kind in kinds])
        whole = np.array([name not in kind.unless for kind in kinds])
        for weights in (share * whole, share * always):
            found.update(np.argsort(-(bytes @ weights), kind="stable")[:KEPT].tolist())
    return found


def _shared_with_gradients(function: Function) -> set[Value]:
    """Values that may lie where a gradient does, before it or after it."""
    before, after = set(gradients(function)), set(gradients(function))
    for eqn in reversed(function.body):
        for result in before.intersection(eqn.results):
            before.update(value for value in eqn.operands if _are_alike(value, result))
    for eqn in function.body:
        for operand in after.intersection(eqn.operands):
            after.update(value for value in eqn.results if _are_alike(value, operand))
    return before | after


def _are_alike(one: Value, other: Value) -> bool:
    return one.type.local_bytes(SINGLE) == other.type.local_bytes(SINGLE)


def _equal(function: Function, positions: Mapping[Equation, Dims | None]) -> set[Value]:
    """Values that may turn out to be earlier ones: all products of several operands that have the same dimensions, as they are
    taken in another order, and what is made of them alike.
    """
    numbers: dict[object, int] = {}
    known: dict[Value, object] = {}
    found: set[Value] = set()
    for eqn in (each for each in function.body if not each.regions):
        attributes = sorted((name, repr(value)) for name, value in eqn.attrs.items())
        operands: object = (*attributes, *(known.get(value, value) for value in eqn.operands))
        if positions.get(eqn, eqn) is None:
            operands = frozenset(eqn.result.type.dims)
        for i, value in enumerate(eqn.results):
            key = (eqn.op, i, operands)
            if key in numbers:
                found.add(value)
            known[value] = numbers.setdefault(key, len(numbers))
    return found


@attrs.frozen
class _Finder:
    """numbers: of the kinds that were met."""

    naming: Naming
    positions: Mapping[Equation, Dims | None]
    numbers: dict[Kind, int]

    def points(self, function: Function, without: set[Value]) -> Iterator[dict[int, int]]:
        """What is held while each equation runs, by kind; while a loop runs, at each point of an iteration too."""
        changes: list[list[tuple[int, int]]] = [[] for _ in range(len(function.body) + 2)]
        for life in self._lives(function, without):
            number = self.numbers.setdefault(life.kind, len(self.numbers))
            changes[life.birth].append((number, life.bytes))
            changes[life.death + 1].append((number, -life.bytes))
        now: dict[int, int] = {}
        for i, eqn in enumerate(function.body):
            for number, bytes in changes[i]:
                now[number] = now.get(number, 0) + bytes
            if eqn.regions:
                for inside in self.points(region_of(eqn), set()):
                    yield {each: now.get(each, 0) + inside.get(each, 0) for each in {*now, *inside}}
            elif any(bytes > 0 for _, bytes in changes[i]):
                yield dict(now)
        yield {}

    def _lives(self, function: Function, without: set[Value]) -> Iterator[_Life]:
        made = {value: (i, eqn) for i, eqn in enumerate(function.body) for value in eqn.results}
        uses = _Uses.of(function, self.positions)
        last, nothing = last_uses(function), frozenset[str]()
        without = without | _equal(function, self.positions)
        for value in (a.value for a in function.arguments if a.role == "sliced"):
            yield from self._life(value, 0, last.get(value, 0), nothing, uses)
        for buffer in (each for each in buffers(function, SINGLE) if each.values[0] in made):
            if without.isdisjoint(buffer.values) and buffer.values[0].type.dims:
                births = [made[value][0] for value in buffer.values]
                ends = [*(birth - 1 for birth in births[1:]), buffer.death]
                for value, birth, end in zip(buffer.values, births, ends, strict=True):
                    mixed = self.positions.get(made[value][1], nothing)
                    # a product of several operands may come out in an order in which its last use takes over its buffer
                    sure = end if mixed is not None else end - 1
                    yield from self._life(value, birth, sure, mixed or nothing, uses)

    def _life(self, value: Value, birth: int, end: int, mixed: Dims, uses: _Uses) -> Iterator[_Life]:
        """As long as it is sure to be used; then as long as some part of it is; then where its dimensions are whole."""
        dims, bytes = self.naming.names[value], value.type.local_bytes(SINGLE)
        for use in uses.of_value(value):
            further = frozenset[str]().union(*(self.naming.names[view] for view in use.views))
            if birth <= min(use.last, end):
                kind = Kind(dims | further, mixed | use.mixed)
                yield _Life(kind, int(bytes * use.share), birth, min(use.last, end))
                birth = use.last + 1


@attrs.frozen
class _Use:
    """Of a value, by an equation: how much of the value it needs, and what it sees it as. mixed: dimensions that must be whole
    for that to be sure.
    """

    last: int
    share: float = 1.0
    views: tuple[Value, ...] = ()
    mixed: Dims = frozenset()


@attrs.frozen
class _Uses:
    """The uses of values in a function, by numbers of equations. Instead of views what they are views of is used."""

    uses: Mapping[Value, list[tuple[int, Equation]]]
    outputs: frozenset[Value]
    views: Mapping[Value, tuple[Value, ...]]
    positions: Mapping[Equation, Dims | None]
    length: int

    @classmethod
    def of(cls, function: Function, positions: Mapping[Equation, Dims | None]) -> _Uses:
        uses: dict[Value, list[tuple[int, Equation]]] = {}
        for i, eqn in enumerate(function.body):
            for value in dict.fromkeys(eqn.operands):
                uses.setdefault(value, []).append((i, eqn))
        outputs = frozenset(output.value for output in function.outputs)
        return cls(uses, outputs, unstored(function), positions, len(function.body))

    def of_value(self, value: Value) -> list[_Use]:
        """All, the surest first: for those that need more than others of what they see it as, or of what must be whole."""
        found = list(self._of(value))
        return sorted(found, key=lambda use: (len(use.mixed), len(use.views), use.last))

    def _of(self, value: Value) -> Iterator[_Use]:
        if value in self.outputs:
            yield _Use(self.length)
        for i, eqn in self.uses.get(value, ()):
            is_view = len(eqn.results) == 1 and eqn.results[0] in self.views
            later = list(self._of(eqn.result)) if is_view else [_Use(i)]
            bridge, mixed = bridge_of(eqn), self.positions.get(eqn, frozenset())
            if mixed is None:
                continue
            for use in later:
                if bridge is not None and is_view:
                    views, share = (*use.views, eqn.result), use.share * bridge.share
                    yield attrs.evolve(use, views=views, share=share)
                else:
                    yield attrs.evolve(use, mixed=use.mixed | mixed)
