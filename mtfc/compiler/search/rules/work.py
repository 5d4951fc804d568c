"""What a step computes and moves: each equation of the undistributed program that every layout has, split over its dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import attrs

from mtfc.compiler.analysis.roofline import HELD, Memory, holds, largest
from mtfc.compiler.analysis.sizes import Numbers
from mtfc.compiler.analysis.tiles import filled, least_bytes
from mtfc.compiler.hardware import Device
from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.loops import dim_of, region_of
from mtfc.compiler.ir.opdef import BY_NAME, no_flops
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.types import TensorType
from mtfc.compiler.search.rules.arrays import SINGLE, Array, Sure, array_of, own_dims
from mtfc.compiler.search.rules.naming import Dims, Naming, called, iteration

JOINED = {"fold": "unpool", "einsum": "convolution"}
"""Kernels that an op may be a part of."""


@attrs.frozen
class Work:
    """Seconds of FLOPs at the peak rate, split over `dims`; bytes of arrays, each the smallest of several that it can be read as;
    `overhead` seconds. All `trips` times.
    """

    seconds: float
    dims: Dims
    moved: tuple[tuple[Array, ...], ...]
    overhead: float
    trips: int


def work_of(function: Function, naming: Naming, device: Device, trips: int, sure: Sure) -> Iterator[Work]:
    """What is sure; of what unsure equations make, or fold, it is not known whether it is stored. What computes something of its
    operands reads them, however it is distributed.
    """
    body = tuple(eqn for eqn in function.body if eqn.regions or sure(eqn))
    memory = Memory(attrs.evolve(function, body=body), SINGLE, whole=function)
    known = {*memory.makers, *(argument.value for argument in function.arguments)}
    for eqn in body:
        if eqn.regions:
            yield from work_of(region_of(eqn), naming, device, trips * dim_of(eqn).size, sure)
        elif OPS[eqn.op].storage not in ("view", "made"):
            yield _of_equation(eqn, memory, known, naming, device, trips)
    for eqn in function.body:
        is_distributed = not eqn.regions and is_ordered(eqn) and not sure(eqn)
        if is_distributed and OPS[eqn.op].flops is not no_flops:
            moved = tuple(filter(None, _read(eqn, memory, known, naming, device)))
            yield Work(0.0, frozenset(), moved, 0.0, trips)


def _of_equation(
    eqn: Equation, memory: Memory, known: set[Value], naming: Naming, device: Device, trips: int
) -> Work:
    stored = (value for value in eqn.results if value in memory.stored)
    written = [(_tiled(value.type, array_of(value, naming), device),) for value in stored]
    read = _read(eqn, memory, known, naming, device)
    if OPS[eqn.op].storage == "lookup":
        made = _tiled(eqn.result.type, array_of(eqn.result, naming), device)
        read[0] = (*read[0], made) if read[0] else ()
    dtype = (eqn.operands or eqn.results)[0].type.dtype
    computed = OPS[eqn.op].flops(eqn, Numbers(SINGLE)) * filled(eqn, SINGLE, device)
    elements = largest(eqn, SINGLE) * memory.copies(eqn, device)
    return Work(
        seconds=max(computed / device.rate(dtype).peak, elements / _fastest(eqn, device)),
        dims=_split(eqn, naming),
        moved=(*written, *filter(None, (*read, _held(eqn, memory, known, naming, device)))),
        overhead=device.overhead if memory.is_stored(eqn) else 0.0,
        trips=trips,
    )


def _fastest(eqn: Equation, device: Device) -> float:
    """Elements/s of the kernel that the op is, or is a part of, whichever it may be once its operands are distributed."""
    whole = "pool" if OPS[eqn.op].storage == "reduced" else JOINED.get(eqn.op, eqn.op)
    return max(device.ops.get(name, inf) for name in (eqn.op, whole))


def _read(
    eqn: Equation, memory: Memory, known: set[Value], naming: Naming, device: Device
) -> list[tuple[Array, ...]]:
    """What each operand can be read as; nothing where that is not known."""
    found: list[tuple[Array, ...]] = []
    for value in dict.fromkeys(eqn.operands):
        views = [] if memory.is_joined(eqn, value, device) else memory.views(value)
        arrays = (_tiled(each.type, _seen(eqn, value, each, naming), device) for each in views)
        found.append(tuple(arrays) if known.issuperset(views) else ())
    return found


def _held(
    eqn: Equation, memory: Memory, known: set[Value], naming: Naming, device: Device
) -> tuple[Array, ...]:
    """What is added up, as the largest operand can be seen; nothing where that is not known."""
    seen = {value: memory.seen(value) for value in eqn.operands}
    is_sure = all(known.issuperset(views) for views in seen.values())
    if not (holds(eqn, device) and is_sure):
        return ()
    value = max(seen, key=lambda value: min(each.type.size for each in seen[value]))
    types = ((each.type.with_dtype(HELD), each) for each in seen[value])
    return tuple(_tiled(type, _seen(eqn, value, each, naming), device) for type, each in types)


def _tiled(type: TensorType, array: Array, device: Device) -> Array:
    """As it lies in memory."""
    return attrs.evolve(array, bytes=least_bytes(type, device))


def _seen(eqn: Equation, value: Value, view: Value, naming: Naming) -> Array:
    """An operand, or what it is a view of."""
    return _operand(eqn, value, naming) if view is value else array_of(view, naming)


def _operand(eqn: Equation, value: Value, naming: Naming) -> Array:
    """An operand, split as the equation needs it."""
    rule = OPS[eqn.op].layout_rule(eqn)
    if rule.reduced:
        return Array(value.type.local_bytes(SINGLE), iteration(eqn, rule, value))
    if rule is BY_NAME and len(eqn.results) == 1:
        return Array(value.type.local_bytes(SINGLE), naming.names[eqn.result])
    return array_of(value, naming)


def is_ordered(eqn: Equation) -> bool:
    """Products of several operands are taken in an order that depends on the layout."""
    return eqn.op != "einsum" or len(eqn.operands) == 2


def _split(eqn: Equation, naming: Naming) -> Dims:
    """The dimensions of the iteration space that can be computed in parts, under whatever name."""
    rule = OPS[eqn.op].layout_rule(eqn)
    if rule.reduced:
        return own_dims(eqn, rule)
    whole = {called(eqn, name) for name in rule.whole}
    return frozenset().union(*(naming.names[value] for value in eqn.results)) - whole
