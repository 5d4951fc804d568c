"""Properties: checks that must pass for every case of a strategy. `make test` tries a fixed number, `make fuzz` goes on.

Each case is drawn by a Hypothesis run of its own, with a seed of its own. Within one run Hypothesis varies every random case,
which finds fewer mistakes: a case is hard because of a combination of parts, and new combinations need new cases.
"""

from collections.abc import Callable, Iterable
from typing import Any
from zlib import crc32

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.properties.failures import failure
from tests.sampling import EVERY_CASE

EXAMPLES = 8 if EVERY_CASE else 5
FEW_EXAMPLES = 4 if EVERY_CASE else 3
"""The number of examples where each takes about a second."""

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
            search(strategy, check, range(first, first + examples))

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        test.strategy, test.check = strategy, check  # type: ignore[attr-defined]
        return test

    return decorate


def search(strategy: st.SearchStrategy[Any], check: Check, seeds: Iterable[int]) -> int:
    """Check one random case for each seed, and return the number of cases. Raise the first failure.

    Every run begins with the simplest case, which is checked once. The failure of a program is reported for the smallest text
    that fails alike, as far as the check reads nothing but the text.
    """
    passed: set[str] = set()

    def once(case: Any) -> None:
        if repr(case) not in passed:
            _checked(check, case)
            passed.add(repr(case))

    for number in seeds:
        ONE_CASE(seed(number)(given(strategy)(once)))()
    return len(passed)


def _checked(check: Check, case: Any) -> None:
    """Check a case, and make the failing program small."""
    try:
        check(case)
    except Exception as error:
        source = getattr(case, "source", None)
        if not isinstance(source, str):
            raise
        raise failure(check.__name__, check, source, error) from error


ONE_CASE = settings(
    max_examples=2,
    phases=(Phase.generate,),
    database=None,
    derandomize=False,
    deadline=None,
    suppress_health_check=QUIET,
    report_multiple_bugs=False,
)
