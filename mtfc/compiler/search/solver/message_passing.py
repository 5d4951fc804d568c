"""The loops that take the time, compiled by Numba where it is installed; without it the same code runs as it is, slowly.

Everything here takes `Arrays`. The compiled code is kept beside this file, or where Numba finds another place for it, so
that only the first run compiles, and the first after a change to any of the loops.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeVar, cast

import numpy as np

from mtfc.compiler.search.solver.assignment_problem import Integers
from mtfc.compiler.search.solver.network_arrays import Arrays, Floats

LARGE = 1e16
"""A message that is larger says "impossible", and is this."""

Function = TypeVar("Function", bound=Callable[..., Any])


_INNER = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def compiled(function: Function) -> Function:
    return _compiled(function)


def inner(function: Function) -> Function:
    """For functions that compiled ones alone call: a way to call them from Python would take long to compile."""
    return _compiled(function, **_INNER)


def lean(function: Function) -> Function:
    """For those of them that make no arrays: references to those that they are given are not counted, which takes longer than
    the work where there are many of them.
    """
    return _compiled(function, **_INNER, _nrt=False)


def tight(function: Function) -> Function:
    """For those of these that are called often: what calls them has them in it, so that hundreds of arguments need not be
    passed.
    """
    return _compiled(function, **_INNER, _nrt=False, forceinline=True)


def _compiled(function: Function, **options: Any) -> Function:
    try:
        from numba import njit
    except ImportError:
        return function
    try:
        found = njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:  # no folder that can be written to
        return cast(Function, njit(nogil=True, **options)(function))
    if kept := getattr(found._cache, "_cache_file", None):
        kept._source_stamp, kept._load_index = _stamp(), _readable(kept._load_index)
    return cast(Function, found)


def _readable(load: Callable[[], Any]) -> Callable[[], Any]:
    """What was kept by an earlier version, where it can still be read: it may speak of classes that are no more."""

    def loaded() -> Any:
        try:
            return load()
        except (AttributeError, ImportError, EOFError, UnpicklingError):
            return {}

    return loaded


@cache
def _stamp() -> tuple[tuple[str, int, int], ...]:
    """The state of all files with loops. Numba alone would look at that of a function, whose compiled code holds others'."""
    folder = Path(__file__).parents[1]
    files = {file: file.stat() for file in sorted(folder.rglob("*.py"))}
    return tuple((file.name, state.st_mtime_ns, state.st_size) for file, state in files.items())


@compiled
def pass_messages(
    a: Arrays, theta: Floats, messages: Floats, choices: Integers, total: Floats, forward: bool
) -> float:
    """One pass of sequential tree-reweighted message passing (Kolmogorov, 2006) over the nodes; a lower bound of the energy.

    `theta` are costs per strategy, `messages[slot[arc] + s]` what the arc's other node tells about strategy s; `total` is
    room for one node. Going forward, `choices` becomes the nodes' best strategies given those before them.
    """
    bound = 0.0
    count = len(a.first) - 1
    for step in range(count):
        node = step if forward else count - 1 - step
        least = _gather(a, theta, messages, node, total)
        if forward:
            choices[node] = _conditional(a, theta, messages, choices, node)
        bound += least
        weight = _weight(a, node)
        for arc in range(a.arcs[node], a.arcs[node + 1]):
            if (a.head[arc] > node) == forward:
                bound += _send(a, messages, node, arc, total, least, weight)
    return bound


@compiled
def _gather(a: Arrays, theta: Floats, messages: Floats, node: int, total: Floats) -> Any:
    """What each strategy of a node costs as far as it is known there, into `total`; the least."""
    first, count = a.first[node], a.first[node + 1] - a.first[node]
    for s in range(count):
        total[s] = theta[first + s]
    for arc in range(a.arcs[node], a.arcs[node + 1]):
        slot = a.slot[arc]
        for s in range(count):
            total[s] += messages[slot + s]
    least = np.inf
    for s in range(count):
        least = min(least, total[s])
    return least


@compiled
def _weight(a: Arrays, node: int) -> float:
    """One over the number of monotonic chains through a node."""
    after = 0
    for arc in range(a.arcs[node], a.arcs[node + 1]):
        if a.head[arc] > node:
            after += 1
    before = int(a.arcs[node + 1] - a.arcs[node]) - after
    return 1.0 / max(after, before, 1)


@compiled
def _send(
    a: Arrays, messages: Floats, node: int, arc: int, total: Floats, least: float, weight: float
) -> float:
    """Send a message along an arc, from 0 on; the least, which it was reduced by."""
    other = a.head[arc]
    count, others = a.first[node + 1] - a.first[node], a.first[other + 1] - a.first[other]
    out, own = a.slot[a.back[arc]], a.slot[arc]
    for t in range(others):
        messages[out + t] = np.inf
    for s in range(count):
        base = weight * (total[s] - least) - messages[own + s]
        row = a.table[arc] + s * others
        for t in range(others):
            messages[out + t] = min(messages[out + t], base + a.pair_float[row + t])
    lowest = np.inf
    for t in range(others):
        lowest = min(lowest, messages[out + t])
    for t in range(others):
        messages[out + t] = min(messages[out + t] - lowest, LARGE)
    return lowest


