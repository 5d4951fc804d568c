"""The generated NumPy module computes what the undistributed program computes, and sends the bytes that `cost` predicts."""

from typing import Any

from mtfc.backends.interpreter import interpret
from mtfc.compiler.cost.sizes import Numbers
from mtfc.compiler.cost.volumes import charges, total
from mtfc.compiler.ir.core import Program
from mtfc.compiler.passes.pipelines import lower
from tests.generators.programs import programs
from tests.harness import (
    HasSource,
    call,
    differentiated,
    exact_data,
    functions,
    load,
    numpy_module,
    tolerance,
)
from tests.properties.campaign import holds_for


@holds_for(programs())
def test_simulation_of_all_processors_gives_the_results(program: HasSource) -> None:
    """Every processor computes all outputs; processors that should agree are compared bit by bit."""
    _check(program, checked=True)


@holds_for(programs())
def test_simulation_gives_the_results_and_sends_what_cost_predicts(program: HasSource) -> None:
    """Processors share replicated work."""
    _check(program, checked=False)


def _check(program: HasSource, checked: bool) -> None:
    module = load(program.source)
    (original,) = module.programs
    for of, name in functions(original):
        whole = differentiated(original, of)
        arrays = exact_data(whole.function(name), seed=3)
        expected = interpret(whole.function(name), whole, arrays)
        for layout in module.layouts:
            placed = lower(original, layout.mesh, layout.layout, of)
            backend = numpy_module(placed, checked)
            actual = call(backend, placed.function(name), arrays)
            tolerance(original).check(actual, expected, f"{layout.name}: {name} on NumPy")
            if not checked:
                assert _sent(backend) == predicted(placed, name), f"{layout.name}: {name}"
                backend = numpy_module(placed, checked)
                forward = placed.function("forward")
                call(backend, forward, exact_data(forward, seed=4))
                assert _sent(backend) == predicted(placed, "forward"), f"{layout.name}: forward"


def _sent(backend: Any) -> dict[str, dict[str, Any]]:
    """Return the figures of one processor's communication since the module was loaded: kind -> figures."""
    return {kind: figures for kind, figures in backend.SENT.items() if figures["count"]}


def predicted(program: Program, function: str) -> dict[str, dict[str, Any]]:
    """Return the figures that `cost` predicts for one processor's communication: kind -> figures."""
    assert program.mesh is not None
    totals = total(charges(program.function(function), Numbers(program.mesh)))
    return {
        kind: {"count": sent.count, "elements_per_device": sent.elements, "bytes_per_device": sent.bytes}
        for kind, sent in totals.collectives.items()
    }
