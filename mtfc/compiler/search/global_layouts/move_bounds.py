"""What must be gathered or exchanged because it is made in one layout and used in another.

Equations that reduce a dimension are laid out by the rules, whatever is around them. All others may follow their uses, or what
they are made of, so somewhere between two that reduce, through the others, data gets from one layout to the other. An axis that
splits the first result and nothing of what the second one reads must be gathered, one that splits a dimension no longer at least
be exchanged: at the size that the data has somewhere on the way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import attrs

from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.loops import dim_of, pairs, region_of
from mtfc.compiler.search.global_layouts.dimension_names import (
    OPTIMIZER,
    PARAMS,
    Dims,
    Naming,
    called,
    rule_of,
)
from mtfc.compiler.search.global_layouts.named_arrays import SINGLE, Pairs, Sure, after, bridge_of

Names = tuple[tuple[str, str | None, Pairs], ...]

Carriers = tuple[tuple[int, Dims, Pairs], ...]


@attrs.frozen
class Gate:
    """An equation that data passes only so split as it, or what uses it, is; before it there are at least so many bytes.

    carriers: the sizes of dimensions of its operand that it does not need whole, if each of certain pairs is split alike, and
    under which names they may be split then.
    dims: all dimensions that something before it may be split along.
    """

    bytes: int
    dims: Dims
    carriers: Carriers


@attrs.frozen
class Way:
    """A way of data to an equation that stays, or to a loop: the values on it, and the fewest bytes on it.

    names: what that one calls the dimensions that the data is made under, if each of certain pairs is split alike; None for one
    that it needs whole, or that is whole on the way. dims: all dimensions that something on the way may be split along. gates:
    the last is that one.
    """

    names: Names
    values: tuple[Value, ...]
    bytes: int
    dims: Dims
    gates: tuple[Gate, ...]


@attrs.frozen
class Move:
    """Data that is made under the dimensions `own`, by an equation of the dimensions `beside`, and its ways; `trips` times."""

    own: Dims
    beside: tuple[str, ...]
    ways: tuple[Way, ...]
    trips: int


Uses = Mapping[Value, list[Equation]]


def moves_of(function: Function, naming: Naming, sure: Sure, trips: int = 1) -> Iterator[Move]:
    """Of the results of a function, and of the loops in it. What loops carry stays where the rules put it, too."""
    uses: dict[Value, list[Equation]] = defaultdict(list)
    for eqn in function.body:
        if eqn.regions:
            yield from moves_of(region_of(eqn), naming, sure, trips * dim_of(eqn).size)
        for value in dict.fromkeys(eqn.operands):
            uses[value].append(eqn)
    carried = frozenset(a.value.name for a in function.arguments if a.role == "carried")
    ends = frozenset(output.value for output in function.outputs if output.updates in carried)
    outputs = frozenset(output.value for output in function.outputs)
    finder = _Finder(naming, sure, uses, outputs, ends, trips)
    yield from (move for a in function.arguments if a.value.name in carried for move in finder.moves(a.value))
    for eqn in function.body:
        if eqn.regions:
            results = zip(eqn.results, region_of(eqn).outputs, strict=True)
            yield from (move for value, out in results if out.updates for move in finder.moves(value))
        elif finder.counts(eqn) and _stays(eqn):
            reduced = (dim.name for dim in rule_of(eqn).reduced)
            yield from finder.moves(eqn.results[0], reduced)


def _stays(eqn: Equation) -> bool:
    return bool(rule_of(eqn).reduced)


def _carries(eqn: Equation, value: Value) -> bool:
    """Whether a loop carries a value, or takes it whole."""
    return bool(eqn.regions) and any(v is value and a.role != "sliced" for v, a in pairs(eqn))


def _is_gate(eqn: Equation) -> bool:
    """Of one that is not replaced."""
    return None in rule_of(eqn).index.values()


def _names(eqn: Equation, names: Names) -> Names:
    """What an equation calls dimensions that something before it calls so."""
    found = ((old, alike, after(eqn, new) if new else (None, frozenset())) for old, new, alike in names)
    return tuple((old, new, alike | further) for old, alike, (new, further) in found)


def _bytes_after(eqn: Equation, path: _Path) -> int:
    """The fewest on a way that goes on through an equation: where it is distributed, only what it looks at goes through."""
    bridge = bridge_of(eqn)
    least = min(path.bytes, eqn.results[0].type.local_bytes(SINGLE))
    return int(least * bridge.share) if bridge else least


@attrs.frozen
class _Path:
    """From where data is made to some value: what is on it, what the dimensions of the first are called at its end."""

    values: tuple[Value, ...]
    names: Names
    bytes: int
    gates: tuple[Gate, ...] = ()


@attrs.frozen
class _Finder:
    """In a function, or a loop's region, of which `ends` are what is carried on."""

    naming: Naming
    sure: Sure
    uses: Uses
    outputs: frozenset[Value]
    ends: frozenset[Value]
    trips: int
    names: dict[tuple[Equation, str], Dims] = attrs.field(factory=dict)

    def counts(self, eqn: Equation) -> bool:
        return not eqn.regions and eqn.stage != "update" and self.sure(eqn)

    def moves(self, source: Value, reduced: Iterable[str] = ()) -> Iterator[Move]:
        """What is made of a value; nothing where it keeps all of its names."""
        own, ways = self.naming.own[source], {way.names: way for way in self.ways(source)}
        changing = [way for names, way in ways.items() if any(a != b or alike for a, b, alike in names)]
        if changing:
            yield Move(own, (*sorted(own), *reduced), tuple(changing), self.trips)

    def ways(self, source: Value) -> Iterator[Way]:
        """A shortest one to each equation that stays, or loop."""
        start: Names = tuple((name, name, frozenset()) for name in source.type.names)
        reached = {source: _Path((source,), start, source.type.local_bytes(SINGLE))}
        for value in (waiting := [source]):
            if value in self.ends or any(_carries(eqn, value) for eqn in self.uses.get(value, ())):
                yield self._carried(value, reached[value])
            for eqn in filter(self.counts, self.uses.get(value, ())):
                path, names = reached[value], _names(eqn, reached[value].names)
                if _stays(eqn):
                    gates = (*path.gates, self._gate(eqn, value, path))
                    yield Way(names, path.values, path.bytes, self._dims(path), gates)
                elif len(eqn.results) == 1 and eqn.results[0] not in reached:
                    gates = (*path.gates, self._gate(eqn, value, path)) if _is_gate(eqn) else path.gates
                    values = (*path.values, eqn.results[0])
                    reached[eqn.results[0]] = _Path(values, names, _bytes_after(eqn, path), gates)
                    waiting.append(eqn.results[0])

    def _carried(self, value: Value, path: _Path) -> Way:
        carriers = tuple(
            (dim.size, frozenset((dim.name,)), frozenset[tuple[str, str]]()) for dim in value.type.dims
        )
        gate = Gate(path.bytes, self._dims(path), carriers)
        return Way(path.names, path.values, path.bytes, gate.dims, (*path.gates, gate))

    def _dims(self, path: _Path) -> Dims:
        return frozenset[str]().union(*(self.naming.names[value] for value in path.values))

    def _gate(self, eqn: Equation, operand: Value, path: _Path) -> Gate:
        index = [(dim.size, *after(eqn, dim.name)) for dim in operand.type.dims]
        carriers = tuple((size, self._names(eqn, name), alike) for size, name, alike in index if name)
        bridge = bridge_of(eqn)
        return Gate(int(path.bytes * (bridge.share if bridge else 1)), self._dims(path), carriers)

    def _names(self, eqn: Equation, name: str) -> Dims:
        if (eqn, name) not in self.names:
            self.names[eqn, name] = self._called(eqn, name)
        return self.names[eqn, name]

    def _called(self, eqn: Equation, name: str) -> Dims:
        """The names that a dimension of an equation's iteration space has there, and wherever its results are used."""
        found: set[str] = set()
        met = {(eqn, name)}
        for each, here in (waiting := [(eqn, name)]):
            found.add(called(each, here))
            if each.regions or _stays(each):
                continue
            if not self.outputs.isdisjoint(each.results):
                found |= {f"{PARAMS}{here}", f"{OPTIMIZER}{here}"}
            for user in (user for value in each.results for user in self.uses.get(value, ())):
                further = here if user.regions else after(user, here)[0]
                if further is not None and (user, further) not in met:
                    met.add((user, further))
                    waiting.append((user, further))
        return frozenset(found)
