"""Properties: checks that must pass for every case of a strategy, in `make test` a fixed number of them, in `make fuzz` without end.

The examples of `make test` are the same on every run. Only the campaign draws new ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXAMPLES = 300
COMPILED_EXAMPLES = 60
"""Where each example is compiled by XLA."""

Check = Callable[[Any], None]
QUIET = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example)


def holds_for(strategy: st.SearchStrategy[Any], examples: int = EXAMPLES) -> Callable[[Check], Check]:
    """Make a test of a check: it runs on that many cases. The parts stay accessible to the campaign."""

    def decorate(check: Check) -> Check:
        test: Any = property_test(strategy, check, examples, derandomize=True)
        test.strategy, test.check = strategy, check
        return test  # type: ignore[no-any-return]

    return decorate


def property_test(strategy: st.SearchStrategy[Any], check: Check, examples: int, derandomize: bool) -> Check:
    configured = settings(
        max_examples=examples,
        derandomize=derandomize,
        database=None,
        deadline=None,
        suppress_health_check=QUIET,
        report_multiple_bugs=False,
    )
    return configured(given(strategy)(check))
