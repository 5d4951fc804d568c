"""Placement strategies on NumPy: results equal the undistributed program's, bytes are at most the task graph's."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest

from mtfc.backends.exact.check import ExactReference, ExactResult
from mtfc.backends.interpreter import interpret
from mtfc.compiler.passes.autodiff.differentiate import Differentiate
from mtfc.compiler.passes.pipelines import run
from mtfc.driver.data.inputs import draw_batch
from mtfc.frontend.hardware_targets import find_hardware
from mtfc.placements.declarations import placement_text
from mtfc.placements.operators.operator_graph import OperatorGraph, operators_of
from mtfc.placements.operators.strategy import Strategy, random_strategy
from mtfc.placements.placement_search import placement_space
from mtfc.placements.running.numpy_runner import Arithmetic, ArrayTasks, Executed, execute
from mtfc.placements.running.placed_program import PlacedProgram
from mtfc.placements.simulator.evaluation import EvaluatedStrategy
from mtfc.placements.strategy_tasks import StrategyTasks
from tests.harness import load
from tests.placements.placement_programs import PROGRAMS, arguments, prepared


def reference(name: str) -> dict[str, Any]:
    """Return outputs, and gradients as `d_` and the parameter's name."""
    program = run(prepared(name), [Differentiate("gradients")])
    return interpret(program.function("gradients"), program, arguments(name))


def agree(found: Executed, wanted: dict[str, Any]) -> None:
    for name, array in found.outputs.items():
        np.testing.assert_allclose(array, wanted[name], rtol=1e-4, atol=1e-5, err_msg=name)
    for name, array in found.gradients.items():
        np.testing.assert_allclose(array, wanted[f"d_{name}"], rtol=1e-3, atol=1e-5, err_msg=name)


def under(name: str, graph: OperatorGraph, strategy: Strategy) -> PlacedProgram:
    """Return a program under a placement of four devices."""
    module = load(PROGRAMS[name] + placement_text("drawn", 4, graph, strategy))
    (program,) = module.programs
    return PlacedProgram(program, module.placements[0], program, "gradients")


def _before_the_update(found: EvaluatedStrategy, tasks: StrategyTasks) -> int:
    """Return the bytes of values and gradients. The norm of gradients belongs to the update, which is not executed."""
    norms = [i for i, name in enumerate(tasks.names) if name.kind == "norm"]
    return found.sent - int(found.base.graph.sent[norms].sum())


@pytest.mark.parametrize("name", PROGRAMS)
def test_random_strategies_compute_the_program_and_send_what_they_need(name: str) -> None:
    space = placement_space(prepared(name), find_hardware("k80_cluster", {}), 4)
    wanted = reference(name)
    parameters = (
        {parameter.name for parameter in prepared(name).parameters} if prepared(name).training else set()
    )
    random = Random(5)
    strategies = [space.data_parallel().strategy, space.expert().strategy]
    strategies += [random_strategy(space.choices, random) for _ in range(5)]
    for strategy in strategies:
        found = execute(under(name, space.graph, strategy), arguments(name))
        assert found.gradients.keys() == parameters
        agree(found, wanted)
        most = _before_the_update(space.evaluator.full(strategy), space.evaluator.tasks)
        assert (most > 0) <= (found.sent > 0)
        most += sum(array.nbytes for array in found.outputs.values())  # outputs are whole on one device
        if name != "detached":  # a device that only reads a parameter needs the sum of its gradients, too
            assert found.sent <= most


def exact(name: str, strategies: list[Strategy]) -> list[ExactResult]:
    """Compare strategies with the undistributed program over a finite field."""
    program = load(PROGRAMS[name]).programs[0]
    given = draw_batch(program.function("forward"), 0, 1)[0]
    reference = ExactReference(program, given, attention=())
    graph = operators_of(prepared(name))

    def compute(strategy: Strategy, arrays: Any, *arithmetic: Any) -> dict[str, Any]:
        found = execute(under(name, graph, strategy), arrays, Arithmetic(*arithmetic))
        return {**found.outputs, **{f"d_{name}": array for name, array in found.gradients.items()}}

    with np.errstate(over="ignore"):
        return [reference.compare_computed("gradients", partial(compute, each)) for each in strategies]


def drawn(name: str, number: int) -> list[Strategy]:
    choices = placement_space(prepared(name), find_hardware("k80_cluster", {}), 4).choices
    return [random_strategy(choices, Random(seed)) for seed in range(number)]


@pytest.mark.parametrize(
    "name", ["dense", "detached", "swapped", "scalars", "padding", "convolutions", "attention"]
)
def test_random_strategies_are_exact(name: str) -> None:
    for found in exact(name, drawn(name, 2)):
        assert not found.wrong and found.elements > found.not_judged


def test_the_exact_check_sees_a_wrong_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last element of what arrives is off by far less than rounding."""

    def sent(tasks: ArrayTasks, array: Any, device: int) -> list[Any]:
        found, last = array.copy(), (-1,) * array.ndim
        found[last] = found[last] + tasks.numpy.full((), 1e-12, array.dtype)
        return [found]

    monkeypatch.setattr(ArrayTasks, "_send", sent)
    assert any(found.wrong for found in exact("dense", drawn("dense", 3)))
