"""The names of dimensions of imported functions.

Names of dimensions by their roles: what a function does with an axis says what the axis is.

Token ids point into a table along `vocab`, attention compares positions along `length`, and so on. A role names a dimension of an
argument if no other one has this role, or has it as clearly. Otherwise the argument's or the module's name stands in front. The
axes of weights that have no role get the name of the module that makes them, such as `fc1`. Names here are only proposed: axes
that the function keeps apart stay apart.

Names for the dimensions of an imported function: from the user, else from the names of arguments and parameters.

Copies of a layer, such as `layers/0` and `layers/1`, get the same dimensions. A layout then treats all copies alike, and a search
has the dimensions of one layer. Copies are arguments whose places differ in one number, and that have arrays of the same shapes.
Copies with two arrays of several axes are merged before arrays are linked. Copies with one matrix are merged afterwards, if no
array has a dimension of one copy and that of another: layers that add to their input are copies. The layers of a plain perceptron
are none, because the output dimension of one is the input dimension of the next.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import translate
from itertools import product
from math import prod
from operator import itemgetter
from typing import Any, NamedTuple

import attrs

from mtfc.compiler.diagnostics import CompileError, failure, nearest
from mtfc.compiler.ir.core import Role
from mtfc.frontend.jaxpr.expansions import scan_counts
from mtfc.frontend.jaxpr.factors import Axis, Factor, leaves, may_unite, size_of, unite
from mtfc.frontend.jaxpr.flat import AppliedPrimitive, Body, Flat, Operand, Var
from mtfc.frontend.jaxpr.rules.indexing import index_numbers, is_indexing
from mtfc.frontend.jaxpr.user_lines import definition
from mtfc.frontend.syntax.lexer import RESERVED

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

    def outer(self) -> "Source":
        """Return the source with the names of the module's parents."""
        return self._replace(names=[name.removesuffix(f"_{self.names[0]}") for name in self.names[1:]])


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
    elementwise, and whether by an exponential. weights: the uses of weights in order. labels: axes that ids point into. others:
    factor -> one that stands in its place at a use, and back.
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
    others: dict[Factor, Factor] = attrs.field(factory=dict)
    chooses: bool = False

    def run(self, body: Body) -> None:
        """Follow the steps of the forward pass in order, and note the roles of their axes."""
        given = [source for source in self.sources.values() if not source.is_weight]
        of_weights = [f for source in self.sources.values() if source.is_weight for f in _join(source.axes)]
        self.inputs = {f: source for source in given for f in _join(source.axes)}
        self.ids = {source.var: source.var for source in given if source.var.dtype[0] in "iu"}
        self._steps(body)
        for attention in self.attentions:
            self._attention(*attention)
        for pointed, ids in self.labels:
            self._label(pointed, ids)
        routes = {use.kept for use in self.weights}
        for use in self.weights:
            routed = (f for f in (*use.batch, *use.kept) if (f,) in routes and (f,) != use.kept)
            found = dict.fromkeys((*routed, *(use.batch if self.chooses else ())))
            self.see("experts", (f for f in found if f not in self.inputs), use.source)
        dots = [use for use in self.weights if use.is_dot]
        summed, made = {f for use in dots for f in use.summed}, {f for use in dots for f in use.kept}
        for f, source in self.inputs.items():
            if f in summed and len(source.axes) > 1 and f in leaves(source.axes[-1]):
                self.see("features", (f,), source)
                is_sequence = len(source.axes) == 3 and source.var not in self.scanned
                self.see("length", leaves(source.axes[1]) if is_sequence else (), source)
        of_images = {f for use in self.weights if not use.is_dot for f in (*use.kept, *use.summed)}
        for f in of_weights:
            if f not in of_images and (f in made if f in summed else self.others.get(f) in summed):
                self.see("hidden", (f,), None)
        for use in (use for use in self.weights if use.source and not use.source.names):
            self.see("out_features" if use.is_dot else "out_channels", use.kept, None)

    def see(self, role: str, factors: Iterable[Factor], where: Source | None, is_clear: bool = False) -> None:
        """Note a role of factors that have none. where: what gives the role its name.

        is_clear: True if nothing else can have this role.
        """
        own = leaves(factors)
        if own and self.sightings.keys().isdisjoint(own):
            names = tuple(where.names) if where else ()
            self.sightings.update(dict.fromkeys(own, Sighting(role, own, names, is_clear)))

    def _steps(self, body: Body) -> None:
        """Follow values from the operands to the results of each forward step, and read what single primitives tell about
        roles.
        """
        for step in body.steps:
            if step.stage != "forward":
                continue
            self._renamed(step.renamed, step.operands)
            for inner in step.bodies:
                for x, y in zip(step.operands, inner.arguments, strict=False):
                    self._pass(x, y)
                self._steps(inner)
                self._renamed(inner.renamed, inner.outputs)
            for x, y in product(step.operands, step.results if not step.bodies else ()):
                self._pass(x, y, step.primitive in MOVES, step.primitive == "exp")
            self.chooses |= step.primitive in CHOOSES
            if step.primitive in READERS:
                READERS[step.primitive](self, step)

    def _renamed(self, renamed: Mapping[int, Sequence[Axis]], arrays: Sequence[Operand]) -> None:
        """Note factors in whose place others stand at a use."""
        uses = (zip(_join(arrays[i].axes), _join(axes), strict=False) for i, axes in renamed.items())
        for x, y in (pair for use in uses for pair in use if pair[0] is not pair[1]):
            self.others |= {x: y, y: x}

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
        self.weights += [side for side in weights if side.source and side.source.names] or weights
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

    def concatenate(self, step: AppliedPrimitive) -> None:
        """Let an array that consists of weights be made of the first."""
        if all(map(self._weight, step.operands)):
            self.sources[step.results[0]] = self.sources[step.operands[0]]

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
            over = leaves(step.axes(i)[0])
            source = self.sources.get(x) or (self.inputs.get(over[0]) if over else None)
            whole = [*map(leaves, source.axes)] if source else []
            if source and over in whole[x not in self.sources : 1 if source.is_weight else None]:
                role = "layers" if source.is_weight else "steps" if trains else "length"
                self.see(role, over, source, True)
                self.scanned |= {source.var} if over == whole[0] else set()

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
        made_by = next((use.source for use in uses if use.source), None)
        where = made_by and made_by.outer()
        queries = next((side.kept for side in sides if {*keys}.isdisjoint(side.kept)), ())
        groups = [f for f in queries if f in made]
        positions = [f for f in queries if f not in made]
        is_self = any(f.alternate is not None and f.alternate.root() in queries for f in keys)
        is_swapped = is_self and any(f.stands_in for f in positions)
        first, second = (keys, positions) if is_swapped else (positions, keys)
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
    "concatenate": RoleFinder.concatenate,
    "conv_general_dilated": RoleFinder.convolution,
    "gather": RoleFinder.lookup,
    "eq": RoleFinder.one_hot,
    "scan": RoleFinder.scan,
}
"""Primitive -> what its steps say of roles."""


