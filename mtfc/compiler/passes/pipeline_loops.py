"""pipeline-loops: run a loop as a pipeline, where the layout says so: stages hold layers, and micro-batches go through them.

A loop along `layers` becomes a loop along *ticks*. In each tick all stages compute at once, each its own layers for another
micro-batch, and then hand their results on to the next stage. So all values of the body get the dimension `stages`, which the
layout splits, and the dimension of the batch is cut into [part, micro]. For S stages and M micro-batches there are M + S - 1
ticks. Stage s computes micro-batch m in tick m + s.

- A carry enters at the first stage, and is shifted by one stage in each tick. The results of the last stage are collected.
- A value that all iterations share, and that has the batch, is read at the micro-batch of each stage.
- A yielded value is read at the tick in which each stage computed each micro-batch. A sum over the batch is added up over ticks.

A stage is idle in S - 1 ticks, and computes something nevertheless. Nothing of that reaches a result: carries leave idle ticks
only towards idle ticks, and everything else is selected. So is the gradient of parameters, by `mask_gradient`.

The pass runs before `differentiate`, which derives the backward pipeline: the transpose of the shift is the shift back.

With C chunks, layers are cut into [chunks, stages, inner], and a micro-batch goes around the ring of stages C times. A round
has S micro-batches. A stage computes its first chunk for all micro-batches of a round, then its second chunk, and so on; then
comes the next round. There are M * C + S - 1 ticks, each with a C-th of the work.

Input:   %y = loop %x, %w dim=layers region layers { carried %h: f32[batch, io]; sliced %w: f32[io, hidden]; ... }
Output:  %y: f32[layers.ticks, batch.part, io] = loop %zeros, %w, %x dim=layers.ticks region layers.ticks {
           carried %h: f32[layers.stages, batch.part, io]; invariant %w: f32[layers.stages, layers.part, io, hidden]
           sliced %x: f32[batch.part, io]; %s = shift %h dim=layers.stages by=1; %i = where %first, %x, %s; %h_2 = loop %i, %w ...
After this pass no loop runs along the dimension of a pipeline, and the layout has rules for the new dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar

import attrs

from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Argument, Attr, Equation, Function, Output, Program, Role, Value
from mtfc.compiler.ir.loops import (
    TICKS,
    carried,
    dim_of,
    make_loop,
    map_regions,
    pairs,
    plain_loop,
    region_of,
    results_of,
    sliced_type,
    with_carries,
    with_operands,
)
from mtfc.compiler.ir.micro_batch_rule import (
    LISTS_OF_DIMS,
    before_loop,
    cut_attributes,
    loop_sums,
    summed_group,
    takes_batch,
)
from mtfc.compiler.ir.opdef import BY_NAME
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.rewrite import Substitution, names_of
from mtfc.compiler.ir.types import FLOATS, Dim, Layout, Mesh, Pipeline, TensorType
from mtfc.compiler.ir.verifier import Level
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.passes.spatial.position_blocks import NewDims

ResultOf = Callable[[], Value]
"""Makes a result of the whole loop, once the loop over ticks is complete."""


@attrs.frozen
class PipelineLoops(Pass):
    name: ClassVar[str] = "pipeline-loops"
    takes: ClassVar[tuple[Level, ...]] = ("global",)

    def run(self, program: Program) -> Program:
        if program.mesh is None or program.layout is None or not program.layout.pipelines:
            return program
        dims = NewDims(program.dims)
        changer = LoopPipeliner(program.mesh, program.layout, program.dims, dims)
        return dims.declared_in(program.map_functions(changer.function))


@attrs.frozen
class LoopPipeliner:
    """Makes pipelines of the loops of one program. takes: tells which loops may become pipelines."""

    mesh: Mesh
    layout: Layout
    declared: Mapping[str, Dim]
    new: NewDims
    takes: Callable[[Equation], bool] = lambda _: True

    def function(self, function: Function) -> Function:
        """Rewrite a function, or the region of a loop that is no pipeline."""
        build, new = Builder(names_of(function)), Substitution()
        for eqn in function.body:
            changed = new.equation(eqn)
            pipeline = self._pipeline(eqn)
            if pipeline is None:
                build.append(map_regions(changed, self.function))
                continue
            build.span, build.stage = eqn.span, eqn.stage
            results = self._grid(eqn, pipeline).equations(build, changed)
            for old, value in zip(eqn.results, results, strict=True):
                new[old] = value
        return new.function(function, build.body)

    def _pipeline(self, eqn: Equation) -> Pipeline | None:
        if not eqn.regions or not self.takes(eqn):
            return None
        named = (each for each in self.layout.pipelines if each.loop == dim_of(eqn).name)
        staged = (each for each in named if self.mesh.size(self.layout.rules.get(each.loop)) > 1)
        return next((each for each in staged if takes_batch(eqn, self.declared[each.batch])), None)

    def _grid(self, eqn: Equation, pipeline: Pipeline) -> PipelinedLoop:
        dim, batch = dim_of(eqn), self.declared[pipeline.batch]
        axes = self.layout.rules.get(dim.name)
        others = tuple(axis for axis in self.layout.rules.get(batch.name) if axis not in axes)
        stages, number, chunks = self.mesh.size(axes), pipeline.micro_batches, pipeline.chunks
        last = stages - 1 if carried(region_of(eqn)) else 0
        return PipelinedLoop(
            StageDims(
                dim,
                batch,
                self.new.get(f"{dim.name}.stages", stages, axes),
                self.new.get(f"{dim.name}.part", dim.size // (stages * chunks)),
                self.new.get(f"{batch.name}.micro", number),
                self.new.get(f"{batch.name}.part", batch.size // number, others),
                self.new.get(pipeline.ticks, number * chunks + last),
                last,
                self._rounds(dim, batch, stages, pipeline) if chunks > 1 else None,
            ),
            self.new,
            pipeline.checkpoint,
            loop_sums(eqn, batch),
        )

    def _rounds(self, dim: Dim, batch: Dim, stages: int, pipeline: Pipeline) -> Rounds:
        number, chunks = pipeline.micro_batches, pipeline.chunks
        return Rounds(
            self.new.get(f"{batch.name}.rounds", number // stages),
            self.new.get(f"{dim.name}.chunks", chunks),
            self.new.get(f"{batch.name}.turns", stages),
            self.new.get(f"{dim.name}.steps", number * chunks),
            self.new.get(f"{dim.name}.chunk", 1),
            self.new.get(f"{dim.name}.held", dim.size // stages),
        )


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


@attrs.frozen
class PipelinedLoop:
    """Rewrites one loop. `sums` are its values with a term for each micro-batch: see `ir/micro_batch_rule.py`."""

    dims: StageDims
    new: NewDims
    checkpoint: bool
    sums: set[Value]

    def equations(self, build: Builder, eqn: Equation) -> list[Value]:
        """Append the equations of the pipeline, and return values for the results of the loop."""
        eqn = self._without_mixing(build, eqn)
        ticks = TickLoop(build, Builder(Names(), eqn.span, eqn.stage), self.dims, bool(eqn.attrs["reverse"]))
        tick = ticks.tick()
        body = StageBody(self.dims, self.sums)
        given = [self._given(ticks, tick, operand, argument) for operand, argument in pairs(eqn)]
        made = body.loop(ticks.inner, eqn, given, tick.micro, self.dims.inner, tick)
        results = [_with_stages(ticks.inner, each, self.dims.stages) for each in made]
        updated = {argument.value.name: argument for argument in carried(region_of(eqn))}
        found = [
            self._result(ticks, tick, result, output, updated.get(output.updates or ""))
            for result, output in zip(results, region_of(eqn).outputs, strict=True)
        ]
        ticks.append(plain_loop(self.dims.ticks, ticks.inner, self.checkpoint))
        values = [each() for each in found]
        return [build.ordered(value, old.type.dims) for value, old in zip(values, eqn.results, strict=True)]

    def _without_mixing(self, build: Builder, eqn: Equation) -> Equation:
        """Compute before the loop what needs the whole batch and only invariant operands."""
        region = region_of(eqn)
        moved = before_loop(region, self.dims.batch)
        if not moved:
            return eqn
        outer = Substitution({a.value: o for o, a in pairs(eqn) if a.role == "invariant"})
        known = {a.value for a in region.arguments if a.role == "invariant"}
        for each in region.body:
            if not each.regions and not has_trait(each, "random") and known.issuperset(each.operands):
                known.update(each.results)
                attributes: dict[str, Attr] = dict(each.attrs)
                names = [value.name for value in each.results]
                made = build.several(each.op, *outer.all(each.operands), names=names, **attributes)
                for old, value in zip(each.results, made, strict=True):
                    outer[old] = value
        gone = {id(each) for each in moved}
        values = [value for each in moved for value in each.results]
        more = [Argument(value, "invariant") for value in values]
        smaller = attrs.evolve(region, body=tuple(each for each in region.body if id(each) not in gone))
        return with_operands(eqn, smaller, [*pairs(eqn), *zip(outer.all(values), more, strict=True)])

    def _given(self, ticks: TickLoop, tick: Tick, operand: Value, argument: Argument) -> Value:
        """Return the operand of the stages' own loop in one tick."""
        inner, dims = ticks.inner, self.dims
        if argument.role == "carried":
            return self._entering(ticks, tick, operand, argument)
        has_batch, is_stacked = dims.batch in operand.type.dims, argument.role == "sliced"
        cut = dims.cut(ticks.outer, operand, is_stacked)
        if is_stacked and not has_batch and dims.rounds is not None:
            rest = [dim for dim in cut.type.dims if dim not in dims.layers_cut]
            ordered = ticks.outer.ordered(cut, (dims.stages, dims.rounds.chunks, dims.inner, *rest))
            cut = ticks.outer("reshape", ordered, dims=(dims.stages, dims.rounds.held, *rest))
        value = ticks.shared(operand.name, cut)
        if is_stacked and has_batch and dims.rounds is not None and tick.chunk is not None:
            value = _with_stages(
                inner, inner("gather", value, tick.chunk, dim=dims.rounds.chunks), dims.stages
            )
        if has_batch:
            return _with_stages(inner, inner("gather", value, tick.micro, dim=dims.micro), dims.stages)
        if is_stacked or operand.type.dtype not in FLOATS:
            return value
        return inner("mask_gradient", _with_stages(inner, value, dims.stages), tick.active)

    def _entering(self, ticks: TickLoop, tick: Tick, operand: Value, argument: Argument) -> Value:
        """Return a carry at the start of a tick: the first stage takes the next micro-batch, others what they are handed."""
        inner, dims, type = ticks.inner, self.dims, argument.value.type
        ordered = ticks.outer.ordered(operand, type.dims)
        if dims.batch in type.dims:
            cut = dims.cut(ticks.outer, ordered)
            value = False if type.dtype == "bool" else 0
            entering = dims.micro
            if dims.rounds is not None:
                cut = dims.rounds.to_first_chunk(ticks.outer, cut, dims.micro, value)
                entering = dims.rounds.steps
            padded = ticks.outer(
                "pad", cut, source=entering, target=dims.ticks, before=0, stride=1, value=value
            )
            fed = ticks.sliced(operand.name, padded)
        else:
            fed = ticks.shared(operand.name, ordered)
            if argument.value in self.sums:
                fed = inner("mask", inner("eq", tick.number, inner.constant(0, "i32")), fed)
        held = ticks.owners[argument.value] = ticks.carried(
            argument.value.name, TensorType(type.dtype, (dims.stages, *dims.one(type.dims)))
        )
        by, wrap = -1 if ticks.reverse else 1, dims.rounds is not None
        handed_on = inner("shift", held, dim=dims.stages, by=by, wrap=wrap)
        return inner("where", tick.first, _with_stages(inner, fed, dims.stages), handed_on)

    def _result(
        self, ticks: TickLoop, tick: Tick, result: Value, output: Output, carry: Argument | None
    ) -> ResultOf:
        """Collect a result of the stages' own loops; the function that this returns makes the result of the whole loop."""
        if carry is not None:
            ticks.update(ticks.owners[carry.value], result)
            return self._last_carry(ticks, tick, result, carry)
        if self.dims.batch in output.value.type.dims:
            return self._yielded(ticks, result, output)
        return self._same_or_sum(ticks, tick, result, output)

    def _last_carry(self, ticks: TickLoop, tick: Tick, result: Value, carry: Argument) -> ResultOf:
        """Collect what leaves the last stage. The other stages hand zeros to the sum over stages."""
        inner, outer, dims, type = ticks.inner, ticks.outer, self.dims, carry.value.type
        if type.dtype == "bool":
            leaving = inner("any", inner("and", result, tick.last), over=(dims.stages,))
        else:
            leaving = inner("sum", inner("mask", tick.last, result), over=(dims.stages,))
        stack = ticks.yielded(carry.value.name, leaving)

        def collected() -> Value:
            left = dims.rounds.steps if dims.rounds else dims.micro
            found = outer("slice", stack(), source=dims.ticks, target=left, start=dims.last, stride=1)
            if dims.rounds is not None:
                found = dims.rounds.of_last_chunk(outer, found, dims.micro)
            if dims.batch in type.dims:
                return dims.joined(outer, found, type.dims)
            if carry.value in self.sums:
                return outer("sum", found, over=(dims.micro,))
            one = self.new.get(f"{dims.micro.name}.first", 1)
            first = outer("slice", found, source=dims.micro, target=one, start=0, stride=1)
            return outer("reshape", first, dims=type.dims)

        return collected

    def _yielded(self, ticks: TickLoop, result: Value, output: Output) -> ResultOf:
        """Stack what all stages yield in each tick, and read each micro-batch at the tick in which a stage computed it."""
        outer, dims = ticks.outer, self.dims
        stack = ticks.yielded(output.name, result)

        def collected() -> Value:
            step = ticks.steps_of_micro_batches()
            both = TensorType("i32", (*step.type.dims, dims.stages))
            order = outer.broadcast(ticks.order(outer), both)
            when = outer("add", outer.broadcast(step, both), outer.ordered(order, both.dims))
            found = outer("gather", stack(), when, dim=dims.ticks)
            return dims.joined(outer, found, (dims.layers, *output.value.type.dims), is_stacked=True)

        return collected

    def _same_or_sum(self, ticks: TickLoop, tick: Tick, result: Value, output: Output) -> ResultOf:
        """Keep what the first micro-batch yields, or add up the terms of all micro-batches."""
        inner, dims, counts, is_sum = ticks.inner, self.dims, tick.active, output.value in self.sums
        if not is_sum:
            counts = inner("eq", tick.micro, inner.constant(0, "i32"))
        if dims.rounds is not None and tick.chunk is not None:
            chunks = dims.rounds.chunks
            type = TensorType(result.type.dtype, (chunks, *result.type.dims))
            held = ticks.carried(output.name, type)
            if is_sum:
                new = inner("add_at", held, inner("mask", counts, result), tick.chunk, dim=chunks)
            else:
                both = TensorType("i32", (chunks, dims.stages))
                number = inner.broadcast(inner("range", dim=chunks), both)
                counts = inner("and", inner("eq", number, tick.chunk), counts)
                new = inner("where", counts, inner.broadcast(result, type), held)
        else:
            held = ticks.carried(output.name, result.type)
            masked = inner("mask", counts, result) if is_sum else None
            new = inner("add", held, masked) if masked else inner("where", counts, result, held)
        ticks.update(held, new)
        total = ticks.last(held)
        dimensions = (dims.layers, *output.value.type.dims)
        return lambda: dims.joined(ticks.outer, total(), dimensions, is_stacked=True)


