"""The body of a pipeline's loop over ticks: what a stage computes for one micro-batch.

All values of the body of a loop over layers get the dimension `stages`, and lose the dimension of the batch but for one
micro-batch. A stage reads its layers from a stack, one after the other. Sums over the batch become terms of sums.

The bodies of the loops over ticks and layers ask for what they read and carry: values around them, and states that start as
zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial

import attrs

from mtfc.compiler.ir.builder import Builder, Names, wide_type
from mtfc.compiler.ir.core import Argument, Attr, Equation, Function, Output, Value
from mtfc.compiler.ir.loops import (
    TICKS,
    NewLoop,
    carried,
    dim_of,
    pairs,
    plain_loop,
    region_of,
    results_of,
    with_carries,
)
from mtfc.compiler.ir.micro_batch_rule import LISTS_OF_DIMS, cut_attributes, summed_group
from mtfc.compiler.ir.opdef import BY_NAME
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.types import Dim, TensorType, scalar
from mtfc.compiler.passes.spatial.position_blocks import NewDims


@attrs.frozen
class Rounds:
    """The dimensions of the schedule of an interleaved pipeline.

    micro is cut into [rounds, turns]. A stage computes in steps = [rounds, chunks, turns], one after the other. held:
    the layers of a stage, [chunks, inner].
    """

    rounds: Dim
    chunks: Dim
    turns: Dim
    steps: Dim
    held: Dim

    def in_steps(self, build: Builder, number: Value) -> Value:
        """Return the value at each step of a number with some of the dimensions of the schedule."""
        every = build("broadcast", number, dims=(self.rounds, self.chunks, self.turns))
        return build("reshape", every, dims=(self.steps,))


@attrs.frozen
class StageDims:
    """The dimensions of a pipeline.

    layers is cut into [stages, inner], and batch into [part, micro]. last: the tick in which the last stage begins; the first
    one, for a loop that hands nothing on. rounds: the schedule, if there are several chunks; layers is then cut into
    [stages, chunks, inner], and dealt out to the stages in turn.
    """

    layers: Dim
    batch: Dim
    stages: Dim
    inner: Dim
    micro: Dim
    part: Dim
    last: int
    rounds: Rounds | None

    @property
    def steps(self) -> int:
        """The number of ticks in which a stage computes."""
        return self.micro.size * (self.rounds.chunks.size if self.rounds else 1)

    def one(self, dims: Iterable[Dim]) -> tuple[Dim, ...]:
        """Return the dimensions of a value for one micro-batch."""
        return tuple(self.part if dim == self.batch else dim for dim in dims)

    def cut(self, build: Builder, x: Value, is_stacked: bool = False) -> Value:
        """Reshape `x`: [part, micro] take the place of the batch, and if it is stacked [stages, inner] of the layers.

        `stages`, the chunks, `inner` and `micro` come first. Layers are dealt out to the stages of an interleaved pipeline.
        """
        flat = self.cut_in_place(x.type.dims, is_stacked)
        front = [dim for dim in (*self.layers_cut, self.micro) if dim in flat]
        cut = build("reshape", x, dims=flat) if flat != x.type.dims else x
        return build.ordered(
            self._dealt(build, cut, is_stacked), [*front, *(dim for dim in flat if dim not in front)]
        )

    def _dealt(self, build: Builder, x: Value, is_stacked: bool, back: bool = False) -> Value:
        """Return a stack whose layers are dealt out to the stages in chunks, or dealt back."""
        if self.rounds is None or not is_stacked:
            return x
        return build("interleave", x, dim=self.stages, among=self.rounds.chunks, back=back)

    def joined(self, build: Builder, x: Value, dims: tuple[Dim, ...], is_stacked: bool = False) -> Value:
        """Undo `cut`: return `x` with dimensions `dims`."""
        found = self._dealt(
            build, build.ordered(x, self.cut_in_place(dims, is_stacked)), is_stacked, back=True
        )
        return build("reshape", found, dims=dims)

    @property
    def layers_cut(self) -> tuple[Dim, ...]:
        """The dimensions that take the place of the layers."""
        return (self.stages, *([self.rounds.chunks] if self.rounds else []), self.inner)

    def cut_in_place(self, dims: Sequence[Dim], is_stacked: bool = False) -> tuple[Dim, ...]:
        """Return dimensions with [part, micro] in the place of the batch, and with those of the stages if they are stacked."""
        parts: dict[Dim, tuple[Dim, ...]] = {self.batch: (self.part, self.micro)}
        if is_stacked:
            parts[self.layers] = self.layers_cut
        return tuple(each for dim in dims for each in parts.get(dim, (dim,)))

    # Ticks

    def order(self, build: Builder, reverse: bool) -> Value:
        """Return the tick in which each stage begins: a reversed loop begins at the last stage."""
        if not self.last:
            return build("full", dims=(self.stages,), value=0, dtype="i32")
        place = build("range", dim=self.stages)
        return build("sub", build.constant(self.stages.size - 1, "i32"), place) if reverse else place

    def tick(self, scope: LoopScope, number: Value, reverse: bool) -> Tick:
        """Return the values of a tick, by stage: the step that runs, and if the stage is active, first or last.

        number: that of the tick.
        """
        b, order = scope.build, self.order(scope.build, reverse)
        zero = b.constant(0, "i32")
        step = b("sub", number, order, name="step")
        active = b("and", b("ge", step, zero), b("lt", step, b.constant(self.steps, "i32")), name="active")
        first = b("eq", order, zero, name="first")
        last = b("eq", order, b.constant(self.stages.size - 1, "i32"), name="last")
        leaving = b("sub", number, b.constant(self.last, "i32"), name="leaving")
        tick = Tick(scope, number, step, step, active, first, last, number, leaving, zero)
        return tick if self.rounds is None else self._in_rounds(tick, self.rounds, reverse)

    def _in_rounds(self, tick: Tick, rounds: Rounds, reverse: bool) -> Tick:
        """Return a tick of an interleaved pipeline. An idle stage takes what enters: it is next to one that may not be idle."""
        scope, b, top = tick.scope, tick.scope.build, tick.scope.top
        zero = b.constant(0, "i32")
        turns = scope.of_top(rounds.in_steps(top, top("range", dim=rounds.chunks)))
        micro = top("reshape", top("range", dim=self.micro), dims=(rounds.rounds, rounds.turns))
        micros = scope.of_top(rounds.in_steps(top, micro))
        turn = b("gather", turns, tick.step, dim=rounds.steps, name="turn")
        enters = b("and", tick.first, b("or", b("eq", turn, zero), b("not", tick.active)))
        end = b.constant(rounds.chunks.size - 1, "i32")
        chunk = b("sub", end, turn, name="chunk") if reverse else turn
        micro = b(
            "where", tick.active, b("gather", micros, tick.step, dim=rounds.steps), tick.step, name="micro"
        )
        entering = b("gather", micros, tick.number, dim=rounds.steps)
        is_last = b("eq", b("gather", turns, tick.leaving, dim=rounds.steps), end)
        left = b("and", b("ge", tick.leaving, zero), is_last)
        leaving = b("gather", micros, tick.leaving, dim=rounds.steps)
        leaving = b("where", left, leaving, b.constant(-1, "i32"), name="leaving")
        layer = b("mul", chunk, b.constant(self.inner.size, "i32"))
        tick = attrs.evolve(tick, micro=micro, chunk=chunk, first_layer=layer)
        return attrs.evolve(tick, first=enters, entering=entering, leaving=leaving)

    def every_step(self, new: NewDims) -> Slots:
        """Return a slot for each step."""
        return self._slots(new, self.steps)

    def in_flight(self, new: NewDims) -> Slots:
        """Return slots for what the forward pass keeps, if the backward pass of a micro-batch begins as soon as it can.

        A stage keeps a step until its backward step: fewer than 2 * stages micro-batches later for the first chunk. For chunks of
        the second half of the layers this is less than a round.
        """
        if self.rounds is None:
            number = min(2 * self.stages.size - 1, self.micro.size)
            slot = new.get(f"{self.batch.name}.slots", number)
            return self._slots(new, number, partial(_in_turn, slot=slot, dim=self.micro, new=new))
        chunks, turns = self.rounds.chunks.size, self.rounds.turns.size
        twice = (chunks + 1) // 2 if self.rounds.rounds.size > 1 else 0
        table = partial(self._slot_table, twice=twice, new=new)
        return self._slots(new, turns * (chunks + twice), table, partial(table, reverse=True))

    def _slots(self, new: NewDims, number: int, *tables: Callable[[Builder], Value]) -> Slots:
        return Slots(new.get(f"{self.layers.name}.kept", number * self.inner.size), self.inner.size, *tables)

    def _slot_table(self, top: Builder, twice: int, new: NewDims, reverse: bool = False) -> Value:
        """Return the slot of each step in which a stage keeps its values.

        twice: the number of first chunks with two slots for each turn, which odd and even rounds take in turn. reverse: count
        chunks from the last, as the backward pass does.
        """
        rounds = self.rounds
        assert rounds is not None, "the loop runs in rounds"

        def number(value: int) -> Value:
            return top.constant(value, "i32")

        chunk, turn = top("range", dim=rounds.chunks), top("range", dim=rounds.turns)
        dims = (rounds.rounds, rounds.chunks, rounds.turns)
        start = top("mul", number(rounds.turns.size), top("add", chunk, top("minimum", chunk, number(twice))))
        found = top(
            "broadcast",
            top("add", top("broadcast", start, dims=dims[1:]), top("broadcast", turn, dims=dims[1:])),
            dims=dims,
        )
        if twice:
            odd = _in_turn(top, new.get(f"{self.layers.name}.two", 2), rounds.rounds, new)
            odd = top("broadcast", top("mul", odd, number(rounds.turns.size)), dims=dims)
            is_twice = top("broadcast", top("lt", chunk, number(twice)), dims=dims)
            found = top("add", found, top("mask", is_twice, odd))
        found = top("flip", found, dim=rounds.chunks) if reverse else found
        return top("reshape", found, dims=(rounds.steps,))

    def of_steps(self, build: Builder, x: Value, reverse: bool) -> Value:
        """Return an array of all steps by micro-batch and layer, and by chunk if there are several chunks."""
        rounds, rest = self.rounds, (self.inner, *x.type.dims[1:])
        if rounds is None:
            return build("reshape", x, dims=(self.micro, *rest))
        cut = build("reshape", x, dims=(rounds.rounds, rounds.chunks, rounds.turns, *rest))
        ordered = build.ordered(cut, (rounds.rounds, rounds.turns, rounds.chunks, *rest))
        found = build("reshape", ordered, dims=(self.micro, rounds.chunks, *rest))
        return build("flip", found, dim=rounds.chunks) if reverse else found


def _in_turn(top: Builder, slot: Dim, dim: Dim, new: NewDims) -> Value:
    """Return 0, 1, ..., 0, 1, ... along `dim`: the slots in turn."""
    times = new.get(f"{slot.name}.times", -(-dim.size // slot.size))
    every = new.get(f"{slot.name}.every", times.size * slot.size)
    found = top("broadcast", top("range", dim=slot), dims=(times, slot))
    found = top("reshape", found, dims=(every,))
    return top("slice", found, source=every, target=dim, start=0, stride=1)


@attrs.frozen
class Tick:
    """Values of one tick: for each stage its step, its micro-batch and its chunk, and if it computes a micro-batch at all.

    first: True for the stage at which micro-batches enter, if one does. last: True for the stage that they leave. entering,
    leaving: the micro-batches that enter and leave; the number of none if none leaves. first_layer: that of the chunk, among
    those of the stage.
    """

    scope: LoopScope
    number: Value
    step: Value
    micro: Value
    active: Value
    first: Value
    last: Value
    entering: Value
    leaving: Value
    chunk: Value
    first_layer: Value | None = None


@attrs.frozen
class Slots:
    """Places in which a stage keeps values of its layers, for some micro-batches. dim: [slots, inner].

    table: the slot of each step of the forward pass, which is its number without a table. again: the slot that each step of
    the backward pass reads, if this is another one.
    """

    dim: Dim
    inner: int
    table: Callable[[Builder], Value] | None = None
    again: Callable[[Builder], Value] | None = None

    def first(self, tick: Tick, is_again: bool = False) -> Value:
        """Return the place of the first layer of each stage in a tick.

        For an idle stage it is -inner, so that all of its layers have places below 0.
        """
        scope, build, slot = tick.scope, tick.scope.build, tick.step
        table = self.again if is_again and self.again else self.table
        if table is not None:
            found = scope.of_top(table(scope.top))
            slot = build("gather", found, slot, dim=found.type.dims[0])
        slot = build("where", tick.active, slot, build.constant(-1, "i32"))
        return build("mul", slot, build.constant(self.inner, "i32"))


@attrs.frozen
class Held:
    """A value that a stage keeps of its layers: its loop over layers changes it at the place of a layer.

    first: the place of the first layer of each stage, for what it keeps of a micro-batch. A sum of all micro-batches has none.
    """

    value: Value
    first: Value | None = None


def is_accumulated(region: Function, carry: Argument, sums: Collection[Value]) -> bool:
    """Return True if an iteration only adds a term to a carry that is a sum over micro-batches."""
    if carry.value not in sums:
        return False
    after = next(output.value for output in region.outputs if output.updates == carry.value.name)
    readers = [eqn for eqn in region.body if carry.value in eqn.operands]
    adds = [eqn for eqn in readers if has_trait(eqn, "add") and eqn.results == (after,)]
    outputs = [output for output in region.outputs if output.value in (after, carry.value)]
    return len(readers) == len(adds) == len(outputs) == 1 and adds[0].operands.count(carry.value) == 1


def with_stages(build: Builder, x: Value, stages: Dim) -> Value:
    """Return `x` with the dimension `stages`, as the first one."""
    if stages in x.type.dims:
        return build.ordered(x, (stages, *(dim for dim in x.type.dims if dim != stages)))
    return build("broadcast", x, dims=(stages, *x.type.dims))


def _with_first_dim(attributes: Mapping[str, Attr], dim: Dim) -> dict[str, Attr]:
    """Return attributes for a result that has one more dimension, as the first one."""
    lists = {key: value for key, value in attributes.items() if key in LISTS_OF_DIMS}
    return {key: (dim, *value) for key, value in lists.items() if isinstance(value, tuple)}


@attrs.define
class StageLoop(NewLoop):
    """A new loop of the stages, in which an iteration runs a region. new: value of the region -> value here."""

    dims: StageDims
    region: Function
    new: dict[Value, Value] = attrs.field(factory=dict)

    @cached_property
    def layer(self) -> Value:
        """The number of the iteration."""
        return Value(self.inner.names.fresh("layer"), scalar("i32"))

    def _place(self, first: Value | None) -> Value:
        """Return the index, in stacked arrays, of the layer that each stage runs in this iteration.

        first: the index of the first layer of each stage; None if that is 0.
        """
        if first is None:
            return self.layer
        return self.inner("add", self.argument(first, "invariant", "first"), self.layer)

    def read_layers(self, tick: Tick, read: Mapping[Value, Value]) -> None:
        """Read the layers of each stage, at its chunk, and what is kept of them. `new` has stacks before, and layers after.

        read: argument -> the place of its first layer.
        """
        b, new, held = self.inner, self.new, self.dims.rounds.held if self.dims.rounds else None
        for value in (a.value for a in self.region.arguments if a.role == "sliced"):
            is_held = held is not None and held in new[value].type.dims
            if value in read or is_held:
                place = self._place(read.get(value, tick.first_layer))
                dim = new[value].type.dims[0] if value in read or held is None else held
                new[value] = with_stages(b, b("gather", new[value], place, dim=dim), self.dims.stages)

    def keep(self, output: Output, held: Held, tick: Tick) -> Output:
        """Return the output that keeps a layer's value in its place. held: where the layers are kept."""
        b, argument = self.inner, self.argument(held.value, "carried", output.name)
        if held.first is not None:
            place = self._place(held.first)
            value, (dim, *rest) = with_stages(b, output.value, self.dims.stages), argument.type.dims
            after = b("set_at", argument, b.ordered(value, rest), place, dim=dim)
        else:
            place = self._place(tick.first_layer)
            active = self.argument(tick.active, "invariant")
            stages, dim, *rest = argument.type.dims
            value = b.cast(self._unrounded(output), argument.type.dtype)
            term = b("mask", active, with_stages(b, value, stages))
            after = b("add_at", argument, b.ordered(term, (stages, *rest)), place, dim=dim)
        return Output(argument.name, after, argument.name)

    def _unrounded(self, output: Output) -> Value:
        """Return the value of an output, before it is rounded to 16 bits."""
        old = next(o.value for o in self.region.outputs if o.name == output.name)
        maker = next((eqn for eqn in self.region.body if old in eqn.results), None)
        if maker is None or not has_trait(maker, "cast") or maker.operands[0] not in self.new:
            return output.value
        wide = self.new[maker.operands[0]]
        return wide if wide.type == wide_type(wide.type) else output.value


