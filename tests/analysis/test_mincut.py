"""Minimum cuts, against the maximum flow that SciPy finds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtfc.compiler.analysis.mincut import INFINITE, SINK, SOURCE, FlowNetwork, Node

NODES: tuple[Node, ...] = (SOURCE, *range(6), SINK)

arcs = st.lists(
    st.tuples(st.sampled_from(NODES[:-1]), st.sampled_from(NODES[1:]), st.integers(0, 9)), max_size=40
)


def side_of(arcs: list[tuple[Node, Node, float]]) -> set[Node]:
    network = FlowNetwork()
    for arc in arcs:
        network.arc(*arc)
    return network.source_side()


@given(arcs)
def test_a_cut_costs_as_much_as_the_maximum_flow(arcs: list[tuple[Node, Node, int]]) -> None:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    side = side_of([*arcs])
    assert SOURCE in side and SINK not in side
    capacities = np.zeros((len(NODES), len(NODES)), np.int32)
    for tail, head, capacity in arcs:
        capacities[NODES.index(tail), NODES.index(head)] += capacity
    flow = maximum_flow(csr_array(capacities), 0, len(NODES) - 1).flow_value
    assert sum(c for tail, head, c in arcs if tail in side and head not in side) == flow


def passes(layers: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Count the passes over a network in which the flow of each layer can leave it at every layer after it."""
    count = 0
    once = FlowNetwork._pass

    def counted(network: FlowNetwork) -> bool:
        nonlocal count
        count += 1
        return once(network)

    monkeypatch.setattr(FlowNetwork, "_pass", counted)
    found: list[tuple[Node, Node, float]] = []
    for layer in range(layers):
        found += [(SOURCE, (layer, "sum"), 7.0), ((layer, "sum"), layer, INFINITE)]
        found += [(layer, layer + 1, INFINITE), (layer, SINK, 5.0)]
    side_of([*found, (layers, SINK, 1.0)])
    monkeypatch.undo()
    return count


def test_a_deep_network_needs_no_more_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert passes(200, monkeypatch) == passes(10, monkeypatch)
