"""Placement strategies on NumPy: results equal the undistributed program's, bytes are at most the task graph's."""

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

from mtfc.backends.exact.check import ExactReference, ExactResult, call
from mtfc.backends.interpreter import interpret
from mtfc.backends.numpy.backend import load as loaded
from mtfc.compiler.passes.autodiff.differentiate import Differentiate
from mtfc.compiler.passes.pipelines import run
from mtfc.driver.data.inputs import draw_batch
from mtfc.frontend.hardware_targets import find_hardware
from mtfc.placements.declarations import placement_text
from mtfc.placements.operators.operator_graph import OperatorGraph, operators_of
from mtfc.placements.operators.strategy import Strategy, random_strategy
from mtfc.placements.placement_search import placement_space
from mtfc.placements.running.jax.module import generate_numpy
from mtfc.placements.running.placed_program import PlacedProgram
from mtfc.placements.simulator.evaluation import EvaluatedStrategy
from mtfc.placements.strategy_tasks import StrategyTasks
from tests.harness import load
from tests.placements.placement_programs import PROGRAMS, arguments, prepared
from tests.sampling import some


def reference(name: str) -> dict[str, Any]:
    """Return outputs, and gradients as `d_` and the parameter's name."""
    program = run(prepared(name), [Differentiate("gradients")])
    return interpret(program.function("gradients"), program, arguments(name))


def agree(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    for name, array in found.items():
        loose = 1e-3 if name.startswith("d_") else 1e-4
        np.testing.assert_allclose(array, wanted[name], rtol=loose, atol=1e-5, err_msg=name)


def under(name: str, graph: OperatorGraph, strategy: Strategy) -> PlacedProgram:
    """Return a program under a placement of four devices."""
    module = load(PROGRAMS[name] + placement_text("drawn", 4, graph, strategy))
    (program,) = module.programs
    return PlacedProgram(program, module.placements[0], program, "gradients")


def _before_the_update(found: EvaluatedStrategy, tasks: StrategyTasks) -> int:
    """Return the bytes of values and gradients. The norm of gradients belongs to the update, which is not executed."""
    norms = [i for i, name in enumerate(tasks.names) if name.kind == "norm"]
    return found.sent - int(found.base.graph.sent[norms].sum())


@pytest.mark.parametrize("name", some(PROGRAMS, 5))
def test_random_strategies_compute_the_program_and_send_what_they_need(name: str) -> None:
    space = placement_space(prepared(name), find_hardware("k80_cluster", {}), 4)
    wanted, program = reference(name), prepared(name)
    outputs = {output.name for output in program.function("forward").handed_out}
    parameters = {f"d_{parameter.name}" for parameter in program.parameters} if program.training else set()
    function = run(program, [Differentiate("gradients")]).function("gradients")
    random = Random(5)
    strategies = [space.data_parallel().strategy, space.expert().strategy]
    strategies += [random_strategy(space.choices, random) for _ in range(5)]
    for strategy in strategies:
        module = loaded(generate_numpy(under(name, space.graph, strategy)))
        found = call(module, function, arguments(name))
        assert found.keys() == outputs | parameters
        agree(found, wanted)
        most = _before_the_update(space.evaluator.full(strategy), space.evaluator.tasks)
        assert (most > 0) <= (module.SENT > 0)
        most += sum(found[each].nbytes for each in outputs)  # outputs are whole on one device
        if name != "detached":  # a device that only reads a parameter needs the sum of its gradients, too
            assert most >= module.SENT


def exact(
    name: str, strategies: list[Strategy], changed: Callable[[str], str] = lambda text: text
) -> list[ExactResult]:
    """Compare strategies with the undistributed program over a finite field. changed: changes the text of a module."""
    program = load(PROGRAMS[name]).programs[0]
    given = draw_batch(program.function("forward"), 0, 1)[0]
    reference = ExactReference(program, given, attention=())
    graph, function = operators_of(prepared(name)), reference.functions["gradients"][0]
    texts = (changed(generate_numpy(under(name, graph, each))) for each in strategies)
    with np.errstate(over="ignore"):
        return [reference.compare_text([function], text, are_all=False) for text in texts]


def drawn(name: str, number: int) -> list[Strategy]:
    choices = placement_space(prepared(name), find_hardware("k80_cluster", {}), 4).choices
    return [random_strategy(choices, Random(seed)) for seed in range(number)]


@pytest.mark.parametrize(
    "name", ["dense", "detached", "swapped", "scalars", "padding", "convolutions", "attention"]
)
def test_random_strategies_are_exact(name: str) -> None:
    for found in exact(name, drawn(name, 2)):
        assert not found.wrong and found.elements > found.not_judged


def test_the_exact_check_sees_a_wrong_transfer() -> None:
    """The last element of what arrives is off by far less than rounding."""

    def wrong(text: str) -> str:
        last = "x[(-1,) * x.ndim]"
        head = "def send(x, device):\n"
        assert head in text
        return text.replace(
            head, f"{head}    x = np.asarray(x).copy()\n    {last} += np.full((), 1e-12, x.dtype)\n"
        )

    assert any(found.wrong for found in exact("dense", drawn("dense", 3), wrong))
