"""The reference interpreter: the meaning of a program at every stage of its compilation.

Each value is held as the arrays of all processors, and each equation is evaluated on each processor alone, by its op's own
`evaluate`. The interpreter never carries out the transfers of `reshard` and of collectives. It assembles the operand to the
global tensor, evaluates the op on it, and distributes the result, so the meaning does not depend on where data is. A program that
is not placed yet runs on one processor.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import product
from sys import maxsize
from typing import Any, Protocol

import attrs
import numpy as np

from mtfc.backends.common import random_numbers
from mtfc.compiler.ir.core import Equation, Function, Program, Value, walk
from mtfc.compiler.ir.loops import carried, dim_of, has_condition, is_unbounded, pairs, region_of, sliced_type
from mtfc.compiler.ir.opdef import Shard
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.ops.elementwise import numpy_dtype
from mtfc.compiler.ir.sharding_rules import holds_terms, operand_types, type_with
from mtfc.compiler.ir.types import Axes, Dim, Mesh, TensorType

Array = Any
Coordinates = Mapping[str, int]
"""A processor's place: mesh axis -> position along it."""

Evaluation = Callable[..., Any]
"""(shard, arrays of the operands) -> the result's array, or a tuple of arrays for several results."""

REDUCE = {"sum": np.add, "max": np.maximum, "min": np.minimum}
ONE_PROCESSOR = Mesh("single", ())


class Disagreement(Exception):
    """Processors that should hold the same data do not, or an array does not fit its type."""


@attrs.frozen
class Shards:
    """The arrays of one value on all processors, in row-major order of the mesh."""

    mesh: Mesh
    type: TensorType
    arrays: tuple[Array, ...]


Known = dict[Value, Shards]
"""The values that are computed so far."""


class Observer(Protocol):
    """Sees an execution: every equation with its arrays, and the values that enter and leave loops."""

    def computed(self, eqn: Equation, operands: Sequence[Shards], results: Sequence[Shards]) -> None:
        """An equation without a region has been evaluated."""

    def iterates(self, eqn: Equation, index: int) -> None:
        """A loop begins an iteration."""

    def entered(self, source: Value, argument: Value) -> None:
        """An argument of the iteration has the array of `source`, or a slice of it."""

    def left(self, source: Value, result: Value) -> None:
        """A result of the loop has the array of `source`, stacked or not."""

    def ended(self, eqn: Equation) -> None:
        """The last iteration of a loop has ended."""


def meaning(shard: Shard, *operands: Array) -> Any:
    """Return the results of an equation by its op's own `evaluate`."""
    return OPS[shard.eqn.op].evaluate(shard, *operands)


def interpret(
    function: Function,
    program: Program,
    arguments: Mapping[str, Array],
    observer: Observer | None = None,
    evaluate: Evaluation = meaning,
) -> dict[str, Array]:
    """Return the function's outputs by name, from its arguments by name; all arrays are global.

    evaluate: computes each equation, in place of its op's own `evaluate`. Raises `Disagreement` if an array does not fit its
    type.
    """
    mesh = program.mesh if program.mesh and _is_placed(function) else ONE_PROCESSOR
    known: Known = {}
    for argument in function.arguments:
        value = argument.value
        array = np.asarray(arguments[value.name]).astype(numpy_dtype(np, value.type.dtype))
        known[value] = distribute(array, value.type, mesh)
    _Execution(mesh, observer, evaluate).run(function.body, known)
    return {output.name: assemble(known[output.value]) for output in function.outputs}


def values_of(
    body: Iterable[Equation], given: Mapping[Value, Array], evaluate: Evaluation, arrays: Any, longest: int
) -> dict[Value, Array]:
    """Return the given values, and all values that the equations compute, without distribution.

    arrays: NumPy, or its functions on other arrays. longest: the iterations after which a loop that only data ends is left.
    """
    known = {value: Shards(ONE_PROCESSOR, value.type, (x,)) for value, x in given.items()}
    _Execution(ONE_PROCESSOR, None, evaluate, arrays, longest).run(body, known)
    return {value: shards.arrays[0] for value, shards in known.items()}


