"""General gathers and scatters: calls that layouts may split along the axes that indices do not point into.

These are the axes that operands share one by one (batching dimensions, as `jax.vmap` makes them), those that every slice covers
whole, and for gathers the axes of the indices. A processor applies the primitive to its shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import attrs

from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.ops.calls import OnShards
from mtfc.frontend.jaxpr.emitting import JaxprEmitter
from mtfc.frontend.jaxpr.equations import bound
from mtfc.frontend.jaxpr.factors import Axis, axis
from mtfc.frontend.jaxpr.flat import AppliedPrimitive
from mtfc.frontend.jaxpr.index_numbers import data_of, index_numbers, is_indexing
from mtfc.frontend.jaxpr.linking import Linker


@attrs.frozen
class SharedAxis:
    """An axis that may be split: its number in each operand, or None, and in the result. is_sliced: a slice covers it whole."""

    operands: tuple[int | None, ...]
    result: int
    is_sliced: bool = False


def shared_axes(step: AppliedPrimitive) -> tuple[SharedAxis, ...]:
    """Return the axes that may be split; none for other primitives."""
    if not is_indexing(step):
        return ()
    table, ids, numbers, data = step.operands[0], step.operands[1], index_numbers(step), data_of(step)
    rows = numbers.rows(data)
    whole = [
        (k, place)
        for place, k in zip(numbers.windows, numbers.window(table), strict=True)
        if data.shape[place] == table.shape[k] and k not in numbers.axes
    ]
    if step.primitive == "gather":
        batch = {i: k for k, i in numbers.batch.items()}
        found = [SharedAxis((batch.get(i), i), rows[i]) for i in range(len(ids.shape) - 1)]
        found += [SharedAxis((k, None), place, is_sliced=True) for k, place in whole]
    else:
        found = [SharedAxis((k, i, rows[i]), k) for k, i in numbers.batch.items()]
        found += [SharedAxis((k, None, place), k) for k, place in whole]
    return tuple(each for each in found if step.results[0].shape[each.result] > 1)


def link(linker: Linker, step: AppliedPrimitive, shared: Sequence[SharedAxis]) -> None:
    """Let operands have the axes of the first one that they share. Other axes of indices and updates are none of its own."""
    first, used = step.operands[0], [f for each in step.operands[0].axes for f in each]
    for i in range(1, len(step.operands)):
        wanted: list[Axis | None] = [None] * len(step.operands[i].shape)
        for each in shared:
            own, place = each.operands[0], each.operands[i]
            if own is not None and place is not None:
                wanted[place] = first.axes[own]
        linker.fit(step, i, wanted, used)
    axes = [axis(size) for size in step.results[0].shape]
    for each in shared:
        axes[each.result] = _axis(step, each)
    if step.primitive != "gather":
        axes = list(first.axes)
    linker.give(step.results[0], tuple(axes))
    linker.space(*axes, *first.axes)


def _axis(step: AppliedPrimitive, shared: SharedAxis) -> Axis:
    """Return the factors of a shared axis."""
    return next(step.axes(i)[place] for i, place in enumerate(shared.operands) if place is not None)


def operands(
    emitter: JaxprEmitter, step: AppliedPrimitive, shared: Sequence[SharedAxis]
) -> tuple[list[Value], tuple[Any, ...], tuple[Any, ...], OnShards]:
    """Return the operands of the call, its mapped dimensions, the other dimensions of the result, and the function."""
    own = [emitter.dims.of(_axis(step, each)) for each in shared]
    mapped = tuple(dim for dims in own for dim in dims)
    places, values = [], []
    for i in range(len(step.operands)):
        numbers = {each.operands[i]: j for j, each in enumerate(shared)}
        plan, rest = _places([(numbers.get(k), emitter.dims.of(a)) for k, a in enumerate(step.axes(i))], own)
        value = emitter.operand(step, i)
        front = tuple(dim for dim in mapped if dim in value.type.dims)
        values.append(emitter.with_dims(value, (*front, *rest)))
        places.append(plan)
    numbers = {each.result: j for j, each in enumerate(shared)}
    result = step.results[0]
    plan, rest = _places([(numbers.get(k), emitter.dims.of(a)) for k, a in enumerate(result.axes)], own)
    sizes = tuple(dim.size for dim in rest)
    return values, mapped, rest, OnShards(partial(_applied, step, shared, places, plan, sizes), len(mapped))


def _places(
    axes: Sequence[tuple[int | None, Sequence[Any]]], own: Sequence[Sequence[Any]]
) -> tuple[list[list[int]], tuple[Any, ...]]:
    """Return for each axis of an array the axes that it has in the call, and the dimensions that follow the mapped ones.

    In a call every dimension has an axis: first the mapped ones, then the others. axes: (number of the shared axis, dimensions).
    """
    starts = [sum(map(len, own[:j])) for j in range(len(own) + 1)]
    rest: list[Any] = []
    found = []
    for j, dims in axes:
        if j is not None:
            found.append([*range(starts[j], starts[j + 1])])
            continue
        found.append([starts[-1] + len(rest) + n for n in range(len(dims))])
        rest += dims
    return found, tuple(rest)


def _applied(
    step: AppliedPrimitive,
    shared: Sequence[SharedAxis],
    places: Sequence[Sequence[Sequence[int]]],
    result: Sequence[Sequence[int]],
    rest: Sequence[int],
    sizes: Sequence[int],
    *arrays: Any,
) -> list[Any]:
    """Apply the primitive to shards. sizes: of the mapped dimensions. Arrays have size 1 along those that they lack."""
    from jax import numpy as jnp

    given = []
    for x, axes in zip(arrays, places, strict=True):
        flat = [place for axis in axes for place in axis]
        shape = [n if i in flat else 1 for i, n in enumerate(sizes)] + [*x.shape[len(sizes) :]]
        others = [i for i in range(len(shape)) if i not in flat]
        y = jnp.broadcast_to(x, shape).transpose(*flat, *others)
        given.append(y.reshape([prod(shape[place] for place in axis) for axis in axes]))
    params = step.params
    if "slice_sizes" in params:
        slices = list(params["slice_sizes"])
        for each in shared:
            if each.is_sliced and (k := each.operands[0]) is not None:
                slices[k] = given[0].shape[k]
        params = {**params, "slice_sizes": tuple(slices)}
    (found,) = bound(step.bind, given, params)
    every, flat = [*sizes, *rest], [place for axis in result for place in axis]
    return [found.reshape([every[place] for place in flat]).transpose(*map(flat.index, range(len(every))))]
