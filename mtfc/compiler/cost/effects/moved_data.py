"""Data that is made in one placement and used in another: the facts that bound its seconds under every layout.

An equation that reduces a dimension runs in the layout of the rules. Every other equation may follow its uses or its operands. So
somewhere between two equations that reduce, the data must change its placement. An axis that splits the first result, and nothing
that the second equation reads, is gathered. An axis that splits another dimension there is at least exchanged. Either happens at
the size that the data has somewhere on the way.

So it is with parameters that are stored, or updated, under other rules than they are used under (ZeRO, FSDP): they are gathered.

Halos: the elements that shards exchange where windows slide along a split dimension, and the kernels that join them.

An equation that mixes positions is partitioned by its op's own rule, for each number of shards, and equal equations are computed
once. The halos of an equation count where its dimension is split alike in a whole region: from the equations before it that stay
where the rules put them to those after it. Elsewhere the values between may be placed otherwise, and need no halos.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import attrs

from mtfc.compiler.analysis.dimension_names import (
    OPTIMIZER,
    PARAMS,
    SINGLE,
    DimensionNames,
    Dims,
    IsCommon,
    Pairs,
    after,
    bridge_of,
    called,
    computed,
    rule_of,
)
from mtfc.compiler.analysis.liveness import readers_of
from mtfc.compiler.cost.fusion import FusionModel
from mtfc.compiler.cost.hardware import Device, Rate
from mtfc.compiler.cost.lower_bounds import CommonProgram, MakeBlocks, WholeArray
from mtfc.compiler.ir.builder import Builder, names_of, needed_for
from mtfc.compiler.ir.core import Equation, Function, Value, walk
from mtfc.compiler.ir.loops import dim_of, outputs_of, pairs, region_of
from mtfc.compiler.ir.opdef import BY_NAME, Bridge
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.ops.attention import MEMORY
from mtfc.compiler.ir.types import Axes, Dim

Names = tuple[tuple[str, str | None, Pairs], ...]

Carriers = tuple[tuple[int, Dims, Pairs], ...]


@attrs.frozen
class Gate:
    """An equation on a path of data, which reads the data split like the equation or its uses. bytes: the fewest bytes on the
    path before the equation.

    carriers: for each dimension of the operand that may stay split, its size, the names under which it may be split, and the
    pairs that must be split alike. dims: all dimensions that may split a value before the gate. spread: see `SpreadKeys`.
    """

    bytes: int
    dims: Dims
    carriers: Carriers
    spread: SpreadKeys | None = None


@attrs.frozen
class SpreadKeys:
    """Keys or values of attention that need not be gathered (`spread-attention`): blocks of them travel around a ring, or they
    are exchanged for another split, together with queries and results.

    sequence: the dimension of the data that the attention needs whole. exchanged: the bytes of the data, and half of those of
    queries and results. dims: all dimensions that may split one of these arrays.
    """

    sequence: Dims
    exchanged: int
    dims: Dims


@attrs.frozen
class DataPath:
    """A path of data, in the end to an equation that reduces, or to a loop: its values, and the fewest bytes of any of them.

    names: for each dimension of the first value, its name at the end and the pairs that must be split alike. The name is None if
    the dimension is whole at the end or on the way. dims: all dimensions that may split a value on the path. gates: the last one
    is the end.
    """

    names: Names
    values: tuple[Value, ...]
    bytes: int
    dims: Dims
    gates: tuple[Gate, ...]


@attrs.frozen
class MovedData:
    """Data of the dimensions `own`, made by an equation of the dimensions `beside`, and its paths; `trips` times."""

    own: Dims
    beside: tuple[str, ...]
    paths: tuple[DataPath, ...]
    trips: int


Uses = Mapping[Value, list[Equation]]


def moved_data(program: CommonProgram, function: Function, trips: int = 1) -> Iterator[MovedData]:
    """Yield the data of a program's function and of the loops in it. Carries stay where the rules put them, too."""
    for eqn in function.body:
        if eqn.regions:
            yield from moved_data(program, region_of(eqn), trips * dim_of(eqn).size)
    carried = frozenset(a.value.name for a in function.arguments if a.role == "carried")
    ends = frozenset(output.value for output in function.outputs if output.updates in carried)
    outputs = frozenset(output.value for output in function.outputs)
    finder = _PathFinder(program.names, program.is_common, readers_of(function.body), outputs, ends, trips)
    yield from (move for a in function.arguments if a.value.name in carried for move in finder.moves(a.value))
    for eqn in function.body:
        if eqn.regions:
            updated = (value for value, output in outputs_of(eqn) if output.updates)
            yield from (move for value in updated for move in finder.moves(value))
        elif finder.counts(eqn) and _stays(eqn):
            reduced = (dim.name for dim in rule_of(eqn).reduced)
            yield from finder.moves(eqn.results[0], reduced)


