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

INTEGERS = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")

SPACE = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}
"""Number of axes along which the windows of a convolution move -> their roles."""


@attrs.frozen(eq=False)
class Source:
    """An argument's array. axes: without the words of a key. names: of a weight's module, or of an input, short ones first."""

    var: Var
    axes: tuple[Axis, ...]
    names: Sequence[str]
    is_weight: bool


@attrs.frozen(eq=False)
class WeightUse:
    """A dot or a convolution of a weight: the factors that the result keeps, those that are summed, and those of batches."""

    source: Source
    kept: Axis
    summed: Axis
    batch: Axis
    is_dot: bool = True


@attrs.frozen(eq=False)
class Scores:
    """A dot of two arrays that are no weights, or what is computed of it elementwise. free: those of either operand."""

    summed: Axis
    batch: Axis
    free: tuple[Axis, Axis]
    is_exp: bool = False


@attrs.frozen
class Sighting:
    """A role of factors. where: names to tell it from others. is_clear: True if it comes before roles that are less clear."""

    role: str
    factors: Axis
    where: tuple[str, ...]
    is_clear: bool


@attrs.define(eq=False)
class RoleFinder:
    """Follows weights, ids and scores through the forward pass. sources, ids and scores: array -> what it is made of."""

    sources: dict[Operand, Source]
    ids: dict[Operand, Var] = attrs.field(factory=dict)
    scores: dict[Operand, Scores] = attrs.field(factory=dict)
    weights: list[WeightUse] = attrs.field(factory=list)
    sightings: dict[Factor, Sighting] = attrs.field(factory=dict)
    scanned: set[Var] = attrs.field(factory=set)
    attentions: list[tuple[Scores, Axis, Axis]] = attrs.field(factory=list)
    labels: list[tuple[Axis, Var]] = attrs.field(factory=list)
    inputs: Mapping[Factor, Source] = attrs.field(init=False)
    chooses: bool = False

    def __attrs_post_init__(self) -> None:
        self.inputs = {f: x for x in self.sources.values() if not x.is_weight for f in _join(x.axes)}
        self.ids.update(
            {x.var: x.var for x in self.sources.values() if x.var.dtype in INTEGERS and not x.is_weight}
        )

    def see(
        self, role: str, factors: Iterable[Factor], where: Sequence[str] = (), is_clear: bool = False
    ) -> None:
        """Note a role of factors that have none."""
        own = leaves(factors)
        if own and self.sightings.keys().isdisjoint(own):
            self.sightings.update(dict.fromkeys(own, Sighting(role, own, tuple(where), is_clear)))

    def run(self, body: Body) -> None:
        """Follow the steps of the forward pass in order, and note the roles of their axes."""
        self._steps(body)
        self._finish()

    def _steps(self, body: Body) -> None:
        for step in body.steps:
            if step.stage != "forward":
                continue
            for x, y in product(step.operands, step.results):
                self._pass(x, y, step.primitive in MOVES, step.primitive == "exp")
            if step.primitive in READERS:
                READERS[step.primitive](self, step)
            for inner in step.bodies:
                for x, y in zip(step.operands, inner.arguments, strict=False):
                    self._pass(x, y)
                self._steps(inner)

    def _pass(self, x: Operand, y: Var, moves: bool = True, is_exp: bool = False) -> None:
        """Let an array be made of what another one is made of."""
        if not isinstance(x, Var):
            return
        if moves and x in self.sources:
            self.sources.setdefault(y, self.sources[x])
        if x in self.ids and y.dtype in INTEGERS:
            self.ids.setdefault(y, self.ids[x])
        if x in self.scores and prod(x.shape) == prod(y.shape):
            known = self.scores[x]
            self.scores[y] = attrs.evolve(known, is_exp=known.is_exp or is_exp)

    # Primitives

    def dot(self, step: AppliedPrimitive) -> None:
        """Note a use of a weight, or a dot of attention."""
        summed, batch = step.params["dimension_numbers"]
        if self._weigh(step, summed, batch):
            return
        sums, batches, free = (
            [_parted(step, i, numbers)[k] for i, numbers in enumerate(zip(summed, batch, strict=True))]
            for k in (1, 2, 0)
        )
        for i in (0, 1):
            scores = self.scores.get(step.operands[i])
            if scores is not None and scores.is_exp:
                self.attentions.append((scores, sums[i], free[1 - i]))
        self.scores[step.results[0]] = Scores(sums[0], batches[0], (free[0], free[1]))

    def ragged_dot(self, step: AppliedPrimitive) -> None:
        """Note the groups of a weight as a batch."""
        numbers = step.params["ragged_dot_dimension_numbers"]
        summed, (left, right) = numbers.dot_dimension_numbers
        self._weigh(step, summed, (left, (*right, *numbers.rhs_group_dimensions)))

    def _weigh(
        self, step: AppliedPrimitive, summed: Sequence[Sequence[int]], batch: Sequence[Sequence[int]]
    ) -> bool:
        found = False
        for i in (0, 1):
            source = self.sources.get(step.operands[i])
            if source is not None and source.is_weight and len(source.var.shape) > 1:
                found = True
                self.weights.append(WeightUse(source, *_parted(step, i, (summed[i], batch[i]))))
        return found

    def convolution(self, step: AppliedPrimitive) -> None:
        """Note height, width and channels of an input, and the sides of a kernel."""
        numbers, source = step.params["dimension_numbers"], self.sources.get(step.operands[1])
        image, kernel = (step.axes(i) for i in (0, 1))
        (_, channels, *places), (made, summed, *windows) = numbers.lhs_spec, numbers.rhs_spec
        roles = SPACE.get(len(places), ())
        for role, j in zip((*roles, "channels"), (*places, channels), strict=False):
            if own := [f for f in leaves(image[j]) if f in self.inputs]:
                self.see(role, own, self.inputs[own[0]].names, True)
        if source is not None and source.is_weight:
            self.weights.append(
                WeightUse(source, leaves(kernel[made]), leaves(kernel[summed]), (), is_dot=False)
            )
            for role, j in zip(roles, windows, strict=False):
                self.see(f"kernel_{role}", kernel[j], source.names)

    def lookup(self, step: AppliedPrimitive) -> None:
        """Note the sides of a table into which ids point, and the length of the ids."""
        table, ids = step.operands[:2]
        if not is_indexing(step) or ids not in self.ids or step.primitive != "gather":
            return
        axes, numbers, source = step.axes(0), index_numbers(step), self.sources.get(table)
        pointed = _join(axes[j] for j in numbers.axes)
        if source is None or not source.is_weight:
            self.labels.append((pointed, self.ids[ids]))
        elif len(numbers.axes) == 1 and len(table.shape) == 2:
            self._table(pointed, self.ids[ids], source.names)
            self.see("embed", _join(axes[j] for j in numbers.window(table)), source.names, True)

    def _table(self, pointed: Axis, ids: Var, where: Sequence[str]) -> None:
        self.see("vocab", pointed, where, True)
        if len(ids.shape) == 2:
            self.see("length", ids.axes[1], self.sources[ids].names, True)

    def one_hot(self, step: AppliedPrimitive) -> None:
        """Note the last axis of a comparison with ids."""
        ids = next((self.ids[x] for x in step.operands if x in self.ids), None)
        if ids is not None and step.results[0].shape:
            self.labels.append((leaves(step.results[0].axes[-1]), ids))

    def choice(self, step: AppliedPrimitive) -> None:
        """Note that the function chooses, as a router of experts does."""
        self.chooses = True

    def scan(self, step: AppliedPrimitive) -> None:
        """Note the layers of stacked weights, and the steps or the length of an input."""
        body, start = step.bodies[0], sum(scan_counts(step.params))
        for i, x in enumerate(step.operands[start:], start):
            source = self.sources.get(x)
            if source is None or leaves(step.axes(i)[0]) != leaves(source.axes[0]):
                continue
            trains = any(each.stage == "backward" for each in body.steps)
            role = "layers" if source.is_weight else "steps" if trains else "length"
            self.see(role, step.axes(i)[0], source.names, True)
            if not source.is_weight:
                self.scanned.add(source.var)

    # What several steps say

    def _finish(self) -> None:
        """Note the roles that several steps together say."""
        for attention in self.attentions:
            self._attention(*attention)
        for pointed, ids in self.labels:
            use = next(
                (use for use in self.weights if not {*pointed}.isdisjoint((*use.kept, *use.summed))), None
            )
            if use is not None and {*pointed} <= {*use.summed}:
                self._table(pointed, ids, use.source.names)
            elif use is not None:
                self.see("vocab" if len(ids.shape) > 1 else "classes", pointed, use.source.names)
        for use in self.weights if self.chooses else ():
            self.see("experts", (f for f in use.batch if f not in self.inputs), use.source.names)
        summed = [f for use in self.weights if use.is_dot for f in use.summed]
        for f, source in self.inputs.items():
            if f in summed and len(source.axes) > 1 and f in leaves(source.axes[-1]):
                self.see("features", (f,), source.names)
        others = {f for use in self.weights if not use.is_dot for f in (*use.kept, *use.summed)}
        for f in (f for use in self.weights for f in use.kept if f in summed and f not in others):
            self.see("hidden", (f,))

    def _attention(self, scores: Scores, keys: Axis, values: Axis) -> None:
        """Note the roles of a softmax between two dots. keys: the positions that it weighs. values: the values' free factors."""
        ends = {*scores.summed, *values}
        uses = [use for use in self.weights if not ends.isdisjoint(use.kept)]
        made = {f for use in uses for f in use.kept}
        first, *more = uses[0].source.names if uses and uses[0].source.names else ("",)
        where = [name.removesuffix(f"_{first}") for name in more]
        queries = next((free for free in scores.free if {*keys}.isdisjoint(free)), ())
        groups = [f for f in queries if f in made]
        positions = [f for f in queries if f not in made]
        self.see("head_dim", scores.summed, where)
        self.see("value_dim", values, where)
        heads = [f for f in scores.batch if f not in self.inputs or f in made]
        self.see("kv_heads" if groups else "heads", heads, where)
        self.see("groups", groups, where)
        self.see("length", positions, where)
        if not any(f.alternate is not None and f.alternate.root() in queries for f in keys):
            self.see("key_length" if positions else "length", keys, where)
        for use in uses:
            self.see("embed", use.summed, use.source.names)

    # Names

    def names(self) -> Iterator[tuple[Axis, str]]:
        """Yield factors with their names by role."""
        given = {f for source in [*self.sources.values()] for f in _join(source.axes)}
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
        """Return the first axis that most inputs share, behind axes over which loops run."""
        given = dict.fromkeys(x for x in self.sources.values() if not x.is_weight and x.axes)
        first = (leaves(x.axes[x.var in self.scanned and len(x.axes) > 1]) for x in given)
        counts = Counter(filter(None, first))
        return max(counts, key=counts.__getitem__, default=())


READERS: Mapping[str, Callable[[RoleFinder, AppliedPrimitive], None]] = {
    "dot_general": RoleFinder.dot,
    "ragged_dot_general": RoleFinder.ragged_dot,
    "conv_general_dilated": RoleFinder.convolution,
    "gather": RoleFinder.lookup,
    "eq": RoleFinder.one_hot,
    "scan": RoleFinder.scan,
    "top_k": RoleFinder.choice,
    "argmax": RoleFinder.choice,
    "sort": RoleFinder.choice,
}
"""Primitive -> what its steps say of roles."""


def _join(axes: Iterable[Axis]) -> Axis:
    return tuple(f for each in axes for f in leaves(each))


def _parted(
    step: AppliedPrimitive, i: int, numbers: tuple[Sequence[int], Sequence[int]]
) -> tuple[Axis, Axis, Axis]:
    """Return the free factors of a dot's operand, the summed ones, and those of batches."""
    axes, (summed, batch) = step.axes(i), numbers
    free = (each for j, each in enumerate(axes) if j not in (*summed, *batch))
    return _join(free), _join(axes[j] for j in summed), _join(axes[j] for j in batch)
