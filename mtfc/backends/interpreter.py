"""The reference: what a program means, at every stage of its compilation.

Each value is held as the arrays of all processors, and each equation is evaluated on each processor alone, by
its op's own `evaluate`. What moves data between processors, `reshard` and the collectives, is never carried
out: its operand is assembled to the global tensor, evaluated as such, and that is distributed anew, so its
meaning does not depend on where data is. A program that is not placed yet runs on one processor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any

import attrs
import numpy as np

from mtfc.backends.common import random_numbers
from mtfc.compiler.ir.core import Equation, Function, Program, Value, walk
from mtfc.compiler.ir.loops import carried, dim_of, pairs, region_of, sliced_type
from mtfc.compiler.ir.opdef import Shard
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.ops.elementwise import numpy_dtype
from mtfc.compiler.ir.sharding_rules import operand_types, type_with
from mtfc.compiler.ir.types import Axes, Dim, Mesh, TensorType

Array = Any
Coordinates = Mapping[str, int]
"""A processor's place: mesh axis -> position along it."""

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
    _execute(function.body, known, mesh)
    return {output.name: assemble(known[output.value]) for output in function.outputs}


def _execute(body: Iterable[Equation], known: dict[Value, Shards], mesh: Mesh) -> None:
    """Add the equations' results to what is known."""
    for eqn in body:
        found = _iterated if eqn.regions else _moved if _communicates(eqn) else _evaluated
        results = found(eqn, known, mesh)
        known.update(zip(eqn.results, results, strict=True))


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
    summed = np.float32 if whole.dtype.itemsize == 2 else whole.dtype
    for coordinates, group in groups.items():
        region = _region(type, dict(zip(type.split_axes, coordinates, strict=True)), mesh)
        whole[region] = REDUCE[type.reduction].reduce(list(group.values()), axis=0, dtype=summed)
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


def _communicates(eqn: Equation) -> bool:
    """Whether processors need what others have: in a collective, or an op that is still to become one."""
    return has_trait(eqn, "placement") or any(
        (eqn.layout or {}).get(dim) for dim in OPS[eqn.op].layout_rule(eqn).single
    )


def _moved(eqn: Equation, known: Mapping[Value, Shards], mesh: Mesh) -> tuple[Shards, ...]:
    whole = [assemble(known[value]) for value in eqn.operands]
    found = OPS[eqn.op].evaluate(Shard(np, random_numbers, eqn, whole[0].shape, lambda dim: 0), *whole)
    pairs = zip(found if len(whole) > 1 else (found,), eqn.results, strict=True)
    return tuple(distribute(array, value.type, mesh) for array, value in pairs)


def _iterated(eqn: Equation, known: Mapping[Value, Shards], mesh: Mesh) -> tuple[Shards, ...]:
    """A loop's results: its region, executed once for each index."""
    region, dim = region_of(eqn), dim_of(eqn)
    state = {
        a.value: _placed(known[v], v.type.split_by(a.layout or {}, a.value.type.pending))
        for v, a in pairs(eqn)
    }
    order = range(dim.size)[::-1] if eqn.attrs["reverse"] else range(dim.size)
    yielded: dict[str, list[Shards]] = {}
    for index in order:
        inside = {
            a.value: _slice(state[a.value], dim, index) if a.role == "sliced" else state[a.value]
            for a in region.arguments
        }
        _execute(region.body, inside, mesh)
        new = {
            o.name: _placed(inside[o.value], result.type if o.updates else sliced_type(result.type, dim))
            for o, result in zip(region.outputs, eqn.results, strict=True)
        }
        state |= {
            a.value: new[o.name] for o in region.outputs for a in carried(region) if a.value.name == o.updates
        }
        for output in region.outputs:
            yielded.setdefault(output.name, []).append(new[output.name])
    return tuple(
        yielded[output.name][-1]
        if output.updates is not None
        else _stack(yielded[output.name], order, result.type)
        for output, result in zip(region.outputs, eqn.results, strict=True)
    )


def _placed(shards: Shards, type: TensorType) -> Shards:
    """Return the value placed as `type` says: at level `placed` no reshard does that yet.

    A program that is not placed runs on one processor, where each value stays whole.
    """
    return (
        shards
        if shards.type == type or shards.mesh == ONE_PROCESSOR
        else distribute(assemble(shards), type, shards.mesh)
    )


def _slice(shards: Shards, dim: Dim, index: int) -> Shards:
    axis = shards.type.dims.index(dim)
    arrays = tuple(array.take(index, axis) for array in shards.arrays)
    return Shards(shards.mesh, sliced_type(shards.type, dim), arrays)


def _stack(parts: list[Shards], order: range, type: TensorType) -> Shards:
    """What the iterations yielded, by index and not in the order of execution."""
    by_index = [part for _, part in sorted(zip(order, parts, strict=True), key=lambda pair: pair[0])]
    arrays = tuple(np.stack(slices) for slices in zip(*(part.arrays for part in by_index), strict=True))
    return Shards(parts[0].mesh, type, arrays)


def _evaluated(eqn: Equation, known: Mapping[Value, Shards], mesh: Mesh) -> tuple[Shards, ...]:
    types = operand_types(OPS[eqn.op], eqn)
    operands = [_placed(known[v], type).arrays for v, type in zip(eqn.operands, types, strict=True)]
    found = [
        _evaluate(eqn, place, [arrays[i] for arrays in operands], mesh)
        for i, place in enumerate(processors(mesh))
    ]
    return tuple(Shards(mesh, v.type, tuple(each[i] for each in found)) for i, v in enumerate(eqn.results))


def _evaluate(eqn: Equation, place: Coordinates, operands: list[Array], mesh: Mesh) -> tuple[Array, ...]:
    """The equation's results on one processor. Raises `Disagreement` where one is not of its type's shape or dtype."""
    shape = eqn.results[0].type.local_shape(mesh)

    def offset(dim: str) -> int:
        type = type_with(eqn, dim)
        size = type.local_shape(mesh)[type.names.index(dim)]
        return _position(type.axes_of(dim), place, mesh) * size

    found = OPS[eqn.op].evaluate(Shard(np, random_numbers, eqn, shape, offset), *operands)
    results = tuple(map(np.asarray, found if len(eqn.results) > 1 else (found,)))
    for result, value in zip(results, eqn.results, strict=True):
        wanted = value.type
        if result.shape != wanted.local_shape(mesh) or result.dtype != numpy_dtype(np, wanted.dtype):
            raise Disagreement(
                f"{eqn.op} gives {result.dtype}{list(result.shape)} on a processor, and not {wanted}"
            )
    return results
