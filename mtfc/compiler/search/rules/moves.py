"""What must be gathered or exchanged because it is made in one layout and used in another.

Equations that reduce a dimension are laid out by the rules, whatever is around them. All others may follow their uses, or what
they are made of, so somewhere between two that reduce, through the others, data gets from one layout to the other. An axis that
splits the first result and nothing of what the second one reads must be gathered, one that splits a dimension no longer at least
be exchanged: at the size that the data has somewhere on the way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import attrs

from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.loops import dim_of, region_of
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.search.rules.arrays import SINGLE, Sure
from mtfc.compiler.search.rules.naming import OPTIMIZER, PARAMS, Dims, Naming, called

Names = tuple[tuple[str, str | None], ...]

Carriers = tuple[tuple[int, Dims], ...]


@attrs.frozen
class Gate:
    """An equation that data passes only so split as it, or what uses it, is; before it there are at least so many bytes.

    carriers: the sizes of dimensions of its operand that it does not need whole, and under which names they may be split then.
    dims: all dimensions that something before it may be split along.
    """

    bytes: int
    dims: Dims
    carriers: Carriers


@attrs.frozen
class Way:
    """A way of data to an equation that stays: the values on it, and the fewest bytes on it.

    names: what that one calls the dimensions that the data is made under; None for one that it needs whole, or that is whole on
    the way. dims: all dimensions that something on the way may be split along. gates: the last is the equation that stays.
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
    """Of the results of a function, and of the loops in it."""
    uses: dict[Value, list[Equation]] = defaultdict(list)
    for eqn in function.body:
        if eqn.regions:
            yield from moves_of(region_of(eqn), naming, sure, trips * dim_of(eqn).size)
        for value in dict.fromkeys(eqn.operands):
            uses[value].append(eqn)
    finder = _Finder(naming, sure, uses, frozenset(output.value for output in function.outputs))
    for eqn in function.body:
        if finder.counts(eqn) and _stays(eqn):
            own = naming.own[eqn.results[0]]
            reduced = (dim.name for dim in OPS[eqn.op].layout_rule(eqn).reduced)
            ways = {way.names: way for way in finder.ways(eqn.results[0])}
            changing = tuple(way for names, way in ways.items() if any(a != b for a, b in names))
            if changing:
                yield Move(own, (*sorted(own), *reduced), changing, trips)


def _stays(eqn: Equation) -> bool:
    return bool(OPS[eqn.op].layout_rule(eqn).reduced)


@attrs.frozen
class _Path:
    """From where data is made to some value: what is on it, what the dimensions of the first are called at its end."""

    values: tuple[Value, ...]
    names: Names
    gates: tuple[Gate, ...] = ()

    @property
    def bytes(self) -> int:
        return min(value.type.local_bytes(SINGLE) for value in self.values)


@attrs.frozen
class _Finder:
    naming: Naming
    sure: Sure
    uses: Uses
    outputs: frozenset[Value]

    def counts(self, eqn: Equation) -> bool:
        return not eqn.regions and eqn.stage != "update" and self.sure(eqn)

    def ways(self, source: Value) -> Iterator[Way]:
        """A shortest one to each equation that stays."""
        start: Names = tuple((name, name) for name in source.type.names)
        reached = {source: _Path((source,), start)}
        for value in (waiting := [source]):
            for eqn in filter(self.counts, self.uses.get(value, ())):
                path, rule = reached[value], OPS[eqn.op].layout_rule(eqn)
                names = tuple((old, new and rule.index.get(new, new)) for old, new in path.names)
                if _stays(eqn):
                    gates = (*path.gates, self._gate(eqn, value, path))
                    yield Way(names, path.values, path.bytes, self._dims(path), gates)
                elif len(eqn.results) == 1 and eqn.results[0] not in reached:
                    is_gate = None in rule.index.values() and OPS[eqn.op].distribute is None
                    gates = (*path.gates, self._gate(eqn, value, path)) if is_gate else path.gates
                    reached[eqn.results[0]] = _Path((*path.values, eqn.results[0]), names, gates)
                    waiting.append(eqn.results[0])

    def _dims(self, path: _Path) -> Dims:
        return frozenset[str]().union(*(self.naming.names[value] for value in path.values))

    def _gate(self, eqn: Equation, operand: Value, path: _Path) -> Gate:
        rule = OPS[eqn.op].layout_rule(eqn)
        index = [(dim.size, rule.index.get(dim.name, dim.name)) for dim in operand.type.dims]
        carriers = tuple((size, self._called(eqn, name)) for size, name in index if name is not None)
        return Gate(path.bytes, self._dims(path), carriers)

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
                index = {} if user.regions else OPS[user.op].layout_rule(user).index
                further = index.get(here, here)
                if further is not None and (user, further) not in met:
                    met.add((user, further))
                    waiting.append((user, further))
        return frozenset(found)
