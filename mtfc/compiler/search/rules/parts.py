"""What a step is made of, as far as a bound for it needs to know: work, and sums that must be completed.

It is read once from the undistributed program; `bound.py` says what it costs on a mesh. An equation of the program under a layout
does at least its part of the work: what the layout rule lets be computed in parts, split over all axes of its dimensions. And a
sum over a split dimension must be completed before it meets an equation that is not linear, or one that is split over the same
axes itself: somewhere along a `Route` through linear equations, at the size that it has there.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from itertools import count

import attrs

from mtfc.compiler.analysis.memory import held
from mtfc.compiler.analysis.roofline import Memory
from mtfc.compiler.analysis.sizes import Numbers
from mtfc.compiler.hardware import Device
from mtfc.compiler.ir.core import Equation, Function, Value, walk
from mtfc.compiler.ir.loops import dim_of, pairs, region_of
from mtfc.compiler.ir.opdef import LayoutRule
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.types import Mesh

SINGLE = Mesh("single", ())

Dims = frozenset[str]


@attrs.frozen
class Array:
    """So many bytes when whole, of these dimensions, `trips` times in a step."""

    bytes: int
    dims: Dims
    trips: int = 1


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


@attrs.frozen
class Stop:
    """A place where a sum can be completed: the array there; `crossed` are the dimensions of the linear equation that leads to it
    from the stop before, and `moved` those under which that one knows dimensions of the array before.
    """

    value: Value
    array: Array
    crossed: Dims = frozenset()
    moved: Dims = frozenset()


@attrs.frozen
class Route:
    """From an equation that sums over `reduced` to where its sum is needed; `moved` as for a stop, of what needs it."""

    reduced: Dims
    stops: tuple[Stop, ...]
    moved: Dims


@attrs.frozen
class Parts:
    """held: bytes by their dimensions of what is in memory when, undistributed, most is."""

    work: Mapping[Work, int]
    routes: tuple[Route, ...]
    held: Mapping[Dims, int]


def parts_of(function: Function, device: Device) -> Parts:
    """Of an undistributed function: its work, each with how often it occurs, and its sums."""
    graph = _Graph()
    graph.function(function)
    return Parts(Counter(_work(function, device, 1)), tuple(graph.routes()), _held(function, graph.arrays))


def _held(function: Function, arrays: Mapping[Value, Array]) -> dict[Dims, int]:
    """Only arguments and gradients where products have several operands; no scalars, as combine-collectives makes some later."""
    gradients, alive, _ = held(function, SINGLE)
    arguments = (argument.value for argument in function.arguments)
    tensors = (
        [value for value in alive if value.type.dims] if all(map(_is_ordered, walk(function.body))) else []
    )
    found: dict[Dims, int] = defaultdict(int)
    for value in (*arguments, *gradients, *tensors):
        found[arrays[value].dims] += value.type.local_bytes(SINGLE)
    return found


# Names

Names = Mapping[Value, Dims]


def names_in(function: Function) -> Names:
    """For each value the dimensions along which it may be split: its own, and those that they are called in what is made of it.

    Component-wise equations may be laid out as what uses them (the pass follow-uses), and so be split over the axes of those.
    """
    names: dict[Value, Dims] = {}
    for eqn in (each for each in reversed(function.body) if not each.regions):
        rule = OPS[eqn.op].layout_rule(eqn)
        later = frozenset().union(*(names.get(value, frozenset()) for value in eqn.results))
        for value in eqn.operands:
            index = {name: rule.index.get(name, name) for name in value.type.names}
            called = frozenset(name for name in index.values() if name is not None)
            further = later - {name for result in eqn.results for name in result.type.names}
            names[value] = names.get(value, frozenset()) | (called if rule.reduced else called | further)
    every = {
        *names,
        *(v for eqn in function.body for v in eqn.results),
        *(a.value for a in function.arguments),
    }
    return {value: names.get(value, frozenset()) | set(value.type.names) for value in every}


# Work


def _work(function: Function, device: Device, trips: int) -> Iterator[Work]:
    """What is sure; of what unsure equations make, it is not known whether it is stored."""
    names = names_in(function)
    sure = tuple(eqn for eqn in function.body if _is_sure(eqn))
    memory = Memory(attrs.evolve(function, body=sure), SINGLE)
    known = {*memory.makers, *(argument.value for argument in function.arguments)}
    for eqn in sure:
        if eqn.regions:
            yield from _work(region_of(eqn), device, trips * dim_of(eqn).size)
        elif OPS[eqn.op].storage not in ("view", "made"):
            yield _of_equation(eqn, memory, known, names, device, trips)


def _of_equation(
    eqn: Equation, memory: Memory, known: set[Value], names: Names, device: Device, trips: int
) -> Work:
    written = [(_array(value, names),) for value in eqn.results if value in memory.stored]
    views = [memory.views(value) for value in dict.fromkeys(eqn.operands)]
    read = [tuple(_array(v, names) for v in each) if known.issuperset(each) else () for each in views]
    if OPS[eqn.op].storage == "lookup":
        read[0] = (*read[0], _array(eqn.result, names)) if read[0] else ()
    dtype = (eqn.operands or eqn.results)[0].type.dtype
    return Work(
        seconds=OPS[eqn.op].flops(eqn, Numbers(SINGLE)) / device.rate(dtype).peak,
        dims=_split(eqn, names),
        moved=tuple(each for each in (*written, *read) if each),
        overhead=device.overhead if memory.is_stored(eqn) else 0.0,
        trips=trips,
    )


def _is_sure(eqn: Equation) -> bool:
    """Whether the equation is the same under every layout: some ops are distributed, and products of several operands are taken
    in an order that depends on the layout.
    """
    if eqn.regions:
        return True
    return OPS[eqn.op].distribute is None and _is_ordered(eqn)


def _is_ordered(eqn: Equation) -> bool:
    return eqn.op != "einsum" or len(eqn.operands) == 2


def _split(eqn: Equation, names: Names) -> Dims:
    """The dimensions of the iteration space that can be computed in parts, under whatever name."""
    rule = OPS[eqn.op].layout_rule(eqn)
    if rule.reduced:
        return _own(eqn, rule)
    return frozenset().union(*(names[value] for value in eqn.results)) - rule.whole


def _own(eqn: Equation, rule: LayoutRule) -> Dims:
    """The same, under the equation's own names."""
    kept = frozenset(dim.name for value in eqn.results for dim in value.type.dims) - rule.whole
    return kept | {dim.name for dim in rule.reduced}


