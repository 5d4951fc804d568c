"""The line that long searches show on a terminal."""

from __future__ import annotations

import io
import sys
from time import monotonic

import pytest

from mtfc.cli.progress import reporter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_what_is_done_and_how_long_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    report = reporter(".3g", monotonic() + 9.9)
    report("12 strategies", 0.12345, None)
    assert terminal.getvalue() == "\r\x1b[K12 strategies, best 0.123, 10 s left"
    report("13 strategies", 0.1, None)
    assert "13" not in terminal.getvalue(), "lines that no one could read are left out"


def test_elsewhere_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    reporter(".3g", monotonic())("12 strategies", 1.0, 0.5)
    assert file.getvalue() == ""