def distribute(array: Array, type: TensorType, mesh: Mesh) -> Shards:
    """Place a global array as `type` says. A pending value is complete on one processor of each group."""
    if array.shape != tuple(dim.size for dim in type.dims):
        raise Disagreement(f"an array of shape {array.shape} cannot be {type}")
    return Shards(mesh, type, tuple(_part(array, type, place, mesh) for place in processors(mesh)))


def assemble(shards: Shards) -> Array:
    """Return the global array, with pending reductions completed.

    Raises `Disagreement` if processors that should hold the same data do not.
    """
    type, mesh = shards.type, shards.mesh
    groups: dict[tuple[int, ...], dict[tuple[int, ...], Array]] = {}
    for place, array in zip(processors(mesh), shards.arrays, strict=True):
        group = groups.setdefault(tuple(place[axis] for axis in type.split_axes), {})
        first = group.setdefault(tuple(place[axis] for axis in type.pending), array)
        if first is not array and first.tobytes() != array.tobytes():
            raise Disagreement(f"processors disagree on a value of type {type}")
    whole = np.empty([dim.size for dim in type.dims], numpy_dtype(np, type.dtype))
    summed = np.float32 if whole.dtype.itemsize == 2 else whole.dtype
    for coordinates, group in groups.items():
        region = _region(type, dict(zip(type.split_axes, coordinates, strict=True)), mesh)
        parts = list(group.values())  # a sum of one part may turn -0 to 0
        reduce = REDUCE[type.reduction].reduce
        whole[region] = reduce(parts, axis=0, dtype=summed) if type.pending else parts[0]
    return whole


@lru_cache(maxsize=64)
def processors(mesh: Mesh) -> tuple[Coordinates, ...]:
    """Return every processor of the mesh, in row-major order."""
    places = product(*(range(size) for _, size in mesh.axes))
    return tuple(dict(zip(mesh.names, coordinates, strict=True)) for coordinates in places)


def _is_placed(function: Function) -> bool:
    """Return True if a value of the function is split or pending."""
    values = [argument.value for argument in function.arguments]
    values += [value for eqn in walk(function.body) for value in eqn.results]
    return not all(value.type.is_global for value in values)


def _position(axes: Axes, place: Coordinates, mesh: Mesh) -> int:
    """Return the processor's number along `axes`, the first most major."""
    number = 0
    for axis in axes:
        number = number * mesh.sizes[axis] + place[axis]
    return number


def _region(type: TensorType, place: Coordinates, mesh: Mesh) -> tuple[slice, ...]:
    """Return the slices of the global array that a processor holds."""
    starts = (_position(axes, place, mesh) for axes in type.splits)
    return tuple(slice(i * n, (i + 1) * n) for i, n in zip(starts, type.local_shape(mesh), strict=True))


def _part(array: Array, type: TensorType, place: Coordinates, mesh: Mesh) -> Array:
    """Return the part of a global array that one processor holds. Of a pending sum the first processor has all, others have 0."""
    part = array[_region(type, place, mesh)]
    part = part.astype(numpy_dtype(np, type.local_dtype), copy=False)
    holds = type.reduction != "sum" or not any(place[axis] for axis in type.pending)
    return part if holds else np.zeros(part.shape, part.dtype)


def _communicates(eqn: Equation) -> bool:
    """Return True if processors need data of others: in a collective, or in an op that will become one."""
    return has_trait(eqn, "placement") or any(
        (eqn.layout or {}).get(dim) for dim in OPS[eqn.op].layout_rule(eqn).single
    )


