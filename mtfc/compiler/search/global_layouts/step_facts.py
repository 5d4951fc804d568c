"""The facts of a step that bound all effects, by the dimensions that layouts split.

The facts are about equations that all layouts in question have. An op that mixes the positions of a split dimension, such as a
window or a shift, is replaced by other equations. The `distribute` rule of the op tells which dimensions must be split for a
replacement, for every number of shards that divides the sizes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations
from math import gcd
from typing import Any

import attrs
import numpy as np

from mtfc.compiler.analysis.dimension_names import (
    DimensionNames,
    Dims,
    IsCommon,
    bridge_of,
    called,
    computed,
    rule_of,
)
from mtfc.compiler.analysis.liveness import readers_of, storage
from mtfc.compiler.cost.device_models import regimes
from mtfc.compiler.cost.effects.memory import MemoryBound, Splitting, equal_in, memory_bound, merging_in
from mtfc.compiler.cost.effects.moved_data import (
    Halo,
    MovedData,
    StoredParameter,
    halos_of,
    moved_data,
    stored_parameters,
)
from mtfc.compiler.cost.effects.pending_sums import SumRoute, preceding, sum_routes, without_useless_stops
from mtfc.compiler.cost.effects.roofline import KernelBound, is_binary, kernel_bounds, largest_share
from mtfc.compiler.cost.fusion import users as users_of
from mtfc.compiler.cost.hardware import Device
from mtfc.compiler.cost.lower_bounds import CommonProgram, MakeBlocks, ShardedAmount, Term, divided
from mtfc.compiler.cost.tables.collective_tables import Seconds
from mtfc.compiler.ir.builder import Builder, Names, names_of
from mtfc.compiler.ir.core import Equation, Function, Value, walk
from mtfc.compiler.ir.loops import carried, region_of
from mtfc.compiler.ir.opdef import BlockRewriter
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.types import Axes, Dim
from mtfc.compiler.passes.join_dots import joinable
from mtfc.compiler.passes.partition.spread_attention import shared_splits
from mtfc.compiler.passes.spatial.position_blocks import NewDims, PositionBlocks

KEPT = 3
"""The number of points of the program that are kept for each dimension that may be split: the points with the most bytes."""

SPLIT = 8.0
"""The number of processors over which the dimension is split to choose these points."""

FORMS = 2
"""The live bytes of a step over those that it has at least with forms, which leave out terms of a sum."""

DimSets = frozenset[Dims]
"""Sets of dimensions; all dimensions of one set have to be split."""

Sums = Mapping[Value, Collection[Equation]]
"""Values in which a sum may be completed, with their readers."""

FindKernels = Callable[[CommonProgram, Sums], Iterable[KernelBound]]


@attrs.frozen
class Facts:
    """The facts of equations that some layouts have in common.

    completing: for each value in which a sum may be completed, the kernels that this makes longer, without and with the sum.
    preceding: for each route the routes whose sums are complete before its own arises; nothing if that is not known.
    """

    kernels: Mapping[Term, int]
    arithmetic: Mapping[ShardedAmount, int]
    completing: Mapping[Value, Sequence[tuple[Term, Term]]]
    routes: tuple[SumRoute, ...]
    moved: tuple[MovedData, ...]
    stored: Mapping[StoredParameter, int]
    preceding: tuple[tuple[int, ...], ...] = ()


@attrs.frozen(eq=False)
class MemoryFacts:
    """A lower bound of memory: the bytes of `always`, and the most that one of the largest points has, as in `largest_points`."""

    always: Mapping[Dims, int]
    kinds: list[Splitting]
    bytes: Seconds


@attrs.frozen(slots=False)
class StepFacts:
    """The facts of an undistributed function.

    positions: equations that mix positions, and attention, with the sets of dimensions that replace the equation when split.
    Enough is known of the replacements of windows (`opdef.Bridge`), and little of those of other ops. recomputes: True if
    values may be computed again, so that none needs memory for long, and the backward pass need not read those that it
    computes. has_short_routes: True if sums are followed on the routes of the fewest stops. found, sent: the facts that were
    asked for.
    """

    function: Function
    device: Device
    positions: Mapping[Equation, DimSets]
    recomputes: bool = False
    has_short_routes: bool = False
    found: dict[Dims, Facts] = attrs.field(factory=dict)
    sent: dict[int, Mapping[Halo, int]] = attrs.field(factory=dict)

    @classmethod
    def of(
        cls, function: Function, device: Device, recomputes: bool = False, has_short_routes: bool = False
    ) -> StepFacts:
        """Return the facts of a function on a device.

        The dimensions of attention that layouts may split otherwise than the rest count as mixed.
        """
        positions = replaced_in(function, lambda eqn: bridge_of(eqn) is None)
        makers = {value: eqn for eqn in walk(function.body) for value in eqn.results}
        for eqn in filter(_is_attention, walk(function.body)):
            sets = shared_splits(eqn, makers)
            own = frozenset(frozenset(called(eqn, name) for name in each) for each in sets)
            positions[eqn] = positions.get(eqn, frozenset()) | own
        return cls(function, device, positions, recomputes, has_short_routes)

    def on(self, device: Device) -> StepFacts:
        """Return the same step on another device."""
        if device == self.device:
            return self
        return StepFacts.of(self.function, device, self.recomputes, self.has_short_routes)

    @cached_property
    def names(self) -> DimensionNames:
        return DimensionNames.of(self.function)

    @cached_property
    def memory(self) -> MemoryFacts:
        """The bound of the memory without a device."""
        return self._memory(memory_bound(self._program(is_binary)))

    @cached_property
    def memory_on_device(self) -> MemoryFacts:
        """The bound of the memory on the device."""
        return self._memory(memory_bound(self._program(is_binary), on_device=True))

    def _memory(self, bound: MemoryBound) -> MemoryFacts:
        return MemoryFacts(bound.always, *largest_points(({},) if self.recomputes else bound.points))

    def _program(self, is_common: IsCommon) -> CommonProgram:
        """Return the part of the program that all layouts have in common: the equations for which `is_common` is true."""
        return CommonProgram(
            self.function,
            self.names,
            self.device,
            is_common,
            self._replaced,
            new_blocks,
            self.has_short_routes,
        )

    @cached_property
    def _replaced(self) -> Mapping[Equation, Dims | None]:
        """Return the equations that a layout may replace, with the dims that must be whole for them to stay; None if it is
        not known which.
        """
        dots = (eqn for eqn in walk(self.function.body) if not is_binary(eqn))
        attention = filter(_is_attention, walk(self.function.body))
        return {**dict.fromkeys(dots), **mixed_in(self.function), **dict.fromkeys(attention)}

    @cached_property
    def _merging(self) -> set[Value]:
        """The values that may become aliases of existing values after equations are replaced."""
        return equal_in(self.function, self._replaced) | merging_in(self.function)

    @cached_property
    def mixed(self) -> Dims:
        """All dimensions of `positions`."""
        return frozenset[str]().union(*(each for sets in self.positions.values() for each in sets))

    def facts(self, split: Dims) -> Facts:
        """Return the facts under layouts that split no dimensions of `mixed` but some of `split`."""
        if split not in self.found:
            self.found[split] = _facts(self._program_under(split), self._kernels)
        return self.found[split]

    def _program_under(self, split: Dims) -> CommonProgram:
        """Return the function with the equations that these layouts have in common."""

        def is_common(eqn: Equation) -> bool:
            is_kept = is_binary(eqn) and self._merging.isdisjoint(eqn.results)
            return is_kept and not any(each <= split for each in self.positions.get(eqn, ()))

        return self._program(is_common)

    def least_seconds(self, devices: int) -> float:
        """Return a bound of the step of each plan: with any layout, forms, pipelines and micro-batches.

        All devices together run the kernels that all layouts have, and each device starts all of them: stages of a pipeline start
        theirs for each micro-batch. Where forms may join dots, only the arithmetic counts. Loops have no costs of their own,
        and elementwise carries no kernels, because loops may be unrolled.
        """
        if (device := self._least_device(devices)) != self.device:
            return self.on(device).least_seconds(devices)
        joined, total = joinable(self.function), 0.0
        program, carries = self._program_under(self.mixed), passing_carries(self.function)
        for kernel in self._kernels(program, {}, carries):
            eqn = kernel.equation
            if eqn in joined or has_trait(eqn, "groups"):
                own, most = (largest_share(eqn, self.device, is_joined) for is_joined in (False, True))
                total += divided(kernel.arithmetic, devices) * own / most
            elif not eqn.regions:
                total += divided(kernel.seconds, devices)
        return total

    def _least_device(self, devices: int) -> Device:
        """Return the device in the first regime in which a step may be."""
        first, *larger = regimes(self.function, self.device)
        if not larger:
            return first.device
        whole = [not kind.unless for kind in self.memory.kinds]
        alive = np.max(self.memory.bytes[:, whole].sum(axis=1), initial=0) / FORMS
        is_larger = sum(self.memory.always.values()) + alive > devices * first.bytes
        return larger[0].device if is_larger else first.device

    def _kernels(
        self, program: CommonProgram, sums: Sums, carries: Collection[Value] = ()
    ) -> Iterator[KernelBound]:
        """Yield the kernels of a program. If values may be computed again, those of the backward pass need not read them.

        sums: as in `kernel_bounds`. carries: those that no kernel needs to read or to write.
        """
        if not self.recomputes and not carries:
            yield from kernel_bounds(program, self.function, sums)
            return
        again = {*carries, *fused_values(self.function)}
        for is_forward, free in ((True, carries), (False, again)):
            own = attrs.evolve(program, is_common=_in_pass(program.is_common, is_forward))
            found = kernel_bounds(own, self.function, sums, free=free)
            yield from (each for each in found if (each.equation.stage == "forward") == is_forward)

    def halos(self, shards: int) -> Mapping[Halo, int]:
        """Return the halos where a dimension is split over a number of shards."""
        if shards not in self.sent:
            self.sent[shards] = Counter(halos_of(self._program(is_binary), self.function, shards))
        return self.sent[shards]


def _in_pass(is_common: IsCommon, is_forward: bool) -> IsCommon:
    return lambda eqn: is_common(eqn) and (eqn.stage == "forward") == is_forward


def fused_values(function: Function) -> set[Value]:
    """Return the values of the forward pass that kernels may compute where they are read, also from a loop's stack.

    A loop carries values in memory, but what a layer begins with may be the end of a layer that is computed again.
    """
    found = {argument.value for argument in carried(function)}
    for eqn in (each for each in function.body if each.stage == "forward"):
        if eqn.regions:
            inside, outputs = fused_values(region_of(eqn)), region_of(eqn).outputs
            pairs = zip(eqn.results, outputs, strict=True)
            found.update(value for value, output in pairs if output.value in inside and not output.updates)
            continue
        storage = OPS[eqn.op].storage
        if storage in ("fused", "made") or (storage == "view" and not found.isdisjoint(eqn.operands)):
            found.update(eqn.results)
    return found


def passing_carries(function: Function) -> set[Value]:
    """Return the carries of innermost loops that need no memory between two iterations that run in one (`unroll-loops`)."""
    regions = (region_of(eqn) for eqn in walk(function.body) if eqn.regions)
    found: set[Value] = set()
    for region in (each for each in regions if not any(eqn.regions for eqn in each.body)):
        readers = readers_of(region.body)
        for value in (argument.value for argument in carried(region)):
            if all(storage(eqn) in ("fused", "reduced") for eqn in users_of(value, readers)):
                found.add(value)
    return found


def _facts(program: CommonProgram, find: FindKernels) -> Facts:
    """Collect the effects of a program: kernels, routes of sums, moved data and stored parameters. find: finds the kernels."""
    function = program.function
    routes = sum_routes(program)
    readers = {stop.value: stop.readers for route in routes for stop in route.stops}
    kernels = tuple(find(program, readers))
    completing: dict[Value, list[tuple[Term, Term]]] = defaultdict(list)
    for kernel in kernels:
        for value, other in kernel.completing:
            completing[value].append((kernel.seconds, other))
    return Facts(
        Counter(kernel.seconds for kernel in kernels),
        Counter(kernel.arithmetic for kernel in kernels),
        completing,
        without_useless_stops(routes, completing),
        tuple(moved_data(program, function)),
        Counter(stored_parameters(program)),
        preceding(function, routes),
    )


def new_blocks() -> MakeBlocks:
    """Begin the new dimensions of one function: equal equations get equal dimensions."""
    dims = NewDims(())

    def make(
        build: Builder,
        axes: Callable[[Equation, Dim], Axes],
        shards: int,
        defined: Callable[[Value], Equation | None],
    ) -> BlockRewriter:
        return PositionBlocks(build, axes, lambda axes: shards, defined, dims)

    return make


def replaced_in(function: Function, counts: IsCommon) -> dict[Equation, DimSets]:
    """Return the equations that layouts replace, with the sets of split dimensions for which they do. A later equation of the
    same op adds its sets.
    """
    found: dict[Equation, DimSets] = {}
    names = names_of(function)
    makers = {value: eqn for eqn in walk(function.body) for value in eqn.results}
    for eqn, users in _distributed(function):
        if counts(eqn):
            sets = _least_sets(eqn, names, makers).union(*(found.get(user, ()) for user in users))
            if sets:
                found[eqn] = sets
    return found


def mixed_in(function: Function) -> dict[Equation, Dims]:
    """Return all dimensions whose positions an equation, or a later equation of the same op, mixes.

    If these dimensions are whole, nothing is gathered or replaced, whether the op's rule applies or not.
    """
    found: dict[Equation, Dims] = {}
    for eqn, users in _distributed(function):
        own = frozenset(called(eqn, name) for name in _mixed(eqn))
        found[eqn] = own.union(*(found[user] for user in users))
    return found


def _distributed(function: Function) -> Iterator[tuple[Equation, list[Equation]]]:
    """Yield equations that a `distribute` rule may replace, the last first, with the equations of the same op that use them."""
    uses = readers_of(walk(function.body))
    for eqn in reversed(list(walk(function.body))):
        if not eqn.regions and OPS[eqn.op].distribute is not None:
            yield eqn, [user for value in eqn.results for user in uses[value] if user.op == eqn.op]


def _is_attention(eqn: Equation) -> bool:
    """Return True for equations that `spread-attention` may replace."""
    return has_trait(eqn, "attention", "attention_gradient")


def _mixed(eqn: Equation) -> Dims:
    """Return the dimensions along which an equation mixes elements: a layout that splits one replaces the equation."""
    rule = rule_of(eqn)
    names = frozenset(name for value in (*eqn.operands, *eqn.results) for name in value.type.names)
    unnamed = frozenset(name for name in names if rule.index.get(name, name) is None)
    return (unnamed | rule.whole | rule.single) & names


def _least_sets(eqn: Equation, names: Names, makers: dict[Value, Equation]) -> DimSets:
    """Return the least sets of dimensions that make the op's rule apply."""
    dims = {dim.name: dim for value in (*eqn.operands, *eqn.results) for dim in value.type.dims}
    mixed = sorted(_mixed(eqn))
    found: list[frozenset[str]] = []
    for split in (frozenset(each) for n in range(len(mixed)) for each in combinations(mixed, n + 1)):
        is_new = not any(each <= split for each in found)
        if is_new and _applies(eqn, {dims[name] for name in split}, names, makers):
            found.append(split)
    return frozenset(frozenset(called(eqn, name) for name in split) for split in found)


