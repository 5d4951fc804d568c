"""What equations store, and values that are in memory nowhere, as others are read or written in their place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.opdef import Storage
from mtfc.compiler.ir.ops import OPS, has_trait


def storage(eqn: Equation) -> Storage:
    """Loops store what they give."""
    return "kernel" if eqn.regions else OPS[eqn.op].storage


def is_view(eqn: Equation) -> bool:
    return storage(eqn) == "view"


def is_elementwise(eqn: Equation) -> bool:
    return storage(eqn) == "fused"


def sources(values: Iterable[Value], makers: Mapping[Value, Equation]) -> Iterator[Value]:
    """What the values are views of, or they themselves."""
    for value in values:
        while (maker := makers.get(value)) is not None and is_view(maker):
            (value, *_) = maker.operands
        yield value


def readers_of(function: Function) -> dict[Value, list[Equation]]:
    """The equations that have a value as an operand."""
    found: dict[Value, list[Equation]] = {}
    for eqn in function.body:
        for value in dict.fromkeys(eqn.operands):
            found.setdefault(value, []).append(eqn)
    return found


def enlarged(body: Iterable[Equation]) -> dict[Value, Value]:
    """Views that show more elements than what they are views of has, such as windows, and what that is."""
    sources: dict[Value, Value] = {}
    for eqn in body:
        if is_view(eqn):
            (operand, *_) = eqn.operands
            sources[eqn.result] = sources.get(operand, operand)
    return {value: source for value, source in sources.items() if value.type.size > source.type.size}


def folded(function: Function) -> set[Value]:
    """Windows that a product makes for `fold` to add up and for nothing else, and what is between them.

    The two are one kernel, the transpose of a convolution, and only what is added up is stored.
    """
    readers = readers_of(function)
    given = {output.value for output in function.outputs}
    leading: set[Value] = set()
    for eqn in reversed(function.body):
        if has_trait(eqn, "fold") or (is_view(eqn) and eqn.result in leading):
            leading.update(value for value in {*eqn.operands} - given if readers[value] == [eqn])
    found: set[Value] = set()
    for eqn in function.body:
        if leading.intersection(eqn.results) and (has_trait(eqn, "dot") or found.intersection(eqn.operands)):
            found.update(eqn.results)
    return found
