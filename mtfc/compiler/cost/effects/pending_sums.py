"""Completing pending sums: the facts that bound its seconds under every layout.

A dot whose summed dimension is split leaves a pending sum. The sum must be completed before an equation that is not linear, or
that is split over the same axes itself. So it is completed somewhere along a `SumRoute` through linear equations, at the size
that it has there.
"""

import heapq
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import count
from typing import TypeAlias

import attrs

from mtfc.compiler.analysis.dimension_names import (
    DimensionNames,
    Dims,
    IsCommon,
    bridge_of,
    called,
    iteration,
    own_dims,
    rule_of,
)
from mtfc.compiler.cost.lower_bounds import CommonProgram, WholeArray
from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.loops import dim_of, outputs_of, pairs, region_of
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.sharding_rules import leaves_sums, linear_operands


@attrs.frozen
class SumStop:
    """A value in which a sum can be completed; its dimensions are `own`, and `array.dims` with further names.

    made: dimensions of `own` that surely split the value, as its equation does not need them whole. crossed: dimensions of the
    linear equation that leads here from the stop before. moved: names that this equation, or the end of the route, has for
    dimensions of the value before. readers: equations of the same function that read the completed value. counts: False if
    another stop is never worse.
    """

    value: Value
    array: WholeArray
    own: Dims
    made: Dims
    crossed: Dims
    moved: Dims
    readers: tuple[Equation, ...]
    counts: bool = True


@attrs.frozen
class SumRoute:
    """The stops from an equation that sums over `reduced` to a use that needs the sum. moved: see `SumStop`, for this use.

    starts: the number of collectives that complete the sum in a step.
    needing: all equations that need the sum complete, on this and other ways: those that are not linear, and those that have all
    summed dimensions.
    """

    reduced: Dims
    stops: tuple[SumStop, ...]
    moved: Dims
    starts: int = 1
    needing: tuple[Equation, ...] = ()


def sum_routes(program: CommonProgram) -> tuple[SumRoute, ...]:
    """Return a route for each pending sum that some use needs complete.

    Routes without few stops are those whose smallest array is largest, which bound single sums best. But a sum may then travel
    through all layers of a step, as the gradients of a residual stream are added.
    """
    graph = _SumGraph(program.names, program.is_common, program.has_short_routes)
    graph.function(program.function)
    return tuple(graph.routes())


def preceding(function: Function, routes: Sequence[SumRoute]) -> tuple[tuple[int, ...], ...]:
    """Return for each route the last routes whose sums are complete before its own sum arises, because it depends on them."""
    starts: dict[Value, int] = defaultdict(int)
    ends: dict[Equation, int] = defaultdict(int)
    for i, route in enumerate(routes):
        starts[route.stops[0].value] |= 1 << i
        for eqn in route.needing:
            ends[eqn] |= 1 << i
    sums_before: dict[Value, int] = defaultdict(int)

    def visit(body: Sequence[Equation], arisen: int) -> int:
        """Visit equations in order. A sum that a loop carries arises after its reader, in the iteration before."""
        for eqn in body:
            complete = ends.get(eqn, 0) & arisen
            for value in eqn.operands:
                complete |= sums_before[value]
            if eqn.regions:
                sums_before.update((argument.value, sums_before[value]) for value, argument in pairs(eqn))
                arisen = visit(region_of(eqn).body, arisen)
                for output in region_of(eqn).outputs:
                    complete |= sums_before[output.value]
            for value in eqn.results:
                sums_before[value] = complete
                arisen |= starts.get(value, 0)
        return arisen

    visit(function.body, 0)
    before_route = [sums_before[route.stops[0].value] for route in routes]
    return tuple(_last(each, before_route) for each in before_route)


