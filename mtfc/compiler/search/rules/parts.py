"""What a step is made of, as far as a bound for it needs to know: work, sums that must be completed, parameters to be gathered.

It is read once from the undistributed program; `bound.py` says what it costs on a mesh. An equation of the program under a layout
does at least its part of the work: what the layout rule lets be computed in parts, split over all axes of its dimensions. And a
sum over a split dimension must be completed before it meets an equation that is not linear, or one that is split over the same
axes itself: somewhere along a `Route` through linear equations, at the size that it has there.

Under which rules a dimension is split depends on where it is met (`naming.py`): those of the computation, of parameters, or of
the optimizer's state.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import count

import attrs

from mtfc.compiler.analysis.memory import held
from mtfc.compiler.analysis.roofline import Memory
from mtfc.compiler.analysis.sizes import Numbers
from mtfc.compiler.hardware import Device
from mtfc.compiler.ir.core import Equation, Function, Value, walk
from mtfc.compiler.ir.loops import dim_of, pairs, region_of
from mtfc.compiler.ir.opdef import BY_NAME, LayoutRule
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.types import ITEM_BYTES, Mesh
from mtfc.compiler.search.rules.naming import Dims, Naming, called, computed, iteration

SINGLE = Mesh("single", ())


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
    """A place where a sum can be completed: an array of the dimensions `own`, `array.dims` with those that it may have besides.

    crossed: the dimensions of the linear equation that leads here from the stop before; moved: those under which that one, or
    what needs the sum in the end, knows dimensions of the array before.
    """

    value: Value
    array: Array
    own: Dims
    crossed: Dims = frozenset()
    moved: Dims = frozenset()


@attrs.frozen
class Route:
    """From an equation that sums over `reduced` to where its sum is needed; `moved` as for a stop, of what needs it.

    in_update: whether it begins there. item_bytes: the fewest bytes of an element on the way.
    """

    reduced: Dims
    stops: tuple[Stop, ...]
    moved: Dims
    in_update: bool
    item_bytes: int


@attrs.frozen
class Gather:
    """Something that is stored as `array` says and used under the dimensions `own`."""

    array: Array
    own: Dims


@attrs.frozen
class Parts:
    """gathered_bytes: the fewest bytes of an element of a parameter that is gathered, 0 where some never is.

    held: bytes by their dimensions of arguments and gradients; alive: of what else there is when, undistributed, most is.
    """

    work: Mapping[Work, int]
    routes: tuple[Route, ...]
    gathers: Mapping[Gather, int]
    gathered_bytes: int
    held: Mapping[Dims, int]
    alive: Mapping[Dims, int]


def parts_of(function: Function, device: Device) -> Parts:
    """Of an undistributed function: its work, each with how often it occurs, its sums, and the parameters that it uses."""
    naming = Naming.of(function)
    graph = _Graph(naming)
    graph.function(function)
    gathers = list(_gathers(function, naming))
    return Parts(
        Counter(_work(function, naming, device, 1)),
        tuple(graph.routes()),
        Counter(gather for gather, _ in gathers),
        min((item for _, item in gathers), default=0) if _all_are_used(function) else 0,
        _bytes(_arguments_and_gradients(function), naming),
        _bytes(_alive(function), naming),
    )


def _arguments_and_gradients(function: Function) -> Iterator[Value]:
    yield from (argument.value for argument in function.arguments)
    yield from held(function, SINGLE)[0]


def _alive(function: Function) -> Iterator[Value]:
    """Nothing is sure where products have several operands, nor of scalars, some of which combine-collectives makes later."""
    if all(map(_is_ordered, walk(function.body))):
        yield from (value for value in held(function, SINGLE)[1] if value.type.dims)


def _bytes(values: Iterable[Value], naming: Naming) -> dict[Dims, int]:
    """Bytes by dimensions."""
    found: dict[Dims, int] = defaultdict(int)
    for value in values:
        found[naming.names[value]] += value.type.local_bytes(SINGLE)
    return found


# Work


def _work(function: Function, naming: Naming, device: Device, trips: int) -> Iterator[Work]:
    """What is sure; of what unsure equations make, it is not known whether it is stored."""
    sure = tuple(eqn for eqn in function.body if _is_sure(eqn))
    memory = Memory(attrs.evolve(function, body=sure), SINGLE)
    known = {*memory.makers, *(argument.value for argument in function.arguments)}
    for eqn in sure:
        if eqn.regions:
            yield from _work(region_of(eqn), naming, device, trips * dim_of(eqn).size)
        elif OPS[eqn.op].storage not in ("view", "made"):
            yield _of_equation(eqn, memory, known, naming, device, trips)


def _of_equation(
    eqn: Equation, memory: Memory, known: set[Value], naming: Naming, device: Device, trips: int
) -> Work:
    written = [(_array(value, naming),) for value in eqn.results if value in memory.stored]
    views = [memory.views(value) for value in dict.fromkeys(eqn.operands)]
    read = [tuple(_array(v, naming) for v in each) if known.issuperset(each) else () for each in views]
    if OPS[eqn.op].storage == "lookup":
        read[0] = (*read[0], _array(eqn.result, naming)) if read[0] else ()
    dtype = (eqn.operands or eqn.results)[0].type.dtype
    return Work(
        seconds=OPS[eqn.op].flops(eqn, Numbers(SINGLE)) / device.rate(dtype).peak,
        dims=_split(eqn, naming),
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


def _split(eqn: Equation, naming: Naming) -> Dims:
    """The dimensions of the iteration space that can be computed in parts, under whatever name."""
    rule = OPS[eqn.op].layout_rule(eqn)
    if rule.reduced:
        return _own(eqn, rule)
    whole = {called(eqn, name) for name in rule.whole}
    return frozenset().union(*(naming.names[value] for value in eqn.results)) - whole


def _own(eqn: Equation, rule: LayoutRule) -> Dims:
    """The same, under the equation's own names."""
    kept = {dim.name for value in eqn.results for dim in value.type.dims} - rule.whole
    return frozenset(called(eqn, name) for name in (*kept, *(dim.name for dim in rule.reduced)))


