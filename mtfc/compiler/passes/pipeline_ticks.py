"""A loop over layers in one tick of a pipeline: what it computes, and what it carries to the next tick."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import attrs

from mtfc.compiler.ir.builder import Builder, Substitution, wide_type
from mtfc.compiler.ir.core import Argument, Attr, Equation, Function, Output, Value
from mtfc.compiler.ir.loops import carried, outputs_of, pairs, region_of, with_operands
from mtfc.compiler.ir.micro_batch_rule import before_loop
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.types import Dim, TensorType
from mtfc.compiler.passes.pipeline_stages import (
    Held,
    LoopScope,
    Slots,
    StageBody,
    StageDims,
    Tick,
    is_accumulated,
    with_stages,
)
from mtfc.compiler.passes.spatial.position_blocks import NewDims

Spread = Callable[[TensorType], tuple[Dim, Dim]]
"""Returns a dimension of what a stage hands on, and the one that it is sent as: split over more axes, if possible."""


def _as(build: Builder, x: Value, source: Dim, target: Dim) -> Value:
    return x if source == target else build("rename", x, mapping=((source, target),))


@attrs.frozen
class PipelinedLoop:
    """Rewrites one loop over layers as a loop over ticks.

    name: a prefix of the names of what it carries. sums: values of the loop that are sums with a term for each micro-batch: see
    `ir/micro_batch_rule.py`. wanted: results that equations after the loop read. kept: results that the backward pass reads tick
    by tick. slots: the places where stages keep these. spread: see `Spread`.
    """

    name: str
    dims: StageDims
    new: NewDims
    eqn: Equation
    sums: set[Value]
    wanted: Collection[Value]
    kept: Collection[Value] = ()
    slots: Slots | None = None
    spread: Spread = attrs.field(kw_only=True)

    @property
    def reverse(self) -> bool:
        return bool(self.eqn.attrs["reverse"])

    def without_mixing(self, build: Builder) -> PipelinedLoop:
        """Compute before the loop what needs the whole batch and only invariant operands."""
        eqn = self.eqn
        region = region_of(eqn)
        moved_out = before_loop(region, self.dims.batch)
        if not moved_out:
            return self
        outer = Substitution({a.value: o for o, a in pairs(eqn) if a.role == "invariant"})
        known = {a.value for a in region.arguments if a.role == "invariant"}
        for each in region.body:
            if not each.regions and not has_trait(each, "random") and known.issuperset(each.operands):
                known.update(each.results)
                attributes: dict[str, Attr] = dict(each.attrs)
                names = [value.name for value in each.results]
                new_values = build.several(each.op, *outer.all(each.operands), names=names, **attributes)
                for old, value in zip(each.results, new_values, strict=True):
                    outer[old] = value
        moved_ids = {id(each) for each in moved_out}
        values = [value for each in moved_out for value in each.results]
        new_arguments = [Argument(value, "invariant") for value in values]
        smaller = attrs.evolve(region, body=tuple(each for each in region.body if id(each) not in moved_ids))
        loop_pairs = [*pairs(eqn), *zip(outer.all(values), new_arguments, strict=True)]
        return attrs.evolve(self, eqn=with_operands(eqn, smaller, loop_pairs))

    # One tick

    def run(
        self,
        scope: LoopScope,
        number: Value,
        handed: Mapping[Value, Value],
        made: PipelinedLoop | None = None,
    ) -> dict[Value, Value]:
        """Append one tick, and return what leaves the last stage: result -> value of one micro-batch, if it has the batch.

        handed: operand -> its value for the micro-batch that enters. made: the loop that keeps operands for this one.
        """
        scope.build.span, scope.build.stage = self.eqn.span, self.eqn.stage
        tick = self.dims.tick(scope, number, self.reverse)
        body, region = StageBody(self.dims, self.sums, scope.build, {}, tick.micro), region_of(self.eqn)
        read: dict[Value, Value] = {}
        if made is not None and made.slots is not None:
            first = made.slots.first(tick, is_again=True)
            read = {a.value: first for v, a in pairs(self.eqn) if v in made.kept and a.role == "sliced"}
        operands = [
            self._given(tick, v, a, handed, made if a.value in read else None) for v, a in pairs(self.eqn)
        ]
        kept = self._kept(tick, region)
        loop_results = body.loop(self.eqn, operands, self.dims.inner, tick, kept, read)
        scope.build.span, scope.build.stage = self.eqn.span, self.eqn.stage
        updated = {argument.value.name: argument for argument in carried(region)}
        leaving = {}
        for result, output, value in zip(self.eqn.results, region.outputs, loop_results, strict=True):
            carry = updated.get(output.updates or "")
            if output.name in kept:
                scope.update(self._state(output.name), value)
                continue
            value = with_stages(scope.build, value, self.dims.stages)
            if carry is not None:
                leaves = self._last_carry(tick, result, value, carry)
                leaving.update({result: leaves} if leaves else {})
            elif result in self.wanted:
                self._same(tick, output, value)
        return leaving

    def _state(self, name: str) -> str:
        return f"{name}.{self.name}" if self.name else name

    def _kept(self, tick: Tick, region: Function) -> dict[str, Held]:
        """Return where the loop keeps its outputs: sums of all micro-batches, and values with the batch."""
        dims, scope, found = self.dims, tick.scope, dict[str, Held]()
        for result, output in outputs_of(self.eqn):
            type, name = output.value.type, self._state(output.name)
            if output.updates is not None or (result not in self.wanted and result not in self.kept):
                continue
            if dims.batch in type.dims:
                slots = self.slots if self.slots and result not in self.wanted else dims.every_step(self.new)
                inside = (slots.dim, dims.stages, *dims.one(type.dims))
                held = scope.state(name, TensorType(type.dtype, inside))
                found[output.name] = Held(held, slots.first(tick))
            elif output.value in self.sums:
                layers = dims.rounds.held if dims.rounds else dims.inner
                total = TensorType(wide_type(type).dtype, (dims.stages, layers, *type.dims))
                found[output.name] = Held(scope.state(name, total))
        return found

    def _given(
        self,
        tick: Tick,
        operand: Value,
        argument: Argument,
        handed: Mapping[Value, Value],
        made: PipelinedLoop | None,
    ) -> Value:
        """Return the operand of the stages' own loop in one tick.

        handed: operand -> its value for the micro-batch that enters. made: the loop that keeps the operand.
        """
        scope, build, dims = tick.scope, tick.scope.build, self.dims
        if argument.role == "carried":
            return self._entering(tick, operand, argument, handed)
        if made is not None:
            return scope.state(made._state(made._output(operand).name))
        has_batch, is_stacked = dims.batch in operand.type.dims, argument.role == "sliced"
        cut = dims.cut(scope.top, operand, is_stacked)
        if is_stacked and not has_batch and dims.rounds is not None:
            rest = [dim for dim in cut.type.dims if dim not in dims.layers_cut]
            cut = scope.top("reshape", cut, dims=(dims.stages, dims.rounds.held, *rest))
        value = scope.of_top(cut)
        if is_stacked and has_batch and dims.rounds is not None:
            value = build("gather", value, tick.chunk, dim=dims.rounds.chunks)
            value = with_stages(build, value, dims.stages)
        if has_batch:
            return with_stages(build, build("gather", value, tick.micro, dim=dims.micro), dims.stages)
        return value

    def _output(self, result: Value) -> Output:
        return region_of(self.eqn).outputs[self.eqn.results.index(result)]

    def _entering(
        self, tick: Tick, operand: Value, argument: Argument, handed: Mapping[Value, Value]
    ) -> Value:
        """Return a carry at the start of a tick: the first stage takes the next micro-batch, others what they are handed."""
        scope, dims, type = tick.scope, self.dims, argument.value.type
        build = scope.build
        if is_accumulated(region_of(self.eqn), argument, self.sums):
            return build.zeros(TensorType(type.dtype, (dims.stages, *type.dims)))
        whole = TensorType(type.dtype, (dims.stages, *dims.one(type.dims)))
        dim, part = self.spread(whole)
        if operand in handed:
            fed = _as(build, build.ordered(handed[operand], dims.one(type.dims)), dim, part)
        elif dims.batch in type.dims:
            cut = dims.cut(scope.top, scope.top.ordered(operand, type.dims))
            fed = build("gather", scope.of_top(_as(scope.top, cut, dim, part)), tick.entering, dim=dims.micro)
        else:
            fed = _as(build, scope.of_top(scope.top.ordered(operand, type.dims)), dim, part)
            if argument.value in self.sums:
                fed = build("mask", build("eq", tick.number, build.constant(0, "i32")), fed)
        held = scope.state(
            self._state(f"{argument.value.name}.carry"),
            TensorType(type.dtype, tuple(part if each == dim else each for each in whole.dims)),
        )
        by, wrap = -1 if self.reverse else 1, dims.rounds is not None
        handed_on = build("shift", held, dim=dims.stages, by=by, wrap=wrap)
        entering = build("where", tick.first, with_stages(build, fed, dims.stages), handed_on)
        return _as(build, entering, part, dim)

    def _last_carry(self, tick: Tick, result: Value, value: Value, carry: Argument) -> Value | None:
        """Hand a carry on, and collect what leaves the last stage. The other stages hand zeros to the sum over stages.

        Both are sent in parts: see `Spread`.
        """
        scope, dims, type = tick.scope, self.dims, carry.value.type
        build = scope.build
        name = self._state(f"{carry.value.name}.carry")
        if is_accumulated(region_of(self.eqn), carry, self.sums):
            scope.accumulate(name, build("mask", tick.active, value))
            return None
        dim, part = self.spread(value.type)
        sent = _as(build, value, dim, part)
        scope.update(name, sent)
        if result in self.wanted:
            self._collect(tick, f"{name}.last", sent, carry)
        if dims.batch not in type.dims:
            return None
        if type.dtype == "bool":
            return build("any", build("and", value, tick.last), over=(dims.stages,))
        return _as(build, build("sum", build("mask", tick.last, sent), over=(dims.stages,)), part, dim)

    def _collect(self, tick: Tick, name: str, value: Value, carry: Argument) -> None:
        """Keep what leaves the last stage. Each stage has room for it, so that nothing is sent before all ticks are over."""
        scope, build = tick.scope, tick.scope.build
        left = build("ge", tick.leaving, build.constant(0, "i32"))
        if carry.value in self.sums:
            scope.accumulate(name, build("mask", build("and", tick.last, left), value))
        elif self.dims.batch in carry.value.type.dims:
            leaving = build("where", tick.last, tick.leaving, build.constant(-1, "i32"))
            scope.put(name, value, leaving, self.dims.micro)
        else:
            is_first = build("eq", tick.leaving, build.constant(0, "i32"))
            held = scope.state(name, value.type)
            scope.update(name, build("where", build("and", tick.last, is_first), value, held))

    def _same(self, tick: Tick, output: Output, value: Value) -> None:
        """Keep the output of the first micro-batch, as all micro-batches yield the same."""
        scope, dims, type = tick.scope, self.dims, value.type
        build = scope.build
        name = self._state(output.name)
        rounds = dims.rounds
        held = scope.state(name, TensorType(type.dtype, (rounds.chunks, *type.dims)) if rounds else type)
        counts = build("and", tick.active, build("eq", tick.micro, build.constant(0, "i32")))
        if rounds is not None:
            both = TensorType("i32", (rounds.chunks, dims.stages))
            number = build.broadcast(build("range", dim=rounds.chunks), both)
            counts = build("and", build("eq", number, tick.chunk), counts)
        scope.update(name, build("where", counts, build.broadcast(value, held.type), held))

    # After all ticks

    def collected(self, scope: LoopScope) -> dict[Value, Value]:
        """Return the results of the whole loop that are read: those that are sums of 16-bit terms are still f32."""
        region, found = region_of(self.eqn), dict[Value, Value]()
        updated = {argument.value.name: argument for argument in carried(region)}
        for result, output in outputs_of(self.eqn):
            if result in self.wanted:
                carry = updated.get(output.updates or "")
                value = (
                    self._carry_at_end(scope, result, carry) if carry else self._stack(scope, result, output)
                )
                found[result] = scope.build.ordered(value, result.type.dims)
        return found

    def _carry_at_end(self, scope: LoopScope, result: Value, carry: Argument) -> Value:
        """Return a carry after all ticks: the sum of the terms of all stages, or what the last stage holds."""
        build, dims, name = scope.build, self.dims, self._state(f"{carry.value.name}.carry")
        if is_accumulated(region_of(self.eqn), carry, self.sums):
            terms = build("sum", scope.states[name], over=(dims.stages,))
            start = next(operand for operand, argument in pairs(self.eqn) if argument is carry)
            return build("add", build.cast(start, terms.type.dtype), terms)
        op = "any" if result.type.dtype == "bool" else "sum"
        held = build(op, scope.states[f"{name}.last"], over=(dims.stages,))
        dim, part = self.spread(TensorType(held.type.dtype, (dims.stages, *dims.one(result.type.dims))))
        held = _as(build, held, part, dim)
        return dims.joined(build, held, result.type.dims) if dims.batch in result.type.dims else held

    def _stack(self, scope: LoopScope, result: Value, output: Output) -> Value:
        """Return the stack of a loop after all ticks, put together from what each stage holds of each step."""
        build, dims, rounds = scope.build, self.dims, self.dims.rounds
        held, inside = scope.states[self._state(output.name)], output.value.type.dims
        if dims.batch in inside:
            held = dims.of_steps(build, held, self.reverse)
        elif rounds is not None and rounds.held in held.type.dims:
            rest = [dim for dim in held.type.dims if dim not in (dims.stages, rounds.held)]
            ordered = build.ordered(held, (dims.stages, rounds.held, *rest))
            held = build("reshape", ordered, dims=(dims.stages, rounds.chunks, dims.inner, *rest))
        return dims.joined(build, held, (dims.layers, *inside), is_stacked=True)
