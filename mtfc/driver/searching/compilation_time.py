"""Loops that Numba compiles the first time after an installation: that takes seconds, which are not in a search's time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mtfc.driver.errors import say

SHORT = 2.0
"""Seconds of compiling that are not worth a word."""

Result = TypeVar("Result")


def compiling(action: Callable[[], Result], option: str | None) -> tuple[Result, float]:
    """What an action gives, and for how many seconds loops were compiled in it: where these are many, says so, and that the time
    of the option, if one gives a time, is without them.
    """
    try:
        from numba.core.event import install_timer
    except ImportError:
        return action(), 0.0
    spent: list[float] = []
    with install_timer("numba:compile", spent.append):
        result = action()
    seconds = sum(spent)
    if seconds > SHORT:
        apart = f"; this is not in the {option}" if option else ""
        say(f"loops were compiled in {seconds:.0f} s, and are kept{apart}")
    return result, seconds
