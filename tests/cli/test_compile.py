"""`mtfc compile`: all kinds, output files, and the options about passes."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from mtfc.compiler.ir.parser import read_program
from mtfc.compiler.ir.verifier import verify
from mtfc.compiler.passes.pipelines import PASSES, default_pipeline
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
    order = [str(each) for each in default_pipeline()]
    assert {"differentiate", "assign-layouts"} <= set(titles) < set(order)
    assert titles == [order.pop(order.index(title)) for title in titles]
    texts = re.split(r"^// after .*\n", outcome.err, flags=re.MULTILINE)[1:]
    assert all(one != other for one, other in pairwise(texts))


def test_passes_as_json(mtfc: Mtfc) -> None:
    """Every pass has a record, with a text if it changed the program."""
    found = mtfc("compile", "model.mtf", "--print-ir-after", "all", "--format", "json").json["passes"]
    assert [each["pass"] for each in found] == [str(each) for each in default_pipeline()]
    assert {each["changed"] for each in found} == {True, False}
    assert all((each["text"] is not None) == each["changed"] for each in found)


def test_changed_lines_of_one_function(mtfc: Mtfc) -> None:
    options = ("--layout", "both", "--print-ir-after", "insert-reshards", "--print-diff")
    lines = mtfc("compile", "model.mtf", *options, "--print-function", "forward").err.splitlines()
    assert {line[:1] for line in lines[1:] if line} == {"@", "+", "-", " "}
    assert any("reshard" in line for line in lines if line.startswith("+"))
    assert not any("function step" in line for line in lines)


def test_list_of_passes(mtfc: Mtfc) -> None:
    outcome = mtfc("compile", "--passes", "list")
    assert outcome.status == 0
    assert [line for line in outcome.out.splitlines() if not line.startswith(" ")] == [*PASSES]
    assert "cse\n  compute equal equations once.\n  takes global" in outcome.out
    assert "  option max_bytes=" in outcome.out
    assert mtfc("compile").status == 2


@pytest.mark.parametrize(
    "last", ["assign-layouts", "place-reductions", "insert-reshards", "combine-collectives"]
)
def test_ir_text_goes_on_where_it_ended(mtfc: Mtfc, folder: Path, last: str) -> None:
    options = ("model.mtf", "--layout", "both", "--locations")
    assert mtfc("compile", *options, "--stop-after", last, "-o", "part.ir").status == 0
    outcome = mtfc("compile", "part.ir", "--locations")
    assert outcome.status == 0, outcome.err
    assert outcome.out == mtfc("compile", *options).out


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("stage", ["ir", "grad"])
def test_global_ir_text_gets_a_layout(mtfc: Mtfc, folder: Path, stage: str, dtype: str) -> None:
    """Updates stay in f32 where the model computes in bf16."""
    model = ("model.mtf", "--set", f"precision.compute={dtype}")
    assert mtfc("compile", *model, "--emit", stage, "--locations", "-o", "whole.ir").status == 0
    choice = ("--mesh", "rows:2;cols:3", "--layout", "batch:rows;classes:cols")
    outcome = mtfc("compile", "whole.ir", *choice, "--locations")
    assert outcome.status == 0, outcome.err
    assert outcome.out == mtfc("compile", *model, *choice, "--locations").out
    assert "def train_step" in mtfc("compile", "whole.ir", *choice, "--emit", "jax").out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello", "E014]: cannot read `hello` from column 1 on\n --> wrong.ir:1:1"),
        ("", "E014]"),
        ("program p\n\nprogram p\n", "`program p` from column 1 on: segments of several meshes"),
        ("program p\ndim a = 4\n\nfunction forward {\n  input %x: f32[a]\n  %y: f32[a] = shift %x dim=a\n}\n",
         "E014]: shift: attribute by is missing: a whole number of 32 bits\n --> wrong.ir:6:3"),
        ("program p\ndim a = 4\n\nfunction forward {\n  input %x: f32[a]\n  %y: f64[a] = neg %x\n}\n",
         "E014]: the type rule of neg infers f32[a], not f64[a]\n --> wrong.ir:6:3"),
    ],
)  # fmt: skip
def test_wrong_ir_text(mtfc: Mtfc, folder: Path, text: str, message: str) -> None:
    Path("wrong.ir").write_text(text)
    outcome = mtfc("compile", "wrong.ir")
    assert outcome.status == 1
    assert message in outcome.err


def test_a_wrong_line_among_reshards(mtfc: Mtfc, folder: Path) -> None:
    """The message is about the line, and not about the level at which reshards are allowed."""
    options = ("--layout", "both", "--stop-after", "insert-reshards")
    text = mtfc("compile", "model.mtf", *options).out
    assert " = reshard " in text
    Path("wrong.ir").write_text(text.replace("= square %", "= one_hot %", 1))
    outcome = mtfc("compile", "wrong.ir")
    assert outcome.status == 1
    assert "one_hot" in outcome.err and "at level" not in outcome.err


def test_options_that_ir_text_has_decided(mtfc: Mtfc, folder: Path) -> None:
    assert mtfc("compile", "model.mtf", "--layout", "both", "-o", "done.ir").status == 0
    assert mtfc("compile", "done.ir", "--dim", "io=8").err.startswith("mtfc: done.ir holds one program")
    assert mtfc("compile", "done.ir", "--mesh", "all:2").err.startswith("mtfc: done.ir has layouts already")


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
        (["--passes", "dce", "--stop-after", "bogus"], "--stop-after: unknown pass `bogus`; the passes are "),
        (["--passes", "dce", "--stop-after", "cse"], "--stop-after cse: this pass does not run here; those that do are dce"),
        (["--print-ir-after", "bogus"], "--print-ir-after: unknown pass `bogus`"),
        (["--passes", "lower-collectives"], "--passes: these cannot run in this order: "),
        (["--emit", "numpy", "--passes", "dce"], "--emit numpy needs all passes, and these end before lower-collectives"),
        (["--emit", "jax", "--stop-after", "insert-reshards"], "--emit jax needs all passes"),
    ],
)  # fmt: skip
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


def test_a_file_that_will_be_replaced_is_told(mtfc: Mtfc, folder: Path) -> None:
    told = [mtfc("compile", "model.mtf", "-o", "out.ir").err for _ in range(2)]
    assert told == ["", "mtfc: out.ir exists, and will be replaced\n"]
