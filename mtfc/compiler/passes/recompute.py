"""recompute: under a memory limit, compute values of the forward pass again in the backward pass instead of keeping them.

There are two kinds of code with values between forward and backward pass:

- A loop and its backward loop. The forward loop stacks a value, and the backward loop takes the slices. The backward loop can
  compute the value of an iteration from other slices instead.
- The equations of a function. Those of the backward pass read values of the forward pass, or copies that run just before.

A minimum cut decides for each of them. A value that the backward pass needs is kept, for its bytes, or its equation runs again,
for the equation's seconds, and then needs the equation's operands. One rate, in seconds per byte, makes both comparable. The pass
looks for the smallest rate at which the program fits, by the memory of the whole program (`cost/effects/memory.py`). Then it
keeps single values again while they fit.

Copies of equations of a function would all need each other at once: the first equation of the backward pass needs the last of the
forward pass. So the forward pass is cut into stretches where few bytes cross, and what crosses is kept. The operands of copies
stand behind `after`, or XLA would find that copies equal their originals.

A word in place of a limit names what the loops keep (`KEPT`). Code outside of loops then stays as it is. Without a limit, the
word or the bytes in the `forms` of the layout count. The driver finds the machine that `forms` may name.

A loop with `checkpoint` stays as it is: it recomputes all that it can. What `jax.checkpoint` computes again stands behind `after`
already, which waits for nothing: there it gets the array to wait for, with or without a memory limit.

Input:   forward %h = exp %x; ... backward %g = mul %d, %h
Output:  forward %h = exp %x; ... backward %x_2 = after %x, %d; %h_2 = exp %x_2; %g = mul %d, %h_2
After this pass the step fits into `memory` bytes; otherwise the pass raises `MemoryLimitError`, unless `must_fit` is false.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from itertools import accumulate
from math import inf, sqrt
from typing import ClassVar

import attrs

from mtfc.compiler.analysis.liveness import readers_and_outputs, storage
from mtfc.compiler.analysis.mincut import INFINITE, SINK, SOURCE, FlowNetwork
from mtfc.compiler.cost.device_models import expected_memory, fusion_of
from mtfc.compiler.cost.effects.memory import MemoryUse
from mtfc.compiler.cost.effects.roofline import computation_of, work_in
from mtfc.compiler.cost.hardware import Device, Hardware, Link, Rate
from mtfc.compiler.cost.sizes import whole
from mtfc.compiler.cost.step_time import communication_of, lanes_of
from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.builder import Names, Substitution, fresh_copy, names_of
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Program, Role, Value, walk
from mtfc.compiler.ir.loops import dim_of, map_regions, pairs, region_of, result_type, with_operands
from mtfc.compiler.ir.opdef import Trait
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.printer import shown_layout
from mtfc.compiler.ir.types import Axes, Dim, Mesh
from mtfc.compiler.ir.verifier import Level
from mtfc.compiler.passes.dce import live_only
from mtfc.compiler.passes.pass_base import IN_PYTHON, Pass
from mtfc.compiler.records import define, frozen, sums

TYPICAL = Hardware(
    "typical",
    Device(
        {"bf16": Rate.constant(500e12), "f16": Rate.constant(500e12), "f32": Rate.constant(250e12)},
        memory=inf,
        bandwidth=Rate.constant(2.8e12),
    ),
    (Link("any", "switch", (), Rate.constant(200e9), latency=1e-6),),
)
"""The machine without a target: between a TPU v5p and an H100. Only the ratios of its rates matter."""


class MemoryLimitError(Exception):
    """No choice of kept values fits. least: the smallest memory that was found, and what holds it, by line.

    machine: the name of the limit's machine, if there is one.
    """

    def __init__(self, function: str, limit: int, least: MemoryUse, machine: str | None) -> None:
        super().__init__(f"{function} needs {whole(least.total)} bytes, more than {limit}")
        self.function, self.limit, self.least, self.machine = function, limit, least, machine

    def lines(self) -> list[tuple[Span | None, int]]:
        """Return the bytes of each line, the largest first."""
        found = sums((span, whole(size)) for span, size in self.least.occupied)
        return sorted(found.items(), key=lambda each: -each[1])


def _with(body: Sequence[Equation], *traits: Trait) -> list[Equation]:
    """Return the equations with one of the traits, and the loops that have such equations."""
    return [eqn for eqn in body if any(has_trait(each, *traits) for each in walk((eqn,)))]


KEPT: Mapping[str, Callable[[Sequence[Equation]], Sequence[Equation]]] = {
    "full": lambda body: (),
    "minimal": lambda body: _with(body, "dot"),
    "selective": lambda body: _with(body, "dot", "attention"),
    "alternate": lambda body: (*_with(body, "dot")[::2], *_with(body, "attention")),
}
"""Word -> the equations of a loop's body that do not run again.

