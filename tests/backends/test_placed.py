"""Strategies of the `soap` space on NumPy: results are those of the undistributed program, bytes those of the task graph."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from mtfc.backends.interpreter import interpret
from mtfc.backends.placed import Executed, execute
from mtfc.compiler.operators.unroll import Unrolled, unroll
from mtfc.compiler.passes.differentiate import Differentiate
from mtfc.compiler.pipelines import run
from mtfc.compiler.search.soap.known import random_strategy
from mtfc.compiler.search.soap.search import SoapSpace, soap_space
from mtfc.frontend.targets import named
from tests.search.soap_programs import PROGRAMS, arguments, prepared, sliced


def reference(name: str) -> dict[str, Any]:
    """Outputs, and gradients as `d_` and the parameter's name."""
    program = run(prepared(name), [Differentiate("gradients")])
    return interpret(program.function("gradients"), program, arguments(name))


def agree(found: Executed, wanted: dict[str, Any], unrolled: Unrolled) -> None:
    for name, array in found.outputs.items():
        np.testing.assert_allclose(array, wanted[name], rtol=1e-4, atol=1e-5, err_msg=name)
    for name, array in found.gradients.items():
        whole, at = unrolled.slices.get(name, (name, ()))
        part = wanted[f"d_{whole}"][tuple(index for _, index in at)]
        np.testing.assert_allclose(array, part, rtol=1e-3, atol=1e-5, err_msg=name)


def has_all_gradients(found: Executed, space: SoapSpace) -> bool:
    return found.gradients.keys() == {value.name for value in space.graph.parameters}


@pytest.mark.parametrize("name", PROGRAMS)
def test_random_strategies_compute_the_program_and_send_what_the_task_graph_says(name: str) -> None:
    space = soap_space(prepared(name), named("k80_cluster", {}), 4)
    unrolled, wanted = unroll(prepared(name).function("forward")), reference(name)
    random = Random(5)
    strategies = [space.data_parallel().strategy, space.expert().strategy]
    strategies += [random_strategy(space.choices, random) for _ in range(8)]
    for strategy in strategies:
        found = execute(space.evaluator.tasks.flow, strategy, sliced(unrolled, arguments(name)))
        assert has_all_gradients(found, space)
        agree(found, wanted, unrolled)
        assert found.sent == space.evaluator.full(strategy).sent