def _stays(eqn: Equation) -> bool:
    return bool(rule_of(eqn).reduced)


def _is_gate(eqn: Equation) -> bool:
    """Return True if an equation needs some dimension whole."""
    return None in rule_of(eqn).index.values()


def _names(eqn: Equation, names: Names) -> Names:
    """Return the names of dimensions after an equation."""
    found = ((old, alike, after(eqn, new) if new else (None, frozenset())) for old, new, alike in names)
    return tuple((old, new, alike | further) for old, alike, (new, further) in found)


def _bytes_after(eqn: Equation, path: DataPath) -> int:
    """Return the fewest bytes of a path that goes on through an equation. If a layout replaces the equation, only the share that
    it reads passes.
    """
    bridge = bridge_of(eqn)
    least = min(path.bytes, eqn.results[0].type.local_bytes(SINGLE))
    return int(least * bridge.share) if bridge else least


@attrs.frozen
class _PathFinder:
    """Finds the paths in a function, or in a loop's region whose updated carries are `ends`."""

    names: DimensionNames
    is_common: IsCommon
    uses: Uses
    outputs: frozenset[Value]
    ends: frozenset[Value]
    trips: int
    later: dict[tuple[Equation, str], Dims] = attrs.field(factory=dict)

    def counts(self, eqn: Equation) -> bool:
        return not eqn.regions and eqn.stage != "update" and self.is_common(eqn)

    def moves(self, source: Value, reduced: Iterable[str] = ()) -> Iterator[MovedData]:
        """Yield the data of a value, unless the value keeps all of its names.

        Of paths that end under the same names, the shortest counts: other data share less of it.
        """
        own, paths = self.names.own[source], dict[Names, DataPath]()
        for path in self.paths(source):
            paths.setdefault(path.names, path)
        resharded_paths = [
            path for names, path in paths.items() if any(a != b or alike for a, b, alike in names)
        ]
        if resharded_paths:
            yield MovedData(own, (*sorted(own), *reduced), tuple(resharded_paths), self.trips)

    def paths(self, source: Value) -> Iterator[DataPath]:
        """Yield a shortest path to each equation that reduces, and to each loop."""
        start: Names = tuple((name, name, frozenset()) for name in source.type.names)
        size = source.type.local_bytes(SINGLE)
        reached = {source: DataPath(start, (source,), size, self.names.names[source], ())}
        for value in (waiting := [source]):
            path, uses = reached[value], self.uses.get(value, ())
            if value in self.ends or any(eqn.regions and not _slices(eqn, value) for eqn in uses):
                yield self._carried(value, path)
            for eqn in filter(self.counts, uses):
                names = _names(eqn, path.names)
                if _stays(eqn):
                    gates = (*path.gates, self._gate(eqn, value, path))
                    yield attrs.evolve(path, names=names, gates=gates)
                elif len(eqn.results) == 1 and eqn.result not in reached:
                    gates = (*path.gates, self._gate(eqn, value, path)) if _is_gate(eqn) else path.gates
                    values, dims = (*path.values, eqn.result), path.dims | self.names.names[eqn.result]
                    reached[eqn.result] = DataPath(names, values, _bytes_after(eqn, path), dims, gates)
                    waiting.append(eqn.result)
            for eqn in uses:
                if has_trait(eqn, "attention") and value in eqn.operands[1:3] and not self.is_common(eqn):
                    yield self._spread(eqn, path)

    def _spread(self, eqn: Equation, path: DataPath) -> DataPath:
        """Return the path to attention that may be spread. A split of its keys stays under their own names."""
        memory = {dim.name: called(eqn, dim.name) for dim in MEMORY.of(eqn.attrs)}
        sequence = frozenset(old for old, new, _ in path.names if new in memory)
        arrays = (eqn.operands[0], eqn.results[0])
        half = sum(value.type.local_bytes(SINGLE) for value in arrays) // 2
        every = path.dims.union(*(self.names.names[value] for value in arrays))
        gate = Gate(path.bytes, path.dims, (), SpreadKeys(sequence, path.bytes + half, every))
        names = tuple((old, memory.get(new or "", new), alike) for old, new, alike in path.names)
        return attrs.evolve(path, names=names, gates=(*path.gates, gate))

    def _carried(self, value: Value, path: DataPath) -> DataPath:
        """Return a path with the gate of a loop's carry, whose dimensions keep their names."""
        carriers = tuple(
            (dim.size, frozenset((dim.name,)), frozenset[tuple[str, str]]()) for dim in value.type.dims
        )
        return attrs.evolve(path, gates=(*path.gates, Gate(path.bytes, path.dims, carriers)))

    def _gate(self, eqn: Equation, operand: Value, path: DataPath) -> Gate:
        """Return the gate that a path passes where an equation reads an operand: the dimensions of the results may carry the
        split.
        """
        index = [(dim.size, *after(eqn, dim.name)) for dim in operand.type.dims]
        carriers = tuple((size, self._later_names(eqn, name), alike) for size, name, alike in index if name)
        bridge = bridge_of(eqn)
        return Gate(int(path.bytes * (bridge.share if bridge else 1)), path.dims, carriers)

    def _later_names(self, eqn: Equation, name: str) -> Dims:
        """Return the names of a dimension of an equation's iteration space, in the equation and in all uses of its results."""
        if (eqn, name) not in self.later:
            self.later[eqn, name] = self._find_later_names(eqn, name)
        return self.later[eqn, name]

    def _find_later_names(self, eqn: Equation, name: str) -> Dims:
        """Walk from an equation along the uses of its results, and collect the names that the dimension has on the way.

        A value that the function returns adds the names of parameters and of the optimizer's states.
        """
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


