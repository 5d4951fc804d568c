"""`mtfc check`: verdict, diagnostics as text and JSON, layouts of the file and of the command line."""

import io
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Mtfc

DIAGNOSTIC = {
    "code", "severity", "message", "file", "line", "column", "end_line", "end_column", "labels", "help",
}  # fmt: skip


def test_a_good_file(mtfc: Mtfc) -> None:
    outcome = mtfc("check", "model.mtf", "--layout", "both")
    assert (outcome.status, outcome.out, outcome.err) == (0, "model.mtf: no errors\n", "")


def test_warnings_are_no_errors(mtfc: Mtfc) -> None:
    outcome = mtfc("check", "model.mtf")
    assert outcome.status == 0
    assert outcome.out == "model.mtf: 1 warning\n"
    assert "warning[W601]" in outcome.err


def test_every_declared_layout_is_checked(mtfc: Mtfc, folder: Path) -> None:
    outcome = mtfc("check", "model.mtf", "--dim", "io=7")
    assert outcome.status == 1
    assert "error[E302]" in outcome.err
    assert mtfc("check", "model.mtf", "--dim", "io=7", "--layout", "data").status == 0


def test_json(mtfc: Mtfc) -> None:
    outcome = mtfc("check", "model.mtf", "--dim", "io=7", "--format", "json")
    assert (outcome.status, outcome.err) == (1, "")
    found = [entry for entry in outcome.json if entry["code"] == "E302"]
    assert len(found) == 1
    assert found[0].keys() >= DIAGNOSTIC
    assert (found[0]["severity"], found[0]["file"], found[0]["line"]) == ("error", "model.mtf", 10)


def test_json_of_a_good_file(mtfc: Mtfc) -> None:
    outcome = mtfc("check", "model.mtf", "--layout", "both", "--format", "json")
    assert (outcome.status, outcome.json) == (0, [])


def test_json_of_a_file_that_is_no_text(mtfc: Mtfc, folder: Path) -> None:
    (folder / "model.mtf").write_bytes(b"\xff")
    outcome = mtfc("check", "model.mtf", "--format", "json")
    assert (outcome.status, outcome.json[0]["code"]) == (1, "E013")


def test_a_layout_of_the_command_line(mtfc: Mtfc) -> None:
    good = mtfc("check", "model.mtf", "--mesh", "rows:4", "--layout", "batch:rows")
    assert (good.status, good.err) == (0, "")
    bad = mtfc("check", "model.mtf", "--mesh", "rows:4", "--layout", "batch:rows;io:rows")
    assert bad.status == 1
    assert "error[E301]" in bad.err


def test_imported_files_are_those_beside_the_file(mtfc: Mtfc, folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "net.mtf").write_text(
        "import own\ndim d = 2\nmodel m(x: [d]) { y = own.f(x); return y }\n"
    )
    (folder / "own.mtf").write_text("fn g(x: [...]) -> [...] { return x }\n")
    outcome = mtfc("check", "sub/net.mtf")
    assert (outcome.status, "error[E119]" in outcome.err) == (1, True)
    (folder / "sub" / "own.mtf").write_text("fn f(x: [...]) -> [...] {\n  return x + missing\n}\n")
    outcome = mtfc("check", "sub/net.mtf", "--format", "json")
    (found,) = outcome.json
    assert (found["code"], found["file"], found["line"]) == ("E101", "sub/own.mtf", 2)
    assert [(label["file"], label["line"]) for label in found["labels"]] == [("sub/net.mtf", 3)]
    text = mtfc("check", "sub/net.mtf").err
    assert "2 |   return x + missing" in text and "3 | model m(x: [d])" in text


def test_imports_of_standard_input_are_in_the_current_folder(
    mtfc: Mtfc, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "own.mtf").write_text("fn f(x: [...]) -> [...] { return x }\n")
    text = b"import own\nimport nn\ndim d = 2\nmodel m(x: [d]) { y = nn.gelu(own.f(x)); return y }\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert mtfc("check", "-").out == "<stdin>: no errors\n"


def test_an_imported_file_that_is_no_text(mtfc: Mtfc, folder: Path) -> None:
    (folder / "own.mtf").write_bytes(b"\xff")
    (folder / "net.mtf").write_text("import own\ndim d = own.size\n")
    outcome = mtfc("check", "net.mtf")
    assert (outcome.status, outcome.err.count("error[")) == (1, 1)
    assert "error[E013]" in outcome.err


def test_errors_in_the_library_show_its_lines(mtfc: Mtfc, folder: Path) -> None:
    (folder / "net.mtf").write_text(
        "import nn\ndim d = 2\nmodel m(x: [d]) { y = nn.dropout(x, 2.0); return y }\n"
    )
    text = mtfc("check", "net.mtf").err
    assert "--> mtfc/std/nn.mtf:" in text
    assert "random.bernoulli([...]" in text
    assert "in this call of `nn.dropout`" in text