full: none, so that only what enters an iteration is kept. minimal: dots, as by MaxText's policy. selective: dots and attention,
whose weights a kernel computes again, as by Megatron-LM. alternate: every second dot and attention, as by torchtitan.
"""


@frozen
class Recompute(Pass):
    """memory: the bytes of a processor, 0 for no limit; or a word of `KEPT`. must_fit: False to come as near to the limit as
    possible. hardware: the machine whose rates count; None for a typical one.
    """

    name: ClassVar[str] = "recompute"
    takes: ClassVar[tuple[Level, ...]] = ("lowered",)
    memory: int | str = 0
    must_fit: bool = True
    hardware: Hardware | None = attrs.field(default=None, metadata=IN_PYTHON)

    def run(self, program: Program) -> Program:
        """Return the program within the limit of memory, or with what the layout's word keeps; without either, the program as
        it is.
        """
        program = program.map_functions(lambda function: _waiting(function, program.placed_on))
        written = program.layout.forms.recompute if program.layout else ""
        limit = self.memory or (written if written in KEPT or isinstance(written, int) else 0)
        if not limit:
            return program
        prices = Prices(program.placed_on, self.hardware or TYPICAL)
        if isinstance(limit, str):
            rule, rewriter = KeepingRule(RATES[1], keep=limit), Rewriter(prices)
            return program.map_functions(lambda function: rewriter.plan(function, rule).function)
        main = "step" if program.has_function("step") else "forward"

        def limited(function: Function) -> Function:
            """Return the function within the limit. Functions beside the step come as near as they can."""
            found = within(function, limit, prices)
            if function.name == main and self.must_fit and prices.total(found) > limit:
                machine = self.hardware.name if self.hardware else None
                raise MemoryLimitError(function.name, limit, prices.memory(found), machine)
            return found

        return program.map_functions(limited)


def limit_on(hardware: Hardware, must_fit: bool = True) -> Recompute:
    """Return the pass for the memory and the rates of a machine's device."""
    return Recompute(int(hardware.device.memory), must_fit, hardware)


@frozen
class Prices:
    """The bytes and seconds of placed equations on a machine."""

    mesh: Mesh
    hardware: Hardware

    @cached_property
    def _topology(self) -> Topology:
        return Topology.of(self.mesh, self.hardware)

    def memory(self, function: Function) -> MemoryUse:
        return expected_memory(function, self.mesh, self.hardware.device)

    def total(self, function: Function) -> int:
        return whole(self.memory(function).total)

    def bytes(self, value: Value) -> int:
        return value.type.local_bytes(self.mesh)

    def seconds(self, function: Function) -> dict[Equation, float]:
        """Return the seconds of each equation."""
        fusion = fusion_of(function, self.mesh, self.hardware.device)
        works = zip(function.body, work_in(function, fusion), strict=True)
        return {eqn: each.seconds + self._beside(eqn) for eqn, each in works}

    def _beside(self, eqn: Equation) -> float:
        """Return the seconds of a collective, or of all iterations of a loop."""
        if has_trait(eqn, "sends"):
            return max(lanes_of(eqn, self._topology).values(), default=0.0)
        if not eqn.regions:
            return 0.0
        region = region_of(eqn)
        computing = computation_of(region, self.mesh, self.hardware.device)
        return dim_of(eqn).size * (computing + communication_of(region, self._topology))


# The choice of kept values


@frozen
class KeepingRule:
    """The numbers that decide which values are kept.

    rate: seconds that a byte is worth. stretches: the number of parts of a forward pass that are recomputed one by one.
    keep: a word of `KEPT`; then nothing outside of loops runs again.
    """

    rate: float
    stretches: int = 1
    forced: frozenset[Value] = frozenset()
    keep: str = ""


@define
class RewrittenStep:
    """A rewritten function. seconds: of all copies. kept: values kept between forward and backward pass, with their bytes."""

    function: Function
    seconds: float = 0.0
    kept: dict[Value, int] = attrs.field(factory=dict)