def _with_stages(build: Builder, x: Value, stages: Dim) -> Value:
    """Return `x` with the dimension `stages`, as the first one."""
    if stages in x.type.dims:
        return build.ordered(x, (stages, *(dim for dim in x.type.dims if dim != stages)))
    return build("broadcast", x, dims=(stages, *x.type.dims))


def _with_first_dim(attributes: Mapping[str, Attr], dim: Dim) -> dict[str, Attr]:
    """Return attributes for a result that has one more dimension, as the first one."""
    lists = {key: value for key, value in attributes.items() if key in LISTS_OF_DIMS}
    return {key: (dim, *value) for key, value in lists.items() if isinstance(value, tuple)}


@attrs.define
class TickLoop:
    """Collects the arguments and outputs of the loop over ticks; `outer` builds around the loop, `inner` inside of it.

    shared, slices: outer value -> argument. carries: argument -> its outer start and its new value. owners: value of the body
    that a carry stands for -> the carry. yields: outputs. results: the results of the loop, by name of the output.
    """

    outer: Builder
    inner: Builder
    dims: StageDims
    reverse: bool
    shares: dict[Value, Value] = attrs.field(factory=dict)
    slices: list[tuple[Value, Value]] = attrs.field(factory=list)
    carries: dict[Value, Value | None] = attrs.field(factory=dict)
    owners: dict[Value, Value] = attrs.field(factory=dict)
    yields: list[Output] = attrs.field(factory=list)
    results: dict[str, Value] = attrs.field(factory=dict)

    def order(self, build: Builder) -> Value:
        """Return the tick in which each stage begins: a reversed loop begins at the last stage."""
        if not self.dims.last:
            return build("full", dims=(self.dims.stages,), value=0, dtype="i32")
        place = build("range", dim=self.dims.stages)
        last = build.constant(self.dims.stages.size - 1, "i32")
        return build("sub", last, place) if self.reverse else place

    def tick(self) -> Tick:
        b, order = self.inner, self.order(self.inner)
        number = self.sliced("tick", self.outer("range", dim=self.dims.ticks))
        micro = b("sub", number, order, name="micro")
        begun = b("ge", micro, b.constant(0, "i32"))
        active = b("and", begun, b("lt", micro, b.constant(self.dims.number, "i32")), name="active")
        first = b("eq", order, b.constant(0, "i32"), name="first")
        last = b("eq", order, b.constant(self.dims.stages.size - 1, "i32"), name="last")
        tick = Tick(number, micro, active, first, last)
        return tick if self.dims.rounds is None else self._in_rounds(tick, self.dims.rounds)

    def _in_rounds(self, tick: Tick, rounds: Rounds) -> Tick:
        """Return a tick of an interleaved pipeline. `tick.micro` is the number of the step of each stage.

        An idle stage has no micro-batch: the number of its step stays, which is none of a micro-batch. It takes what enters, as a
        stage that is done is next to one that may not be.
        """
        b, out, step = self.inner, self.outer, tick.micro
        chunk = out("range", dim=rounds.chunks)
        table = self.shared("chunks", rounds.in_steps(out, chunk))
        turn = b("gather", table, step, dim=rounds.steps, name="turn")
        is_first = b("eq", turn, b.constant(0, "i32"))
        enters = b("and", tick.first, b("or", is_first, b("not", tick.active)))
        last = b.constant(rounds.chunks.size - 1, "i32")
        chunk = b("sub", last, turn, name="chunk") if self.reverse else turn
        micro = out("reshape", out("range", dim=self.dims.micro), dims=(rounds.rounds, rounds.turns))
        table = self.shared("micros", rounds.in_steps(out, micro))
        found = b("gather", table, step, dim=rounds.steps)
        micro = b("where", tick.active, found, step, name="micro")
        return Tick(tick.number, micro, tick.active, enters, tick.last, chunk)

    def steps_of_micro_batches(self) -> Value:
        """Return the step in which a stage computes each micro-batch, i32[micro], or i32[micro, chunks]."""
        out, rounds, micro = self.outer, self.dims.rounds, self.dims.micro
        if rounds is None:
            return out("range", dim=micro)
        steps = out(
            "reshape", out("range", dim=rounds.steps), dims=(rounds.rounds, rounds.chunks, rounds.turns)
        )
        ordered = out.ordered(steps, (rounds.rounds, rounds.turns, rounds.chunks))
        found = out("reshape", ordered, dims=(micro, rounds.chunks))
        return out("flip", found, dim=rounds.chunks) if self.reverse else found

    def shared(self, name: str, value: Value) -> Value:
        """Return the argument for a value that all ticks share."""
        if value not in self.shares:
            self.shares[value] = Value(self.inner.names.fresh(name), value.type)
        return self.shares[value]

    def sliced(self, name: str, value: Value) -> Value:
        """Return the argument for a slice of a value along the ticks."""
        argument = Value(self.inner.names.fresh(name), sliced_type(value.type, self.dims.ticks))
        self.slices.append((value, argument))
        return argument

    def carried(self, name: str, type: TensorType) -> Value:
        """Return a new carry, which starts as zeros."""
        held = Value(self.inner.names.fresh(name), type)
        self.carries[held] = None
        return held

    def update(self, held: Value, new: Value) -> None:
        """Say what replaces a carry after each tick."""
        self.carries[held] = self.inner.ordered(new, held.type.dims)

    def last(self, held: Value) -> ResultOf:
        return lambda: self.results[held.name]

    def yielded(self, name: str, value: Value) -> ResultOf:
        """Stack a value along the ticks."""
        taken = Names([*(each.name for each in self.carries), *(output.name for output in self.yields)])
        output = Output(taken.fresh(f"{name}.stacked"), value)
        self.yields.append(output)
        return lambda: self.results[output.name]

    def append(self, like: Equation) -> None:
        """Append the loop."""
        given = [(self.outer.zeros(held.type), Argument(held, "carried")) for held in self.carries]
        given += [(value, Argument(inside, "invariant")) for value, inside in self.shares.items()]
        given += [(value, Argument(inside, "sliced")) for value, inside in self.slices]
        outputs = [
            Output(held.name, new or held, held.name) for held, new in self.carries.items()
        ] + self.yields
        arguments = tuple(argument for _, argument in given)
        region = Function(TICKS, arguments, tuple(self.inner.body), tuple(outputs))
        loop = make_loop(self.outer.names, region, [value for value, _ in given], like)
        self.outer.append(loop)
        self.results = dict(zip((o.name for o in outputs), loop.results, strict=True))


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
        varying = self._varying(region, given)
        arguments, new = [], dict[Value, Value]()
        inner = Builder(Names(), eqn.span, eqn.stage)
        for argument, operand in zip(region.arguments, given, strict=True):
            if argument.role == "carried" and argument.value in varying:
                operand = _with_stages(b, operand, stages)
            role = argument.role if dim in operand.type.dims or argument.role == "carried" else "invariant"
            type = sliced_type(operand.type, dim) if role == "sliced" else operand.type
            new[argument.value] = Value(inner.names.fresh(argument.value.name), type)
            arguments.append((operand, attrs.evolve(argument, value=new[argument.value], role=role)))
        number = Value(inner.names.fresh(micro.name), micro.type)
        arguments.append((micro, Argument(number, "invariant")))
        if tick is not None:
            arguments += self._read_layers(b, inner, region, new, tick)
        self._body(inner, region, new, number)
        outputs = [self._output(inner, region, new, number, output) for output in region.outputs]
        changed = Function(dim.name, (), tuple(inner.body), tuple(outputs))
        like = attrs.evolve(eqn, attrs={**eqn.attrs, "dim": dim})
        loop = with_operands(make_loop(b.names, changed, (), like), changed, arguments)
        b.append(loop)
        return [_with_stages(b, each, stages) if stages in each.type.dims else each for each in loop.results]

    def _read_layers(
        self, b: Builder, inner: Builder, region: Function, new: dict[Value, Value], tick: Tick
    ) -> list[tuple[Value, Argument]]:
        """Read the layers of each stage, at its chunk. An idle stage gives them no gradient.

        Return the operands and arguments of what the loop needs for this. new: argument -> stack or slice; then -> layer.
        """
        stages, given = self.dims.stages, list[tuple[Value, Argument]]()

        def argument(operand: Value, role: Role) -> Value:
            type = sliced_type(operand.type, self.dims.inner) if role == "sliced" else operand.type
            given.append((operand, Argument(Value(inner.names.fresh(operand.name), type), role)))
            return given[-1][1].value

        active, place = argument(tick.active, "invariant"), None
        if tick.chunk is not None:
            first = b("mul", tick.chunk, b.constant(self.dims.inner.size, "i32"))
            number = argument(b("range", dim=self.dims.inner), "sliced")
            place = inner("add", argument(first, "invariant"), number)
        for value in (a.value for a in region.arguments if a.role == "sliced"):
            if self.dims.batch in value.type.dims:
                continue
            if self.dims.rounds is not None and place is not None:
                new[value] = inner("gather", new[value], place, dim=self.dims.rounds.held)
            if value.type.dtype in FLOATS:
                new[value] = inner("mask_gradient", _with_stages(inner, new[value], stages), active)
        return given

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
            value = _with_stages(b, value, self.dims.stages)
        return attrs.evolve(output, value=b.ordered(value, new[carry].type.dims), updates=new[carry].name)

    def _varying(self, region: Function, given: Sequence[Value]) -> set[Value]:
        """Return the values of a region, without those of inner regions, that differ between stages."""
        arguments = {
            argument.value
            for argument, operand in zip(region.arguments, given, strict=True)
            if self.dims.stages in operand.type.dims or argument.value in self.sums
        }
        return self._closure(region, arguments)

    def _closure(self, region: Function, arguments: set[Value]) -> set[Value]:
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
        inside = self._closure(region, {a.value for v, a in pairs(eqn) if v in known or a.value in self.sums})
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
        return b("mask", is_first, _with_stages(b, x, self.dims.stages))

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
        if has_trait(eqn, "dot"):
            return list(operands)
        is_elementwise = OPS[eqn.op].layout_rule(eqn) is BY_NAME and not has_trait(eqn, "random")
        wanted = {self.dims.stages, *self.dims.one(eqn.results[0].type.dims)}
        if is_elementwise and any({*value.type.dims} == wanted for value in operands):
            return list(operands)
        return [_with_stages(b, value, self.dims.stages) for value in operands]
