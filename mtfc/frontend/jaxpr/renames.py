"""Renames where they take the fewest bytes.

The linker renames operands step by step, where an array would have a factor twice. `place_renames` then looks at all steps
together: a rename may stand before or behind elementwise steps, casts and loops, or serve several steps. Arguments keep their
factors. A dot may only leave a factor that stands in for another one: bytes say nothing of the work of a dot along a dimension
that no layout splits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import combinations
from math import inf
from typing import Any

import attrs

from mtfc.compiler.analysis.mincut import SINK, SOURCE, FlowNetwork, Node
from mtfc.compiler.ir.types import ITEM_BYTES
from mtfc.frontend.jaxpr.expansions import LONG, scan_counts
from mtfc.frontend.jaxpr.factors import Axis, Factor, leaves, register
from mtfc.frontend.jaxpr.flat import AppliedPrimitive, Body, Flat, Operand, Var, data_of
from mtfc.frontend.jaxpr.primitive_rules import Axes, Linker

# Labels for the fewest bytes: minimum cuts between the dimensions of equations
#
# A space is an equation, or an argument. Its places are its dimensions, and no two of them have one label. An array is made in
# one space and read in others, so it has a row of places in each of them. A row with other labels than the first is a rename,
# which takes the bytes of the array. Equal rows count once.
#
# The fewest bytes for all labels together are a multicut, which is NP-hard. `Swap` changes two labels at a time, like the moves
# of Boykov, Veksler and Zabih, "Fast Approximate Energy Minimization via Graph Cuts" (2001). A space with both labels keeps
# them, and one with a single label may take the other. The best choice for all spaces is then a minimum cut, found by a maximum
# flow: a net joins the places of one axis of an array, and is cut if they have both labels. Besides, spaces with both labels
# may exchange them: all that uncut nets connect do so together. The result is the least for two labels and one such group.


Label = Any
Net = tuple["CutArray", int]
"""An array and the number of one of its axes."""

MOST_NETS = 64
"""The number of cut nets up to which spaces exchange labels: it takes a flow for each group of them."""


@attrs.define(eq=False)
class CutPlace:
    """A dimension of a space. is_fixed: True if it keeps its label. nets: those that join it, once its space is open."""

    label: Label
    space: Space = attrs.field(repr=False)
    is_fixed: bool = False
    nets: list[Net] = attrs.field(factory=list, repr=False)


@attrs.define(eq=False)
class Space:
    """An equation or an argument. is_dot: True if it takes labels of lower rank only. places: the dimensions of the space."""

    is_dot: bool = False
    places: list[CutPlace] = attrs.field(factory=list)

    def open(self) -> None:
        """Make the places, and their nets."""


@attrs.define(eq=False)
class CutArray:
    """An array. rows: the places of its axes where it is made, and at each use."""

    bytes: int
    rows: list[tuple[CutPlace, ...]]

    def cost(self) -> int:
        """Return the bytes of its renames."""
        return self.bytes * (len({tuple(place.label for place in row) for row in self.rows}) - 1)


def improve(arrays: Iterable[CutArray], rank: Callable[[Label], int]) -> None:
    """Change labels until no swap of two saves bytes. arrays: at least all that have renames.

    rank: a dot takes no label of the same or a higher rank, unless it has both.
    """
    cut = dict.fromkeys(array for array in arrays if array.cost())
    tried = set[tuple[Space, Label, Label]]()
    done = set[tuple[Label, Label]]()
    while pairs := [pair for pair in _pairs(cut, rank) if pair not in done]:
        if Swap(pairs[0], rank, tried).everywhere(cut):
            done.clear()
        done.add(pairs[0])


def _pairs(arrays: Iterable[CutArray], rank: Callable[[Label], int]) -> Iterable[tuple[Label, Label]]:
    """Return the pairs of labels of cut nets."""
    found = dict[tuple[Label, Label], None]()
    for array in arrays:
        for pins in zip(*array.rows, strict=True):
            labels = dict.fromkeys(pin.label for pin in pins)
            if len(labels) > 1:
                found |= dict.fromkeys(combinations(sorted(labels, key=rank), 2))
    return found


@attrs.frozen
class Swap:
    """A swap of two labels, the first one of no higher rank. tried: spaces with both that gain nothing by an exchange."""

    labels: tuple[Label, Label]
    rank: Callable[[Label], int]
    tried: set[tuple[Space, Label, Label]]

    def everywhere(self, arrays: dict[CutArray, None]) -> bool:
        """Save bytes, and add the arrays that then have renames. Return True if bytes are saved."""
        is_better = self._cut(arrays, self._cut_nets(arrays), {})
        while self._exchanged(arrays):
            is_better = True
        return is_better

    def _cut_nets(self, arrays: Iterable[CutArray]) -> list[Net]:
        """Return the nets that have both labels."""
        nets = ((array, j) for array in arrays for j in range(len(array.rows[0])))
        return [(array, j) for array, j in nets if {row[j].label for row in array.rows} >= {*self.labels}]

    def _exchanged(self, arrays: dict[CutArray, None]) -> bool:
        """Save bytes by an exchange of both labels in a group of spaces."""
        nets = self._cut_nets(arrays)
        if len(nets) > MOST_NETS:
            return False
        for space in dict.fromkeys(row[j].space for array, j in nets for row in array.rows):
            own = {
                place: place.label for each in self._group(space) for place in filter(self.has, each.places)
            }
            for place in own:
                place.label = self._other(place)
            nets = self._cut_nets({array: None for place in own for array, _ in place.nets})
            if own and self._cut(arrays, nets, own):
                return True
        return False

    def _cut(self, arrays: dict[CutArray, None], nets: Iterable[Net], before: dict[CutPlace, Label]) -> bool:
        """Give places the labels of a minimum cut where that saves bytes, and add the arrays that then have renames.

        nets: where to begin. before: what exchanged places had before.
        """
        network = Network(self)
        for net in nets:
            network.join(net)
        seconds = network.seconds()
        new = {place: self.labels[place in seconds] for place in network.free}
        before |= {place: place.label for place, label in new.items() if place.label != label}
        _label(new)
        is_better = False
        for group in _connected(before):
            arrays_of_group = dict.fromkeys(array for place in group for array, _ in place.nets)
            after, bytes = {place: place.label for place in group}, sum(x.cost() for x in arrays_of_group)
            _label({place: before[place] for place in group})
            if bytes < sum(x.cost() for x in arrays_of_group):
                _label(after)
                arrays |= {x: None for x in arrays_of_group if x.cost()}
                is_better = True
        return is_better

    def _group(self, space: Space) -> list[Space]:
        """Return the spaces with both labels that uncut nets connect with one, or nothing if they need not exchange them."""
        queue = [space] if self._has_both(space) else []
        found = dict.fromkeys(queue)
        while queue:
            each = queue.pop()
            self.tried.add((each, *self.labels))
            for array, j in (net for place in filter(self.has, each.places) for net in place.nets):
                pins = [row[j] for row in array.rows]
                is_cut = any(pin.label != pins[0].label for pin in pins)
                new = [] if is_cut else [pin.space for pin in pins if pin.space not in found]
                queue += (both := [*filter(self._has_both, dict.fromkeys(new))])
                found |= dict.fromkeys(both)
        return [*found]

    def has(self, place: CutPlace) -> bool:
        return place.label in self.labels

    def _other(self, place: CutPlace) -> Label:
        return self.labels[place.label == self.labels[0]]

    def is_free(self, place: CutPlace) -> bool:
        """Return True if a place may take the other label."""
        if place.is_fixed or (place.space.is_dot and self.rank(self._other(place)) >= self.rank(place.label)):
            return False
        place.space.open()
        return sum(map(self.has, place.space.places)) == 1

    def _has_both(self, space: Space) -> bool:
        """Return True if a space has both labels, and may exchange them, and has not tried that."""
        if (space, *self.labels) in self.tried:
            return False
        space.open()
        own = [*filter(self.has, space.places)]
        return len(own) == 2 and not any(place.is_fixed for place in own)


def _label(places: Mapping[CutPlace, Label]) -> None:
    for place, label in places.items():
        place.label = label


def _connected(places: Iterable[CutPlace]) -> Iterator[list[CutPlace]]:
    """Yield the places that are connected by arrays or spaces."""
    near = defaultdict[CutArray | Space, list[CutPlace]](list)
    for place in places:
        for each in _joints(place):
            near[each].append(place)
    left = dict.fromkeys(places)
    while left:
        group = [left.popitem()[0]]
        for place in group:
            for each in _joints(place):
                new = [other for other in near.pop(each, []) if other in left]
                group += new
                for other in new:
                    del left[other]
        yield group


def _joints(place: CutPlace) -> set[CutArray | Space]:
    return {place.space, *(array for array, _ in place.nets)}


@attrs.define
class Network:
    """The flow network of two labels, the second of which is the source. It is made as far as the source's side goes."""

    swap: Swap
    flow: FlowNetwork = attrs.field(factory=FlowNetwork)
    free: dict[CutPlace, None] = attrs.field(factory=dict)
    _joined: set[Net] = attrs.field(factory=set)
    _opened: set[CutPlace] = attrs.field(factory=set)
    _waiting: list[CutPlace] = attrs.field(factory=list)

    def join(self, net: Net) -> None:
        """Join the places of a net by arcs whose capacity is the bytes of the array: so much it costs to separate them.

        Places that have the second label wait to be opened, because their own nets have to be joined, too.
        """
        if net in self._joined:
            return
        self._joined.add(net)
        array, j = net
        pins = [*dict.fromkeys(row[j] for row in array.rows if self.swap.has(row[j]))]
        if len(pins) == 2:
            self.flow.arc(pins[0], pins[1], array.bytes)
            self.flow.arc(pins[1], pins[0], array.bytes)
        elif pins:
            self.flow.arc((net, "in"), (net, "out"), array.bytes)
            for pin in pins:
                self.flow.arc(pin, (net, "in"), inf)
                self.flow.arc((net, "out"), pin, inf)
        self._waiting += [pin for pin in pins if pin.label == self.swap.labels[1]]

    def _open(self, node: Node) -> bool:
        """Join all nets of a place that may take either label, or else join the place to its own label.

        Return False if that has been done, and for nodes that are no places.
        """
        known = len(self._opened)
        self._waiting += [node] if isinstance(node, CutPlace) else []
        while self._waiting:
            place = self._waiting.pop()
            if place in self._opened:
                continue
            self._opened.add(place)
            if self.swap.is_free(place):
                self.free[place] = None
                for net in place.nets:
                    self.join(net)
            elif place.label == self.swap.labels[1]:
                self.flow.arc(SOURCE, place, inf)
            else:
                self.flow.arc(place, SINK, inf)
        return len(self._opened) > known

    def seconds(self) -> set[Node]:
        """Return the fewest nodes on the second label's side of a minimum cut."""
        self._open(SOURCE)
        return self.flow.source_side(self._open)


