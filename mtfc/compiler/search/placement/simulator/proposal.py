"""A proposal from beginning to end, in one compiled call: calls take more time than small graphs do."""

from __future__ import annotations

from typing import Any

import numpy as np

from mtfc.compiler.search.placement.graph.task_graph_builder import built
from mtfc.compiler.search.placement.parts.block_arrays import Array, Blocks
from mtfc.compiler.search.placement.parts.flat_encoding import Known, Placed, Plan
from mtfc.compiler.search.placement.simulator.apply_delta import commit
from mtfc.compiler.search.placement.simulator.delta import forget, renew
from mtfc.compiler.search.placement.simulator.incremental_simulator import resumed
from mtfc.compiler.search.placement.simulator.simulator_state import Memory, opened
from mtfc.compiler.search.solver.message_passing import compiled

ENDED, PENDING, CROWDED = range(3)
"""What becomes of a proposal: it takes too long, or too much memory, and is forgotten; it is simulated to its end, and pends
until the next one says whether it is kept; there is no room for it, and everything must be loaded anew.
"""
IDLE, FORGOTTEN, KEPT = range(3)
"""What becomes of the last proposal: there is none that pends, or it is forgotten or kept now."""


@compiled
def proposed(
    numbers: Array,
    plan: Any,
    known: Any,
    placed: Any,
    leads: Array,
    room: Array,
    last: int,
    memory: Memory,
    held: Array,
    limits: tuple[float, float, float],
) -> Any:
    """The same as `altered`, of a strategy. plan, known, placed: as tuples, which are passed sooner than named ones. room: see
    `task_graph_builder.built`.
    """
    new = built(numbers, Plan(*plan), Known(*known), Placed(*placed), room)
    return altered(numbers, new, leads, last, memory, held, limits)


@compiled
def altered(
    numbers: Array,
    new: Blocks,
    leads: Array,
    last: int,
    memory: Memory,
    held: Array,
    limits: tuple[float, float, float],
) -> Any:
    """What becomes of a step in which some blocks are new, its seconds, how many more bytes are sent, and those that each
    device holds.

    leads: see `delta.renew`. last: what becomes of the last proposal. memory: of a graph and its timeline. held [device]:
    bytes there. limits: bytes that a device has, seconds of the step, and those of the one that is changed.
    """
    kept, change, run = opened(memory)
    if last == KEPT:
        if not commit(kept, change, run):
            return CROWDED, np.inf, 0, held
    elif last == FORGOTTEN:
        forget(kept, change, run)
    sent, held = 0, held.copy()
    for i in range(len(numbers)):
        sent += new.sent[i] - kept.sent[numbers[i]]
        held += new.held[i] - kept.held[numbers[i]]
    if held.max() > limits[0]:
        return ENDED, np.inf, sent, held
    if not renew(kept, numbers, new, leads, change, run):
        return CROWDED, np.inf, sent, held
    seconds = resumed(kept, change, run, limits[2], limits[1])
    if seconds == np.inf:
        forget(kept, change, run)
        return ENDED, seconds, sent, held
    return PENDING, seconds, sent, held
