"""`mtfc compile`: all kinds, output files, and the options about passes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mtfc.compiler.ir.parser import read_program
from mtfc.compiler.ir.verifier import verify
from mtfc.compiler.passes.pipelines import default_pipeline
from tests.cli.conftest import Mtfc


def test_the_default_is_one_processors_program_under_the_first_layout(mtfc: Mtfc) -> None:
    outcome = mtfc("compile", "model.mtf")
    assert (outcome.status, outcome.err) == (0, "")
    program = read_program(outcome.out)
    verify(program, "lowered")
    assert program.layout is not None and program.layout.name == "replicated"
    assert outcome.out == mtfc("compile", "model.mtf", "--emit", "spmd", "--train").out


def test_collectives_show_their_axes_bytes_and_line(mtfc: Mtfc) -> None:
    """y is [2, 3] on each processor; its sum runs over the three processors that share the rows of its batch."""
    lines = mtfc("compile", "model.mtf", "--layout", "both").out.splitlines()
    (first, *_) = (line for line in lines if "all_reduce" in line)
    assert "axes={cols}" in first
    assert first.endswith("// 24 B, line 16")


@pytest.mark.parametrize(("kind", "functions"), [("ir", ["forward"]), ("grad", ["forward", "step"])])
def test_global_programs(mtfc: Mtfc, kind: str, functions: list[str]) -> None:
    program = read_program(mtfc("compile", "model.mtf", "--layout", "both", "--emit", kind).out)
    verify(program, "global")
    assert [function.name for function in program.functions] == functions


def test_syntax_tree(mtfc: Mtfc) -> None:
    assert mtfc("compile", "model.mtf", "--emit", "ast").out.startswith(
        "File 1:1\n  declarations: DimDecl 1:1\n"
    )
    assert mtfc("compile", "model.mtf", "--emit", "ast", "--format", "json").json["node"] == "File"


@pytest.mark.parametrize("kind", ["numpy", "jax"])
def test_modules_are_python(mtfc: Mtfc, kind: str) -> None:
    outcome = mtfc("compile", "model.mtf", "--layout", "both", "--emit", kind)
    assert "def train_step(params, state, inputs, step):" in outcome.out
    compile(outcome.out, "module.py", "exec")


@pytest.mark.parametrize(
    ("kind", "sign"), [("stablehlo", "module @jit_train_step"), ("hlo", "HloModule jit_train_step")]
)
def test_emitted_text_of_xla(mtfc: Mtfc, kind: str, sign: str) -> None:
    assert sign in mtfc("compile", "model.mtf", "--layout", "data", "--emit", kind).out


def test_json(mtfc: Mtfc) -> None:
    found = mtfc("compile", "model.mtf", "--layout", "both", "--format", "json").json
    assert {key: found[key] for key in ("emit", "model", "layout")} == {
        "emit": "spmd",
        "model": "small",
        "layout": "both",
    }
    assert found["mesh"] == {"rows": 2, "cols": 3}
    assert found["text"] == mtfc("compile", "model.mtf", "--layout", "both").out


def test_output_file(mtfc: Mtfc, folder: Path) -> None:
    outcome = mtfc("compile", "model.mtf", "-o", "out.ir")
    assert (outcome.status, outcome.out, outcome.err) == (0, "", "")
    assert (folder / "out.ir").read_text() == mtfc("compile", "model.mtf").out
    assert sorted(path.name for path in folder.iterdir()) == ["model.mtf", "out.ir"]


def test_an_error_leaves_the_output_file_alone(mtfc: Mtfc, folder: Path) -> None:
    (folder / "out.ir").write_text("before")
    assert mtfc("compile", "model.mtf", "--dim", "io=7", "--layout", "both", "-o", "out.ir").status == 1
    assert (folder / "out.ir").read_text() == "before"


def test_diagnostics_as_json_are_on_standard_error(mtfc: Mtfc) -> None:
    outcome = mtfc("compile", "model.mtf", "--dim", "io=7", "--layout", "both", "--format", "json")
    assert (outcome.status, outcome.out) == (1, "")
    assert [entry["code"] for entry in json.loads(outcome.err) if entry["severity"] == "error"] == ["E302"]


def test_print_ir_after_one_pass(mtfc: Mtfc) -> None:
    outcome = mtfc("compile", "model.mtf", "--layout", "both", "--print-ir-after", "differentiate")
    title, text = outcome.err.split("\n", 1)
    assert title.startswith("// after differentiate (")
    verify(read_program(text), "global")
    assert outcome.out == mtfc("compile", "model.mtf", "--layout", "both").out


def test_print_ir_after_all(mtfc: Mtfc) -> None:
    outcome = mtfc("compile", "model.mtf", "--print-ir-after", "all")
    titles = [line.split()[2] for line in outcome.err.splitlines() if line.startswith("// after")]
    assert titles == [str(each) for each in default_pipeline()]


def test_stop_after(mtfc: Mtfc) -> None:
    program = read_program(
        mtfc("compile", "model.mtf", "--layout", "both", "--stop-after", "insert-reshards").out
    )
    verify(program, "resharded")


def test_passes(mtfc: Mtfc) -> None:
    program = read_program(mtfc("compile", "model.mtf", "--passes", "differentiate{of=gradients},dce").out)
    verify(program, "global")
    assert program.has_function("gradients")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--passes", "bogus"], "unknown pass `bogus`"),
        (["--passes", "dce{x=1}"], "pass `dce` has no option `x`"),
        (
            ["--passes", "dce", "--stop-after", "bogus"],
            "--stop-after bogus: there is no such pass; the passes are ",
        ),
        (
            ["--passes", "dce", "--stop-after", "cse"],
            "--stop-after cse: this pass does not run here; those that do are dce",
        ),
        (["--print-ir-after", "bogus"], "--print-ir-after bogus: there is no such pass"),
        (["--passes", "lower-collectives"], "--passes: these cannot run in this order: "),
        (
            ["--emit", "numpy", "--passes", "dce"],
            "--emit numpy needs all passes, and these end before lower-collectives",
        ),
        (["--emit", "jax", "--stop-after", "insert-reshards"], "--emit jax needs all passes"),
    ],
)
def test_wrong_passes(mtfc: Mtfc, arguments: list[str], message: str) -> None:
    outcome = mtfc("compile", "model.mtf", *arguments)
    assert (outcome.status, outcome.out) == (2, "")
    assert message in outcome.err


def test_train_without_a_train_block(mtfc: Mtfc, folder: Path) -> None:
    text = (folder / "model.mtf").read_text()
    (folder / "model.mtf").write_text(text[: text.index("train small")])
    assert mtfc("compile", "model.mtf").status == 0
    outcome = mtfc("compile", "model.mtf", "--train")
    assert outcome.status == 2
    assert outcome.err == "mtfc: model small has no training step: there is no `train` block for it\n"
