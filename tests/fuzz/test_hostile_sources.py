"""Hostile sources: a few in `make test`, and new ones in `make fuzz` for a twentieth of FUZZ_MINUTES.

`make fuzz` also checks all large sources, of a megabyte each. `make test` checks every tenth, at a twentieth of the size.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fuzz.hostile_sources import LARGE, LARGE_SECONDS, LARGE_SOURCES, MEMORY, SECONDS, check_source_of

MINUTES = float(os.environ.get("FUZZ_MINUTES", "0"))
FEW = 60

LIMIT = SECONDS if MINUTES else 5 * SECONDS
"""The seconds of a source: a slow or busy machine must not fail `make test`."""


def test_check_answers_hostile_sources_at_once() -> None:
    check_source_of(0)  # imports
    seconds = {number: check_source_of(number) for number in range(1, FEW)}
    end = time.monotonic() + 3 * MINUTES
    while time.monotonic() < end:
        number = random.randrange(2**63)
        seconds[number] = check_source_of(number)
    assert {number: taken for number, taken in seconds.items() if taken > LIMIT} == {}


def checked_apart(size: int, numbers: range) -> None:
    """Check large sources in a process of their own, which no other test has filled."""
    command = [sys.executable, "-m", "tests.fuzz.hostile_sources", *map(str, (size, *numbers))]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    limit = LARGE_SECONDS if MINUTES else LARGE_SECONDS / 2
    assert {LARGE_SOURCES[int(n)]: taken for n, taken in found["seconds"].items() if taken > limit} == {}
    assert found["memory"] < MEMORY


def test_check_answers_smaller_large_sources() -> None:
    checked_apart(LARGE // 20, range(0, len(LARGE_SOURCES), 10))


@pytest.mark.skipif(not MINUTES, reason="it takes minutes: make fuzz")
@pytest.mark.parametrize("number", range(len(LARGE_SOURCES)))
def test_check_answers_a_megabyte(number: int) -> None:
    checked_apart(LARGE, range(number, number + 1))