def _array(value: Value, naming: Naming, trips: int = 1) -> Array:
    return Array(value.type.local_bytes(SINGLE), naming.names[value], trips)


# Parameters


def _gathers(function: Function, naming: Naming) -> Iterator[tuple[Gather, int]]:
    """What is used, or leaves, under other rules than it is stored or made under; with the bytes of an element."""
    uses = _uses(function)
    for argument in function.arguments:
        if argument.role == "parameter":
            for size, item, value in _used(argument.value, uses, 1):
                own = computed(naming.names[value])
                yield Gather(Array(size, naming.own[argument.value] | own), own), item
    for output in function.outputs:
        if output.updates is not None:
            value = output.value
            wanted = naming.stored[output.updates]
            yield (
                Gather(Array(value.type.local_bytes(SINGLE), naming.own[value] | wanted), wanted),
                item_bytes(value),
            )


Used = tuple[int, int, Value]
"""Of a parameter where the computation uses it: bytes, those of an element, and what it is there."""


def _all_are_used(function: Function) -> bool:
    uses = _uses(function)
    return all(_used(a.value, uses, 1) for a in function.arguments if a.role == "parameter")


def _uses(function: Function) -> dict[Value, list[Equation]]:
    uses: dict[Value, list[Equation]] = defaultdict(list)
    for eqn in walk(function.body):
        for value in dict.fromkeys(eqn.operands):
            uses[value].append(eqn)
    return uses


