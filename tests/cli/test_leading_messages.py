"""Test messages that name the cause and the next step: of parameters, resumed runs, data with NaN, and several mistakes."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from mtfc.cli import main
from mtfc.editor.documents import TextBuffer
from mtfc.editor.fixes import applied, fixes
from mtfc.frontend.check import check
from tests.cli.conftest import Mtfc
from tests.cli.model import MODEL
from tests.mistakes import MODEL as CORRECT
from tests.mistakes import ON_THE_COMMAND_LINE

IN_A_CALL = """\
dim batch = 2
dim io = 3
dim hidden = 3

fn body(x: [batch, io]) -> [batch, hidden] {
  param w: [io, hidden] = normal(stddev = 1.0)
  param b: [hidden] = zeros()
  return einsum(x, w -> [batch, hidden]) + b
}

fn outer(x: [batch, io]) -> [batch, hidden] {
  return body(x) as inner
}

model m(x: [batch, io]) {
  y = CALL
  return y
}
"""


@pytest.mark.parametrize(
    ("theirs", "call", "end"),
    [
        ("trunk", "body(x)", "as trunk"),
        ("trunk.inner", "outer(x)", "as trunk"),
        ("outer.body", "outer(x)", "as body"),
    ],
)
def test_one_error_says_which_prefix_differs(
    mtfc: Mtfc, folder: Path, theirs: str, call: str, end: str
) -> None:
    text = IN_A_CALL.replace("CALL", call)
    Path("m.mtf").write_text(text)
    arrays = {f"{theirs}.w": np.ones((3, 3), "f"), f"{theirs}.b": np.ones(3, "f")}
    np.savez("params.npz", **arrays)
    for more in ((), ("--params-partial",)):
        shown = mtfc("run", "m.mtf", "--params", "params.npz", *more)
        assert shown.status == 1
        assert re.findall(r"error\[\w+\]", shown.err) == ["error[E502]"]
        assert f"end this call with `{end}`" in shown.err and "params-partial" not in shown.err
    called = "body(x) as inner" if end == "as body" else f"y = {call}"
    right = text.replace(called, f"{called.removesuffix(' as inner')} {end}")
    Path("m.mtf").write_text(right)
    assert mtfc("run", "m.mtf", "--params", "params.npz").status == 0


def test_other_arrays_are_no_other_prefix(mtfc: Mtfc, folder: Path) -> None:
    """One parameter, or parameters of other shapes, may be anything."""
    np.savez("params.npz", **{"a.w": np.ones((2, 2), "f"), "a.bias": np.ones(3, "f")})
    shown = mtfc("run", "model.mtf", "--params", "params.npz")
    assert shown.status == 1 and "end this call" not in shown.err


def test_a_resumed_run_names_the_changed_options(mtfc: Mtfc, folder: Path) -> None:
    assert mtfc("train", "model.mtf", "--steps", "1", "--dir", "run").status == 0
    changed = MODEL.replace("learning_rate = 0.1)", "learning_rate = 0.2)  # was = 0.1")
    Path("model.mtf").write_text(changed)
    shown = mtfc("train", "model.mtf", "--steps", "2", "--dir", "run", "--set", "clip=1.0")
    assert "since this checkpoint: learning_rate 0.1 -> 0.2, clip nothing -> 1.0\n" in shown.err
    assert (
        "has changed"
        not in mtfc("train", "model.mtf", "--steps", "3", "--dir", "run", "--set", "clip=1.0").err
    )


def test_examples_with_nan_are_named(mtfc: Mtfc, folder: Path) -> None:
    x = np.zeros((8, 6), "f")
    x[5, 2] = np.nan
    np.savez("data.npz", x=x, labels=np.zeros(8, "i"))
    shown = mtfc("train", "model.mtf", "--steps", "2", "--data", "data.npz", "--debug-nans")
    assert shown.status == 1
    assert "its batch: `x` has numbers that are not finite in example 5 of data.npz" in shown.err
    assert re.search(r"the first is at batch = \d, io = 2: look for such numbers in the data", shown.err)


def test_all_mistakes_are_shown_and_can_be_fixed() -> None:
    """The first mistake hides no other one, and the quick fix of each stays."""
    text = MODEL.replace("[batch, classes]) + bias", "[batch, clases]) + bias")
    text = (
        text.replace("minimize loss", "minimize los")
        .replace("sgd(", "sdg(")
        .replace("batch: all", "bach: all")
    )
    assert text != MODEL
    found = check(text, "model.mtf").errors
    assert [each.code for each in found] == ["E303", "E103", "E401", "E404"]
    for each in found:
        buffer = TextBuffer("model.mtf", "model.mtf", text)
        fix = fixes(each, buffer, lambda text: [*check(text, "model.mtf")])[0]
        text, before = applied(buffer, fix.changes), text
        assert text != before
    assert text == MODEL


def test_a_fix_of_dtypes_keeps_both_operands() -> None:
    means = "means = mean(y, over = [classes])\n  same = argmax(y, over = classes) == means\n  return y,"
    text = CORRECT.replace("return y,", means)
    (found,) = check(text, "model.mtf").errors
    buffer = TextBuffer("model.mtf", "model.mtf", text)
    proposed = fixes(found, buffer, lambda text: [*check(text, "model.mtf")])
    lines = [
        line.strip()
        for fix in proposed
        for line in applied(buffer, fix.changes).split("\n")
        if "same" in line
    ]
    assert lines == [
        "same = cast(argmax(y, over = classes), f32) == means",
        "same = argmax(y, over = classes) == cast(means, i32)",
    ]


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a folder with a model, parameters and data the current one."""
    monkeypatch.chdir(tmp_path)
    for place in ("folder", "data"):
        Path(place).mkdir()
    for file in ("model.mtf", "folder/model.mtf"):
        Path(file).write_text(CORRECT)
    Path("mine.py").write_text(
        "import numpy as np\n\nexample = (np.zeros(4),)\n\ndef step(x):\n    return 2 * x\n"
    )
    np.savez("params.npz", w=np.zeros((6, 3), np.float32))
    np.savez("data/x.npz", x=np.zeros((4, 6), np.float32), labels=np.zeros(4, np.int32))


@pytest.mark.parametrize(("wrong", "message", "remedy", "right"), ON_THE_COMMAND_LINE)
@pytest.mark.usefixtures("workplace")
def test_mistakes_on_the_command_line(
    wrong: str, message: str, remedy: str, right: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(wrong)) in (1, 2)
    shown = capsys.readouterr()
    assert message in shown.err + shown.out and remedy in shown.err + shown.out
    assert main(shlex.split(right)) == 0
