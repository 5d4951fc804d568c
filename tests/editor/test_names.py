"""Definitions, references and renaming, in open, imported and library files."""

from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException

from mtfc.compiler.ir.initializers import DISTRIBUTIONS
from mtfc.compiler.ir.types import ITEM_BYTES
from mtfc.editor import renaming
from mtfc.editor.checks import diagnostics_of
from mtfc.editor.declarations import Project, declarations
from mtfc.editor.documents import OpenTexts, TextBuffer, file_of
from mtfc.editor.fixes import applied
from mtfc.editor.names import occurrences
from mtfc.editor.token_kinds import keywords
from mtfc.frontend.semantics.calls.builtin_calls import BUILTINS
from mtfc.frontend.syntax.lexer import lex
from tests.documents import ROOT
from tests.editor.client import Editor

EXAMPLES = sorted((ROOT / "examples").glob("*.mtf"))
LIBRARY = sorted((ROOT / "mtfc/std").glob("*.mtf"))

WORDS = {
    "step", "any", "params", "optimizer", "compute", "reduce", "loss_scale", "precision", "clip", "average", "accumulate",
    "training",
}  # fmt: skip
"""Words of the language that are neither keywords nor names."""

KEYWORDS_OF_CALLS = {name for each in BUILTINS.values() for name in each.keywords} | {
    name for each in DISTRIBUTIONS.values() for name in each.args
}

COMMON = """\
dim batch = 8
fn twice[d](x: [..., d], by = 2.0) -> [..., d] {
  y = x * by
  return y
}
"""
MAIN = """\
import common
import nn

dim io = 4
mesh grid = [rows: 2, cols: 2]
layout l on grid = { common.batch: rows, io: cols, value again.y: { io: rows }, value input.x: { io: cols } }
model net(x: [common.batch, io]) {
  param w: [io] = zeros()
  h = common.twice[d = io](x * w, by = 3.0) as again
  h = nn.layer_norm(h)
  loss = mean(square(h))
  return loss
}
train net {
  minimize loss
  optimizer = sgd(learning_rate = 0.1)
}
"""


@pytest.mark.parametrize("path", [*EXAMPLES, *LIBRARY], ids=lambda path: path.stem)
def test_every_name_means_something(path: Path) -> None:
    """All words of the examples and of the library are names with a declaration, or words of the language."""
    texts = OpenTexts({})
    file = file_of(path.as_uri())
    text = path.read_text("utf-8")
    found = {
        (each.span.line, column)
        for each in occurrences(declarations(text, file), Project(texts.read))
        for column in range(each.span.column, each.span.end_column)
    }
    known = {*keywords(), *BUILTINS, *DISTRIBUTIONS, *ITEM_BYTES, *WORDS, *KEYWORDS_OF_CALLS}
    names = [token for token in lex(text) if token.kind in ("NAME", "PATH", "WORD")]
    lost = {
        n.text for n in names if found.isdisjoint((n.line, n.column + i) for i in range(len(n.text)))
    }  # of a path, some part: `input` in `input.x` is a word
    assert lost <= known
    assert len(found) > 10


@pytest.mark.parametrize("name", ["digits", "transformer_lm"])
def test_renaming_changes_no_meaning(name: str) -> None:
    """Every kind of symbol of a file can be renamed, and the file then has the same diagnostics."""
    file = "untitled:renamed"
    text = (ROOT / f"examples/{name}.mtf").read_text("utf-8")
    texts = OpenTexts({file: text})
    before = [each.code for each in diagnostics_of(file, texts)]
    all = occurrences(declarations(text, file), Project(texts.read))
    symbols = {each.symbol.kind: each.symbol for each in all if each.symbol.place.file == file}
    for symbol in symbols.values():
        if symbol.kind == "module":
            continue
        found = renaming.renamed(symbol, "renamed_here", texts, lambda file, texts: ())
        new = applied(TextBuffer("", file, text), [(each.span, "renamed_here") for each in found[file]])
        assert new.count("renamed_here") == len(found[file]) >= 1
        assert [each.code for each in diagnostics_of(file, OpenTexts({file: new}))] == before


@pytest.fixture
def files(editor: Editor, tmp_path: Path) -> tuple[str, str]:
    """A module on disk, and an open buffer that imports it and is not saved."""
    module, main = tmp_path / "common.mtf", tmp_path / "main.mtf"
    module.write_text(COMMON, "utf-8")
    assert editor.open(main.as_uri(), MAIN) == []
    return module.as_uri(), main.as_uri()


@pytest.mark.parametrize(
    ("before", "after", "file", "line", "column"),
    [
        ("value again.", "y: {", "common", 3, 3),
        ("on gr", "id = {", "main", 5, 6),
        ("common.ba", "tch: rows", "common", 1, 5),
        ("batch: ro", "ws, io", "main", 5, 14),
        ("common.twi", "ce[d", "common", 2, 4),
        ("twice[", "d = io]", "common", 2, 10),
        ("b", "y = 3.0", "common", 2, 26),
        ("comm", "on.twice", "common", 1, 1),
        ("nn.layer_", "norm", "nn", None, None),
        ("minimize lo", "ss", "main", 11, 3),
        ("sgd(learning_", "rate", "optimizers", None, None),
        ("square(", "h)", "main", 9, 3),
    ],
)
def test_definitions(
    editor: Editor,
    files: tuple[str, str],
    before: str,
    after: str,
    file: str,
    line: int | None,
    column: int | None,
) -> None:
    uri = files[1]
    found = editor.ask_at(lsp.TEXT_DOCUMENT_DEFINITION, uri, before, after)
    assert found.uri.endswith(f"/{file}.mtf")
    if line is not None:
        assert (found.range.start.line + 1, found.range.start.character + 1) == (line, column)


