"""The space of global layouts: every shape of the mesh, and every legal map from dimensions to its axes.

A layout is legal if no axis splits two dimensions of one tensor and all sizes divide (Mesh-TensorFlow paper, section 5). A layout
is written as a row of bit masks: the set of axes for each dimension. Several axes split a dimension in the order of the mesh, the
outer ones first. Dimensions that loops run along stay whole.

Parameters and the optimizer's state may be stored under further rules, with a column for each dimension of a parameter.
Parameters are stored over at least the axes that split them in the computation, and state over at least the axes of parameters.
Each axis that storage adds is added to one dimension.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache, reduce
from operator import or_
from typing import TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from mtfc.compiler.analysis.dimension_names import OPTIMIZER, PARAMS, Dims
from mtfc.compiler.cost.tables.collective_tables import axes_of, degree
from mtfc.compiler.ir.core import Function, Value, walk
from mtfc.compiler.ir.loops import looped_dims
from mtfc.compiler.ir.types import Axes, Dim, Layout, Mesh, Rules

AXES = ("x", "y", "z", "u", "v", "w")
"""Names of mesh axes by default, the outermost first."""

Columns: TypeAlias = frozenset[int]

Integers: TypeAlias = NDArray[np.int64]

Rows: TypeAlias = NDArray[np.uint8]
"""Layouts: [layout, column] is the set of axes that split a dimension."""


@attrs.frozen
class LayoutColumn:
    """A dimension under one set of rules: `name` is `d`, `params.d` or `optimizer.d`.

    base: the column whose axes it has at least. beside: columns of the same rules that share a tensor with it.
    """

    name: str
    dim: Dim
    base: int | None
    beside: Columns


@attrs.frozen(slots=False)
class LayoutSpace:
    """The columns: first the computation, last the optimizer's state. fixed: rules that every layout has."""

    columns: tuple[LayoutColumn, ...]
    fixed: Rules

    @cached_property
    def number(self) -> dict[str, int]:
        """Columns by name. Where storage is not searched, a stored dimension has the column of the computation."""
        own = {column.name: i for i, column in enumerate(self.columns)}
        plain = [(name, i) for name, i in own.items() if self.columns[i].base is None]
        params = {f"{PARAMS}{name}": own.get(f"{PARAMS}{name}", i) for name, i in plain}
        state = {
            f"{OPTIMIZER}{name}": own.get(f"{OPTIMIZER}{name}", params[f"{PARAMS}{name}"])
            for name, _ in plain
        }
        return {**state, **params, **own}

    @property
    def split(self) -> Dims:
        """The dimensions that some layout splits."""
        return frozenset(
            column.dim.name for column in self.columns if self.fixed.by_dim.get(column.dim.name) != ()
        )

    @cached_property
    def storing(self) -> Columns:
        """The columns of storage."""
        return frozenset(i for i, column in enumerate(self.columns) if column.base is not None)

    @cached_property
    def below(self) -> tuple[Columns, ...]:
        """For each column the columns whose axes it has at least."""
        found: list[Columns] = []
        for column in self.columns:
            found.append(frozenset() if column.base is None else found[column.base] | {column.base})
        return tuple(found)

    def masks(self, column: int, mesh: Mesh) -> list[int]:
        """Return the sets of axes that a column may have, or add to those of its base; axes of size 1 split nothing."""
        dim = self.columns[column].dim
        if dim.name in self.fixed.by_dim and column not in self.storing:
            return [sum(1 << mesh.names.index(axis) for axis in self.fixed.get(dim.name))]
        units = sum(1 << i for i, (_, size) in enumerate(mesh.axes) if size == 1)
        divides = dim.size % _degrees(mesh) == 0
        return [mask for mask in np.flatnonzero(divides).tolist() if not mask & units]

    def decided(self, mesh: Mesh) -> Columns:
        """Return the columns that have a single choice on a mesh."""
        single = {i for i in range(len(self.columns)) if len(self.masks(i, mesh)) == 1}
        return frozenset(i for i in single if self.below[i] <= single)

    def start(self, decided: Columns, mesh: Mesh) -> Rows:
        """Return one row, in which columns with a single choice are decided."""
        rows = np.zeros((1, len(self.columns)), np.uint8)
        for i in sorted(decided):
            base = self.columns[i].base
            rows[:, i] = min(self.masks(i, mesh)) | (0 if base is None else rows[0, base])
        return rows

    def extended(self, rows: Rows, column: int, decided: Columns, mesh: Mesh) -> tuple[Rows, Integers]:
        """Return each row with each set of axes that the column may have with the decided columns, and the numbers of the old
        rows.
        """
        base, beside = self.columns[column].base, self.columns[column].beside
        above = frozenset(i for i in decided if not beside.isdisjoint(self.below[i]))
        taken = union(rows, (beside & decided) | above)
        start = np.zeros(len(rows), np.uint8)
        if base is not None:
            start = rows[:, base]
            bases = frozenset[int]().union(*(self.below[i] for i in beside))
            taken = taken | union(rows, bases) | start | self._added(rows, column, decided)
        found, origins = [], []
        divides = self.columns[column].dim.size % _degrees(mesh) == 0
        for mask in self.masks(column, mesh):
            legal = ((taken & mask) == 0) & divides[start | mask]
            more = rows[legal].copy()
            more[:, column] = start[legal] | mask
            found.append(more)
            origins.append(np.flatnonzero(legal))
        return np.concatenate(found), np.concatenate(origins)

    def bounds(self, rows: Rows, decided: Columns, mesh: Mesh) -> tuple[Rows, Rows]:
        """Return the sets of axes that columns have at least and at most in each row, of which some columns are decided."""
        low, high = rows.copy(), rows.copy()
        for i in (i for i in range(len(self.columns)) if i not in decided):
            base, beside = self.columns[i].base, self.columns[i].beside
            most = np.uint8(reduce(or_, self.masks(i, mesh), 0))
            free = most & ~union(rows, beside & decided)
            low[:, i] = 0 if base is None else low[:, base]
            high[:, i] = free if base is None else free | high[:, base]
        return low, high

    def _added(self, rows: Rows, column: int, decided: Columns) -> Rows:
        """Return the axes that decided columns of the same rules add to the axes of their bases."""
        kind = self.columns[column].name.partition(".")[0]
        added = np.zeros(len(rows), np.uint8)
        for i in decided & self.storing:
            base = self.columns[i].base
            if base is not None and self.columns[i].name.startswith(f"{kind}."):
                added |= rows[:, i] & ~rows[:, base]
        return added