def _used(value: Value, uses: Mapping[Value, list[Equation]], trips: int) -> list[Used]:
    """How a parameter is used, at the fewest bytes on the way: once for each loop that takes slices of it, and once outside.

    What is made of it and used outside of loops is not stored as it is.
    """
    loops: list[Used] = []
    outside: list[Used] = []
    for eqn in uses.get(value, ()):
        if eqn.regions:
            loops += _in_loop(eqn, value, uses, trips)
        elif OPS[eqn.op].layout_rule(eqn) is BY_NAME and len(eqn.operands) == 1 and eqn.stage != "update":
            only_sliced = all(user.regions for user in uses.get(eqn.result, ()))
            (loops if only_sliced else outside).extend(_used(eqn.result, uses, trips))
        elif eqn.stage != "update" and _is_sure(eqn) and _keeps_names(eqn, value):
            outside.append((value.type.local_bytes(SINGLE) * trips, item_bytes(value), value))
    size, item = value.type.local_bytes(SINGLE) * trips, item_bytes(value)
    found = [*loops, *sorted(outside, key=lambda each: each[0])[:1]]
    return [(min(size, bytes), min(item, each), used) for bytes, each, used in found]


def _keeps_names(eqn: Equation, value: Value) -> bool:
    rule = OPS[eqn.op].layout_rule(eqn)
    return all(rule.index.get(name, name) == name for name in value.type.names)


def _in_loop(eqn: Equation, value: Value, uses: Mapping[Value, list[Equation]], trips: int) -> list[Used]:
    inside = next(argument for operand, argument in pairs(eqn) if operand is value)
    if inside.role != "sliced":
        return []
    return _used(inside.value, uses, trips * dim_of(eqn).size)[:1]


def item_bytes(value: Value) -> int:
    return ITEM_BYTES[value.type.dtype]


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

    naming: Naming
    arrays: dict[Value, Array] = attrs.field(factory=dict)
    ways: dict[Value, list[_Way]] = attrs.field(factory=lambda: defaultdict(list))
    needed: dict[Value, Dims] = attrs.field(factory=dict)
    sources: list[tuple[Equation, Dims, bool]] = attrs.field(factory=list)

    def function(self, function: Function) -> None:
        self._body(function, 1)
        for output in function.outputs:
            stored = self.naming.stored.get(output.updates or "", frozenset())
            self._needs(output.value, stored - self.naming.own[output.value])

    def _body(self, function: Function, trips: int) -> None:
        values = [a.value for a in function.arguments] + [v for eqn in function.body for v in eqn.results]
        self.arrays.update({value: _array(value, self.naming, trips) for value in values})
        for eqn in function.body:
            if eqn.regions:
                self._loop(eqn, trips)
            elif _is_sure(eqn):
                self._equation(eqn)

    def _equation(self, eqn: Equation) -> None:
        rule = OPS[eqn.op].layout_rule(eqn)
        linear = {i for group in OPS[eqn.op].linear(eqn) for i in group} if len(eqn.results) == 1 else set()
        for i, value in enumerate(eqn.operands):
            moved = iteration(eqn, rule, value) - self.naming.own[value]
            if i in linear:
                self.ways[value].append(_Way(eqn.result, _own(eqn, rule), moved))
            else:
                self._needs(value, moved)
        if rule.reduced:
            reduced = frozenset(called(eqn, dim.name) for dim in rule.reduced)
            self.sources.append((eqn, reduced, rule.reduction == "sum"))

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
        for eqn, reduced, may_pass in self.sources:
            value = eqn.results[0]
            if value not in following:
                continue
            stops = [self._stop(_Way(value))]
            way = following[value] if may_pass else None
            while way is not None:
                stops.append(self._stop(way))
                way = following[way.to]
            moved = self.needed.get(stops[-1].value, frozenset())
            item = min(item_bytes(stop.value) for stop in stops)
            yield Route(reduced, tuple(stops), moved, eqn.stage == "update", item)

    def _stop(self, way: _Way) -> Stop:
        return Stop(way.to, self.arrays[way.to], self.naming.own[way.to], way.crossed, way.moved)

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
