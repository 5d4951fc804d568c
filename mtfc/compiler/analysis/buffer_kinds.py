"""Buffer kinds: which equations store an array, and which values are views without a buffer of their own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.opdef import Storage
from mtfc.compiler.ir.ops import OPS, has_trait


def storage(eqn: Equation) -> Storage:
    """Return how an equation stores its results; a loop stores them as a kernel does."""
    return "kernel" if eqn.regions else OPS[eqn.op].storage


def is_view(eqn: Equation) -> bool:
    return storage(eqn) == "view"


def is_elementwise(eqn: Equation) -> bool:
    return storage(eqn) == "fused"


def sources(values: Iterable[Value], makers: Mapping[Value, Equation]) -> Iterator[Value]:
    """Yield for each value the value that it is a view of, or the value itself if it is no view."""
    for value in values:
        while (maker := makers.get(value)) is not None and is_view(maker):
            (value, *_) = maker.operands
        yield value


def readers_of(body: Iterable[Equation]) -> dict[Value, list[Equation]]:
    """Return for each value the equations that have it as an operand; no equations for any other value."""
    found: dict[Value, list[Equation]] = defaultdict(list)
    for eqn in body:
        for value in dict.fromkeys(eqn.operands):
            found[value].append(eqn)
    return found


def readers_and_outputs(function: Function) -> dict[Value, list[Equation | None]]:
    """Return for each value the equations that have it as an operand, and None for each output."""
    found: dict[Value, list[Equation | None]] = {v: [*eqns] for v, eqns in readers_of(function.body).items()}
    for output in function.outputs:
        found.setdefault(output.value, []).append(None)
    return found


def enlarged(body: Iterable[Equation]) -> dict[Value, Value]:
    """Return the views with more elements than their source, such as windows: view -> source."""
    sources: dict[Value, Value] = {}
    for eqn in body:
        if is_view(eqn):
            (operand, *_) = eqn.operands
            sources[eqn.result] = sources.get(operand, operand)
    return {value: source for value, source in sources.items() if value.type.size > source.type.size}


def folded(function: Function) -> set[Value]:
    """Return the windows that a dot makes only for `fold`, and the values between the dot and the fold.

    Dot and fold are one kernel, a transposed convolution, which stores only the folded result.
    """
    readers = readers_of(function.body)
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
