"""dce: drop equations whose results nobody uses.

The pass runs before collectives are inserted, so that an unused gradient costs no communication.

A loop loses its unused results one by one: yielded outputs without a use, carries that neither a use nor the next iteration
needs, and then the arguments that nothing reads. The condition of a loop with `while` stays.

Input:   %a = exp %x; %b = log %x; return %b
Output:  %b = log %x; return %b
After this pass every equation's results reach an output.
"""

from typing import ClassVar

import attrs

from mtfc.compiler.ir.core import Equation, Function, Program, Value
from mtfc.compiler.ir.loops import carried, has_condition, outputs_of, pairs, region_of
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.records import frozen


@frozen
class Dce(Pass):
    name: ClassVar[str] = "dce"

    def run(self, program: Program) -> Program:
        return program.map_functions(live_only)


def used_values(function: Function) -> set[Value]:
    """Return the values that a function's equations and outputs read."""
    return {value for eqn in function.body for value in eqn.operands} | {o.value for o in function.outputs}


def _region_for(region: Function, wanted: set[str]) -> Function:
    """Return the region with the wanted outputs, and the outputs that the next iteration needs for them."""
    while True:
        outputs = tuple(output for output in region.outputs if output.name in wanted)
        smaller = live_only(attrs.evolve(region, outputs=outputs))
        used = used_values(smaller)
        needed = {argument.value.name for argument in carried(region) if argument.value in used}
        more = {output.name for output in region.outputs if output.updates in needed} - wanted
        if not more:
            return smaller
        wanted = wanted | more


def live_loop(eqn: Equation, live: set[Value]) -> Equation:
    """Return the loop with only its live results and the operands that they need."""
    region = region_of(eqn)
    wanted = {o.name for result, o in outputs_of(eqn) if result in live}
    wanted |= {region.outputs[0].name} if has_condition(eqn) else set()
    smaller = _region_for(region, wanted)
    kept = {output.name for output in smaller.outputs}
    updated = {output.updates for output in smaller.outputs}
    needed = used_values(smaller) | {a.value for a in region.arguments if a.value.name in updated}
    operands = [v for v, a in pairs(eqn) if a.value in needed]
    results = [v for v, o in outputs_of(eqn) if o.name in kept]
    if len(operands) == len(eqn.operands) and smaller is region:
        return eqn
    arguments = tuple(argument for argument in region.arguments if argument.value in needed)
    smaller = attrs.evolve(smaller, arguments=arguments)
    return attrs.evolve(eqn, operands=tuple(operands), results=tuple(results), regions=(smaller,))


def live_only(function: Function) -> Function:
    """Return the function without equations of which no result is used."""
    live = {output.value for output in function.outputs}
    kept: list[Equation] = []
    for eqn in reversed(function.body):
        if any(value in live for value in eqn.results):
            needed = live_loop(eqn, live) if eqn.regions else eqn
            kept.append(needed)
            live.update(needed.operands)
    body = tuple(reversed(kept))
    return function if body == function.body else attrs.evolve(function, body=body)
