"""One session with a server for all tests of a process: to start one takes as long as many requests."""

from collections.abc import Iterator

import pytest

from tests.editor.client import Editor


@pytest.fixture(scope="session")
def editor() -> Iterator[Editor]:
    editor = Editor()
    yield editor
    assert editor.stop() == 0


@pytest.fixture(autouse=True)
def nothing_open(request: pytest.FixtureRequest) -> Iterator[None]:
    """Close the documents of a test; the server has survived it."""
    yield
    if "editor" in request.fixturenames:
        editor: Editor = request.getfixturevalue("editor")
        assert editor.is_alive()
        for uri in list(editor.texts):
            editor.close(uri)
