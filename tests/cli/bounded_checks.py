"""Checks that end, hang or end their process. They import nothing, so that a child runs them at once."""

import os
import time
from collections.abc import Iterator, Sequence

import attrs

from mtfc.driver.verification.checks import Check, Remade, results


@attrs.frozen
class Ended:
    """Stands for the results of a check that did not end."""

    skipped: str | None = None
    failed: str | None = None


def ends() -> list[str]:
    return ["done"]


def sleeps() -> Iterator[str]:
    yield "begun"
    time.sleep(600)


def computes() -> Iterator[str]:
    yield "begun"
    while True:
        pass


def aborts() -> list[str]:
    os.abort()


def raises() -> list[str]:
    raise ValueError("of a check")


def listed(kinds: Sequence[str], seconds: float) -> list[Check]:
    return [Check(kind, globals()[kind], Ended(), seconds) for kind in kinds]


def found(*kinds: str, seconds: float = 60.0, budget: float | None = None) -> list[str]:
    """Return the results of checks in children."""
    remade = Remade("tests.cli.bounded_checks:listed", (kinds, seconds))
    each = results(listed(kinds, seconds), remade, budget)
    return [x if isinstance(x, str) else x.skipped or f"failed: {x.failed}" for x in each]
