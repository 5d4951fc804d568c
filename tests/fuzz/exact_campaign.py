"""`make fuzz`: the exact check of small random programs, for half of FUZZ_MINUTES. It goes on where the log of seeds ends.

Each seed draws one program with up to three layouts on one mesh; a layout is a case. `exact_log.csv` has the ranges of seeds that
passed. A range with a mismatch is not logged: the campaign stops with the smallest program that fails, and begins there again.
"""

from __future__ import annotations

import csv
import gc
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, seed

from tests.harness import HasSource
from tests.properties.campaign import ONE_CASE
from tests.properties.failures import failure
from tests.properties.test_exact import test_layouts_of_small_programs_are_exact

LOG = Path(__file__).parent / "exact_log.csv"
COLUMNS = ("first_seed", "last_seed", "cases", "mismatches", "commit")
PROPERTY: Any = test_layouts_of_small_programs_are_exact
BLOCK = 100
"""Seeds that one process checks at a time."""

PROCESSES = 2


def drawn(number: int) -> HasSource:
    """Return the program of a seed."""
    found: list[HasSource] = []
    draw = given(PROPERTY.strategy)(lambda program: found.append(program))
    ONE_CASE(seed(number)(draw))()
    return found[-1]


def checked(first: int) -> tuple[int, int, str]:
    """Check a block of seeds. Return the first seed, the number of cases, and the report of a failure."""
    cases = 0
    for number in range(first, first + BLOCK):
        program = drawn(number)
        try:
            cases += PROPERTY.check(program)
        except Exception as error:
            report = failure(PROPERTY.__name__, PROPERTY.check, program.source, error)
            return first, cases, f"seed {number}: {report}"
    return first, cases, ""


def logged() -> tuple[int, int]:
    """Return the first seed that is not in the log, and the number of cases that are."""
    rows = list(csv.DictReader(LOG.open(encoding="utf-8"))) if LOG.exists() else []
    return max((int(row["last_seed"]) + 1 for row in rows), default=0), sum(int(row["cases"]) for row in rows)


def write(first: int, last: int, cases: int, commit: str) -> None:
    """Add a range of seeds without mismatches to the log, or extend the last range if the commit is the same."""
    rows = list(csv.reader(LOG.open(encoding="utf-8"))) if LOG.exists() else [list(COLUMNS)]
    if rows[-1][-1] == commit and int(rows[-1][1]) + 1 == first:
        rows[-1][1:3] = [str(last), str(int(rows[-1][2]) + cases)]
    else:
        rows.append([str(first), str(last), str(cases), "0", commit])
    text = "".join(",".join(row) + "\n" for row in rows)
    temporary = LOG.with_suffix(".new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(LOG)


def results(first: int, end: float) -> Iterator[tuple[int, int, str]]:
    """Check blocks of seeds on all processes until the time is over, and yield what `checked` returns, in order."""
    with ProcessPoolExecutor(PROCESSES, get_context("spawn"), quiet) as pool:
        running = deque(pool.submit(checked, first + BLOCK * i) for i in range(2 * PROCESSES))
        first += BLOCK * len(running)
        while running:
            yield running.popleft().result()
            if time.monotonic() < end:
                running.append(pool.submit(checked, first))
                first += BLOCK


def quiet() -> None:
    """Prepare a process: most of what a compilation makes has no cycles."""
    np.seterr(all="ignore")
    gc.set_threshold(50_000, 50, 50)


def main(minutes: float) -> int:
    """Check blocks of seeds until the time is over; return the exit status."""
    first, before = logged()
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    start, cases = time.monotonic(), 0
    for begin, found, report in results(first, start + 60 * minutes):
        if report:
            print(f"\n{report}")
            return 1
        cases += found
        write(begin, begin + BLOCK - 1, found, commit)
        rate = PROCESSES * 1000 * (time.monotonic() - start) / cases
        print(f"\rseeds {first}-{begin + BLOCK - 1}: {cases} cases, {rate:.0f} ms each", end="", flush=True)
    print(f"\n{before + cases} cases in all, 0 mismatches")
    return 0


if __name__ == "__main__":
    sys.exit(main(float(os.environ.get("FUZZ_MINUTES", "10")) / 2))