@attrs.frozen
class StageBody:
    """Gives the values of a body the dimension `stages`, and cuts the batch out of them, for the micro-batch `micro`.

    new: value of the body -> value here.
    """

    dims: StageDims
    sums: set[Value]
    build: Builder
    new: dict[Value, Value]
    micro: Value

    def loop(
        self,
        eqn: Equation,
        given: Sequence[Value],
        dim: Dim,
        tick: Tick | None = None,
        kept: Mapping[str, Held] = {},
        read: Mapping[Value, Value] = {},
    ) -> list[Value]:
        """Append a loop along `dim` with the operands `given`, and return its results: `stages` comes first where it occurs.

        tick: of the loop over the layers of a stage, which reads them from stacks. kept: name of an output -> where the loop
        keeps it. read: argument that the loop reads from what is kept -> the place of the first layer.
        """
        b, region, stages = self.build, region_of(eqn), self.dims.stages
        varying = self._varying(region, given)
        loop = StageLoop(b, Builder(Names(), eqn.span, eqn.stage), dim, self.dims, region)
        for argument, operand in zip(region.arguments, given, strict=True):
            if argument.role == "carried" and argument.value in varying:
                operand = with_stages(b, operand, stages)
            role = argument.role if dim in operand.type.dims or argument.role == "carried" else "invariant"
            loop.new[argument.value] = loop.argument(operand, role, argument.value.name, argument.span)
        micro, layer = loop.argument(self.micro, "invariant"), loop.layer
        if tick is not None:
            loop.read_layers(tick, read)
        inside = attrs.evolve(self, build=loop.inner, new=loop.new, micro=micro)
        inside.body(region.body)
        outputs = [inside._output(region, output) for output in region.outputs]
        if tick is not None:
            outputs = [loop.keep(o, kept[o.name], tick) if o.name in kept else o for o in outputs]
            if kept or any(layer in eqn.operands for eqn in loop.inner.body):
                loop.given.append((b("range", dim=dim), Argument(layer, "sliced")))
        order = sorted(range(len(outputs)), key=lambda i: outputs[i].updates is None)
        loop.outputs = [outputs[i] for i in order]
        new_loop = loop.append(dim.name, attrs.evolve(eqn, attrs={**eqn.attrs, "dim": dim}))
        results = [new_loop.results[order.index(i)] for i in range(len(order))]
        return [with_stages(b, each, stages) if stages in each.type.dims else each for each in results]

    def _output(self, region: Function, output: Output) -> Output:
        """Return the output of an inner loop.

        A carry that is a sum of micro-batches, or differs between stages, has them as a dimension.
        """
        value = self.new[output.value]
        carry = next((a.value for a in carried(region) if a.value.name == output.updates), None)
        if carry is None:
            return attrs.evolve(output, value=value)
        if carry in self.sums and output.value not in self.sums:
            value = self._first_term(value)
        before = self.new[carry]
        if self.dims.stages in before.type.dims:
            value = with_stages(self.build, value, self.dims.stages)
        return attrs.evolve(output, value=self.build.ordered(value, before.type.dims), updates=before.name)

    def _varying(self, region: Function, given: Sequence[Value]) -> set[Value]:
        """Return the values of a region, without those of inner regions, that differ between stages. given: the operands."""
        arguments = {
            argument.value
            for argument, operand in zip(region.arguments, given, strict=True)
            if self.dims.stages in operand.type.dims or argument.value in self.sums
        }
        return self._closure(region, arguments)

    def _closure(self, region: Function, arguments: set[Value]) -> set[Value]:
        """Return the values of a region that differ between stages if some arguments do, also through carries."""

        def inside(given: set[Value]) -> set[Value]:
            """Return the given values, and the results that differ between stages because of them."""
            found = set(given)
            for eqn in region.body:
                found.update(self._varying_results(eqn, found))
            return found

        return with_carries(region, arguments, inside)

    def _varying_results(self, eqn: Equation, known: set[Value]) -> Iterable[Value]:
        """Return the results of an equation that differ between stages. known: the values of the body that do."""
        if not eqn.regions:
            is_drawn = has_trait(eqn, "random") and self.dims.batch in eqn.result.type.dims
            varies = is_drawn or not known.isdisjoint(eqn.operands) or not self.sums.isdisjoint(eqn.results)
            return eqn.results if varies else ()
        region = region_of(eqn)
        inside = self._closure(region, {a.value for v, a in pairs(eqn) if v in known or a.value in self.sums})
        return results_of(eqn, inside)

    def body(self, body: Iterable[Equation]) -> None:
        """Append the equations of a body, and map their results to the new values."""
        for eqn in body:
            self.build.span, self.build.stage = eqn.span, eqn.stage
            if eqn.regions:
                given = [self._operand(value, argument.value in self.sums) for value, argument in pairs(eqn)]
                made = self.loop(eqn, given, dim_of(eqn))
            else:
                made = self._equation(eqn)
            self.new.update(zip(eqn.results, made, strict=True))

    def _operand(self, value: Value, is_sum: bool) -> Value:
        """Return the new value of an operand that is used as a sum, or not."""
        new = self.new[value]
        return self._first_term(new) if is_sum and value not in self.sums else new

    def _first_term(self, x: Value) -> Value:
        """Return a value as a sum: the term of the first micro-batch is the value, and the others are 0."""
        is_first = self.build("eq", self.micro, self.build.constant(0, "i32"))
        return self.build("mask", is_first, with_stages(self.build, x, self.dims.stages))

    def _equation(self, eqn: Equation) -> list[Value]:
        """Append an equation for all stages at once, on one micro-batch in each; return its results.

        Random numbers are those of the micro-batch's place in the whole batch. Operands without the dimension of stages are the
        same in every stage.
        """
        b, stages = self.build, self.dims.stages
        group = summed_group(OPS[eqn.op], eqn, self.sums) if eqn.results[0] in self.sums else None
        has_sums = not self.sums.isdisjoint(eqn.operands)
        operands = [
            self._operand(value, has_sums and group is not None and i in group)
            for i, value in enumerate(eqn.operands)
        ]
        attributes = cut_attributes(eqn.attrs, self.dims.batch, self.dims.part)
        if has_trait(eqn, "random") and self.dims.batch in eqn.result.type.dims:
            whole = self.dims.cut_in_place(eqn.result.type.dims)
            attributes |= {"dims": whole, "at": self.dims.micro}
            operands.append(self.micro)
        if any(stages in value.type.dims for value in operands):
            operands = self._alike(eqn, operands)
            attributes |= _with_first_dim(attributes, stages)
        made = b.several(eqn.op, *operands, names=[value.name for value in eqn.results], **attributes)
        b.body[-1] = attrs.evolve(b.body[-1], path=eqn.path)
        front = [stages] if any(stages in value.type.dims for value in operands) else []
        return [
            b.ordered(value, (*front, *self.dims.one(old.type.dims)))
            for value, old in zip(made, eqn.results, strict=True)
        ]

    def _alike(self, eqn: Equation, operands: Sequence[Value]) -> list[Value]:
        """Give all operands the dimension `stages`, unless the op broadcasts them by itself."""
        if has_trait(eqn, "dot"):
            return list(operands)
        is_elementwise = OPS[eqn.op].layout_rule(eqn) is BY_NAME and not has_trait(eqn, "random")
        wanted = {self.dims.stages, *self.dims.one(eqn.results[0].type.dims)}
        if is_elementwise and any({*value.type.dims} == wanted for value in operands):
            return list(operands)
        return [with_stages(self.build, value, self.dims.stages) for value in operands]