def _join(axes: Iterable[Axis]) -> Axis:
    return tuple(f for each in axes for f in leaves(each))


GivenNames = Mapping[str, str]
"""Pattern of a leaf's place -> names of its axes: `{"ids": "batch length", "**/up/kernel": "embed (heads head_dim)"}`."""

OTHERS = frozenset({"params", "optimizer", "value", "allow"})
"""Words that mean something else in a layout."""

GIVEN, BATCH, ANNOTATED, ROLE, MODULE, PLACE = range(6)
"""Ranks of names, the best first: of the user, the batch, logical names, by role, by module, and by place in order."""

WEIGHTS = frozenset({
    "b", "beta", "bias", "embedding", "embeddings", "gamma", "kernel", "mean", "offset", "scale", "table", "var", "w", "weight",
    "weights",
})  # fmt: skip
"""Names of arrays that say nothing without the module that has them."""

OF_WEIGHT = re.compile(r"(?<=.)_(w|b|bias|kernel|weight)$")
"""The end of an array's name that says that it is a weight, and nothing of its module."""


def propose(flat: Flat, roles: Sequence[Role], names: GivenNames, function: Callable[..., Any]) -> None:
    """Add names to the factors of all arguments. Axes to which the user gives one name become one dimension.

    Axes with one logical name of Flax do, too, where their sizes are equal and no array would have it twice.
    Raises `CompileError` for patterns that fit nothing, or not the array.
    """
    places = [place(flat, path) for path in flat.inputs]
    used: set[str] = set()
    named: dict[str, Axis] = {}
    logical: dict[str, Axis] = {}
    for order, (var, text) in enumerate(zip(flat.body.arguments, places, strict=False)):
        fitting = [each for each in names if matches(each, text)]
        used |= {*fitting}
        if fitting:
            _give(var.axes, names[fitting[0]], text, function, named)
        for own, each in zip(flat.annotations[order] or (), var.axes, strict=False):
            if own is not None and _can_name(own) and unite(logical.setdefault(own, each), each):
                _want(each, ANNOTATED, own)
    for pattern in names:
        if pattern not in used:
            path = re.sub(r"[^\w*]+", "/", pattern).strip("/")
            near = next((each for each in places if f"/{each}".endswith(f"/{path}")), None) or nearest(
                path, places
            )
            message = f"the pattern {pattern} in `names` matches no argument"
            raise _wrong(message, function, places, near)
    for var, text in zip(flat.body.arguments, places, strict=False):
        for factor in (factor for each in var.axes for factor in leaves(each)):
            given = list(dict.fromkeys(name for rank, name in factor.wanted if rank == GIVEN))
            if len(given) > 1:
                both = f"`{given[0]}` and `{given[1]}` name one dimension of {text}"
                raise _wrong(f"{both}, because the function links the axes with these names", function)
    _propose_others(flat, roles, places)


