"""A layout that breaks one rule is refused with the code of that rule, and a layout that breaks none is accepted."""

from mtfc.compiler.diagnostics import Severity
from tests.generators.illegal import Illegal, illegal_programs
from tests.generators.programs import programs
from tests.harness import HasSource, diagnose
from tests.properties.campaign import holds_for


@holds_for(illegal_programs())
def test_illegal_layouts_are_refused_with_the_right_code(case: Illegal) -> None:
    errors = [d for d in diagnose(case.source) if d.severity == "error"]
    assert {error.code for error in errors} == {case.code}
    assert all(case.word in error.message for error in errors)
    layout = case.source[: case.source.index("layout")].count("\n") + 1
    assert all(error.span.line >= layout for error in errors)


@holds_for(programs())
def test_legal_layouts_are_accepted(program: HasSource) -> None:
    severities: set[Severity] = {d.severity for d in diagnose(program.source)}
    assert "error" not in severities
