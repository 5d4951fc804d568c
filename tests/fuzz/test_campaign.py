"""`make fuzz`: check every property on new random cases for half of FUZZ_MINUTES; properties share the time equally."""

import importlib
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.properties.campaign import search

MINUTES = float(os.environ.get("FUZZ_MINUTES", "0"))


def properties() -> list[Any]:
    """Return all properties of `tests/properties`."""
    names = sorted(path.stem for path in (Path(__file__).parent.parent / "properties").glob("test_*.py"))
    modules = [importlib.import_module(f"tests.properties.{name}") for name in names]
    return [test for module in modules for test in vars(module).values() if hasattr(test, "strategy")]


PROPERTIES = properties() if MINUTES else []


def seeds() -> Iterator[int]:
    """Check new cases until the time of one property is over."""
    end = time.monotonic() + 30 * MINUTES / len(PROPERTIES)
    while time.monotonic() < end:
        yield random.randrange(2**64)


@pytest.mark.parametrize("property", PROPERTIES, ids=lambda test: test.__name__)
def test_campaign(property: Any, capsys: pytest.CaptureFixture[str]) -> None:
    cases = search(property.strategy, property.check, seeds())
    with capsys.disabled():
        print(f" {property.__name__}: {cases} cases")
