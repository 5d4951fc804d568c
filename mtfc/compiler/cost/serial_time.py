"""Seconds of a compiled program on a machine without overlap, which searches compare.

This is the sum of the kernels by their rooflines and of the collectives by their links. `step_time` simulates the same parts
with overlap.
"""

from __future__ import annotations

from collections.abc import Mapping

from mtfc.compiler.cost.effects.roofline import computation_of
from mtfc.compiler.cost.hardware import Device
from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.ir.core import Equation, Function
from mtfc.compiler.ir.loops import dim_of, executed, region_of
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.ops.collectives import axes_of, collective_of, kind_of
from mtfc.compiler.ir.types import Axes
from mtfc.compiler.records import sums


def seconds_of(function: Function, topology: Topology, device: Device) -> tuple[float, float]:
    """Return the seconds that one processor computes and communicates in one execution of a placed function."""
    computing = computation_of(function, topology.mesh, device)
    return computing, communication_of(function, topology)


def communication_of(function: Function, topology: Topology) -> float:
    """Return the seconds of the collectives in one execution of a placed function."""
    total = 0.0
    for eqn in function.body:
        if eqn.regions:
            total += dim_of(eqn).size * communication_of(region_of(eqn), topology)
        elif has_trait(eqn, "sends"):
            total += max(lanes_of(eqn, topology).values(), default=0.0)
    return total


def lanes_of(eqn: Equation, topology: Topology) -> Mapping[str, float]:
    """Return the seconds of a collective on each lane that it uses."""
    (number, parts), (kind, axes, size, hops) = collective_of(eqn).messages(eqn), _sending(eqn, topology)
    found = topology.seconds(kind, axes, size / parts, hops)
    return {lane: number * seconds for lane, seconds in found.items()}


def sent_on_lanes(function: Function, topology: Topology) -> dict[str, float]:
    """Return the bytes that one device sends on each lane in one execution of a placed function."""
    sending = ((eqn, times) for eqn, times in executed(function.body) if has_trait(eqn, "sends"))
    sent = ((topology.sent(*_sending(eqn, topology)), times) for eqn, times in sending)
    return sums((lane, times * bytes) for each, times in sent for lane, bytes in each.items())


def _sending(eqn: Equation, topology: Topology) -> tuple[str, Axes, int, int | None]:
    """Return the kind and the axes of a collective, the bytes of the operands, and the distance of a shift."""
    size = sum(value.type.local_bytes(topology.mesh) for value in eqn.operands)
    by = eqn.attrs.get("by")
    return kind_of(eqn), axes_of(eqn), size, abs(by) if isinstance(by, int) else None
