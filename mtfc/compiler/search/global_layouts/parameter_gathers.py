"""Parameters that are stored under other rules than they are used, or made, under."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from mtfc.compiler.ir.core import Equation, Function, Value, walk
from mtfc.compiler.ir.loops import dim_of, pairs, region_of
from mtfc.compiler.ir.opdef import BY_NAME
from mtfc.compiler.search.global_layouts.dimension_names import (
    OPTIMIZER,
    PARAMS,
    Dims,
    Naming,
    computed,
    rule_of,
)
from mtfc.compiler.search.global_layouts.named_arrays import SINGLE, Array, Sure, item_bytes, uses_of


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
    uses, needing = uses_of(function), _needing(function, sure)
    for argument in function.arguments:
        if argument.role == "parameter":
            for size, item, value, trips in _used(argument.value, uses, needing, 1):
                own, names = computed(naming.names[value]), value.type.names
                stored = [name for name in names if name in argument.value.type.names]
                pairs = tuple((f"{PARAMS}{name}", name) for name in stored) if own == frozenset(names) else ()
                times = trips if pairs else 1
                array = Array(size // times, naming.own[argument.value] | own, times)
                yield Gather(array, own, pairs), item
    for output in function.outputs:
        if output.updates is not None:
            value, own = output.value, naming.own[output.value]
            wanted = naming.stored[output.updates]
            pairs = tuple((f"{OPTIMIZER}{name}", f"{PARAMS}{name}") for name in value.type.names)
            if own != {name for name, _ in pairs} or wanted != {name for _, name in pairs}:
                pairs = ()
            array = Array(value.type.local_bytes(SINGLE), own | wanted)
            yield Gather(array, wanted, pairs), item_bytes(value)


Used = tuple[int, int, Value, int]
"""Of a parameter where the computation uses it: bytes in all, those of an element, what it is there, and how often it is used."""


def all_are_used(function: Function, sure: Sure) -> bool:
    uses, needing = uses_of(function), _needing(function, sure)
    return all(_used(a.value, uses, needing, 1) for a in function.arguments if a.role == "parameter")


def _needing(function: Function, sure: Sure) -> set[Equation]:
    """The equations that need their operands as the rules of the computation say: those that stay where these put them, and those
    before them that keep names. Others may follow an update.
    """
    uses = uses_of(function)
    found: set[Equation] = set()
    for body in (function, *(region_of(eqn) for eqn in walk(function.body) if eqn.regions)):
        outputs = {out.value for out in body.outputs if (out.updates is None) == (body is function)}
        for eqn in reversed(body.body):
            if eqn.stage != "update" and not eqn.regions and sure(eqn):
                users = ((user, value) for value in eqn.results for user in uses[value])
                stays = rule_of(eqn).reduced or not outputs.isdisjoint(eqn.results)
                if stays or any(u.regions or (u in found and _keeps_names(u, v)) for u, v in users):
                    found.add(eqn)
    return found


def _used(
    value: Value, uses: Mapping[Value, list[Equation]], needing: set[Equation], trips: int
) -> list[Used]:
    """How a parameter is used, at the fewest bytes on the way: once for each loop that takes slices of it, and once outside.

    What is made of it and used outside of loops is not stored as it is.
    """
    loops: list[Used] = []
    outside: list[Used] = []
    for eqn in uses.get(value, ()):
        if eqn.regions:
            loops += _in_loop(eqn, value, uses, needing, trips)
        elif rule_of(eqn) is BY_NAME and len(eqn.operands) == 1 and eqn.stage != "update":
            found = _used(eqn.result, uses, needing, trips)
            if all(_slices(user, eqn.result) for user in uses.get(eqn.result, ())):
                loops += found
            else:
                outside += [(bytes, item, used, trips) for bytes, item, used, _ in found]
        elif eqn in needing and _keeps_names(eqn, value):
            outside.append((value.type.local_bytes(SINGLE) * trips, item_bytes(value), value, trips))
    size, item = value.type.local_bytes(SINGLE) * trips, item_bytes(value)
    found = [*loops, *sorted(outside, key=lambda each: each[0])[:1]]
    return [(min(size, bytes), min(item, each), used, times) for bytes, each, used, times in found]


def _slices(eqn: Equation, value: Value) -> bool:
    return bool(eqn.regions) and all(a.role == "sliced" for v, a in pairs(eqn) if v is value)


def _keeps_names(eqn: Equation, value: Value) -> bool:
    rule = rule_of(eqn)
    return all(rule.index.get(name, name) == name for name in value.type.names)


def _in_loop(
    eqn: Equation, value: Value, uses: Mapping[Value, list[Equation]], needing: set[Equation], trips: int
) -> list[Used]:
    inside = next(argument for operand, argument in pairs(eqn) if operand is value)
    if inside.role != "sliced":
        return []
    return _used(inside.value, uses, needing, trips * dim_of(eqn).size)[:1]
