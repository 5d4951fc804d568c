"""The body of a pipeline's loop over ticks: what a stage computes for one micro-batch.

All values of the body of a loop over layers get the dimension `stages`, and lose the dimension of the batch but for one
micro-batch. A stage reads its layers from a stack, one after the other. Sums over the batch become terms of sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Attr, Equation, Function, Output, Value
from mtfc.compiler.ir.loops import (
    NewLoop,
    carried,
    dim_of,
    pairs,
    region_of,
    results_of,
    with_carries,
)
from mtfc.compiler.ir.micro_batch_rule import LISTS_OF_DIMS, cut_attributes, summed_group
from mtfc.compiler.ir.opdef import BY_NAME
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.types import FLOATS, Dim


@attrs.frozen
class Rounds:
    """The dimensions of the schedule of an interleaved pipeline.

    micro is cut into [rounds, turns]. A stage computes in steps = [rounds, chunks, turns], one after the other. one: a dimension
    for one of the chunks. held: the layers of a stage, [chunks, inner].
    """

    rounds: Dim
    chunks: Dim
    turns: Dim
    steps: Dim
    one: Dim
    held: Dim

    def in_steps(self, build: Builder, number: Value) -> Value:
        """Return the value at each step of a number with some of the dimensions of the schedule."""
        every = build("broadcast", number, dims=(self.rounds, self.chunks, self.turns))
        return build("reshape", every, dims=(self.steps,))

    def to_first_chunk(self, build: Builder, x: Value, micro: Dim, value: bool | int) -> Value:
        """Return values of all steps: `x` has those of the first chunk, for each micro-batch, and others are `value`."""
        rest = tuple(dim for dim in x.type.dims if dim != micro)
        cut = build(
            "reshape", build.ordered(x, (micro, *rest)), dims=(self.rounds, self.one, self.turns, *rest)
        )
        every = build("pad", cut, source=self.one, target=self.chunks, before=0, stride=1, value=value)
        return build("reshape", every, dims=(self.steps, *rest))

    def of_last_chunk(self, build: Builder, x: Value, micro: Dim) -> Value:
        """Return the values of the last chunk for each micro-batch. `x` has those of all steps."""
        rest = tuple(dim for dim in x.type.dims if dim != self.steps)
        ordered = build.ordered(x, (self.steps, *rest))
        cut = build("reshape", ordered, dims=(self.rounds, self.chunks, self.turns, *rest))
        start = self.chunks.size - 1
        last = build("slice", cut, source=self.chunks, target=self.one, start=start, stride=1)
        return build("reshape", last, dims=(micro, *rest))


@attrs.frozen
class StageDims:
    """The dimensions of a pipeline.

    layers is cut into [stages, inner], and batch into [part, micro]. ticks: the steps of the pipeline. last: the tick in which
    the last stage begins; the first one, for a loop that hands nothing on. rounds: the schedule, if there are several chunks;
    layers is then cut into [chunks, stages, inner].
    """

    layers: Dim
    batch: Dim
    stages: Dim
    inner: Dim
    micro: Dim
    part: Dim
    ticks: Dim
    last: int
    rounds: Rounds | None

    @property
    def number(self) -> int:
        """The number of ticks in which a stage computes."""
        return self.ticks.size - self.last

    def one(self, dims: Iterable[Dim]) -> tuple[Dim, ...]:
        """Return the dimensions of a value for one micro-batch."""
        return tuple(self.part if dim == self.batch else dim for dim in dims)

    def cut(self, build: Builder, x: Value, is_stacked: bool = False) -> Value:
        """Reshape `x`: [part, micro] take the place of the batch, and if it is stacked [stages, inner] of the layers.

        The chunks, `stages`, `inner` and `micro` come first.
        """
        flat = self.cut_in_place(x.type.dims, is_stacked)
        front = [dim for dim in (*self.layers_cut, self.micro) if dim in flat]
        cut = build("reshape", x, dims=flat) if flat != x.type.dims else x
        return build.ordered(cut, [*front, *(dim for dim in flat if dim not in front)])

    def joined(self, build: Builder, x: Value, dims: tuple[Dim, ...], is_stacked: bool = False) -> Value:
        """Undo `cut`: return `x` with dimensions `dims`."""
        return build("reshape", build.ordered(x, self.cut_in_place(dims, is_stacked)), dims=dims)

    @property
    def layers_cut(self) -> tuple[Dim, ...]:
        """The dimensions that take the place of the layers."""
        return (*([self.rounds.chunks] if self.rounds else []), self.stages, self.inner)

    def cut_in_place(self, dims: Sequence[Dim], is_stacked: bool = False) -> tuple[Dim, ...]:
        """Return dimensions with [part, micro] in the place of the batch, and with those of the stages if they are stacked."""
        parts: dict[Dim, tuple[Dim, ...]] = {self.batch: (self.part, self.micro)}
        if is_stacked:
            parts[self.layers] = self.layers_cut
        return tuple(each for dim in dims for each in parts.get(dim, (dim,)))


@attrs.frozen
class Tick:
    """Values of one tick: for each stage its micro-batch and its chunk, and if it computes a micro-batch at all.

    first: True for the stage at which micro-batches enter, if one does. last: True for the stage that they leave.
    """

    number: Value
    micro: Value
    active: Value
    first: Value
    last: Value
    chunk: Value | None = None

    @property
    def chunk_of_stage(self) -> Value:
        assert self.chunk is not None, "stages have several chunks"
        return self.chunk


def with_stages(build: Builder, x: Value, stages: Dim) -> Value:
    """Return `x` with the dimension `stages`, as the first one."""
    if stages in x.type.dims:
        return build.ordered(x, (stages, *(dim for dim in x.type.dims if dim != stages)))
    return build("broadcast", x, dims=(stages, *x.type.dims))


def _with_first_dim(attributes: Mapping[str, Attr], dim: Dim) -> dict[str, Attr]:
    """Return attributes for a result that has one more dimension, as the first one."""
    lists = {key: value for key, value in attributes.items() if key in LISTS_OF_DIMS}
    return {key: (dim, *value) for key, value in lists.items() if isinstance(value, tuple)}


@attrs.frozen
class StageBody:
    """Gives the values of a loop's body the dimension `stages`, and cuts the batch out of them."""

    dims: StageDims
    sums: set[Value]

    def loop(
        self,
        b: Builder,
        eqn: Equation,
        given: Sequence[Value],
        micro: Value,
        dim: Dim,
        tick: Tick | None = None,
    ) -> list[Value]:
        """Append a loop along `dim` with the operands `given`, and return its results: `stages` comes first where it occurs.

        tick: of the loop over the layers of a stage, which reads them from stacks.
        """
        region, stages = region_of(eqn), self.dims.stages
        given_to = [*zip(given, region.arguments, strict=True)]
        varying = self._varying(region, {a.value for v, a in given_to if stages in v.type.dims})
        new, inner = dict[Value, Value](), Builder(Names(), eqn.span, eqn.stage)
        loop = NewLoop(b, inner, dim)
        for operand, argument in given_to:
            if argument.role == "carried" and argument.value in varying:
                operand = with_stages(b, operand, stages)
            role = argument.role if dim in operand.type.dims or argument.role == "carried" else "invariant"
            new[argument.value] = loop.argument(operand, role, argument.value.name, argument.span)
        number = loop.argument(micro, "invariant")
        if tick is not None:
            self._read_layers(loop, region, new, tick)
        self._body(inner, region, new, number)
        loop.outputs += [self._output(inner, region, new, number, output) for output in region.outputs]
        results = loop.append(dim.name, attrs.evolve(eqn, attrs={**eqn.attrs, "dim": dim})).results
        return [with_stages(b, each, stages) if stages in each.type.dims else each for each in results]

    def _read_layers(self, loop: NewLoop, region: Function, new: dict[Value, Value], tick: Tick) -> None:
        """Read the layers of each stage, at its chunk. An idle stage gives them no gradient.

        new: argument -> stack or slice; then -> layer.
        """
        stages, b, inner = self.dims.stages, loop.outer, loop.inner
        active, place = loop.argument(tick.active, "invariant"), None
        if tick.chunk is not None:
            first = b("mul", tick.chunk, b.constant(self.dims.inner.size, "i32"))
            number = loop.argument(b("range", dim=self.dims.inner), "sliced")
            place = inner("add", loop.argument(first, "invariant"), number)
        for value in (a.value for a in region.arguments if a.role == "sliced"):
            if self.dims.batch in value.type.dims:
                continue
            if self.dims.rounds is not None and place is not None:
                new[value] = inner("gather", new[value], place, dim=self.dims.rounds.held)
            if value.type.dtype in FLOATS:
                new[value] = inner("mask_gradient", with_stages(inner, new[value], stages), active)

    def _output(
        self, b: Builder, region: Function, new: Mapping[Value, Value], micro: Value, output: Output
    ) -> Output:
        value = new[output.value]
        carry = next((a.value for a in carried(region) if a.value.name == output.updates), None)
        if carry is None:
            return attrs.evolve(output, value=value)
        if carry in self.sums and output.value not in self.sums:
            value = self._first_term(b, value, micro)
        if self.dims.stages in new[carry].type.dims:
            value = with_stages(b, value, self.dims.stages)
        return attrs.evolve(output, value=b.ordered(value, new[carry].type.dims), updates=new[carry].name)

    def _varying(self, region: Function, known: set[Value]) -> set[Value]:
        """Return the values of a region, without those of inner regions, that differ between stages. known: arguments."""
        arguments = known | self.sums.intersection(a.value for a in region.arguments)

        def inside(given: set[Value]) -> set[Value]:
            found = set(given)
            for eqn in region.body:
                found.update(self._varying_results(eqn, found))
            return found

        return with_carries(region, arguments, inside)

    def _varying_results(self, eqn: Equation, known: set[Value]) -> Iterable[Value]:
        if not eqn.regions:
            is_drawn = has_trait(eqn, "random") and self.dims.batch in eqn.result.type.dims
            varies = is_drawn or not known.isdisjoint(eqn.operands) or not self.sums.isdisjoint(eqn.results)
            return eqn.results if varies else ()
        region = region_of(eqn)
        inside = self._varying(region, {a.value for v, a in pairs(eqn) if v in known})
        return results_of(eqn, inside)

    def _body(self, b: Builder, region: Function, new: dict[Value, Value], micro: Value) -> None:
        for eqn in region.body:
            b.span, b.stage = eqn.span, eqn.stage
            if eqn.regions:
                given = [
                    self._operand(b, new, v, micro, argument.value in self.sums) for v, argument in pairs(eqn)
                ]
                made = self.loop(b, eqn, given, micro, dim_of(eqn))
            else:
                made = self._equation(b, eqn, new, micro)
            new.update(zip(eqn.results, made, strict=True))

    def _operand(
        self, b: Builder, new: Mapping[Value, Value], value: Value, micro: Value, is_sum: bool
    ) -> Value:
        """Return the new value of an operand that is used as a sum, or not."""
        return self._first_term(b, new[value], micro) if is_sum and value not in self.sums else new[value]

    def _first_term(self, b: Builder, x: Value, micro: Value) -> Value:
        """Return a value as a sum: the term of the first micro-batch is the value, and the others are 0."""
        is_first = b("eq", micro, b.constant(0, "i32"))
        return b("mask", is_first, with_stages(b, x, self.dims.stages))

    def _equation(self, b: Builder, eqn: Equation, new: Mapping[Value, Value], micro: Value) -> list[Value]:
        stages = self.dims.stages
        group = summed_group(OPS[eqn.op], eqn, self.sums) if eqn.results[0] in self.sums else None
        has_sums = not self.sums.isdisjoint(eqn.operands)
        operands = [
            self._operand(b, new, value, micro, has_sums and group is not None and i in group)
            for i, value in enumerate(eqn.operands)
        ]
        attributes = cut_attributes(eqn.attrs, self.dims.batch, self.dims.part)
        if has_trait(eqn, "random") and self.dims.batch in eqn.result.type.dims:
            whole = self.dims.cut_in_place(eqn.result.type.dims)
            attributes |= {"dims": whole, "at": self.dims.micro}
            operands.append(micro)
        if any(stages in value.type.dims for value in operands):
            operands = self._alike(b, eqn, operands)
            attributes |= _with_first_dim(attributes, stages)
        made = b.several(eqn.op, *operands, names=[value.name for value in eqn.results], **attributes)
        b.body[-1] = attrs.evolve(b.body[-1], path=eqn.path)
        front = [stages] if any(stages in value.type.dims for value in operands) else []
        return [
            b.ordered(value, (*front, *self.dims.one(old.type.dims)))
            for value, old in zip(made, eqn.results, strict=True)
        ]

    def _alike(self, b: Builder, eqn: Equation, operands: Sequence[Value]) -> list[Value]:
        """Give all operands the dimension `stages`, unless the op broadcasts them by itself."""
        is_elementwise = OPS[eqn.op].layout_rule(eqn) is BY_NAME and not has_trait(eqn, "random")
        wanted = {self.dims.stages, *self.dims.one(eqn.results[0].type.dims)}
        is_whole = any({*value.type.dims} == wanted for value in operands)
        if has_trait(eqn, "dot") or (is_elementwise and is_whole):
            return list(operands)
        return [with_stages(b, value, self.dims.stages) for value in operands]
