"""Data of training: each kind of file, the order of examples, the parts of processes, and positions in the data."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtfc.driver.training.batch_iterators import DataSource
from mtfc.driver.training.data_sources import open_source
from mtfc.driver.training.shares import Share
from tests.training.models import (
    BATCH,
    CLASSIFIER,
    IO,
    LENGTH,
    TOKENS,
    VOCAB,
    Batch,
    program,
    shares,
    steps,
    taken,
)


def classified(count: int) -> dict[str, Any]:
    """Return arrays whose every row tells the number of its example."""
    numbers = np.arange(count)
    x = numbers[:, None] + np.array([0, 0.25, 0.5])
    return {"x": x.astype(np.float32), "scale": np.ones(IO, np.float32), "labels": numbers % VOCAB}


def token_numbers(count: int) -> Any:
    return np.arange(count * LENGTH) % VOCAB


def write_npz(folder: Path, count: int) -> str:
    np.savez(folder / "data.npz", **classified(count))
    return str(folder / "data.npz")


def write_compressed(folder: Path, count: int) -> str:
    np.savez_compressed(folder / "data.npz", **classified(count))
    return str(folder / "data.npz")


def write_npz_shards(folder: Path, count: int) -> str:
    arrays = classified(count)
    (folder / "shards").mkdir()
    for i, rows in enumerate(np.array_split(np.arange(count), 4)):
        parts = {name: array if name == "scale" else array[rows] for name, array in arrays.items()}
        np.savez(folder / "shards" / f"{i}.npz", **parts)
    return str(folder / "shards")


def write_npy(folder: Path, count: int) -> str:
    np.save(folder / "tokens.npy", token_numbers(count).reshape(count, LENGTH))
    return str(folder / "tokens.npy")


def write_tokens(folder: Path, count: int) -> str:
    (folder / "tokens.dat").write_bytes(np.append(token_numbers(count), [7, 7]).astype("<u2").tobytes())
    return f"{folder}/tokens.dat:uint16"


def write_token_shards(folder: Path, count: int) -> str:
    (folder / "shards").mkdir()
    examples = token_numbers(count).reshape(count, LENGTH).astype("<i4")
    for i, rows in enumerate(np.array_split(examples, 3)):
        (folder / "shards" / f"{i}.bin").write_bytes(rows.tobytes() + bytes(4))
    return f"{folder}/shards:int32"


KINDS: dict[str, tuple[str, Callable[[Path, int], str]]] = {
    "npz": (CLASSIFIER, write_npz),
    "npz, compressed": (CLASSIFIER, write_compressed),
    "npz shards": (CLASSIFIER, write_npz_shards),
    "npy": (TOKENS, write_npy),
    "tokens": (TOKENS, write_tokens),
    "token shards": (TOKENS, write_token_shards),
}


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., DataSource]:
    """Return a function that opens data with a number of examples, of each kind."""
    source, write = KINDS[request.param]

    def open(count: int, accumulate: int = 1) -> DataSource:
        return open_source(write(tmp_path, count), program(source), accumulate)

    return open


def numbers(batch: Batch) -> list[int]:
    """Return the numbers of the examples in a batch; check that the inputs and the positions of each row agree."""
    if "tokens" in batch:
        assert batch["tokens"].dtype == np.int32
        first = batch["tokens"][..., :1]
        np.testing.assert_array_equal(batch["tokens"], (first + np.arange(LENGTH)) % VOCAB)
        return list((first // LENGTH).flat)
    assert batch["x"].dtype == np.float32 and batch["labels"].dtype == np.int32
    found = batch["x"][..., 0].astype(int)
    np.testing.assert_array_equal(batch["x"], found[..., None] + np.array([0, 0.25, 0.5]))
    np.testing.assert_array_equal(batch["labels"], found % VOCAB)
    np.testing.assert_array_equal(batch["scale"], np.ones((*batch["scale"].shape[:-1], IO)))
    return list(found.flat)


def joined(lists: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(lists))


def test_every_example_comes_once_an_epoch(opened: Callable[..., DataSource]) -> None:
    source = opened(5 * BATCH)
    assert source.steps_per_epoch == 5
    found = list(map(numbers, taken(source, 15, seed=3)))
    assert {len(each) for each in found} == {BATCH}
    epochs = [joined(found[i : i + 5]) for i in (0, 5, 10)]
    assert [sorted(each) for each in epochs] == [list(range(5 * BATCH))] * 3
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert epochs[0] != sorted(epochs[0])


def test_the_order_depends_on_the_seed(opened: Callable[..., DataSource]) -> None:
    source = opened(5 * BATCH)
    first, again, other = (list(map(numbers, taken(source, 5, seed))) for seed in (3, 3, 8))
    assert first == again != other


def test_without_a_seed_the_examples_come_in_order_once(opened: Callable[..., DataSource]) -> None:
    source = opened(3 * BATCH + 2)
    found = joined(map(numbers, taken(source, 100, seed=None)))
    assert found == list(range(3 * BATCH))
    assert "; 2 are left out of each epoch" in source.description()


def test_micro_batches_are_consecutive_batches(opened: Callable[..., DataSource]) -> None:
    source = opened(5 * BATCH, accumulate=2)
    assert source.steps_per_epoch == 2
    for batch in taken(source, 5, seed=1):
        for name, array in batch.items():
            assert array.shape[:2] == (2, IO if name == "scale" else BATCH)
    found = joined(map(numbers, taken(source, 2, seed=None)))
    assert found == list(range(4 * BATCH))
    epochs = list(map(numbers, taken(source, 4, seed=1)))
    for epoch in (epochs[:2], epochs[2:]):
        assert len(set(joined(epoch))) == 4 * BATCH, "an epoch has no example twice"


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_the_parts_of_processes_make_the_global_batch(
    opened: Callable[..., DataSource], processes: int
) -> None:
    source = opened(6 * BATCH, accumulate=2)
    whole = taken(source, 5, seed=4)
    parts = [taken(source, 5, 4, share) for share in shares(processes)]
    for i, batch in enumerate(whole):
        for name, array in batch.items():
            if name == "scale":
                np.testing.assert_array_equal(parts[0][i][name], array[:, 1:3])
            else:
                joined = np.concatenate([part[i][name] for part in parts], axis=1)
                np.testing.assert_array_equal(joined, array, strict=True)


def test_ranges_may_lie_apart_and_differ_between_inputs(tmp_path: Path) -> None:
    source = open_source(write_npz(tmp_path, 5 * BATCH), program(CLASSIFIER))
    (whole,) = taken(source, 1, seed=4)
    (part,) = taken(source, 1, 4, Share({"x": ((0, 2), (5, 6)), "labels": ((3, 8),)}))
    np.testing.assert_array_equal(part["x"], whole["x"][[0, 1, 5]])
    np.testing.assert_array_equal(part["labels"], whole["labels"][3:])
    np.testing.assert_array_equal(part["scale"], whole["scale"])


@pytest.mark.parametrize("at", [0, 1, 4, 5, 11])
def test_a_run_resumes_at_any_step_on_any_number_of_processes(
    opened: Callable[..., DataSource], at: int
) -> None:
    source = opened(5 * BATCH + 1)
    whole = taken(source, 14, seed=2)
    iterator = source.batches(shares(2)[0], 2)
    for _ in range(at):
        next(iterator)
    state = json.loads(json.dumps(iterator.state()))
    iterator.close()
    rest = list(islice(steps(source, Share(), 2, state), 14 - at))
    for before, after in zip(whole[at:], rest, strict=True):
        for name, array in before.items():
            np.testing.assert_array_equal(after[name], array, strict=True)


def test_other_data_than_that_of_the_checkpoint_starts_at_its_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("20", "40"):
        (tmp_path / name).mkdir()
    small, large = (open_source(write_npz(tmp_path / str(n), n), program(CLASSIFIER)) for n in (20, 40))
    iterator = small.batches(Share(), 2)
    next(iterator)
    (first,) = islice(steps(large, Share(), 2, iterator.state()), 1)
    iterator.close()
    assert numbers(first) == numbers(taken(large, 1, 2)[0])
    assert "the data has changed since the checkpoint (examples 20 -> 40)" in capsys.readouterr().err
