"""`make fuzz`: the exact check of small random programs, for half of FUZZ_MINUTES. It goes on where the logs of seeds end.

Each seed draws one program with up to three layouts on one mesh; a layout is a case. There are three sources of programs: models
with bounded values, wild models, and functions of JAX. Each has a log of the ranges of seeds that passed. A block of seeds with a
mismatch is not logged: the campaign prints the program that fails, and the next campaign begins with this block.
`FUZZ_SOURCE=jax` runs one source alone.
"""

import csv
import gc
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import count, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from hypothesis import given, seed

from tests.harness import HasSource
from tests.properties.campaign import ONE_CASE
from tests.properties.failures import failure
from tests.properties.test_exact import test_layouts_of_small_programs_are_exact
from tests.properties.wild_cases import check_jax_function, check_wild

FOLDER = Path(__file__).parent
LOGS = {"bounded": FOLDER / "exact_log.csv", "wild": FOLDER / "wild_log.csv", "jax": FOLDER / "jax_log.csv"}
"""Source of programs -> its log."""

COLUMNS = ("first_seed", "last_seed", "cases", "mismatches", "commit")
PROPERTY: Any = test_layouts_of_small_programs_are_exact
BLOCK = 100
"""Seeds that one process checks at a time."""

PROCESSES = int(os.environ.get("FUZZ_PROCESSES", "2"))


def drawn(number: int) -> HasSource:
    """Return the program of a seed."""
    found: list[HasSource] = []
    draw = given(PROPERTY.strategy)(lambda program: found.append(program))
    ONE_CASE(seed(number)(draw))()
    return found[-1]


def check_bounded(number: int) -> int:
    """Check the program of a seed. Return the number of cases. Raise an error with the smallest program that fails."""
    program = drawn(number)
    try:
        cases: int = PROPERTY.check(program)
    except Exception as error:
        raise failure(PROPERTY.__name__, PROPERTY.check, program.source, error) from error
    return cases


CHECKS: dict[str, Callable[[int], int]] = {
    "bounded": check_bounded,
    "wild": check_wild,
    "jax": check_jax_function,
}


def checked(source: str, first: int) -> tuple[int, int, str]:
    """Check a block of seeds. Return the first seed, the number of cases, and the report of a failure."""
    cases = 0
    for number in range(first, first + BLOCK):
        try:
            cases += CHECKS[source](number)
        except Exception as error:
            return first, cases, f"{source}, seed {number}: {error}"
    return first, cases, ""


@attrs.define
class Log:
    """The ranges of seeds of a source that passed, as rows of `COLUMNS`, by their first seed."""

    path: Path
    rows: list[list[str]]

    @classmethod
    def read(cls, path: Path) -> "Log":
        return cls(path, list(csv.reader(path.open(encoding="utf-8")))[1:] if path.exists() else [])

    @property
    def cases(self) -> int:
        return sum(int(row[2]) for row in self.rows)

    def missing(self) -> Iterator[int]:
        """Yield the first seed of each block that is not in the log, without end."""
        done = {seed for first, last, *_ in self.rows for seed in range(int(first), int(last), BLOCK)}
        return (first for first in count(0, BLOCK) if first not in done)

    def add(self, first: int, cases: int, commit: str) -> None:
        """Add a block, and write the file. The block extends the range before it if the commit is the same."""
        before = next((row for row in self.rows if int(row[1]) + 1 == first and row[-1] == commit), None)
        if before is not None:
            before[1:3] = [str(first + BLOCK - 1), str(int(before[2]) + cases)]
        else:
            self.rows.append([str(first), str(first + BLOCK - 1), str(cases), "0", commit])
            self.rows.sort(key=lambda row: int(row[0]))
        temporary = self.path.with_suffix(".new")
        temporary.write_text("".join(",".join(row) + "\n" for row in [COLUMNS, *self.rows]), encoding="utf-8")
        temporary.replace(self.path)


def results(source: str, blocks: Iterator[int], end: float) -> Iterator[tuple[int, int, str]]:
    """Check blocks of seeds of a source on all processes until the time is over, and yield what `checked` returns, in order."""
    with ProcessPoolExecutor(PROCESSES, get_context("spawn"), quiet) as pool:
        running = deque(pool.submit(checked, source, first) for first in islice(blocks, 2 * PROCESSES))
        while running:
            yield running.popleft().result()
            if time.monotonic() < end:
                running.append(pool.submit(checked, source, next(blocks)))


def quiet() -> None:
    """Prepare a process: most of what a compilation makes has no cycles."""
    np.seterr(all="ignore")
    gc.set_threshold(50_000, 50, 50)


def main(minutes: float) -> int:
    """Check blocks of seeds of each source until the time is over; return the exit status."""
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    asked = os.environ.get("FUZZ_SOURCE")
    sources = [asked] if asked else [*LOGS]
    failures = sum(campaign(source, minutes / len(sources), commit) for source in sources)
    return 1 if failures else 0


def campaign(source: str, minutes: float, commit: str) -> int:
    """Check blocks of seeds of one source until the time is over; return the number of blocks that failed."""
    log, start, cases, failures = Log.read(LOGS[source]), time.monotonic(), 0, 0
    for first, found, report in results(source, log.missing(), start + 60 * minutes):
        if report:
            failures += 1
            print(f"\n{report}")
            continue
        cases += found
        log.add(first, found, commit)
        rate = PROCESSES * 1000 * (time.monotonic() - start) / cases
        print(
            f"\r{source}: seeds {first}-{first + BLOCK - 1}: {cases} cases, {rate:.0f} ms each",
            end="",
            flush=True,
        )
    print(f"\n{source}: {log.cases} cases in the log with 0 mismatches; {failures} blocks of seeds failed")
    return failures


if __name__ == "__main__":
    sys.exit(main(float(os.environ.get("FUZZ_MINUTES", "10")) / 2))