@attrs.frozen
class _Execution:
    """Executes equations of one function: see `interpret` and `values_of`."""

    mesh: Mesh
    observer: Observer | None
    evaluate: Evaluation
    arrays: Any = np
    longest: int = maxsize

    def run(self, body: Iterable[Equation], known: Known) -> None:
        """Add the equations' results to `known`."""
        for eqn in body:
            if eqn.regions:
                results = self._iterated(eqn, known)
            else:
                results = (self._moved if _communicates(eqn) else self._evaluated)(eqn, known)
                if self.observer:
                    self.observer.computed(eqn, [known[value] for value in eqn.operands], results)
            known.update(zip(eqn.results, results, strict=True))

    def _moved(self, eqn: Equation, known: Known) -> tuple[Shards, ...]:
        """Compute an equation that moves data on whole arrays, and distribute the results: no collective is executed."""
        whole = [assemble(known[value]) for value in eqn.operands]
        found = self.evaluate(Shard(np, random_numbers, eqn, whole[0].shape, lambda dim: 0), *whole)
        pairs = zip(found if len(whole) > 1 else (found,), eqn.results, strict=True)
        return tuple(distribute(array, value.type, self.mesh) for array, value in pairs)

    def _iterated(self, eqn: Equation, known: Known) -> tuple[Shards, ...]:
        """Return a loop's results, by executing its region once for each index. known: the values outside of the loop."""
        region, dim, observer = region_of(eqn), dim_of(eqn), self.observer
        state = {
            a.value: _placed(known[v], v.type.split_by(a.layout or {}, a.value.type.pending))
            for v, a in pairs(eqn)
        }
        order = range(self.longest if is_unbounded(eqn) else dim.size)[:: -1 if eqn.attrs["reverse"] else 1]
        yielded: dict[str, list[Shards]] = {o.name: [] for o in region.outputs if o.updates is None}
        going = {argument.value.name: argument.value for argument in carried(region)}
        if observer and not _goes_on(eqn, state):
            for operand, result in zip(eqn.operands[: len(going)], eqn.results, strict=False):
                observer.left(operand, result)
        for index in order:
            if not _goes_on(eqn, state):
                break
            inside = {
                a.value: self._slice(state[a.value], dim, index) if a.role == "sliced" else state[a.value]
                for a in region.arguments
            }
            if observer:
                _observe_arguments(eqn, index, index == order[0], observer)
            self.run(region.body, inside)
            for output, result in zip(region.outputs, eqn.results, strict=True):
                found = inside[output.value]
                if output.updates is not None:
                    state[going[output.updates]] = _placed(found, result.type)
                else:
                    yielded[output.name].append(_placed(found, sliced_type(result.type, dim)))
            if observer:
                _observe_results(eqn, index == order[-1] or not _goes_on(eqn, state), observer)
        return tuple(
            state[going[output.updates]]
            if output.updates is not None
            else self._stack(yielded[output.name], order, result.type, dim)
            for output, result in zip(region.outputs, eqn.results, strict=True)
        )

    def _slice(self, shards: Shards, dim: Dim, index: int) -> Shards:
        """Return the slice of an array for one iteration of a loop along `dim`."""
        position = (slice(None),) * shards.type.dims.index(dim) + (index,)
        parts = tuple(self.arrays.asarray(array[position]) for array in shards.arrays)
        return Shards(shards.mesh, sliced_type(shards.type, dim), parts)

    def _stack(self, parts: list[Shards], order: range, type: TensorType, dim: Dim) -> Shards:
        """Stack the values that iterations yielded, by index and not in the order of execution; zeros where none ran."""
        mesh, by_index = self.mesh, dict(zip(order, parts, strict=False))
        if len(parts) < len(order):
            each = sliced_type(type, dim)
            blank = self.arrays.zeros(each.local_shape(mesh), numpy_dtype(np, each.local_dtype))
            by_index |= {i: Shards(mesh, each, (blank,) * len(processors(mesh))) for i in order[len(parts) :]}
        slices = zip(*(by_index[i].arrays for i in sorted(by_index)), strict=True)
        return Shards(mesh, type, tuple(map(self.arrays.stack, slices)))

    def _evaluated(self, eqn: Equation, known: Known) -> tuple[Shards, ...]:
        """Return the results of an equation on all processors: each evaluates the op on its own shards.

        known: the values so far. The results must have the shapes and dtypes of their types.
        """
        mesh, evaluate = self.mesh, self.evaluate
        types = operand_types(OPS[eqn.op], eqn)
        operands = [_placed(known[v], type).arrays for v, type in zip(eqn.operands, types, strict=True)]
        wanted = tuple((v.type.local_shape(mesh), numpy_dtype(np, v.type.local_dtype)) for v in eqn.results)
        has_terms = holds_terms(eqn)
        found = []
        for place, *arrays in zip(processors(mesh), *operands, strict=True):
            shard = Shard(np, random_numbers, eqn, wanted[0][0], partial(_offset, eqn, place, mesh))
            results = _with_terms(eqn, arrays, shard, evaluate) if has_terms else evaluate(shard, *arrays)
            found.append(tuple(map(self.arrays.asarray, results if len(eqn.results) > 1 else (results,))))
            _check_results(eqn, found[-1], wanted)
        return tuple(
            Shards(mesh, v.type, tuple(each[i] for each in found)) for i, v in enumerate(eqn.results)
        )


