"""How to get a tensor from one placement to another: the cheapest chain of collectives, as a shortest path.

Nodes are placements, edges the six collectives, an edge's length is the bytes that a processor sends (by ring algorithms, see
`ring_formulas.py`) and then the number of steps. The paper's cases (section 6.1) come out of it: split to unsplit is an all-gather,
unsplit to split a slice, from one dimension to another on one axis an all-to-all, a pending sum wanted split a reduce-scatter.
The graph depends on the number of axes, not of processors.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations, count, permutations

import attrs

from mtfc.compiler.analysis.ring_formulas import RING
from mtfc.compiler.ir.core import Attr, Equation
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.sharding_rules import operand_type
from mtfc.compiler.ir.types import Axes, Mesh, TensorType


@attrs.frozen
class Step:
    """One collective: op, attributes, the type before and after."""

    op: str
    attrs: tuple[tuple[str, Attr], ...]
    before: TensorType
    after: TensorType

    @property
    def axes(self) -> Axes:
        return dict(self.attrs)["axes"]  # type: ignore[return-value]


def wire_bytes(op: str, axes: Axes, before: TensorType, mesh: Mesh) -> float:
    """Bytes that one processor sends."""
    return before.local_bytes(mesh) * float(RING[op](mesh.size(axes)))


def _with_split(type: TensorType, changes: dict[int, Axes], pending: Axes | None = None) -> TensorType:
    splits = tuple(changes.get(i, axes) for i, axes in enumerate(type.splits))
    kept = type.pending if pending is None else pending
    return TensorType(type.dtype, type.dims, splits, kept, type.reduction if kept else "sum")


def _divides(type: TensorType, position: int, axes: Axes, mesh: Mesh) -> bool:
    return type.dims[position].size % mesh.size(axes) == 0


def _runs(axes: Axes) -> Iterator[Axes]:
    """Every contiguous part of a dimension's axes."""
    for start in range(len(axes)):
        for stop in range(start + 1, len(axes) + 1):
            yield axes[start:stop]


def _subsets(axes: Axes) -> Iterator[Axes]:
    for size in range(1, len(axes) + 1):
        yield from combinations(axes, size)


def needed_type(eqn: Equation, operand: int, pending: Axes = ()) -> TensorType:
    """Return the type that an operand must have under the equation's layout, or for a loop under its region's."""
    if eqn.regions:
        (region,) = eqn.regions
        return eqn.operands[operand].type.split_by(region.arguments[operand].layout or {}, pending)
    return operand_type(OPS[eqn.op].layout_rule(eqn), eqn, operand, pending)


Runs = Sequence[Sequence[Axes]]
"""For each dimension, the runs of axes that a step may add."""


def wanted_runs(target: TensorType) -> list[list[Axes]]:
    return [list(_runs(axes)) for axes in target.splits]


def _appends(type: TensorType, wanted: Runs, mesh: Mesh) -> Iterator[tuple[int, Axes]]:
    """(dimension, axes) that are wanted there and the dimension does not have yet."""
    for i, runs in enumerate(wanted):
        for run in runs:
            if not set(run) & set(type.splits[i]) and _divides(type, i, (*type.splits[i], *run), mesh):
                yield i, run


def _reductions(type: TensorType, kept: Axes, wanted: Runs, mesh: Mesh) -> Iterator[Step]:
    removable = tuple(axis for axis in type.pending if axis not in kept)
    for axes in _subsets(removable):
        left = tuple(axis for axis in type.pending if axis not in axes)
        yield Step("all_reduce", (("axes", axes),), type, _with_split(type, {}, left))
    if type.reduction != "sum":
        return
    for i, run in _appends(type, wanted, mesh):
        if set(run) <= set(removable):
            left = tuple(axis for axis in type.pending if axis not in run)
            after = _with_split(type, {i: (*type.splits[i], *run)}, left)
            yield Step("reduce_scatter", (("dim", type.dims[i]), ("axes", run)), type, after)


