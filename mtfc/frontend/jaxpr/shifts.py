"""Steps that move the elements of an axis: `jnp.roll`, and zeros beside a slice that make an array of the old length.

The length of the slice divides no mesh axis, so a layout would gather the array. A `shift` sends what leaves a processor. Halves
that change places stay as they are: their axis gets factors.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import copysign

import attrs

from mtfc.frontend.jaxpr.flat import AppliedPrimitive, Body, Number, Operand

Makers = dict[Operand, AppliedPrimitive]
"""Array -> the step that computes it."""


def find_shifts(body: Body) -> None:
    """Change the steps of a body, and of the bodies inside."""
    makers: Makers = {}
    for i, step in enumerate(body.steps):
        if not (step.has_keys or step.has_carried) and (move := _move(step, makers)):
            body.steps[i] = step = attrs.evolve(step, primitive="shift", operands=move[:1], params=move[1])
        makers.update(dict.fromkeys(step.results, step))
        for inner in step.bodies:
            find_shifts(inner)
    used = {x for step in body.steps for x in step.operands}.union(body.outputs)
    for i, step in enumerate(body.steps):
        if step.primitive in ("slice", "split") and used.isdisjoint(step.results):
            body.steps[i] = attrs.evolve(step, primitive="empty")  # it would cut axes in two


def _move(step: AppliedPrimitive, makers: Makers) -> tuple[Operand, dict[str, int]] | None:
    """Return an array, an axis, by how many places elements move, and whether those that leave the axis come back.

    Accept as many zeros on one side of an array as it lacks on the other, or what it lacks there.
    """
    sides: Mapping[int, tuple[int, int, int]] = {}
    if step.primitive == "pad":
        x, other = step.operands
        sides = {j: each for j, each in enumerate(step.params["padding_config"]) if any(each)}
    elif step.primitive == "concatenate" and len(step.operands) == 2:
        is_behind = _is_zero(
            step.operands[1], makers
        )  # zeros, or the elements that come back, stand in front otherwise
        x, other = step.operands if is_behind else step.operands[::-1]
        j = step.params["dimension"]
        sides = {j: (0, other.shape[j], 0) if is_behind else (other.shape[j], 0, 0)}
    if len(sides) != 1:
        return None
    ((j, (low, high, interior)),) = sides.items()
    (whole, start, stop), shape = _part(x, j, makers), step.results[0].shape
    by, kept = int(low) - start, (start - min(low, 0), stop + min(high, 0))
    is_half = 2 * abs(by) == shape[j]
    if is_half or not by or interior or (whole.shape, kept) != (shape, (max(-by, 0), shape[j] - max(by, 0))):
        return None
    wraps = step.primitive == "concatenate" and _part(other, j, makers) == (whole, shape[j] - by, shape[j])
    return (whole, {"axis": j, "by": by, "wrap": wraps}) if wraps or _is_zero(other, makers) else None


def _part(x: Operand, axis: int, makers: Makers) -> tuple[Operand, int, int]:
    """Return the array that an array is a part of along an axis, with the part's start and stop."""
    maker = makers.get(x)
    if maker is None:
        return x, 0, x.shape[axis]
    if maker.primitive == "split" and maker.params["axis"] == axis:
        start = sum(maker.params["sizes"][: maker.results.index(x)])
    elif maker.primitive == "slice" and {*(maker.params["strides"] or (1,))} == {1}:
        start = maker.params["start_indices"][axis]
    elif maker.primitive == "pad" and max(map(max, maker.params["padding_config"])) == 0:
        start = -maker.params["padding_config"][axis][0]
    else:
        return x, 0, x.shape[axis]
    whole, first, _ = _part(maker.operands[0], axis, makers)
    return whole, int(first + start), int(first + start) + x.shape[axis]


def _is_zero(x: Operand, makers: Makers) -> bool:
    """Return True for a number 0, or an array of it. -0.0 is another number."""
    maker = makers.get(x)
    if maker is not None and maker.primitive in ("broadcast_in_dim", "convert_element_type"):
        return _is_zero(maker.operands[0], makers)
    return isinstance(x, Number) and x.value == 0 and copysign(1, x.value) == 1
