"""How a long search shows that it goes on: one line on a terminal, again and again, and nothing elsewhere."""

from __future__ import annotations

import sys

from mtfc.compiler.search.found import Progress, silent


def reporter(number: str) -> Progress:
    """Writes figures in the format `number`, `.4g` for example."""
    if not sys.stderr.isatty():
        return silent

    def report(doing: str, best: float | None, bound: float | None) -> None:
        figures = (("best", best), ("at least", bound))
        known = [f"{name} {each:{number}}" for name, each in figures if each is not None]
        _write(", ".join([doing, *known]))

    return report


def clear() -> None:
    """Takes the line away."""
    if sys.stderr.isatty():
        _write("")


def _write(line: str) -> None:
    print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
