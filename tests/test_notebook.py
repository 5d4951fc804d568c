"""Notebooks: the cell magic, and what objects show there. `make notebook` runs the tutorial in a real kernel."""

import json
from collections.abc import Callable
from copy import copy
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import mtfc
from mtfc.compiler.diagnostics import CompileError
from mtfc.notebook import CellError
from tests.cli.model import MODEL

TUTORIAL = Path(__file__).parents[1] / "examples" / "tutorial.ipynb"


class Shell:
    """IPython's shell as far as the extension uses it."""

    def __init__(self) -> None:
        self.user_ns: dict[str, Any] = {}
        mtfc.load_ipython_extension(self)

    def register_magic_function(self, function: Callable[..., Any], kind: str, name: str) -> None:
        assert (kind, name) == ("cell", "mtf")
        self.mtf = function


def test_a_cell_is_compiled_and_bound() -> None:
    shell = Shell()
    compiled = shell.mtf(
        'net --layout "{ batch: rows }" --mesh "rows:2" --dim batch=8 --set optimizer.learning_rate=0.5',
        MODEL,
    )
    assert shell.user_ns == {"net": compiled}
    given = mtfc.compile_text(
        MODEL,
        layout={"batch": "rows"},
        mesh={"rows": 2},
        dims={"batch": 8},
        set={"optimizer.learning_rate": 0.5},
    )
    assert compiled.ir() == given.ir()
    assert shell.mtf("", MODEL).ir() == mtfc.compile_text(MODEL).ir()
    assert shell.user_ns == {"net": compiled}


def test_all_errors_of_a_cell_are_shown_with_carets() -> None:
    shell = Shell()
    wrong = MODEL.replace("square(y", "sqare(y").replace("einsum(x, w", "einsum(z, w")
    with pytest.raises(CompileError) as caught:
        shell.mtf("net", wrong)
    lines = caught.value._render_traceback_()
    assert "\n".join(lines) == str(caught.value)
    assert [line for line in lines if line.startswith("error[")] == [
        "error[E101]: unknown value `z`", "error[E104]: unknown function `sqare`"
    ]  # fmt: skip
    assert "  --> <cell>:16:14" in lines and any(
        set(line) <= {" ", "|", "^"} and "^" in line for line in lines
    )
    assert shell.user_ns == {}


def test_warnings_of_a_cell(capsys: pytest.CaptureFixture[str]) -> None:
    Shell().mtf("net", MODEL.replace("  loss =", "  unused = y * 2.0\n  loss ="))
    assert "warning[W603]" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        "1net", "class", "'net", "net --dim batch", "net --dim batch=²", "net --dim batch=x", "net --layout", "net --other x",
        "net x y",
    ],
)  # fmt: skip
def test_wrong_lines(line: str) -> None:
    with pytest.raises(CellError, match="%%mtf") as caught:
        Shell().mtf(line, MODEL)
    assert caught.value._render_traceback_() == [f"mtfc: {caught.value}"]


def test_a_cell_without_a_model() -> None:
    with pytest.raises(CellError, match="declares no model") as caught:
        Shell().mtf("net", "dim batch = 8\n")
    assert caught.value._render_traceback_() == ["mtfc: <cell> declares no model"]


def test_drawings() -> None:
    """A drawing names the parts of arrays, and its styles are for itself alone."""
    compiled = mtfc.compile_text(MODEL, layout="both")
    drawing = compiled.draw("x", "loss")
    root = ElementTree.fromstring(drawing._repr_svg_())
    names = {each.text for each in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"x", "loss"} <= names and "bias" not in names
    style = root.findtext("{http://www.w3.org/2000/svg}style") or ""
    assert all(rule.startswith(".mtfc") for rule in style.split("}") if rule)
    with pytest.raises(ValueError, match="did you mean `bias`"):
        compiled.draw("bais")


def test_results_of_searches(tmp_path: Path) -> None:
    """A notebook shows what the command prints; programs have a dict."""
    path = tmp_path / "model.mtf"
    path.write_text(MODEL)
    found = mtfc.search(path, target="h100", devices=4)
    assert "<pre>" in found._repr_html_() and found["layout"] in unescape(found._repr_html_())  # type: ignore[attr-defined]
    assert json.loads(json.dumps(found)) == found == copy(found) and type(copy(found)) is dict


def test_diagnostics_keep_their_columns() -> None:
    checked = mtfc.check_text("model m(x: f32[<b>]) { return x }")
    html = checked._repr_html_()
    assert html.startswith("<pre>") and "&lt;b&gt;" in html and "<b>" not in html


def test_the_tutorial_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The cells run in order; the ones that must fail do. A kernel shows what they show here."""
    monkeypatch.chdir(tmp_path)
    shell = Shell()
    for cell in json.loads(TUTORIAL.read_text("utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] != "code" or text.startswith("%load_ext"):
            continue
        if text.startswith("%%mtf"):
            head, _, body = text.partition("\n")
            if "raises-exception" in cell["metadata"].get("tags", ()):
                with pytest.raises(CompileError):
                    shell.mtf(head.removeprefix("%%mtf"), body)
            else:
                shell.mtf(head.removeprefix("%%mtf"), body)
        else:
            exec(compile(text, "<cell>", "exec"), shell.user_ns)
