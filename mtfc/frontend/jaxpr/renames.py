"""Renames where they take the fewest bytes.

The linker renames operands step by step, where an array would have a factor twice. `place_renames` then looks at all steps
together: a rename may stand before or behind elementwise steps, casts and loops, or serve several steps. Arguments keep their
factors. A dot may only leave a factor that stands in for another one: bytes say nothing of the work of a dot along a dimension
that no layout splits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

import attrs

from mtfc.compiler.ir.types import ITEM_BYTES
from mtfc.frontend.jaxpr.cuts import CutArray, CutPlace, Space, improve
from mtfc.frontend.jaxpr.equations import LONG, scan_counts
from mtfc.frontend.jaxpr.factors import Axis, Factor, leaves, register
from mtfc.frontend.jaxpr.flat import AppliedPrimitive, Body, Flat, Operand, Var, data_of
from mtfc.frontend.jaxpr.linking import Axes, Linker

Uses = dict[int, Axes]
"""The record of axes at uses: see `AppliedPrimitive.renamed`."""


@attrs.define(eq=False, slots=False)
class StepSpace(Space):
    """The space of a step, an argument, or an operand of a loop. uses: arrays, each with its record of axes and its number there.

    kept: factors that places must keep; None for all.
    """

    graph: StepGraph = attrs.field(kw_only=True, repr=False)
    made: tuple[Var, ...] = ()
    uses: tuple[tuple[Operand, Uses, int], ...] = ()
    kept: frozenset[Factor] | None = frozenset()
    found: dict[Factor, CutPlace] = attrs.field(factory=dict)
    is_open: bool = False

    def row(self, factors: Iterable[Factor]) -> tuple[CutPlace, ...]:
        """Return the places of factors."""
        return tuple(self.found[f] if f in self.found else self._place(f) for f in factors)

    def keep(self, factors: Iterable[Factor]) -> None:
        """Let the places of factors keep them."""
        for place in self.row(factors):
            place.is_fixed = True

    def _place(self, factor: Factor) -> CutPlace:
        place = self.found[factor] = CutPlace(factor, self, self.kept is None or factor in self.kept)
        self.places.append(place)
        return place

    def open(self) -> None:
        if not self.is_open:
            self.is_open = True
            for var in (*self.made, *(x for x, _, _ in self.uses if isinstance(x, Var))):
                self.graph.array(var)

    @cached_property
    def is_changed(self) -> bool:
        return any(place.label is not factor for factor, place in self.found.items())

    def every_axis(self) -> Iterator[Axis]:
        """Yield the axes of all arrays here."""
        for var in self.made:
            yield from var.axes
        for x, record, i in self.uses:
            yield from record.get(i, x.axes)

    def axes(self, before: Axes) -> Axes:
        """Return axes with the factors that their places have now."""
        return tuple(map(self._axis, before))

    def _axis(self, before: Axis) -> Axis:
        own = leaves(before)
        found = tuple(self.found[f].label if f in self.found else f for f in own)
        return before if found == own else found


@attrs.define(eq=False)
class StepGraph:
    """The spaces and arrays of a function.

    makers: array -> the space that makes it, and how often. users: array -> the spaces that use it, and the record there.
    renamed: the arrays with other axes at a use. cut: the factors of these axes.
    """

    makers: dict[Var, tuple[StepSpace | AppliedPrimitive, int]] = attrs.field(factory=dict)
    users: defaultdict[Operand, list[tuple[StepSpace | AppliedPrimitive, Uses, int]]] = attrs.field(
        factory=lambda: defaultdict(list)
    )
    renamed: dict[Var, None] = attrs.field(factory=dict)
    cut: set[Factor] = attrs.field(factory=set)
    arrays: dict[Var, CutArray | None] = attrs.field(factory=dict)
    spaces: dict[AppliedPrimitive, StepSpace] = attrs.field(factory=dict)

    @classmethod
    def of(cls, body: Body) -> StepGraph:
        graph = cls()
        for argument in body.arguments:
            graph._add({argument: 1}, (), None)
        graph._steps(body, 1)
        graph._add({}, [(x, body.renamed, i) for i, x in enumerate(body.outputs) if i in body.renamed], None)
        return graph

    def _steps(self, body: Body, times: int) -> None:
        users = self.users
        for step in body.steps:
            if step.bodies:
                self._loop(step, times)
                continue
            for var in step.results:
                self.makers[var] = step, times
            for i, x in enumerate(step.operands):
                users[x].append((step, step.renamed, i))
            for i, axes in step.renamed.items():
                self._rename(step.operands[i], axes)

    def _loop(self, step: AppliedPrimitive, times: int) -> None:
        """Each operand or stacked result of a loop has a space, together with the array that stands for it inside."""
        (body,), (consts, carries) = step.bodies, scan_counts(step.params)
        inside = times * int(step.params["length"])
        stacks = [step.axes(i)[0] for i in range(consts + carries, len(step.operands)) if step.axes(i)]
        stacks += [result.axes[0] for result in step.results[carries:]]
        kept = frozenset(leaves(f for each in stacks for f in each))
        for i, argument in enumerate(body.arguments):
            made, uses = {argument: inside}, [(step.operands[i], step.renamed, i)]
            if 0 <= (k := i - consts) < carries:
                made[step.results[k]] = times
                uses.append((body.outputs[k], body.renamed, k))
            self._add(made, uses, kept)
        for k in range(carries, len(step.results)):
            self._add({step.results[k]: times}, [(body.outputs[k], body.renamed, k)], kept)
        self._steps(body, inside)

    def _add(
        self,
        made: Mapping[Var, int],
        uses: Iterable[tuple[Operand, Uses, int]],
        kept: frozenset[Factor] | None,
    ) -> None:
        """Add a space that is no plain step. made: array -> how often it is made."""
        own = tuple(use for use in uses if use[0].shape)
        space = StepSpace(graph=self, made=tuple(made), uses=own, kept=kept)
        for var, times in made.items():
            self.makers[var] = space, times
        for x, record, i in own:
            self.users[x].append((space, record, i))
            if i in record:
                self._rename(x, record[i])

    def _rename(self, x: Operand, axes: Axes) -> None:
        """Note a use of an array under other axes."""
        if isinstance(x, Var):
            self.renamed[x] = None
            for a, b in zip(x.axes, axes, strict=True):
                self.cut |= {*leaves(a)} ^ {*leaves(b)}

    def space(self, owner: StepSpace | AppliedPrimitive) -> StepSpace:
        if isinstance(owner, StepSpace):
            return owner
        if owner not in self.spaces:
            uses = tuple((x, owner.renamed, i) for i, x in enumerate(owner.operands))
            self.spaces[owner] = StepSpace(owner.primitive in LONG, graph=self, made=owner.results, uses=uses)
        return self.spaces[owner]

    def array(self, var: Var) -> CutArray | None:
        """Return an array with its places, and join them. It repeats its elements along some axes: their renames are free."""
        if var not in self.arrays:
            self.arrays[var] = self._array(var)
        return self.arrays[var]

    def _array(self, var: Var) -> CutArray | None:
        axes = [leaves(each) for each in var.axes]
        own = tuple(f for each in axes for f in each)
        if var not in self.renamed and self.cut.isdisjoint(own):
            return None
        (maker, times), users = self.makers[var], self.users[var]
        rows = [(maker, own), *((user, own) for user, record, i in users if i not in record)]
        for user, record, i in users if var in self.renamed else ():
            if i in record:
                factors = leaves(f for each in record[i] for f in each)
                if [f.size for f in factors] == [f.size for f in own]:
                    rows.append((user, factors))
                else:  # a reshape
                    self.space(user).keep(f for f in factors if f in self.cut)
        numbers = [n for n in range(len(own)) if any(factors[n] in self.cut for _, factors in rows)]
        places = [self.space(user).row([factors[n] for n in numbers]) for user, factors in rows]
        if var.repeated:
            repeated = [j in var.repeated for j, each in enumerate(axes) for _ in each]
            places = [
                tuple(p for n, p in zip(numbers, row, strict=True) if not repeated[n]) for row in places
            ]
        array = CutArray(data_of(var) * ITEM_BYTES[var.dtype] * times, places)
        for j in range(len(places[0])):
            for place in {row[j]: None for row in places}:
                place.nets.append((array, j))
        return array

    def changed(self) -> Iterator[StepSpace]:
        """Yield the spaces with other factors than before."""
        owners = [*self.spaces.values(), *(maker for maker, _ in self.makers.values())]
        for owner in dict.fromkeys(owners):
            if isinstance(owner, StepSpace) and owner.is_changed:
                yield owner

    def relabel(self) -> None:
        """Give arrays and uses the factors of their places."""
        for var, array in self.arrays.items():
            if array is None:
                continue
            space, users = self.space(self.makers[var][0]), self.users[var]
            if not space.is_changed and not any(self.space(user).is_changed for user, _, _ in users):
                continue
            uses = [(self.space(user), record, i, record.get(i, var.axes)) for user, record, i in users]
            before, var.axes = var.axes, space.axes(var.axes)
            for f in leaves(f for each in before for f in each):
                f.spaces.discard(var.number)
            register((f for each in var.axes for f in each), var.number)
            for user, record, i, axes in uses:
                found = user.axes(axes)
                if all(a == b or leaves(a) == leaves(b) for a, b in zip(found, var.axes, strict=True)):
                    record.pop(i, None)
                else:
                    record[i] = found


def place_renames(linker: Linker, flat: Flat) -> None:
    """Rename arrays where that takes the fewest bytes."""
    graph = StepGraph.of(flat.body)
    arrays = [*filter(None, map(graph.array, graph.renamed))]
    for var in graph.renamed:
        graph.space(graph.makers[var][0]).open()
    improve(arrays, lambda factor: factor.stands_in)
    graph.relabel()
    for space in graph.changed():
        linker.space(*space.every_axis())
