"""Highlighting agrees with the compiler: on every file of the examples and of the library, token by token."""

import json
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from pygments.token import Error, string_to_tokentype

from mtfc.compiler.diagnostics import Diagnostics
from mtfc.editor.pygments_lexer import MtfLexer
from mtfc.editor.token_kinds import HIGHLIGHTS, JOINING, LEADING, TokenKind, classified, keywords
from mtfc.frontend.syntax.brackets import arrange
from mtfc.frontend.syntax.lexer import COMMENT, END, RESERVED, SEPARATOR, WORD, lex
from mtfc.frontend.syntax.parser import _Parser
from mtfc.frontend.syntax.tree_builder import TreeBuilder
from tests.documents import ROOT
from tests.editor import textmate

FILES = sorted([*(ROOT / "examples").rglob("*.mtf"), *(ROOT / "mtfc/std").rglob("*.mtf")])
GRAMMAR = ROOT / "editors/vscode/syntaxes/mtf.tmLanguage.json"

SYNTHETIC = """\
dim model = 4; dim state = 2
mesh on = [for: 2]
layout value for net on on = { model: for, value net.h: { state: for }, params: { *: for },
  pipeline state checkpoint: { model: 2 }, allow W601 }
model net(value: [model], with: i32[state]) {
  param along: [model] = zeros()
  state update: [model] = 0
  scan t = with along state { yield report = t }
  while = value
  repeat state while -while < 1 { while = f(while) * (while) }
  scan t = with along state while not (while) or f[with = state](while) { yield while = while - 1 }
  update update = along
  watch value
  checkpoint = value * along - true
  sharing = f(value) as on
  on = nn.f(value) sharing on
  return checkpoint
}
train net { minimize checkpoint; optimizer = sgd(learning_rate = .5e-3); optimizer for "a*" = sgd(1.); frozen "b" }
hardware link = { device: { flops: { f32: 1e12 }, memory: 8e9, bandwidth: 1e9 }, link link: { kind: switch } }
"""


def truth(text: str) -> dict[tuple[int, int], str]:
    """Return the kind of each token by its place, where the parser has told keywords from names."""
    diagnostics = Diagnostics()
    stream = arrange(lex(text), "f", diagnostics)
    parser = _Parser(stream, TreeBuilder("f"), diagnostics)
    parser.run()
    assert not diagnostics.errors
    return {(token.line, token.column): token.kind for token in parser.tokens}


def expected(kind: str, text: str) -> set[TokenKind]:
    """Return the kinds that a token of the compiler may be shown as."""
    if kind in ("NAME", "PATH"):
        return {"name", "builtin", "dtype"}
    if kind in ("TRUE", "FALSE", "ELLIPSIS"):
        return {"constant"}
    if text in keywords():
        return {"keyword"}
    if kind in ("NUMBER", "RANGE"):
        return {"number"}
    if kind == "PATTERN":
        return {"string"}
    return {"operator"} if kind in ("OPERATOR", "STAR", "MINUS", "ARROW", "EQUAL") else {"punctuation"}


def texts() -> list[tuple[str, str]]:
    return [
        ("synthetic", SYNTHETIC),
        *((str(path.relative_to(ROOT)), path.read_text("utf-8")) for path in FILES),
    ]


@pytest.mark.parametrize(("name", "text"), texts(), ids=[name for name, _ in texts()])
def test_kinds_are_those_of_the_parser(name: str, text: str) -> None:
    kinds = truth(text)
    wrong = [
        (token, shown)
        for token, shown in classified(text)
        if token.kind not in (COMMENT, END, SEPARATOR) and (token.line, token.column) in kinds
        and shown not in expected(kinds[token.line, token.column], token.text)
    ]  # fmt: skip
    assert wrong == []


@pytest.mark.parametrize(("name", "text"), texts(), ids=[name for name, _ in texts()])
def test_textmate_grammar_gives_the_same_kinds(name: str, text: str) -> None:
    """The grammar is applied as an editor does: line by line, the pattern that matches first."""
    assert [*by_grammar(text)] == [
        (token.line, token.column, token.text, kind) for token, kind in classified(text) if kind is not None
    ]


def by_grammar(text: str):  # type: ignore[no-untyped-def]
    compiled = [(kind, re.compile(match)) for kind, match in textmate.patterns()]
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        at = 0
        while at < len(line):
            found = [
                (match.start(), i, match)
                for i, (_, each) in enumerate(compiled)
                if (match := each.search(line, at))
            ]
            if not found:
                break
            _, i, match = min(found, key=lambda item: item[:2])
            group = 1 if compiled[i][1].groups else 0
            yield number, match.start(group) + 1, match[group], compiled[i][0]
            at = match.end()


def test_every_keyword_has_a_place() -> None:
    assert keywords() == {*LEADING, *JOINING, *RESERVED}


def test_grammar_in_the_extension_is_up_to_date(update_golden: bool) -> None:
    """`pytest --update-golden` writes it."""
    if update_golden:
        GRAMMAR.write_text(textmate.text(), "utf-8")
    assert json.loads(GRAMMAR.read_text("utf-8")) == textmate.grammar()


@pytest.mark.parametrize(
    "text", [SYNTHETIC, "", "\n", "a", "\t# é\r\n x = \x00'1e", "dim a = 1\r\rdim b = 2"]
)
def test_pygments_keeps_every_character(text: str) -> None:
    tokens = list(MtfLexer().get_tokens_unprocessed(text))
    assert "".join(part for _, _, part in tokens) == text
    assert [offset for offset, _, _ in tokens] == [
        sum(len(part) for _, _, part in tokens[:i]) for i in range(len(tokens))
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_pygments_lexes_every_file(path: Path) -> None:
    text = path.read_text("utf-8")
    found = [(type, part) for type, part in MtfLexer().get_tokens(text) if part.strip()]
    wanted = [
        (string_to_tokentype(HIGHLIGHTS[kind].pygments), token.text)
        for token, kind in classified(text)
        if kind is not None
    ]
    assert found == wanted
    assert Error not in {type for type, _ in found}


def test_pygments_finds_the_lexer() -> None:
    """The entry point names the class, under the name that documents use."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    module, _, name = project["entry-points"]["pygments.lexers"]["mtf"].partition(":")
    assert getattr(import_module(module), name) is MtfLexer
    assert "mtf" in MtfLexer.aliases


def test_pygments_needs_no_other_package() -> None:
    """Pygments loads the lexers of all packages for a name that it does not know: ours must load wherever mtfc is."""
    code = (
        f"import sys; sys.modules['lsprotocol'] = sys.modules['pygls'] = None; import {MtfLexer.__module__}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_words_are_words() -> None:
    assert {token.kind for word in keywords() - RESERVED for token in lex(word)} == {WORD, END}
