"""Texts: printing and parsing agree, formatting keeps the meaning, and no text makes the compiler fail."""

from typing import Any

from hypothesis import strategies as st

from mtfc.backends.interpreter import interpret
from mtfc.compiler.diagnostics import Diagnostics
from mtfc.compiler.ir.parser import read_program
from mtfc.compiler.ir.printer import print_program
from mtfc.frontend.check import check
from mtfc.frontend.elaborate import elaborate
from mtfc.frontend.syntax.format import format_source
from mtfc.frontend.syntax.parser import parse
from mtfc.reports.diagnostic_text import render
from tests.generators.programs import programs
from tests.generators.scope import Options
from tests.generators.text import arbitrary_text, mutated_programs, respaced
from tests.harness import FILE, HasSource, exact_data, load, stages, with_unused_values
from tests.program_equality import same_program
from tests.properties.campaign import FEW_EXAMPLES, holds_for

READ_BACK = {
    "elaboration", "differentiate", "assign-layouts", "place-reductions", "insert-reshards", "combine-collectives",
}  # fmt: skip
"""Programs of each level and form that the IR has; the passes between them change nothing that the text shows."""


@holds_for(programs(Options(layouts=1)), FEW_EXAMPLES)
def test_ir_text_is_read_back(program: HasSource) -> None:
    module = load(program.source)
    (original,) = module.programs
    found_stages = [("elaboration", original), *stages(original, module.layouts[0], "gradients")]
    for passed, found in ((name, found) for name, found in found_stages if name in READ_BACK):
        text = print_program(found, locations=True)
        read = read_program(text)
        assert same_program(read, found), passed
        assert print_program(read, locations=True) == text, passed


@holds_for(programs(Options(layouts=1)), FEW_EXAMPLES)
def test_ir_text_has_all_of_the_meaning(program: HasSource) -> None:
    module = load(program.source)
    found = stages(module.programs[0], module.layouts[0], "gradients")[-1][1]
    read = read_program(print_program(found))
    assert same_program(read, found, locations=False)
    arrays = exact_data(found.function("gradients"), seed=7)
    expected = interpret(found.function("gradients"), found, arrays)
    actual = interpret(read.function("gradients"), read, arrays)
    assert {n: x.tobytes() for n, x in actual.items()} == {n: x.tobytes() for n, x in expected.items()}


@holds_for(st.tuples(programs(), st.randoms(use_true_random=False)))
def test_formatting_is_idempotent_and_keeps_the_meaning(case: tuple[HasSource, Any]) -> None:
    program, random = case
    untidy = respaced(program.source, random)
    tidy = format_source(untidy)
    assert format_source(tidy) == tidy
    before, after = load(program.source), load(tidy)
    assert before.meshes == after.meshes
    assert [each.layout for each in before.layouts] == [each.layout for each in after.layouts]
    for one, other in zip(before.programs, after.programs, strict=True):
        assert same_program(one, other, locations=False)


@holds_for(arbitrary_text())
def test_any_text_gives_diagnostics_and_nothing_else(text: str) -> None:
    _check_text(text)


@holds_for(mutated_programs())
def test_any_mutated_program_gives_diagnostics_and_nothing_else(text: str) -> None:
    _check_text(text)


def _check_text(text: str) -> None:
    """Diagnostics point into the text, and all can be shown. Without an error there is a program."""
    found = check(text, FILE)
    lines = text.splitlines(keepends=True)
    for diagnostic in found:
        for span in (diagnostic.span, *(label.span for label in diagnostic.labels)):
            assert span.file == FILE
            assert 1 <= span.line <= len(lines) + 1 and span.column >= 1
            assert (span.line, span.column) <= (span.end_line, span.end_column)
    shown = render(found, {FILE: text})
    assert all(f"[{diagnostic.code}]" in shown for diagnostic in found)
    if not found.errors:
        with with_unused_values():
            elaborated = elaborate(parse(text, FILE, Diagnostics()), Diagnostics())
        for program in elaborated.programs:
            print_program(program)
