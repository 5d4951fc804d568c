"""What a loop over layers computes in one tick of a pipeline, and what it carries to the next one."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import attrs

from mtfc.compiler.ir.builder import Builder, wide_type
from mtfc.compiler.ir.core import Argument, Attr, Equation, Output, Value
from mtfc.compiler.ir.loops import carried, pairs, region_of, with_operands
from mtfc.compiler.ir.micro_batch_rule import before_loop
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.rewrite import Substitution
from mtfc.compiler.ir.types import TensorType
from mtfc.compiler.passes.loop_scope import Scope
from mtfc.compiler.passes.pipeline_stages import (
    Slots,
    StageBody,
    StageDims,
    Tick,
    is_accumulated,
    with_stages,
)
from mtfc.compiler.passes.spatial.position_blocks import NewDims


@attrs.frozen
class PipelinedLoop:
    """Rewrites one loop over layers. `sums` are its values with a term for each micro-batch: see `ir/micro_batch_rule.py`.

    name: of what it carries. wanted: its results that are read afterwards. kept: its results that the backward pass reads tick by
    tick. slots: where these are.
    """

    name: str
    dims: StageDims
    new: NewDims
    eqn: Equation
    sums: set[Value]
    wanted: Collection[Value]
    kept: Collection[Value] = ()
    slots: Slots | None = None

    @property
    def reverse(self) -> bool:
        return bool(self.eqn.attrs["reverse"])

    def without_mixing(self, build: Builder) -> PipelinedLoop:
        """Compute before the loop what needs the whole batch and only invariant operands."""
        eqn = self.eqn
        region = region_of(eqn)
        moved = before_loop(region, self.dims.batch)
        if not moved:
            return self
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
        given = [*pairs(eqn), *zip(outer.all(values), more, strict=True)]
        return attrs.evolve(self, eqn=with_operands(eqn, smaller, given))

    # One tick

    def run(
        self, scope: Scope, number: Value, handed: Mapping[Value, Value], made: PipelinedLoop | None = None
    ) -> dict[Value, Value]:
        """Append one tick, and return what leaves the last stage: result -> value of one micro-batch, if it has the batch.

        handed: operand -> its value for the micro-batch that enters. made: the loop that keeps operands for this one.
        """
        tick = self.dims.tick(scope, number, self.reverse)
        body, region = StageBody(self.dims, self.sums), region_of(self.eqn)
        given = [
            self._given(scope, tick, operand, argument, handed, made) for operand, argument in pairs(self.eqn)
        ]
        totals = {o.name: self._total(scope, o) for o in region.outputs if self._is_total(o)}
        found = body.loop(scope.build, self.eqn, given, tick.micro, self.dims.inner, tick, totals)
        updated = {argument.value.name: argument for argument in carried(region)}
        leaving = {}
        for result, output, value in zip(self.eqn.results, region.outputs, found, strict=True):
            carry = updated.get(output.updates or "")
            if output.name in totals:
                scope.update(self._state(output.name), value)
            elif carry is not None:
                leaves = self._last_carry(
                    scope, tick, result, with_stages(scope.build, value, self.dims.stages), carry
                )
                leaving.update({result: leaves} if leaves else {})
            elif result in self.wanted or result in self.kept:
                self._yielded(scope, tick, result, output, with_stages(scope.build, value, self.dims.stages))
        return leaving

    def _state(self, name: str) -> str:
        return f"{name}.{self.name}" if self.name else name

    def _is_total(self, output: Output) -> bool:
        """Return True for a yielded sum: it is added up for each layer."""
        return (
            output.updates is None
            and output.value in self.sums
            and self.dims.batch not in output.value.type.dims
        )

    def _total(self, scope: Scope, output: Output) -> Value:
        dims, type = self.dims, output.value.type
        layers = dims.rounds.held if dims.rounds else dims.inner
        wide = wide_type(type).dtype
        return scope.state(self._state(output.name), TensorType(wide, (dims.stages, layers, *type.dims)))

    def _given(
        self,
        scope: Scope,
        tick: Tick,
        operand: Value,
        argument: Argument,
        handed: Mapping[Value, Value],
        made: PipelinedLoop | None,
    ) -> Value:
        """Return the operand of the stages' own loop in one tick."""
        build, dims = scope.build, self.dims
        if argument.role == "carried":
            return self._entering(scope, tick, operand, argument, handed)
        if made is not None and operand in made.eqn.results:
            return self._read(scope, tick, operand, made)
        has_batch, is_stacked = dims.batch in operand.type.dims, argument.role == "sliced"
        cut = dims.cut(scope.top, operand, is_stacked)
        if is_stacked and not has_batch and dims.rounds is not None:
            rest = [dim for dim in cut.type.dims if dim not in dims.layers_cut]
            ordered = scope.top.ordered(cut, (dims.stages, dims.rounds.chunks, dims.inner, *rest))
            cut = scope.top("reshape", ordered, dims=(dims.stages, dims.rounds.held, *rest))
        value = scope.of_top(cut)
        if is_stacked and has_batch and dims.rounds is not None:
            value = build("gather", value, tick.chunk_of_stage, dim=dims.rounds.chunks)
            value = with_stages(build, value, dims.stages)
        if has_batch:
            return with_stages(build, build("gather", value, tick.micro, dim=dims.micro), dims.stages)
        return value

    def _read(self, scope: Scope, tick: Tick, operand: Value, made: PipelinedLoop) -> Value:
        """Return what the forward pass has kept of the micro-batch of each stage."""
        slots = made.slots
        assert slots is not None, "the forward pass keeps results in slots"
        place = slots.at(scope, tick, is_again=True)
        held = scope.state(made._state(made._output(operand).name))
        return with_stages(scope.build, scope.build("gather", held, place, dim=slots.dim), self.dims.stages)

    def _output(self, result: Value) -> Output:
        return region_of(self.eqn).outputs[self.eqn.results.index(result)]

    def _entering(
        self, scope: Scope, tick: Tick, operand: Value, argument: Argument, handed: Mapping[Value, Value]
    ) -> Value:
        """Return a carry at the start of a tick: the first stage takes the next micro-batch, others what they are handed."""
        build, dims, type = scope.build, self.dims, argument.value.type
        if is_accumulated(region_of(self.eqn), argument, self.sums):
            return build.zeros(TensorType(type.dtype, (dims.stages, *type.dims)))
        if operand in handed:
            fed = build.ordered(handed[operand], dims.one(type.dims))
        elif dims.batch in type.dims:
            cut = scope.of_top(dims.cut(scope.top, scope.top.ordered(operand, type.dims)))
            fed = build("gather", cut, tick.entering, dim=dims.micro)
        else:
            fed = scope.of_top(scope.top.ordered(operand, type.dims))
            if argument.value in self.sums:
                fed = build("mask", build("eq", tick.number, build.constant(0, "i32")), fed)
        held = scope.state(
            self._state(argument.value.name), TensorType(type.dtype, (dims.stages, *dims.one(type.dims)))
        )
        by, wrap = -1 if self.reverse else 1, dims.rounds is not None
        handed_on = build("shift", held, dim=dims.stages, by=by, wrap=wrap)
        return build("where", tick.first, with_stages(build, fed, dims.stages), handed_on)

    def _last_carry(
        self, scope: Scope, tick: Tick, result: Value, value: Value, carry: Argument
    ) -> Value | None:
        """Hand a carry on, and collect what leaves the last stage. The other stages hand zeros to the sum over stages."""
        build, dims, type = scope.build, self.dims, carry.value.type
        name = self._state(carry.value.name)
        if is_accumulated(region_of(self.eqn), carry, self.sums):
            held = scope.state(name, wide_type(value.type))
            scope.update(
                name, build("add", held, build.cast(build("mask", tick.active, value), held.type.dtype))
            )
            return None
        scope.update(name, value)
        if result not in self.wanted and result not in self.kept:
            return None
        if type.dtype == "bool":
            leaving = build("any", build("and", value, tick.last), over=(dims.stages,))
        else:
            leaving = build("sum", build("mask", tick.last, value), over=(dims.stages,))
        if result in self.wanted:
            self._collect(scope, tick, f"{name}.last", leaving, carry)
        return leaving if dims.batch in type.dims else None

    def _collect(self, scope: Scope, tick: Tick, name: str, leaving: Value, carry: Argument) -> None:
        build, dims, type = scope.build, self.dims, leaving.type
        if carry.value in self.sums:
            held = scope.state(name, wide_type(type))
            term = build("mask", build("ge", tick.leaving, build.constant(0, "i32")), leaving)
            scope.update(name, build("add", held, build.cast(term, held.type.dtype)))
        elif dims.batch in carry.value.type.dims:
            held = scope.state(name, TensorType(type.dtype, (dims.micro, *type.dims)))
            op = "set_at" if type.dtype == "bool" else "add_at"
            scope.update(name, build(op, held, leaving, tick.leaving, dim=dims.micro))
        else:
            is_first = build("eq", tick.leaving, build.constant(0, "i32"))
            scope.update(name, build("where", is_first, leaving, scope.state(name, type)))

    def _yielded(self, scope: Scope, tick: Tick, result: Value, output: Output, value: Value) -> None:
        """Keep what all stages yield for their micro-batches; of what is the same for all, what the first one yields."""
        build, dims, type = scope.build, self.dims, value.type
        name = self._state(output.name)
        if dims.batch in output.value.type.dims:
            whole = self.slots if result in self.kept else dims.every_step()
            assert whole is not None, "the forward pass keeps results in slots"
            held = scope.state(name, TensorType(type.dtype, (whole.dim, *type.dims)))
            place = whole.at(scope, tick)
            updates = build.ordered(value, (dims.stages, *(d for d in type.dims if d != dims.stages)))
            scope.update(name, build("set_at", held, updates, place, dim=whole.dim))
            return
        rounds = dims.rounds
        held = scope.state(name, TensorType(type.dtype, (rounds.chunks, *type.dims)) if rounds else type)
        counts = build("and", tick.active, build("eq", tick.micro, build.constant(0, "i32")))
        if rounds is not None:
            both = TensorType("i32", (rounds.chunks, dims.stages))
            number = build.broadcast(build("range", dim=rounds.chunks), both)
            counts = build("and", build("eq", number, tick.chunk_of_stage), counts)
        scope.update(name, build("where", counts, build.broadcast(value, held.type), held))

    # After all ticks

    def collected(self, scope: Scope) -> dict[Value, Value]:
        """Return the results of the whole loop that are read: those that are sums of 16-bit terms are still f32."""
        region, found = region_of(self.eqn), dict[Value, Value]()
        updated = {argument.value.name: argument for argument in carried(region)}
        for result, output in zip(self.eqn.results, region.outputs, strict=True):
            if result in self.wanted:
                carry = updated.get(output.updates or "")
                value = (
                    self._carry_at_end(scope, result, carry) if carry else self._stack(scope, result, output)
                )
                found[result] = scope.build.ordered(value, result.type.dims)
        return found

    def _carry_at_end(self, scope: Scope, result: Value, carry: Argument) -> Value:
        build, dims, name = scope.build, self.dims, self._state(carry.value.name)
        if is_accumulated(region_of(self.eqn), carry, self.sums):
            terms = build("sum", scope.states[name], over=(dims.stages,))
            start = next(operand for operand, argument in pairs(self.eqn) if argument is carry)
            return build("add", build.cast(start, terms.type.dtype), terms)
        held = scope.states[f"{name}.last"]
        return dims.joined(build, held, result.type.dims) if dims.batch in result.type.dims else held

    def _stack(self, scope: Scope, result: Value, output: Output) -> Value:
        build, dims, rounds = scope.build, self.dims, self.dims.rounds
        held, inside = scope.states[self._state(output.name)], output.value.type.dims
        if dims.batch in inside:
            held = dims.of_steps(build, held, self.reverse)
        elif rounds is not None and rounds.held in held.type.dims:
            rest = [dim for dim in held.type.dims if dim not in (dims.stages, rounds.held)]
            ordered = build.ordered(held, (dims.stages, rounds.held, *rest))
            held = build("reshape", ordered, dims=(dims.stages, rounds.chunks, dims.inner, *rest))
        return dims.joined(build, held, (dims.layers, *inside), is_stacked=True)
