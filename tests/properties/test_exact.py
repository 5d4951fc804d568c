"""Over a finite field, every layout agrees with the undistributed program bit for bit, and gradients with forward mode."""

from __future__ import annotations

import attrs

from mtfc.backends.exact.check import ExactReference, compared, evaluated
from mtfc.compiler.ir.core import Program
from mtfc.compiler.passes.pipelines import default_pipeline, lower, run
from tests.generators.programs import programs
from tests.generators.scope import Options
from tests.harness import HasSource, load
from tests.properties.campaign import holds_for

BOTH = "step+gradients"
SMALL = Options(statements=4, layouts=2)


def check_program(source: str) -> int:
    """Assert that all layouts of a program are exact, and return their number."""
    module = load(source)
    (program,) = module.programs
    reference = ExactReference(program)
    assert reference.wrong_gradients() == ()
    for layout in module.layouts:
        found = reference.compare(lower(program, layout.mesh, layout.layout, BOTH))
        assert found.ok, f"{layout.name}: {found.wrong}"
    return len(module.layouts)


@holds_for(programs())
def test_layouts_are_exact(program: HasSource) -> None:
    check_program(program.source)


@holds_for(programs(SMALL))
def test_layouts_of_small_programs_are_exact(program: HasSource) -> None:
    check_program(program.source)


@holds_for(programs(Options(layouts=1)))
def test_passes_on_global_programs_are_exact(program: HasSource) -> None:
    """The program after each pass has the same results, as far as nothing is split yet."""
    module = load(program.source)
    (original,) = module.programs
    reference = ExactReference(original, draws=1)
    for layout in module.layouts:
        made = attrs.evolve(original, mesh=layout.mesh, layout=layout.layout)
        for each in default_pipeline(BOTH):
            if each.level is not None:
                break
            made = run(made, (each,))
            _check(made, reference, f"{layout.name}: after {each.name}")


def _check(program: Program, reference: ExactReference, where: str) -> None:
    for function in program.functions:
        if function.name not in reference.functions:
            continue
        arguments, expected = reference.expected(function.name, 0)
        if function.name == "forward" and program.has_function("forward"):
            continue
        field = reference.field(0)
        actual = evaluated(function, arguments, field)
        for name, right in expected.items():
            assert compared(actual[name], right)[0] == 0, f"{where}: {function.name}: {name}"