def _applies(eqn: Equation, split: set[Dim], names: Names, makers: dict[Value, Equation]) -> bool:
    """Return True if the rule applies where these dimensions are split alike; dimensions split otherwise count by themselves."""

    def axes(each: Equation, dim: Dim) -> Axes:
        return ("all",) if each is eqn and dim in split else ()

    def applies(shards: int) -> bool:
        """Return True if the op's `distribute` rule makes equations for a number of shards."""
        build = Builder(names, eqn.span, eqn.stage)
        rule = OPS[eqn.op].distribute
        return rule is not None and rule(new_blocks()(build, axes, shards, makers.get), eqn) is not None

    return any(map(applies, _divisors(gcd(*(dim.size for dim in split)))))


def _divisors(size: int) -> Iterable[int]:
    """Return the divisors of a size, but for 1."""
    return (n for n in range(2, size + 1) if size % n == 0)


def largest_points(points: Iterable[Mapping[Splitting, int]]) -> tuple[list[Splitting], Seconds]:
    """Return the points with the most bytes if nothing is split, or if one dimension is split, as bytes: [point, splitting]."""
    points = list(points)
    number: dict[Splitting, int] = {}
    for point in points:
        for kind in point:
            number.setdefault(kind, len(number))
    bytes = np.zeros((len(points), len(number)))
    for row, point in zip(bytes, points, strict=True):
        row[[number[kind] for kind in point]] = list(point.values())
    always = np.array([not kind.unless for kind in number])
    kept: set[int] = set()
    for name in ("", *sorted(computed(frozenset[str]().union(*(kind.dims for kind in number))))):
        share = np.array([1 / SPLIT if name in kind.dims else 1.0 for kind in number])
        whole = np.array([name not in kind.unless for kind in number])
        for weights in (share * whole, share * always):
            kept.update(np.argsort(-(bytes @ weights), kind="stable")[:KEPT].tolist())
    return list(number), bytes[sorted(kept)]


def sharing(facts: Iterable[SumRoute | MovedData]) -> list[tuple[Any, ...]]:
    """Return the facts in groups: those of different groups share no value."""
    groups: dict[Value, dict[int, Any]] = {}
    for i, fact in enumerate(facts):
        joined = {i: fact}
        for group in {id(group): group for v in _values(fact) if (group := groups.get(v))}.values():
            joined |= group
        groups.update((value, joined) for each in joined.values() for value in _values(each))
    distinct = {id(group): group for group in groups.values()}
    return [tuple(group[i] for i in sorted(group)) for group in distinct.values()]


def _values(fact: SumRoute | MovedData) -> Iterator[Value]:
    """Yield the values that a sum's route, or moved data, passes."""
    if isinstance(fact, SumRoute):
        yield from (stop.value for stop in fact.stops)
    else:
        yield from (value for path in fact.paths for value in path.values)
