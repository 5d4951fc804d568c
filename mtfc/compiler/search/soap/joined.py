"""The blocks of a task graph as arrays of all tasks and edges, and how these change where few blocks do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from mtfc.compiler.search.soap.blocks import Array, Block


@attrs.frozen(eq=False)
class Joined:
    """Blocks, one after the other. Block i has the tasks from `offsets[i]` on and the edges from `edge_offsets[i]` on, up to
    those of the next.
    """

    blocks: tuple[Block, ...]
    offsets: Array
    edge_offsets: Array
    device: Array
    seconds: Array
    edges: Array

    @property
    def count(self) -> int:
        return len(self.device)


def joined(blocks: Sequence[Block]) -> Joined:
    return Joined(
        tuple(blocks),
        _offsets([len(block.device) for block in blocks]),
        _offsets([block.edges.shape[1] for block in blocks]),
        np.concatenate([block.device for block in blocks]),
        np.concatenate([block.seconds for block in blocks]),
        np.concatenate([block.edges for block in blocks], axis=1),
    )


def replaced(old: Joined, new: Mapping[int, Block]) -> Joined:
    """The same with other blocks at some places, given in ascending order."""
    blocks, tasks, edges = list(old.blocks), np.diff(old.offsets), np.diff(old.edge_offsets)
    for i, block in new.items():
        blocks[i], tasks[i], edges[i] = block, len(block.device), block.edges.shape[1]
    return Joined(
        tuple(blocks),
        _offsets(tasks),
        _offsets(edges),
        spliced(old.device, old.offsets, {i: block.device for i, block in new.items()}),
        spliced(old.seconds, old.offsets, {i: block.seconds for i, block in new.items()}),
        spliced(old.edges, old.edge_offsets, {i: block.edges for i, block in new.items()}),
    )


def spliced(old: Array, offsets: Array, new: Mapping[int, Array]) -> Array:
    """An array with other pieces at some places, along its last axis."""
    pieces, at = [], 0
    for i, piece in new.items():
        pieces += [old[..., at : offsets[i]], piece]
        at = offsets[i + 1]
    return np.concatenate([*pieces, old[..., at:]], axis=-1)


def _offsets(sizes: Sequence[int] | Array) -> Array:
    return np.concatenate(([0], np.cumsum(sizes)))