@lru_cache
def _degrees(mesh: Mesh) -> Integers:
    """Return the number of processors along each set of axes."""
    return np.array([degree(mask, mesh) for mask in range(1 << len(mesh.axes))])


def union(rows: Rows, columns: Columns) -> Rows:
    """Return the axes in any of the columns, for each row."""
    found: Rows = np.bitwise_or.reduce(rows[:, sorted(columns)], axis=1)
    return found


def space_of(forward: Function, fixed: Rules = Rules(), storage: bool = False) -> LayoutSpace:  # noqa: B008
    """Return the space of a model's forward pass; gradients have no other dimensions. storage: add the columns of storage."""
    tensors = {frozenset(value.type.dims) for value in values_of(forward)}
    looped = looped_dims(forward)
    found = {dim for tensor in tensors for dim in tensor if dim.size > 1 and dim not in looped}
    columns = list(_columns("", sorted(found, key=lambda dim: dim.name), tensors, {}, 0))
    if storage:
        parameters = {frozenset(a.value.type.dims) for a in forward.arguments if a.role == "parameter"}
        inner = frozenset[Dim]().union(*(argument.inner for argument in forward.arguments))
        stored = [c.dim for c in columns if any(c.dim in each for each in parameters) and c.dim not in inner]
        for kind in (PARAMS, OPTIMIZER):
            bases = {column.dim: i for i, column in enumerate(columns)}
            columns += _columns(kind, stored, parameters, bases, len(columns))
    return LayoutSpace(tuple(columns), fixed)


def _columns(
    kind: str, dims: list[Dim], tensors: Iterable[frozenset[Dim]], bases: dict[Dim, int], first: int
) -> Iterator[LayoutColumn]:
    """Yield a column for each dimension, numbered from `first` on. bases: the column below each, by dimension."""
    number = {dim: first + i for i, dim in enumerate(dims)}
    for dim in dims:
        together = {other for tensor in tensors if dim in tensor for other in tensor if other in number}
        yield LayoutColumn(
            f"{kind}{dim.name}", dim, bases.get(dim), frozenset(number[each] for each in together - {dim})
        )


def values_of(function: Function) -> Iterator[Value]:
    """Yield all values of a function, also those in loops."""
    yield from (argument.value for argument in function.arguments)
    for eqn in walk(function.body):
        yield from eqn.results
        yield from (argument.value for region in eqn.regions for argument in region.arguments)


def layout_of(space: LayoutSpace, masks: list[int], mesh: Mesh) -> Layout:
    """Return the layout of a row. The axes that storage adds to a dimension are its innermost."""
    sections: dict[str, list[tuple[str, Axes]]] = {"": [], PARAMS: [], OPTIMIZER: []}
    for column, mask in zip(space.columns, masks, strict=True):
        kind = column.name.removesuffix(column.dim.name)
        if mask != (0 if column.base is None else masks[column.base]):
            sections[kind].append((column.dim.name, _axes(space, column, mask, masks, mesh)))
    rules, params, optimizer = (Rules(tuple(each)) for each in sections.values())
    return Layout("found", rules, params, optimizer)


def _axes(space: LayoutSpace, column: LayoutColumn, mask: int, masks: list[int], mesh: Mesh) -> Axes:
    """Return the axes of a column in order: the axes of its base, then those that the column adds. masks: the row."""
    if column.base is None:
        return axes_of(mask, mesh)
    before = masks[column.base]
    return (*_axes(space, space.columns[column.base], before, masks, mesh), *axes_of(mask & ~before, mesh))
