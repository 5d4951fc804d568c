"""Shared by tests of equation layouts: the network of a program, and the cost of compiled layouts."""

from collections.abc import Collection
from pathlib import Path

from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.cost.tables.reshard_costs import Conversions
from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.ir.core import Equation, Function, Program
from mtfc.compiler.ir.loops import dim_of, region_of
from mtfc.compiler.ir.opdef import ReshardStep
from mtfc.compiler.ir.ops.collectives import KIND_OF, SENDINGS, axes_of
from mtfc.compiler.ir.types import Layout, Mesh
from mtfc.compiler.passes.pipelines import lower
from mtfc.compiler.search.per_equation.choice_network import ChoiceNetwork
from mtfc.compiler.search.per_equation.network_builder import NetworkBuilder
from mtfc.compiler.search.per_equation.per_equation_search import timed_network
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.layout_targets import prepared
from mtfc.driver.loading.selection import choose
from mtfc.frontend.hardware_targets import find_hardware

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str, **dims: int) -> Program:
    text = (EXAMPLES / f"{name}.mtf").read_text()
    choice = Choice(None, None, None, dims)
    return choose(text, f"{name}.mtf", choice, skip_illegal=True, every_layout=True).program


def machine(name: str) -> Hardware:
    return find_hardware(name, {})


def network_of(program: Program, mesh: Mesh, hardware: Hardware | None = None) -> ChoiceNetwork:
    """Return the network priced in seconds, or without hardware in bytes that all devices send."""
    function, dims = prepared(program), set(program.dims)
    if hardware is not None:
        return timed_network(function, Topology.of(mesh, hardware), hardware.device, dims)
    return sent_network(function, mesh, dims)


def sent_network(
    function: Function, mesh: Mesh, splittable: Collection[str], kind: type[NetworkBuilder] = NetworkBuilder
) -> ChoiceNetwork:
    """Return the network priced in bytes that all devices send, which SoyBean minimizes (section 4.2)."""

    def bytes_sent(step: ReshardStep) -> float:
        return step.bytes_sent(mesh) * mesh.devices

    builder = kind(
        mesh,
        Conversions(mesh, bytes_sent),
        splittable,
        work=lambda eqn, placed: [0.0] * len(placed),
        copying=lambda eqn, value, types: [0.0] * len(types),
    )
    return builder.network(function)


def compiled(program: Program, mesh: Mesh, layout: Layout) -> Function:
    """Return the function that a search prices: the step, or the forward pass if the file does not train."""
    lowered = lower(program, mesh, layout)
    return lowered.function("step" if lowered.has_function("step") else "forward")


def bytes_of(body: tuple[Equation, ...], mesh: Mesh) -> float:
    """Return the bytes that all devices send in a lowered function."""
    total = 0.0
    for eqn in body:
        if eqn.regions:
            total += dim_of(eqn).size * bytes_of(region_of(eqn).body, mesh)
        elif eqn.op in KIND_OF:
            factor = SENDINGS[KIND_OF[eqn.op]].ring_bytes(mesh.size(axes_of(eqn)))
            total += sum(v.type.local_bytes(mesh) * factor for v in eqn.operands) * mesh.devices
    return total
