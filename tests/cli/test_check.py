"""`mtfc check`: verdict, diagnostics as text and JSON, layouts of the file and of the command line."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Mtfc

DIAGNOSTIC = {
    "code",
    "severity",
    "message",
    "file",
    "line",
    "column",
    "end_line",
    "end_column",
    "labels",
    "help",
}


def test_a_good_file(mtfc: Mtfc) -> None:
    outcome = mtfc("check", "model.mtf", "--layout", "both")
    assert (outcome.status, outcome.out, outcome.err) == (0, "model.mtf: no errors\n", "")


def test_warnings_are_no_errors(mtfc: Mtfc) -> None:
    outcome = mtfc("check", "model.mtf")
    assert outcome.status == 0
    assert outcome.out == "model.mtf: 1 warning\n"
    assert "warning[W601]" in outcome.err


def test_every_declared_layout_is_checked(mtfc: Mtfc, folder: Path) -> None:
    outcome = mtfc("check", "model.mtf", "--dim", "io=7")
    assert outcome.status == 1
    assert "error[E302]" in outcome.err
    assert mtfc("check", "model.mtf", "--dim", "io=7", "--layout", "data").status == 0


def test_json(mtfc: Mtfc) -> None:
    outcome = mtfc("check", "model.mtf", "--dim", "io=7", "--format", "json")
    assert (outcome.status, outcome.err) == (1, "")
    found = [entry for entry in outcome.json if entry["code"] == "E302"]
    assert len(found) == 1
    assert found[0].keys() >= DIAGNOSTIC
    assert (found[0]["severity"], found[0]["file"], found[0]["line"]) == ("error", "model.mtf", 10)


def test_json_of_a_good_file(mtfc: Mtfc) -> None:
    outcome = mtfc("check", "model.mtf", "--layout", "both", "--format", "json")
    assert (outcome.status, outcome.json) == (0, [])


def test_json_of_a_file_that_is_no_text(mtfc: Mtfc, folder: Path) -> None:
    (folder / "model.mtf").write_bytes(b"\xff")
    outcome = mtfc("check", "model.mtf", "--format", "json")
    assert (outcome.status, outcome.json[0]["code"]) == (1, "E013")


def test_a_layout_of_the_command_line(mtfc: Mtfc) -> None:
    good = mtfc("check", "model.mtf", "--mesh", "rows:4", "--layout", "batch:rows")
    assert (good.status, good.err) == (0, "")
    bad = mtfc("check", "model.mtf", "--mesh", "rows:4", "--layout", "batch:rows;io:rows")
    assert bad.status == 1
    assert "error[E301]" in bad.err
