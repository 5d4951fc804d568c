"""Small sizes for a program: the least sizes of its dimensions and mesh axes at which all of its equations have a meaning.

The equations tie sizes together. A rename ties two equal sizes, a reshape ties products. A slice cuts its source into segments,
and so do a pad and a concatenation: each segment becomes short, but none vanishes and none appears. So two slices that meet still
meet, and the numbers of a slice follow from the segments. A window ties its source to its output. A split dimension is a multiple
of its mesh axes. Indices that are computed from positions stay in the range of what they index,
as far as they do at the program's sizes.

All sizes start small and grow until every tie holds. No size grows above the size in the program, where every tie holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise, product
from math import gcd, isclose, lcm, prod
from typing import Any

import attrs

from mtfc.compiler.analysis.body_scope import BodyScope, index_of
from mtfc.compiler.analysis.disjoint_sets import DisjointSets
from mtfc.compiler.ir.core import Equation, Function, Program, Value, walk
from mtfc.compiler.ir.loops import carried, dim_of, region_of
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.ops.structure import reshape_groups
from mtfc.compiler.ir.ops.windows import geometry
from mtfc.compiler.ir.types import EVERY, FLOATS, Axes, Dim, Layout, Mesh, Pipeline
from mtfc.compiler.records import frozen

LITERAL = 8
"""Numbers up to this one stay as they are: kernels, strides, shifts, and integers in the text."""

MOST_ROUNDS = 2_000
"""The number of growths after which the sizes of the program are taken."""

Numbers = Mapping[tuple[Equation, str], Any]
"""(equation, attribute) -> the small number."""


@attrs.frozen
class SmallSizes:
    """Small sizes by name of the dimension and of the mesh axis. numbers: attributes that the sizes change.
    pipelines: pipeline -> the same with few micro-batches and chunks."""

    dims: Mapping[str, int]
    axes: Mapping[str, int]
    numbers: Numbers
    pipelines: Mapping[Pipeline, Pipeline]


def functions_of(program: Program) -> Iterator[Function]:
    """Yield the functions of a program, and the functions of its training."""
    yield from program.functions
    if program.training is not None:
        yield from (each.function for each in program.training.updates)
        if program.training.learning_rate is not None:
            yield program.training.learning_rate


@attrs.frozen
class Shrinking:
    """A way to make sizes small.

    factor: shards of split dimensions are multiples of it, as far as those in the program are. means: numbers that turn sums into
    means follow the sizes, and with them the number of accumulated micro-batches. axes, dims: False if mesh axes, or dimensions,
    keep their sizes.
    """

    factor: int = 1
    means: bool = True
    axes: bool = True
    dims: bool = True


def small_axes(mesh: Mesh, base: int) -> dict[str, int]:
    """Return small sizes of mesh axes: 2, and `base` for the first of the largest axes."""
    largest = max((size for _, size in mesh.axes), default=1)
    first = next((name for name, size in mesh.axes if size == largest), None)
    return {name: min(size, base if name == first else 2) for name, size in mesh.axes}


def small_sizes(
    program: Program, mesh: Mesh, layout: Layout, base: int, how: Shrinking = Shrinking()
) -> SmallSizes:
    """Return small sizes for a program under a layout. base: the least size of a dimension, of a shard, of an axis."""
    if not how.dims:
        sizes = {name: dim.size for name, dim in program.dims.items()}
        return SmallSizes(sizes, mesh.sizes, {}, {each: each for each in layout.pipelines})
    axes = small_axes(mesh, base) if how.axes else mesh.sizes
    pipelines = {
        each: attrs.evolve(
            each,
            micro_batches=_micro_batches(each, mesh, layout, axes, base),
            chunks=min(each.chunks, 2),
        )
        for each in layout.pipelines
    }
    handed = list(_handed_on(program, mesh, layout))
    split = _split(program, mesh.sizes, layout, handed)
    small = _split(program, axes, attrs.evolve(layout, pipelines=tuple(pipelines.values())), handed)
    shards = {
        name: (each * gcd(how.factor, program.dims[name].size // split[name]), split[name])
        for name, each in small.items()
        if split[name] > 1
    }
    equations = [eqn for function in functions_of(program) for eqn in walk(function.body)]
    classes = _Classes(program.dims, equations, base, shards)
    classes.grow()
    dims = {name: classes.size(name) for name in program.dims}
    return SmallSizes(dims, axes, _numbers(equations, classes, how.means), pipelines)


def _micro_batches(pipeline: Pipeline, mesh: Mesh, layout: Layout, axes: Mapping[str, int], base: int) -> int:
    """Return a small number of micro-batches: a multiple of the stages if the number in the program is one."""
    own = layout.rules.get(pipeline.loop)
    stages, small = mesh.size(own), prod(axes[axis] for axis in own)
    if pipeline.micro_batches % stages == 0:
        return small * min(pipeline.micro_batches // stages, 2)
    return min(pipeline.micro_batches, base)


def _handed_on(program: Program, mesh: Mesh, layout: Layout) -> Iterator[tuple[str, Axes]]:
    """Yield the dimensions of values that stages of pipelines hand on, with axes that the pass may use though no rule does."""
    loops = [eqn for function in program.functions for eqn in walk(function.body) if eqn.regions]
    for each, eqn in product(layout.pipelines, loops):
        stages = layout.rules.get(each.loop)
        others = {*stages, *layout.rules.get(each.batch)}
        dims = {dim.name: dim for a in carried(region_of(eqn)) for dim in a.value.type.dims}
        for name in dims if dim_of(eqn).name == each.loop else ():
            taken = others | {axis for other in dims for axis in layout.rules.get(other)}
            free = tuple(axis for axis in mesh.names if axis not in taken)
            for axes in (stages, free, (*free, *stages)):
                if (
                    name != each.batch
                    and not layout.rules.get(name)
                    and dims[name].size % mesh.size(axes) == 0
                ):
                    yield name, axes


def _split(
    program: Program, axes: Mapping[str, int], layout: Layout, handed: Iterable[tuple[str, Axes]]
) -> dict[str, int]:
    """Return for each dimension the least common multiple of the numbers of parts that a layout cuts it into."""
    found = dict.fromkeys(program.dims, 1)
    for name, own in handed:
        found[name] = lcm(found[name], prod(axes[axis] for axis in own))
    sections = [layout.rules, layout.params, layout.optimizer, *(rules for _, rules in layout.values)]
    for name, own in (rule for section in sections for rule in section.axes):
        if name in found:
            found[name] = lcm(found[name], prod(axes[axis] for axis in own))
    for each in layout.pipelines:
        found[each.loop] *= each.chunks
        found[each.batch] *= each.micro_batches
    every = [prod(axes[axis] for axis in section.get(EVERY)) for section in (layout.params, layout.optimizer)]
    for dim in {dim for parameter in program.parameters for dim in parameter.type.dims}:
        found[dim.name] *= max(every)
    return found


Shards = tuple[int, int]
"""The number of parts of a dimension in the small program, and in the program."""


@attrs.frozen
class _Tie:
    """The segments from `first` to `last` of a dimension have stride * (size - 1), for each term, and `more` elements."""

    dim: str
    first: int
    last: int
    terms: tuple[tuple[int, str], ...]
    more: int


class _Classes:
    """Dimensions that are equal by renames share segments. `sizes` has the small lengths of these.

    equal: the classes of equal dimensions. cuts, marks: where slices and the like cut a dimension, in order. multiple: what a
    small size is a multiple of. lengths: the small length of each segment between two marks. ties: what slices, pads and
    windows ask.
    """

    def __init__(
        self, dims: Mapping[str, Dim], equations: Sequence[Equation], base: int, shards: Mapping[str, Shards]
    ) -> None:
        """Find the lengths between the cuts of each dimension, and the equations that tie lengths of different dimensions.

        base: the size to which a dimension shrinks if nothing asks for more. shards: dimension -> its small and its full number
        of shards.
        """
        self.dims, self.equal = dims, DisjointSets[str]()
        for eqn in equations:
            if has_trait(eqn, "rename"):
                given: Mapping[str, Any] = eqn.attrs
                for old, new in given["mapping"]:
                    self.equal.join(old.name, new.name)
        self.cuts: dict[str, set[int]] = {self.of(name): {0, dim.size} for name, dim in dims.items()}
        for source, places, _, _ in _all_cuts(equations):
            self.cuts[self.of(source)].update(places)
        self.marks = {name: sorted(cuts) for name, cuts in self.cuts.items()}
        self.multiple, parts = dict.fromkeys(self.marks, 1), dict.fromkeys(self.marks, 1)
        for name, (small, full) in shards.items():
            first = self.of(name)
            self.multiple[first] = lcm(self.multiple[first], small)
            parts[first] = lcm(parts[first], full)
        least = _least(equations, self.of)
        self.lengths = {
            name: [
                min(1 if len(marks) > 2 or self.multiple[name] > 1 else base, b - a)
                for a, b in pairwise(marks)
            ]
            for name, marks in self.marks.items()
        }
        self.reaches = [*_reaches(equations)]
        self.ties = [self._tie(*each) for each in _all_cuts(equations)]
        self.ties += [
            _Tie(self.of(source), 0, len(self.marks[self.of(source)]) - 1, terms, more)
            for source, terms, more in _windows(equations)
        ]
        self.reshapes = [
            (tuple(d.name for d in group.sources), tuple(d.name for d in group.targets))
            for eqn in equations
            if has_trait(eqn, "reshape")
            for group in reshape_groups(eqn.operands[0].type.dims, eqn.result.type.dims)
        ]
        for name in self.marks:
            part = max(1, self.dims[name].size // parts[name])
            self._raise(name, self.multiple[name] * min(part, max(base, least.get(name, 1))))

    def of(self, name: str) -> str:
        """Return the first of the dimensions of equal size that renames connect."""
        return self.equal.first(name)

    def size(self, name: str) -> int:
        return sum(self.lengths[self.of(name)])

    def place(self, name: str, mark: int) -> int:
        """Return the small number of elements in front of a cut."""
        marks = self.marks[self.of(name)]
        return sum(self.lengths[self.of(name)][: marks.index(mark)])

    def _tie(self, source: str, places: tuple[int, int], target: str, stride: int) -> _Tie:
        first, last = (self.marks[self.of(source)].index(place) for place in places)
        return _Tie(self.of(source), first, last, ((stride, target),), 1)

    def _raise(self, name: str, wanted: int, first: int = 0, last: int | None = None) -> bool:
        """Make a dimension longer between two cuts until it has `wanted` elements there. Return False if it cannot.

        first, last: the segments that may grow.
        """
        lengths, marks = self.lengths[name], self.marks[name]
        places = range(first, len(lengths) if last is None else last)
        room = {i: marks[i + 1] - marks[i] for i in places}
        before = list(lengths)
        for i in sorted(places, key=room.__getitem__, reverse=True):
            missing = wanted - sum(lengths[j] for j in places)
            lengths[i] += max(0, min(missing, room[i] - lengths[i]))
        rest = -sum(lengths) % self.multiple[name]
        for i in sorted(range(len(lengths)), key=lambda i: marks[i + 1] - marks[i], reverse=True):
            more = min(rest, marks[i + 1] - marks[i] - lengths[i])
            lengths[i], rest = lengths[i] + more, rest - more
        return lengths != before

    def grow(self) -> None:
        """Grow sizes until all ties hold; take the sizes of the program if that does not end."""
        for _ in range(MOST_ROUNDS):
            growths = (
                *map(self._grow_tie, self.ties),
                *(self._grow_reshape(*each) for each in self.reshapes),
                *map(self._grow_reach, self.reaches),
            )
            if not any(growths):
                break
        sides = [*map(self._sides, self.ties), *(map(self._product, each) for each in self.reshapes)]
        if any(left != right for left, right in sides):
            self.lengths = {name: [b - a for a, b in pairwise(marks)] for name, marks in self.marks.items()}

    def _sides(self, tie: _Tie) -> tuple[int, int]:
        """Return both sides of a tie, which have to be equal."""
        left = sum(self.lengths[tie.dim][tie.first : tie.last])
        return left, sum(stride * (self.size(name) - 1) for stride, name in tie.terms) + tie.more

    def _grow_tie(self, tie: _Tie) -> bool:
        """Grow the smaller side of a tie, by one segment or one term; return True if something grew."""
        left, right = self._sides(tie)
        if left < right:
            return self._raise(tie.dim, right, tie.first, tie.last)
        if left > right:
            for stride, name in tie.terms:
                if self._raise(self.of(name), self.size(name) - (right - left) // stride):
                    return True
        return False

    def _grow_reach(self, reach: Terms) -> bool:
        """Raise a size to what a window reaches over; return True if it has grown."""
        name, terms, more = reach
        needed = sum(factor * (self.size(other) - 1) for factor, other in terms) + more
        return self.size(name) < needed and self._raise(self.of(name), needed)

    def _product(self, names: Iterable[str]) -> int:
        return prod(map(self.size, names))

    def _grow_reshape(self, sources: tuple[str, ...], targets: tuple[str, ...]) -> bool:
        """Raise the first dimension of a reshape's smaller side so that both sides have equally many elements; return True if
        it grew.
        """
        left, right = self._product(sources), self._product(targets)
        if left == right:
            return False
        names, wanted_product = (sources, right) if left < right else (targets, left)
        size_product = self._product(names)
        for name in names:
            new_size = -(-wanted_product * self.size(name) // size_product)
            if self._raise(self.of(name), new_size):
                return True
        return False


Cut = tuple[str, tuple[int, int], str, int]
"""A dimension, the places where a part of it starts and ends, the dimension of the part, and the stride of its elements."""


def _all_cuts(equations: Iterable[Equation]) -> Iterator[Cut]:
    """Yield the places at which slices, pads and concatenations cut a dimension: (whole, (start, end), part, stride)."""
    for eqn in equations:
        given: Mapping[str, Any] = eqn.attrs
        if has_trait(eqn, "slice", "pad"):
            whole, part = given["source"], given["target"]
            if has_trait(eqn, "pad"):
                whole, part = part, whole
            start = given["start" if has_trait(eqn, "slice") else "before"]
            end = start + given["stride"] * (part.size - 1) + 1
            yield whole.name, (start, end), part.name, given["stride"]
        elif has_trait(eqn, "concat"):
            start = 0
            for part in given["sources"]:
                yield given["target"].name, (start, start + part.size), part.name, 1
                start += part.size


@frozen
class SmallNumbers(BodyScope):
    """Equations whose numbers are known up to `LITERAL`: larger ones follow the sizes."""

    def number(self, value: Value) -> float | bool | None:
        """Return the number that all elements of a value are, if it is small."""
        number = super().number(value)
        return number if number is not None and abs(number) <= LITERAL else None


Terms = tuple[str, tuple[tuple[int, str], ...], int]
"""A dimension, and the number of elements in it: factor * (size of another - 1) for each term, and some more."""


def _reaches(equations: Sequence[Equation]) -> Iterator[Terms]:
    """Yield each dimension that is indexed by sums of positions times factors, and the elements that these indices reach."""
    scope = SmallNumbers.of(Function("all", (), tuple(equations), ()))
    for eqn in equations:
        if has_trait(eqn, "indexes") and (found := index_of(scope, eqn.operands[-1])) is not None:
            given: Mapping[str, Any] = eqn.attrs
            terms = tuple((factor, dim.name) for dim, factor in found.weights.items() if factor > 0)
            yield given["dim"].name, terms, found.constant + 1


def _windows(equations: Iterable[Equation]) -> Iterator[Terms]:
    """Yield the terms of each dimension that windows go over: the stride times the window, and the dilation times the kernel."""
    for eqn in equations:
        if has_trait(eqn, "window") or has_trait(eqn, "fold"):
            g = geometry(eqn.attrs)
            rest = (g.source.size + g.before + g.after - g.extent) % g.stride
            terms = (g.stride, g.out.name), (g.dilation, g.kernel.name)
            yield g.source.name, terms, rest + 1 - g.before - g.after


def _least(equations: Iterable[Equation], of: Any) -> dict[str, int]:
    """Return the least number of elements of a shard of some dimensions: windows, shifts and chosen elements fit into a shard."""
    found: dict[str, int] = {}
    for eqn in equations:
        given: Mapping[str, Any] = eqn.attrs
        needed = dict[str, int]()
        if has_trait(eqn, "window") or has_trait(eqn, "fold"):
            g = geometry(eqn.attrs)
            needed = {g.source.name: min(g.extent + g.before + g.after, g.source.size)}
            needed[g.kernel.name] = min(g.kernel.size, LITERAL)
        elif has_trait(eqn, "shift"):
            dim, by = given["dim"], abs(given["by"])
            needed = {dim.name: (by if by <= LITERAL else 2) + (dim.size > by)}
        elif has_trait(eqn, "chosen"):
            dim, k = given["dim"], given["k"]
            needed = {dim.name: min(k.size, LITERAL) + (dim.size > k.size), k.name: min(k.size, LITERAL)}
        for name, size in needed.items():
            found[of(name)] = max(found.get(of(name), 1), size)
    return found


def _numbers(
    equations: Sequence[Equation], classes: _Classes, means_follow: bool
) -> dict[tuple[Equation, str], Any]:
    """Return the numbers of attributes that follow from sizes."""
    found: dict[tuple[Equation, str], Any] = {}
    ranges = {eqn.attrs["dim"].name for eqn in equations if has_trait(eqn, "indices")}  # type: ignore[union-attr]
    means = _means(equations, classes) if means_follow else {}
    for eqn in equations:
        given: Mapping[str, Any] = eqn.attrs
        if has_trait(eqn, "slice"):
            found[eqn, "start"] = classes.place(given["source"].name, given["start"])
        elif has_trait(eqn, "pad"):
            found[eqn, "before"] = classes.place(given["target"].name, given["before"])
        elif has_trait(eqn, "shift"):
            found[eqn, "by"] = _shift(given["dim"], given["by"], classes.size(given["dim"].name))
        elif has_trait(eqn, "filled"):
            number, dtype = given["value"], given["dtype"]
            if dtype in FLOATS and number in means:
                found[eqn, "value"] = means[number]
            elif type(number) is int and abs(number) > LITERAL and dtype not in FLOATS:
                found[eqn, "value"] = _position(number, ranges, classes)
    return found


def _shift(dim: Dim, by: int, size: int) -> int:
    """Return a shift for a small dimension: as many turns around it, and as far into it in proportion.

    by: the shift in the program. size: the small size.
    """
    if abs(by) <= LITERAL:
        return by
    whole, rest = divmod(abs(by), dim.size)
    small = whole * size + (max(1, min(size - 1, rest * size // dim.size)) if rest else 0)
    return small if by > 0 else -small


def _position(number: int, ranges: set[str], classes: _Classes) -> int:
    """Return an integer as a place along the shortest dimension whose positions the program computes with, or as it is.

    ranges: the dimensions whose positions the program computes with.
    """
    longer = [classes.dims[name] for name in ranges if classes.dims[name].size + 1 >= abs(number)]
    dim = min(longer, key=lambda each: each.size, default=None)
    if dim is None:
        return number
    size, sign = classes.size(dim.name), 1 if number > 0 else -1
    away = abs(number) - dim.size
    return sign * (size + away if abs(away) <= 1 else max(1, abs(number) * size // dim.size))


def _means(equations: Sequence[Equation], classes: _Classes) -> dict[float, Fraction]:
    """Return the numbers by which sums become means: a number of elements, or 1 over it."""
    made = {value: eqn for eqn in equations for value in eqn.results}
    found: dict[float, Fraction] = {}
    for eqn in equations:
        if len(eqn.operands) != 2 or not (has_trait(eqn, "multiply") or has_trait(eqn, "divide")):
            continue
        total, number = (made.get(value) for value in eqn.operands)
        while total is not None and has_trait(total, "transpose"):
            total = made.get(total.operands[0])
        if total is None or number is None or not (has_trait(total, "sum") and has_trait(number, "filled")):
            continue
        over: tuple[Dim, ...] = total.attrs["over"]  # type: ignore[assignment]
        value: Any = number.attrs["value"]
        count, small = prod(dim.size for dim in over), prod(classes.size(dim.name) for dim in over)
        if has_trait(eqn, "multiply") and isclose(value * count, 1, rel_tol=1e-3):
            found[value] = Fraction(1, small)
        elif has_trait(eqn, "divide") and value == count:
            found[value] = Fraction(small)
    return found
