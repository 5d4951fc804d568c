"""Parameters in NPZ files, safetensors files and folders of shards: read by name, one at a time, and written back."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mtfc.compiler.diagnostics import CompileError
from mtfc.driver.data.array_files import StoredArray, save_arrays, stored_arrays, write_arrays
from mtfc.driver.data.inputs import LazyArrays
from mtfc.driver.running.execution import Session
from tests.cli.conftest import Mtfc

RNG = np.random.default_rng(0)
W = RNG.standard_normal((6, 3)).astype(np.float32)
BIAS = RNG.standard_normal(3).astype(np.float32)
SHARDS = {"w": "model-00001-of-00002.safetensors", "bias": "model-00002-of-00002.safetensors"}


def sharded(folder: Path) -> Path:
    """Write a folder as Hugging Face does: an index, and a shard for each array."""
    folder.mkdir()
    save_file({"w": W}, folder / SHARDS["w"])
    save_file({"bias": BIAS}, folder / SHARDS["bias"])
    index = {"metadata": {"total_size": 84}, "weight_map": SHARDS}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def loss(mtfc: Mtfc, params: str, *options: str) -> float:
    outcome = mtfc("run", "model.mtf", "--params", params, "--format", "json", *options)
    assert outcome.status == 0, outcome.err
    return float(outcome.json["outputs"]["loss"]["value"])


def test_every_kind_of_file_gives_the_same_run(mtfc: Mtfc, folder: Path) -> None:
    np.savez("params.npz", w=W, bias=BIAS)
    save_file({"w": W, "bias": BIAS}, "params.safetensors")
    sharded(folder / "shards")
    save_file({"w": W, "bias": BIAS}, folder / "shards" / "unused.safetensors")
    (folder / "single").mkdir()
    save_file({"w": W, "bias": BIAS}, folder / "single" / "model.safetensors")
    expected = loss(mtfc, "params.npz")
    assert loss(mtfc, "params.safetensors") == expected
    assert loss(mtfc, "shards") == expected
    assert loss(mtfc, "single") == expected


def test_params_of_16_bits_become_those_of_the_program(mtfc: Mtfc) -> None:
    for dtype in (np.float16, ml_dtypes.bfloat16):
        save_file({"w": W.astype(dtype), "bias": BIAS.astype(dtype)}, "params.safetensors")
        rounded = {"w": W.astype(dtype).astype(np.float32), "bias": BIAS.astype(dtype).astype(np.float32)}
        np.savez("params.npz", **rounded)
        assert loss(mtfc, "params.safetensors") == loss(mtfc, "params.npz")


def test_verify_and_training_read_and_write_safetensors(mtfc: Mtfc) -> None:
    save_file({"w": W, "bias": BIAS}, "params.safetensors")
    assert mtfc("verify", "model.mtf", "--params", "params.safetensors", "--backend", "numpy").status == 0
    training = ["--train", "--steps", "2", "--params", "params.safetensors"]
    assert mtfc("run", "model.mtf", *training, "--save", "out.safetensors").status == 0
    assert mtfc("run", "model.mtf", *training, "--save", "out.npz").status == 0
    with np.load("out.npz") as expected:
        found = load_file("out.safetensors")
        assert set(found) == set(expected.files) == {"w", "bias", "loss"}
        assert all(np.array_equal(found[name], expected[name]) for name in found)


ARRAYS = {
    "odd": np.arange(3, dtype=np.int8),
    "half": np.arange(6, dtype=np.float16).reshape(2, 3),
    "brain": np.arange(5, dtype=np.float32).astype(ml_dtypes.bfloat16),
    "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "swapped": np.arange(4, dtype=">f8"),
    "scalar": np.array(2.5, np.float32),
    "empty": np.zeros((0, 3), np.float32),
    "truth": np.array([True, False]),
    "wörter": np.arange(2, dtype=np.int64),
}


def test_the_library_reads_what_is_written(folder: Path) -> None:
    save_arrays("out.safetensors", ARRAYS)
    found = load_file("out.safetensors")
    assert set(found) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype.newbyteorder("=")
        np.testing.assert_array_equal(found[name], array)


def test_npz_round_trip(folder: Path) -> None:
    """NPZ lacks bf16: it becomes f32, which holds the same numbers."""
    save_arrays("out.npz", ARRAYS)
    with np.load("out.npz") as found:
        assert set(found.files) == set(ARRAYS)
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(found[name].astype(np.float64), array.astype(np.float64))
    stored = stored_arrays("out.npz")
    assert {name: array.shape for name, array in stored.items()} == {n: a.shape for n, a in ARRAYS.items()}
    assert stored["half"].dtype == "float16"
    assert stored["swapped"].dtype == "float64"
    np.testing.assert_array_equal(stored["swapped"].read(), ARRAYS["swapped"])


@pytest.mark.parametrize("path", ["out.npz", "out.safetensors"])
def test_a_failed_write_leaves_the_old_file(folder: Path, path: str) -> None:
    save_arrays(path, {"w": W})
    before = Path(path).read_bytes()

    def fail() -> np.ndarray:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        write_arrays(path, {"a": StoredArray.of(W), "b": StoredArray((2,), "float32", fail)})
    assert Path(path).read_bytes() == before
    assert sorted(each.name for each in folder.iterdir()) == ["model.mtf", path]


def test_a_session_asks_for_one_parameter_at_a_time() -> None:
    """Memory is that of the placed parameters and of one array."""
    asked: list[str] = []

    class Module:
        PARAMETERS: ClassVar = {"w": (), "bias": ()}

        @staticmethod
        def shard(arrays: dict[str, object], layouts: dict[str, object]) -> dict[str, object]:
            assert [*arrays] == [*layouts] == asked[-1:]
            return arrays

    def reader(name: str) -> Callable[[], str]:
        return lambda: asked.append(name) or name

    session = Session.start(Module, 0, LazyArrays({name: reader(name) for name in ("w", "bias")}))
    assert asked == ["w", "bias"]
    assert session.params == {"w": "w", "bias": "bias"}


def damaged(folder: Path) -> dict[str, tuple[str, str]]:
    """Return a path for each damage, and the reason that the message gives."""
    save_file({"w": W, "bias": BIAS}, folder / "whole.safetensors")
    content = (folder / "whole.safetensors").read_bytes()
    (folder / "short.safetensors").write_bytes(content[:-5])
    (folder / "none.safetensors").write_bytes(b"")
    (folder / "text.safetensors").write_text("weights " * 9)
    (folder / "empty").mkdir()
    for name in ("two", "lost", "wrong", "escape", "text"):
        sharded(folder / name)
    (folder / "two" / "model.safetensors.index.json").unlink()
    (folder / "lost" / SHARDS["bias"]).unlink()
    save_file({"w": W}, folder / "wrong" / SHARDS["bias"])
    (folder / "escape" / "model.safetensors.index.json").write_text(
        '{"weight_map": {"w": "../whole.safetensors"}}'
    )
    (folder / "text" / "model.safetensors.index.json").write_text('{"weight_map": 3}')
    return {
        "short.safetensors": "it is no safetensors file, or damaged (incomplete metadata, file not fully covered)",
        "none.safetensors": "it is no safetensors file, or damaged (header too small)",
        "text.safetensors": "it is no safetensors file, or damaged (header too large)",
        "missing.safetensors": "no such file or directory",
        "empty": "it is a folder with no safetensors files; expected one file, or an index",
        "two": f"it is a folder with {SHARDS['w']}, {SHARDS['bias']}; expected one file, or an index",
        "lost": f"model.safetensors.index.json names the shard {SHARDS['bias']}, which is missing",
        "wrong": f"model.safetensors.index.json says that {SHARDS['bias']} has the array `bias`, and it has not",
        "escape": "model.safetensors.index.json is damaged: expected `weight_map`, the file of each array",
        "text": "model.safetensors.index.json is damaged: expected `weight_map`, the file of each array",
    }


def test_damaged_files_are_named(mtfc: Mtfc, folder: Path) -> None:
    for path, reason in damaged(folder).items():
        outcome = mtfc("run", "model.mtf", "--params", path)
        assert outcome.status == 1
        assert f"error[E501]: cannot read arrays: {reason}\n --> {path}:1:1" in outcome.err


def test_numbers_that_numpy_lacks_are_named(mtfc: Mtfc) -> None:
    header = json.dumps(
        {
            "w": {"dtype": "F8_E8M0", "shape": [6, 3], "data_offsets": [0, 18]},
            "bias": {"dtype": "F32", "shape": [3], "data_offsets": [18, 30]},
        }
    ).encode()
    Path("params.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(30))
    outcome = mtfc("run", "model.mtf", "--params", "params.safetensors")
    assert outcome.status == 1
    assert "error[E504]: parameter `w` is f32, and its array in params.safetensors is F8_E8M0" in outcome.err


READ_WITHOUT_JAX = """
import sys
from mtfc.driver.data.array_files import save_arrays, stored_arrays
arrays = {name: each.read() for name, each in stored_arrays("params.safetensors").items()}
assert "jax" not in sys.modules
save_arrays("params.npz", arrays)
"""


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float16"])
def test_narrow_floats_are_read_where_jax_is_not_loaded(mtfc: Mtfc, dtype: str) -> None:
    """NPZ lacks the dtypes of `ml_dtypes`: they become f32, which has all their numbers."""
    narrow = {
        "w": W.astype(dtype),
        "scale": np.asarray(2).astype(dtype),
        "none": np.zeros((0, 3)).astype(dtype),
    }
    save_arrays("params.safetensors", narrow)
    subprocess.run([sys.executable, "-c", READ_WITHOUT_JAX], check=True)
    found = np.load("params.npz")
    for name, array in narrow.items():
        np.testing.assert_array_equal(found[name], array.astype(np.float32))
    save_arrays("params.safetensors", {"w": narrow["w"], "bias": BIAS})
    assert np.isfinite(loss(mtfc, "params.safetensors"))


def test_tied_tensors_are_read_by_each_of_their_names(mtfc: Mtfc, folder: Path) -> None:
    """As `safetensors.torch.save_model` writes them: one tensor, and metadata with its other names."""
    tied = {"format": "pt", "w": "embed", "embed.weight": "embed"}
    save_file({"embed": W, "bias": BIAS}, "params.safetensors", metadata=tied)
    found = stored_arrays("params.safetensors")
    assert {name: each.alias_of for name, each in found.items() if each.alias_of} == {
        "w": "embed",
        "embed.weight": "embed",
    }
    np.testing.assert_array_equal(found["w"].read(), W)
    np.savez("params.npz", w=W, bias=BIAS)
    assert loss(mtfc, "params.safetensors") == loss(mtfc, "params.npz")
    save_file({"w": W, "bias": BIAS, "more": BIAS}, "params.safetensors", metadata=tied | {"bias2": "more"})
    outcome = mtfc("run", "model.mtf", "--params", "params.safetensors")
    assert "has an array `more`, which is no parameter" in outcome.err
    assert "bias2" not in outcome.err


def test_damage_inside_an_npz_file_is_named_when_it_is_read(mtfc: Mtfc) -> None:
    np.savez("params.npz", w=W, bias=BIAS)
    content = bytearray(Path("params.npz").read_bytes())
    at = content.index(W.tobytes())
    content[at] ^= 255
    Path("params.npz").write_bytes(content)
    outcome = mtfc("run", "model.mtf", "--params", "params.npz")
    assert outcome.status == 1
    assert "error[E501]: cannot read arrays: it is damaged\n --> params.npz:1:1" in outcome.err


def test_files_of_pytorch_are_refused(mtfc: Mtfc, folder: Path) -> None:
    import zipfile

    with zipfile.ZipFile("model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", b"x")
    outcome = mtfc("run", "model.mtf", "--params", "model.bin")
    assert (
        "it is a PyTorch file, which may hold code; write it with safetensors.torch.save_file" in outcome.err
    )


def test_the_missing_package_is_named(mtfc: Mtfc, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({"w": W, "bias": BIAS}, "params.safetensors")
    monkeypatch.setitem(__import__("sys").modules, "safetensors", None)
    outcome = mtfc("run", "model.mtf", "--params", "params.safetensors")
    assert outcome.status == 3
    assert "reading params.safetensors needs the package safetensors" in outcome.err
    assert "pip install '.[train]'" in outcome.err


def test_arrays_of_memory_need_a_dtype_that_the_file_has(folder: Path) -> None:
    from mtfc.driver.errors import UsageError

    with pytest.raises(UsageError, match="safetensors has no dtype complex64, which `z` has"):
        save_arrays("out.safetensors", {"z": np.zeros(2, np.complex64)})
    with pytest.raises(CompileError):
        stored_arrays("out.safetensors")