WIDE = """\
import nn
dim batch = 4096
dim io = 1024
dim hidden = 8192
mesh line = [all: 8]
layout replicated = {}
layout split = { hidden: all }
model wide(x: [batch, io]) {
  h = nn.dense[d_out = hidden](x)
  y = nn.dense[d_out = io](relu(h))
  loss = mean(square(y - x))
  return loss
}
train wide {
  minimize loss
  optimizer = sgd(learning_rate = 0.1)
}
"""


def step_seconds(mtfc: Mtfc, layout: str) -> float:
    run = mtfc(
        "simulate", "wide.mtf", "--layout", layout, "--mesh", "line", "--target", "h100", "--format", "json"
    )
    return float(run.json["step_seconds"])


def test_advised_speedups_are_those_of_the_simulator(mtfc: Mtfc, folder: Path) -> None:
    (folder / "wide.mtf").write_text(WIDE)
    (warning,) = mtfc("check", "wide.mtf", "--format", "json").json
    assert "and in 1 more equation:" in warning["message"]
    times = dict(re.findall(r"`(\w+: all)`[a-z ]* ([0-9.]+) times", warning["help"]))
    before = step_seconds(mtfc, "{}")
    for rule in ("batch: all", "io: all", "hidden: all"):
        faster = before / step_seconds(mtfc, f"{{ {rule} }}")
        assert times.get(rule) == (f"{faster:.1f}" if faster >= 1.05 else None)
    assert "batch: all" in times


def test_advice_for_a_large_program_makes_the_whole_step_faster(mtfc: Mtfc, folder: Path) -> None:
    """In a large program, only the equation is simulated."""
    more = "  y = x + nn.dense[d_out = io](relu(nn.dense[d_out = hidden](y)))\n"
    deep = WIDE.replace("relu(h))\n", "relu(h))\n" + more * 10)
    (folder / "wide.mtf").write_text(deep)
    (warning,) = [
        each
        for each in mtfc("check", "wide.mtf", "--format", "json").json
        if "`replicated`" in each["message"]
    ]
    assert "and in 21 more equations:" in warning["message"]
    advised = re.findall(r"`(\w+: all)`[a-z ]* [0-9.]+ times", warning["help"])
    assert "batch: all" in advised
    before = step_seconds(mtfc, "{}")
    assert step_seconds(mtfc, f"{{ {advised[0]} }}") < before


FOR_MODELS = """\
dim batch = 4
dim io = 6
mesh line = [all: 2]
layout whole for second = {}
layout data for first = { batch: all }
model first(x: [batch]) {
  y = x + 1
  return y
}
model second(x: [io]) {
  y = x + 1
  return y
}
"""


def test_commands_take_the_layouts_of_their_model(mtfc: Mtfc, folder: Path) -> None:
    (folder / "model.mtf").write_text(FOR_MODELS)
    assert "layout data" in mtfc("compile", "model.mtf").out
    assert "layout whole" in mtfc("compile", "model.mtf", "--model", "second").out
    assert "whole" not in mtfc("cost", "model.mtf").out
    refused = mtfc("run", "model.mtf", "--layout", "whole")
    assert refused.status == 1
    assert "layout `whole` is for model `second`, and not for `first`" in refused.err
    assert "--model second" in refused.err and "`data`" in refused.err
    assert mtfc("run", "model.mtf", "--layout", "whole", "--model", "second").status == 0
    verified = mtfc("verify", "model.mtf", "--backend", "numpy")
    assert verified.status == 0 and "data" in verified.out and "whole" in verified.out


def test_operators_of_placements_are_checked(mtfc: Mtfc, folder: Path) -> None:
    """Each placement has its own mistakes, and a file with other errors has only those."""
    source = """dim b = 4
model m(x: [b]) {
  y = x * 2
  return y
}
placement right on 2 = { y: { b: 2 } on [0, 1] }
placement wrong on 2 = { z: { b: 2 } on [0, 1] }
placement other on 2 = { v: { b: 2 } on [0, 1] }
"""
    Path("placed.mtf").write_text(source)
    outcome = mtfc("check", "placed.mtf")
    assert outcome.status == 1
    assert "E317" in outcome.err
    assert "the model has no operator `z`" in outcome.err
    assert "the model has no operator `v`" in outcome.err
    assert "`y`" not in outcome.err
    Path("placed.mtf").write_text(source.replace("x * 2", "x * two"))
    assert "E317" not in mtfc("check", "placed.mtf").err
