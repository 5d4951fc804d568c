"""Parameters that are stored under other rules than they are used, or made, under."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.loops import dim_of, pairs
from mtfc.compiler.ir.opdef import BY_NAME
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.search.rules.arrays import SINGLE, Array, Sure, item_bytes, uses_of
from mtfc.compiler.search.rules.naming import OPTIMIZER, PARAMS, Dims, Naming, computed


@attrs.frozen
class Gather:
    """Something that is stored as `array` says and used under the dimensions `own`.

    pairs: what each dimension is called before and after, where one collective for each dimension brings the one to the other.
    """

    array: Array
    own: Dims
    pairs: tuple[tuple[str, str], ...] = ()


def gathers_of(function: Function, naming: Naming, sure: Sure) -> Iterator[tuple[Gather, int]]:
    """What is used, or leaves, under other rules than it is stored or made under; with the bytes of an element."""
    uses = uses_of(function)
    for argument in function.arguments:
        if argument.role == "parameter":
            for size, item, value in _used(argument.value, uses, 1, sure):
                own, names = computed(naming.names[value]), value.type.names
                stored = [name for name in names if name in argument.value.type.names]
                pairs = tuple((f"{PARAMS}{name}", name) for name in stored) if own == frozenset(names) else ()
                yield Gather(Array(size, naming.own[argument.value] | own), own, pairs), item
    for output in function.outputs:
        if output.updates is not None:
            value, own = output.value, naming.own[output.value]
            wanted = naming.stored[output.updates]
            pairs = tuple((f"{OPTIMIZER}{name}", f"{PARAMS}{name}") for name in value.type.names)
            if own != {name for name, _ in pairs} or wanted != {name for _, name in pairs}:
                pairs = ()
            array = Array(value.type.local_bytes(SINGLE), own | wanted)
            yield Gather(array, wanted, pairs), item_bytes(value)


Used = tuple[int, int, Value]
"""Of a parameter where the computation uses it: bytes, those of an element, and what it is there."""


def all_are_used(function: Function, sure: Sure) -> bool:
    uses = uses_of(function)
    return all(_used(a.value, uses, 1, sure) for a in function.arguments if a.role == "parameter")


def _used(value: Value, uses: Mapping[Value, list[Equation]], trips: int, sure: Sure) -> list[Used]:
    """How a parameter is used, at the fewest bytes on the way: once for each loop that takes slices of it, and once outside.

    What is made of it and used outside of loops is not stored as it is.
    """
    loops: list[Used] = []
    outside: list[Used] = []
    for eqn in uses.get(value, ()):
        if eqn.regions:
            loops += _in_loop(eqn, value, uses, trips, sure)
        elif OPS[eqn.op].layout_rule(eqn) is BY_NAME and len(eqn.operands) == 1 and eqn.stage != "update":
            only_sliced = all(user.regions for user in uses.get(eqn.result, ()))
            (loops if only_sliced else outside).extend(_used(eqn.result, uses, trips, sure))
        elif eqn.stage != "update" and sure(eqn) and _keeps_names(eqn, value):
            outside.append((value.type.local_bytes(SINGLE) * trips, item_bytes(value), value))
    size, item = value.type.local_bytes(SINGLE) * trips, item_bytes(value)
    found = [*loops, *sorted(outside, key=lambda each: each[0])[:1]]
    return [(min(size, bytes), min(item, each), used) for bytes, each, used in found]


def _keeps_names(eqn: Equation, value: Value) -> bool:
    rule = OPS[eqn.op].layout_rule(eqn)
    return all(rule.index.get(name, name) == name for name in value.type.names)


def _in_loop(
    eqn: Equation, value: Value, uses: Mapping[Value, list[Equation]], trips: int, sure: Sure
) -> list[Used]:
    inside = next(argument for operand, argument in pairs(eqn) if operand is value)
    if inside.role != "sliced":
        return []
    return _used(inside.value, uses, trips * dim_of(eqn).size, sure)[:1]