def _gathers(type: TensorType) -> Iterator[Step]:
    for i, axes in enumerate(type.splits):
        for start in range(len(axes)):
            after = _with_split(type, {i: axes[:start]})
            yield Step("all_gather", (("dim", type.dims[i]), ("axes", axes[start:])), type, after)


def _slices(type: TensorType, wanted: Runs, mesh: Mesh) -> Iterator[Step]:
    used = {*type.split_axes, *type.pending}
    for i, run in _appends(type, wanted, mesh):
        if not set(run) & used:
            after = _with_split(type, {i: (*type.splits[i], *run)})
            yield Step("local_slice", (("dim", type.dims[i]), ("axes", run)), type, after)


def _all_to_alls(type: TensorType, wanted: Runs, mesh: Mesh) -> Iterator[Step]:
    for j, run in _appends(type, wanted, mesh):
        for i, axes in enumerate(type.splits):
            if i != j and axes[len(axes) - len(run) :] == run:
                splits = {i: axes[: len(axes) - len(run)], j: (*type.splits[j], *run)}
                where = (("source", type.dims[i]), ("target", type.dims[j]), ("axes", run))
                yield Step("all_to_all", where, type, _with_split(type, splits))


def _permutes(type: TensorType) -> Iterator[Step]:
    for i, axes in enumerate(type.splits):
        for order in permutations(axes):
            if order != axes:
                after = _with_split(type, {i: order})
                yield Step("permute", (("dim", type.dims[i]), ("axes", order)), type, after)


def _unreductions(type: TensorType, target: TensorType, mesh: Mesh) -> Iterator[Step]:
    missing = tuple(axis for axis in target.pending if axis not in type.pending)
    if missing and not set(missing) & set(type.split_axes) and type.reduction == target.reduction == "sum":
        after = _with_split(type, {}, mesh.ordered((*type.pending, *missing)))
        yield Step("unreduce", (("axes", missing),), type, after)


def _steps(type: TensorType, target: TensorType, mesh: Mesh) -> Iterator[Step]:
    wanted, kept = wanted_runs(target), target.pending if type.reduction == target.reduction else ()
    yield from _unreductions(type, target, mesh)
    yield from _chosen(type, kept, wanted, mesh)


def _chosen(type: TensorType, kept: Axes, wanted: Runs, mesh: Mesh) -> Iterator[Step]:
    yield from _slices(type, wanted, mesh)
    yield from _reductions(type, kept, wanted, mesh)
    yield from _all_to_alls(type, wanted, mesh)
    yield from _permutes(type)
    yield from _gathers(type)


def steps_from(type: TensorType, mesh: Mesh) -> Iterator[Step]:
    """Every single collective that some target may ask for."""
    used = [axis for axis, size in mesh.axes if size > 1]
    runs = [axes for size in range(1, len(used) + 1) for axes in permutations(used, size)]
    return _chosen(type, (), [runs] * len(type.dims), mesh)


@lru_cache(maxsize=4096)
def plan(source: TensorType, target: TensorType, mesh: Mesh) -> tuple[float, tuple[Step, ...]]:
    """Bytes sent by a processor and the collectives that bring `source` to `target`: Dijkstra's algorithm."""
    order = count()
    queue: list[tuple[float, int, int, TensorType, tuple[Step, ...]]] = [(0.0, 0, next(order), source, ())]
    settled: set[TensorType] = set()
    while queue:
        sent, length, _, type, steps = heapq.heappop(queue)
        if type == target:
            return sent, steps
        if type in settled:
            continue
        settled.add(type)
        for step in _steps(type, target, mesh):
            cost = sent + wire_bytes(step.op, step.axes, type, mesh)
            heapq.heappush(queue, (cost, length + 1, next(order), step.after, (*steps, step)))
    raise AssertionError(f"no way from {source} to {target}")
