"""One part of a step as a function of its own: the step's equations with dimensions as long as the part needs them.

Its backward pass is this function's gradient. So what a part computes, how long it takes, what it keeps and what it needs of
others all follow from one piece of IR; nothing about it is said twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Argument, Attr, Equation, Function, Output, Value
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.ops.structure import renaming
from mtfc.compiler.ir.ops.windows import geometry, window_attrs
from mtfc.compiler.ir.types import FLOATS, Dim, TensorType
from mtfc.compiler.passes.autodiff.backward import active_values, backward
from mtfc.compiler.search.placement.operators.operator_graph import Step
from mtfc.compiler.search.placement.operators.regions import Region, Span, equal_parts, needed, of_operand

Degrees = Mapping[str, int]
"""Dimension -> into how many equal parts it is split; 1 for those that are not named."""

Interval = tuple[int, int]
Box = Mapping[str, Interval]
"""Dimension of a value -> first position of a region and the one after its last; dimensions that it lacks are whole."""


@attrs.frozen(eq=False)
class Need:
    """What the parts of a step compute of its outputs, and need of each value that they use."""

    spans: Mapping[str, Span]
    values: Mapping[Value, Region]
    equations: Mapping[Equation, Region]

    def owned(self, value: Value) -> Region:
        """What a part gives of an output."""
        return {name: self.spans[name] for name in value.type.names if name in self.spans}

    def used(self, step: Step, eqn: Equation) -> tuple[Region, list[Region]]:
        """What a part computes of an equation's results, and uses of its operands. It adds up its own terms of a pending sum."""
        if eqn.results[0] in step.pending:
            own = _terms(eqn, self.spans)
            return own, [own]
        own = self.equations[eqn]
        return own, [of_operand(eqn, i, own) for i in range(len(eqn.operands))]


def need(step: Step, degrees: Degrees, dims: Sequence[Dim]) -> Need:
    """What parts need where the operator, which may be split in `dims`, is. Raises `Unsplittable`."""
    spans = {dim.name: equal_parts(dim, degrees[dim.name]) for dim in dims if degrees.get(dim.name, 1) > 1}
    wanted: list[tuple[Value, Region]] = [
        (value, {name: spans[name] for name in value.type.names if name in spans}) for value in step.outputs
    ]
    wanted += [
        (eqn.operands[0], _terms(eqn, spans)) for eqn in step.equations if eqn.results[0] in step.pending
    ]
    return Need(spans, *needed(_without(step, step.pending), _split(wanted, step.pending)))


def _terms(eqn: Equation, spans: Mapping[str, Span]) -> Region:
    """What of the operand of a sum a part adds up."""
    return {name: spans[name] for name in eqn.operands[0].type.names if name in spans}


def _without(step: Step, pending: frozenset[Value]) -> list[Equation]:
    return [eqn for eqn in step.equations if eqn.results[0] not in pending]


def _split(wanted: Sequence[tuple[Value, Region]], pending: frozenset[Value]) -> list[tuple[Value, Region]]:
    return [(value, region) for value, region in wanted if value not in pending]


def box(region: Region, place: Mapping[str, int]) -> Box:
    """A region for the part at one place: index along each split dimension."""
    return {dim: (int(s.low[place[s.by]]), int(s.high[place[s.by]])) for dim, s in region.items()}


@attrs.frozen(eq=False)
class Local:
    """A part. `values` are the step's inputs, arguments and outputs here; `cotangents` those of outputs, as arguments of the
    backward pass; `gradients` what it gives: of inputs and parameters.

    sources: equations here -> those of the step. places: dimension -> first position of what an equation here computes.
    """

    forward: tuple[Equation, ...]
    backward: tuple[Equation, ...]
    values: Mapping[Value, Value]
    cotangents: Mapping[Value, Value]
    gradients: Mapping[Value, Value]
    sources: Mapping[Equation, tuple[Equation, Mapping[str, int]]]

    def function(self) -> Function:
        """Both passes as one function."""
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


def localize(
    step: Step,
    needs: Need,
    place: Mapping[str, int],
    seeds: Sequence[Value] = (),
    wanted: Sequence[Value] = (),
) -> Local:
    """The part at a place, with its gradient: from cotangents of the outputs `seeds` to those of `wanted` values."""
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
    return Local(forward, tuple(builder.body[len(forward) :]), values, cotangents, gradients, maker.sources)


