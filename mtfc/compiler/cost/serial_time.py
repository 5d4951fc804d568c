"""What a compiled program costs on a machine, without overlap: what searches compare.

The sum of what its equations take by their rooflines and its collectives by their links: the parts that `step_time` simulates and
lets overlap.
"""

from __future__ import annotations

from collections.abc import Mapping

from mtfc.compiler.cost.hardware import Device
from mtfc.compiler.cost.roofline import work
from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.ir.core import Equation, Function
from mtfc.compiler.ir.loops import dim_of, region_of
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.ops.collectives import axes_of, kind_of


def seconds_of(function: Function, topology: Topology, device: Device) -> tuple[float, float]:
    """Seconds that one processor computes and communicates in one execution of a placed function."""
    compute = communication = 0.0
    for eqn, each in zip(function.body, work(function, topology.mesh, device), strict=True):
        if eqn.regions:
            inside, trips = seconds_of(region_of(eqn), topology, device), dim_of(eqn).size
            compute += inside[0] * trips + each.seconds
            communication += inside[1] * trips
        elif has_trait(eqn, "sends"):
            communication += max(lanes_of(eqn, topology).values(), default=0.0)
        else:
            compute += each.seconds
    return compute, communication


def lanes_of(eqn: Equation, topology: Topology) -> Mapping[str, float]:
    """What a collective takes on each lane that it works on."""
    size = sum(value.type.local_bytes(topology.mesh) for value in eqn.operands)
    by = eqn.attrs.get("by")
    return topology.seconds(kind_of(eqn), axes_of(eqn), size, abs(by) if isinstance(by, int) else None)
