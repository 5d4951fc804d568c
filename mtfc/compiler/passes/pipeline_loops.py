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

from collections.abc import Callable, Mapping
from typing import ClassVar

import attrs

from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Argument, Attr, Equation, Function, Output, Program, Value
from mtfc.compiler.ir.loops import (
    TICKS,
    NewLoop,
    carried,
    dim_of,
    map_regions,
    pairs,
    plain_loop,
    region_of,
    with_operands,
)
from mtfc.compiler.ir.micro_batch_rule import (
    before_loop,
    loop_sums,
    takes_batch,
)
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.rewrite import Substitution, names_of
from mtfc.compiler.ir.types import FLOATS, Dim, Layout, Mesh, Pipeline, TensorType
from mtfc.compiler.ir.verifier import Level
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.passes.pipeline_stages import Rounds, StageBody, StageDims, Tick, with_stages
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
class PipelinedLoop:
    """Rewrites one loop. `sums` are its values with a term for each micro-batch: see `ir/micro_batch_rule.py`."""

    dims: StageDims
    new: NewDims
    checkpoint: bool
    sums: set[Value]

    def equations(self, build: Builder, eqn: Equation) -> list[Value]:
        """Append the equations of the pipeline, and return values for the results of the loop."""
        eqn = self._without_mixing(build, eqn)
        inner = Builder(Names(), eqn.span, eqn.stage)
        ticks = TickLoop(build, inner, self.dims.ticks, self.dims, bool(eqn.attrs["reverse"]))
        tick = ticks.tick()
        body = StageBody(self.dims, self.sums)
        given = [self._given(ticks, tick, operand, argument) for operand, argument in pairs(eqn)]
        made = body.loop(ticks.inner, eqn, given, tick.micro, self.dims.inner, tick)
        results = [with_stages(ticks.inner, each, self.dims.stages) for each in made]
        updated = {argument.value.name: argument for argument in carried(region_of(eqn))}
        found = [
            self._result(ticks, tick, result, output, updated.get(output.updates or ""))
            for result, output in zip(results, region_of(eqn).outputs, strict=True)
        ]
        ticks.finish(plain_loop(self.dims.ticks, ticks.inner, self.checkpoint))
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
        if is_stacked and has_batch and dims.rounds is not None:
            value = inner("gather", value, tick.chunk_of_stage, dim=dims.rounds.chunks)
            value = with_stages(inner, value, dims.stages)
        if has_batch:
            return with_stages(inner, inner("gather", value, tick.micro, dim=dims.micro), dims.stages)
        if is_stacked or operand.type.dtype not in FLOATS:
            return value
        return inner("mask_gradient", with_stages(inner, value, dims.stages), tick.active)

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
            fed = ticks.argument(padded, "sliced", operand.name)
        else:
            fed = ticks.shared(operand.name, ordered)
            if argument.value in self.sums:
                fed = inner("mask", inner("eq", tick.number, inner.constant(0, "i32")), fed)
        held = ticks.owners[argument.value] = ticks.carried(
            argument.value.name, TensorType(type.dtype, (dims.stages, *dims.one(type.dims)))
        )
        by, wrap = -1 if ticks.reverse else 1, dims.rounds is not None
        handed_on = inner("shift", held, dim=dims.stages, by=by, wrap=wrap)
        return inner("where", tick.first, with_stages(inner, fed, dims.stages), handed_on)

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
        inner, dims, rounds, type = ticks.inner, self.dims, self.dims.rounds, result.type
        held = ticks.carried(
            output.name, TensorType(type.dtype, (rounds.chunks, *type.dims)) if rounds else type
        )
        if output.value in self.sums:
            term = inner("mask", tick.active, result)
            added = rounds and inner("add_at", held, term, tick.chunk_of_stage, dim=rounds.chunks)
            new = added or inner("add", held, term)
        else:
            counts = inner("eq", tick.micro, inner.constant(0, "i32"))
            if rounds is not None:
                both = TensorType("i32", (rounds.chunks, dims.stages))
                number = inner.broadcast(inner("range", dim=rounds.chunks), both)
                counts = inner("and", inner("eq", number, tick.chunk_of_stage), counts)
            new = inner("where", counts, inner.broadcast(result, held.type), held)
        ticks.update(held, new)
        total = ticks.last(held)
        dimensions = (dims.layers, *output.value.type.dims)
        return lambda: dims.joined(ticks.outer, total(), dimensions, is_stacked=True)


@attrs.define
class TickLoop(NewLoop):
    """Collects the arguments and outputs of the loop over ticks.

    shares: outer value -> argument. carries: argument -> its new value. owners: value of the body that a carry stands for -> the
    carry. yields: outputs. results: the results of the loop, by name of the output.
    """

    dims: StageDims
    reverse: bool
    shares: dict[Value, Value] = attrs.field(factory=dict)
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
        number = self.argument(self.outer("range", dim=self.dims.ticks), "sliced", "tick")
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
            self.shares[value] = self.argument(value, "invariant", name)
        return self.shares[value]

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

    def finish(self, like: Equation) -> None:
        """Append the loop, whose carries start as zeros."""
        self.given += [(self.outer.zeros(held.type), Argument(held, "carried")) for held in self.carries]
        carries = [Output(held.name, new or held, held.name) for held, new in self.carries.items()]
        self.outputs = [*carries, *self.yields]
        loop = self.append(TICKS, like)
        self.results = dict(zip((o.name for o in self.outputs), loop.results, strict=True))