def _array(value: Value, names: Names, trips: int = 1) -> Array:
    return Array(value.type.local_bytes(SINGLE), names[value], trips)


# Sums


@attrs.frozen
class _Way:
    """A linear use of a value: what it makes, and the dimensions as in `Stop`."""

    to: Value
    crossed: Dims = frozenset()
    moved: Dims = frozenset()


@attrs.frozen
class _Graph:
    """How sums pass through a program.

    needed: values that some use needs complete, and `moved` of such a use. sources: results that may be left as sums, over which
    dimensions, and whether they may pass on.
    """

    arrays: dict[Value, Array] = attrs.field(factory=dict)
    ways: dict[Value, list[_Way]] = attrs.field(factory=lambda: defaultdict(list))
    needed: dict[Value, Dims] = attrs.field(factory=dict)
    sources: list[tuple[Value, Dims, bool]] = attrs.field(factory=list)

    def function(self, function: Function) -> None:
        self._body(function, 1)
        for output in function.outputs:
            self._needs(output.value, frozenset())

    def _body(self, function: Function, trips: int) -> None:
        names = names_in(function)
        self.arrays.update({value: _array(value, names, trips) for value in names})
        for eqn in function.body:
            if eqn.regions:
                self._loop(eqn, trips)
            elif _is_sure(eqn):
                self._equation(eqn)

    def _equation(self, eqn: Equation) -> None:
        rule = OPS[eqn.op].layout_rule(eqn)
        linear = {i for group in OPS[eqn.op].linear(eqn) for i in group} if len(eqn.results) == 1 else set()
        for i, value in enumerate(eqn.operands):
            moved = _moved(value, rule)
            if i in linear:
                self.ways[value].append(_Way(eqn.result, _own(eqn, rule), moved))
            else:
                self._needs(value, moved)
        if rule.reduced:
            reduced = frozenset(dim.name for dim in rule.reduced)
            self.sources.append((eqn.results[0], reduced, rule.reduction == "sum"))

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
                self.ways[operand].append(_Way(argument.value))
            else:
                self._needs(operand, frozenset())
        for result, output in zip(eqn.results, region.outputs, strict=True):
            leaving = (result, carries[output.updates]) if output.updates else (result,)
            self.ways[output.value] += map(_Way, leaving)

    def routes(self) -> Iterator[Route]:
        """For each sum the route whose smallest array is largest: the sum must be completed on every one."""
        following = self._widest()
        for value, reduced, may_pass in self.sources:
            if value not in following:
                continue
            stops = [Stop(value, self.arrays[value])]
            way = following[value] if may_pass else None
            while way is not None:
                stops.append(Stop(way.to, self.arrays[way.to], way.crossed, way.moved))
                way = following[way.to]
            yield Route(reduced, tuple(stops), self.needed.get(stops[-1].value, frozenset()))

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


def _moved(value: Value, rule: LayoutRule) -> Dims:
    """Dimensions of an equation that run along dimensions of an operand with other names."""
    named = ((name, rule.index.get(name, name)) for name in value.type.names)
    return frozenset(iteration for name, iteration in named if iteration not in (None, name))
