"""Halos: the elements that shards exchange where windows slide along a split dimension, and the kernels that join them.

An equation that mixes positions is partitioned by its op's own rule, for each number of shards, and equal equations are computed
once. The halos of an equation count where its dimension is split alike in a whole region: from the equations before it that stay
where the rules put them to those after it. Elsewhere the values between may be placed otherwise, and need no halos.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from mtfc.compiler.analysis.buffer_kinds import readers_of
from mtfc.compiler.analysis.dimension_names import (
    SINGLE,
    DimensionNames,
    Dims,
    after,
    bridge_of,
    rule_of,
)
from mtfc.compiler.cost.fusion import FusionModel
from mtfc.compiler.cost.hardware import Device, Rate
from mtfc.compiler.cost.lower_bounds import CommonProgram, MakeBlocks, WholeArray
from mtfc.compiler.ir.builder import Builder, names_of, needed_for
from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.loops import dim_of, region_of
from mtfc.compiler.ir.opdef import Bridge
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.types import Axes, Dim

UNTILED = Device({}, 0.0, Rate.constant(1.0))
"""A device that does not pad arrays: the padding of all shards together is not known."""


@attrs.frozen
class Halo:
    """An array that shards send `hops` shards on, or the bytes of a kernel where `hops` is None; `array.trips` times.

    array: the array of all shards, with the dimensions that may split it besides. alike: sets of dimensions; the halo is there
    where all dimensions of one set are split alike.
    """

    array: WholeArray
    hops: int | None
    alike: frozenset[Dims]


def halos_of(program: CommonProgram, function: Function, shards: int, trips: int = 1) -> Iterator[Halo]:
    """Yield the halos, and the kernels that join them, where dimensions are split over a number of shards."""
    for eqn in function.body:
        if eqn.regions:
            yield from halos_of(program, region_of(eqn), shards, trips * dim_of(eqn).size)
    finder = _HaloFinder.of(program, function, shards)
    found: dict[int, list[Halo]] = {}
    for eqn in function.body:
        bridge = bridge_of(eqn) if program.is_common(eqn) else None
        if bridge and not bridge.is_local:
            for key, halo in finder.halos(eqn, bridge, trips):
                found.setdefault(key, []).append(halo)
    for halos in found.values():
        yield attrs.evolve(halos[0], alike=frozenset[Dims]().union(*(halo.alike for halo in halos)))


@attrs.frozen(eq=False)
class _HaloFinder:
    """Finds the halos of one function. keys: a number for each kind of partitioned equation."""

    function: Function
    names: DimensionNames
    shards: int
    makers: Mapping[Value, Equation]
    uses: Mapping[Value, list[Equation]]
    blocks: MakeBlocks
    keys: dict[object, int] = attrs.field(factory=dict)

    @classmethod
    def of(cls, program: CommonProgram, function: Function, shards: int) -> _HaloFinder:
        makers = {value: eqn for eqn in function.body for value in eqn.results}
        uses = readers_of(function.body)
        return cls(function, program.names, shards, makers, uses, program.new_blocks())

    def halos(self, eqn: Equation, bridge: Bridge, trips: int) -> Iterator[tuple[int, Halo]]:
        """Yield the halos that a partitioned equation exchanges, each with the number of its kind of equation in `keys`.

        The equation is partitioned together with the equations before it of the same op, if possible. A shift sends whole hops;
        kernels that are made for the partition move only their bytes.
        """
        met = self._met(eqn, bridge)
        last = self._last(eqn)
        body = (self._partitioned(last, eqn, bridge) or self._partitioned(eqn, eqn, bridge)) if met else []
        kernels = FusionModel(attrs.evolve(self.function, body=tuple(body), outputs=()), SINGLE, UNTILED)
        names = self.names.names
        dims = frozenset[str]().union(
            *(names[v] for each in self._chain(last) for v in (*each.operands, each.result))
        )
        for each, key in self._keyed(body):
            hops = each.attrs.get("by")
            if has_trait(each, "shift") and isinstance(hops, int):
                array = WholeArray(each.operands[0].type.local_bytes(SINGLE), dims - met, trips)
                yield key, Halo(array, abs(hops), frozenset((met,)))
            elif OPS[each.op].storage in ("kernel", "lookup") and each.op != eqn.op:
                yield (
                    key,
                    Halo(WholeArray(kernels.moved(each), dims - met, trips), None, frozenset((met,))),
                )

    def _chain(self, eqn: Equation) -> Iterator[Equation]:
        """Yield the equation and its predecessors of the same op, which may be partitioned together."""
        yield eqn
        maker = self.makers.get(eqn.operands[0])
        if maker is not None and maker.op == eqn.op:
            yield from self._chain(maker)

    def _last(self, eqn: Equation) -> Equation:
        """Return the last equation of a chain of the same op."""
        following = [user for user in self.uses.get(eqn.result, ()) if user.op == eqn.op]
        return self._last(following[0]) if following else eqn

    def _partitioned(self, last: Equation, eqn: Equation, bridge: Bridge) -> list[Equation]:
        """Return the equations that replace the last of a chain where `eqn` has its dimension split; nothing if there are
        none.
        """
        pair, rule = {bridge.source, bridge.target}, OPS[last.op].distribute
        dims = [dim for value in (*eqn.operands, *eqn.results) for dim in value.type.dims if dim.name in pair]
        are_beside = len(pair) > 1 and any(pair.issubset(v.type.names) for v in (*eqn.operands, *eqn.results))
        if rule is None or are_beside or any(dim.size % self.shards for dim in dims):
            return []

        def axes(each: Equation, dim: Dim) -> Axes:
            return ("all",) if each is eqn and dim.name in pair else ()

        build = Builder(names_of(self.function), eqn.span, eqn.stage)
        results = rule(self.blocks(build, axes, self.shards, self.makers.get), last)
        return list(needed_for(results or (), build.body))

    def _keyed(self, body: list[Equation]) -> Iterator[tuple[Equation, int]]:
        """Yield equations with numbers that are equal for equations which compute the same, also in other partitions."""
        numbers: dict[Value, object] = {}
        for eqn in body:
            operands = tuple(numbers.get(value, value) for value in eqn.operands)
            key = (eqn.op, operands, tuple(sorted((name, repr(each)) for name, each in eqn.attrs.items())))
            number = self.keys.setdefault(key, len(self.keys))
            numbers.update((value, (number, i)) for i, value in enumerate(eqn.results))
            yield eqn, number

    def _met(self, eqn: Equation, bridge: Bridge) -> Dims:
        """Return the names of the dimension before and after; no names if some equation needs the dimension whole."""
        after_it = self._after(eqn.results[0], bridge.target, frozenset())
        return after_it and after_it | self._before(eqn.operands[0], bridge.source)

    def _after(self, value: Value, name: str, found: Dims) -> Dims:
        """Return the names of a value's dimension, up to the equations that reduce. found: the names so far."""
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
        """Return the names of a value's dimension back to the equations that reduce."""
        maker, found = self.makers.get(value), frozenset((name,))
        if maker is None or maker.regions or rule_of(maker).reduced:
            return found
        earlier = ((v, d) for v in maker.operands for d in v.type.names if after(maker, d)[0] == name)
        return found.union(*(self._before(v, d) for v, d in earlier))
