"""Hostile sources: a few in `make test`, and new ones in `make fuzz` for a twentieth of FUZZ_MINUTES.

`make fuzz` also checks all large sources, of a megabyte each. `make test` checks every tenth, at a twentieth of the size.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.hostile_sources import LARGE, LARGE_SECONDS, LARGE_SOURCES, MEMORY, SECONDS

MINUTES = float(os.environ.get("FUZZ_MINUTES", "0"))

SLOWNESS = 1 if MINUTES else 5
"""The factor of the time of a source: a slow or busy machine must not fail `make test`."""


def checked(arguments: tuple[object, ...], limit: float) -> None:
    """Check sources in a process of their own: none takes more seconds than the limit, or too much memory."""
    command = [sys.executable, "-m", "tests.fuzz.hostile_sources", *map(str, arguments)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {number: taken for number, taken in found["seconds"].items() if taken > limit} == {}
    assert found["memory"] < MEMORY, f"source {found['largest']}"


def test_check_answers_hostile_sources_at_once() -> None:
    checked(("FOR", 3 * MINUTES), SLOWNESS * SECONDS)


def test_check_answers_smaller_large_sources() -> None:
    checked((LARGE // 20, *range(0, len(LARGE_SOURCES), 10)), LARGE_SECONDS / 2)


@pytest.mark.skipif(not MINUTES, reason="it takes minutes: make fuzz")
@pytest.mark.parametrize("number", range(len(LARGE_SOURCES)))
def test_check_answers_a_megabyte(number: int) -> None:
    checked((LARGE, number), LARGE_SECONDS)
