"""Names of dimensions by their roles: what a function does with an axis says what the axis is.

Token ids point into a table along `vocab`, attention compares positions along `length`, and so on. A role names a dimension of an
argument if no other one has this role, or has it as clearly. Otherwise the argument's or the module's name stands in front. The
axes of weights that have no role get the name of the module that makes them, such as `fc1`. Names here are only proposed: axes
that the function keeps apart stay apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

import attrs

from mtfc.frontend.jaxpr.equations import scan_counts
from mtfc.frontend.jaxpr.factors import Axis, Factor, leaves
from mtfc.frontend.jaxpr.flat import AppliedPrimitive, Body, Operand, Var
from mtfc.frontend.jaxpr.rules.indexing import index_numbers, is_indexing

MOVES = frozenset({
    "broadcast_in_dim", "convert_element_type", "copy", "dynamic_slice", "reduce_precision", "reshape", "slice", "split",
    "squeeze", "transpose",
})  # fmt: skip
"""Primitives whose results have only elements of the first operand."""

CHOOSES = ("argmax", "sort", "top_k")
"""Primitives by which routers choose experts."""

SPACE = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}
"""Number of axes along which the windows of a convolution move -> their roles."""


class Source(NamedTuple):
    """An argument's array. axes: without the words of a key. names: of a weight's module, or of an input, short ones first."""

    var: Var
    axes: tuple[Axis, ...]
    names: Sequence[str]
    is_weight: bool


class Side(NamedTuple):
    """An operand of a dot, or the filters of a convolution: the factors that the result keeps, those that are summed, batches.

    source: the weight that the operand is; None for another array.
    """

    source: Source | None
    kept: Axis
    summed: Axis
    batch: Axis = ()
    is_dot: bool = True


class Sighting(NamedTuple):
    """A role of factors. where: names to tell it from others. is_clear: True if it comes before roles that are less clear."""

    role: str
    factors: Axis
    where: tuple[str, ...]
    is_clear: bool


@attrs.define(eq=False)
class RoleFinder:
    """Follows weights, ids and scores through the forward pass.

    sources, ids: array -> the argument that it is made of. scores: array -> the sides of the dot that it is computed from
    elementwise, and whether by an exponential. weights: the uses of weights in order. labels: axes that ids point into.
    """

    sources: dict[Operand, Source]
    ids: dict[Operand, Var] = attrs.field(factory=dict)
    scores: dict[Operand, tuple[Sequence[Side], bool]] = attrs.field(factory=dict)
    weights: list[Side] = attrs.field(factory=list)
    sightings: dict[Factor, Sighting] = attrs.field(factory=dict)
    scanned: set[Var] = attrs.field(factory=set)
    attentions: list[tuple[Sequence[Side], Axis, Axis]] = attrs.field(factory=list)
    labels: list[tuple[Axis, Var]] = attrs.field(factory=list)
    inputs: dict[Factor, Source] = attrs.field(factory=dict)
    chooses: bool = False

    def run(self, body: Body) -> None:
        """Follow the steps of the forward pass in order, and note the roles of their axes."""
        given = [source for source in self.sources.values() if not source.is_weight]
        self.inputs = {f: source for source in given for f in _join(source.axes)}
        self.ids = {source.var: source.var for source in given if source.var.dtype[0] in "iu"}
        self._steps(body)
        for attention in self.attentions:
            self._attention(*attention)
        for pointed, ids in self.labels:
            self._label(pointed, ids)
        for use in self.weights if self.chooses else ():
            self.see("experts", (f for f in use.batch if f not in self.inputs), use.source)
        summed = [f for use in self.weights if use.is_dot for f in use.summed]
        for f, source in self.inputs.items():
            if f in summed and len(source.axes) > 1 and f in leaves(source.axes[-1]):
                self.see("features", (f,), source)
        others = {f for use in self.weights if not use.is_dot for f in (*use.kept, *use.summed)}
        for f in (f for use in self.weights for f in use.kept if f in summed and f not in others):
            self.see("hidden", (f,), ())

    def see(
        self,
        role: str,
        factors: Iterable[Factor],
        where: Source | Sequence[str] | None,
        is_clear: bool = False,
    ) -> None:
        """Note a role of factors that have none. where: what gives the role its name.

        is_clear: True if nothing else can have this role.
        """
        own = leaves(factors)
        names = where.names if isinstance(where, Source) else where or ()
        if own and self.sightings.keys().isdisjoint(own):
            self.sightings.update(dict.fromkeys(own, Sighting(role, own, tuple(names), is_clear)))

    def _steps(self, body: Body) -> None:
        """Follow values from the operands to the results of each forward step, and read what single primitives tell about
        roles.
        """
        for step in body.steps:
            if step.stage != "forward":
                continue
            for inner in step.bodies:
                for x, y in zip(step.operands, inner.arguments, strict=False):
                    self._pass(x, y)
                self._steps(inner)
            for x, y in product(step.operands, step.results if not step.bodies else ()):
                self._pass(x, y, step.primitive in MOVES, step.primitive == "exp")
            self.chooses |= step.primitive in CHOOSES
            if step.primitive in READERS:
                READERS[step.primitive](self, step)

    def _pass(self, x: Operand, y: Var, moves: bool = True, is_exp: bool = False) -> None:
        """Let an array be made of the arguments that another array is made of."""
        if moves and x in self.sources:
            self.sources.setdefault(y, self.sources[x])
        if x in self.ids and y.dtype[0] in "iu":
            self.ids.setdefault(y, self.ids[x])
        if x in self.scores and prod(x.shape) == prod(y.shape):
            sides, was_exp = self.scores[x]
            self.scores[y] = sides, was_exp or is_exp

    # Primitives

    def dot(self, step: AppliedPrimitive) -> None:
        """Note a use of a weight, or a dot of attention."""
        if "ragged_dot_dimension_numbers" in step.params:
            numbers = step.params["ragged_dot_dimension_numbers"]
            summed, (left, right) = numbers.dot_dimension_numbers
            batch: Sequence[Sequence[int]] = (left, (*right, *numbers.rhs_group_dimensions))
        else:
            summed, batch = step.params["dimension_numbers"]
        sides = [self._side(step, i, summed[i], batch[i]) for i in (0, 1)]
        weights = [side for side in sides if side.source]
        self.weights += weights
        for x, side, other in zip(step.operands, sides, sides[::-1], strict=False):
            scores, is_exp = self.scores.get(x, ((), False))
            if is_exp and not weights:
                self.attentions.append((scores, side.summed, other.kept))
        if not weights:
            self.scores[step.results[0]] = sides, False

    def _side(self, step: AppliedPrimitive, i: int, summed: Sequence[int], batch: Sequence[int]) -> Side:
        """Return an operand of a dot, by the positions of its summed axes and of its batches."""
        axes, source = step.axes(i), self._weight(step.operands[i])
        kept = _join(each for j, each in enumerate(axes) if j not in (*summed, *batch))
        return Side(source, kept, _join(axes[j] for j in summed), _join(axes[j] for j in batch))

    def _weight(self, x: Operand) -> Source | None:
        source = self.sources.get(x)
        return source if source and source.is_weight and len(source.axes) > 1 else None

    def convolution(self, step: AppliedPrimitive) -> None:
        """Note height, width and channels of an input, and the sides of a kernel."""
        numbers, source = step.params["dimension_numbers"], self._weight(step.operands[1])
        image, kernel = (step.axes(i) for i in (0, 1))
        (_, channels, *places), (made, summed, *windows) = numbers.lhs_spec, numbers.rhs_spec
        roles = SPACE.get(len(places), ())
        for role, j in zip((*roles, "channels"), (*places, channels), strict=False):
            if own := [f for f in leaves(image[j]) if f in self.inputs]:
                self.see(role, own, self.inputs[own[0]], True)
        if source:
            self.weights.append(Side(source, leaves(kernel[made]), leaves(kernel[summed]), is_dot=False))
            for role, j in zip(roles, windows, strict=False):
                self.see(f"kernel_{role}", kernel[j], source)
            if not source.names:
                self.see("out_channels", kernel[made], source)
        for role, j in zip(roles, numbers.out_spec[2:], strict=False):
            self.see(f"out_{role}", step.results[0].axes[j], source)

    def lookup(self, step: AppliedPrimitive) -> None:
        """Note the sides of a table into which ids point, and the length of the ids."""
        table, ids = step.operands[:2]
        if not is_indexing(step) or ids not in self.ids:
            return
        axes, numbers, source = step.axes(0), index_numbers(step), self._weight(table)
        pointed = _join(axes[j] for j in numbers.axes)
        if source is None:
            self.labels.append((pointed, self.ids[ids]))
        elif len(numbers.axes) == 1 and len(table.shape) == 2:
            self._table(pointed, self.ids[ids], source)
            self.see("embed", _join(axes[j] for j in numbers.window(table)), source, True)

    def _table(self, pointed: Axis, ids: Var, source: Source) -> None:
        """Note the roles of a lookup's axes: indices point at the vocabulary, and have a batch and a length."""
        self.see("vocab", pointed, source, True)
        if len(ids.shape) == 2:
            self.see("length", ids.axes[1], self.sources[ids], True)

    def one_hot(self, step: AppliedPrimitive) -> None:
        """Note the last axis of a comparison with ids."""
        ids = next((self.ids[x] for x in step.operands if x in self.ids), None)
        if ids is not None:
            self.labels.append((_join(step.results[0].axes[-1:]), ids))

    def scan(self, step: AppliedPrimitive) -> None:
        """Note the layers of stacked weights, and the steps or the length of an input."""
        body, start = step.bodies[0], sum(scan_counts(step.params))
        trains = any(each.stage == "backward" for each in body.steps)
        for i, x in enumerate(step.operands[start:], start):
            source = self.sources.get(x)
            if source and leaves(step.axes(i)[0]) == _join(source.axes[:1]):
                role = "layers" if source.is_weight else "steps" if trains else "length"
                self.see(role, step.axes(i)[0], source, True)
                self.scanned.add(source.var)

    # What several steps say

    def _label(self, pointed: Axis, ids: Var) -> None:
        """Note the role of an axis into which ids point, if a weight makes or sums it."""
        for use in self.weights:
            if use.source and pointed and {*pointed} <= {*use.summed}:
                self._table(pointed, ids, use.source)
            elif not {*pointed}.isdisjoint(use.kept):
                self.see("vocab" if len(ids.shape) > 1 else "classes", pointed, use.source)

    def _attention(self, sides: Sequence[Side], keys: Axis, values: Axis) -> None:
        """Note the roles of a softmax between two dots. keys: the positions that it weighs. values: the values' free factors."""
        ends = {*sides[0].summed, *values}
        uses = [use for use in self.weights if not ends.isdisjoint(use.kept)]
        made = {f for use in uses for f in use.kept}
        own, *more = next((use.source.names for use in uses if use.source), ()) or ("",)
        where = [name.removesuffix(f"_{own}") for name in more]
        queries = next((side.kept for side in sides if {*keys}.isdisjoint(side.kept)), ())
        groups = [f for f in queries if f in made]
        positions = [f for f in queries if f not in made]
        is_self = any(f.alternate is not None and f.alternate.root() in queries for f in keys)
        first, second = (
            (keys, positions) if is_self and any(f.stands_in for f in positions) else (positions, keys)
        )
        self.see("length", first or second, where)
        self.see("length_other" if is_self else "key_length", second, where)
        self.see("head_dim", sides[0].summed, where)
        self.see("value_dim", values, where)
        self.see("groups", groups, where)
        batch = self.batch()
        self.see("kv_heads" if groups else "heads", (f for f in sides[0].batch if f not in batch), where)
        for use in uses:
            self.see("embed", use.summed, use.source)

    # Names

    def names(self) -> Iterator[tuple[Axis, str]]:
        """Yield factors with their names by role."""
        given = {f for source in self.sources.values() for f in _join(source.axes)}
        by_role: dict[str, list[Sighting]] = {}
        for sighting in dict.fromkeys(self.sightings.values()):
            by_role.setdefault(sighting.role, []).append(sighting)
        for role, found in by_role.items():
            seen = [each for each in found if not given.isdisjoint(each.factors)] or found
            clear = [each for each in seen if each.is_clear] or seen
            for each in found:
                is_alone = clear == [each] or each not in seen
                for name in [role] if is_alone else [f"{where}_{role}" for where in each.where]:
                    yield tuple(f for f in each.factors if f in given) or each.factors, name

    def batch(self) -> Axis:
        """Return the first axis without a role that most inputs share, behind axes over which loops run."""
        given = {x.var: x.axes for x in self.sources.values() if not x.is_weight and x.axes}
        first = (leaves(axes[var in self.scanned and len(axes) > 1]) for var, axes in given.items())
        counts = Counter(own for own in first if own and self.sightings.keys().isdisjoint(own))
        return max(counts, key=counts.__getitem__, default=())


READERS: Mapping[str, Callable[[RoleFinder, AppliedPrimitive], None]] = {
    "dot_general": RoleFinder.dot,
    "ragged_dot_general": RoleFinder.dot,
    "conv_general_dilated": RoleFinder.convolution,
    "gather": RoleFinder.lookup,
    "eq": RoleFinder.one_hot,
    "scan": RoleFinder.scan,
}
"""Primitive -> what its steps say of roles."""


def _join(axes: Iterable[Axis]) -> Axis:
    return tuple(f for each in axes for f in leaves(each))
