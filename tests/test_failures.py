"""A failing random program ends as a small file, with the pass that is wrong: tests with planted faults."""

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from mtfc.backends.numpy import backend
from mtfc.compiler.ir.core import Equation, Function, Program
from mtfc.compiler.passes.mixed_precision import MixedPrecision
from mtfc.compiler.passes.pass_base import Pass
from tests.properties import again, failures, test_numpy, test_passes
from tests.properties.failures import SmallestFailure

LINES = 12
"""A program with one equation has about ten lines: dims, a mesh, a layout, a model."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "FOLDER", tmp_path)


def plant(patch: pytest.MonkeyPatch, owner: type[Pass], change: Callable[[Equation], Equation]) -> None:
    """Let a pass change equations after its work."""
    right = owner.run

    def wrong(self: Pass, program: Program) -> Program:
        return right(self, program).map_functions(changed)

    def changed(function: Function) -> Function:
        return attrs.evolve(function, body=tuple(map(change, function.body)))

    patch.setattr(owner, "run", wrong)


def difference(eqn: Equation) -> Equation:
    return attrs.evolve(eqn, op="sub") if eqn.op == "add" else eqn


def test_the_report_names_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, MixedPrecision, difference)
    check = test_passes.test_differentiation_keeps_the_outputs
    with pytest.raises(SmallestFailure) as raised:
        check()
    text = str(raised.value)
    assert f"first pass whose output differs: {MixedPrecision.name} " in text
    (path,) = failures.FOLDER.glob("*.mtf")
    assert str(path) in text
    assert len(path.read_text("utf-8").splitlines()) <= LINES
    with pytest.raises(AssertionError):
        again.main(check.__name__, str(path))
    monkeypatch.undo()
    again.main(check.__name__, str(path))


def test_a_fault_of_a_backend_is_behind_the_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "SECONDS", 2.0)  # the program need not be the smallest
    right = backend.generate
    monkeypatch.setattr(backend, "generate", lambda *given: right(*given).replace("np.tanh(", "np.sin("))
    with pytest.raises(SmallestFailure, match="first pass whose output differs: none"):
        test_numpy.test_simulation_gives_the_results_and_sends_what_cost_predicts()