# Equations and arrays as spaces and cut arrays


Uses = dict[int, Axes]
"""The record of axes at uses: see `AppliedPrimitive.renamed`."""


@attrs.define(eq=False, slots=False)
class StepSpace(Space):
    """The space of a step, an argument, or an operand of a loop. uses: arrays, each with its record of axes and its number
    there.

    kept: factors that places must keep; None for all. made: the arrays that the space makes. found: factor -> its place.
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
        """Make the place of a factor."""
        place = self.found[factor] = CutPlace(factor, self, self.kept is None or factor in self.kept)
        self.places.append(place)
        return place

    def open(self) -> None:
        """Join the places of the space with those of its arrays' other spaces, once."""
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
        """Return an axis with the labels of its factors' places."""
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
        """Return the graph of a function's body. Arguments and outputs keep all of their factors."""
        graph = cls()
        for argument in body.arguments:
            graph._add({argument: 1}, (), None)
        graph._steps(body, 1)
        graph._add({}, [(x, body.renamed, i) for i, x in enumerate(body.outputs) if i in body.renamed], None)
        return graph

    def _steps(self, body: Body, times: int) -> None:
        """Add the steps of a body that runs `times` times.

        Only loops have spaces yet; `space` makes one for another step on demand.
        """
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
        """Each operand or stacked result of a loop has a space, together with the array that stands for it inside.

        times: how often the loop runs.
        """
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
        """Add the space of an argument, of a loop's operand, or of outputs.

        made: each array that the space makes -> how often it is made in a run. uses: the arrays that the space uses, as in
        `StepSpace`. kept: the factors that places must keep; None for all.
        """
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
        """Return the space of a step, made at its first use."""
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
        """Return an array whose axes may be renamed, with its places in the spaces that make and use it; None if nothing can
        change.
        """
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
