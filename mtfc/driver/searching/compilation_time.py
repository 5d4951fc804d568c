"""The time that Numba takes to compile loops. No search includes this time in its budget.

Numba compiles loops when they first run after an installation, and keeps the result. That takes seconds.
"""

from collections.abc import Callable
from typing import TypeVar

from mtfc.driver.errors import say

SHORT = 2.0
"""Seconds of compilation that are not reported."""

T = TypeVar("T")


def timing_compilation(action: Callable[[], T], option: str | None = None) -> tuple[T, float]:
    """Return the result of an action, and the seconds that Numba compiled loops during the action.

    Reports a long compilation. option: the option whose seconds do not include the compilation, if any.
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
        apart = f"; this time is not in the {option}" if option else ""
        say(f"loops were compiled in {seconds:.0f} s, and kept for later runs{apart}")
    return result, seconds
