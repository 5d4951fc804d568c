"""Equations that mix the positions of dimensions: under which layouts others are in their place.

An op's `distribute` rule is asked itself, for every number of shards that divides the sizes. A slice of one element, for example,
is never taken apart: what it is taken from is gathered, wherever it is split.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from math import gcd

from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Equation, Function, Value, walk
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.rewrite import names_of
from mtfc.compiler.ir.types import Axes, Dim
from mtfc.compiler.passes.spatial.position_blocks import NewDims, PositionBlocks
from mtfc.compiler.search.global_layouts.dimension_names import Dims, called, rule_of
from mtfc.compiler.search.global_layouts.named_arrays import Sure, uses_of

Sets = frozenset[Dims]
"""Names of dimensions: all of one set have to be split."""


def replaced_in(function: Function, counts: Sure) -> dict[Equation, Sets]:
    """Equations that others may replace, by the dimensions that are split then: their own, or those of the same op after them."""
    found: dict[Equation, Sets] = {}
    uses, names = uses_of(function), names_of(function)
    makers = {value: eqn for eqn in walk(function.body) for value in eqn.results}
    for eqn in reversed(list(walk(function.body))):
        if not eqn.regions and OPS[eqn.op].distribute is not None and counts(eqn):
            users = (user for value in eqn.results for user in uses[value] if user.op == eqn.op)
            sets = _sets(eqn, names, makers).union(*(found.get(user, ()) for user in users))
            if sets:
                found[eqn] = sets
    return found


def mixed_in(function: Function) -> dict[Equation, Dims]:
    """All dimensions whose positions an equation, or those of the same op after it, mix, whether the rule applies to them or not:
    where these are whole, nothing is gathered or replaced.
    """
    found: dict[Equation, Dims] = {}
    uses = uses_of(function)
    for eqn in reversed(list(walk(function.body))):
        if not eqn.regions and OPS[eqn.op].distribute is not None:
            users = (user for value in eqn.results for user in uses[value] if user.op == eqn.op)
            own = frozenset(called(eqn, name) for name in _mixed(eqn))
            found[eqn] = own.union(*(found[user] for user in users))
    return found


def _mixed(eqn: Equation) -> Dims:
    rule = rule_of(eqn)
    names = frozenset(name for value in (*eqn.operands, *eqn.results) for name in value.type.names)
    unnamed = frozenset(name for name in names if rule.index.get(name, name) is None)
    return (unnamed | rule.whole | rule.single) & names


def _sets(eqn: Equation, names: Names, makers: dict[Value, Equation]) -> Sets:
    """The least sets of dimensions that make the op's rule apply."""
    dims = {dim.name: dim for value in (*eqn.operands, *eqn.results) for dim in value.type.dims}
    mixed = sorted(_mixed(eqn))
    found: list[frozenset[str]] = []
    for split in (frozenset(each) for n in range(len(mixed)) for each in combinations(mixed, n + 1)):
        is_new = not any(each <= split for each in found)
        if is_new and _applies(eqn, {dims[name] for name in split}, names, makers):
            found.append(split)
    return frozenset(frozenset(called(eqn, name) for name in split) for split in found)


def _applies(eqn: Equation, split: set[Dim], names: Names, makers: dict[Value, Equation]) -> bool:
    """Whether the rule applies where these dimensions are split alike; those that are split otherwise count by themselves."""

    def axes(each: Equation, dim: Dim) -> Axes:
        return ("all",) if each is eqn and dim in split else ()

    def applies(shards: int) -> bool:
        build = Builder(names, eqn.span, eqn.stage)
        rule = OPS[eqn.op].distribute
        return (
            rule is not None
            and rule(PositionBlocks(build, axes, lambda axes: shards, makers.get, NewDims(())), eqn)
            is not None
        )

    return any(map(applies, _divisors(gcd(*(dim.size for dim in split)))))


def _divisors(size: int) -> Iterable[int]:
    """Of a size, but for 1."""
    return (n for n in range(2, size + 1) if size % n == 0)