def _propose_others(flat: Flat, roles: Sequence[Role], places: Sequence[str]) -> None:
    """Add names by role, by module, and by place."""
    arguments = [*zip(flat.body.arguments, roles, places, strict=False)]
    wrapped = {x for step in flat.body.steps if step.primitive == "random_wrap" for x in step.operands}
    sources = []
    for var, role, text in arguments:
        axes = var.axes[:-1] if var.key is not None or var in wrapped else var.axes
        names = [_last(text), _last(text, 2)] if role == "input" else _modules(text)
        sources.append(Source(var, axes, names, role != "input"))
    finder = RoleFinder({source.var: source for source in sources})
    finder.run(flat.body)
    _want(finder.batch(), BATCH, "batch")
    found = [*finder.names()]
    for factors, name in found:
        _want(factors, ROLE, name)
    named = {f for factors, _ in found for f in factors}
    uses = [(use, use.source.names) for use in finder.weights if use.source]
    made: list[tuple[Axis, Sequence[str]]] = [(use.kept, names) for use, names in uses]
    made += [((finder.others.get(f, f),), [f"{name}_other"]) for factors, name in found for f in factors]
    made += [(use.summed, [f"{name}_in" for name in names]) for use, names in uses]
    made += [(source.axes[0], source.names) for source in sources if source.is_weight and source.axes]
    for factors, name in ((factors, name) for factors, names in made for name in names):
        _want(tuple(f for f in leaves(factors) if f not in named) or factors, MODULE, name)
    for order, (var, _, text) in enumerate(arguments):
        for j, each in enumerate(var.axes):
            _want(each, PLACE + order, f"{_last(text, 2)}_{j}")
    _settle(f for source in sources for each in source.var.axes for f in leaves(each))


def _settle(factors: Iterable[Factor]) -> None:
    """Let each factor want one name, its best one that no other factor wants more."""
    every, settled = dict.fromkeys(factors), dict[str, Factor]()
    offers = [(rank, name, factor) for factor in every for rank, name in factor.wanted]
    for rank, name, factor in sorted(offers, key=itemgetter(0)):
        if name not in settled and factor in every:
            settled[name] = factor
            factor.wanted = [(rank, name)]
            del every[factor]


def _last(text: str, number: int = 1) -> str:
    """Return the last parts of a place that are no numbers, as a name."""
    parts = [part for part in text.removesuffix("/value").split("/") if not part.isdigit()]
    return ascii_name("_".join(parts[-number:]))


def _modules(text: str) -> list[str]:
    """Return names for the module of an array, the shortest first: `key` and `attention_key` of `params/attention/key/kernel`.

    The module of `layers/0/1` is `layers_0`, and that of `params/qkv_w` is `qkv`.
    """
    argument, *parts = [part for part in text.removesuffix("/value").split("/") if part not in ("", "~")]
    if parts and (parts[-1].lower() in WEIGHTS or ("".join(parts[-2:]).isdigit() and len(parts) > 1)):
        parts.pop()
    if "".join(parts).isdigit():
        parts.insert(0, argument)
    parts[-1:] = [OF_WEIGHT.sub("", part) for part in parts[-1:]]
    least = 1 + "".join(parts[-1:]).isdigit()
    found = (ascii_name("_".join(parts[-number:])) for number in range(least, least + 3))
    return [name for name in found if _can_name(name)]


def place(flat: Flat, path: tuple[Any, ...]) -> str:
    """Return the place of a leaf, such as `params/layers/0/kernel`."""
    return "/".join([flat.argument_name(path), *flat.parts(path)])


def matches(pattern: str, text: str) -> bool:
    """Return True if a pattern fits a place: `*` is any part of a path, `**/` is any number of directories."""
    plain = pattern.removeprefix("**/")
    expression = re.compile(translate(plain))
    starts = range(text.count("/") + 1 if plain != pattern else 1)
    ends = (text, text.removesuffix("/value"))
    return any(expression.match("/".join(each.split("/")[i:])) for each in ends for i in starts)


