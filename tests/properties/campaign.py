"""Properties: checks that must pass for every case of a strategy. `make test` tries a fixed number, `make fuzz` goes on.

Each case is drawn by a Hypothesis run of its own, with a seed of its own. Within one run Hypothesis varies every random case,
which finds fewer mistakes: a case is hard because of a combination of parts, and new combinations need new cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from zlib import crc32

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

EXAMPLES = 18
FEW_EXAMPLES = 9
"""The number of examples where each takes about a second."""

PHASES = (Phase.generate, Phase.shrink)
Check = Callable[[Any], None]
QUIET = (
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.large_base_example,
)


def holds_for(strategy: st.SearchStrategy[Any], examples: int = EXAMPLES) -> Callable[[Check], Any]:
    """Make a test of a check: the test runs on a fixed number of cases, the same every time.

    The campaign and the regression tests use the parts of the property.
    """

    def decorate(check: Check) -> Any:
        def test() -> None:
            first = crc32(check.__name__.encode()) << 32  # no two properties try the same programs
            search(strategy, check, range(first, first + examples), shrink=False)

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        test.strategy, test.check = strategy, check  # type: ignore[attr-defined]
        return test

    return decorate


def search(strategy: st.SearchStrategy[Any], check: Check, seeds: Iterable[int], shrink: bool = True) -> int:
    """Check one random case for each seed, and return the number of cases. A failing case is raised; if `shrink`, it is first
    made as small as some minutes allow.

    Every run begins with the simplest case, which is checked once.
    """
    configured = settings(_configured, phases=PHASES if shrink else PHASES[:-1])
    passed: set[str] = set()

    def once(case: Any) -> None:
        if repr(case) not in passed:
            check(case)
            passed.add(repr(case))

    for number in seeds:
        configured(seed(number)(given(strategy)(once)))()
    return len(passed)


_configured = settings(
    max_examples=2,
    database=None,
    derandomize=False,
    deadline=None,
    suppress_health_check=QUIET,
    report_multiple_bugs=False,
)
