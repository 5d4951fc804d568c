"""A program under a placement, from which a module is generated."""

import attrs
import numpy as np

from mtfc.compiler.diagnostics import Diagnostics
from mtfc.compiler.ir.core import Program
from mtfc.compiler.passes.pipelines import run, simplification
from mtfc.placements.declarations import DeclaredPlacement, strategy_of
from mtfc.placements.operators.operator_graph import Operator, OperatorGraph, operators_of
from mtfc.placements.operators.operator_parts import OperatorParts, Unsplittable
from mtfc.placements.operators.strategy import Configuration, Strategy


@attrs.frozen(eq=False)
class PlacedProgram:
    """A global program, before any pass, and its placement.

    declared: the program as the file has it, whose operators the placement names. of: the function to make besides `forward`:
    `step`, `gradients`, `module` for a step with `value_and_grad`, or `forward` for none.
    """

    program: Program
    placement: DeclaredPlacement
    declared: Program
    of: str = "step"

    def configurations(self) -> dict[str, Configuration]:
        """Return the configuration of each operator in training, by name. Raises `CompileError` (E317, E319)."""
        graph = operators_of(run(self.declared, simplification()))
        chosen = strategy_of(self.placement, graph, Diagnostics())
        return {operator.name: each for operator, each in zip(graph.operators, chosen, strict=True)}


def strategy_for(graph: OperatorGraph, known: dict[str, Configuration]) -> Strategy:
    """Return a configuration of each operator: its own, or that of the operator whose result it reads first.

    Outside of training some operators have other names, and a smaller batch cannot be split as a whole one can.
    """
    found = dict[Operator, Configuration]()
    for operator in graph.operators:
        own = known.get(operator.name)
        if own is None:
            makers = (graph.makers[value] for step in operator.steps for value in step.inputs)
            first = next((graph.operator_of[m] for m in makers if graph.operator_of[m] in found), None)
            own = found[first] if first else Configuration((), (0,))
        found[operator] = _possible(operator, own)
    return tuple(found[operator] for operator in graph.operators)


def _possible(operator: Operator, wanted: Configuration) -> Configuration:
    """Return a configuration without the dimensions in which an operator cannot be split evenly."""
    sizes = {dim.name: dim.size for dim in operator.dims}
    possible = tuple((name, n) for name, n in wanted.degrees if name in sizes and not sizes[name] % n)
    while possible and not _is_splittable(operator, possible):
        possible = possible[:-1]
    if possible == wanted.degrees:
        return wanted
    devices = np.reshape(wanted.devices, [n for _, n in wanted.degrees])
    kept_devices = devices[tuple(slice(None) if each in possible else 0 for each in wanted.degrees)]
    return Configuration(possible, tuple(kept_devices.ravel().tolist()))


def _is_splittable(operator: Operator, degrees: tuple[tuple[str, int], ...]) -> bool:
    """Return True if an operator can be split into parts of these degrees."""
    try:
        return bool(OperatorParts(operator, degrees).needs)
    except Unsplittable:
        return False
