"""A network as flat arrays, for the compiled loops. It does not change any more."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtfc.compiler.search.solver.assignment_problem import FORBIDDEN, Integers, Ragged
from mtfc.compiler.search.solver.network_reductions import ReducibleNetwork

Floats = NDArray[np.float64]


class NetworkArrays(NamedTuple):
    """Nodes are numbered from 0 in the order of `nodes`, which are their numbers in the network.

    An arc is an edge seen from one of its ends. Arcs are sorted by this node, then by the other. Those of node i are `arcs[i] :
    arcs[i + 1]`, and its strategies are `first[i] : first[i + 1]` in `cost`. By arc: `head` is the other node, `back` the same
    edge seen from there, `table` the offset of its costs in `pair_cost`, row-major over (this node's strategies, the other's),
    and `slot` the offset of its vectors over this node's strategies, such as its message.

    The memory items of node i are `items[i] : items[i + 1]`. By item: `start` and `end` are its rows, and `usage` is the offset
    of its bytes in `bytes`, over its node's strategies. `free` is the free memory of each row. `impossible` replaces FORBIDDEN
    here: more than any possible choice costs, and small enough that sums of it fit.
    """

    nodes: Integers
    first: Integers
    cost: Integers
    arcs: Integers
    head: Integers
    back: Integers
    table: Integers
    slot: Integers
    pair_cost: Integers
    pair_float: Floats
    items: Integers
    start: Integers
    end: Integers
    usage: Integers
    bytes: Floats
    free: Floats
    impossible: int

    @property
    def size(self) -> int:
        return len(self.nodes)

    @property
    def slots(self) -> int:
        """The length of an array of messages."""
        return int(self.slot[-1] + self.first[-1]) if len(self.slot) else 0

    def price(self, prices: Floats) -> Floats:
        """Return the price of a byte of each item, from prices per row. [items]"""
        total = np.concatenate([[0.0], prices.cumsum()])
        priced: Floats = total[self.end] - total[self.start]
        return priced

    def used(self, choices: Integers) -> Floats:
        """Return the memory that a choice uses in each row. [rows]"""
        owner = np.repeat(np.arange(self.size), np.diff(self.items))
        used = self.bytes[self.usage + choices[owner]]
        change = np.zeros(len(self.free) + 1)
        np.add.at(change, self.start, used)
        np.add.at(change, self.end, -used)
        return change.cumsum()[:-1]


def pack(network: ReducibleNetwork) -> NetworkArrays:
    """Return the arrays of a network, in the order of its nodes' numbers."""
    nodes = sorted(network.nodes)
    place = {node: index for index, node in enumerate(nodes)}
    ends = [(node, other) for node in nodes for other in sorted(network.tables[node])]
    number = {end: arc for arc, end in enumerate(ends)}
    impossible = _impossible(network)
    tables = [np.minimum(network.tables[node][other], impossible) for node, other in ends]
    items = [item for node in nodes for item in network.items[node]]
    costs = Ragged.of([np.minimum(network.costs[node], impossible) for node in nodes])
    pairs, usages = Ragged.of(tables), Ragged.of([item.usage for item in items])
    return NetworkArrays(
        nodes=np.array(nodes, np.int64),
        first=costs.offsets,
        cost=costs.values,
        arcs=_starts([len(network.tables[node]) for node in nodes]),
        head=np.array([place[other] for _, other in ends], np.int64),
        back=np.array([number[other, node] for node, other in ends], np.int64),
        table=pairs.offsets[:-1],
        slot=_starts([table.shape[0] for table in tables])[:-1],
        pair_cost=pairs.values,
        pair_float=pairs.values.astype(np.float64),
        items=_starts([len(network.items[node]) for node in nodes]),
        start=np.array([item.start for item in items], np.int64),
        end=np.array([item.end for item in items], np.int64),
        usage=usages.offsets[:-1],
        bytes=usages.values.astype(np.float64),
        free=network.free.astype(np.float64),
        impossible=impossible,
    )


def _impossible(network: ReducibleNetwork) -> int:
    """Return one more than the sum of the largest possible costs of all nodes and edges."""
    costs = [network.costs[node] for node in network.nodes]
    tables = [
        table for node in network.nodes for other, table in network.tables[node].items() if other > node
    ]
    most = sum(int(each.max(initial=0, where=each < FORBIDDEN)) for each in (*costs, *tables))
    return min(most + 1, FORBIDDEN)


def _starts(lengths: list[int]) -> Integers:
    """Return the offset of each row of some lengths, and the end of the last."""
    return np.cumsum([0, *lengths], dtype=np.int64)
