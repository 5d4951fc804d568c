"""cse: compute equal equations once.

Equations are equal when op, operands, attributes, result types and layout are. The first one stays, with its span. A value
that a `value` rule of the layout may name keeps an equation of its own.

Input:   %a = exp %x; %b = exp %x; %c = add %a, %b
Output:  %a = exp %x; %c = add %a, %a
After this pass no two equations without regions are equal.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

import attrs

from mtfc.compiler.ir.core import Attr, Equation, Function, Program, Value
from mtfc.compiler.ir.rewrite import Substitution
from mtfc.compiler.ir.transform import Pass


@attrs.frozen
class Cse(Pass):
    name: ClassVar[str] = "cse"

    def run(self, program: Program) -> Program:
        named = set(program.layout.value_rules) if program.layout else set()
        return program.map_functions(lambda function: share(function, named))


def _attribute(name: str, value: Attr) -> Hashable:
    """An attribute up to what means the same: the order of reduced dimensions. Numbers by text, as 0.0 == -0.0 == False."""
    if name == "over" and isinstance(value, tuple):
        return frozenset(value)
    return repr(value) if isinstance(value, int | float) else value


def _key(eqn: Equation, named: set[str]) -> Hashable:
    """What makes two equations the same computation, placed the same way."""
    attributes = tuple((name, _attribute(name, value)) for name, value in sorted(eqn.attrs.items()))
    layout = None if eqn.layout is None else frozenset(eqn.layout.items())
    own = eqn.path if eqn.path in named else None
    return (eqn.op, eqn.operands, attributes, tuple(value.type for value in eqn.results), layout, own)


def share(function: Function, named: set[str]) -> Function:
    first: dict[Hashable, tuple[Value, ...]] = {}
    same = Substitution()
    body = []
    for original in function.body:
        eqn = same.equation(original)
        results = first.setdefault(_key(eqn, named), eqn.results) if not eqn.regions else eqn.results
        if results is eqn.results:
            body.append(eqn)
        for mine, shared in zip(eqn.results, results, strict=True):
            if mine is not shared:
                same[mine] = shared
    return same.function(function, body)
