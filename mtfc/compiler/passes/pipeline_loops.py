"""pipeline-loops: run a loop as a pipeline, where the layout says so: stages hold layers, and micro-batches go through them.

A loop along `layers` becomes a loop along *ticks*. In each tick all stages compute at once, each its own layers for another
micro-batch, and then hand their results on to the next stage. So all values of the body get the dimension `stages`, which the
layout splits, and the dimension of the batch is cut into [part, micro]. For S stages and M micro-batches there are M + S - 1
ticks. Stage s computes micro-batch m in tick m + s.

- A carry enters at the first stage, and is shifted by one stage in each tick. The results of the last stage are collected.
- A value that all iterations share, and that has the batch, is read at the micro-batch of each stage.
- A yielded value is kept at the step in which each stage computed it. A sum over the batch is added up over ticks.

A stage is idle in S - 1 ticks, and computes something nevertheless. Nothing of that reaches a result: carries leave idle ticks
only towards idle ticks, and everything else is selected.

The pass runs after `differentiate`. A loop and its backward loop become one *round trip*: the backward pass of a micro-batch
begins in the tick in which it leaves the last stage, after what stands between the loops, such as the loss. There are three
loops: S - 1 ticks of the forward pass, M ticks of both, and S - 1 ticks of the backward pass. A stage keeps what the backward
pass reads of fewer than 2 S micro-batches. If something between the loops needs all micro-batches, each loop is a pipeline of
its own.

With C chunks, layers are dealt out to the stages in turn, and a micro-batch goes around the ring of stages C times. A round
has S micro-batches. A stage computes its first chunk for all micro-batches of a round, then its second chunk, and so on; then
comes the next round. There are M * C + S - 1 ticks, each with a C-th of the work.

Input:   %y = loop %x, %w dim=layers region layers { carried %h: f32[batch, io]; sliced %w: f32[io, hidden]; ... }
Output:  %y: f32[batch.micro, batch.part, io] = loop %zeros, %zeros_2, %w, %x, %range dim=layers.ticks region ticks {
           carried %h: f32[layers.stages, batch.part, io]; invariant %w: f32[layers.stages, layers.part, io, hidden]
           %g = gather %x, %tick dim=batch.micro; %s = shift %h dim=layers.stages by=1; %i = where %first, %g, %s
           %h_2 = loop %i, %w ...
After this pass no loop runs along the dimension of a pipeline, and the layout has rules for the new dimensions.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import ClassVar, TypeAlias

import attrs

from mtfc.compiler.analysis.liveness import readers_and_outputs
from mtfc.compiler.ir.builder import Builder, Substitution, names_of
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Program, Value, walk
from mtfc.compiler.ir.loops import carried, dim_of, map_regions, outputs_of, pairs, region_of
from mtfc.compiler.ir.micro_batch_rule import MixedMicroBatches, loop_sums, results_that_are_sums, takes_batch
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.resizing import Renumbering
from mtfc.compiler.ir.types import Axes, Dim, Layout, Mesh, Pipeline, TensorType
from mtfc.compiler.ir.verifier import Level
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.passes.pipeline_stages import LoopScope, Rounds, StageBody, StageDims
from mtfc.compiler.passes.pipeline_ticks import PipelinedLoop
from mtfc.compiler.passes.recompute import TYPICAL, Prices, with_kept
from mtfc.compiler.passes.spatial.position_blocks import NewDims

Item: TypeAlias = "Equation | RoundTrip"
Readers = Mapping[Value, Sequence[Equation | None]]


@attrs.frozen
class PipelineLoops(Pass):
    """keep: a word of `recompute.KEPT` for what stages keep for the backward pass; without a word, all that it reads."""

    name: ClassVar[str] = "pipeline-loops"
    takes: ClassVar[tuple[Level, ...]] = ("global",)
    keep: str = ""

    def run(self, program: Program) -> Program:
        """Return the program with the layout's pipelines in the place of their loops."""
        mesh, layout = program.mesh, program.layout
        if mesh is None or layout is None or not layout.pipelines:
            return program
        words = {
            each.loop: ("full" if each.checkpoint else self.keep, program.dims[each.batch])
            for each in layout.pipelines
        }
        prices = Prices(mesh, TYPICAL)
        program = program.map_functions(lambda function: with_kept(function, prices, words))
        dims = NewDims(program.dims)
        changer = LoopPipeliner(mesh, layout, program.dims, dims)
        return dims.declared_in(program.map_functions(changer.function))


