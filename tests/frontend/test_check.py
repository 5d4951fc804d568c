"""Test `check` as a whole: its codes, and that any text gives diagnostics and no exception."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings

import mtfc
from mtfc.compiler.diagnostics import Diagnostic, Diagnostics, Span
from mtfc.compiler.ir.core import Program, walk
from mtfc.compiler.ir.verifier import verify
from mtfc.frontend.check import check
from mtfc.frontend.elaborate import elaborate
from mtfc.frontend.layouts.allowed_warnings import WARNINGS
from mtfc.frontend.layouts.legality import check_layout
from mtfc.frontend.syntax.parser import parse
from mtfc.reports.diagnostic_text import render
from tests.generators.illegal import Illegal, illegal_programs
from tests.generators.programs import Generated, programs
from tests.generators.text import arbitrary_text, mutated_programs
from tests.harness import with_unused_values

FILE = "file.mtf"
CASES = Path(__file__).parent.parent / "diagnostics"
OF_OPTIONS = {
    "E311",
    "E312",
    "E313",
    "E340",
    "E316",
    "E321",
    "E417",
}  # errors about the command line, which the cases do not have
OF_OPERATORS = {
    "E317"
}  # which a file has when it is compiled for a placement: see tests/placements/test_text.py


OF_GRAPHS = {"E806"}
"""Codes about graphs in Python: see tests/test_graphs.py."""

OF_JAX = {"E801", "E802", "E803", "E804", "E805", "E807", "W801", "W802", "W803"}
"""Codes about imported functions of JAX: see tests/jax_functions/test_import.py and tests/cli/test_jax_functions.py."""


KEPT = "W608"
"""The warning about dimensions that look contracted, which random einsums keep."""


def reported_codes() -> set[str]:
    """Return the codes of mistakes in files, options, graphs and functions of JAX, but for syntax errors."""
    folder = Path(mtfc.__file__).parent
    files = [
        path
        for part in ("frontend", "graphs", "placements", "driver/loading")
        for path in (folder / part).rglob("*.py")
        if path.name != "allowed_warnings.py"
    ]
    return set(re.findall(r'"([EW][1-9][0-9]{2})"', "".join(path.read_text("utf-8") for path in files)))


def test_warnings_that_can_be_allowed_are_those_that_are_reported() -> None:
    assert {code for code in reported_codes() if code[0] == "W"} == {*WARNINGS}


def test_every_code_has_a_case() -> None:
    cases = {case.stem[:4] for case in CASES.glob("*.test")}
    assert cases >= reported_codes() - OF_OPTIONS - OF_OPERATORS - OF_JAX - OF_GRAPHS


@pytest.mark.parametrize(
    ("opening", "closing", "most"),
    [("relu(", ")", 99), ("(", ")", 99), ("-(", ")", 99), ("einsum(x, ", " -> [a])", 49)],
)
@pytest.mark.parametrize("depth", [10, 49, 50, 99, 100, 1000])
def test_nesting_is_checked_or_refused(opening: str, closing: str, most: int, depth: int) -> None:
    """A call that states the dimensions of its result has two levels."""
    expression = opening * depth + "x" + closing * depth
    found = check(f"dim a = 4\nmodel m(x: [a]) {{\n  y = {expression}\n  return y\n}}\n", FILE)
    assert [each.code for each in found] == (["E007"] if depth > most else [])


# Whatever the file


def inside(span: Span, source: str) -> bool:
    """The end is exclusive, and the end of a line is a character too."""
    lines = re.split(r"\r\n|\r|\n", source)
    places = [(span.line, span.column), (span.end_line, span.end_column - 1)]
    exist = [1 <= line <= len(lines) and 0 <= column <= len(lines[line - 1]) + 1 for line, column in places]
    return span.column >= 1 and places[0] <= (span.end_line, span.end_column) and all(exist)


def spans(diagnostic: Diagnostic) -> list[Span]:
    return [diagnostic.span, *(label.span for label in diagnostic.labels)]


def verified(program: Program, source: str) -> None:
    verify(program, "global")
    for function in program.functions:
        assert all(eqn.span and inside(eqn.span, source) for eqn in walk(function.body))
        assert all(argument.span and inside(argument.span, source) for argument in function.arguments)


@given(programs())
def test_well_formed_files_give_well_typed_programs(generated: Generated) -> None:
    diagnostics = Diagnostics()
    with with_unused_values():
        module = elaborate(parse(generated.source, FILE, diagnostics), diagnostics)
    found = [each for each in diagnostics if each.code != KEPT]
    assert not found, render(found, {FILE: generated.source})
    for program in module.programs:
        verified(program, generated.source)
        for declared in module.layouts:
            found = check_layout(program, declared)
            assert all(each.severity == "warning" for each in found)
            assert all(inside(span, generated.source) for each in found for span in spans(each))


@given(illegal_programs())
def test_illegal_layouts_are_refused(illegal: Illegal) -> None:
    with with_unused_values():
        found = [each for each in check(illegal.source, FILE).errors if each.code == illegal.code]
    assert any(illegal.word in each.message for each in found)


@settings(max_examples=80)
@given(mutated_programs() | arbitrary_text())
def test_any_text_gives_diagnostics_and_nothing_else(source: str) -> None:
    found = check(source, FILE)
    assert all(inside(span, source) for each in found for span in spans(each))
    render(found, {FILE: source})
