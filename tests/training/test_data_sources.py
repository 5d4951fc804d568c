"""Data of training: each kind of file, the order of examples, the parts of processes, and positions in the data."""

import gc
import json
import resource
import sys
from collections.abc import Callable, Iterable
from io import BytesIO
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtfc.backends.common.devices import Unavailable
from mtfc.backends.common.shares import Share
from mtfc.compiler.diagnostics import CompileError
from mtfc.driver.errors import UsageError
from mtfc.driver.training.data_sources import DataSource, FileSource, open_source
from tests.training.models import (
    BATCH,
    CLASSIFIER,
    IO,
    LENGTH,
    SCALED,
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


def write_named(folder: Path, count: int) -> str:
    for name, array in classified(count).items():
        np.save(folder / f"{name}.npy", np.asfortranarray(array))
    return ",".join(f"{name}={folder}/{name}.npy" for name in ("labels", "x", "scale"))


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
    "npy for each input": (CLASSIFIER, write_named),
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
    for start in ({}, {"order": {"function": "a:b", "seed": 2}, "iterator": {"items": 3, "own": None}}):
        (first,) = islice(steps(large, Share(), 2, start), 1)
        assert numbers(first) == numbers(taken(large, 1, 2)[0])


def test_a_read_touches_only_its_rows(tmp_path: Path) -> None:
    """The file of 64 GB has holes in place of tokens; a machine cannot hold it."""
    with (tmp_path / "tokens.bin").open("wb") as file:
        file.truncate(2**36)
    source = open_source(f"{tmp_path}/tokens.bin:uint8", program(TOKENS))
    before = resident_bytes()
    assert len(taken(source, 20, seed=0)) == 20
    assert resident_bytes() - before < 2**26
    assert source.steps_per_epoch == 2**36 // LENGTH // BATCH


@pytest.mark.parametrize("write", [write_npz, write_npz_shards, write_npy, write_named])
def test_arrays_are_mapped(tmp_path: Path, write: Callable[[Path, int], str]) -> None:
    source = open_source(write(tmp_path, 40), program(TOKENS if write is write_npy else CLASSIFIER))
    assert isinstance(source, FileSource)
    examples = source.examples
    arrays = examples.open(examples.paths[0])
    assert all(isinstance(arrays[each.name], np.memmap) for each in examples.inputs)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_a_directory_opens_few_files_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtfc.driver.training.example_files.OPEN_ARRAYS", 2)
    examples = np.arange(40 * LENGTH, dtype="<u2").reshape(40, LENGTH)
    for i, rows in enumerate(examples):
        (tmp_path / f"{i:02}.bin").write_bytes(rows.tobytes())
    source = open_source(f"{tmp_path}:uint16", program(TOKENS))
    assert sorted(joined(map(numbers, taken(source, 5, seed=1)))) == list(range(40))
    gc.collect()  # the tests collect garbage rarely
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    assert len({each for each in mapped if each.startswith(str(tmp_path))}) <= 4


def tokens(*numbers: int) -> bytes:
    return np.resize(np.array(numbers, "<u2"), BATCH * LENGTH).tobytes()


def npz(**arrays: Any) -> bytes:
    np.savez(file := BytesIO(), **{**classified(16), **arrays})
    return file.getvalue()


def npy(array: Any) -> bytes:
    np.save(file := BytesIO(), array)
    return file.getvalue()


X, LABELS = np.zeros((16, IO), np.float32), np.zeros(16, np.int32)

ERRORS: dict[str, tuple[str, dict[str, bytes], str]] = {
    "no file": ("lost.npz", {}, "lost.npz:1:1: E501: cannot read arrays: no such file or directory"),
    "no .npy file": ("lost.npy", {}, "lost.npy:1:1: E501: cannot read arrays: no such file or directory"),
    "no token file": ("lost.bin:uint8", {}, "lost.bin:1:1: E501: cannot read arrays: no such file or directory"),
    "no directory": ("lost", {}, "lost: no such file or directory; expected a file .npz, .npy, .parquet,"),
    "a long name": (300 * "x", {}, f"{300 * 'x'}: file name too long"),
    "no dtype": ("a.bin", {"a.bin": b""}, "a.bin: give the dtype of its tokens, as in a.bin:uint16"),
    "an unknown dtype": ("a.bin:uint61", {"a.bin": b""},
     "a.bin:uint61: unknown dtype uint61 of tokens; did you mean `uint64`?"),
    "a dtype of floats": ("a.bin:f8", {"a.bin": b""},
     "a.bin:f8: unknown dtype f8 of tokens; expected one of uint8, uint16, uint32, uint64, int8,"),
    "no dtype of a directory": ("shards", {"shards/0.bin": b""},
     "the directory shards has tokens: give their dtype, as in shards:uint16"),
    "an empty directory": ("shards", {"shards/readme.txt": b""},
     "the directory shards has no file .npz or .npy or .bin or .parquet or .jsonl or"),
    "a directory without tokens": ("shards:uint8", {"shards/0.npz": b""}, "the directory shards has no file .bin"),
    "a mixed directory": ("shards", {"shards/0.npz": b"", "shards/1.npy": b""},
     "the directory shards has files .npy and .npz: expected one kind"),
    "half a token": ("a.bin:uint16", {"a.bin": bytes(81)},
     "a.bin:1:1: E501: cannot read arrays: its 81 bytes are no whole number of tokens of uint16"),
    "too few tokens": ("a.bin:uint16", {"a.bin": bytes(78)},
     "a.bin has 7 examples, and a step takes batch = 8: give more data, or a smaller batch with --dim batch=N"),
    "an empty token file": ("a.bin:uint8", {"a.bin": b""}, "a.bin has no examples"),
    "no archive": ("a.npz", {"a.npz": b"no"}, "a.npz:1:1: E501: cannot read arrays: it is no NPZ file"),
    "a damaged archive": ("a.npz", {"a.npz": npz()[:-40]}, "a.npz:1:1: E501: cannot read arrays: it is no NPZ file"),
    "Python objects": ("a.npz", {"a.npz": npz(x=np.array([{}]))},
     "a.npz:1:1: E501: cannot read arrays: it holds Python objects"),
    "Python objects in an array": ("a.npy", {"a.npy": npy(np.array([{}]))},
     "a.npy:1:1: E501: cannot read arrays: it holds Python objects"),
    "no array": ("a.npy", {"a.npy": b"no"}, "a.npy:1:1: E501: cannot read arrays: it is no NPY file"),
    "a missing name": ("x=x.npy,label=l.npy,scale=s.npy", {"x.npy": npy(X), "l.npy": npy(LABELS), "s.npy": npy(X[0])},
     "E502: x=x.npy,label=l.npy,scale=s.npy has no array for input `labels`"),
    "a wrong shape": ("a.npz", {"a.npz": npz(x=X[:, :2])},
     "E503: input `x` is f32[batch: 8, io: 3], and its array in a.npz has shape [16, 2]"),
    "a wrong kind": ("a.npz", {"a.npz": npz(labels=LABELS > 0)}, "E504: input `labels` is i32, and its array in a.npz is bool"),
    "different numbers of examples": ("a.npz", {"a.npz": npz(labels=LABELS[:15])},
     "a.npz:1:1: E506: the inputs have different numbers of examples: 16 of `x`, 15 of `labels`"),
    "one batch of labels for two of rows": ("a.npz", {"a.npz": npz(labels=LABELS[:8])},
     "a.npz:1:1: E506: the inputs have different numbers of examples: 16 of `x`, 8 of `labels`"),
    "different dimensions of examples": ("a.npz", {"a.npz": npz(scale=np.ones(2 * IO))},
     "a.npz:1:1: E506: the inputs have examples along different dimensions: `batch` of `x`, `io` of `scale`"),
    "a wrong shape in a later shard": ("shards", {"shards/0.npz": npz(), "shards/1.npz": npz(x=X[:, :2])},
     "E503: input `x` is f32[batch: 8, io: 3], and its array in shards/1.npz has shape [16, 2]"),
    "an index out of range": ("a.npz", {"a.npz": npz(labels=np.append(LABELS[:15], 300))},
     "E504: input `labels` takes numbers from 0 to 299, and example 15 of a.npz has 300"),
    "a negative index": ("shards", {"shards/0.npz": npz(), "shards/1.npz": npz(labels=np.append(-1, LABELS[:15]))},
     "E504: input `labels` takes numbers from 0 to 299, and example 0 of shards/1.npz has -1"),
    "a token out of range": ("a.bin:uint16", {"a.bin": tokens(*39 * [7], 300)},
     "E504: input `tokens` takes numbers from 0 to 299, and example 7 of a.bin has 300"),
    "tokens for a model with other inputs": (
        "words.dat:uint8",
        {"words.dat": bytes(100)},
        "words.dat holds tokens, for a model with one input i32[batch, length], and this model has"
        " x: f32[batch: 8, io: 3], scale: f32[io: 3], labels: i32[batch: 8]",
    ),
    "one array for several inputs": (
        "x.npy",
        {"x.npy": npy(X)},
        "x.npy holds one array, and the model has 3 inputs: give one for each,"
        " as in x=FILE.npy,scale=FILE.npy,labels=FILE.npy",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_is_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    spec, files, expected = ERRORS[kind]
    monkeypatch.chdir(tmp_path)
    for path, content in files.items():
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_bytes(content)
    of_tokens = ".bin" in spec or spec in ("a.npy", "lost.npy")
    with pytest.raises((UsageError, CompileError)) as caught:
        taken(open_source(spec, program(TOKENS if of_tokens else CLASSIFIER)), 4, seed=0)
    assert expected in str(caught.value)


def test_a_step_of_micro_batches_needs_as_many_examples(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has 30 examples, and a step takes 4 batches of batch = 8"):
        open_source(write_npz(tmp_path, 30), program(CLASSIFIER), accumulate=4)


def test_scalars_are_the_same_in_all_batches(tmp_path: Path) -> None:
    arrays = {"factor": np.float64(3), "x": np.arange(16), "chosen": np.arange(16) % 3 == 0}
    np.savez(tmp_path / "data.npz", **arrays)
    for accumulate, shape in ((1, ()), (2, (2,))):
        source = open_source(f"{tmp_path}/data.npz", program(SCALED), accumulate)
        (batch,) = taken(source, 1, seed=3)
        np.testing.assert_array_equal(batch["factor"], np.full(shape, 3, np.float32), strict=True)
        np.testing.assert_array_equal(batch["chosen"], batch["x"] % 3 == 0, strict=True)


@pytest.mark.parametrize("sizes", [[24, 0, 1, 15], [1] * 40])
def test_shards_have_the_batches_of_one_file(tmp_path: Path, sizes: list[int]) -> None:
    examples = np.arange(40 * LENGTH, dtype="<u2").reshape(40, LENGTH)
    (tmp_path / "whole.bin").write_bytes(examples.tobytes())
    (tmp_path / "shards").mkdir()
    for i, rows in enumerate(np.split(examples, np.cumsum(sizes)[:-1])):
        (tmp_path / "shards" / f"{i:02}.bin").write_bytes(rows.tobytes())
    specs = (f"{tmp_path}/whole.bin:uint16", f"{tmp_path}/shards:uint16")
    whole, shards = (taken(open_source(spec, program(TOKENS)), 7, seed=1) for spec in specs)
    for one, other in zip(whole, shards, strict=True):
        np.testing.assert_array_equal(one["tokens"], other["tokens"], strict=True)


def test_one_batch_is_shuffled(tmp_path: Path) -> None:
    """With exactly one batch, inputs along the batch are examples, and others are constant."""
    source = open_source(write_npz(tmp_path, BATCH), program(CLASSIFIER))
    first, second = map(numbers, taken(source, 2, seed=1))
    assert sorted(first) == sorted(second) == list(range(BATCH))
    assert first != second


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grain", None)
    source = open_source(write_npz(tmp_path, 16), program(CLASSIFIER))
    with pytest.raises(Unavailable, match=r"needs the package grain.*: pip install '.\[train\]'"):
        source.batches(Share(), 0)
