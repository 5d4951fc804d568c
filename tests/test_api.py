"""The Python API: the same options as the command, and errors as exceptions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mtfc
from mtfc.compiler.diagnostics import CompileError
from mtfc.compiler.ir.reader import read_program
from tests.cli.model import MODEL


def test_compile_a_file(tmp_path: Path) -> None:
    path = tmp_path / "model.mtf"
    path.write_text(MODEL)
    compiled = mtfc.compile(path, layout="both", dims={"batch": 8})
    assert compiled.program.layout is not None and compiled.program.layout.name == "both"
    assert compiled.program.dims["batch"].size == 8
    assert read_program(compiled.ir()).name == "small"


def test_options_are_those_of_the_command() -> None:
    compiled = mtfc.compile_text(MODEL, layout="batch:rows;io:cols", mesh="rows:2;cols:3")
    assert compiled.cost()["mesh"] == {"rows": 2, "cols": 3}
    assert compiled.cost()["step"]["collectives"]["all_reduce"]["count"] > 0


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_a_loaded_module_runs(backend: str) -> None:
    compiled = mtfc.compile_text(MODEL, layout="both")
    module = compiled.load(backend)
    x = np.ones((4, 6), np.float32)
    inputs = module.shard({"x": x, "labels": np.zeros(4, np.int32)}, module.INPUTS)
    params = module.init(seed=3)
    y = module.unshard(module.forward(params, inputs), module.OUTPUTS["forward"])["y"]
    w = module.unshard(params, module.PARAMETERS)["w"]
    np.testing.assert_allclose(y, x @ w, rtol=1e-5)
    assert getattr(compiled, backend)().startswith('"""small on mesh grid = [rows: 2, cols: 3]')


def test_errors_carry_their_diagnostics() -> None:
    with pytest.raises(CompileError) as error:
        mtfc.compile_text("dim a = 0\ndim b = 0\nmodel m(x: f32[a]) { return x }", file="given.mtf")
    assert [diagnostic.code for diagnostic in error.value.diagnostics] == ["E207", "E207"]
    assert error.value.diagnostics[0].span.file == "given.mtf"


def test_a_missing_file() -> None:
    with pytest.raises(FileNotFoundError):
        mtfc.compile("missing.mtf")


def test_entries_of_the_train_block_are_changed() -> None:
    changed = mtfc.compile_text(
        MODEL, layout="data", set={"accumulate": 2, "optimizer.learning_rate": 1e-3, "clip": "1 / 2"}
    )
    training = changed.program.training
    assert training is not None and (training.accumulate, training.clip) == (2, 0.5)
    assert "0.001" in changed.jax()
    with pytest.raises(CompileError, match=r"<--set>:1:1: E012"):
        mtfc.compile_text(MODEL, set={"acumulate": 2})


def test_one_device() -> None:
    compiled = mtfc.compile_text(MODEL, mesh="one")
    assert compiled.program.mesh is not None and compiled.program.mesh.devices == 1
    assert compiled.cost()["layout"] == "undistributed"
