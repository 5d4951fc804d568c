"""What a step is made of, as far as a bound for it needs to know: work, sums that must be completed, data that changes places.

It is read once from the undistributed program; `bound.py` says what it costs on a mesh. An equation of the program under a layout
does at least its part of the work: what the layout rule lets be computed in parts, split over all axes of its dimensions.

Under which rules a dimension is split depends on where it is met (`dimension_names.py`): those of the computation, of parameters, or of
the optimizer's state.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import attrs

from mtfc.compiler.cost.hardware import Device
from mtfc.compiler.cost.memory import by_gradients
from mtfc.compiler.ir.core import Equation, Function, Value, walk
from mtfc.compiler.search.global_layouts.dimension_names import Dims, Naming
from mtfc.compiler.search.global_layouts.halo_bounds import Halo, halos_of
from mtfc.compiler.search.global_layouts.memory_bound import Points, equal_in, merging_in, points_of
from mtfc.compiler.search.global_layouts.move_bounds import Move, moves_of
from mtfc.compiler.search.global_layouts.named_arrays import SINGLE, Sure, bridge_of
from mtfc.compiler.search.global_layouts.parameter_gathers import Gather, all_are_used, gathers_of
from mtfc.compiler.search.global_layouts.pending_sums import Route, routes_of, thinned
from mtfc.compiler.search.global_layouts.spatial_layouts import Sets, mixed_in, replaced_in
from mtfc.compiler.search.global_layouts.work_bound import Work, is_ordered, work_of


@attrs.frozen
class Parts:
    """completing: the work of the equations that make or read a value, and what it is where a sum is completed there.
    gathered_bytes: the fewest bytes of an element of a parameter that is gathered, 0 where some never is.
    """

    work: Mapping[Work, int]
    routes: tuple[Route, ...]
    completing: Mapping[Value, Sequence[tuple[Work, Work]]]
    moves: tuple[Move, ...]
    gathers: Mapping[Gather, int]
    gathered_bytes: int


@attrs.frozen(slots=False)
class Step:
    """An undistributed function: what it is made of, by which dimensions are split.

    Where an op mixes the positions of a dimension that is split, other equations are in its place. Of those of windows enough is
    known (`Bridge`); of others nothing. positions: the names of such dimensions, of each equation that has some: it is replaced
    only if all of one set are split.
    """

    function: Function
    device: Device
    positions: Mapping[Equation, Sets]
    found: dict[Dims, Parts] = attrs.field(factory=dict)
    sent: dict[int, Mapping[Halo, int]] = attrs.field(factory=dict)

    @classmethod
    def of(cls, function: Function, device: Device) -> Step:
        return cls(function, device, replaced_in(function, lambda eqn: bridge_of(eqn) is None))

    @cached_property
    def weightless(self) -> Step:
        """The same where memory and kernels cost nothing."""
        return Step.of(self.function, self.device.weightless)

    @cached_property
    def naming(self) -> Naming:
        return Naming.of(self.function)

    @cached_property
    def held(self) -> dict[Dims, int]:
        """Bytes of arguments and gradients, by their dimensions."""
        equal = equal_in(self.function, self._replaced)
        return _bytes((each for each in _held(self.function) if equal.isdisjoint(each)), self.naming)

    @cached_property
    def alive(self) -> Points:
        """What else is there at once."""
        return points_of(self.function, self.naming, self._replaced)

    @cached_property
    def _replaced(self) -> dict[Equation, Dims | None]:
        """The equations that others may replace, with the dimensions that are split then; None: products of several operands,
        which always are.
        """
        products = (eqn for eqn in walk(self.function.body) if not is_ordered(eqn))
        return {**dict.fromkeys(products), **mixed_in(self.function)}

    @cached_property
    def _merging(self) -> set[Value]:
        """What may turn out to be something else that is there, once others stand in the place of what it is made of."""
        return equal_in(self.function, self._replaced) | merging_in(self.function)

    @property
    def mixed(self) -> Dims:
        """All dimensions of `positions`."""
        return frozenset[str]().union(*(each for sets in self.positions.values() for each in sets))

    def parts(self, split: Dims) -> Parts:
        """What is sure where of the dimensions `mixed` only some may be split."""
        if split not in self.found:

            def sure(eqn: Equation) -> bool:
                is_kept = is_ordered(eqn) and self._merging.isdisjoint(eqn.results)
                return is_kept and not any(each <= split for each in self.positions.get(eqn, ()))

            self.found[split] = _parts(self.function, self.naming, self.device, sure)
        return self.found[split]

    def halos(self, shards: int) -> Mapping[Halo, int]:
        """What shards send and join where a dimension is split over so many."""
        if shards not in self.sent:
            self.sent[shards] = Counter(halos_of(self.function, self.naming, is_ordered, shards))
        return self.sent[shards]


def _parts(function: Function, naming: Naming, device: Device, sure: Sure) -> Parts:
    """Its work, each with how often it occurs, its sums, and the parameters that it uses."""
    gathers = list(gathers_of(function, naming, sure))
    routes = routes_of(function, naming, sure)
    readers = {stop.value: stop.readers for route in routes for stop in route.stops}
    work: Counter[Work] = Counter()
    completing: dict[Value, list[tuple[Work, Work]]] = defaultdict(list)
    for each, others in work_of(function, naming, device, 1, sure, readers):
        work[each] += 1
        for value, other in others:
            completing[value].append((each, other))
    return Parts(
        work,
        thinned(routes, completing),
        completing,
        tuple(moves_of(function, naming, sure)),
        Counter(gather for gather, _ in gathers),
        min((item for _, item in gathers), default=0) if all_are_used(function, sure) else 0,
    )


def _held(function: Function) -> Iterator[Sequence[Value]]:
    """Arguments, and gradients with what is in their buffers before: distributed, each may be split as any of these."""
    yield from ([argument.value] for argument in function.arguments)
    yield from (buffer.values for buffer in by_gradients(function, SINGLE)[0])


def _bytes(buffers: Iterable[Sequence[Value]], naming: Naming) -> dict[Dims, int]:
    """Bytes by dimensions."""
    found: dict[Dims, int] = defaultdict(int)
    for values in buffers:
        dims = frozenset[str]().union(*(naming.names[value] for value in values))
        found[dims] += values[0].type.local_bytes(SINGLE)
    return found
