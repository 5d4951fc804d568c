"""The progress of a long search: a line on a terminal that is rewritten from time to time, and nothing elsewhere."""

from __future__ import annotations

import sys
from time import monotonic

from mtfc.compiler.search.found import Progress, silent

OFTEN = 0.1
"""Least seconds from one line to the next."""


def reporter(number: str, until: float) -> Progress:
    """Return a function that writes figures in the format `number`, for example `.4g`, and the seconds left `until` a time of
    `monotonic`.
    """
    if not sys.stderr.isatty():
        return silent
    written = 0.0

    def report(doing: str, best: float | None, bound: float | None) -> None:
        nonlocal written
        now = monotonic()
        if now - written < OFTEN:
            return
        written = now
        figures = (("best", best), ("at least", bound))
        known = [f"{name} {each:{number}}" for name, each in figures if each is not None]
        _write(", ".join([doing, *known, f"{max(until - now, 0.0):.0f} s left"]))

    return report


def clear() -> None:
    """Erase the line."""
    if sys.stderr.isatty():
        _write("")


def _write(line: str) -> None:
    print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
