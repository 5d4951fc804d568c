"""Predictions and searches of the Python API agree with the output of the command."""

from __future__ import annotations

import pytest

import mtfc as mtfc_api
from mtfc.compiler.diagnostics import CompileError
from tests.cli.conftest import Mtfc
from tests.cli.model import MODEL


def test_a_step_is_predicted_as_the_command_does(mtfc: Mtfc) -> None:
    compiled = mtfc_api.compile_text(MODEL, layout="both")
    run = mtfc("simulate", "model.mtf", "--layout", "both", "--target", "h100", "--format", "json")
    found = compiled.simulate("h100")
    assert {**found, "lines": None} == {**run.json, "lines": None}
    assert found["step_seconds"] > found["exposed_communication_seconds"] > 0
    with pytest.raises(CompileError, match="unknown hardware"):
        compiled.simulate("abacus")


@pytest.mark.parametrize("space", ["rules", "soap"])
def test_a_search_finds_what_the_command_finds(mtfc: Mtfc, space: str) -> None:
    wanted = ("--space", space, "--target", "p100_cluster", "--devices", "2", "--budget", "1")
    printed = mtfc("search", "model.mtf", *wanted, "--format", "json").json
    found = mtfc_api.search("model.mtf", target="p100_cluster", devices=2, space=space, budget=1.0)
    assert found.keys() == printed.keys()
    assert found["objective_seconds"] == pytest.approx(printed["objective_seconds"])
    assert found["space"] == space and found["lower_bound_seconds"] <= found["objective_seconds"]
