"""How much a step holds at least at one time, at any point of the program.

Claimed is: while an equation runs, every value that is made by then and read by it or later is there in some placement, in a
buffer of its own, of no fewer bytes than all axes that may split it (`dimension_names.py`) leave of it. For under every layout the same
equations run in the same order, with nothing between them but what brings values to where the next one needs them, and a
placement is dropped only after its last use. Arguments and gradients are counted apart, at all times.

What is not claimed, as some layout makes it untrue:

- An equation that mixes positions of a split dimension, or multiplies several operands, has others in its place, which may read
  something that was made of a value before. So what the first kind makes, and what nothing but it still needs, counts where those
  dimensions are whole; what the second kind reads counts for its other uses.
- The last equation that reads a value may write its result there, wherever the two have the same dimensions. It may even where
  the undistributed program does not: a slice of a parameter is nobody's to overwrite, but its gathered copy is. So a value counts
  up to the equation before (`_may_take_over`). What a gradient may lie in before or after counts nowhere.
- What replaces an argument, of the step or of a loop, may be written into that (`_replacing`).
- What is only seen otherwise, as windows or a broadcast, may be stored if it is sent, and what it shows is then there no more. So
  that counts as if split as all of them (`_Use`).
- What takes no work may be made again instead of being kept (`_can_be_made_again`): filled arrays, slices, concatenations. That
  casts and renames are made again where memory peaks has not been seen, and it is taken not to happen; it is not ruled out.
- What is multiplied by two numbers may be multiplied by both at once (`merging_in`).
- What a product of several operands makes of some of them on its way may be what another equation makes of them later, which then
  reads them no more (`_Uses.multiplied`).
- Values that differ here may be equal once others stand in the place of what they are made of (`equal_in`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import attrs
import numpy as np
from numpy.typing import NDArray

from mtfc.compiler.analysis.liveness import takes_over, unstored
from mtfc.compiler.cost.memory import gradients
from mtfc.compiler.ir.core import Equation, Function, Value, walk
from mtfc.compiler.ir.loops import pairs, region_of
from mtfc.compiler.ir.opdef import no_flops
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.search.global_layouts.dimension_names import Dims, Naming, computed, rule_of
from mtfc.compiler.search.global_layouts.named_arrays import SINGLE, bridge_of

KEPT = 3
"""Points that are looked at for each dimension that is split, those that hold most then."""

SPLIT = 8.0
"""Over so many processors."""

Bytes = NDArray[np.float64]


@attrs.frozen
class Kind:
    """Values of these dimensions, which count where those of `unless` are whole."""

    dims: Dims
    unless: Dims


@attrs.frozen
class Points:
    """bytes: [point, kind]."""

    kinds: tuple[Kind, ...]
    bytes: Bytes


@attrs.frozen
class _Life:
    """From the equation `birth` to the equation `death`, of one function."""

    kind: Kind
    bytes: int
    birth: int
    death: int


def points_of(function: Function, naming: Naming, positions: Mapping[Equation, Dims | None]) -> Points:
    """The points at which most is held besides arguments and gradients, for one layout or the other."""
    numbers: dict[Kind, int] = {}
    without = _shared_with_gradients(function) | equal_in(function, positions) | merging_in(function)
    found = list(_Finder(naming, positions, without, numbers).points(function))
    bytes = np.array([_row(each, len(numbers)) for each in found])
    return Points(tuple(numbers), bytes[sorted(_largest(tuple(numbers), bytes))])


def _row(point: Mapping[int, int], length: int) -> Bytes:
    row = np.zeros(length)
    row[list(point)] = list(point.values())
    return row


def _largest(kinds: tuple[Kind, ...], bytes: Bytes) -> set[int]:
    """The points that hold most where nothing is split, or one dimension is; and of what counts always."""
    always = np.array([not kind.unless for kind in kinds])
    found: set[int] = set()
    for name in ("", *sorted(computed(frozenset[str]().union(*(kind.dims for kind in kinds))))):
        share = np.array([1 / SPLIT if name in kind.dims else 1.0 for kind in kinds])
        whole = np.array([name not in kind.unless for kind in kinds])
        for weights in (share * whole, share * always):
            found.update(np.argsort(-(bytes @ weights), kind="stable")[:KEPT].tolist())
    return found


def _shared_with_gradients(function: Function) -> set[Value]:
    """Values that may lie where a gradient does, before it or after it."""
    before, after = set(gradients(function)), set(gradients(function))
    for eqn in reversed(function.body):
        for result in before.intersection(eqn.results):
            before.update(value for value in eqn.operands if _are_alike(value, result))
    for eqn in function.body:
        for operand in after.intersection(eqn.operands):
            after.update(value for value in eqn.results if _are_alike(value, operand))
    return before | after


def _are_alike(one: Value, other: Value) -> bool:
    return one.type.local_bytes(SINGLE) == other.type.local_bytes(SINGLE)


def equal_in(function: Function, positions: Mapping[Equation, Dims | None]) -> set[Value]:
    """Values that may turn out to be earlier ones, those in loops too: all products of several operands that have the same
    dimensions, as they are taken in another order; what mixes positions of the same; and what is made of them alike.
    """
    return set(_equal(function, positions, {}, ()))


def _equal(
    function: Function,
    positions: Mapping[Equation, Dims | None],
    known: dict[Value, object],
    arguments: Iterable[tuple[Value, object]],
) -> Iterator[Value]:
    """known: numbers of values, the same for those that may be equal. arguments: each with what it is outside."""
    numbers: dict[object, int] = {}

    def is_met(value: Value, key: object) -> bool:
        count = len(numbers)
        known[value] = numbers.setdefault(key, count)
        return len(numbers) == count

    yield from (value for value, key in arguments if is_met(value, key))
    for eqn in function.body:
        if eqn.regions:
            inside = ((a.value, (a.role, known.get(v, v))) for v, a in pairs(eqn) if a.role != "carried")
            yield from _equal(region_of(eqn), positions, known, inside)
        yield from (value for value, key in _keys(eqn, positions, known) if is_met(value, key))


def _keys(
    eqn: Equation, positions: Mapping[Equation, Dims | None], known: Mapping[Value, object]
) -> Iterator[tuple[Value, object]]:
    """Each result with what it is: results of equal keys may be equal."""
    if eqn.regions:
        for result, output in zip(eqn.results, region_of(eqn).outputs, strict=True):
            yield result, result if output.updates else (eqn, known.get(output.value, output.value))
        return
    operands, mixed = [known.get(value, value) for value in eqn.operands], positions.get(eqn, frozenset())
    attributes = [(name, repr(value)) for name, value in sorted(eqn.attrs.items()) if name != "over"]
    of: object = (eqn.op, *attributes, *operands) if mixed is not None else eqn.op
    for i, result in enumerate(eqn.results):
        yield result, (i, frozenset(operands) if mixed else of, frozenset(result.type.dims))


def _may_take_over(eqn: Equation, operand: Value) -> bool:
    """Whether a result may lie where the operand does: dimensions may come in another order than they have here."""
    if eqn.regions:
        return any(takes_over(eqn, operand, result, SINGLE) for result in eqn.results)
    index = rule_of(eqn).index
    along = {index.get(name, name) for name in operand.type.names}
    return any(_are_alike(operand, result) and along == set(result.type.names) for result in eqn.results)


def _can_be_made_again(eqn: Equation) -> bool:
    return not eqn.regions and not has_trait(eqn, "cast", "rename") and OPS[eqn.op].flops is no_flops


def merging_in(function: Function) -> set[Value]:
    """What is multiplied by numbers twice, once by an einsum, and what comes of that, those in loops too: an einsum is a product
    like any other where its operand comes in its order, as a product of several may, and then the two are one.
    """
    made = {eqn.results[0]: eqn for eqn in walk(function.body) if _is_by_number(eqn)}
    found: set[Value] = set()
    for eqn in made.values():
        for value in (v for v in eqn.operands if v in made):
            if has_trait(eqn, "dot") or has_trait(made[value], "dot"):
                found |= {value, *eqn.results}
    return found


def _is_by_number(eqn: Equation) -> bool:
    """Whether it multiplies one operand by another without dimensions."""
    dims = [frozenset(value.type.dims) for value in eqn.operands]
    is_multiplied = has_trait(eqn, "multiply", "dot") and len(dims) == 2
    return is_multiplied and set(dims) == {frozenset(), frozenset(eqn.result.type.dims)}


def _replacing(function: Function) -> set[Value]:
    return {output.value for output in function.outputs if output.updates}


@attrs.frozen
class _Finder:
    """without: values that are not counted. numbers: of the kinds that were met."""

    naming: Naming
    positions: Mapping[Equation, Dims | None]
    without: set[Value]
    numbers: dict[Kind, int]

    def points(self, function: Function) -> Iterator[dict[int, int]]:
        """What is held while each equation runs, by kind; while a loop runs, at each point of an iteration too."""
        changes: list[list[tuple[int, int]]] = [[] for _ in range(len(function.body) + 2)]
        for life in self._lives(function):
            number = self.numbers.setdefault(life.kind, len(self.numbers))
            changes[life.birth].append((number, life.bytes))
            changes[life.death + 1].append((number, -life.bytes))
        now: dict[int, int] = {}
        for i, eqn in enumerate(function.body):
            for number, bytes in changes[i]:
                now[number] = now.get(number, 0) + bytes
            if eqn.regions:
                for inside in self.points(region_of(eqn)):
                    yield {each: now.get(each, 0) + inside.get(each, 0) for each in {*now, *inside}}
            elif any(bytes > 0 for _, bytes in changes[i]):
                yield dict(now)
        yield {}

    def _lives(self, function: Function) -> Iterator[_Life]:
        uses, nothing = _Uses.of(function, self.positions), frozenset[str]()
        made = {value: (i, eqn) for i, eqn in enumerate(function.body) for value in eqn.results}
        without = self.without.union(_replacing(function), uses.views)
        for value in (a.value for a in function.arguments if a.role == "sliced"):
            if value not in without:
                yield from self._life(value, 0, nothing, uses)
        for value, (birth, eqn) in made.items():
            if value not in without and value.type.dims and not _can_be_made_again(eqn):
                yield from self._life(value, birth, self.positions.get(eqn, nothing) or nothing, uses)

    def _life(self, value: Value, birth: int, mixed: Dims, uses: _Uses) -> Iterator[_Life]:
        """As long as it is sure to be used; then as long as some part of it is; then where its dimensions are whole."""
        dims, bytes = self.naming.names[value], value.type.local_bytes(SINGLE)
        for use in uses.of_value(value):
            further = frozenset[str]().union(*(self.naming.names[view] for view in use.views))
            if birth <= use.last:
                kind = Kind(dims | further, mixed | use.mixed)
                yield _Life(kind, int(bytes * use.share), birth, use.last)
                birth = use.last + 1


@attrs.frozen
class _Use:
    """Of a value: the last equation until which it is needed, how much of it is, and what it is seen as. mixed: dimensions that
    must be whole for that to be sure.
    """

    last: int
    share: float = 1.0
    views: tuple[Value, ...] = ()
    mixed: Dims = frozenset()


@attrs.frozen
class _Uses:
    """The uses of values in a function, by numbers of equations. Instead of views what they are views of is used.

    multiplied: by the numbers of products of several operands, these and what they are views of.
    """

    uses: Mapping[Value, list[tuple[int, Equation]]]
    outputs: frozenset[Value]
    views: Mapping[Value, tuple[Value, ...]]
    positions: Mapping[Equation, Dims | None]
    length: int
    multiplied: Mapping[int, set[Value]]

    @classmethod
    def of(cls, function: Function, positions: Mapping[Equation, Dims | None]) -> _Uses:
        uses: dict[Value, list[tuple[int, Equation]]] = {}
        for i, eqn in enumerate(function.body):
            for value in dict.fromkeys(eqn.operands):
                uses.setdefault(value, []).append((i, eqn))
        outputs = frozenset(output.value for output in function.outputs)
        views = unstored(function)
        products = {i: eqn for i, eqn in enumerate(function.body) if positions.get(eqn, eqn) is None}
        multiplied = {i: set(_seen(eqn.operands, views)) for i, eqn in products.items()}
        return cls(uses, outputs, views, positions, len(function.body), multiplied)

    def of_value(self, value: Value) -> list[_Use]:
        """All, the surest first: for those that need more than others of what they see it as, or of what must be whole."""
        found = list(self._of(value))
        return sorted(found, key=lambda use: (len(use.mixed), len(use.views), use.last))

    def _of(self, value: Value) -> Iterator[_Use]:
        if value in self.outputs:
            yield _Use(self.length)
        for i, eqn in self.uses.get(value, ()):
            is_view = len(eqn.results) == 1 and eqn.results[0] in self.views
            taken = not is_view and _may_take_over(eqn, value)
            later = list(self._of(eqn.result)) if is_view else [_Use(i - taken)]
            bridge, mixed = bridge_of(eqn), self.positions.get(eqn, frozenset())
            if mixed is None or self._may_be_made_before(i, eqn, value):
                continue
            for use in later:
                if bridge is not None and is_view:
                    views, share = (*use.views, eqn.result), use.share * bridge.share
                    yield attrs.evolve(use, views=views, share=share)
                elif is_view and not has_trait(
                    eqn, "broadcast"
                ):  # which adds to the dimensions of what it shows
                    views, share = (*use.views, eqn.result), use.share * _part_seen(eqn)
                    yield attrs.evolve(use, views=views, share=share, mixed=use.mixed | mixed)
                else:
                    yield attrs.evolve(use, mixed=use.mixed | mixed)

    def _may_be_made_before(self, number: int, eqn: Equation, value: Value) -> bool:
        """Whether a product of several operands may make what an equation makes of a value."""
        if not self.multiplied or not has_trait(eqn, "dot", "multiply", "sum"):
            return False
        seen = set(_seen((value,), self.views))
        return any(i < number and not seen.isdisjoint(values) for i, values in self.multiplied.items())


def _seen(values: Iterable[Value], views: Mapping[Value, tuple[Value, ...]]) -> Iterator[Value]:
    """Values, and what they are views of."""
    for value in values:
        yield value
        yield from _seen(views.get(value, ()), views)


def _part_seen(eqn: Equation) -> float:
    """Of the bytes of its operands, how many a view or product has at most."""
    before, after = (
        [value.type.local_bytes(SINGLE) for value in each] for each in ({*eqn.operands}, eqn.results)
    )
    return min(1.0, sum(after) / sum(before))
