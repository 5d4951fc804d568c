"""One part of an operator: the region of each value that it computes and needs, and the part as a function of its own.

A part is given by one index along each split dimension. Regions follow from the results backwards, equation by equation. The
region that a part needs along a dimension of a value depends on the index along at most one split dimension, so a `SplitSpan`
states it for all indices at once. Windows and slices need neighbouring positions; other ops that mix the positions of a
dimension need it whole.

The part's function has the step's equations with dimensions as long as the part needs them, and its backward pass is the
gradient of this function. Compute time, kept bytes and needed elements all follow from this one piece of IR.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any

import attrs
import numpy as np

from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Argument, Attr, Equation, Function, Output, Value
from mtfc.compiler.ir.opdef import LayoutRule
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.ops.creation import VALUE
from mtfc.compiler.ir.ops.positions import SOURCE, START, STRIDE, TARGET
from mtfc.compiler.ir.ops.structure import renaming
from mtfc.compiler.ir.ops.windows import Geometry, geometry, window_attrs
from mtfc.compiler.ir.resizing import Renumbering
from mtfc.compiler.ir.types import FLOATS, Dim, TensorType
from mtfc.compiler.passes.autodiff.backward import active_values, backward
from mtfc.placements.operators.operator_graph import Operator, OperatorStep

Indices = Any
"""An integer array with one element for each index along a split dimension."""


class Unsplittable(Exception):
    """An equation cannot be computed in these parts."""


@attrs.frozen(eq=False)
class SplitSpan:
    """Positions `low` up to but not including `high` of a dimension, for each index along the split dimension `by`."""

    by: str
    low: Indices
    high: Indices


Region = Mapping[str, SplitSpan]
"""Dimension of a value -> the positions that a part needs. Dimensions that are missing are needed whole."""


def equal_parts(dim: Dim, degree: int) -> SplitSpan:
    """Split a dimension in equal parts. Raises `Unsplittable` if its size is not divisible."""
    if dim.size % degree:
        raise Unsplittable(f"`{dim.name}` (size {dim.size}) cannot be split in {degree}")
    size = dim.size // degree
    low = np.arange(degree) * size
    return SplitSpan(dim.name, low, low + size)


def needed(
    equations: Sequence[Equation], results: Iterable[tuple[Value, Region]]
) -> tuple[dict[Value, Region], dict[Equation, Region]]:
    """Return the region needed of each value, and the region that each equation computes.

    `results` are the regions wanted of some values. Raises `Unsplittable`.
    """
    values: dict[Value, Region] = {}
    for value, region in results:
        _require(values, value, region)
    computed: dict[Equation, Region] = {}
    for eqn in reversed(equations):
        wanted = [values[value] for value in eqn.results if value in values]
        if not wanted:
            continue
        computed[eqn] = _result(eqn, wanted)
        for number, operand in enumerate(eqn.operands):
            _require(values, operand, of_operand(eqn, number, computed[eqn]))
    return values, computed


def _require(values: dict[Value, Region], value: Value, region: Region) -> None:
    values[value] = _hull(values[value], region) if value in values else region


def _hull(one: Region, other: Region) -> Region:
    """Return the smallest region that contains both."""
    found = {}
    for dim in one.keys() & other.keys():
        a, b = one[dim], other[dim]
        if a.by == b.by:
            found[dim] = (
                a if b is a else SplitSpan(a.by, np.minimum(a.low, b.low), np.maximum(a.high, b.high))
            )
    return found


def _result(eqn: Equation, wanted: Sequence[Region]) -> Region:
    """Return the region that an equation computes: the same for all results, as they have the same dimensions."""
    region = wanted[0]
    for other in wanted[1:]:
        region = _hull(region, other)
    rule, g = OPS[eqn.op].layout_rule(eqn), _neighbours(eqn)
    own = g.out.name if g else None
    for dim in region:
        if dim in rule.whole | rule.single and dim != own:
            raise Unsplittable(f"{eqn.op} needs `{dim}` whole")
    return region


def of_operand(eqn: Equation, number: int, result: Region) -> Region:
    """Return the region of an operand that an equation reads to compute a region of its results."""
    type, rule = eqn.operands[number].type, OPS[eqn.op].layout_rule(eqn)
    g = _neighbours(eqn)
    found: dict[str, SplitSpan] = {}
    for dim in type.dims:
        if g is not None and dim == g.source:
            if g.out.name in result:
                found[dim.name] = _around(g, result[g.out.name])
            continue
        span = _along(eqn, rule, type, dim, result)
        if span is not None:
            found[dim.name] = span
    return found


def _along(eqn: Equation, rule: LayoutRule, type: TensorType, dim: Dim, result: Region) -> SplitSpan | None:
    """Return the span needed along a dimension whose positions are not mixed; None if it is needed whole."""
    name = rule.index.get(dim.name, dim.name)
    if name is None or name not in result or any(name == each.name for each in rule.reduced):
        return None
    size = next((d.size for d in eqn.results[0].type.dims if d.name == name), dim.size)
    return result[name] if size == dim.size else _scaled(result[name], size, dim.size)


def _scaled(span: SplitSpan, old: int, new: int) -> SplitSpan:
    """Return the same fraction of the major dimension of a reshaped group. Raises `Unsplittable` if it is not integral."""
    if (span.low * new % old).any() or (span.high * new % old).any():
        raise Unsplittable(f"equal parts of {old} positions are not whole parts of {new}")
    return SplitSpan(span.by, span.low * new // old, span.high * new // old)


def _neighbours(eqn: Equation) -> Geometry | None:
    """Return the windows that an equation reads; those of a slice have one element each. None if it mixes no positions."""
    if has_trait(eqn, "slice"):
        source, target = SOURCE.of(eqn.attrs), TARGET.of(eqn.attrs)
        stride, start = STRIDE.of(eqn.attrs), START.of(eqn.attrs)
        one = Dim("one", 1)
        return Geometry(
            source=source, out=target, kernel=one, stride=stride, before=-start, after=0, dilation=1
        )
    return geometry(eqn.attrs) if has_trait(eqn, "window") else None


def _around(g: Geometry, span: SplitSpan) -> SplitSpan:
    """Return the positions of the source that some windows read. Raises `Unsplittable`."""
    low = span.low * g.stride - g.before
    high = (span.high - 1) * g.stride - g.before + g.extent
    if (low >= g.source.size).any() or (high < 1).any():
        raise Unsplittable(f"some parts of `{g.out.name}` see nothing but padding")
    return SplitSpan(span.by, np.clip(low, 0, g.source.size - 1), np.clip(high, 1, g.source.size))


DegreeOf = Mapping[str, int]
"""Dimension -> number of equal parts; 1 for dimensions that are missing."""

Range = tuple[int, int]
Box = Mapping[str, Range]
"""Dimension of a value -> first position of a region and the position after its last; missing dimensions are whole."""


@attrs.frozen(eq=False)
class StepNeeds:
    """The regions that the parts of a step compute of its outputs and need of each value that they use."""

    spans: Mapping[str, SplitSpan]
    values: Mapping[Value, Region]
    equations: Mapping[Equation, Region]

    def owned(self, value: Value) -> Region:
        """Return the region of an output that a part provides."""
        return {name: self.spans[name] for name in value.type.names if name in self.spans}

    def used(self, step: OperatorStep, eqn: Equation) -> tuple[Region, list[Region]]:
        """Return the regions that a part computes of an equation's results and reads of its operands.

        For a pending sum, a part adds up its own terms.
        """
        if eqn.results[0] in step.pending:
            own = _terms(eqn, self.spans)
            return own, [own]
        own = self.equations[eqn]
        return own, [of_operand(eqn, i, own) for i in range(len(eqn.operands))]


def step_needs(step: OperatorStep, degrees: DegreeOf, dims: Sequence[Dim]) -> StepNeeds:
    """Return the needs of a step whose operator, which may be split in `dims`, has some degrees. Raises `Unsplittable`."""
    spans = {dim.name: equal_parts(dim, degrees[dim.name]) for dim in dims if degrees.get(dim.name, 1) > 1}
    wanted: list[tuple[Value, Region]] = [
        (value, {name: spans[name] for name in value.type.names if name in spans}) for value in step.outputs
    ]
    wanted += [
        (eqn.operands[0], _terms(eqn, spans)) for eqn in step.equations if eqn.results[0] in step.pending
    ]
    equations = [eqn for eqn in step.equations if eqn.results[0] not in step.pending]
    complete = [(value, region) for value, region in wanted if value not in step.pending]
    return StepNeeds(spans, *needed(equations, complete))


def _terms(eqn: Equation, spans: Mapping[str, SplitSpan]) -> Region:
    """Return the region of a sum's operand that a part adds up."""
    return {name: spans[name] for name in eqn.operands[0].type.names if name in spans}


