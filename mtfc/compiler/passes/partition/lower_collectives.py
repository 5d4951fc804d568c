"""lower-collectives: turn each `reshard` into the cheapest chain of collectives, and each `shift`, `flip` or `interleave` between
processors into one.

Input:   %y_2: f32[batch{rows}, io] = reshard %y                     with %y: f32[batch{rows}, io] +{cols}
Output:  %y_2: f32[batch{rows}, io] = all_reduce %y axes={cols}
After this pass no `reshard` remains, and no `shift`, `flip` or `interleave` goes along a split dimension.
"""

from typing import ClassVar

import attrs

from mtfc.compiler.analysis.reshard_plans import plan
from mtfc.compiler.ir.builder import Names, names_of
from mtfc.compiler.ir.core import Equation, Function, Program, Value
from mtfc.compiler.ir.loops import map_regions
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.ops.collectives import BETWEEN_PROCESSORS
from mtfc.compiler.ir.ops.positions import DIM_MOVED
from mtfc.compiler.ir.types import Mesh
from mtfc.compiler.ir.verifier import Level
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.records import frozen


@frozen
class LowerCollectives(Pass):
    name: ClassVar[str] = "lower-collectives"
    takes: ClassVar[tuple[Level, ...]] = ("resharded", "lowered")
    level: ClassVar[Level | None] = "lowered"

    def run(self, program: Program) -> Program:
        mesh = program.placed_on
        return program.map_functions(lambda function: lowered(function, mesh))


def _chain(eqn: Equation, mesh: Mesh, names: Names) -> list[Equation]:
    """Return the collectives of a reshard; the last one defines the reshard's result."""
    value, chain = eqn.operands[0], []
    steps = plan(value.type, eqn.result.type, mesh)[1]
    for step in steps:
        result = eqn.result if step is steps[-1] else Value(names.fresh(value.name), step.after)
        chain.append(
            attrs.evolve(eqn, op=step.op, operands=(value,), results=(result,), attrs=dict(step.attrs))
        )
        value = result
    return chain


def _between_processors(eqn: Equation) -> Equation:
    """Return an equation that moves elements along a dimension, as a collective if the dimension is split."""
    axes = eqn.result.type.axes_of(DIM_MOVED.of(eqn.attrs).name)
    if not axes:
        return eqn
    collective = next(each for trait, each in BETWEEN_PROCESSORS.items() if has_trait(eqn, trait))
    return attrs.evolve(eqn, op=collective.name, attrs={**eqn.attrs, "axes": axes}, layout={})


def lowered(function: Function, mesh: Mesh) -> Function:
    """Return a function in which chains of collectives stand for reshards, and equations between processors name their axes."""
    names = names_of(function)
    body: list[Equation] = []
    for eqn in function.body:
        if has_trait(eqn, "reshard"):
            body += _chain(eqn, mesh, names)
        elif has_trait(eqn, *BETWEEN_PROCESSORS):
            body.append(_between_processors(eqn))
        else:
            body.append(map_regions(eqn, lambda region: lowered(region, mesh)))
    return attrs.evolve(function, body=tuple(body))
