"""factor-sums: take factors out of a sum that would make it wait for another sum.

`sum(a * x)` is `a * sum(x)` where `a` has none of the summed dimensions. If `a` follows from more sums in a row than `x`, the sum
of `x` need not wait for them. It then stands where `x` is made, and travels with other sums there. An example is the gradient of
a variance: its factor is known in the backward pass, but its terms are known in the forward pass, beside those of the variance.

Quotients and negations are like products. Sums of f16 keep their factors, as their terms without them may be too large.

Input:   %m = mul %a, %x; %s: f32[c] = sum %m over=[batch]        with a[c] from a later sum than x[batch, c]
Output:  %sum: f32[c] = sum %x over=[batch]; %s: f32[c] = mul %a, %sum
After this pass no sum waits for a factor that could be taken out.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar

import attrs

from mtfc.compiler.ir.builder import Builder, names_of
from mtfc.compiler.ir.core import Equation, Function, Program, Value
from mtfc.compiler.ir.loops import map_regions
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.ops.reductions import OVER
from mtfc.compiler.ir.sharding_rules import leaves_sums
from mtfc.compiler.ir.types import FLOATS, Dim
from mtfc.compiler.ir.verifier import Level
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.records import frozen

DTYPES = FLOATS - {"f16"}
"""The dtypes of sums whose terms may lose a factor. In f16 they may then be too large."""


@frozen
class FactorSums(Pass):
    name: ClassVar[str] = "factor-sums"
    takes: ClassVar[tuple[Level, ...]] = ("global",)

    def run(self, program: Program) -> Program:
        named = program.named_values
        return program.map_functions(lambda function: _SumFactorer(function, named).run())


class _SumFactorer:
    """Rewrites one function, or the region of a loop."""

    def __init__(self, function: Function, named: set[str]) -> None:
        """Start before the first equation.

        named: the names that a user can see, which keep their values. waits: the number of sums in a row from which a value
        follows. made: value -> its equation. early: sums that have moved, by the equation of their terms, or None for terms
        that are an argument.
        """
        self.function, self.named, self.names = function, named, names_of(function)
        self.waits: dict[Value, int] = {}
        self.made: dict[Value, Equation] = {}
        self.early: dict[Equation | None, list[Equation]] = {}

    def run(self) -> Function:
        """Return the function with sums moved to where they come earliest."""
        body = [new for eqn in self.function.body for new in self._rewritten(eqn)]
        everything = (*self._behind(None), *(each for eqn in body for each in (eqn, *self._behind(eqn))))
        return attrs.evolve(self.function, body=everything)

    def _behind(self, eqn: Equation | None) -> Iterator[Equation]:
        """Yield the sums that have moved behind an equation, and then the sums that have moved behind these sums."""
        for each in self.early.get(eqn, ()):
            yield each
            yield from self._behind(each)

    def _rewritten(self, eqn: Equation) -> Sequence[Equation]:
        """Return the equations in the place of one."""
        eqn = map_regions(eqn, lambda region: _SumFactorer(region, self.named).run())
        new = self._factored(eqn) or [eqn]
        for each in new:
            self._note(each)
        return new

    def _note(self, eqn: Equation) -> None:
        """Note how many sums in a row the results of an equation follow from."""
        sums = bool(eqn.regions) or leaves_sums(OPS[eqn.op].layout_rule(eqn))
        waits = sums + max((self.waits.get(value, 0) for value in eqn.operands), default=0)
        self.waits.update(dict.fromkeys(eqn.results, waits))
        self.made.update(dict.fromkeys(eqn.results, eqn))

    def _factored(self, eqn: Equation) -> list[Equation] | None:
        """Return the equations of a sum whose factors are taken out, but for the sum itself, or None."""
        if not has_trait(eqn, "sum") or eqn.path in self.named or eqn.result.type.dtype not in DTYPES:
            return None
        over = OVER.of(eqn.attrs)
        steps = list(self._steps(eqn.operands[0], over))
        if not steps:
            return None
        terms = steps[-1][0].operands[steps[-1][1]]
        if self.waits.get(terms, 0) >= self.waits.get(eqn.operands[0], 0):
            return None
        maker = self.made.get(terms)
        sums = Builder(self.names, eqn.span, maker.stage if maker else "forward")
        value = sums("sum", terms, over=over)
        self.early.setdefault(maker, []).extend(sums.body)
        self._note(sums.body[0])
        build = Builder(self.names, eqn.span, eqn.stage)
        for step, place in reversed(steps):
            operands = (*step.operands[:place], value, *step.operands[place + 1 :])
            value = build(step.op, *operands)
        build.ordered(value, eqn.result.type.dims)
        return [*build.body[:-1], attrs.evolve(build.body[-1], results=eqn.results, path=eqn.path)]

    def _steps(self, value: Value, over: Sequence[Dim]) -> Iterator[tuple[Equation, int]]:
        """Yield the equations from a sum's operand back to its terms, each with the operand that has the terms."""
        while (eqn := self.made.get(value)) is not None and (place := _place_of_terms(eqn, over)) is not None:
            yield eqn, place
            value = eqn.operands[place]


def _place_of_terms(eqn: Equation, over: Sequence[Dim]) -> int | None:
    """Return the operand in which an equation is linear, if it alone has the summed dimensions."""
    if not has_trait(eqn, "multiply", "divide", "negate"):
        return None
    having = [i for i, value in enumerate(eqn.operands) if not set(over).isdisjoint(value.type.dims)]
    is_linear = len(having) == 1 and (having == [0] or has_trait(eqn, "multiply"))
    return having[0] if is_linear else None
