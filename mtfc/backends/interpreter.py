"""The reference: what a program means, at every stage of its compilation.

Each value is held as the arrays of all processors, and each equation is evaluated on each processor alone, by
its op's own `evaluate`. What moves data between processors, `reshard` and the collectives, is never carried
out: its operand is assembled to the global tensor and that is distributed anew, so its meaning is that of the
two types alone. A program that is not placed yet runs on one processor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import attrs
import numpy as np

from mtfc.compiler.ir.core import Equation, Function, Program, Value, walk
from mtfc.compiler.ir.opdef import Shard
from mtfc.compiler.ir.ops import OPS, collectives
from mtfc.compiler.ir.ops.componentwise import numpy_dtype
from mtfc.compiler.ir.types import Axes, Mesh, TensorType

Array = Any
Coordinates = Mapping[str, int]
"""A processor's place: mesh axis -> position along it."""

MOVES = frozenset(op.name for op in collectives.OPS)
REDUCE = {"sum": np.add, "max": np.maximum, "min": np.minimum}
ONE_PROCESSOR = Mesh("single", ())


class Disagreement(Exception):
    """Processors that should hold the same data do not, or an array is not what its type says."""


@attrs.frozen
class Shards:
    """One value: the arrays of all processors, in row-major order of the mesh."""

    mesh: Mesh
    type: TensorType
    arrays: tuple[Array, ...]


def interpret(function: Function, program: Program, arguments: Mapping[str, Array]) -> dict[str, Array]:
    """The function's outputs by name, from its arguments by name; all arrays are global.

    Raises `Disagreement` where a type promises what does not hold.
    """
    mesh = program.mesh if program.mesh and _is_placed(function) else ONE_PROCESSOR
    known: dict[Value, Shards] = {}
    for argument in function.arguments:
        value = argument.value
        array = np.asarray(arguments[value.name]).astype(numpy_dtype(np, value.type.dtype))
        known[value] = distribute(array, value.type, mesh)
    for eqn in function.body:
        results = _moved(eqn, known) if eqn.op in MOVES else (_evaluated(eqn, known, mesh),)
        known.update(zip(eqn.results, results, strict=True))
    return {output.name: assemble(known[output.value]) for output in function.outputs}


def distribute(array: Array, type: TensorType, mesh: Mesh) -> Shards:
    """A global array placed as `type` says. What is pending stands complete on one processor of each group."""
    if array.shape != tuple(dim.size for dim in type.dims):
        raise Disagreement(f"an array of shape {array.shape} cannot be {type}")
    return Shards(mesh, type, tuple(_part(array, type, place, mesh) for place in processors(mesh)))


def assemble(shards: Shards) -> Array:
    """The global array: pending reductions are done, and processors that should agree are made sure to."""
    type, mesh = shards.type, shards.mesh
    groups: dict[tuple[int, ...], dict[tuple[int, ...], Array]] = {}
    for place, array in zip(processors(mesh), shards.arrays, strict=True):
        group = groups.setdefault(tuple(place[axis] for axis in type.split_axes), {})
        first = group.setdefault(tuple(place[axis] for axis in type.pending), array)
        if first.tobytes() != array.tobytes():
            raise Disagreement(f"processors disagree on a value of type {type}")
    whole = np.empty([dim.size for dim in type.dims], numpy_dtype(np, type.dtype))
    for coordinates, group in groups.items():
        region = _region(type, dict(zip(type.split_axes, coordinates, strict=True)), mesh)
        whole[region] = REDUCE[type.reduction].reduce(list(group.values()), axis=0, dtype=whole.dtype)
    return whole


def processors(mesh: Mesh) -> Iterator[Coordinates]:
    """Every processor of the mesh, row-major."""
    for coordinates in product(*(range(size) for _, size in mesh.axes)):
        yield dict(zip(mesh.names, coordinates, strict=True))


def _is_placed(function: Function) -> bool:
    """Whether anything in the function is split or pending."""
    values = [argument.value for argument in function.arguments]
    values += [value for eqn in walk(function.body) for value in eqn.results]
    return not all(value.type.is_global for value in values)


def _position(axes: Axes, place: Coordinates, mesh: Mesh) -> int:
    """The processor's number along `axes`, the first most major."""
    number = 0
    for axis in axes:
        number = number * mesh.sizes[axis] + place[axis]
    return number


def _region(type: TensorType, place: Coordinates, mesh: Mesh) -> tuple[slice, ...]:
    """Where in the global array a processor's part lies."""
    starts = (_position(axes, place, mesh) for axes in type.splits)
    return tuple(slice(i * n, (i + 1) * n) for i, n in zip(starts, type.local_shape(mesh), strict=True))


def _part(array: Array, type: TensorType, place: Coordinates, mesh: Mesh) -> Array:
    part = array[_region(type, place, mesh)]
    holds = type.reduction != "sum" or not any(place[axis] for axis in type.pending)
    return part if holds else np.zeros(part.shape, part.dtype)


def _moved(eqn: Equation, known: Mapping[Value, Shards]) -> tuple[Shards, ...]:
    sources = [known[value] for value in eqn.operands]
    pairs = zip(sources, eqn.results, strict=True)
    return tuple(distribute(assemble(source), value.type, source.mesh) for source, value in pairs)


def _evaluated(eqn: Equation, known: Mapping[Value, Shards], mesh: Mesh) -> Shards:
    operands = [known[value].arrays for value in eqn.operands]
    arrays = tuple(
        _evaluate(eqn, place, [arrays[i] for arrays in operands], mesh)
        for i, place in enumerate(processors(mesh))
    )
    return Shards(mesh, eqn.result.type, arrays)


def _evaluate(eqn: Equation, place: Coordinates, operands: list[Array], mesh: Mesh) -> Array:
    """The equation's result on one processor. Raises `Disagreement` where it is not of the type's shape or dtype."""
    type = eqn.result.type
    shape = type.local_shape(mesh)

    def offset(dim: str) -> int:
        return _position(type.axes_of(dim), place, mesh) * shape[type.names.index(dim)]

    result = np.asarray(OPS[eqn.op].evaluate(Shard(np, eqn, shape, offset), *operands))
    if result.shape != shape or result.dtype != numpy_dtype(np, type.dtype):
        raise Disagreement(
            f"{eqn.op} gives {result.dtype}{list(result.shape)} on a processor, and not {type}"
        )
    return result
