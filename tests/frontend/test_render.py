"""Test the text of diagnostics for any source."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtfc.compiler.diagnostics import Diagnostic, Label, Span
from mtfc.reports.diagnostic_text import WINDOW, render, to_json

positions = st.integers(1, 40)


@st.composite
def spans(draw: st.DrawFn) -> Span:
    (line, column), (end_line, end_column) = sorted(
        draw(st.tuples(st.tuples(positions, positions), st.tuples(positions, positions)))
    )
    return Span(draw(st.sampled_from(("a.mtf", "b.mtf", "c.mtf"))), line, column, end_line, end_column)


diagnostics = st.builds(
    Diagnostic,
    st.sampled_from(("E001", "W601")),
    st.text(),
    spans(),
    st.lists(st.builds(Label, spans(), st.text()), max_size=4).map(tuple),
    st.none() | st.text(),
)


@given(diagnostics, st.text(), st.text(), st.booleans())
def test_anything_can_be_shown(diagnostic: Diagnostic, a: str, b: str, color: bool) -> None:
    text = render([diagnostic], {"a.mtf": a, "b.mtf": b}, color)
    text.encode()
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert all(character == "\n" or character.isprintable() for character in plain)
    assert plain.startswith(("error[E001]: ", "warning[W601]: "))
    if not color:
        assert text == plain


@given(diagnostics, st.text(), st.text())
def test_color_changes_nothing_else(diagnostic: Diagnostic, a: str, b: str) -> None:
    sources = {"a.mtf": a, "b.mtf": b}
    assert re.sub(r"\x1b\[[0-9;]*m", "", render([diagnostic], sources, True)) == render([diagnostic], sources)


def shown(source: str, span: Span, *labels: Label, help: str | None = None) -> str:
    return render([Diagnostic("E999", "what is wrong", span, labels, help)], {"f.mtf": source})


def here(line: int, column: int, end_column: int, end_line: int | None = None) -> Span:
    return Span("f.mtf", line, column, end_line or line, end_column)


def test_labels_beside_and_below() -> None:
    text = shown(
        "layout a = { batch: rows, hidden: rows }\n",
        here(1, 27, 39),
        Label(here(1, 14, 25), "`batch` is split here"),
        Label(here(1, 8, 9), "in this layout"),
        help="split `hidden` over another axis",
    )
    assert (
        text
        == """\
error[E999]: what is wrong
 --> f.mtf:1:27
  |
1 | layout a = { batch: rows, hidden: rows }
  |        -     -----------  ^^^^^^^^^^^^
  |              `batch` is split here
  |        in this layout
  |
  = help: split `hidden` over another axis
"""
    )


def test_labels_on_other_lines_and_in_other_files() -> None:
    source = "\n".join(f"line {number}" for number in range(1, 13))
    span = here(2, 1, 5)
    labels = (
        Label(here(3, 6, 7), "next"),
        Label(here(12, 1, 5), "far"),
        Label(Span("g.mtf", 1, 5, 1, 6), "there"),
    )
    text = render([Diagnostic("W600", "odd", span, labels)], {"f.mtf": source, "g.mtf": "dim x = 4"})
    assert (
        text
        == """\
warning[W600]: odd
  --> f.mtf:2:1
   |
 2 | line 2
   | ^^^^
 3 | line 3
   |      - next
...
12 | line 12
   | ---- far
  ::: g.mtf:1:5
   |
 1 | dim x = 4
   |     - there
"""
    )


def test_a_span_over_lines() -> None:
    assert (
        shown("a = f(\n  b,\n  c)\n", here(1, 5, 5, end_line=3))
        == """\
error[E999]: what is wrong
 --> f.mtf:1:5
  |
1 | a = f(
  |     ^^
...
3 |   c)
  |   ^^
"""
    )


@pytest.mark.parametrize(
    ("source", "span", "row"),
    [
        ("\tx\ty", here(1, 4, 5), "             ^"),
        ("日本 = 4", here(1, 4, 5), "         ^"),
        ("日本 = 4", here(1, 2, 3), "      ^^"),
        ("e\u0301x", here(1, 3, 4), "     ^"),
        ("ab", here(1, 3, 9), "      ^"),
        ("ab", here(7, 3, 9), "    ^"),
        ("", here(1, 1, 1), "    ^"),
    ],
)
def test_carets_stand_below_the_span(source: str, span: Span, row: str) -> None:
    assert shown(source, span).rstrip("\n").split("\n")[-1] == row.replace("    ", "  | ", 1)


def test_long_lines_are_cut_around_the_span() -> None:
    text = shown("x" * 5000 + "here" + "y" * 5000, here(1, 5001, 5005))
    line, carets = text.rstrip("\n").split("\n")[-2:]
    assert len(line) < WINDOW + 10
    assert line[carets.index("^") : carets.rindex("^") + 1] == "here"


def test_a_file_that_is_not_at_hand() -> None:
    assert shown("", Span("other.mtf", 3, 1, 3, 2)) == "error[E999]: what is wrong\n --> other.mtf:3:1\n"


def test_json() -> None:
    diagnostic = Diagnostic("E301", "no", here(1, 2, 3), (Label(here(4, 5, 6), "why"),), "do")
    assert json.loads(json.dumps(to_json([diagnostic]))) == [
        {
            "code": "E301",
            "severity": "error",
            "message": "no",
            "file": "f.mtf",
            "line": 1,
            "column": 2,
            "end_line": 1,
            "end_column": 3,
            "labels": [
                {"message": "why", "file": "f.mtf", "line": 4, "column": 5, "end_line": 4, "end_column": 6}
            ],
            "help": "do",
        }
    ]
