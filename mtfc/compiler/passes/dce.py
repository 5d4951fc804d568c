"""dce: drop equations whose results nobody uses.

Runs before collectives are placed, so that a gradient nobody asked for costs no communication.

Input:   %a = exp %x; %b = log %x; return %b
Output:  %b = log %x; return %b
After this pass every equation's results reach an output.
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from mtfc.compiler.ir.core import Equation, Function, Program, Region, Value
from mtfc.compiler.ir.transform import Pass


@attrs.frozen
class Dce(Pass):
    name: ClassVar[str] = "dce"

    def run(self, program: Program) -> Program:
        return program.map_functions(live_only)


def _region_uses(region: Region) -> set[Value]:
    used = set(region.results)
    for eqn in region.body:
        used |= uses(eqn)
    return used


def uses(eqn: Equation) -> set[Value]:
    """Values that the equation reads, in its regions too."""
    return set(eqn.operands).union(*map(_region_uses, eqn.regions))


def live_only(function: Function) -> Function:
    live = {output.value for output in function.outputs}
    kept: list[Equation] = []
    for eqn in reversed(function.body):
        if any(value in live for value in eqn.results):
            kept.append(eqn)
            live.update(eqn.operands if not eqn.regions else uses(eqn))
    if len(kept) == len(function.body):
        return function
    return attrs.evolve(function, body=tuple(reversed(kept)))
