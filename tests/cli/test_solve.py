"""`mtfc solve`: the solution as JSON, files, and messages about instances without a solution."""

import copy
import gzip
import json
import math
import time
from pathlib import Path

import pytest

from mtfc.compiler.search.solver import solver_search
from mtfc.driver.searching import compilation_time
from tests.cli.conftest import Mtfc
from tests.search.test_contest_format import EXAMPLE


def test_the_solution_is_printed(mtfc: Mtfc, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation_time, "SHORT", math.inf)  # another test sees what a first run says
    (folder / "example.json").write_text(json.dumps(EXAMPLE))
    outcome = mtfc("solve", "example.json", "--time-limit", "300")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.json.keys() == {"cost", "lower_bound", "choices", "seconds"}
    assert (outcome.json["cost"], outcome.json["lower_bound"]) == (445, 445)
    assert outcome.json["choices"] == [0, 0, 2, 1, 0]


def test_compressed_and_to_a_file(mtfc: Mtfc, folder: Path) -> None:
    (folder / "example.json.gz").write_bytes(gzip.compress(json.dumps(EXAMPLE).encode()))
    assert mtfc("solve", "example.json.gz", "--time-limit", "300", "-o", "solution.json").out == ""
    assert json.loads((folder / "solution.json").read_text())["cost"] == 445


def test_compiling_loops_takes_nothing_of_the_time(
    mtfc: Mtfc, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = pytest.importorskip("numba.core.event")

    def compiled() -> None:
        with event.trigger_event("numba:compile"):
            time.sleep(1.5)

    monkeypatch.setattr(solver_search, "compile_loops", compiled)
    monkeypatch.setattr(compilation_time, "SHORT", 1.0)
    (folder / "example.json").write_text(json.dumps(EXAMPLE))
    outcome = mtfc("solve", "example.json", "--time-limit", "2")
    assert outcome.json["lower_bound"] == 445
    assert "not in the --time-limit" in outcome.err


def test_no_solution(mtfc: Mtfc, folder: Path) -> None:
    record = copy.deepcopy(EXAMPLE)
    record["problem"]["usage_limit"] = 49
    (folder / "small.json").write_text(json.dumps(record))
    outcome = mtfc("solve", "small.json", "--time-limit", "300")
    assert (outcome.status, outcome.out) == (1, "")
    assert "small.json has no solution" in outcome.err


def test_a_malformed_file(mtfc: Mtfc, folder: Path) -> None:
    (folder / "wrong.json").write_text("{}")
    outcome = mtfc("solve", "wrong.json")
    assert outcome.status == 1
    assert "wrong.json: expected a key `problem` in the file; there are none" in outcome.err


def test_wrong_usage(mtfc: Mtfc) -> None:
    assert mtfc("solve", "missing.json").status == 2
    for limit in ("0", "-1", "nan", "inf", "soon"):
        outcome = mtfc("solve", "missing.json", "--time-limit", limit)
        assert (outcome.status, "seconds above 0" in outcome.err) == (2, True)


def test_the_format_is_json(mtfc: Mtfc, folder: Path) -> None:
    (folder / "example.json").write_text(json.dumps(EXAMPLE))
    assert mtfc("solve", "example.json", "--format", "json").json["cost"] == 445
