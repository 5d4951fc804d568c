"""Parameter servers in place of the all-reduces of gradients, as a baseline of simulated steps (SoyBean, section 2.2).

Each device pushes its gradient to a server, which adds up all of them and updates the parameter, and then pulls the parameter.
The servers share each parameter equally. A server is one more device on the link over which gradients are summed. All devices
push at once, so the port of the server is what limits them; it receives and sends at the same time. The update on the server
takes as long as the update of the devices, which stays in the step. All devices wait for all parameters before the next step
(bulk synchronous).
"""

from __future__ import annotations

from collections.abc import Mapping

from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.ir.core import Equation, Function
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.ops.collectives import axes_of
from mtfc.compiler.records import frozen

IN, OUT = "server receives", "server sends"
"""The lanes of the servers' ports."""


@frozen
class ParameterServers:
    """Some servers beside the devices of a mesh, and the all-reduces of gradients that they replace."""

    number: int
    topology: Topology
    sums: frozenset[Equation]

    @classmethod
    def of(cls, function: Function, topology: Topology, number: int) -> ParameterServers:
        """Return the servers of a step. They replace the all-reduces whose results the update reads."""
        read = {value for eqn in function.body if eqn.stage == "update" for value in eqn.operands}
        sums = (
            eqn for eqn in function.body if has_trait(eqn, "all_reduce") and not read.isdisjoint(eqn.results)
        )
        return cls(number, topology, frozenset(sums))

    def seconds(self, eqn: Equation) -> Mapping[str, float]:
        """Return the seconds in which all devices push a gradient, and then pull the parameter."""
        mesh = self.topology.mesh
        size = sum(value.type.local_bytes(mesh) for value in eqn.operands)
        outermost = max(self.topology.crossings(axes_of(eqn)), key=lambda crossing: crossing.stride)
        link = outermost.lane.link
        pushed = mesh.size(axes_of(eqn)) * size / self.number
        each = link.latency + max(
            pushed / link.bandwidth.at(size), size / self.topology.bandwidth(outermost, "permute", size)
        )
        return {IN: each, OUT: each}
