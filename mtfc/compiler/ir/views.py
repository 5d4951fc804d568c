"""Values that are in memory nowhere, as others are read or written in their place."""

from __future__ import annotations

from collections.abc import Iterable

from mtfc.compiler.ir.core import Equation, Value
from mtfc.compiler.ir.ops import OPS


def is_view(eqn: Equation) -> bool:
    return not eqn.regions and OPS[eqn.op].storage == "view"


def enlarged(body: Iterable[Equation]) -> dict[Value, Value]:
    """Views that show more elements than what they are views of has, such as windows, and what that is."""
    sources: dict[Value, Value] = {}
    for eqn in body:
        if is_view(eqn):
            (operand, *_) = eqn.operands
            sources[eqn.result] = sources.get(operand, operand)
    return {value: source for value, source in sources.items() if value.type.size > source.type.size}


def folded(body: Iterable[Equation]) -> set[Value]:
    """Windows that a product makes for `fold` to add up, and what is between them.

    The two are one kernel, the transpose of a convolution, and only what is added up is stored.
    """
    users: dict[Value, list[Equation]] = {}
    products = []
    for eqn in body:
        for value in eqn.operands:
            users.setdefault(value, []).append(eqn)
        if eqn.op == "einsum":
            products.append(eqn.result)
    found: set[Value] = set()
    for product in products:
        chain = [product]
        while len(using := users.get(chain[-1], ())) == 1 and (using[0].op == "fold" or is_view(using[0])):
            chain.append(using[0].result)
        folds = [i for i, value in enumerate(chain[:-1]) if users[value][0].op == "fold"]
        found.update(chain[: folds[-1] + 1] if folds else ())
    return found