# Stored parameters


@attrs.frozen
class StoredParameter:
    """A parameter that is stored under the dimensions `array.dims` and used under the dimensions `used`.

    pairs: the name of each dimension in storage and at the use, if one collective for each dimension gathers the parameter.
    """

    array: WholeArray
    used: Dims
    pairs: tuple[tuple[str, str], ...]


def stored_parameters(program: CommonProgram) -> Iterator[StoredParameter]:
    """Yield the uses of stored parameters, and the updated parameters that leave the function."""
    function, names = program.function, program.names
    uses = readers_of(walk(function.body))
    needing = _needing(function, program.is_common, uses)
    for argument in (each for each in function.arguments if each.role == "parameter"):
        for use in _uses_of_parameter(argument.value, uses, needing, 1):
            used, dims = computed(names.names[use.value]), use.value.type.names
            stored = [name for name in dims if name in argument.value.type.names]
            pairs = tuple((f"{PARAMS}{name}", name) for name in stored) if used == frozenset(dims) else ()
            trips = use.trips if pairs else 1
            array = WholeArray(use.bytes // trips, names.own[argument.value] | used, trips)
            yield StoredParameter(array, used, pairs)
    for output in (each for each in function.outputs if each.updates is not None):
        value, own = output.value, names.own[output.value]
        wanted = names.stored[output.updates or ""]
        pairs = tuple((f"{OPTIMIZER}{name}", f"{PARAMS}{name}") for name in value.type.names)
        if own != {name for name, _ in pairs} or wanted != {name for _, name in pairs}:
            pairs = ()
        array = WholeArray(value.type.local_bytes(SINGLE), own | wanted)
        yield StoredParameter(array, wanted, pairs)


@attrs.frozen
class _ParameterUse:
    """A use of a parameter in the computation: bytes of all executions, the value used, executions."""

    bytes: int
    value: Value
    trips: int


def _needing(function: Function, is_common: IsCommon, uses: Mapping[Value, list[Equation]]) -> set[Equation]:
    """Return the equations that need their operands split by the rules of the computation.

    These are equations that reduce or whose results leave, and those before them that keep names. Others may follow an update.
    """
    found: set[Equation] = set()
    for body in (function, *(region_of(eqn) for eqn in walk(function.body) if eqn.regions)):
        outputs = {out.value for out in body.outputs if (out.updates is None) == (body is function)}
        for eqn in reversed(body.body):
            if eqn.stage != "update" and not eqn.regions and is_common(eqn):
                users = ((user, value) for value in eqn.results for user in uses.get(value, ()))
                stays = rule_of(eqn).reduced or not outputs.isdisjoint(eqn.results)
                if stays or any(u.regions or (u in found and _keeps_names(u, v)) for u, v in users):
                    found.add(eqn)
    return found


def _uses_of_parameter(
    value: Value, uses: Mapping[Value, list[Equation]], needing: set[Equation], trips: int
) -> list[_ParameterUse]:
    """Return the uses of a parameter, at the fewest bytes on the way: one use for each loop that slices the parameter, and one
    use outside of loops. A value that is computed from the parameter and used outside of loops is not stored like the parameter.
    """
    loops: list[_ParameterUse] = []
    outside: list[_ParameterUse] = []
    size = value.type.local_bytes(SINGLE) * trips
    for eqn in uses.get(value, ()):
        if eqn.regions:
            loops += _uses_in_loop(eqn, value, uses, needing, trips)
        elif rule_of(eqn) is BY_NAME and len(eqn.operands) == 1 and eqn.stage != "update":
            found = _uses_of_parameter(eqn.result, uses, needing, trips)
            if all(_slices(user, eqn.result) for user in uses.get(eqn.result, ())):
                loops += found
            else:
                outside += [attrs.evolve(each, trips=trips) for each in found]
        elif eqn in needing and _keeps_names(eqn, value):
            outside.append(_ParameterUse(size, value, trips))
    found = [*loops, *sorted(outside, key=lambda each: each.bytes)[:1]]
    return [attrs.evolve(each, bytes=min(size, each.bytes)) for each in found]


def _slices(eqn: Equation, value: Value) -> bool:
    return bool(eqn.regions) and all(a.role == "sliced" for v, a in pairs(eqn) if v is value)


def _keeps_names(eqn: Equation, value: Value) -> bool:
    rule = rule_of(eqn)
    return all(rule.index.get(name, name) == name for name in value.type.names)


def _uses_in_loop(
    eqn: Equation, value: Value, uses: Mapping[Value, list[Equation]], needing: set[Equation], trips: int
) -> list[_ParameterUse]:
    """Return the first use of the slices of a parameter in a loop; none if the loop takes the parameter whole."""
    inside = next(argument for operand, argument in pairs(eqn) if operand is value)
    if inside.role != "sliced":
        return []
    return _uses_of_parameter(inside.value, uses, needing, trips * dim_of(eqn).size)[:1]


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
        """Return a finder for the halos of a function whose dimensions are split over a number of shards."""
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
