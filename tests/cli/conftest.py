"""Fixtures that run the command in this process, in a folder of its own."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mtfc.cli import main
from tests.cli.model import MODEL, Outcome

Mtfc = Callable[..., Outcome]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a model in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.mtf").write_text(MODEL)
    return tmp_path


@pytest.fixture
def mtfc(folder: Path, capsys: pytest.CaptureFixture[str]) -> Mtfc:
    def run(*arguments: str) -> Outcome:
        status = main(arguments)
        return Outcome(status, *capsys.readouterr())

    return run
