"""The browser of these tests: MTFC_BROWSER, or the one that `make browser-test` fetches."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FETCHED = Path(__file__).parents[2] / "build" / "browser" / "package" / "bin"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    path = os.environ.get("MTFC_BROWSER", str(FETCHED / "chromium"))
    if not Path(path).is_file():
        pytest.skip("no browser: `make browser-test` fetches one")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(FETCHED / "lib")}
    with playwright.sync_playwright() as started:
        # the sandbox of Chromium does not start as root, and the pages are our own
        options = ["--no-sandbox", "--headless=shell", "--disable-gpu"]
        found = started.chromium.launch(executable_path=path, args=options, env=environment)
        yield found
        found.close()
