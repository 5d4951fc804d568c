"""A measured figure with its target, and the measurement of times."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median

import attrs


@attrs.frozen
class Figure:
    """A figure. limit: the largest accepted value; None for a figure without a target."""

    what: str
    value: float
    unit: str
    limit: float | None = None

    @property
    def missed(self) -> bool:
        return self.limit is not None and self.value > self.limit

    def __str__(self) -> str:
        target = (
            "" if self.limit is None else f"  (at most {self.limit:,.10g}{', MISSED' if self.missed else ''})"
        )
        number = f"{self.value:>12,.0f}" if self.unit == "B" else f"{self.value:>12.4g}"
        return f"{self.what:<76} {number} {self.unit}{target}"


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def processor_seconds(command: list[str], environment: Mapping[str, str]) -> float:
    """Return the processor time of a process, which other processes lengthen less than its duration."""
    before = getrusage(RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True, env=environment)
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def median_seconds(work: Callable[[], object], runs: int) -> float:
    """Return the median seconds of `runs` runs, after a run that is not counted."""
    work()
    return median(seconds(work) for _ in range(runs))


def median_ratio(a: Callable[[], object], b: Callable[[], object], runs: int) -> tuple[float, float, float]:
    """Return the median seconds of `a` and of `b`, run alternately, and the median ratio of the pairs."""
    a(), b()
    pairs = [(seconds(a), seconds(b)) for _ in range(runs)]
    return median(x for x, _ in pairs), median(y for _, y in pairs), median(x / y for x, y in pairs)
