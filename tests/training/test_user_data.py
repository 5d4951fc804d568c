"""Data of training that a Python function makes: its arguments, its state, the parts of processes, and its errors."""

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from mtfc.backends.common.shares import Share
from mtfc.compiler.diagnostics import CompileError
from mtfc.driver.errors import UsageError
from mtfc.driver.training.data_interface import BatchIterator
from mtfc.driver.training.data_sources import DataSource, open_source
from tests.training.models import BATCH, CLASSIFIER, IO, program, shares, steps, taken

ITEM = """
import numpy as np

def item(i, rows=8):
    return {"x": np.full((rows, 3), i), "labels": np.arange(rows), "scale": [1.0, 2.0, 3.0]}
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., DataSource]]:
    """Return a function that opens the function `batches` of a module with this text."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def open(text: str, accumulate: int = 1) -> DataSource:
        (tmp_path / "user_batches.py").write_text(ITEM + dedent(text))
        return open_source("user_batches:batches", program(CLASSIFIER), accumulate)

    yield open
    sys.modules.pop("user_batches", None)


COUNTING = """
def batches():
    i = 0
    while True:
        yield item(i)
        i += 1
"""


def test_items_are_global_batches(written: Callable[..., DataSource]) -> None:
    source = written(COUNTING)
    assert source.steps_per_epoch is None
    for i, batch in enumerate(taken(source, 6, seed=0)):
        np.testing.assert_array_equal(batch["x"], np.full((BATCH, IO), i, np.float32), strict=True)
        np.testing.assert_array_equal(batch["labels"], np.arange(BATCH, dtype=np.int32), strict=True)
        np.testing.assert_array_equal(batch["scale"], np.array([1, 2, 3], np.float32), strict=True)


