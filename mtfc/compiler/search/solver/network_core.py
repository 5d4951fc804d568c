"""The core of a network: what choices that are much better than the bound's slack allows can still consist of.

A strategy or pair whose excess over the lower bound (see `Certificate`) is more than the gap is in no choice better than the
best one known, so dropping it loses nothing (reduced cost fixing). With less than the gap allowed the core is smaller, an
exact solution of it quicker, and often as good (core problems of Balas and Zemel, 1980).
"""

from __future__ import annotations

from collections import deque

import numpy as np

from mtfc.compiler.search.solver.assignment_problem import FORBIDDEN, Booleans, Integers
from mtfc.compiler.search.solver.lagrangian import Certificate
from mtfc.compiler.search.solver.network_arrays import Arrays
from mtfc.compiler.search.solver.reducible_network import Network


def allowance(arrays: Arrays, certificate: Certificate, gap: int, pairs: int) -> int:
    """The largest excess, up to `gap`, with which at most so many pairs are in the core."""
    lower = np.repeat(np.arange(arrays.size), np.diff(arrays.arcs)) < arrays.head
    sizes = np.diff(np.append(arrays.table, len(arrays.pair_cost)))
    excess = certificate.pair_excess[np.repeat(lower, sizes)]
    excess = excess[excess <= gap]
    if len(excess) <= pairs:
        return gap
    return int(np.partition(excess, pairs)[pairs]) - 1


def region(arrays: Arrays, root: int, pairs: int) -> Booleans:
    """Nodes around `root` (breadth first) whose edges have about so many pairs. [nodes]"""
    inside = np.zeros(arrays.size, bool)
    queue, size = deque([root]), 0
    inside[root] = True
    sizes = np.diff(np.append(arrays.table, len(arrays.pair_cost)))
    while queue and size < pairs:
        node = queue.popleft()
        for arc in range(arrays.arcs[node], arrays.arcs[node + 1]):
            other = int(arrays.head[arc])
            if not inside[other] and size < pairs:
                size += int(sizes[arc])
                inside[other] = True
                queue.append(other)
    return inside


def core(
    network: Network,
    arrays: Arrays,
    certificate: Certificate,
    choices: Integers,
    most: int,
    inside: Booleans | None = None,
) -> Network:
    """A copy of a network with strategies and pairs of at most so much excess, `inside` a region, and those of `choices`."""
    small = network.copy()
    nodes, first = arrays.nodes.tolist(), arrays.first
    allowed = certificate.excess <= most
    if inside is not None:
        allowed &= np.repeat(inside, np.diff(first))
    allowed[first[:-1] + choices] = True
    for index, node in enumerate(nodes):
        kept = allowed[first[index] : first[index + 1]]
        if not kept.all():
            small.keep(node, np.flatnonzero(kept))
    for index, node in enumerate(nodes):
        for arc in range(arrays.arcs[index], arrays.arcs[index + 1]):
            other = int(arrays.head[arc])
            if other > index:
                table = _restricted(arrays, certificate, choices, most, allowed, index, arc)
                small.tables[node][nodes[other]], small.tables[nodes[other]][node] = table, table.T
    return small


def _restricted(
    arrays: Arrays,
    certificate: Certificate,
    choices: Integers,
    most: int,
    allowed: Booleans,
    node: int,
    arc: int,
) -> Integers:
    """The table of an arc, with allowed strategies only, where pairs of more excess are forbidden."""
    other, start = arrays.head[arc], arrays.table[arc]
    ends = [slice(arrays.first[end], arrays.first[end + 1]) for end in (node, other)]
    shape = [end.stop - end.start for end in ends]
    dropped = (certificate.pair_excess[start : start + shape[0] * shape[1]] > most).reshape(shape)
    dropped[choices[node], choices[other]] = False
    table = arrays.pair_cost[start : start + shape[0] * shape[1]].reshape(shape)
    restricted: Integers = np.where(dropped, FORBIDDEN, table)[np.ix_(allowed[ends[0]], allowed[ends[1]])]
    return restricted
