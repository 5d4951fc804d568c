"""What the parts of a step have in common: arrays of named dimensions, and which equations are looked at."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import attrs

from mtfc.compiler.ir.core import Equation, Function, Value, walk
from mtfc.compiler.ir.opdef import Bridge, LayoutRule
from mtfc.compiler.ir.types import ITEM_BYTES, Mesh
from mtfc.compiler.search.global_layouts.dimension_names import Dims, Naming, called, rule_of

SINGLE = Mesh("single", ())

Pairs = frozenset[tuple[str, str]]
"""Dimensions before and after an equation that mixes their positions, if it is distributed: where each two are split alike."""

Sure = Callable[[Equation], bool]
"""Whether an equation is the same under every layout that is looked at."""


@attrs.frozen
class Array:
    """So many bytes when whole, of these dimensions, `trips` times in a step."""

    bytes: int
    dims: Dims
    trips: int = 1


def array_of(value: Value, naming: Naming, trips: int = 1) -> Array:
    return Array(value.type.local_bytes(SINGLE), naming.names[value], trips)


def bridge_of(eqn: Equation) -> Bridge | None:
    """Not where it updates what is stored."""
    return None if eqn.regions or eqn.stage == "update" else rule_of(eqn).bridge


def pairs_of(bridge: Bridge | None) -> Pairs:
    return frozenset(((bridge.source, bridge.target),)) if bridge else frozenset()


def after(eqn: Equation, name: str) -> tuple[str | None, Pairs]:
    """What a dimension of an operand may be called after an equation, and what must be split alike for it."""
    bridge = bridge_of(eqn)
    if bridge and name == bridge.source:
        return bridge.target, pairs_of(bridge)
    return rule_of(eqn).index.get(name, name), frozenset()


def part(array: Array, share: float) -> Array:
    return attrs.evolve(array, bytes=int(array.bytes * share))


def item_bytes(value: Value) -> int:
    return ITEM_BYTES[value.type.dtype]


def own_dims(eqn: Equation, rule: LayoutRule) -> Dims:
    """The dimensions of the iteration space that can be computed in parts, under the equation's own names."""
    kept = {dim.name for value in eqn.results for dim in value.type.dims} - rule.whole
    return frozenset(called(eqn, name) for name in (*kept, *(dim.name for dim in rule.reduced)))


def uses_of(function: Function) -> dict[Value, list[Equation]]:
    """The equations that use each value, those in loops too."""
    uses: dict[Value, list[Equation]] = defaultdict(list)
    for eqn in walk(function.body):
        for value in dict.fromkeys(eqn.operands):
            uses[value].append(eqn)
    return uses
