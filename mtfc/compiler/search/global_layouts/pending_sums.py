"""Sums that must be completed.

A sum over a split dimension must be completed before it meets an equation that is not linear, or one that is split over the same
axes itself: somewhere along a `Route` through linear equations, at the size that it has there.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import count

import attrs

from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.loops import dim_of, pairs, region_of
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.search.global_layouts.dimension_names import Dims, Naming, called, iteration, rule_of
from mtfc.compiler.search.global_layouts.named_arrays import (
    Array,
    Sure,
    array_of,
    bridge_of,
    item_bytes,
    own_dims,
    part,
)


@attrs.frozen
class Stop:
    """A place where a sum can be completed: an array of the dimensions `own`, `array.dims` with those that it may have besides.

    made: those of `own` that surely split it, as what makes it does not need them whole. crossed: the dimensions of the linear
    equation that leads here from the stop before; moved: those under which that one, or what needs the sum in the end, knows
    dimensions of the array before, or is laid out as it follows its uses. readers: equations of the same function that read what
    is completed here. counts: whether that may cost less than before.
    """

    value: Value
    array: Array
    own: Dims
    made: Dims
    crossed: Dims
    moved: Dims
    readers: tuple[Equation, ...]
    counts: bool = True


@attrs.frozen
class Route:
    """From an equation that sums over `reduced` to where its sum is needed; `moved` as for a stop, of what needs it.

    item_bytes: the fewest bytes of an element on the way.
    """

    reduced: Dims
    stops: tuple[Stop, ...]
    moved: Dims
    item_bytes: int


def routes_of(function: Function, naming: Naming, sure: Sure) -> tuple[Route, ...]:
    """One for each sum of a function that some use needs."""
    graph = _Graph(naming, sure)
    graph.function(function)
    return tuple(graph.routes())


def thinned(routes: Sequence[Route], longer: Container[Value]) -> tuple[Route, ...]:
    """Without stops that never matter: all sums that come there have been at one, the same for all, where completing them cost no
    more. `longer` are the values in which that costs something besides.
    """
    cheaper: dict[Value, set[Value]] = {}
    for route in routes:
        plain: dict[object, set[Value]] = defaultdict(set)
        for stop in route.stops:
            array = stop.array
            before = plain[stop.own, stop.made, array]
            cheaper[stop.value] = cheaper.get(stop.value, before) & before
            if stop.value not in longer:
                before.add(stop.value)
    needless = {value for value, others in cheaper.items() if others}
    return tuple(_thinned(route, needless) for route in routes)


def _thinned(route: Route, needless: Container[Value]) -> Route:
    """What is crossed counts as long as it was not crossed before."""
    kept: list[Stop] = []
    for stop in route.stops:
        counts = stop.value not in needless
        if counts or not any(stop.crossed <= b.crossed and stop.moved <= b.moved for b in kept):
            kept.append(attrs.evolve(stop, counts=counts))
    return attrs.evolve(route, stops=tuple(kept))


@attrs.frozen
class _Way:
    """A linear use of a value: what it makes, by which equation, and the dimensions as in `Stop`."""

    to: Value
    by: Equation | None = None
    crossed: Dims = frozenset()
    moved: Dims = frozenset()


@attrs.frozen
class _Graph:
    """How sums pass through a program.

    whole: dimensions that a value is made whole along. needed: values that some use needs complete, and `moved` of such a use;
    needing: the equations among such uses.
    sources: results that may be left as sums, over which dimensions, and whether they may pass on.
    """

    naming: Naming
    sure: Sure
    arrays: dict[Value, Array] = attrs.field(factory=dict)
    whole: dict[Value, Dims] = attrs.field(factory=dict)
    ways: dict[Value, list[_Way]] = attrs.field(factory=lambda: defaultdict(list))
    needed: dict[Value, Dims] = attrs.field(factory=dict)
    needing: dict[Value, list[Equation]] = attrs.field(factory=lambda: defaultdict(list))
    sources: list[tuple[Equation, Dims, bool]] = attrs.field(factory=list)

    def function(self, function: Function) -> None:
        self._body(function, 1)
        for output in function.outputs:
            stored = self.naming.stored.get(output.updates or "", frozenset())
            self._needs(output.value, stored - self._made(output.value) | self._unmade(output.value))

    def _body(self, function: Function, trips: int) -> None:
        values = [a.value for a in function.arguments] + [v for eqn in function.body for v in eqn.results]
        self.arrays.update({value: array_of(value, self.naming, trips) for value in values})
        for eqn in function.body:
            if eqn.regions:
                self._loop(eqn, trips)
            elif self.sure(eqn):
                self._equation(eqn)

    def _equation(self, eqn: Equation) -> None:
        rule = rule_of(eqn)
        names = (self.naming.names[each] - self.naming.own[each] for each in eqn.results)
        further = frozenset[str]().union(*(() if rule.reduced else names))
        linear = {i for group in OPS[eqn.op].linear(eqn) for i in group} if len(eqn.results) == 1 else set()
        for i, value in enumerate(eqn.operands):
            moved = (iteration(eqn, rule, value) | further) - self._made(value)
            if i in linear:
                self.ways[value].append(_Way(eqn.result, eqn, own_dims(eqn, rule), moved))
            else:
                self._needs(value, moved)
                self.needing[value].append(eqn)
            self._bridge(eqn, value)
        self.whole[eqn.results[0]] = frozenset(called(eqn, name) for name in rule.whole)
        if rule.reduced:
            reduced = frozenset(called(eqn, dim.name) for dim in rule.reduced)
            self.sources.append((eqn, reduced, rule.reduction == "sum"))

    def _bridge(self, eqn: Equation, value: Value) -> None:
        """Where an equation is distributed, a sum may be completed within: of that part of an array that it looks at."""
        if (bridge := bridge_of(eqn)) is not None:
            for each in (value, eqn.results[0]):
                self.arrays[each] = part(self.arrays[each], bridge.share)

    def _needs(self, value: Value, moved: Dims) -> None:
        """Of several uses one that knows the value's dimensions under their own names counts."""
        self.needed[value] = self.needed.get(value, moved) & moved

    def _loop(self, eqn: Equation, trips: int) -> None:
        """A sum may go around with what is carried, and leave as a stack."""
        region = region_of(eqn)
        self._body(region, trips * dim_of(eqn).size)
        carries = {a.value.name: a.value for a in region.arguments if a.role == "carried"}
        for operand, argument in pairs(eqn):
            if argument.role == "carried":
                self.ways[operand].append(_Way(argument.value, moved=self._unmade(operand)))
            else:
                self._needs(operand, self._unmade(operand))
        for result, output in zip(eqn.results, region.outputs, strict=True):
            leaving = (result, carries[output.updates]) if output.updates else (result,)
            moved = self._unmade(output.value)
            self.ways[output.value] += (_Way(value, moved=moved) for value in leaving)

    def routes(self) -> Iterator[Route]:
        """For each sum the route whose smallest array is largest, as it must be completed on every one; and where that goes on
        to the next iteration of a loop, one that leaves the loop there.
        """
        following = self._widest()
        for eqn, reduced, may_pass in self.sources:
            value = eqn.results[0]
            if value not in following:
                continue
            ways = list(self._ways(value, following)) if may_pass else []
            yield self._route(eqn, reduced, ways)
            for i, way in enumerate(ways):
                if other := self._leaving(way, ways[i - 1].to if i else value, following):
                    yield self._route(eqn, reduced, [*ways[:i], other, *self._ways(other.to, following)])

    def _ways(self, value: Value, following: Mapping[Value, _Way | None]) -> Iterator[_Way]:
        while (way := following[value]) is not None:
            yield way
            value = way.to

    def _leaving(self, way: _Way, value: Value, following: Mapping[Value, _Way | None]) -> _Way | None:
        """Instead of a way to the next iteration of a loop, the one that leaves it."""
        others = [
            each for each in self.ways[value] if each.by is None and each is not way and each.to in following
        ]
        return others[0] if way.by is None and others else None

    def _route(self, eqn: Equation, reduced: Dims, ways: Sequence[_Way]) -> Route:
        reached = (_Way(eqn.results[0]), *ways)
        stops = [self._stop(way, after) for way, after in zip(reached, (*ways, None), strict=True)]
        moved = self.needed.get(stops[-1].value, frozenset())
        item = min(item_bytes(stop.value) for stop in stops)
        return Route(reduced, tuple(stops), moved, item)

    def _stop(self, way: _Way, after: _Way | None) -> Stop:
        own, made = self.naming.own[way.to], self._made(way.to)
        readers = tuple(self.needing[way.to]) if after is None else (after.by,) if after.by else ()
        return Stop(way.to, self.arrays[way.to], own, made, way.crossed, way.moved, readers)

    def _made(self, value: Value) -> Dims:
        return self.naming.own[value] - self.whole.get(value, frozenset())

    def _unmade(self, value: Value) -> Dims:
        """Dimensions along which loops have a value that is made whole along them."""
        return self.naming.own[value] & self.whole.get(value, frozenset())

    def _widest(self) -> dict[Value, _Way | None]:
        """For each value that is needed in the end the next way there on its widest route; None where it is needed itself."""
        before: dict[Value, list[tuple[Value, _Way]]] = defaultdict(list)
        for value, ways in self.ways.items():
            for way in ways:
                before[way.to].append((value, way))
        order = count()
        queue: list[tuple[int, int, int, Value, _Way | None]] = [
            (-self._size(value), 0, next(order), value, None) for value in self.needed
        ]
        heapq.heapify(queue)
        found: dict[Value, _Way | None] = {}
        while queue:
            width, steps, _, value, onward = heapq.heappop(queue)
            if value in found:
                continue
            found[value] = onward
            for earlier, through in before[value]:
                narrow = max(width, -self._size(earlier))
                heapq.heappush(queue, (narrow, steps + 1, next(order), earlier, through))
        return found

    def _size(self, value: Value) -> int:
        return self.arrays[value].bytes * self.arrays[value].trips