@attrs.define
class LoopScope:
    """The equations of one iteration of a loop, or of the function around all loops, which has no scope around it.

    given: value around -> argument. states: name -> what the loops carry under this name, as it is at this place. starts: name ->
    argument, where the loop of this scope carries it.
    """

    build: Builder
    around: LoopScope | None = None
    given: dict[Value, Argument] = attrs.field(factory=dict)
    states: dict[str, Value] = attrs.field(factory=dict)
    starts: dict[str, Value] = attrs.field(factory=dict)

    @property
    def top(self) -> Builder:
        """The builder of the function around all loops."""
        return self.build if self.around is None else self.around.top

    def inside(self, value: Value) -> Value:
        """Return the argument for a value of the scope around this one."""
        if value not in self.given:
            name = self.build.names.fresh(value.name)
            self.given[value] = Argument(Value(name, value.type), "invariant")
        return self.given[value].value

    def of_top(self, value: Value) -> Value:
        """Return what is a value of the function around all loops here."""
        return value if self.around is None else self.inside(self.around.of_top(value))

    def state(self, name: str, type: TensorType | None = None) -> Value:
        """Return the value that the loops carry under a name, which starts as zeros of a type.

        Without a type, an earlier loop has begun it.
        """
        if name not in self.states:
            if self.around is None:
                assert type is not None, f"no loop carries {name}"
                self.states[name] = self.build.zeros(type)
            else:
                start = self.around.state(name, type)
                self.states[name] = self.starts[name] = Value(self.build.names.fresh(name), start.type)
        assert type is None or self.states[name].type == type, name
        return self.states[name]

    def update(self, name: str, value: Value) -> None:
        self.states[name] = self.build.ordered(value, self.states[name].type.dims)

    def accumulate(self, name: str, term: Value) -> None:
        """Add a term to the value that the loops carry under a name. A sum of 16-bit terms is f32."""
        held = self.state(name, wide_type(term.type))
        self.update(name, self.build("add", held, self.build.cast(term, held.type.dtype)))

    def put(self, name: str, value: Value, place: Value, dim: Dim) -> None:
        """Put a value in its place along `dim` of what the loops carry under a name."""
        held = self.state(name, TensorType(value.type.dtype, (dim, *value.type.dims)))
        self.update(name, self.build("set_at", held, value, place, dim=dim))

    def loop(self, dim: Dim, first: int | Value, body: Callable[[LoopScope, Value], None]) -> None:
        """Append a loop. `body` gets the scope of an iteration and its number: the number of the first one is `first`."""
        build = self.build
        inner = LoopScope(Builder(Names(), build.span, build.stage), self)
        count = Value(inner.build.names.fresh("number"), scalar("i32"))
        start = inner.inside(first) if isinstance(first, Value) else inner.build.constant(first, "i32")
        body(inner, inner.build("add", count, start, name="tick"))
        changed = {name: x for name, x in inner.starts.items() if inner.states[name] is not x}
        new = NewLoop(build, inner.build, dim)
        new.given += inner.given.items()
        for name, x in inner.starts.items():
            new.given.append((self.states[name], Argument(x, "carried" if name in changed else "invariant")))
        new.given.append((build("range", dim=dim), Argument(count, "sliced")))
        new.outputs += [Output(x.name, inner.states[name], x.name) for name, x in changed.items()]
        loop = new.append(TICKS, plain_loop(dim, build))
        self.states.update(zip(changed, loop.results, strict=True))
