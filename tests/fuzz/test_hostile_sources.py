"""Hostile sources: a few in `make test`, and new ones in `make fuzz` for a twentieth of FUZZ_MINUTES."""

from __future__ import annotations

import os
import random
import time

from tests.fuzz.hostile_sources import SECONDS, check_source_of

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