def within(function: Function, limit: int, prices: Prices) -> Function:
    """Return the fastest function found that needs at most `limit` bytes, or else the one that needs the fewest."""
    most = prices.total(function)
    if most <= limit:
        return function
    rewriter = Rewriter(prices)
    tight = [rewriter.plan(function, KeepingRule(RATES[1], n)) for n in _stretches(function)]
    sizes = [prices.total(plan.function) for plan in tight]
    if min(sizes) > limit:
        return tight[sizes.index(min(sizes))].function if min(sizes) < most else function
    fitting = [2**i for i, size in enumerate(sizes) if size <= limit]
    plans = [
        _fastest(function, limit, rewriter, n)
        for n in dict.fromkeys((fitting[0], 2 ** sizes.index(min(sizes))))
    ]
    return min(plans, key=lambda plan: plan.seconds).function


RATES = 1e-18, 1e-3
"""Seconds per byte: at the first rate all values are kept, at the second as few as possible."""

STEPS, TRIES = 14, 24
"""The halvings of the range of rates, and the values that are tried one by one afterwards."""


def _stretches(function: Function) -> list[int]:
    """Return the numbers of stretches to try: powers of 2."""
    count = sum(not eqn.regions and eqn.stage == "forward" for eqn in function.body)
    return [2**i for i in range(min(7, max(1, (count // 8).bit_length())))]


def _fastest(function: Function, limit: int, rewriter: Rewriter, stretches: int) -> RewrittenStep:
    """Return the plan at the smallest rate that fits, with single values kept in addition.

    limit: the bytes that it may need.
    """

    def fits(plan: RewrittenStep) -> bool:
        return rewriter.prices.total(plan.function) <= limit

    low, high = RATES
    loose = tight = rewriter.plan(function, KeepingRule(high, stretches))
    for _ in range(STEPS):
        middle = sqrt(low * high)
        plan = rewriter.plan(function, KeepingRule(middle, stretches))
        if fits(plan):
            high, tight = middle, plan
        else:
            low, loose = middle, plan
    forced = frozenset[Value]()
    more = sorted(set(loose.kept) - set(tight.kept), key=lambda value: loose.kept[value])
    for value in more[:TRIES]:
        plan = rewriter.plan(function, KeepingRule(high, stretches, forced | {value}))
        if plan.seconds < tight.seconds and fits(plan):
            forced, tight = forced | {value}, plan
    return tight


@frozen
class Cut:
    """Equations to run again, and the values that are kept for them and for the backward pass."""

    again: Set[Equation]
    kept: Set[Value]


def cut(
    body: Iterable[Equation],
    needed: Iterable[Value],
    free: Set[Value],
    bytes: Callable[[Value], float],
    seconds: Mapping[Equation, float],
    rate: float,
) -> Cut:
    """Return the cheapest choice. free: values that cost nothing. bytes: infinite for values that cannot be kept.

    needed: the values that the backward pass reads. seconds: the time to compute each equation again. rate: the price of a
    byte.
    """
    network, makers = FlowNetwork(), {value: eqn for eqn in body for value in eqn.results}
    todo = [value for value in dict.fromkeys(needed) if value not in free]
    for value in todo:
        network.arc(SOURCE, value, INFINITE)
    seen, entered = set(todo), set[Equation]()
    while todo:
        value = todo.pop()
        eqn = makers.get(value)
        network.arc(value, SINK if eqn is None else eqn, rate * bytes(value))
        if eqn is None or eqn in entered:
            continue
        entered.add(eqn)
        network.arc(eqn, SINK, seconds[eqn])
        for operand in dict.fromkeys(eqn.operands):
            if operand not in free:
                network.arc(eqn, operand, INFINITE)
                todo += [operand] if operand not in seen else []
                seen.add(operand)
    side = network.source_side()
    return Cut(entered & side, {value for value in seen & side if makers.get(value) not in side})


# Loops


@frozen(eq=False)
class LoopPair:
    """A loop and its backward loop, which alone reads the stacks of `needed` values, slice by slice.

    needed: value of the forward region -> argument of the backward region.
    """

    forward: Equation
    backward: Equation
    needed: Mapping[Value, Value]


def loop_pairs(function: Function) -> Iterator[LoopPair]:
    """Yield each loop without `checkpoint` whose stacks a loop in the other direction reads."""
    readers = readers_and_outputs(function)
    for eqn in function.body:
        if not eqn.regions or eqn.attrs["checkpoint"]:
            continue
        outputs = zip(eqn.results, region_of(eqn).outputs, strict=True)
        stacks = {result: output.value for result, output in outputs if output.updates is None}
        for other in dict.fromkeys(each for value in stacks for each in readers.get(value, ())):
            if other is None or not _is_reverse(eqn, other):
                continue
            slices = {v: a.value for v, a in pairs(other) if a.role == "sliced"}
            alone = [value for value in stacks if readers.get(value) == [other] and value in slices]
            if alone:
                yield LoopPair(eqn, other, {stacks[value]: slices[value] for value in alone})
                break


def _is_reverse(eqn: Equation, other: Equation) -> bool:
    same = bool(other.regions) and dim_of(other) == dim_of(eqn)
    return same and other.attrs["reverse"] != eqn.attrs["reverse"]


Origin = Callable[[Value, Equation], tuple[list[Equation], Value]]
"""Returns the value that stands for an operand of a copied equation, and the equations that make it."""


class Copies:
    """Copies equations of a forward pass into a body of the backward pass, each once, before the first equation that reads
    it.
    """

    def __init__(self, again: Set[Equation], body: Sequence[Equation], names: Names, origin: Origin) -> None:
        """Copy the equations `again` of a body.

        names: makes the names of copies. origin: makes the value that stands for an operand which is not copied. new: forward
        value -> its copy.
        """
        self.names, self.origin = names, origin
        self.new: dict[Value, Value] = {}
        self._makers = {value: eqn for eqn in body if eqn in again for value in eqn.results}
        self._order = {eqn: i for i, eqn in enumerate(body)}

    def of(self, values: Iterable[Value]) -> Iterator[Equation]:
        """Yield the equations that make copies of the values, as far as they are not made yet."""
        wanted, todo = set[Equation](), list(values)
        while todo:
            eqn = self._makers.get(todo.pop())
            if eqn is not None and eqn not in wanted and eqn.results[0] not in self.new:
                wanted.add(eqn)
                todo += eqn.operands
        for eqn in sorted(wanted, key=self._order.__getitem__):
            yield from self._copy(eqn)

    def _copy(self, eqn: Equation) -> Iterator[Equation]:
        """Yield a copy of an equation for the backward pass, after the copies that it reads."""
        operands = []
        for value in eqn.operands:
            if value in self.new:
                operands.append(self.new[value])
                continue
            before, found = self.origin(value, eqn)
            yield from before
            operands.append(found)
        results = tuple(Value(self.names.fresh(value.name), value.type) for value in eqn.results)
        self.new.update(zip(eqn.results, results, strict=True))
        regions = tuple(map(fresh_copy, eqn.regions))
        yield attrs.evolve(eqn, operands=tuple(operands), results=results, regions=regions, stage="backward")


CARRIED: tuple[Value | None, Role] = (None, "carried")
SLICED: Role = "sliced"


class PairRewriter:
    """Rewrites one pair of loops: the forward loop stacks what is kept, and the backward loop computes the rest again."""

    def __init__(self, pair: LoopPair, cut: Cut, names: Names, is_placed: bool = True) -> None:
        """Rewrite a pair by its cut.

        given: the ends of the backward loop. inside: argument of the forward loop -> its operand and role.
        """
        self.pair, self.cut, self.names, self.is_placed = pair, cut, names, is_placed
        forward, backward = pair.forward, pair.backward
        self.region, self.inner = region_of(forward), region_of(backward)
        self.outputs, self.results = list(self.region.outputs), list(forward.results)
        self.given = list(pairs(backward))
        self.inside = {a.value: (v, a.role) for v, a in pairs(forward)}
        self.inner_names = names_of(self.inner)

    def run(self) -> tuple[Equation, Equation]:
        """Return the two new loops; `dce` drops the stacks that nothing reads."""
        again = {value for eqn in self.cut.again for value in eqn.results}
        replaced = {argument: value for value, argument in self.pair.needed.items() if value in again}
        copies = Copies(self.cut.again, self.region.body, self.inner_names, self._origin)
        body, new = list[Equation](), Substitution()

        def copied(values: Iterable[Value]) -> Iterator[Equation]:
            """Yield the equations that compute replaced values again, and map the values to their copies."""
            read = [value for value in values if value in replaced]
            yield from copies.of(replaced[value] for value in read)
            for value in read:
                new[value] = copies.new[replaced[value]]

        for eqn in self.inner.body:
            body += copied(eqn.operands)
            body.append(new.equation(eqn))
        body += copied(output.value for output in self.inner.outputs)
        region = attrs.evolve(self.region, outputs=tuple(self.outputs))
        forward = attrs.evolve(self.pair.forward, regions=(region,), results=tuple(self.results))
        inner = new.function(self.inner, body)
        kept = [(v, a) for v, a in self.given if a.value not in replaced]
        return forward, with_operands(self.pair.backward, inner, kept)

    def _origin(self, value: Value, eqn: Equation) -> tuple[list[Equation], Value]:
        """Return the argument of the backward region for a value of the forward region that is not computed again."""
        operand, role = self.inside.get(value, CARRIED)
        if operand is None or role == "carried":  # the loop itself gives its stack
            operand, role = self._stack(value), SLICED
        for given, argument in self.given:
            if given is operand and argument.role == role:
                return [], argument.value
        new = Value(self.inner_names.fresh(value.name), value.type)
        self.given.append((operand, Argument(new, role, layout=self._layout(value))))
        return [], new

    def _layout(self, value: Value) -> Mapping[str, Axes] | None:
        return shown_layout(value.type) if self.is_placed else None

    def _stack(self, value: Value) -> Value:
        """Return the stack of a value, which the forward loop gives anew if it does not yet."""
        for output, result in zip(self.outputs, self.results, strict=True):
            if output.value is value and output.updates is None:
                return result
        name = Names(output.name for output in self.outputs).fresh(f"{value.name}.kept")
        output = Output(name, value, layout=self._layout(value))
        result = Value(self.names.fresh(name), result_type(output, dim_of(self.pair.forward)))
        self.outputs.append(output)
        self.results.append(result)
        return result


def with_kept(function: Function, prices: Prices, words: Mapping[str, tuple[str, Dim]]) -> Function:
    """Return a global function whose loops keep what a word of `KEPT` says, or all, but what is made of the layers alone.

    words: dimension of loops -> word, if there is one, and the dimension of the batch, which nothing made of layers alone has.
    """
    names, new, plan = names_of(function), dict[Equation, Equation](), RewrittenStep(function)
    for pair in loop_pairs(function):
        word, batch = words.get(dim_of(pair.forward).name, ("", None))
        if batch is not None:
            found = Cut(_of_layers(region_of(pair.forward), batch), frozenset())
            if word:
                by_word = Rewriter(prices).cut_loop(pair, KeepingRule(RATES[1], keep=word), plan, 1)
                found = Cut(found.again | by_word.again, by_word.kept)
            new[pair.forward], new[pair.backward] = PairRewriter(pair, found, names, is_placed=False).run()
    body = [map_regions(new.get(e, e), lambda inner: with_kept(inner, prices, words)) for e in function.body]
    return live_only(attrs.evolve(function, body=tuple(body)))


def _of_layers(region: Function, batch: Dim) -> Set[Equation]:
    """Return the equations whose results have no batch, and depend on no carry."""
    known = {a.value for a in region.arguments if a.role != "carried"}
    found = set()
    for eqn in region.body:
        is_plain = not eqn.regions and not has_trait(eqn, "random") and batch not in eqn.results[0].type.dims
        if is_plain and known.issuperset(eqn.operands):
            known.update(eqn.results)
            found.add(eqn)
    return found


# Functions


@define
class Rewriter:
    """Rewrites functions by a choice."""

    prices: Prices

    def plan(self, function: Function, choice: KeepingRule) -> RewrittenStep:
        """Return the function rewritten by a rule, with its cost."""
        plan = RewrittenStep(function)
        plan.function = live_only(self._function(function, choice, plan, 1))
        return plan

    def _function(self, function: Function, choice: KeepingRule, plan: RewrittenStep, times: int) -> Function:
        """Rewrite the pairs of loops, then the bodies of loops, then the code outside. times: how often the function runs."""
        function = self._pairs(function, choice, plan, times)
        body = [self._loop(eqn, choice, plan, times) if eqn.regions else eqn for eqn in function.body]
        return self._straight(attrs.evolve(function, body=tuple(body)), choice, plan, times)

    def _loop(self, eqn: Equation, choice: KeepingRule, plan: RewrittenStep, times: int) -> Equation:
        region = self._function(region_of(eqn), choice, plan, times * dim_of(eqn).size)
        return attrs.evolve(eqn, regions=(region,)) if region is not region_of(eqn) else eqn

    def _pairs(self, function: Function, choice: KeepingRule, plan: RewrittenStep, times: int) -> Function:
        """Return a function in which each pair of loops is rewritten by its cut. times: how often the function runs."""
        new, names = dict[Equation, Equation](), names_of(function)
        for pair in loop_pairs(function):
            found = self.cut_loop(pair, choice, plan, times)
            if found.again and pair.forward not in new and pair.backward not in new:
                new[pair.forward], new[pair.backward] = PairRewriter(pair, found, names).run()
        if not new:
            return function
        return attrs.evolve(function, body=tuple(new.get(eqn, eqn) for eqn in function.body))

    def cut_loop(self, pair: LoopPair, choice: KeepingRule, plan: RewrittenStep, times: int) -> Cut:
        """Choose which values of a loop to keep for its backward loop, by a minimum cut of its region, and add their cost to
        the plan.

        Values that are stacked anyway, or that every iteration reads, are free. choice: what must be kept, and the price of a
        byte.
        """
        region, dim = region_of(pair.forward), dim_of(pair.forward)
        stacked = {output.value for output in region.outputs if output.updates is None}
        free = {a.value for a in region.arguments if a.role != "carried"}
        free |= (stacked - set(pair.needed)) | choice.forced

        def bytes(value: Value) -> float:
            is_no_slice = dim in value.type.dims or value.type.pending
            return inf if is_no_slice else dim.size * self.prices.bytes(value)

        seconds = {eqn: each * dim.size for eqn, each in self.prices.seconds(region).items()}
        seconds |= dict.fromkeys(KEPT[choice.keep or "full"](region.body), inf)
        found = cut(region.body, pair.needed, free, bytes, seconds, choice.rate)
        plan.seconds += times * sum(seconds[eqn] for eqn in found.again)
        used = {value for eqn in found.again for value in eqn.operands} | set(pair.needed)
        plan.kept.update((v, int(bytes(v))) for v in found.kept | (used & choice.forced))
        return found

    def _straight(self, function: Function, choice: KeepingRule, plan: RewrittenStep, times: int) -> Function:
        """Copy equations of the function itself, but no loops."""
        code = StraightCode(function)
        needed = code.needed()
        if not needed or choice.keep:
            return function
        free = code.fixed | set(code.crossing(choice.stretches, self.prices)) | choice.forced
        seconds = self.prices.seconds(function)
        found = cut(code.forward, needed, free, self.prices.bytes, seconds, choice.rate)
        plan.seconds += times * sum(seconds[eqn] for eqn in found.again)
        used = {value for eqn in found.again for value in eqn.operands} | needed
        plan.kept.update((v, self.prices.bytes(v)) for v in found.kept | (used & choice.forced))
        return code.rewritten(found, self.prices.mesh) if found.again else function


@frozen
class StraightCode:
    """The equations of a function outside of loops. forward: those that may run again."""

    function: Function

    @cached_property
    def forward(self) -> list[Equation]:
        return [eqn for eqn in self.function.body if _may_run_again(eqn)]

    @cached_property
    def fixed(self) -> set[Value]:
        """Return the values that are there in any case: arguments, outputs, results of loops, and what the update reads."""
        found = {argument.value for argument in self.function.arguments}
        found.update(output.value for output in self.function.outputs)
        for eqn in self.function.body:
            found.update(eqn.operands if eqn.stage == "update" else ())
            found.update(eqn.results if not _may_run_again(eqn) else ())
        return found

    def needed(self) -> set[Value]:
        """Return the values of the forward pass that equations of the backward pass read."""
        made = {value for eqn in self.forward for value in eqn.results} - self.fixed
        read = {value for eqn in self.function.body if eqn.stage == "backward" for value in eqn.operands}
        return made & read

    def crossing(self, stretches: int, prices: Prices) -> Iterator[Value]:
        """Yield the values that cross from one stretch of the forward pass to a later one."""
        body = [eqn for eqn in self.function.body if eqn.stage == "forward"]
        made = {value: i for i, eqn in enumerate(body) for value in eqn.results}
        last = {value: i for i, eqn in enumerate(body) for value in eqn.operands if value in made}
        changes, sizes = [0] * (len(body) + 1), [0] * (len(body) + 1)
        for value, end in last.items():
            changes[made[value]] += prices.bytes(value)
            changes[end] -= prices.bytes(value)
            sizes[made[value]] += prices.bytes(value)
        crossing, reached = list(accumulate(changes)), list(accumulate(sizes))
        for k in range(1, stretches):
            around = [
                i
                for i, size in enumerate(reached)
                if abs(size * stretches - k * reached[-1]) <= reached[-1] / 2 and i < len(body) - 1
            ]
            if around:
                at = min(around, key=crossing.__getitem__)
                yield from (value for value, end in last.items() if made[value] <= at < end)

    def rewritten(self, found: Cut, mesh: Mesh) -> Function:
        """Return the function with copies in front of the equations of the backward pass that read them.

        found: the equations to copy.
        """
        again = {value for eqn in found.again for value in eqn.results} & self.needed()
        holder = _Holder(mesh, names_of(self.function), frozenset(a.value for a in self.function.arguments))
        copies = Copies(found.again, self.forward, holder.names, holder.held)
        body = list[Equation]()
        for eqn in self.function.body:
            replaced = [v for v in eqn.operands if v in again] if eqn.stage == "backward" else []
            body += copies.of(replaced)
            body.append(Substitution({v: copies.new[v] for v in replaced}).equation(eqn))
            holder.reached(eqn)
        return attrs.evolve(self.function, body=tuple(body))


def _may_run_again(eqn: Equation) -> bool:
    """False for equations of other stages, loops, and draws that depend on nothing, which XLA would not draw again."""
    is_bare = has_trait(eqn, "random") and not eqn.operands
    return eqn.stage == "forward" and not eqn.regions and not is_bare


@define
class _Holder:
    """Puts operands of copies behind the last array that is stored before them, by `after`.

    latest: the last arrays by the mesh axes along which they vary, the last of all at the end. In JAX an array varies also where
    the array before it does, so that one may vary along no other axes.
    """

    mesh: Mesh
    names: Names
    arguments: frozenset[Value]
    latest: dict[Axes, Value] = attrs.field(factory=dict)
    found: dict[tuple[Value, Value], Value] = attrs.field(factory=dict)

    def reached(self, eqn: Equation) -> None:
        """Note the last array that is stored, by the axes along which it varies."""
        if eqn.operands and storage(eqn) in ("kernel", "reduced", "lookup"):
            axes = eqn.results[0].type.varying(self.mesh)
            self.latest.pop(axes, None)
            self.latest[axes] = eqn.results[0]

    def before(self, value: Value) -> Value | None:
        """Return the last array that a value may stand behind."""
        varying = set(value.type.varying(self.mesh))
        return next((each for axes, each in reversed(self.latest.items()) if varying.issuperset(axes)), None)

    def held(self, value: Value, eqn: Equation) -> tuple[list[Equation], Value]:
        """Return the operand of a copy of `eqn`. Arguments stay as they are where another operand is held."""
        is_given = value in self.arguments and not self.arguments.issuperset(eqn.operands)
        before = self.before(value)
        if before is None or is_given or not value.type.dims:
            return [], value
        key = value, before
        if key in self.found:
            return [], self.found[key]
        self.found[key] = Value(self.names.fresh(value.name), value.type)
        layout = shown_layout(value.type)
        made = Equation("after", key, (self.found[key],), span=eqn.span, stage="backward", layout=layout)
        return [made], self.found[key]


def _waiting(function: Function, mesh: Mesh) -> Function:
    """Return the function in which each `after` that waits for nothing waits for the last array stored before it."""
    holder, body = _Holder(mesh, Names(), frozenset()), list[Equation]()
    for eqn in function.body:
        if has_trait(eqn, "after") and len(eqn.operands) == 1:
            before = holder.before(eqn.operands[0])
            eqn = eqn if before is None else attrs.evolve(eqn, operands=(*eqn.operands, before))
        regions = tuple(_waiting(region, mesh) for region in eqn.regions)
        body.append(attrs.evolve(eqn, regions=regions) if regions != eqn.regions else eqn)
        holder.reached(eqn)
    return attrs.evolve(function, body=tuple(body)) if body != [*function.body] else function
