"""Predictions from peak figures say so: as a line of the report, and as a key of the record."""

from pathlib import Path

import pytest

from tests.cli.conftest import Mtfc
from tests.cli.model import MODEL

PLACED = "placement apart on 2 = { loss: { batch: 2 } on [0, 1] }\n"
COMMANDS = [
    ("simulate", "model.mtf", "--layout", "data"),
    ("simulate", "placed.mtf", "--layout", "apart"),
    ("diff", "model.mtf", "--layout", "data", "--layout", "both"),
    ("search", "model.mtf", "--devices", "2"),
    ("search", "model.mtf", "--devices", "2", "--space", "tiling"),
    ("search", "model.mtf", "--devices", "2", "--space", "soap", "--budget", "5"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(("target", "is_peak"), [("p100_cluster", True), ("h100", False)])
def test_results_from_peak_figures_say_so(
    command: tuple[str, ...], target: str, is_peak: bool, mtfc: Mtfc
) -> None:
    Path("placed.mtf").write_text(MODEL + PLACED, "utf-8")
    run = mtfc(*command, "--target", target)
    assert run.status == 0, run.err
    notes = [line for line in run.out.splitlines() if line.startswith(f"  note: {target} has peak figures")]
    assert len(notes) == is_peak
    assert mtfc(*command, "--target", target, "--format", "json").json["peak_figures"] is is_peak


def test_the_difference_of_why_not_says_so_too(mtfc: Mtfc) -> None:
    asked = ("--mesh", "line", "--target", "v100", "--why-not", "batch: all", "--format", "json")
    assert mtfc("search", "model.mtf", *asked).json["why_not"]["difference"]["peak_figures"] is True


def test_without_a_machine_there_is_no_such_key(mtfc: Mtfc) -> None:
    assert "peak_figures" not in mtfc("diff", "model.mtf", "--format", "json").json