def references(editor: Editor, uri: str, before: str, after: str, with_declaration: bool) -> Any:
    context = lsp.ReferenceContext(include_declaration=with_declaration)
    return editor.ask_at(lsp.TEXT_DOCUMENT_REFERENCES, uri, before, after, context=context)


def test_references_are_in_both_files(editor: Editor, files: tuple[str, str]) -> None:
    module, main = files
    found = references(editor, main, "common.twi", "ce", with_declaration=True)
    assert {(each.uri, each.range.start.line + 1) for each in found} == {(module, 2), (main, 9)}
    found = references(editor, main, "common.twi", "ce", with_declaration=False)
    assert [each.uri for each in found] == [main]


def test_references_of_the_library(editor: Editor, files: tuple[str, str]) -> None:
    """The library's own calls of a function are found too."""
    found = references(editor, files[1], "nn.layer_", "norm", with_declaration=True)
    places = {each.uri.rpartition("/")[2] for each in found}
    assert {"main.mtf", "nn.mtf", "transformer.mtf"} <= places


def test_renaming_in_both_files(editor: Editor, files: tuple[str, str]) -> None:
    module, main = files
    texts = editor.applied(editor.rename(main, "common.ba", "tch: rows", "examples"))
    assert texts == {
        module: COMMON.replace("dim batch", "dim examples"),
        main: MAIN.replace("common.batch", "common.examples"),
    }


@pytest.mark.parametrize(
    ("before", "after", "name", "count"),
    [
        ("value again.", "y: {", "z", 1),  # with the value in the module
        ("mesh grid = [ro", "ws: 2", "r", 3),
        (") as ag", "ain", "once", 2),
        ("  h = nn", ".layer_norm", "", 0),
        ("minimize lo", "ss", "total", 3),
        ("input.", "x: {", "data", 3),
        ("param ", "w:", "weight", 2),
        ("  h = common.twice[", "d = io]", "dd", 1),
        ("x * w, b", "y = 3.0", "factor", 1),
    ],
)
def test_renaming(
    editor: Editor, files: tuple[str, str], before: str, after: str, name: str, count: int
) -> None:
    main = files[1]
    if not name:
        with pytest.raises(JsonRpcException, match="module"):
            editor.ask_at(lsp.TEXT_DOCUMENT_PREPARE_RENAME, main, before, after)
        return
    edit = editor.rename(main, before, after, name)
    assert len(edit.changes[main]) == count
    texts = editor.applied(edit)
    for uri in sorted(texts, key=lambda uri: uri == main):
        shown = editor.edit(uri, (None, texts[uri])) if uri == main else editor.open(uri, texts[uri])
        assert shown == []


@pytest.mark.parametrize(
    ("before", "after", "name", "reason"),
    [
        ("nn.layer_", "norm", "ln", "belongs to the library"),
        ("dim ", "io = 4", "4io", "is no name"),
        ("dim ", "io = 4", "return", "is a word of the language"),
        ("param ", "w:", "h", "something else"),
        ("  loss", " = mean", "h", "something else"),
        ("common.ba", "tch: rows", "d", None),
        ("[rows: 2, co", "ls: 2]", "rows", "something else"),
    ],
)
def test_refused_renamings(
    editor: Editor, files: tuple[str, str], before: str, after: str, name: str, reason: str | None
) -> None:
    if reason is None:
        assert editor.rename(files[1], before, after, name).changes
    else:
        with pytest.raises(JsonRpcException, match=reason):
            editor.rename(files[1], before, after, name)


def test_shared_parameters_and_gradients(editor: Editor) -> None:
    """`sharing` names the scope of an earlier call, and `gradients` takes values in brackets."""
    uri = "untitled:shared"
    text = (
        "import nn\ndim a = 4\ndim b = 4\nmodel m(x: [a]) {\n  y = nn.dense[d_out = b](x) as tower\n"
        "  z = nn.dense[d_out = b](x) sharing tower\n  loss = mean(y * z)\n  g = gradients(loss, [x])\n  return g\n}\n"
    )
    assert editor.open(uri, text) == []
    edit = editor.rename(uri, "as ", "tower", "pillar")
    assert editor.applied(edit)[uri] == text.replace("tower", "pillar")
    new = editor.applied(editor.rename(uri, "m(", "x: [", "given"))[uri]
    assert new.count("given") == 4
    assert editor.edit(uri, (None, new)) == []


def test_patterns_protect_parameters(editor: Editor) -> None:
    """A pattern that would select nothing any more is an error of the compiler, so the renaming is refused."""
    uri = "untitled:patterns"
    text = (
        MAIN.replace("import common\n", "dim batch = 8\n")
        .replace("common.batch", "batch")
        .replace(", value again.y: { io: rows }", "")
    )
    text = text.replace("common.twice[d = io](x * w, by = 3.0) as again", "x * w")
    text = text.replace("  optimizer", '  optimizer for "w" = sgd(learning_rate = 1.0)\n  optimizer')
    assert editor.open(uri, text) == []
    with pytest.raises(JsonRpcException, match="would lead to an error"):
        editor.rename(uri, "param ", "w:", "weight")


def test_syntax_errors_refuse_a_renaming(editor: Editor, files: tuple[str, str]) -> None:
    main = files[1]
    editor.edit(main, (None, MAIN + "model ) {\n"))
    with pytest.raises(JsonRpcException, match="syntax errors"):
        editor.rename(main, "dim ", "io = 4", "d")