def ascii_name(text: str) -> str:
    """Return text as letters, digits and `_` of names in the language."""
    return re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_")


def _can_name(name: str) -> bool:
    return name.isascii() and name.isidentifier() and name not in RESERVED | OTHERS


def _want(factors: Axis, rank: int, name: str) -> None:
    """Propose a name for an axis. If the axis has several factors, names by role are better for them than `name_a`, `name_b`."""
    own = leaves(factors)
    for i, factor in enumerate(own):
        part = (MODULE if rank == ANNOTATED else rank, f"{name}_{'abcdefgh'[i % 8]}")
        factor.wanted.append((rank, name) if len(own) == 1 else part)


def _give(
    axes: Sequence[Axis], text: str, where: str, function: Callable[..., Any], named: dict[str, Axis]
) -> None:
    """Give an array's factors the user's names. Parentheses group the names of one axis's factors; `_` names nothing."""
    groups = re.findall(r"\(([^)]*)\)|(\S+)", text.replace(",", " "))
    if len(groups) != len(axes):
        raise _wrong(f"`names` gives {where} {len(groups)} names, and it has {len(axes)} axes", function)
    for (grouped, single), each in zip(groups, axes, strict=True):
        own, given = leaves(each), grouped.split() or [single]
        if len(given) == 1:
            parts: list[tuple[str, Axis]] = [(given[0], each)]
        elif len(given) == len(own):
            parts = [(name, (factor,)) for factor, name in zip(own, given, strict=True)]
        else:
            sizes = ", ".join(str(factor.size) for factor in own)
            raise _wrong(f"an axis of {where} has factors of sizes {sizes}, and names ({grouped})", function)
        for name, part in parts:
            if name != "_" and part:
                _unite_named(name, part, where, function, named)


def _unite_named(
    name: str, part: Axis, where: str, function: Callable[..., Any], named: dict[str, Axis]
) -> None:
    """Give a name to an axis, and make the axis the same as others of this name. where: the place of the array in messages.

    named: the axes that have names.
    """
    if not _can_name(name):
        raise _wrong(f"`{name}` cannot name a dimension of {where}", function)
    if not unite(named.setdefault(name, part), part):
        sizes = {size_of(leaves(each)) for each in (named[name], part)}
        why = f"sizes {' and '.join(map(str, sorted(sizes)))}" if len(sizes) > 1 else "places in one array"
        raise _wrong(f"`{name}` names dimensions of different {why}, one of them of {where}", function)
    _want(part, GIVEN, name)


def _wrong(
    message: str, function: Callable[..., Any], places: Sequence[str] = (), near: str | None = None
) -> CompileError:
    shown = ", ".join(places[:12]) + (", ..." if len(places) > 12 else "")
    help = f"the arguments' arrays are: {shown}" if places else None
    help = f"did you mean `{near}`? {help}" if near else help
    return failure("E803", message, definition(function), help)


NUMBER = re.compile(r"^(.*?)(\d+)$")


def merge_copies(flat: Flat, are_linked: bool) -> None:
    """Unite the axes of arrays at the same place in copies: before arrays are linked in those of at least two matrices.

    Afterwards in those of one matrix, if no array has two of these axes.
    """
    for copies in _groups(flat).values():
        first, *others = copies.values()
        shapes = {place: var.shape for place, var in first.items()}
        if any({place: var.shape for place, var in other.items()} != shapes for other in others):
            continue
        pairs = [
            pair for other in others for x in first for pair in zip(first[x].axes, other[x].axes, strict=True)
        ]
        matrices = sum(len(shape) > 1 for shape in shapes.values())
        if all(may_unite(*pair) for pair in pairs) and matrices == 1 if are_linked else matrices > 1:
            for pair in pairs:
                unite(*pair)


Copy = dict[tuple[str, ...], Var]
"""A copy: place after its number -> array."""


def _groups(flat: Flat) -> dict[tuple[str | bool, ...], dict[str, Copy]]:
    """Return places before a number, and whether a place follows it -> number -> copy."""
    found: dict[tuple[str | bool, ...], dict[str, Copy]] = defaultdict(lambda: defaultdict(dict))
    for path, var in zip(flat.inputs, flat.body.arguments, strict=False):
        parts = (flat.argument_name(path), *flat.parts(path))
        for i, part in enumerate(parts):
            match = NUMBER.match(part)
            if match and i > 0:
                after = parts[i + 1 :]
                found[(*parts[:i], match[1], bool(after))][match[2]][after] = var
    return found
