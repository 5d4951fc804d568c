"""fuse-attention: make one op of a softmax between two dots over the same dimensions.

The pass finds the softmax by its `exp`: the exponentials of logits less their maximum are summed, and divided by the sum before
or after they are multiplied with values. Between the dot of queries and keys and the softmax may stand, in this order, factors,
a soft cap, biases, and masks whose other number is a constant. Of a mask the pass separates what compares indices, such as a
causal mask or a window, and what compares the elements of two sequences, such as segment ids. Any other softmax stays as it is,
also one whose weights are used otherwise; `reasons` says why.

The op never stores its logits. Separate ops are faster where there are few keys, so a softmax over less than `least` elements
stays as it is.

Input:   %s = einsum %q, %k dims=[length, memory]; %e = exp (%s - max %s); %o = div (einsum %e, %v), (sum %e over=[memory])
Output:  %o, %largest, %total = attention %q, %k, %v memory=[memory] ...
After this pass no such softmax over `least` elements or more is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import ClassVar

import attrs

from mtfc.compiler.analysis.body_scope import BodyScope, differences, index_of, repeats
from mtfc.compiler.analysis.liveness import readers_and_outputs
from mtfc.compiler.ir.builder import Builder, Names, Substitution, names_of
from mtfc.compiler.ir.core import Equation, Function, Program, Value, walk
from mtfc.compiler.ir.loops import map_regions
from mtfc.compiler.ir.opdef import Trait
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.ops.contraction import reduced_dims
from mtfc.compiler.ir.ops.reductions import over
from mtfc.compiler.ir.types import FLOATS, Dim
from mtfc.compiler.ir.verifier import Level
from mtfc.compiler.passes.attention_dropout import Dropout, dropout_of
from mtfc.compiler.passes.attention_gradients import (
    ARITHMETIC,
    AttentionParts,
    Condition,
    GradientMatch,
    Gradients,
)
from mtfc.compiler.passes.cse import share
from mtfc.compiler.passes.dce import live_only, used_values
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.passes.simplify import simplified
from mtfc.compiler.records import define, frozen

CHANGES: tuple[Trait, ...] = ("choice", "add", "multiply", "divide")
"""Traits of the ops that may stand between the dot and the softmax, beside the soft cap."""


@frozen
class FuseAttention(Pass):
    """least: the smallest number of elements of a softmax. gradients: True to make ops of gradients that the program has, too.

    These ops have no gradients of their own, so gradients stay separate ops where the program is differentiated.
    """

    name: ClassVar[str] = "fuse-attention"
    takes: ClassVar[tuple[Level, ...]] = ("global",)
    least: int = 1024
    gradients: bool = True

    def run(self, program: Program) -> Program:
        """Return the program with attention ops; a function in which nothing is fused stays as it was."""
        options = FusionOptions(self.least, self.gradients and not is_trained(program))

        def changed(function: Function) -> Function:
            """Return the function with attention ops, or as it was if there is no attention."""
            plain = prepared(function, program, self.least)
            found = fused(BodyScope.of(plain), options)
            return function if found is plain else found

        return program.map_functions(changed)


@frozen
class FusionOptions:
    """The options of the pass for one program."""

    least: int
    gradients: bool


def is_trained(program: Program) -> bool:
    """Return True if the compiler differentiates the program."""
    return program.training is not None and bool(program.training.updates)


class Unfused(Exception):
    """A softmax between two dots does not have the form of the op: `args[0]` says why."""


@frozen
class Reason:
    """A softmax between two dots that stays as it is, and why. eqn: the equation of its exponentials."""

    eqn: Equation
    text: str


def prepared(function: Function, program: Program, least: int) -> Function:
    """Return a function without copies, repetitions and detours around masks, if it may have attention.

    In a program that trains, casts that change nothing say which values stay wide, so these stay.

    least: the fewest keys that are worth a fusion.
    """
    is_plain = program.training is None
    sums = (over(eqn) for eqn in walk(function.body) if has_trait(eqn, "sum"))
    if not is_plain or not any(prod(dim.size for dim in dims) >= least for dims in sums):
        return function
    named = program.named_values
    return live_only(share(simplified(live_only(function), named), named))


def fused(scope: BodyScope, options: FusionOptions) -> Function:
    """Return the function of a scope with attention as single ops, of enough keys; the same object if there is none."""
    found, _ = sorted_out(scope, options)
    changed = _replaced(scope.function, found) if found else scope.function

    def inside(loop: Equation) -> Equation:
        return map_regions(loop, lambda region: fused(BodyScope.of(region, loop, scope), options))

    body = tuple(map(inside, changed.body))
    is_same = all(a is b for a, b in zip(body, changed.body, strict=True))
    return changed if is_same else attrs.evolve(changed, body=body)


def sorted_out(scope: BodyScope, options: FusionOptions) -> tuple[list[Attention], list[Reason]]:
    """Return the attention that a function has, and the softmaxes between two dots that stay as they are.

    One whose logits or weights are needed otherwise stays.
    """
    readers, found, refused = readers_and_outputs(scope.function), list[Attention](), list[Reason]()
    for eqn in scope.function.body:
        if has_trait(eqn, "exponential"):
            try:
                attention = Match(scope, readers, eqn, options).attention()
            except Unfused as why:
                refused.append(Reason(eqn, str(why)))
            else:
                found += [attention] if attention else []
    while found:
        live = used_values(_replaced(scope.function, found))
        needed = {id(each): each.what_else_is_used(live) for each in found}
        if not any(needed.values()):
            break
        for each in found:
            if text := needed[id(each)]:
                refused.append(Reason(each.exponential, f"the {text} are used otherwise, too"))
        found = [each for each in found if not needed[id(each)]]
    return found, refused


def _replaced(function: Function, attentions: Sequence[Attention]) -> Function:
    """Return a function with attention, and its gradients, as ops."""
    names, same = names_of(function), Substitution()
    before: dict[Equation, list[Equation]] = {}
    after: dict[Equation, list[Equation]] = {}
    replaced = set[Equation]()
    for each in attentions:
        attention = each.equations(names)
        if each.last is not None:
            replaced.add(each.last)
        after[each.last or each.exponential] = attention
        if each.gradients is not None:
            first = next(eqn for eqn in function.body if eqn in {sink.eqn for sink in each.gradients.sinks})
            before[first] = each.gradient_equations(names, attention, same)
            replaced |= {sink.eqn for sink in each.gradients.sinks}
    body = [
        same.equation(new)
        for eqn in function.body
        for new in (*before.get(eqn, ()), *([] if eqn in replaced else [eqn]), *after.get(eqn, ()))
    ]
    return live_only(same.function(function, in_order(body)))


def in_order(body: Sequence[Equation]) -> list[Equation]:
    """Return equations in an order in which each one stands behind the equations that define its operands, else in the given
    order.
    """
    makers = {value: eqn for eqn in body for value in eqn.results}
    placed, work, found = set[int](), [*reversed(body)], list[Equation]()
    while work:
        eqn = work.pop()
        if id(eqn) in placed:
            continue
        missing = [makers[x] for x in eqn.operands if x in makers and id(makers[x]) not in placed]
        if missing:
            work += [eqn, *missing]
        else:
            placed.add(id(eqn))
            found.append(eqn)
    return found


def reasons(program: Program, least: int = 1024) -> list[Reason]:
    """Return the softmaxes between two dots, over `least` elements or more, that stay as they are."""

    options = FusionOptions(least, not is_trained(program))

    def inside(scope: BodyScope) -> Iterator[Reason]:
        """Yield why softmaxes in a body, and in the loops in it, are no attention."""
        yield from sorted_out(scope, options)[1]
        for eqn in scope.function.body:
            for region in eqn.regions:
                yield from inside(BodyScope.of(region, eqn, scope))

    functions = (prepared(function, program, least) for function in program.functions)
    return [each for function in functions for each in inside(BodyScope.of(function))]


@define
class Masks:
    """The masks of logits.

    rows, columns: the row and the column of a band, if there is one. low, high: the least and the largest difference of their
    indices. ids: pairs of values whose equal elements count, and whether they are one sequence. others: masks of any other kind,
    and whether logits count where they hold. fill: the number of logits that do not count. conditions: the masks as they are
    written.
    """

    rows: tuple[Dim, ...] = ()
    columns: tuple[Dim, ...] = ()
    low: int | None = None
    high: int | None = None
    ids: list[tuple[Value, Value, bool]] = attrs.field(factory=list)
    others: list[tuple[Value, bool]] = attrs.field(factory=list)
    fill: float = 0.0
    conditions: list[Condition] = attrs.field(factory=list)

    def add_band(self, row: Dim, column: Dim, low: int | None, high: int | None) -> bool:
        """Add a band; return False if there is one of other dimensions."""
        if self.rows and (self.rows, self.columns) != ((row,), (column,)):
            return False
        self.rows, self.columns = (row,), (column,)
        self.low = max((x for x in (self.low, low) if x is not None), default=None)
        self.high = min((x for x in (self.high, high) if x is not None), default=None)
        return True


Use = tuple[str, Equation | None]
"""A value that an equation reads, by a word for it, and the equation; None for an output."""


@frozen(eq=False, kw_only=True)
class Attention(AttentionParts):
    """A softmax between two dots that becomes one op.

    last: the equation whose result it is; None if only the gradients are used. uses: equations that must go, because they read
    logits or weights.
    """

    last: Equation | None
    cap: float | None
    masks: Masks
    uses: Sequence[Use]
    gradients: Gradients | None = None

    def what_else_is_used(self, live: set[Value]) -> str:
        """Return the name of the values that equations of a changed function still read, or an empty text."""
        others = (what for what, eqn in self.uses if eqn is None or not live.isdisjoint(eqn.results))
        return next(others, "weights" if self.exponential.result in live else "")

    def equations(self, names: Names) -> list[Equation]:
        """Return the equation of the op, and those that scale the queries."""
        place = self.last or self.exponential
        build, masks = Builder(names, place.span, place.stage), self.masks
        dtype = wider(
            [x.type.dtype for x in (self.q, self.k, *([self._v] if self.last is None else [place.result]))]
        )
        q, k, v = (build.cast(x, dtype) for x in (self.q, self.k, self._v))
        for op, factor in self.factors:
            q = build(op, q, build.cast(factor, dtype))
        biases = [x if is_added else build("neg", x) for x, is_added in self.biases]
        masks_of_values = [x if counts else build("not", x) for x, counts in masks.others]
        roles = ["bias"] * len(biases) + ["mask"] * len(masks_of_values)
        roles += ["same_ids" if same else "ids" for _, _, same in masks.ids]
        dropout_masks = [] if self.dropout is None else [self.dropout.keeps(build)]
        roles += ["keep"] * len(dropout_masks)
        limits = {"low": masks.low, "high": masks.high, "cap": self.cap}
        result, *_ = build.several(
            "attention",
            *(q, k, v, *biases, *masks_of_values),
            *(value for left, right, _ in masks.ids for value in (left, right)),
            *dropout_masks,
            names=("attention" if self.last is None else place.result.name, "largest", "total"),
            depth=reduced_dims(self.dot),
            memory=self.memory,
            dims=self._result_dims(),
            roles=" ".join(roles),
            rows=masks.rows,
            columns=masks.columns,
            fill=masks.fill,
            **{name: x for name, x in limits.items() if x is not None},
        )
        if self.last is None:
            return build.body
        result = result if self.dropout is None else self.dropout.scaled(build, result)
        if dtype != place.result.type.dtype:
            build.cast(result, place.result.type.dtype)
        *before, end = build.body
        return [*before, attrs.evolve(end, results=(place.result, *end.results[1:]), path=place.path)]

    @property
    def _v(self) -> Value:
        """Return the values that are weighted, in the forward pass or in its gradients."""
        found = self.v if self.gradients is None or self.v is not None else self.gradients.v
        assert found is not None, "there is a result or a gradient"
        return found

    def _result_dims(self) -> tuple[Dim, ...]:
        """Return the dimensions of the weighted mean; without the mean, all dimensions of rows and values."""
        if self.last is not None:
            return self.last.result.type.dims
        rest = dict.fromkeys(dim for x in (self.dot.result, self._v) for dim in x.type.dims)
        return tuple(dim for dim in rest if dim not in self.memory)

    def gradient_equations(
        self, names: Names, attention: Sequence[Equation], same: Substitution
    ) -> list[Equation]:
        """Return the equations of the gradients; `same` maps the results of the old ones to the new ones."""
        assert self.gradients is not None
        (eqn,) = (each for each in attention if has_trait(each, "attention"))
        build = Builder(names, self.gradients.sinks[0].eqn.span, "backward")
        given, type = self.gradients.cotangent, eqn.results[0].type
        one = build.like(1.0, eqn.results[0]) if given is None else build.cast(given, type.dtype)
        cotangent = build.broadcast(one, type)
        found = OPS[eqn.op].gradient(build, eqn, (cotangent,))
        for sink in self.gradients.sinks:
            gradient = found[sink.operand]
            assert gradient is not None
            build.span, build.stage = sink.eqn.span, sink.eqn.stage
            same[sink.eqn.result] = sink.value(build, gradient)
        return build.body


def wider(dtypes: Sequence[str]) -> str:
    """Return a dtype that has all numbers of dtypes of floats."""
    first, *others = dict.fromkeys(dtypes)
    return first if not others else "f64" if "f64" in dtypes else "f32"


Mean = tuple[Equation | None, Value | None, Dropout | None, Unfused | None]
"""The equation of a weighted mean, the values that it is the mean of, dropout of the weights; and why there is none."""


@frozen
class Match:
    """The search for attention around the exponentials of a softmax.

    readers: value -> the equations that read it, and None for each output. uses: equations that must go with the softmax.
    """

    scope: BodyScope
    readers: Mapping[Value, Sequence[Equation | None]]
    exponential: Equation
    options: FusionOptions
    uses: list[Use] = attrs.field(factory=list)

    def attention(self) -> Attention | None:
        """Return the attention; None for anything but a softmax between two dots, over enough elements.

        Raises `Unfused`.
        """
        shifted = self.scope.definition(self.exponential.operands[0], "subtract")
        largest = shifted and self.scope.definition(self.scope.source(shifted.operands[1]), "largest")
        total = self._total(over(largest)) if largest else None
        if not shifted or not largest or not total:
            self._refuse_other_form()
            return None
        logits, memory = self.scope.source(shifted.operands[0]), over(largest)
        if prod(dim.size for dim in memory) < self.options.least:
            return None
        if self.scope.source(largest.operands[0]) != logits or not self._comes_from_dot(logits):
            return None
        if not any(has_trait(eqn, "dot") for eqn in self._reductions(self.exponential.result, memory)):
            return None
        last, v, dropout, why = self._dropped_mean(memory, total) or self._mean(memory, total)
        self._only(logits, "logits", shifted, largest)
        found = attrs.evolve(self._with_queries(logits, memory, total, last, v), dropout=dropout)
        has_flag = dropout is not None and dropout.flag is not None
        gradients = self._gradients(found) if self.options.gradients and not has_flag else None
        if why is not None and gradients is None:
            raise why
        return attrs.evolve(found, gradients=gradients)

    def _readers(self, value: Value) -> list[Equation | None]:
        """Return the equations that read a value, or that read a repetition of the value; None for each output."""
        found: list[Equation | None] = []
        for eqn in self.readers.get(value, ()):
            found += self._readers(eqn.result) if eqn is not None and repeats(eqn) else [eqn]
        return found

    def _only(self, value: Value, what: str, *wanted: Equation) -> None:
        """Note that the fusion is only right if no other equation reads a value."""
        self.uses.extend((what, eqn) for eqn in self._readers(value) if eqn not in wanted)

    def _comes_from_dot(self, value: Value) -> bool:
        """Return True if a value is a dot, changed only by elementwise ops."""
        eqn = self.scope.definition(self.scope.uncast(value), "dot", *CHANGES, "subtract", "hyperbolic")
        if eqn is None or has_trait(eqn, "dot"):
            return eqn is not None and len(eqn.operands) == 2 and bool(reduced_dims(eqn))
        return any(map(self._comes_from_dot, self._as_large(eqn)))

    def _as_large(self, eqn: Equation) -> list[Value]:
        """Return the float operands with all dimensions of the result."""
        dims = {*eqn.result.type.dims}
        return [x for x in eqn.operands if {*x.type.dims} == dims and x.type.dtype in FLOATS]

    def _reductions(
        self, value: Value, dims: Sequence[Dim] = (), changes: tuple[Trait, ...] = CHANGES
    ) -> Iterator[Equation]:
        """Yield the dots and sums with these dimensions of values that masks and `changes` compute from a value."""
        work, seen = [value], set[Value]()
        while work:
            for eqn in filter(None, self._readers(work.pop())):
                if has_trait(eqn, "dot", "sum"):
                    yield eqn
                is_elementwise = has_trait(eqn, *changes, "mask") and {*dims} <= {*eqn.result.type.dims}
                if is_elementwise and eqn.result not in seen:
                    seen.add(eqn.result)
                    work.append(eqn.result)

    def _refuse_other_form(self) -> None:
        """Raise `Unfused` for a softmax between two dots whose exponentials are not shifted or summed as those of the op."""
        logits, subtracted = self.exponential.operands[0], list[Value]()
        while eqn := self.scope.definition(self.scope.uncast(logits), "subtract"):
            logits = eqn.operands[0]
            subtracted.append(self.scope.source(eqn.operands[1]))
        if not self._comes_from_dot(logits):
            return
        changes: tuple[Trait, ...] = ("choice", "multiply", "divide")
        reductions = [*self._reductions(self.exponential.result, changes=changes)]
        sums = [{*over(eqn)} for eqn in reductions if has_trait(eqn, "sum")]
        for dot in reductions:
            memory = {*reduced_dims(dot)} & {*logits.type.dims} if has_trait(dot, "dot") else set[Dim]()
            is_softmax = memory in sums or any(memory.isdisjoint(x.type.dims) for x in subtracted)
            if memory and is_softmax and prod(dim.size for dim in memory) >= self.options.least:
                raise Unfused(
                    "its weights are not computed as `exp(s - max(s))`, divided by the sum of all exponentials"
                )

    # From the exponentials to the result

    def _total(self, memory: tuple[Dim, ...]) -> Value | None:
        """Return the sum of the exponentials."""
        sums = (x for x in self._readers(self.exponential.result) if x and has_trait(x, "sum"))
        return next((x.result for x in sums if {*over(x)} == {*memory}), None)

    def _mean(self, memory: tuple[Dim, ...], total: Value) -> Mean:
        """Return the equation of the weighted mean and the values that it is the mean of; or else why there is none.

        total: the sum of the exponentials.
        """
        weights = self.exponential.result
        why, makers = Unfused("the weights are used otherwise, too"), self.scope.makers
        for eqn in filter(None, self._readers(weights)):
            divided = self._divided(eqn, weights, total)
            for after in filter(None, self._readers(eqn.result)) if eqn.result != total else ():
                dot, last = (after, after) if divided else (eqn, after)
                if not has_trait(dot, "dot") or len(dot.operands) != 2 or {*reduced_dims(dot)} != {*memory}:
                    why = Unfused("the weights are changed before they are multiplied with values")
                elif not divided and not self._divided(last, dot.result, total):
                    why = Unfused("the sum of the exponentials is used otherwise")
                else:
                    source = eqn.result if divided else weights
                    self._only(weights, "weights", makers[total], eqn)
                    self._only(eqn.result, "weights", after)
                    self._only(total, "sums of the exponentials", eqn if divided else last)
                    (v,) = [x for x in dot.operands if self.scope.source(x) != source] or [source]
                    if not {*memory} <= {*v.type.dims}:
                        raise Unfused("the values lack a dimension of the softmax")
                    return last, v, None, None
        return None, None, None, why

    def _dropped_mean(self, memory: tuple[Dim, ...], total: Value) -> Mean | None:
        """Return the mean of values whose weights pass a dropout first, as `_mean` does, and the dropout.

        total: the sum of the exponentials.
        """
        readers = filter(None, self._readers(self.exponential.result))
        weights = next((x.result for x in readers if self._divided(x, self.exponential.result, total)), None)
        if weights is None:
            return None
        for dot in self._reductions(weights, memory, ("choice", "multiply", "divide")):
            if not has_trait(dot, "dot") or len(dot.operands) != 2 or {*reduced_dims(dot)} != {*memory}:
                continue
            for i, x in enumerate(dot.operands):
                dropout, v = dropout_of(self.scope, x, weights), dot.operands[1 - i]
                if dropout is not None and {*memory} <= {*v.type.dims}:
                    return dot, v, dropout, None
        return None

    def _divided(self, eqn: Equation, value: Value, total: Value) -> bool:
        """Return True for the equation that divides a value by the sum of the exponentials."""
        is_quotient = has_trait(eqn, "divide") and self.scope.source(eqn.operands[0]) == value
        return is_quotient and self.scope.source(eqn.operands[1]) == total

    def _gradients(self, found: Attention) -> Gradients | None:
        """Return the gradients of the attention that the function has."""
        sums = self._reductions(self.exponential.result, found.memory, (*ARITHMETIC, "choice"))
        return GradientMatch(found, [*dict.fromkeys(sums)], self.scope).gradients()

    # From the exponentials to the dot

    def _with_queries(
        self, logits: Value, memory: tuple[Dim, ...], total: Value, last: Equation | None, v: Value | None
    ) -> Attention:
        """Return the attention, by the equations from the logits back to the dot of queries and keys.

        total: the sum of the exponentials. last: the equation of the weighted mean.
        """
        masks = Masks()
        value = self._masks(logits, masks, memory)
        biases: list[tuple[Value, bool]] = []
        while (eqn := self.scope.definition(value, "add", "subtract")) is not None:
            value, bias = self._inner(eqn)
            is_zero = self.scope.number(bias) == 0
            biases += [] if is_zero else [(self.scope.uncast(bias), has_trait(eqn, "add"))]
        value, cap, squashed = self._cap(value)
        factors: list[tuple[str, Value]] = []
        while (eqn := self.scope.definition(value, "multiply", "divide")) is not None:
            value, factor = self._inner(eqn)
            factors.append((eqn.op, factor))
        dot = self.scope.definition(value, "dot")
        if dot is None or len(dot.operands) != 2:
            raise Unfused(
                "its logits are changed by other ops than a factor, a soft cap, biases and masks, in this order"
            )
        q, k = sorted(dot.operands, key=lambda x: not {*memory}.isdisjoint(x.type.dims))
        if not {*memory}.isdisjoint(q.type.dims) or not {*memory} <= {*k.type.dims}:
            raise Unfused("its queries have a dimension of the softmax")
        depth, logits_dims = reduced_dims(dot), {*dot.result.type.dims}
        if any({*x.type.dims} - logits_dims != {*depth} for x in (q, k)):
            raise Unfused("its queries and keys are not contracted over the same dimensions")
        if v is not None and {*k.type.dims} - {*depth} != {*v.type.dims} & logits_dims:
            raise Unfused("its keys and values have different dimensions")
        if any(not {*factor.type.dims} <= {*q.type.dims} for _, factor in factors):
            raise Unfused("its logits are scaled by a factor that the queries cannot have")
        q, k, v = self.scope.uncast(q), self.scope.uncast(k), None if v is None else self.scope.uncast(v)
        return Attention(
            self.exponential, total, dot, q, k, v, memory, factors[::-1], squashed, biases[::-1], masks.conditions,
            last=last, cap=cap, masks=masks, uses=self.uses,
        )  # fmt: skip

    def _inner(self, eqn: Equation) -> tuple[Value, Value]:
        """Return the operand that comes from the dot, without casts, and the other operand. Only this equation may read it."""
        found = [x for x in self._as_large(eqn) if self._comes_from_dot(x)]
        if len(found) != 1 or (has_trait(eqn, "divide", "subtract") and eqn.operands[0] != found[0]):
            raise Unfused("its logits come from two dots")
        (other,) = [x for x in eqn.operands if x != found[0]] or found
        inner = self.scope.uncast(found[0])
        self._only(inner, "logits", eqn)
        return inner, other

    def _cap(self, value: Value) -> tuple[Value, float | None, Value | None]:
        """Return the operand of a soft cap, `cap * tanh(x / cap)`, the cap, and the tanh."""
        scaled = self.scope.definition(value, "multiply")
        operands = map(self.scope.uncast, scaled.operands if scaled else ())
        squashed = next(filter(None, (self.scope.definition(x, "hyperbolic") for x in operands)), None)
        if scaled is None or squashed is None:
            return value, None, None
        inner, cap = self.scope.uncast(squashed.operands[0]), self.scope.number(self._inner(scaled)[1])
        divided = self.scope.definition(inner, "divide", "multiply")
        self._only(inner, "logits", squashed)
        if divided is None or cap is None:
            raise Unfused("its soft cap is not of the form `cap * tanh(x / cap)`")
        source, number = self._inner(divided)
        factor = self.scope.number(number)
        if factor is None or cap != (factor if has_trait(divided, "divide") else factor and 1 / factor):
            raise Unfused("its soft cap is not of the form `cap * tanh(x / cap)`")
        return source, float(cap), squashed.result

    def _masks(self, value: Value, masks: Masks, memory: tuple[Dim, ...]) -> Value:
        """Add the masks in front of a value, and return the logits that they mask."""
        fills = set[float]()
        value = self.scope.uncast(value)
        while (eqn := self.scope.definition(value, "choice")) is not None:
            condition, *pair = eqn.operands
            numbers = [*map(self.scope.number, pair)]
            holds = numbers[1] is not None
            inner, fill = (pair[0], numbers[1]) if holds else (pair[1], numbers[0])
            if fill is None or not self._comes_from_dot(inner):
                raise Unfused("its mask chooses between logits and values that are no constant")
            value = self.scope.uncast(inner)
            self._only(value, "logits", eqn)
            if self.scope.number(condition) is not holds:
                fills.add(float(fill))
                masks.conditions.append(Condition(self.scope.source(condition), holds))
                self._mask(condition, holds, masks, memory)
        if len(fills) > 1:
            raise Unfused("its masks have different numbers")
        masks.fill = next(iter(fills), 0.0)
        return value

    def _mask(self, condition: Value, holds: bool, masks: Masks, memory: tuple[Dim, ...]) -> None:
        """Add a mask: the parts of a conjunction one by one. holds: False if logits count where the condition does not hold."""
        value = self.scope.source(condition)
        eqn, scope = self.scope.definition_in_scopes(value)
        if holds and scope is self.scope and eqn is not None and has_trait(eqn, "conjunction"):
            for part in eqn.operands:
                self._mask(part, holds, masks, memory)
        elif self.scope.number(value) is not holds and not self._is_band(value, holds, masks, memory):
            pair = self._ids(value, memory) if holds else None
            (masks.ids.append(pair) if pair else masks.others.append((value, holds)))

    def _is_band(self, value: Value, holds: bool, masks: Masks, memory: tuple[Dim, ...]) -> bool:
        """Add a mask that compares an index of `memory` with one of the queries; return False if it does anything else."""
        eqn, scope = self.scope.definition_in_scopes(value)
        while eqn is not None and has_trait(eqn, "broadcast", "transpose"):
            eqn, scope = scope.definition_in_scopes(eqn.operands[0])
        if eqn is None or not has_trait(eqn, "order"):
            return False
        left, right = (index_of(scope, x) for x in eqn.operands)
        if left is None or right is None:
            return False
        weights, constant = left.minus(right)
        if sorted(weights.values()) != [-1, 1]:
            return False
        row, column = sorted(weights, key=lambda dim: dim in memory)
        if row in memory or column not in memory:
            return False
        low, high = differences(eqn, weights[row], constant)
        if not holds:
            low, high = (None, low - 1) if low is not None else (high + 1 if high is not None else None, None)
        return masks.add_band(row, column, low, high)

    def _ids(self, value: Value, memory: tuple[Dim, ...]) -> tuple[Value, Value, bool] | None:
        """Return two values whose equal elements count, and whether they are one sequence; None for another mask."""
        eqn = self.scope.definition(value, "equality")
        if eqn is None or eqn.operands[0].type.dtype != "i32":
            return None
        left, right = sorted(
            map(self.scope.source, eqn.operands), key=lambda x: not {*memory}.isdisjoint(x.type.dims)
        )
        if not {*memory}.isdisjoint(left.type.dims) or len(memory) != 1 or memory[0] not in right.type.dims:
            return None
        renamed = self.scope.definition(right, "rename")
        return left, right, renamed is not None and renamed.operands[0] == left
