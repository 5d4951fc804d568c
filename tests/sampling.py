"""Tables of cases of which `make test` runs some. `make test-all` runs every case."""

import os
from collections.abc import Iterable
from typing import TypeVar

EVERY_CASE = "EVERY_CASE" in os.environ

Case = TypeVar("Case")


def some(cases: Iterable[Case], count: int) -> list[Case]:
    """Return a number of cases at equal distances, the first and last among them; of 1 case the last. `EVERY_CASE`: all."""
    table = [*cases]
    if EVERY_CASE or count >= len(table):
        return table
    if count == 1:
        return table[-1:]
    return [table[round(i * (len(table) - 1) / (count - 1))] for i in range(count)]