@pytest.mark.parametrize("processes", [2, 4])
def test_a_process_keeps_its_rows_of_a_whole_batch(
    written: Callable[..., DataSource], processes: int
) -> None:
    source = written(COUNTING, accumulate=2)
    parts = [taken(source, 3, 0, share) for share in shares(processes)]
    for step in range(3):
        labels = np.concatenate([part[step]["labels"] for part in parts], axis=1)
        np.testing.assert_array_equal(labels, [np.arange(BATCH)] * 2)
        for part in parts:
            assert part[step]["x"].shape == (2, BATCH // processes, IO)
            assert part[step]["x"][:, 0, 0].tolist() == [2 * step, 2 * step + 1]
            np.testing.assert_array_equal(part[step]["scale"], [[2, 3]] * 2)


def test_a_function_may_make_the_part_of_a_process(written: Callable[..., DataSource]) -> None:
    source = written("""
        def batches(shard_index, shard_count, seed):
            while True:
                yield item(seed + shard_index, 8 // shard_count)
    """)
    for i, share in enumerate(shares(4)):
        (batch,) = taken(source, 1, 50, share)
        np.testing.assert_array_equal(batch["x"], np.full((2, IO), 50 + i))
        np.testing.assert_array_equal(batch["scale"], [2, 3])
    (whole,) = taken(source, 1, 50)
    assert whole["x"].shape == (BATCH, IO)
    with pytest.raises(UsageError, match="other rows than equal consecutive parts of the batch"):
        taken(source, 1, 0, Share({"x": ((0, 3),), "labels": ((0, 3),)}))


STATEFUL = """
class Batches:
    def __init__(self):
        self.i = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.i += 1
        return item(self.i - 1)

    def get_state(self):
        return STATE

    def set_state(self, state):
        assert self.i == 0
        self.i = RESTORED
        open("restored", "a").write(f"{self.i} ")

def batches():
    return Batches()
"""


def with_state(state: str, restored: str) -> str:
    return STATEFUL.replace("STATE", state).replace("RESTORED", restored)


SOURCES = {
    "no state": COUNTING,
    "a state": with_state("{'i': self.i}", "state['i']"),
    "a state of bytes": with_state("str(self.i).encode()", "int(state)"),
    "grain": """
        import grain

        def batches():
            return grain.MapDataset.range(100).map(item).to_iter_dataset()
    """,
    "a list": "def batches():\n    return [item(i) for i in range(20)]",
}


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("at", [0, 3])
def test_a_function_resumes_at_the_item_after_the_last_step(
    written: Callable[..., DataSource], tmp_path: Path, kind: str, at: int
) -> None:
    source = written(SOURCES[kind], accumulate=2)
    iterator = source.batches(Share(), 1)
    for _ in range(at):
        next(iterator)
    state = json.loads(json.dumps(iterator.state()))
    iterator.close()
    rest = islice(steps(source, Share(), 1, state), 3)
    firsts = [batch["x"][:, 0, 0].tolist() for batch in rest]
    assert firsts == [[2 * i, 2 * i + 1] for i in range(at, at + 3)]
    restored = (tmp_path / "restored").read_text().split() if (tmp_path / "restored").exists() else []
    assert restored == (["6"] if at and kind.startswith("a state") else [])


@pytest.mark.parametrize("before", ["no state", "a state"])
@pytest.mark.parametrize("after", ["no state", "a state"])
def test_a_checkpoint_stays_right_when_a_function_gets_or_loses_its_state(
    written: Callable[..., DataSource], before: str, after: str
) -> None:
    iterator = written(SOURCES[before]).batches(Share(), 1)
    for _ in range(3):
        next(iterator)
    state = iterator.state()
    iterator.close()
    sys.modules.pop("user_batches")
    importlib.invalidate_caches()
    text = SOURCES[after].replace("assert self.i == 0", "pass")
    (batch,) = islice(steps(written(text + "# changed"), Share(), 1, state), 1)
    assert batch["x"][0, 0] == 3


def test_a_function_may_use_its_arrays_again(written: Callable[..., DataSource]) -> None:
    source = written("""
        def batches(shard_index, shard_count):
            arrays = {**item(0), "x": np.zeros((8, 3), np.float32), "scale": np.zeros(3, np.float32)}
            while True:
                yield arrays
                arrays["x"] += 1
                arrays["scale"] += 1
    """)
    iterator = source.batches(Share(), 0)
    batches = [next(iterator) for _ in range(6)]
    iterator.close()
    assert [batch["x"][0, 0] for batch in batches] == list(range(6))
    assert [batch["scale"][0] for batch in batches] == list(range(6))


def test_a_pass_without_a_seed_ends_with_the_items(written: Callable[..., DataSource]) -> None:
    source = written("def batches():\n    return [item(i) for i in range(3)]")
    assert len(taken(source, 100, seed=None)) == 3


def first_error(source: DataSource, count: int = 10, seed: int | None = 0) -> str:
    """Return the text of the error that ends the first steps."""
    iterator: BatchIterator = source.batches(Share(), seed)
    try:
        with pytest.raises((UsageError, CompileError)) as caught:
            for _ in range(count):
                next(iterator)
    finally:
        iterator.close()
    return str(caught.value)


RAISED = """\
user_batches:batches raised ValueError: no row 2
  user_batches.py:{line} in batches: yield checked(i)
  user_batches.py:{inner} in checked: raise ValueError(f"no row {{i}}")"""

RAISING = """
def checked(i):
    if i == 2:
        raise ValueError(f"no row {i}")
    return item(i)

def batches():
    for i in range(9):
        yield checked(i)
"""

ERRORS: dict[str, tuple[str, str]] = {
    "raises": (RAISING, RAISED.format(line=14, inner=9)),
    "exits": ("def batches():\n    raise SystemExit(1)\n    yield",
     "user_batches:batches raised SystemExit: 1\n  user_batches.py:7 in batches: raise SystemExit(1)"),
    "needs an argument": ("def batches(folder):\n    return []",
     "user_batches:batches raised TypeError: batches() missing 1 required positional argument: 'folder'"),
    "ends": (
        "def batches():\n    return [item(0)] * 3",
        "user_batches:batches ends after 3 batches, and training needs more: give fewer --steps, or let the function"
        " start over",
    ),
    "is empty": ("def batches():\n    return []", "user_batches:batches gives no batch"),
    "returns no iterable": ("def batches():\n    return 3",
     "user_batches:batches returns an int; expected an iterable of dicts"),
    "returns nothing": ("def batches():\n    pass", "user_batches:batches returns None; expected an iterable of dicts"),
    "gives tuples": ("def batches():\n    return [(1, 2)]",
     "item 1 of user_batches:batches is a tuple; expected a dict with an array for each input: `labels`, `scale`, `x`"),
    "lacks a name": ("def batches():\n    return [item(0), {'x': item(0)['x'], 'label': 3, 'scale': [1, 2, 3]}]",
     "E502: item 2 of user_batches:batches has no array for input `labels`"),
    "gives a wrong shape": ("def batches():\n    return [item(0, 7)]",
     "E503: input `x` is f32[batch: 8, io: 3], and its array in item 1 of user_batches:batches has shape [7, 3]"),
    "gives a ragged list": ("def batches():\n    return [{**item(0), 'x': [[1], [1, 2]]}]",
     "item 1 of user_batches:batches raised ValueError: setting an array element with a sequence."),
    "gives a wrong kind": ("def batches():\n    return [{**item(0), 'labels': np.zeros(8)}]",
     "E504: input `labels` is i32, and its array in item 1 of user_batches:batches is float64"),
    "gives an index out of range": ("def batches():\n    return [{**item(0), 'labels': np.full(8, 300)}]",
     "E504: input `labels` takes numbers from 0 to 299, and item 1 of user_batches:batches has 300"),
    "has a state that is no JSON": (
        with_state("{'i': {1}}", "0"),
        "get_state of user_batches:batches returns a state that JSON cannot store (Object of type set is not JSON"
        " serializable); expected numbers, text, lists and dicts, or bytes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_is_a_message(written: Callable[..., DataSource], kind: str) -> None:
    text, expected = ERRORS[kind]
    assert expected in first_error(written(text))


LOADING: dict[str, tuple[str, str | None, str]] = {
    "no module": ("lost_batches:batches", None,
     "lost_batches:batches: no module lost_batches in this directory or installed, and no file lost_batches"),
    "a file": ("lost_batches.py:batches", None,
     "lost_batches.py:batches: a module has no .py in its name; write lost_batches:batches"),
    "no function": ("user_batches:batch", "def batches():\n    pass",
     "user_batches:batch: the module user_batches has no function batch"),
    "no function but a value": ("user_batches:batches", "batches = 3",
     "user_batches:batches: batches is an int; expected a function that returns batches"),
    "a module that raises": (
        "user_batches:batches",
        "raise RuntimeError('not today')",
        "importing user_batches raised RuntimeError: not today\n"
        "  user_batches.py:6 in <module>: raise RuntimeError('not today')",
    ),
    "a module with a wrong syntax": ("user_batches:batches", "def batches(:",
     "importing user_batches raised SyntaxError: invalid syntax"),
    "a module that needs another": ("user_batches:batches", "import lost_package.part",
     "user_batches needs the module lost_package, which is not installed"),
}  # fmt: skip


@pytest.mark.parametrize("kind", LOADING)
def test_a_function_that_cannot_be_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    spec, text, expected = LOADING[kind]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    if text is not None:
        (tmp_path / "user_batches.py").write_text(ITEM + text)
    try:
        with pytest.raises(UsageError) as caught:
            open_source(spec, program(CLASSIFIER))
        assert str(caught.value).startswith(expected)
    finally:
        sys.modules.pop("user_batches", None)


def test_closing_does_not_wait_for_a_function_that_blocks(
    written: Callable[..., DataSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mtfc.driver.training.data_interface.CLOSING_SECONDS", 0.05)
    source = written("""
        from threading import Event
        blocked = Event()

        def batches():
            yield item(0)
            blocked.wait()
    """)
    iterator = source.batches(Share(), 0)
    next(iterator)
    iterator.close()
    module: Any = sys.modules["user_batches"]
    assert not module.blocked.is_set()
    module.blocked.set()
