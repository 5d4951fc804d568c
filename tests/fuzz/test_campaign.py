"""`make fuzz`: every property on new random cases until FUZZ_MINUTES are over, shared equally among them."""

from __future__ import annotations

import importlib
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.properties.campaign import property_test

MINUTES = float(os.environ.get("FUZZ_MINUTES", "0"))
BATCH = 50


def properties() -> list[Any]:
    """All properties of the folder next door."""
    names = sorted(path.stem for path in (Path(__file__).parent.parent / "properties").glob("test_*.py"))
    modules = [importlib.import_module(f"tests.properties.{name}") for name in names]
    return [test for module in modules for test in vars(module).values() if hasattr(test, "strategy")]


PROPERTIES = properties() if MINUTES else []


@pytest.mark.parametrize("property", PROPERTIES, ids=lambda test: test.__name__)
def test_campaign(property: Any, record_property: Any) -> None:
    end = time.monotonic() + 60 * MINUTES / len(PROPERTIES)
    batches = 0
    while time.monotonic() < end:
        property_test(property.strategy, property.check, BATCH, derandomize=False)()
        batches += 1
    print(f"{property.__name__}: {batches * BATCH} examples")
