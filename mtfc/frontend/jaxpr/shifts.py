"""Steps that move the elements of an axis: `jnp.roll`, and zeros beside a slice that make an array of the old length.

The length of the slice divides no mesh axis, so a layout would gather the array. A `shift` sends what leaves a processor.
"""

from __future__ import annotations

from itertools import accumulate
from math import copysign

import attrs

from mtfc.frontend.jaxpr.flat import AppliedPrimitive, Body, Number, Operand

Makers = dict[Operand, AppliedPrimitive]


def find_shifts(body: Body) -> None:
    """Change the steps of a body, and of the bodies inside."""
    makers: Makers = {}
    for i, step in enumerate(body.steps):
        if not (step.has_keys or step.has_carried) and (
            move := _rolled(step, makers) or _padded(step, makers)
        ):
            x, *numbers = move
            params = dict(zip(("axis", "by", "wrap"), numbers, strict=True))
            body.steps[i] = step = attrs.evolve(step, primitive="shift", operands=(x,), params=params)
        makers.update(dict.fromkeys(step.results, step))
        for inner in step.bodies:
            find_shifts(inner)
    used = {x for step in body.steps for x in step.operands}.union(body.outputs)
    for i, step in enumerate(body.steps):
        if step.primitive in ("slice", "split") and used.isdisjoint(step.results):
            body.steps[i] = attrs.evolve(step, primitive="empty")  # it would cut axes in two


Move = tuple[Operand, int, int, bool]
"""An array, an axis, by how many places elements move, and whether those that leave the axis come back at the other end."""


def _rolled(step: AppliedPrimitive, makers: Makers) -> Move | None:
    """Accept the end of an axis in front of the rest."""
    if step.primitive != "concatenate" or len(step.operands) != 2:
        return None
    j, shape, number = step.params["dimension"], step.results[0].shape, step.operands[0].shape
    tail, head = (_part(x, j, makers) for x in step.operands)
    is_whole = tail[0] is head[0] and (tail[2], head[1]) == (shape[j], 0) and tail[0].shape == shape
    return (tail[0], j, number[j], True) if is_whole and 2 * number[j] != shape[j] else None


def _padded(step: AppliedPrimitive, makers: Makers) -> Move | None:
    """Accept as many zeros on one side of an array as it lacks on the other."""
    if step.primitive == "pad":
        x, zeros = step.operands
        config = step.params["padding_config"]
    elif step.primitive == "concatenate" and len(step.operands) == 2:
        is_first = _is_zero(step.operands[0], makers)
        zeros, x = step.operands if is_first else step.operands[::-1]
        size = zeros.shape[step.params["dimension"]]
        config = [(0, 0, 0)] * len(x.shape)
        config[step.params["dimension"]] = (size, 0, 0) if is_first else (0, size, 0)
    else:
        return None
    padded = [j for j, each in enumerate(config) if tuple(each) != (0, 0, 0)]
    if len(padded) != 1 or not _is_zero(zeros, makers):
        return None
    (j,), (shape,) = padded, (each.shape for each in step.results)
    low, high, interior = config[j]
    whole, start, stop = _part(x, j, makers)
    by, kept = int(low) - start, (start - min(low, 0), stop + min(high, 0))
    is_moved = by and not interior and whole.shape == shape
    return (whole, j, by, False) if is_moved and kept == (max(-by, 0), shape[j] - max(by, 0)) else None


def _part(x: Operand, axis: int, makers: Makers) -> tuple[Operand, int, int]:
    """Return the array that an array is a part of along an axis, with the part's start and stop."""
    maker = makers.get(x)
    if maker is not None and maker.primitive == "split" and maker.params["axis"] == axis:
        *_, start, stop = accumulate(maker.params["sizes"][: maker.results.index(x) + 1], initial=0)
        return maker.operands[0], start, stop
    if (
        maker is None
        or maker.primitive != "slice"
        or any(each != 1 for each in maker.params["strides"] or ())
    ):
        return x, 0, x.shape[axis]
    return maker.operands[0], maker.params["start_indices"][axis], maker.params["limit_indices"][axis]


def _is_zero(x: Operand, makers: Makers) -> bool:
    if isinstance(x, Number):
        return x.value == 0 and copysign(1, x.value) == 1
    maker = makers.get(x)
    is_alike = maker is not None and maker.primitive in ("broadcast_in_dim", "convert_element_type")
    return maker is not None and is_alike and _is_zero(maker.operands[0], makers)
