"""cse: compute equal equations once.

Two equations are equal if op, operands, result types and layout are equal, and their attributes mean the same: the op's record
says which tuples have an order. The first one stays, with its span. A value that a `value` rule of the layout names keeps its
own equation. A loop gets each invariant or sliced operand once, and yields each value once.

Input:   %a = exp %x; %b = exp %x; %c = add %a, %b
Output:  %a = exp %x; %c = add %a, %a
After this pass no two equations are equal, but for those with regions and `after`, whose results are arrays of their own.
"""

from collections.abc import Hashable
from typing import ClassVar

import attrs

from mtfc.compiler.ir.attributes import meaning
from mtfc.compiler.ir.builder import Substitution
from mtfc.compiler.ir.core import Equation, Function, Program, Value
from mtfc.compiler.ir.loops import pairs
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.records import frozen


@frozen
class Cse(Pass):
    name: ClassVar[str] = "cse"

    def run(self, program: Program) -> Program:
        return program.map_functions(lambda function: share(function, program.named_values))


def _key(eqn: Equation, named: set[str]) -> Hashable:
    """Return the key that is equal for equations with equal results."""
    attributes = meaning(eqn.attrs, OPS[eqn.op].attributes)
    layout = None if eqn.layout is None else frozenset(eqn.layout.items())
    own = eqn.path if eqn.path in named else None
    return (eqn.op, eqn.operands, attributes, tuple(value.type for value in eqn.results), layout, own)


def _shared_inside(eqn: Equation, named: set[str]) -> Equation:
    """Return the loop with a shared region, which gets each value once for each role."""
    (region,) = eqn.regions
    first: dict[Hashable, Value] = {}
    same, operands, arguments = Substitution(), [], []
    for operand, argument in pairs(eqn):
        key = argument.value if argument.role == "carried" else (operand, argument.role)
        if first.setdefault(key, argument.value) is argument.value:
            operands.append(operand)
            arguments.append(argument)
        else:
            same[argument.value] = first[key]
    body = tuple(same.equation(each) for each in region.body)
    merged = attrs.evolve(same.function(region, body), arguments=tuple(arguments))
    return attrs.evolve(eqn, operands=tuple(operands), regions=(share(merged, named),))


def _yielded_once(eqn: Equation, same: Substitution) -> Equation:
    """Remove yielded outputs that equal an earlier one in value and layout; `same` maps their results to its result."""
    (region,) = eqn.regions
    first: dict[Hashable, Value] = {}
    kept = []
    for output, result in zip(region.outputs, eqn.results, strict=True):
        layout = None if output.layout is None else frozenset(output.layout.items())
        key = result if output.updates is not None else (output.value, layout)
        if first.setdefault(key, result) is result:
            kept.append((output, result))
        else:
            same[result] = first[key]
    outputs, results = tuple(output for output, _ in kept), tuple(result for _, result in kept)
    return attrs.evolve(eqn, results=results, regions=(attrs.evolve(region, outputs=outputs),))


def share(function: Function, named: set[str]) -> Function:
    """Return the function in which equal equations are computed once.

    named: values whose names a user can see, which stay apart.
    """
    first: dict[Hashable, int] = {}
    same = Substitution()
    body: list[Equation] = []
    for original in function.body:
        eqn = same.equation(original)
        eqn = _yielded_once(_shared_inside(eqn, named), same) if eqn.regions else eqn
        is_own = eqn.regions or has_trait(eqn, "after")
        place = len(body) if is_own else first.setdefault(_key(eqn, named), len(body))
        if place == len(body):
            body.append(eqn)
            continue
        body[place] = _of_both(body[place], eqn)
        for mine, shared in zip(eqn.results, body[place].results, strict=True):
            same[mine] = shared
    return same.function(function, body)


def _of_both(first: Equation, later: Equation) -> Equation:
    """Return the first of two equal equations. If only the first belongs to the update of a state, it leaves that stage."""
    is_early = first.stage == "update" != later.stage
    return attrs.evolve(first, stage=later.stage) if is_early else first
