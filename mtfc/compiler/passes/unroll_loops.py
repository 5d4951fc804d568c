"""unroll-loops: run several iterations in each iteration of a loop that sends, where the layout asks for it.

In each iteration of a loop the first all-gather, and the last reduction, have nothing to compute beside them. With two layers in
one iteration, the collectives of one are sent while the other computes, in the forward and in the backward pass. A loop over n
layers then waits n/2 times. In return the compiled program is larger, and holds more arrays that are being sent.

A loop runs the largest number of iterations at once that divides its count, is at most `most`, and leaves two. XLA would dissolve
a loop that runs once, and share the gathers of the forward and the backward pass. Loops around loops stay as they are, and so do
loops that send nothing, or that data may end. With `most=0` the layout's `forms` say the number.

Input:   loop %h, %w dim=layers reverse=false checkpoint=false region layers { ... %w_2 = all_gather %w ... }
Output:  loop %h, %w dim=layers reverse=false checkpoint=false unroll=2 region layers { ... %w_2 = all_gather %w ... }
After this pass each such loop says how many of its iterations run in one.
"""

from typing import ClassVar

import attrs

from mtfc.compiler.ir.core import Equation, Function, Program
from mtfc.compiler.ir.loops import UNROLL, dim_of, has_condition, map_regions, region_of
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.verifier import Level
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.records import frozen


@frozen
class UnrollLoops(Pass):
    name: ClassVar[str] = "unroll-loops"
    takes: ClassVar[tuple[Level, ...]] = ("lowered",)
    most: int = 0

    def run(self, program: Program) -> Program:
        most = self.most or (program.layout.forms.unroll if program.layout else 1)
        return program.map_functions(lambda function: unrolled(function, most))


def unrolled(function: Function, most: int) -> Function:
    """Return a function whose loops run at most `most` iterations at once."""
    body = (_unrolled(eqn, most) if eqn.regions else eqn for eqn in function.body)
    return attrs.evolve(function, body=tuple(body))


def _unrolled(eqn: Equation, most: int) -> Equation:
    """Return a loop that computes several iterations at once, if its body sends; the number of iterations is a multiple of
    theirs.
    """
    body = region_of(eqn).body
    if any(each.regions for each in body):
        return map_regions(eqn, lambda region: unrolled(region, most))
    sends = any(has_trait(each, "sends") for each in body) and not has_condition(eqn)
    copies = largest_divisor(dim_of(eqn).size, most) if sends else 1
    others = {name: value for name, value in eqn.attrs.items() if name != UNROLL.name}
    return attrs.evolve(eqn, attrs=others | ({UNROLL.name: copies} if copies > 1 else {}))


def largest_divisor(trips: int, most: int) -> int:
    """Return the largest number that divides the trips, leaves at least two, and is at most `most`; 1 if there is none."""
    return next((each for each in range(min(most, trips // 2), 1, -1) if trips % each == 0), 1)