def _goes_on(eqn: Equation, state: Mapping[Value, Shards]) -> bool:
    """Return False if the loop's condition does not hold. Raises `Disagreement` if processors disagree."""
    if not has_condition(eqn):
        return True
    condition = state[region_of(eqn).arguments[0].value]
    return bool(condition.arrays[0].all() if condition.mesh == ONE_PROCESSOR else assemble(condition))


def _observe_arguments(eqn: Equation, index: int, is_first: bool, observer: Observer) -> None:
    """Tell which values the arguments of an iteration come from: operands, or what the iteration before has left."""
    region = region_of(eqn)
    observer.iterates(eqn, index)
    updates = {output.updates: output.value for output in region.outputs if output.updates is not None}
    for operand, argument in pairs(eqn):
        left = argument.role == "carried" and not is_first
        observer.entered(updates[argument.value.name] if left else operand, argument.value)


def _observe_results(eqn: Equation, is_last: bool, observer: Observer) -> None:
    """Tell an observer what leaves a loop: stacked values in each iteration, and carries after the last one."""
    for output, result in zip(region_of(eqn).outputs, eqn.results, strict=True):
        if is_last or output.updates is None:
            observer.left(output.value, result)
    if is_last:
        observer.ended(eqn)


def _placed(shards: Shards, type: TensorType) -> Shards:
    """Return the value placed as `type` says: at level `placed` no reshard does that yet.

    A program that is not placed runs on one processor, where each value stays whole.
    """
    return (
        shards
        if shards.type == type or shards.mesh == ONE_PROCESSOR
        else distribute(assemble(shards), type, shards.mesh)
    )


def _offset(eqn: Equation, place: Coordinates, mesh: Mesh, dim: str) -> int:
    """Return the index of the first element that a processor has along a dimension."""
    type = type_with(eqn, dim)
    size = type.local_shape(mesh)[type.names.index(dim)]
    return _position(type.axes_of(dim), place, mesh) * size


def _with_terms(eqn: Equation, arrays: Sequence[Array], shard: Shard, evaluate: Evaluation) -> Any:
    """Return an equation's results where arrays on a processor are wider than their tensors."""
    terms = eqn.results[0].type
    if terms.local_dtype != terms.dtype:
        narrow, wide = numpy_dtype(np, terms.dtype), numpy_dtype(np, terms.local_dtype)
        arrays = [x.astype(wide) if x.dtype == narrow else x for x in arrays]
    found = evaluate(shard, *arrays)
    results = found if len(eqn.results) > 1 else (found,)
    dtypes = [numpy_dtype(np, value.type.local_dtype) for value in eqn.results]
    found = tuple(np.asarray(x).astype(dtype) for x, dtype in zip(results, dtypes, strict=True))
    return found if len(eqn.results) > 1 else found[0]


def _check_results(
    eqn: Equation, results: Sequence[Array], wanted: Sequence[tuple[tuple[int, ...], Any]]
) -> None:
    """Raise `Disagreement` unless the results on a processor have the shapes and dtypes of their types.

    wanted: the shape and the dtype of each result.
    """
    for result, value, (shape, dtype) in zip(results, eqn.results, wanted, strict=True):
        if result.shape != shape or result.dtype != dtype:
            raise Disagreement(
                f"{eqn.op} gives {result.dtype}{list(result.shape)} on a processor, and not {value.type}"
            )