def _last(some: int, before: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers of the routes in a set whose sums are not complete before another sum of the set arises.

    some: the set, as bits. before: for each route, the routes whose sums are complete before.
    """
    numbers = [i for i in range(some.bit_length()) if some >> i & 1]
    earlier = 0
    for i in numbers:
        earlier |= before[i]
    return tuple(i for i in numbers if not earlier >> i & 1)


def without_useless_stops(routes: Sequence[SumRoute], longer: Container[Value]) -> tuple[SumRoute, ...]:
    """Return the routes without useless stops.

    A stop is useless if all sums that reach it come from one earlier stop, where completing them costs no more. longer: values in
    which completing a sum makes kernels longer.
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


def _thinned(route: SumRoute, needless: Container[Value]) -> SumRoute:
    """Drop the useless stops of a route, except stops where the sum crosses dimensions for the first time."""
    kept: list[SumStop] = []
    for stop in route.stops:
        counts = stop.value not in needless
        if counts or not any(stop.crossed <= b.crossed and stop.moved <= b.moved for b in kept):
            kept.append(attrs.evolve(stop, counts=counts))
    return attrs.evolve(route, stops=tuple(kept))


@attrs.frozen
class _LinearUse:
    """A linear use of a value: its result, its equation, and dimensions as in `SumStop`. to: the result.

    by: the equation; None for the end of a loop's region.
    """

    to: Value
    by: Equation | None = None
    crossed: Dims = frozenset()
    moved: Dims = frozenset()


_QueuedRoute: TypeAlias = tuple[tuple[int, int], int, int, int, Value, _LinearUse | None]
"""The rank of a route to its end, the order of entries, its smallest array, its steps, its first value, and the next use."""


@attrs.frozen
class _SumGraph:
    """The linear uses through which sums pass.

    whole: dimensions that a value is made whole along. needed: values that some use needs complete, with `moved` of the use.
    needing: the equations among these uses. sources: equations that leave sums, the summed dimensions, and whether linear uses
    may pass the sums on.
    """

    names: DimensionNames
    is_common: IsCommon
    has_short_routes: bool = False
    arrays: dict[Value, WholeArray] = attrs.field(factory=dict)
    whole: dict[Value, Dims] = attrs.field(factory=dict)
    linear_uses: dict[Value, list[_LinearUse]] = attrs.field(factory=lambda: defaultdict(list))
    needed: dict[Value, Dims] = attrs.field(factory=dict)
    needing: dict[Value, list[Equation]] = attrs.field(factory=lambda: defaultdict(list))
    sources: list[tuple[Equation, Dims, bool]] = attrs.field(factory=list)

    def function(self, function: Function) -> None:
        """Add a function, whose outputs need complete sums."""
        self._body(function, 1)
        for output in function.outputs:
            stored = self.names.stored.get(output.updates or "", frozenset())
            self._needs(output.value, stored - self._made(output.value) | self._unmade(output.value))

    def _body(self, function: Function, trips: int) -> None:
        """Add the equations of a function or of a loop that runs `trips` times."""
        values = [a.value for a in function.arguments] + [v for eqn in function.body for v in eqn.results]
        self.arrays.update({value: WholeArray.of(value, self.names, trips) for value in values})
        for eqn in function.body:
            if eqn.regions:
                self._loop(eqn, trips)
            elif self.is_common(eqn):
                self._equation(eqn)

    def _equation(self, eqn: Equation) -> None:
        """Add an equation: its linear uses, its uses that need complete sums, and the sum that it leaves."""
        rule = rule_of(eqn)
        others = (self.names.names[each] - self.names.own[each] for each in eqn.results)
        further = frozenset[str]().union(*(() if rule.reduced else others))
        linear = linear_operands(OPS[eqn.op], eqn)
        for i, value in enumerate(eqn.operands):
            moved = (iteration(eqn, rule, value) | further) - self._made(value)
            if i in linear:
                self.linear_uses[value].append(_LinearUse(eqn.result, eqn, own_dims(eqn, rule), moved))
            else:
                self._needs(value, moved)
                self.needing[value].append(eqn)
            self._bridge(eqn, value)
        self.whole[eqn.results[0]] = frozenset(called(eqn, name) for name in rule.whole)
        if rule.reduced:
            reduced = frozenset(called(eqn, dim.name) for dim in rule.reduced)
            self.sources.append((eqn, reduced, leaves_sums(rule)))

    def _bridge(self, eqn: Equation, value: Value) -> None:
        """Shrink arrays to the part that an equation reads if it is replaced: a sum may be completed within the replacement."""
        if (bridge := bridge_of(eqn)) is not None:
            for each in (value, eqn.results[0]):
                self.arrays[each] = self.arrays[each].part(bridge.share)

    def _needs(self, value: Value, moved: Dims) -> None:
        """Note a use. If a value has several uses, only dimensions that all of them move count."""
        self.needed[value] = self.needed.get(value, moved) & moved

    def _loop(self, eqn: Equation, trips: int) -> None:
        """Add the uses of a loop: a sum may be carried to the next iteration, and may leave the loop stacked."""
        region = region_of(eqn)
        self._body(region, trips * dim_of(eqn).size)
        carries = {a.value.name: a.value for a in region.arguments if a.role == "carried"}
        for operand, argument in pairs(eqn):
            if argument.role == "carried":
                self.linear_uses[operand].append(_LinearUse(argument.value, moved=self._unmade(operand)))
            else:
                self._needs(operand, self._unmade(operand))
        for result, output in outputs_of(eqn):
            leaving = (result, carries[output.updates]) if output.updates else (result,)
            moved = self._unmade(output.value)
            self.linear_uses[output.value] += (_LinearUse(value, moved=moved) for value in leaving)

    def routes(self) -> Iterator[SumRoute]:
        """Yield a route for each sum; any route gives a bound.

        Where the route goes on to the next iteration of a loop, yield also one that leaves the loop there.
        """
        following = self._best_uses()
        for eqn, reduced, may_pass in self.sources:
            value = eqn.results[0]
            if value not in following:
                continue
            uses = list(self._uses_along(value, following)) if may_pass else []
            yield self._route(eqn, reduced, uses)
            for i, use in enumerate(uses):
                if other := self._leaving(use, uses[i - 1].to if i else value, following):
                    yield self._route(
                        eqn, reduced, [*uses[:i], other, *self._uses_along(other.to, following)]
                    )

    def _uses_along(self, value: Value, following: Mapping[Value, _LinearUse | None]) -> Iterator[_LinearUse]:
        """Yield the linear uses from a value to the end of its route."""
        while (use := following[value]) is not None:
            yield use
            value = use.to

    def _leaving(
        self, use: _LinearUse, value: Value, following: Mapping[Value, _LinearUse | None]
    ) -> _LinearUse | None:
        """Return the use out of a loop, in place of the use to the next iteration."""
        others = [
            each
            for each in self.linear_uses[value]
            if each.by is None and each is not use and each.to in following
        ]
        return others[0] if use.by is None and others else None

    def _route(self, eqn: Equation, reduced: Dims, uses: Sequence[_LinearUse]) -> SumRoute:
        """Return the route of the sum that an equation leaves, through some linear uses. reduced: the summed dimensions."""
        reached = (_LinearUse(eqn.results[0]), *uses)
        stops = [self._stop(use, after) for use, after in zip(reached, (*uses, None), strict=True)]
        moved = self.needed.get(stops[-1].value, frozenset())
        starts = min(stop.array.trips for stop in stops)
        return SumRoute(reduced, tuple(stops), moved, starts, tuple(self._needing(eqn, reduced)))

    def _needing(self, eqn: Equation, reduced: Dims) -> Iterator[Equation]:
        """Yield the equations that need a sum complete, whichever uses the sum passes through.

        reduced: the summed dimensions. A sum does not pass an equation that crosses them all.
        """
        found, waiting = {eqn.results[0]}, [eqn.results[0]]
        for value in waiting:
            yield from self.needing.get(value, ())
            for use in self.linear_uses.get(value, ()):
                if use.by is not None and reduced <= use.crossed:
                    yield use.by
                elif use.to not in found:
                    found.add(use.to)
                    waiting.append(use.to)

    def _stop(self, use: _LinearUse, after: _LinearUse | None) -> SumStop:
        """Return the stop at the result of a linear use. after: the next use on the route; None at its end."""
        own, made = self.names.own[use.to], self._made(use.to)
        readers = tuple(self.needing[use.to]) if after is None else (after.by,) if after.by else ()
        return SumStop(use.to, self.arrays[use.to], own, made, use.crossed, use.moved, readers)

    def _made(self, value: Value) -> Dims:
        """Return the dimensions along which a layout may split the computation of a value."""
        return self.names.own[value] - self.whole.get(value, frozenset())

    def _unmade(self, value: Value) -> Dims:
        """Return the dimensions along which a value is computed whole, but which loops may split."""
        return self.names.own[value] & self.whole.get(value, frozenset())

    def _best_uses(self) -> dict[Value, _LinearUse | None]:
        """Return for each value with a route the next use on its best route; None where the route ends."""
        before: dict[Value, list[tuple[Value, _LinearUse]]] = defaultdict(list)
        for value, uses in self.linear_uses.items():
            for use in uses:
                before[use.to].append((value, use))

        def entry(width: int, steps: int, value: Value, onward: _LinearUse | None) -> _QueuedRoute:
            rank = (steps, -width) if self.has_short_routes else (-width, steps)
            return rank, next(order), width, steps, value, onward

        order = count()
        queue = [entry(self._size(value), 0, value, None) for value in self.needed]
        heapq.heapify(queue)
        found: dict[Value, _LinearUse | None] = {}
        while queue:
            _, _, width, steps, value, onward = heapq.heappop(queue)
            if value in found:
                continue
            found[value] = onward
            for earlier, through in before[value]:
                narrow = min(width, self._size(earlier))
                heapq.heappush(queue, entry(narrow, steps + 1, earlier, through))
        return found

    def _size(self, value: Value) -> int:
        return self.arrays[value].bytes * self.arrays[value].trips
