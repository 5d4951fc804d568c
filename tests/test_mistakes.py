"""Test that the message about a mistake names a remedy, and that the remedy works: the tables are in `mistakes.py`."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest

from mtfc.cli import main
from mtfc.frontend.check import check
from tests.mistakes import IN_FILES, MODEL, ON_THE_COMMAND_LINE


@pytest.mark.parametrize(
    ("old", "wrong", "message", "remedy", "right"), IN_FILES, ids=[row[1].strip()[:40] for row in IN_FILES]
)
def test_mistakes_in_files(old: str, wrong: str, message: str, remedy: str, right: str) -> None:
    assert MODEL.count(old) == 1
    errors = check(MODEL.replace(old, wrong), "model.mtf").errors
    assert f"{errors[0].code}: {errors[0].message}".startswith(message)
    assert remedy in f"{errors[0].message} {errors[0].help}"
    assert not check(MODEL.replace(old, right), "model.mtf").errors


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a folder with a model, parameters and data the current one."""
    monkeypatch.chdir(tmp_path)
    for place in ("folder", "data"):
        Path(place).mkdir()
    for file in ("model.mtf", "folder/model.mtf"):
        Path(file).write_text(MODEL)
    np.savez("params.npz", w=np.zeros((6, 3), np.float32))
    np.savez("data/x.npz", x=np.zeros((4, 6), np.float32), labels=np.zeros(4, np.int32))


@pytest.mark.parametrize(("wrong", "message", "remedy", "right"), ON_THE_COMMAND_LINE)
@pytest.mark.usefixtures("folder")
def test_mistakes_on_the_command_line(
    wrong: str, message: str, remedy: str, right: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(wrong)) in (1, 2)
    shown = capsys.readouterr()
    assert message in shown.err + shown.out and remedy in shown.err + shown.out
    assert main(shlex.split(right)) == 0