def box(region: Region, place: Mapping[str, int]) -> Box:
    """Evaluate a region for the part at one place: the index along each split dimension."""
    return {dim: (int(s.low[place[s.by]]), int(s.high[place[s.by]])) for dim, s in region.items()}


@attrs.frozen(eq=False)
class PartFunction:
    """A part of a step. `values` map the step's inputs, arguments and outputs to values here. `cotangents` map outputs to
    arguments of the backward pass, `gradients` map inputs and parameters to its results.

    sources: equation here -> equation of the step, and the first position that it computes of each dimension.
    """

    forward: tuple[Equation, ...]
    backward: tuple[Equation, ...]
    values: Mapping[Value, Value]
    cotangents: Mapping[Value, Value]
    gradients: Mapping[Value, Value]
    sources: Mapping[Equation, tuple[Equation, Mapping[str, int]]]

    def function(self) -> Function:
        """Return both passes as one function."""
        given = [Argument(value, "input") for value in self._arguments()]
        results = {
            **{v.name: v for v in self.values.values()},
            **{v.name: v for v in self.gradients.values()},
        }
        made = {value for eqn in (*self.forward, *self.backward) for value in eqn.results}
        outputs = [Output(name, value) for name, value in results.items() if value in made]
        return Function("part", tuple(given), (*self.forward, *self.backward), tuple(outputs))

    def _arguments(self) -> list[Value]:
        made = {value for eqn in self.forward for value in eqn.results}
        return [value for value in self.values.values() if value not in made] + list(self.cotangents.values())


