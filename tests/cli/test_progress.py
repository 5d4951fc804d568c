"""The line on a terminal that says what a long command does."""

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from mtfc.cli.progress import figures_line
from mtfc.compiler.activity import doing, each_of, report_progress, watched

COMMAND = """
import sys, time
from mtfc.cli import main, progress
progress.PATIENCE = 0.2
from mtfc.cli import check
from mtfc.compiler.activity import doing

def run(options):
    print("first")
    with doing("waiting [batch]"):
        until = time.monotonic() + {seconds}
        while time.monotonic() < until and getattr(getattr(sys.stderr, "line", None), "bar", None) is None:
            time.sleep(0.02)
        time.sleep({after})
    print("last", flush=True)
    return 0

check.run = run
sys.exit(main(["check", "x.mtf", *sys.argv[1:]]))
"""
"""A command with two lines of output, and a silence between them that ends after the line has appeared."""


def in_terminal(
    command: Sequence[str],
    environment: Mapping[str, str] = {},
    interrupt_at: str = "",
    out: Path | None = None,
) -> tuple[str, int]:
    """Run a command on a terminal of its own; return what the terminal gets, and the status.

    interrupt_at: send Ctrl-C once the terminal has got this text. out: the file that standard output goes to, if any.
    """
    main, terminal = pty.openpty()
    to = terminal if out is None else out.open("wb")
    variables = {
        key: os.environ[key] for key in os.environ if key not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")
    }
    process = subprocess.Popen(
        [sys.executable, *command],
        stdin=terminal,
        stdout=to,
        stderr=terminal,
        env={**variables, "TERM": "xterm", **environment},
        start_new_session=True,
    )
    os.close(terminal)
    shown, interrupted = b"", False
    while True:
        try:
            part = os.read(main, 1 << 16)
        except OSError:  # the last process has closed the terminal
            break
        if not part:
            break
        shown += part
        if interrupt_at and interrupt_at.encode() in shown and not interrupted:
            interrupted = True
            process.send_signal(signal.SIGINT)
    os.close(main)
    return shown.decode(), process.wait(timeout=60)


def screen(shown: str) -> list[str]:
    """Return the lines that are left on a terminal: a carriage return and `erase line` are obeyed, and colours are left out."""
    lines, column = [""], 0
    for code, text in re.findall(r"(\x1b\[[?\d;]*[A-Za-z]|\r|\n)|([^\x1b\r\n]+)", shown):
        if code == "\n":
            lines.append("")
            column = 0
        elif code == "\r":
            column = 0
        elif code.endswith("K"):
            lines[-1] = lines[-1][:column] if code == "\x1b[K" else ""
        elif code.endswith("A"):
            del lines[len(lines) - int(code[2:-1] or 1) :]
        else:
            lines[-1] = lines[-1][:column] + text + lines[-1][column + len(text) :]
            column += len(text)
    return [line.rstrip() for line in lines]


def slow(seconds: float = 60.0, after: float = 0.2) -> list[str]:
    """Return a command that waits for the line as long as `seconds`, and then some time more."""
    return ["-c", COMMAND.format(seconds=seconds, after=after)]


def test_a_silent_command_says_what_it_does_and_leaves_its_output_alone() -> None:
    shown, status = in_terminal(slow())
    assert status == 0
    assert "mtfc check: waiting [batch]" in shown
    assert screen(shown) == ["first", "last", ""]
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l"), "the cursor is visible"


def test_an_interrupt_leaves_a_clean_terminal() -> None:
    shown, status = in_terminal(slow(after=60.0), interrupt_at="waiting")
    assert status == 130
    assert screen(shown) == ["first", "mtfc: interrupted", ""]
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l"), "the cursor is visible"


def test_a_file_gets_the_output_alone(tmp_path: Path) -> None:
    """Standard output may be a pipe while the line is on the terminal."""
    shown, _ = in_terminal(slow(), out=tmp_path / "out")
    assert "waiting" in shown
    assert (tmp_path / "out").read_text() == "first\nlast\n"
    piped = subprocess.run([sys.executable, *slow(0.5)], capture_output=True, text=True)
    assert (piped.stdout, piped.stderr) == ("first\nlast\n", "")


@pytest.mark.parametrize("option", ["--color=never", "NO_COLOR"])
def test_the_line_has_no_colours_if_none_are_wanted(option: str) -> None:
    is_option = option.startswith("--")
    shown, _ = in_terminal([*slow(), *[option] * is_option], {} if is_option else {option: "1"})
    assert "waiting" in shown
    assert not re.search(r"\x1b\[[\d;]*[1-9]\d*m", shown)


def test_a_narrow_terminal_gets_one_line() -> None:
    shown, _ = in_terminal(slow(), {"COLUMNS": "16"})
    assert "mtfc check: …" in shown
    assert screen(shown) == ["first", "last", ""]


def test_a_terminal_without_abilities_has_no_line() -> None:
    shown, _ = in_terminal(slow(0.5), {"TERM": "dumb"})
    assert shown.replace("\r", "") == "first\nlast\n"


def test_activities_are_nested_and_end() -> None:
    with watched() as found:
        with doing("compiling"):
            for _ in each_of("ab", "layout"):
                with doing("cse"):
                    last = str(found)
        assert (last, str(found)) == ("compiling: layout 2 of 2: cse", "")
        with pytest.raises(ValueError), doing("fails"):
            raise ValueError
        assert str(found) == ""
    with doing("unwatched"):
        assert str(found) == ""


def test_a_search_shows_figures_and_the_rest_of_its_time() -> None:
    with watched() as found, doing("mtfc search"):
        with figures_line(".3g", 9.9):
            report_progress("12 strategies", 0.12345)
            with doing("cse"):
                assert str(found) == "12 strategies, best 0.123, 10 s left"
        assert str(found) == "mtfc search"