@compiled
def _conditional(a: Arrays, theta: Floats, messages: Floats, choices: Integers, node: int) -> int:
    """The best strategy of a node when those before it have chosen, and those after it have sent messages."""
    best, found = np.inf, 0
    for s in range(a.first[node + 1] - a.first[node]):
        cost = theta[a.first[node] + s]
        for arc in range(a.arcs[node], a.arcs[node + 1]):
            other = a.head[arc]
            if other > node:
                cost += messages[a.slot[arc] + s]
            else:
                cost += a.pair_float[
                    a.table[arc] + s * (a.first[other + 1] - a.first[other]) + choices[other]
                ]
        if cost < best:
            best, found = cost, s
    return found


@compiled
def total_cost(a: Arrays, choices: Integers) -> int:
    """What a choice costs, in integers."""
    cost = 0
    for node in range(len(a.first) - 1):
        cost += a.cost[a.first[node] + choices[node]]
        for arc in range(a.arcs[node], a.arcs[node + 1]):
            other = a.head[arc]
            if other > node:
                width = a.first[other + 1] - a.first[other]
                cost += a.pair_cost[a.table[arc] + choices[node] * width + choices[other]]
    return cost


@compiled
def reparametrize(a: Arrays, theta: Integers, messages: Integers, rest: Integers, pair_rest: Integers) -> int:
    """Move costs between nodes and edges as messages say, exactly; the bound that results.

    Whatever the messages are, every choice costs the bound plus its entries of `rest` (per strategy) and of `pair_rest` (of
    each edge in the table of the arc from its lower node), all of which are at least 0.
    """
    bound = 0
    count = len(a.first) - 1
    given = np.zeros(len(messages), np.int64)
    for node in range(count):
        bound += _keep_part(a, theta, messages, node, rest, given)
    for node in range(count):
        for arc in range(a.arcs[node], a.arcs[node + 1]):
            if a.head[arc] > node:
                bound += _edge_rest(a, given, node, arc, pair_rest)
    return bound


@compiled
def _keep_part(
    a: Arrays, theta: Integers, messages: Integers, node: int, rest: Integers, given: Integers
) -> int:
    """What a node keeps when it gives its chains to earlier nodes their parts; `given` is what edges then give to it."""
    first, count = a.first[node], a.first[node + 1] - a.first[node]
    for s in range(count):
        rest[first + s] = theta[first + s]
        for arc in range(a.arcs[node], a.arcs[node + 1]):
            rest[first + s] += messages[a.slot[arc] + s]
    least = rest[first : first + count].min()
    weight = _weight(a, node)
    for s in range(count):
        part = int(weight * (rest[first + s] - least))
        for arc in range(a.arcs[node], a.arcs[node + 1]):
            given[a.slot[arc] + s] = messages[a.slot[arc] + s]
            if a.head[arc] < node:
                given[a.slot[arc] + s] -= part
                rest[first + s] -= part
        rest[first + s] -= least
    lowest = rest[first : first + count].min()
    for s in range(count):
        rest[first + s] -= lowest
    return int(least + lowest)


@compiled
def _edge_rest(a: Arrays, given: Integers, node: int, arc: int, pair_rest: Integers) -> int:
    """What an edge keeps of its costs, from 0 on; the least, which was taken away."""
    other = a.head[arc]
    count, others = a.first[node + 1] - a.first[node], a.first[other + 1] - a.first[other]
    own, back, table = a.slot[arc], a.slot[a.back[arc]], a.table[arc]
    for s in range(count):
        for t in range(others):
            place = table + s * others + t
            pair_rest[place] = a.pair_cost[place] - given[own + s] - given[back + t]
    end = table + count * others
    least = pair_rest[table:end].min()
    for place in range(table, end):
        pair_rest[place] -= least
    return int(least)


@compiled
def excess_of_pairs(a: Arrays, rest: Integers, pair_rest: Integers, excess: Integers) -> None:
    """By how much every choice with a pair of strategies exceeds the bound at least, in place of `pair_rest`.

    The same per strategy is added to `excess`.
    """
    for node in range(len(a.first) - 1):
        for s in range(a.first[node], a.first[node + 1]):
            excess[s] += rest[s]
    for node in range(len(a.first) - 1):
        for arc in range(a.arcs[node], a.arcs[node + 1]):
            if a.head[arc] > node:
                _excess_of_edge(a, rest, pair_rest, excess, node, arc)


@compiled
def _excess_of_edge(
    a: Arrays, rest: Integers, pair_rest: Integers, excess: Integers, node: int, arc: int
) -> None:
    other, most = a.head[arc], 4 * 10**18
    first, second, table = a.first[node], a.first[other], a.table[arc]
    count, others = a.first[node + 1] - first, a.first[other + 1] - second
    for s in range(count):
        least = most
        for t in range(others):
            least = min(least, pair_rest[table + s * others + t] + rest[second + t])
        excess[first + s] = min(excess[first + s] + least, most)
    for t in range(others):
        least = most
        for s in range(count):
            least = min(least, pair_rest[table + s * others + t] + rest[first + s])
        excess[second + t] = min(excess[second + t] + least, most)
    for s in range(count):
        for t in range(others):
            pair_rest[table + s * others + t] += rest[first + s] + rest[second + t]