@attrs.frozen
class LoopPipeliner:
    """Makes pipelines of the loops of one program. takes: tells which equations may be parts of pipelines.

    declared: the dimensions by name. new: makes new dimensions.
    """

    mesh: Mesh
    layout: Layout
    declared: Mapping[str, Dim]
    new: NewDims
    takes: Callable[[Equation], bool] = lambda _: True

    def function(self, function: Function) -> Function:
        """Rewrite a function, or the region of a loop that is no pipeline."""
        build, new, wide = Builder(names_of(function)), Substitution(), dict[Value, Value]()
        read = readers_and_outputs(function)
        for item in self._items(function, read):
            if isinstance(item, Equation) and has_trait(item, "cast") and item.operands[0] in wide:
                found = wide[item.operands[0]]
                if found.type.dtype == item.result.type.dtype:
                    new[item.result] = found
                    continue
            if isinstance(item, RoundTrip):
                results = item.equations(build, new)
            elif (pipeline := self._pipeline(item)) is not None:
                build.span, build.stage = item.span, item.stage
                results = self._alone(build, new.equation(item), pipeline, read)
            else:
                build.append(map_regions(new.equation(item), self.function))
                continue
            wide |= {old: value for old, value in results.items() if value.type.dtype != old.type.dtype}
            for old, value in results.items():
                new[old] = build.cast(value, old.type.dtype)
        return new.function(function, build.body)

    def _alone(
        self, build: Builder, eqn: Equation, pipeline: Pipeline, read: Mapping[Value, object]
    ) -> dict[Value, Value]:
        """Append the pipeline of a loop without a backward loop, and return the results that are read."""
        wanted = {result for result in eqn.results if read.get(result)}
        loop = self._loop(eqn, pipeline, wanted).without_mixing(build)
        scope, dims = LoopScope(build), loop.dims
        ticks = self.new.get(pipeline.ticks, dims.steps + dims.last)
        scope.loop(ticks, 0, lambda inner, number: (loop.run(inner, number, {}), None)[1])
        return loop.collected(scope)

    def _pipeline(self, eqn: Equation) -> Pipeline | None:
        """Return the pipeline that a loop runs as, or None: the layout splits its dimension, and the loop has the batch."""
        if not eqn.regions or not self.takes(eqn):
            return None
        named = (each for each in self.layout.pipelines if each.loop == dim_of(eqn).name)
        staged = (each for each in named if self.mesh.size(self.layout.rules.get(each.loop)) > 1)
        return next((each for each in staged if takes_batch(eqn, self.declared[each.batch])), None)

    def _loop(
        self, eqn: Equation, pipeline: Pipeline, wanted: Collection[Value], name: str = ""
    ) -> PipelinedLoop:
        """Return a loop as a pipeline. wanted: the results that are read afterwards. name: the prefix of its states.

        Its dimensions: stages that the layout splits, the layers of a stage, micro-batches, and the part of the batch in each.
        """
        dim, batch = dim_of(eqn), self.declared[pipeline.batch]
        axes = self.layout.rules.get(dim.name)
        others = tuple(axis for axis in self.layout.rules.get(batch.name) if axis not in axes)
        stages, number, chunks = self.mesh.size(axes), pipeline.micro_batches, pipeline.chunks
        dims = StageDims(
            dim,
            batch,
            self.new.get(f"{dim.name}.stages", stages, axes),
            self.new.get(f"{dim.name}.part", dim.size // (stages * chunks)),
            self.new.get(f"{batch.name}.micro", number),
            self.new.get(f"{batch.name}.part", batch.size // number, others),
            stages - 1 if carried(region_of(eqn)) else 0,
            self._rounds(dim, batch, stages, pipeline) if chunks > 1 else None,
        )
        sums = loop_sums(eqn, batch)
        return PipelinedLoop(
            name, dims, self.new, eqn, sums, wanted, spread=partial(self._spread, (*axes, *others))
        )

    def _spread(self, axes: Axes, type: TensorType) -> tuple[Dim, Dim]:
        """Return a dimension of a value that a stage hands on, and a new dimension, split over all axes along which devices
        hold the same.

        So each byte is sent once from stage to stage, and gathered there. axes: those of stages and of micro-batches.
        """
        rules = self.layout.rules
        taken = {*axes, *(axis for dim in type.dims for axis in rules.get(dim.name))}
        free = tuple(axis for axis in self.mesh.names if axis not in taken)
        size = self.mesh.size(free)
        whole = (dim for dim in type.dims[1:] if dim.name in self.declared and not rules.get(dim.name))
        found = next((dim for dim in whole if size > 1 and dim.size % size == 0), type.dims[0])
        return found, self.new.get(f"{found.name}.sent", found.size, free) if found in type.dims[
            1:
        ] else found

    def _rounds(self, dim: Dim, batch: Dim, stages: int, pipeline: Pipeline) -> Rounds:
        """Return the dimensions of an interleaved pipeline: rounds, chunks, and turns of the stages."""
        number, chunks = pipeline.micro_batches, pipeline.chunks
        return Rounds(
            self.new.get(f"{batch.name}.rounds", number // stages),
            self.new.get(f"{dim.name}.chunks", chunks),
            self.new.get(f"{batch.name}.turns", stages),
            self.new.get(f"{dim.name}.steps", number * chunks),
            self.new.get(f"{dim.name}.held", dim.size // stages),
        )

    # Round trips

    def _items(self, function: Function, read: Readers) -> list[Item]:
        """Return the equations in an order in which each round trip can stand at one place. read: value -> its readers."""
        items: list[Item] = list(function.body)
        for eqn in function.body:
            pipeline = self._pipeline(eqn)
            back = [] if pipeline is None else list(self._backward_loops(items, eqn, pipeline))
            if pipeline is not None and len(back) == 1:
                items = self._with_trip(items, eqn, back[0], pipeline, read)
        return items

    def _with_trip(
        self, items: list[Item], forward: Equation, backward: Equation, pipeline: Pipeline, read: Readers
    ) -> list[Item]:
        """Return the items with a round trip in the place of two loops, if all that the second one needs can be part of it.

        read: value -> its readers.
        """
        start, end, batch = items.index(forward), items.index(backward), self.declared[pipeline.batch]
        parts = self._parted(items[start + 1 : end], forward, backward, batch)
        if parts is None:
            return items
        early, rest, sums, late = parts
        early, pulled = self._pulled([*items[:start], *early], rest, batch, read)
        middle = (*pulled, *rest)
        inside = {id(eqn) for eqn in (*middle, backward)}

        def wanted(values: Iterable[Value]) -> tuple[Value, ...]:
            return tuple(v for v in values if any(e is None or id(e) not in inside for e in read.get(v, ())))

        there = self._loop(forward, pipeline, wanted(forward.results))
        back = self._loop(backward, pipeline, wanted(backward.results), "back")
        kept = {value for value in forward.results if value in backward.operands}
        there = attrs.evolve(there, kept=kept, slots=there.dims.in_flight(self.new))
        of_middle = wanted(value for eqn in middle for value in eqn.results)
        spread = self._spread_middle(middle, _carries_of_batch(forward, batch), there.dims)
        trip = RoundTrip(there, back, middle, sums, of_middle, pipeline.ticks, spread)
        return [*early, trip, *late, *items[end + 1 :]]

    def _parted(
        self, items: Sequence[Item], forward: Equation, backward: Equation, batch: Dim
    ) -> tuple[list[Item], list[Equation], set[Value], list[Item]] | None:
        """Part the items between a loop and its backward loop, unless the latter needs something that is known only after all
        micro-batches, or is computed elsewhere.

        Return the items that do not depend on the loop, the equations that can be computed for one micro-batch at a time, those
        of their results that are sums over micro-batches, and the remaining items.
        """
        depends, ready = {*forward.results}, _carries_of_batch(forward, batch)
        early, middle, sums, late = list[Item](), list[Equation](), set[Value](), list[Item]()
        for item in items:
            if depends.isdisjoint(item.operands):
                early.append(item)
                continue
            depends.update(item.results)
            is_ready = isinstance(item, Equation) and self.takes(item) and depends & {*item.operands} <= ready
            found = _sums_of(item, batch) if is_ready else None
            if found is None or not isinstance(item, Equation):
                late.append(item)
                continue
            middle.append(item)
            sums |= found
            ready |= {*item.results} - found
        for operand, argument in pairs(backward):
            is_kept = argument.role == "sliced" and operand in forward.results and batch in operand.type.dims
            is_handed = argument.role == "carried" and operand in ready
            if operand in depends and not (is_kept or is_handed):
                return None
        return early, middle, sums, late

    def _pulled(
        self, early: Sequence[Item], middle: Sequence[Equation], batch: Dim, read: Readers
    ) -> tuple[list[Item], list[Equation]]:
        """Take the equations that have the batch, and that only the middle reads, out of the equations before the loops;
        return both. read: value -> its readers.
        """
        inside, pulled, rest = {id(eqn) for eqn in middle}, list[Equation](), list[Item]()
        for item in reversed(early):
            if (
                isinstance(item, Equation)
                and self.takes(item)
                and not item.regions
                and not has_trait(item, "random")
            ):
                readers = [eqn for value in item.results for eqn in read.get(value, ())]
                is_inside = readers and all(eqn is not None and id(eqn) in inside for eqn in readers)
                if is_inside and batch in item.results[0].type.dims and _sums_of(item, batch) == set():
                    inside.add(id(item))
                    pulled.append(item)
                    continue
            rest.append(item)
        return rest[::-1], pulled[::-1]

    def _backward_loops(self, items: Iterable[Item], eqn: Equation, pipeline: Pipeline) -> Iterator[Equation]:
        """Yield the loops that run backwards over the results of a loop, in the same pipeline."""
        for item in items:
            if isinstance(item, Equation) and self._pipeline(item) == pipeline:
                is_reversed = item.attrs["reverse"] != eqn.attrs["reverse"]
                if is_reversed and not {*eqn.results}.isdisjoint(item.operands):
                    yield item

    def _spread_middle(
        self, middle: tuple[Equation, ...], entered: set[Value], dims: StageDims
    ) -> tuple[Dim, Dim] | None:
        """Return a dimension along which the stages share the middle of each micro-batch, and the one that stands for it there.

        No dot of examples sums over the dimension, such as the positions of a text.
        """
        types = [value.type for eqn in middle for value in eqn.operands if value in entered]
        summed = {
            dim
            for eqn in walk(middle)
            if has_trait(eqn, "dot") and dims.batch in eqn.result.type.dims
            for value in eqn.operands
            for dim in {*value.type.dims} - {*eqn.result.type.dims}
        }
        for dim in types[0].dims if types else ():
            is_whole = not self.layout.rules.get(dim.name) and dim.size % dims.stages.size == 0
            if dim not in (dims.batch, *summed) and is_whole and all(dim in type.dims for type in types):
                axes = self.layout.rules.get(dims.layers.name)
                return dim, self.new.get(f"{dim.name}.shared", dim.size, axes)
        return None


def _carries_of_batch(eqn: Equation, batch: Dim) -> set[Value]:
    """Return the last values of the carries that have the batch."""
    return {result for result, o in outputs_of(eqn) if o.updates is not None and batch in result.type.dims}


def _sums_of(item: Item, batch: Dim) -> set[Value] | None:
    """Return the results that are sums over micro-batches; None if the item needs more than one micro-batch."""
    if not isinstance(item, Equation):
        return None
    try:
        return results_that_are_sums(item, batch)
    except MixedMicroBatches:
        return None


@attrs.frozen
class RoundTrip:
    """A loop, the equations between, and its backward loop, as one pipeline.

    sums: results of the middle that are sums over micro-batches. wanted: results of the middle that are read afterwards.
    ticks: the name of the dimension of ticks. spread: a dimension along which the stages share the middle, and what stands
    for it there. new: the values of the new function, once the operands of the loops are these.
    """

    forward: PipelinedLoop
    backward: PipelinedLoop
    middle: tuple[Equation, ...]
    sums: set[Value]
    wanted: tuple[Value, ...]
    ticks: str
    spread: tuple[Dim, Dim] | None
    new: Substitution = attrs.field(factory=Substitution)

    @property
    def _all(self) -> tuple[Equation, ...]:
        return (self.forward.eqn, *self.middle, self.backward.eqn)

    @property
    def results(self) -> Iterator[Value]:
        return (value for eqn in self._all for value in eqn.results)

    @property
    def operands(self) -> Iterator[Value]:
        return (value for eqn in self._all for value in eqn.operands)

    def equations(self, build: Builder, new: Substitution) -> dict[Value, Value]:
        """Append the loops, and return the results that are read afterwards. new: the values that stand for old ones."""
        scope = LoopScope(build)
        ends = []
        for end in (self.forward, self.backward):
            build.span, build.stage = end.eqn.span, end.eqn.stage
            ends.append(attrs.evolve(end, eqn=new.equation(end.eqn)).without_mixing(build))
        trip = attrs.evolve(self, forward=ends[0], backward=ends[1], new=new)
        trip._run(scope)
        return {**ends[0].collected(scope), **trip._of_middle(scope), **ends[1].collected(scope)}

    @property
    def _delay(self) -> int:
        """The number of ticks from the first of the forward pass to the first of the backward pass."""
        dims = self.forward.dims
        return (dims.rounds.chunks.size if dims.rounds else 1) * dims.stages.size - 1

    def _run(self, scope: LoopScope) -> None:
        """Append the loops of ticks: ticks of the forward pass alone, ticks of both passes, ticks of the backward pass alone.

        In rounds, ticks of both passes alternate with ticks without the equations between the passes.
        """
        dims, rounds, delay = self.forward.dims, self.forward.dims.rounds, self._delay
        dim = self.forward.new.get
        stage_before, scope.build.stage = scope.build.stage, self.forward.eqn.stage
        scope.loop(dim(f"{self.ticks}.forward", delay), 0, self._forward)
        scope.build.stage = stage_before
        both, more = (
            (rounds.turns, rounds.rounds.size - 1) if rounds else (dim(self.ticks, dims.micro.size), 0)
        )
        end = delay + more * (delay + 1) + both.size
        if more:
            others = dim(f"{self.ticks}.others", delay + 1 - both.size)

            def one_round(inner: LoopScope, number: Value) -> None:
                """Append the ticks of one round: those of both passes, and then those between."""
                b = inner.build
                start = b("mul", number, b.constant(delay + 1, "i32"))
                start = b("add", start, b.constant(delay, "i32"))
                inner.loop(both, start, self._both)
                inner.loop(others, b("add", start, b.constant(both.size, "i32")), self._without_middle)

            scope.loop(dim(f"{self.ticks}.rounds", more), 0, one_round)
        scope.loop(both, end - both.size, self._both)
        scope.loop(dim(f"{self.ticks}.backward", delay), end, self._backward)

    def _forward(self, scope: LoopScope, number: Value) -> None:
        self.forward.run(scope, number, {})

    def _both(self, scope: LoopScope, number: Value) -> None:
        leaving = self.forward.run(scope, number, {})
        self._backward(scope, number, self._middle(scope, number, leaving))

    def _without_middle(self, scope: LoopScope, number: Value) -> None:
        self.forward.run(scope, number, {})
        self._backward(scope, number)

    def _backward(self, scope: LoopScope, number: Value, handed: Mapping[Value, Value] | None = None) -> None:
        """Append a tick of the backward pass.

        handed: the values that the equations between the passes have handed on; zeros without them.
        """
        build = scope.build
        step = build("sub", number, build.constant(self._delay, "i32"))
        given = (
            {operand: build.zeros(self._one(operand.type)) for operand in self._handed}
            if handed is None
            else handed
        )
        self.backward.run(scope, step, given, self.forward)

    @property
    def _handed(self) -> list[Value]:
        """The operands of the backward loop that the middle makes, or that leave the last stage."""
        made = {*self.forward.eqn.results, *(value for eqn in self.middle for value in eqn.results)}
        return [v for v, a in pairs(self.backward.eqn) if a.role == "carried" and v in made]

    def _one(self, type: TensorType) -> TensorType:
        return TensorType(type.dtype, self.forward.dims.one(type.dims))

    def _middle(self, scope: LoopScope, number: Value, leaving: Mapping[Value, Value]) -> dict[Value, Value]:
        """Append the equations between the loops for the micro-batch that leaves; return the operands of the backward loop.

        number: the number of the tick. leaving: the values that leave the forward loop.
        """
        build, dims = scope.build, self.forward.dims
        micro = dims.tick(scope, number, self.forward.reverse).leaving
        middle, new = self._shared
        values = dict[Value, Value]()
        for argument in middle.arguments:
            old = new[argument.value]
            if old in leaving:
                found = leaving[old]
            elif dims.batch in old.type.dims:
                cut = scope.of_top(dims.cut(scope.top, self.new[old]))
                found = build("gather", cut, micro, dim=dims.micro)
            else:
                found = scope.of_top(self.new[old])
            values[argument.value] = self._as_shared(build, found)
        sums = {value for value, old in new.items() if old in self.sums}
        StageBody(dims, sums, build, values, micro).body(middle.body)
        made = {new[output.value]: values[output.value] for output in middle.outputs}
        for value in self.wanted:
            self._keep(scope, value, made[value], micro)
        return {
            v: self._as_shared(build, made[v], back=True) if v in made else leaving[v] for v in self._handed
        }

    @cached_property
    def _shared(self) -> tuple[Function, Mapping[Value, Value]]:
        """Return the middle with the dimension along which stages share it, and the old value of each argument and result."""
        made = dict.fromkeys(value for eqn in self.middle for value in eqn.results)
        given = dict.fromkeys(v for eqn in self.middle for v in eqn.operands if v not in made)
        arguments = tuple(Argument(v, "invariant") for v in given)
        outputs = tuple(Output(v.name, v) for v in made)
        old = Function("middle", arguments, self.middle, outputs)
        source, target = self.spread or (None, None)
        new = Renumbering(lambda dim: target if target and dim == source else dim).function(old)
        pairs = [(a.value, b.value) for a, b in zip(new.arguments, old.arguments, strict=True)]
        pairs += [(a.value, b.value) for a, b in zip(new.outputs, old.outputs, strict=True)]
        return new, dict(pairs)

    def _as_shared(self, build: Builder, x: Value, back: bool = False) -> Value:
        """Return a value with the dimension along which stages share the middle, or without it again."""
        if self.spread is None:
            return x
        dim, part = self.spread[:: -1 if back else 1]
        return build("rename", x, mapping=((dim, part),)) if dim in x.type.dims else x

    def _keep(self, scope: LoopScope, value: Value, found: Value, micro: Value) -> None:
        """Add up the results that are sums over micro-batches, and keep all other results by micro-batch."""
        if value in self.sums:
            scope.accumulate(f"{value.name}.middle", found)
        else:
            scope.put(f"{value.name}.middle", found, micro, self.forward.dims.micro)

    def _of_middle(self, scope: LoopScope) -> dict[Value, Value]:
        """Return the results of the equations between the passes: sums over the micro-batches, or micro-batches joined again."""
        build, found = scope.build, dict[Value, Value]()
        for value in self.wanted:
            held = self._as_shared(build, scope.states[f"{value.name}.middle"], back=True)
            is_sum = value in self.sums
            held = held if is_sum else self.forward.dims.joined(build, held, value.type.dims)
            found[value] = build.ordered(held, value.type.dims)
        return found
