"""A program under a placement: its operators on the devices that it says."""

from __future__ import annotations

from mtfc.backends.numpy.placement_runner import execute
from mtfc.compiler.diagnostics import Diagnostics
from mtfc.compiler.ir.core import Program
from mtfc.compiler.passes.pipelines import run, simplification
from mtfc.compiler.search.placement.operators.cotangent_flow import cotangent_flow
from mtfc.compiler.search.placement.placement_search import operators_of
from mtfc.driver.data.npz import Arrays
from mtfc.frontend.layouts.placements import DeclaredPlacement, strategy_of


def run_placed(placement: DeclaredPlacement, program: Program, arrays: Arrays) -> tuple[Arrays, Arrays]:
    """Outputs, and gradients of parameters, by name; none without training. Raises `CompileError` (E317, E319)."""
    graph = operators_of(run(program, simplification()))
    found = execute(cotangent_flow(graph), strategy_of(placement, graph, Diagnostics()), arrays)
    return dict(found.outputs), dict(found.gradients)
