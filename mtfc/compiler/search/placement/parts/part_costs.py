"""How long parts take and what they keep, by the roofline of the device (`cost/roofline.py`), where FlexFlow measures.

All parts of a step count as one in the middle, which has neighbours on all sides.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from mtfc.compiler.cost.fusion import Memory
from mtfc.compiler.cost.hardware import Device
from mtfc.compiler.cost.roofline import works
from mtfc.compiler.ir.core import Training
from mtfc.compiler.ir.types import Mesh
from mtfc.compiler.search.placement.operators.cotangent_flow import Flow
from mtfc.compiler.search.placement.operators.operator_graph import Step
from mtfc.compiler.search.placement.operators.strategy import Parts

ONE = Mesh("one", ())
"""A part's function runs on one device."""


@attrs.frozen
class Cost:
    """Of one part of a step: seconds of its two passes, and bytes that it keeps for the second."""

    forward: float
    backward: float
    kept: int


def middle(degrees: Sequence[tuple[str, int]]) -> dict[str, int]:
    """The place of the part in the middle: its index along each split dimension."""
    return {name: degree // 2 for name, degree in degrees}


def cost(flow: Flow, device: Device, step: Step, parts: Parts) -> Cost:
    """Of the part of a step in the middle."""
    local = flow.local(step, parts, middle(parts.degrees))
    function = local.function()
    memory, seconds = Memory(function, ONE, device), {"forward": 0.0, "backward": 0.0}
    for eqn, each in zip(function.body, works(function, memory, device), strict=True):
        seconds[eqn.stage] += each.seconds
    made = {value for eqn in local.forward for value in eqn.results}
    kept = sum(value.type.local_bytes(ONE) for value in memory.stored if value in made)
    return Cost(seconds["forward"], seconds["backward"], kept)


def ideal(flow: Flow, device: Device, step: Step, parts: Parts) -> float:
    """Seconds that the FLOPs of both passes of that part take at the device's peak rates."""
    function = flow.local(step, parts, middle(parts.degrees)).function()
    done = works(function, Memory(function, ONE, device), device)
    return sum(
        each.flops / device.rate((eqn.operands or eqn.results)[0].type.dtype).peak
        for eqn, each in zip(function.body, done, strict=True)
    )


def states(training: Training | None) -> int:
    """How many numbers an optimizer keeps for each parameter between steps, at most."""
    updates = training.updates if training is not None else ()
    kept = (sum(argument.role == "state" for argument in update.function.arguments) for update in updates)
    return max(kept, default=0)
