"""Data and parameters at remote paths, with the in-memory file system of fsspec in place of an object store."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtfc.backends.common.devices import Unavailable
from mtfc.driver.data.array_files import stored_arrays
from mtfc.driver.data.files import with_local_copies
from mtfc.driver.data.inputs import given_parameters, read_batches
from mtfc.driver.errors import UsageError
from mtfc.driver.options import TrainOptions
from mtfc.driver.training.data_sources import open_source
from tests.training.models import LENGTH, TOKENS, program, taken


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = fsspec.filesystem("memory")
    yield found
    found.store.clear()


def rows(first: int, count: int) -> bytes:
    return np.arange(first, first + count, dtype="<u2").repeat(LENGTH).tobytes()


def numbers(spec: str) -> list[int]:
    """Return the numbers of the first examples in the order of the files."""
    batches = taken(open_source(spec, program(TOKENS)), 9, seed=None)
    return [int(each) for batch in batches for each in batch["tokens"][:, 0]]


def test_a_remote_file_is_copied_once_for_each_version(
    store: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    store.pipe("/bucket/a.bin", rows(0, 8))
    for copies in (1, 0):
        assert numbers("memory://bucket/a.bin:uint16") == list(range(8))
        assert capsys.readouterr().err.count("copying memory://bucket/a.bin") == copies
    store.pipe("/bucket/a.bin", rows(100, 16))
    assert numbers("memory://bucket/a.bin:uint16") == list(range(100, 116))


def test_a_remote_folder_has_shards(store: Any) -> None:
    for name, first in (("1", 8), ("0", 0)):
        store.pipe(f"/bucket/shards/{name}.bin", rows(first, 8))
    for spec in ("memory://bucket/shards:uint16", "memory://bucket/shards/:uint16"):
        assert numbers(spec) == list(range(16))


def test_a_mixture_may_be_remote(store: Any, tmp_path: Path) -> None:
    store.pipe("/bucket/a.bin", rows(0, 8))
    (tmp_path / "b.bin").write_bytes(rows(100, 8))
    source = open_source(f"memory://bucket/a.bin:uint16@1,{tmp_path}/b.bin:uint16@3", program(TOKENS))
    (batch,) = taken(source, 1, seed=1)
    assert (batch["tokens"][:, 0] < 100).sum() == 2


def test_parameters_may_be_remote(store: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", w=np.arange(300, dtype=np.float32))
    store.pipe("/bucket/w.npz", (tmp_path / "w.npz").read_bytes())
    given = given_parameters("memory://bucket/w.npz", False, 0, program(TOKENS))
    np.testing.assert_array_equal(given["w"], stored_arrays(str(tmp_path / "w.npz"))["w"].read())


def test_batches_of_a_run_may_be_remote(store: Any, tmp_path: Path) -> None:
    tokens = np.arange(8 * LENGTH, dtype=np.int32).reshape(8, LENGTH)
    np.savez(tmp_path / "x.npz", tokens=tokens)
    store.pipe("/bucket/x.npz", (tmp_path / "x.npz").read_bytes())
    batches = read_batches("memory://bucket/x.npz", program(TOKENS).function("forward"))
    np.testing.assert_array_equal(batches.step(0, 1)["tokens"], tokens)


def test_a_failed_copy_leaves_nothing(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.pipe("/bucket/a.bin", rows(0, 8))

    def broken(path: str, target: str, recursive: bool) -> None:
        Path(target).write_bytes(b"half")
        raise OSError("the network is down")

    monkeypatch.setattr(store, "get", broken)
    with pytest.raises(Unavailable, match=r"cannot read memory://bucket/a\.bin: the network is down"):
        with_local_copies("memory://bucket/a.bin")
    monkeypatch.undo()
    assert not [each for each in (tmp_path / "cache").rglob("*") if each.is_file()]


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("memory://bucket/lost.bin:uint8", UsageError, r"memory://bucket/lost\.bin: no such file"),
        ("what://bucket/a.bin:uint8", Unavailable, r"cannot read what://bucket/a\.bin: Protocol not known"),
    ],
)
def test_errors(store: Any, url: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        open_source(url, program(TOKENS))


def test_support_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, store: Any) -> None:
    import fsspec

    def lost(url: str) -> None:
        raise ImportError("Install gcsfs to access Google Storage")

    monkeypatch.setattr(fsspec.core, "url_to_fs", lost)
    with pytest.raises(Unavailable, match=r"gs://b/a\.bin: Install gcsfs .*: pip install '.\[remote\]'"):
        open_source("gs://b/a.bin:uint8", program(TOKENS))
    with pytest.raises(Unavailable, match=r"gs://b/run: Install gcsfs .*: pip install '.\[remote\]'"):
        TrainOptions("lm.mtf", folder="gs://b/run").check()


def test_a_url_names_a_place() -> None:
    for url in ("gs://", "memory:///"):
        with pytest.raises(UsageError, match=f"{url} names no place"):
            TrainOptions("lm.mtf", folder=url).check()


@pytest.mark.parametrize("option", ["log", "tensorboard", "profile"])
def test_files_that_grow_are_not_remote(option: str) -> None:
    with pytest.raises(UsageError, match=r"gs://b/run: these files grow"):
        TrainOptions("lm.mtf", **{option: "gs://b/run"}).check()  # type: ignore[arg-type]