def part_function(
    step: OperatorStep,
    needs: StepNeeds,
    place: Mapping[str, int],
    seeds: Sequence[Value] = (),
    wanted: Sequence[Value] = (),
) -> PartFunction:
    """Write the part at a place with its backward pass: from cotangents of `seeds` to cotangents of `wanted` values."""
    builder = Builder(Names())
    maker = _Maker(builder, needs, place)
    for value in (*step.inputs, *step.arguments):
        maker.given(value)
    for eqn in step.equations:
        if eqn in needs.equations or eqn.results[0] in step.pending:
            maker.make(eqn, *needs.used(step, eqn))
    values = {value: maker.values[value] for value in (*step.inputs, *step.arguments)}
    values |= {v: maker.values[v] if v in step.pending else maker.output(v) for v in step.outputs}
    forward = tuple(builder.body)
    cotangents, gradients = _gradient(builder, values, seeds, wanted)
    return PartFunction(
        forward, tuple(builder.body[len(forward) :]), values, cotangents, gradients, maker.sources
    )


def _gradient(
    builder: Builder, values: Mapping[Value, Value], seeds: Sequence[Value], wanted: Sequence[Value]
) -> tuple[dict[Value, Value], dict[Value, Value]]:
    """Append the backward pass. Return the cotangents of the seeds and those of the wanted values that depend on them."""
    forward = tuple(builder.body)
    builder.stage = "backward"
    sought = [values[value] for value in wanted if values[value].type.dtype in FLOATS]
    active = active_values(forward, sought)
    given = {v: values[v] for v in seeds if values[v] in active}
    cotangents = {v: Value(builder.names.fresh(f"d_{x.name}"), x.type) for v, x in given.items()}
    found = backward(builder, forward, {given[v]: d for v, d in cotangents.items()}, sought)
    return cotangents, {value: found[values[value]] for value in wanted if values[value] in found}


class _Maker:
    """Write the equations of one part. `values` maps values of the step to values here."""

    def __init__(self, builder: Builder, needs: StepNeeds, place: Mapping[str, int]) -> None:
        """Start a part.

        place: its index along each dimension. sources: new equation -> the old one, and where its part begins.
        """
        self.builder, self.needs, self.place = builder, needs, place
        self.values: dict[Value, Value] = {}
        self.sources: dict[Equation, tuple[Equation, Mapping[str, int]]] = {}

    def box(self, region: Region) -> Box:
        return box(region, self.place)

    def given(self, value: Value) -> None:
        type = _shortened(value.type, self.box(self.needs.values.get(value, {})))
        self.values[value] = Value(self.builder.names.fresh(value.name), type)

    def make(self, eqn: Equation, region: Region, used: Sequence[Region]) -> None:
        """Append an equation on regions: cut its operands to the regions that it uses, and compute its result's region.

        used: the region of each operand that the equation reads.
        """
        operands = []
        boxes = [self.box(each) for each in used]
        for value, needed_box in zip(eqn.operands, boxes, strict=True):
            held_box = self.box(self.needs.values.get(value, {}))
            operands.append(self.cut(self.values[value], held_box, needed_box))
        result_box = self.box(region)
        attributes = _attributes(eqn, result_box, boxes)
        types = OPS[eqn.op].infer([value.type for value in operands], attributes)
        results = tuple(
            Value(self.builder.names.fresh(v.name), type) for v, type in zip(eqn.results, types, strict=True)
        )
        part_eqn = attrs.evolve(eqn, operands=tuple(operands), results=results, attrs=attributes)
        self.builder.append(part_eqn)
        self.sources[part_eqn] = (eqn, {dim: low for dim, (low, _) in result_box.items()})
        self.values.update(zip(eqn.results, results, strict=True))

    def output(self, value: Value) -> Value:
        """Cut an output to the region that the part owns."""
        have = self.box(self.needs.values.get(value, {}))
        return self.cut(self.values[value], have, self.box(self.needs.owned(value)))

    def cut(self, value: Value, have: Box, wanted: Box) -> Value:
        """Slice the wanted region out of a value that has a larger region."""
        for dim in value.type.dims:
            low, high = have.get(dim.name, (0, dim.size))
            first, last = wanted.get(dim.name, (low, high))
            if (first, last) != (low, high):
                part = Dim(dim.name, last - first)
                value = self.builder(
                    "slice", value, name=value.name, source=dim, target=part, start=first - low, stride=1
                )
        return value