def _gradient(
    builder: Builder, values: Mapping[Value, Value], seeds: Sequence[Value], wanted: Sequence[Value]
) -> tuple[dict[Value, Value], dict[Value, Value]]:
    """Append the backward pass. Cotangents of the seeds, and what comes out: those of wanted values that depend on them."""
    forward = tuple(builder.body)
    builder.stage = "backward"
    sought = [values[value] for value in wanted if values[value].type.dtype in FLOATS]
    active = active_values(forward, sought)
    given = {v: values[v] for v in seeds if values[v] in active}
    cotangents = {v: Value(builder.names.fresh(f"d_{x.name}"), x.type) for v, x in given.items()}
    found = backward(builder, forward, {given[v]: d for v, d in cotangents.items()}, sought)
    return cotangents, {value: found[values[value]] for value in wanted if values[value] in found}


class _Maker:
    """Makes the equations of one part. `values` are those of the step as far as they are needed here."""

    def __init__(self, builder: Builder, needs: Need, place: Mapping[str, int]) -> None:
        self.builder, self.needs, self.place = builder, needs, place
        self.values: dict[Value, Value] = {}
        self.sources: dict[Equation, tuple[Equation, Mapping[str, int]]] = {}

    def box(self, region: Region) -> Box:
        return box(region, self.place)

    def given(self, value: Value) -> None:
        type = _shortened(value.type, self.box(self.needs.values.get(value, {})))
        self.values[value] = Value(self.builder.names.fresh(value.name), type)

    def make(self, eqn: Equation, region: Region, used: Sequence[Region]) -> None:
        """The equation here."""
        operands = []
        boxes = [self.box(each) for each in used]
        for value, wanted in zip(eqn.operands, boxes, strict=True):
            have = self.box(self.needs.values.get(value, {}))
            operands.append(self.cut(self.values[value], have, wanted))
        own = self.box(region)
        changed = _attributes(eqn, own, boxes)
        types = OPS[eqn.op].infer([value.type for value in operands], changed)
        results = tuple(
            Value(self.builder.names.fresh(v.name), type) for v, type in zip(eqn.results, types, strict=True)
        )
        made = attrs.evolve(eqn, operands=tuple(operands), results=results, attrs=changed)
        self.builder.append(made)
        self.sources[made] = (eqn, {dim: low for dim, (low, _) in own.items()})
        self.values.update(zip(eqn.results, results, strict=True))

    def output(self, value: Value) -> Value:
        """The part's own region of an output."""
        have = self.box(self.needs.values.get(value, {}))
        return self.cut(self.values[value], have, self.box(self.needs.owned(value)))

    def cut(self, value: Value, have: Box, wanted: Box) -> Value:
        """The wanted region of a value of which a larger one is here."""
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
    """An equation's attributes with dimensions as long as they are here."""
    known: dict[Dim, Dim] = {}
    for value, own in zip(eqn.operands, operands, strict=True):
        known |= {dim: _short(dim, own) for dim in value.type.dims}
    for value in eqn.results:
        known |= {dim: _short(dim, region) for dim in value.type.dims}
    found = {key: _renewed(value, known) for key, value in eqn.attrs.items()}
    if has_trait(eqn, "rename"):
        return {"mapping": _mapping(eqn, region, operands[0])}
    if has_trait(eqn, "slice"):
        return _slice(eqn, found, region, operands[0])
    return _window(eqn, found, region, operands[0]) if has_trait(eqn, "window") else found


def _renewed(value: Attr, known: Mapping[Dim, Dim]) -> Attr:
    if isinstance(value, Dim):
        return known.get(value, value)
    if isinstance(value, tuple):
        return tuple(_renewed(each, known) for each in value)  # type: ignore[return-value]
    return value


def _mapping(eqn: Equation, region: Box, source: Box) -> Attr:
    """Two dimensions may take each other's name, and be of other lengths before than after."""
    return tuple((_short(old, source), _short(new, region)) for old, new in renaming(eqn.attrs).items())


def _slice(eqn: Equation, found: dict[str, Attr], region: Box, source: Box) -> dict[str, Attr]:
    """A part of a slice begins with the part of the operand that it needs."""
    return {**found, "start": 0} if eqn.attrs["target"].name in region else found  # type: ignore[union-attr]


def _window(eqn: Equation, found: dict[str, Attr], region: Box, source: Box) -> dict[str, Attr]:
    """A part of windows has padding where the dimension ends, and else its neighbours' elements."""
    g = geometry(eqn.attrs)
    if g.out.name not in region:
        return found
    low, high = region[g.out.name]
    first, last = source[g.source.name]
    before = first - (low * g.stride - g.before)
    after = (high - 1) * g.stride - g.before + g.extent - last
    source_dim, out = Dim(g.source.name, last - first), Dim(g.out.name, high - low)
    here = attrs.evolve(g, source=source_dim, out=out, before=before, after=after)
    return window_attrs(here, eqn.attrs["value"])  # type: ignore[arg-type]
