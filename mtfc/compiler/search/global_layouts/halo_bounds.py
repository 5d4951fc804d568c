"""What shards tell their neighbours where windows slide along a split dimension, and the kernels that join it to what they have.

An equation is distributed by its op's own rule, for each number of shards. What equal equations make is made once. It counts
where the dimension is split alike wherever it is met from the equations before that stay where the rules put them to those after:
elsewhere what is between them may be laid out otherwise, and need no halos.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from mtfc.compiler.cost.fusion import Memory
from mtfc.compiler.cost.hardware import Device, Rate
from mtfc.compiler.ir.builder import Builder
from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.loops import dim_of, region_of
from mtfc.compiler.ir.opdef import Bridge
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.rewrite import names_of
from mtfc.compiler.ir.types import Axes, Dim
from mtfc.compiler.passes.spatial.position_blocks import NewDims, PositionBlocks
from mtfc.compiler.search.global_layouts.dimension_names import Dims, Naming, rule_of
from mtfc.compiler.search.global_layouts.named_arrays import SINGLE, Array, Sure, after, bridge_of

UNTILED = Device({}, 0.0, Rate.constant(1.0))
"""Of whole tiles, those of all shards are not known."""


@attrs.frozen
class Halo:
    """Something that shards send so many shards further, or, where `hops` is None, what a kernel moves; `array.trips` times.

    array: of all shards, and what may split it besides. alike: it is there where all dimensions of one of these are split alike.
    """

    array: Array
    hops: int | None
    alike: frozenset[Dims]


def halos_of(function: Function, naming: Naming, sure: Sure, shards: int, trips: int = 1) -> Iterator[Halo]:
    """What is sent and moved where dimensions are split over so many shards."""
    for eqn in function.body:
        if eqn.regions:
            yield from halos_of(region_of(eqn), naming, sure, shards, trips * dim_of(eqn).size)
    finder = _Finder.of(function, naming, shards)
    found: dict[int, list[Halo]] = {}
    for eqn in function.body:
        bridge = bridge_of(eqn) if sure(eqn) else None
        if bridge and not bridge.is_local:
            for key, halo in finder.halos(eqn, bridge, trips):
                found.setdefault(key, []).append(halo)
    for halos in found.values():
        yield attrs.evolve(halos[0], alike=frozenset[Dims]().union(*(halo.alike for halo in halos)))


@attrs.frozen(eq=False)
class _Finder:
    """Of one function. keys: equal equations of distributed ones have equal numbers."""

    function: Function
    naming: Naming
    shards: int
    makers: Mapping[Value, Equation]
    uses: Mapping[Value, list[Equation]]
    dims: NewDims
    keys: dict[object, int] = attrs.field(factory=dict)

    @classmethod
    def of(cls, function: Function, naming: Naming, shards: int) -> _Finder:
        makers = {value: eqn for eqn in function.body for value in eqn.results}
        uses: dict[Value, list[Equation]] = {}
        for eqn in function.body:
            for value in dict.fromkeys(eqn.operands):
                uses.setdefault(value, []).append(eqn)
        return cls(function, naming, shards, makers, uses, NewDims(()))

    def halos(self, eqn: Equation, bridge: Bridge, trips: int) -> Iterator[tuple[int, Halo]]:
        met = self._met(eqn, bridge)
        last = self._last(eqn)
        body = (self._distributed(last, eqn, bridge) or self._distributed(eqn, eqn, bridge)) if met else []
        memory = Memory(attrs.evolve(self.function, body=tuple(body), outputs=()), SINGLE)
        names = self.naming.names
        dims = frozenset[str]().union(
            *(names[v] for each in self._chain(last) for v in (*each.operands, each.result))
        )
        for each, key in self._keyed(body):
            hops = each.attrs.get("by")
            if has_trait(each, "shift") and isinstance(hops, int):
                array = Array(each.operands[0].type.local_bytes(SINGLE), dims - met, trips)
                yield key, Halo(array, abs(hops), frozenset((met,)))
            elif OPS[each.op].storage in ("kernel", "lookup") and each.op != eqn.op:
                yield (
                    key,
                    Halo(Array(memory.moved(each, UNTILED), dims - met, trips), None, frozenset((met,))),
                )

    def _chain(self, eqn: Equation) -> Iterator[Equation]:
        """The equation, and those of the same op before it, with which it may be distributed."""
        yield eqn
        maker = self.makers.get(eqn.operands[0])
        if maker is not None and maker.op == eqn.op:
            yield from self._chain(maker)

    def _last(self, eqn: Equation) -> Equation:
        """The last of the same op that are applied one to the other."""
        following = [user for user in self.uses.get(eqn.result, ()) if user.op == eqn.op]
        return self._last(following[0]) if following else eqn

    def _distributed(self, last: Equation, eqn: Equation, bridge: Bridge) -> list[Equation]:
        """What stands for the last of a chain where the dimension of one is split; nothing where shards cannot do that."""
        pair, rule = {bridge.source, bridge.target}, OPS[last.op].distribute
        dims = [dim for value in (*eqn.operands, *eqn.results) for dim in value.type.dims if dim.name in pair]
        are_beside = len(pair) > 1 and any(pair.issubset(v.type.names) for v in (*eqn.operands, *eqn.results))
        if rule is None or are_beside or any(dim.size % self.shards for dim in dims):
            return []

        def axes(each: Equation, dim: Dim) -> Axes:
            return ("all",) if each is eqn and dim.name in pair else ()

        build = Builder(names_of(self.function), eqn.span, eqn.stage)
        results = rule(
            PositionBlocks(build, axes, lambda axes: self.shards, self.makers.get, self.dims), last
        )
        needed = set(results or ())
        for each in reversed(build.body):
            if not needed.isdisjoint(each.results):
                needed.update(each.operands)
        return [each for each in build.body if not needed.isdisjoint(each.results)]

    def _keyed(self, body: list[Equation]) -> Iterator[tuple[Equation, int]]:
        numbers: dict[Value, object] = {}
        for eqn in body:
            operands = tuple(numbers.get(value, value) for value in eqn.operands)
            key = (eqn.op, operands, tuple(sorted((name, repr(each)) for name, each in eqn.attrs.items())))
            number = self.keys.setdefault(key, len(self.keys))
            numbers.update((value, (number, i)) for i, value in enumerate(eqn.results))
            yield eqn, number

    def _met(self, eqn: Equation, bridge: Bridge) -> Dims:
        """The names of the dimension before and after; none where something needs it whole."""
        after_it = self._after(eqn.results[0], bridge.target, frozenset())
        return after_it and after_it | self._before(eqn.operands[0], bridge.source)

    def _after(self, value: Value, name: str, found: Dims) -> Dims:
        """Where a value's dimension goes until what stays."""
        found |= {name}
        for user in self.uses.get(value, ()):
            if user.regions or rule_of(user).reduced:
                further = name if user.regions else after(user, name)[0]
                names = frozenset((further,)) if further else frozenset[str]()
            else:
                further = after(user, name)[0]
                names = self._after(user.results[0], further, found) if further else frozenset()
            if not names:
                return frozenset()
            found |= names
        return found

    def _before(self, value: Value, name: str) -> Dims:
        """Where it comes from, from what stays on."""
        maker, found = self.makers.get(value), frozenset((name,))
        if maker is None or maker.regions or rule_of(maker).reduced:
            return found
        earlier = ((v, d) for v in maker.operands for d in v.type.names if after(maker, d)[0] == name)
        return found.union(*(self._before(v, d) for v, d in earlier))