def _shortened(type: TensorType, region: Box) -> TensorType:
    return TensorType(type.dtype, tuple(_short(dim, region) for dim in type.dims))


def _short(dim: Dim, region: Box) -> Dim:
    low, high = region.get(dim.name, (0, dim.size))
    return Dim(dim.name, high - low)


def _attributes(eqn: Equation, region: Box, operands: Sequence[Box]) -> dict[str, Attr]:
    """Return an equation's attributes with dimensions as long as they are in this part."""
    known: dict[Dim, Dim] = {}
    for value, own in zip(eqn.operands, operands, strict=True):
        known |= {dim: _short(dim, own) for dim in value.type.dims}
    for value in eqn.results:
        known |= {dim: _short(dim, region) for dim in value.type.dims}
    shorter = Renumbering(lambda dim: known.get(dim, dim))
    found = {key: shorter.attribute(value) for key, value in eqn.attrs.items()}
    if has_trait(eqn, "rename"):
        return {"mapping": _mapping(eqn, region, operands[0])}
    g = _neighbours(eqn)
    if g is None or g.out.name not in region:
        return found
    if has_trait(eqn, "slice"):
        return {**found, "start": 0}  # the operand begins at the needed positions
    return _window(eqn, g, region, operands[0])


def _mapping(eqn: Equation, region: Box, source: Box) -> Attr:
    """Shorten both sides of a rename: two dimensions may swap names, and differ in length before and after."""
    return tuple((_short(old, source), _short(new, region)) for old, new in renaming(eqn.attrs).items())


def _window(eqn: Equation, g: Geometry, region: Box, source: Box) -> dict[str, Attr]:
    """Shorten a window: it keeps padding only at the ends of the dimension, elsewhere it reads its neighbours' elements."""
    low, high = region[g.out.name]
    first, last = source[g.source.name]
    before = first - (low * g.stride - g.before)
    after = (high - 1) * g.stride - g.before + g.extent - last
    source_dim, out = Dim(g.source.name, last - first), Dim(g.out.name, high - low)
    here = attrs.evolve(g, source=source_dim, out=out, before=before, after=after)
    return window_attrs(here, VALUE.of(eqn.attrs))


@attrs.frozen(eq=False)
class OperatorParts:
    """The parts of an operator at some degrees. Parts are numbered in row-major order of the operator's dimensions.

    A value that lacks a split dimension is replicated: all parts that differ only along this dimension have the same piece,
    or a term of it where the value is pending.
    """

    operator: Operator
    degrees: tuple[tuple[str, int], ...]

    @cached_property
    def count(self) -> int:
        return prod(degree for _, degree in self.degrees)

    @cached_property
    def all(self) -> Indices:
        return np.arange(self.count)

    @cached_property
    def index(self) -> dict[str, Indices]:
        """The index of each part along each split dimension."""
        shape = [degree for _, degree in self.degrees]
        found = np.unravel_index(self.all, shape) if shape else ()
        return {name: each for (name, _), each in zip(self.degrees, found, strict=True)}

    @cached_property
    def needs(self) -> dict[OperatorStep, StepNeeds]:
        """The needs of each step. Raises `Unsplittable`."""
        degrees = dict(self.degrees)
        return {step: step_needs(step, degrees, self.operator.dims) for step in self.operator.steps}

    def place(self, part: int) -> dict[str, int]:
        """Return the index of a part along each split dimension."""
        return {name: int(each[part]) for name, each in self.index.items()}

    def box(self, region: Region, part: int) -> Box:
        return box(region, self.place(part))

    def group(self, value: Value) -> Indices:
        """Return a number for each part; parts with equal numbers have the same piece of a value of this operator."""
        return self.numbers(value.type.names)

    def numbers(self, dims: Collection[str]) -> Indices:
        """Return a number for each part, which is equal for parts at equal indices along some dimensions."""
        found = np.zeros(self.count, np.int64)
        for name, degree in self.degrees:
            if name in dims:
                found = found * degree + self.index[name]
        return found

    def groups(self, value: Value) -> list[Indices]:
        """Return the parts that have each piece of a value, in order."""
        number = self.group(value)
        return [np.flatnonzero(number == i) for i in range(int(number.max()) + 1)]
