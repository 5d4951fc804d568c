"""`mtfc calibrate`: the written file is a target of `simulate`."""

import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Mtfc


def test_calibration_writes_a_target(mtfc: Mtfc, folder: Path) -> None:
    outcome = mtfc("calibrate", "--quick", "--shapes", "--backend", "numpy", "-o", "here.mtf")
    assert (outcome.status, outcome.out) == (0, "")
    assert "dots: {" in Path("here.mtf").read_text("utf-8")
    assert mtfc("fmt", "--check", "here.mtf").status == 0
    asked = ("simulate", "model.mtf", "--target", "here.mtf")
    found = mtfc(*asked, "--mesh", "all:1", "--layout", "replicated", "--format", "json")
    assert found.json["target"] == "here"
    assert found.json["step_seconds"] > 0
    assert mtfc(*asked).status == 1  # two processors, one device


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--backend", "numpy", "--devices", "4"], "--devices is for JAX"),
        (["-o", "none/here.mtf"], "cannot write none/here.mtf: no such directory"),
    ],
)
def test_impossible_calibrations_are_refused_before_measuring(
    mtfc: Mtfc, folder: Path, options: list[str], says: str
) -> None:
    outcome = mtfc("calibrate", *options)
    assert outcome.status == 2
    assert says in outcome.err
    assert "measuring" not in outcome.err


def test_without_jax(mtfc: Mtfc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    outcome = mtfc("calibrate", "--quick")
    assert outcome.status == 3
    assert "needs the package jax" in outcome.err
