"""Labels for the fewest bytes: minimum cuts between the dimensions of equations.

A space is an equation, or an argument. Its places are its dimensions, and no two of them have one label. An array is made in one
space and read in others, so it has a row of places in each of them. A row with other labels than the first is a rename, which
takes the bytes of the array. Equal rows count once.

The fewest bytes for all labels together are a multicut, which is NP-hard. `Swap` changes two labels at a time, like the moves of
Boykov, Veksler and Zabih, "Fast Approximate Energy Minimization via Graph Cuts" (2001). A space with both labels keeps them, and
one with a single label may take the other. The best choice for all spaces is then a minimum cut, found by a maximum flow: a net
joins the places of one axis of an array, and is cut if they have both labels. Besides, spaces with both labels may exchange them:
all that uncut nets connect do so together. The result is the least for two labels and one such group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations
from math import inf
from typing import Any

import attrs

from mtfc.compiler.analysis.mincut import SINK, SOURCE, FlowNetwork, Node

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
    """An equation or an argument. is_dot: True if it takes labels of lower rank only."""

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
        """Let it take the bytes of an array to separate the places of a net. All places with the second label are opened."""
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
