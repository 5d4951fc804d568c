"""Wide sums: gradients of parameters are summed in a wider dtype than the backward pass computes in (`reduce` of `precision`).

A gradient that is computed in bf16 and stored in f32 ends in a cast. This module moves the cast towards the start of the
gradient: in front of additions and other equations that are linear in all their operands, and into loops. So these sums are in
f32:

- the sum of a parameter's uses;
- the sum that a loop carries over its iterations, for a parameter that all iterations share;
- the sum over processors. Each cast has the attribute `sums`, by which `place-reductions` completes pending sums after the cast.

A dot still rounds its result to bf16 on each processor, after it has accumulated in 32 bits.

Input:   %a: bf16[io] = sum %x; %b: bf16[io] = einsum ...; %c: bf16[io] = add %a, %b; %d_w: f32[io] = cast %c
Output:  %x_2: f32[batch, io] = cast %x sums=true; %a: f32[io] = sum %x_2; %b_2: f32[io] = cast %b sums=true; %d_w = add %a, %b_2
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import attrs

from mtfc.compiler.ir.builder import Builder, Names, Substitution, is_narrow, names_of
from mtfc.compiler.ir.core import Attr, Equation, Function, Output, Value
from mtfc.compiler.ir.loops import carried, pairs, region_of
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.sharding_rules import is_sum_of_all
from mtfc.compiler.passes.autodiff.backward import only_reader


def with_wide_sums(
    builder: Builder, gradients: Mapping[Value, Value], dtype: str, outputs: Iterable[Output]
) -> dict[Value, Value]:
    """Widen the sums in the builder's body to `dtype`; return the gradient of each parameter there.

    outputs: what else the body computes, and so keeps its type.
    """
    used = [*(output.value for output in outputs), *gradients.values()]
    rewriter = SumWidener(builder.names, builder.body, used, dtype)
    new = rewriter.run(gradients.values())
    builder.body[:] = rewriter.body
    return {parameter: new[gradient] for parameter, gradient in gradients.items()}


def _is_linear(eqn: Equation) -> bool:
    """Return True if the equation is linear in all its operands together."""
    return not eqn.regions and is_sum_of_all(OPS[eqn.op], eqn)


class SumWidener:
    """Rewrites one body, from its last equation to its first."""

    def __init__(self, names: Names, body: Sequence[Equation], used: Iterable[Value], dtype: str) -> None:
        """Start with nothing asked for.

        used: the values that outputs read. uses: value -> the number of its uses. asked: narrow value -> the wide value that
        takes its place. reached: wide values whose terms are summed in them.
        """
        self.names, self.body, self.dtype = names, list(body), dtype
        self.asked: dict[Value, Value] = {}
        self.reached: set[Value] = set()
        self.new = Substitution()
        self.uses = Counter((*used, *(value for eqn in body for value in eqn.operands)))

    def run(self, wanted: Iterable[Value], given: Mapping[Value, Value] = {}) -> Substitution:
        """Widen the sums that lead to the wanted values; return the map from old values to new ones.

        given: narrow arguments that have become wide -> the new arguments.
        """
        self.asked.update(given)
        self._reach(wanted)
        made: list[Equation] = []
        for eqn in reversed(self.body):
            made += reversed(self._rewritten(eqn))
        defined = {value for eqn in self.body for value in eqn.results}.union(given)
        casts = [self._cast(old, new, None) for old, new in self.asked.items() if old not in defined]
        self.body = [self.new.equation(eqn) for eqn in (*casts, *reversed(made))]
        return self.new

    def _reach(self, values: Iterable[Value]) -> None:
        """Note values that are to be sums in the wide dtype."""
        for value in values:
            if is_narrow(value.type, self.dtype):
                self._ask(value)
            elif value.type.dtype == self.dtype:
                self.reached.add(value)

    def _ask(self, value: Value) -> Value:
        """Return the wide value that is to take the place of a value."""
        if value not in self.asked:
            self.asked[value] = Value(self.names.fresh(value.name), value.type.with_dtype(self.dtype))
        return self.asked[value]

    def _rewritten(self, eqn: Equation) -> list[Equation]:
        """Return the equations in the place of one."""
        asked = [value for value in eqn.results if value in self.asked]
        if eqn.regions:
            return self._loop(eqn, asked)
        if self.reached.intersection(eqn.results):
            return self._wide(eqn)
        if not asked:
            return [eqn]
        wide = self.asked[eqn.result]
        if has_trait(eqn, "cast") and eqn.operands[0].type.dtype == self.dtype:
            return self._unrounded(eqn, wide)
        if self.uses[eqn.result] == 1 and has_trait(eqn, "filled"):
            return [attrs.evolve(eqn, results=(wide,), attrs={**eqn.attrs, "dtype": self.dtype})]
        if self.uses[eqn.result] == 1 and _is_linear(eqn):
            return [attrs.evolve(eqn, operands=tuple(map(self._ask, eqn.operands)), results=(wide,))]
        return [eqn, self._cast(eqn.result, wide, eqn)]

    def _unrounded(self, eqn: Equation, wide: Value) -> list[Equation]:
        """Let the operand of a cast to fewer bits take the place of the wide value; keep the cast for other uses."""
        self.new[wide] = eqn.operands[0]
        self._reach(eqn.operands)
        return [eqn] if self.uses[eqn.result] > 1 else []

    def _wide(self, eqn: Equation) -> list[Equation]:
        """Return the equation of a sum that is wide already; a cast gives way to the wide version of its operand."""
        if has_trait(eqn, "cast") and is_narrow(eqn.operands[0].type, self.dtype):
            self.new[eqn.result] = self._ask(eqn.operands[0])
            return []
        if _is_linear(eqn):
            self._reach(eqn.operands)
        return [eqn]

    def _cast(self, old: Value, new: Value, eqn: Equation | None) -> Equation:
        attributes: dict[str, Attr] = {"dtype": self.dtype, "sums": True}
        return Equation("cast", (old,), (new,), attributes, span=eqn.span if eqn else None, stage="backward")

    # Loops

    def _loop(self, eqn: Equation, asked: Sequence[Value]) -> list[Equation]:
        """Return a loop that yields, or carries, the asked results in the wide dtype, and casts of results that it cannot."""
        region = region_of(eqn)
        outputs = dict(zip(eqn.results, region.outputs, strict=True))
        inside = [
            value for value in asked if self.uses[value] == 1 and self.can_widen(region, outputs[value])
        ]
        casts = [self._cast(value, self.asked[value], eqn) for value in asked if value not in inside]
        if not inside:
            return [eqn, *casts]
        changed = self._widened_region(region, [outputs[value] for value in inside])
        operands = tuple(
            self._ask(value) if new.value.type.dtype != old.value.type.dtype else value
            for (value, old), new in zip(pairs(eqn), changed.arguments, strict=True)
        )
        results = tuple(self.asked[value] if value in inside else value for value in eqn.results)
        return [attrs.evolve(eqn, operands=operands, results=results, regions=(changed,)), *casts]

    def can_widen(self, region: Function, output: Output) -> bool:
        """Return True for a yielded value, and for a carry that only its own sum uses."""
        if output.updates is None:
            return True
        adding = only_reader(region, region.outputs.index(output))
        return adding is not None and has_trait(adding, "add")

    def _widened_region(self, region: Function, outputs: Sequence[Output]) -> Function:
        """Return the region of a loop in which some outputs, and the carries that they update, have the wide dtype."""
        used = [output.value for output in region.outputs]
        inner = SumWidener(names_of(region), region.body, used, self.dtype)
        updated = {output.updates for output in outputs}
        wide = {
            a.value: attrs.evolve(a.value, type=a.value.type.with_dtype(self.dtype))
            for a in carried(region)
            if a.value.name in updated
        }
        arguments = tuple(attrs.evolve(a, value=wide.get(a.value, a.value)) for a in region.arguments)
        new = inner.run([output.value for output in outputs], wide)
        changed = tuple(
            attrs.evolve(o, value=new[inner.asked.get(o.value, o.value)] if o in outputs else new[o.value])
            for o in region.outputs
        )
        return attrs.evolve(region, arguments=arguments, body=tuple(inner.body), outputs=changed)
