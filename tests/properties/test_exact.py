"""Over a finite field, every layout agrees with the undistributed program bit for bit, and gradients with forward mode."""

from collections.abc import Sequence
from zlib import crc32

import attrs
import pytest

from mtfc.backends.exact.check import DRAWS, Evaluation, ExactReference, compared, evaluated
from mtfc.compiler.ir.core import Program
from mtfc.compiler.passes.pipelines import default_pipeline, lower, run
from tests.generators.programs import programs
from tests.generators.scope import Options
from tests.harness import HasSource, load
from tests.properties.campaign import holds_for

BOTH = "step+gradients"
SMALL = Options(statements=3, layouts=3)


def check_program(source: str, draws: Sequence[int] = DRAWS) -> int:
    """Assert that all layouts of a program are exact, and its gradients. Return the number of layouts."""
    module = load(source)
    (program,) = module.programs
    reference = ExactReference(program, draws=draws)
    assert reference.wrong_gradients() == ()
    for layout in module.layouts:
        found = reference.compare(lower(program, layout.mesh, layout.layout, BOTH))
        assert found.ok, f"{layout.name}: {found.wrong}"
    return len(module.layouts)


@holds_for(programs())
def test_layouts_are_exact(program: HasSource) -> None:
    check_program(program.source)


@holds_for(programs(SMALL))
def test_layouts_of_small_programs_are_exact(program: HasSource) -> int:
    """Each program has one draw, which the text chooses, so that a case takes tens of milliseconds."""
    return check_program(program.source, (crc32(program.source.encode()) % 2,))


@holds_for(programs(Options(layouts=1)))
def test_passes_on_global_programs_are_exact(program: HasSource) -> None:
    """The program after each pass has the same results, as far as nothing is split yet."""
    module = load(program.source)
    (original,) = module.programs
    reference = ExactReference(original, draws=(0,))
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
        actual = evaluated(function, arguments, Evaluation(field))
        for name, right in expected.items():
            assert compared(actual[name], right)[0] == 0, f"{where}: {function.name}: {name}"


FALSE_ALARMS = {
    "a product of random scalars": "repeat n { yield y = random.normal([]) * (0.5 * random.normal([])) }",
    "a cast of residues": "y = cast(sum(x), i32)",
    "a scalar sigmoid": "y = sigmoid(sum(x)) * abs(sum(x))",
    "a random scalar in f64": "y = random.uniform([], dtype = f64) * cast(x, f64)",
    "slopes of equal numbers": "y = maximum(x, stop_gradient(x)) + relu(x - stop_gradient(x))",
    "a power of a number": "y = 0.5 ** x",
    "a scalar to a power": "y = sum(x) ** x",
    "the gradient of a power with a fraction": "y = (square(x) + 0.25) ** 1.5 * (square(x) + 0.5) ** -0.5",
    "numbers to powers that differ": "y = x ** (cast(range(n), f32) - 0.5)",
    "a maximum with minus infinity": "y = x - maximum(max(x), -1e30)",
    "infinity times a number": "y = mean(full([n], -1e30)) * 0.25 + x * -1e30",
    "the integer part of a number that was chosen": "y = floor(where(true, 0.5, sum(x))) + x",
    "the largest of padded numbers": """
  a, b = top_k(pad(random.normal([n]), n -> longer, before = 0, value = -3e38), longer -> n)
  y = a + x""",
    "the order of random numbers behind a gather": """
  r = gather(random.normal([n]), range(three), n)
  y = max(r) + x""",
    "a sum of numbers that are rounded": "y = abs(sum(broadcast(0.02 -> [n]) -> []))",
}
"""Statements that compute `y` from `x`, which the check once called wrong."""

TRAINED_FALSE_ALARMS = {
    "a gradient that is known to be 0": """
  param w: f32[one, n] = zeros()
  y = mean(square(shift(w, one, by = 1, wrap = false)))
""",
    "a sum of numbers that is exact by chance": """
  param w: f64[three] = zeros()
  y = 0.125 * sum(rsqrt(n) * w) + mean(w)
""",
}


def source_of(statements: str, n: int, training: str = "") -> str:
    return f"""
dim n = {n}
dim one = 1
dim three = 3
dim longer = {n + 2}
mesh grid = [rows: 2]
layout main on grid = {{ n: rows }}
model m(x: f32[n]) {{
  {statements}
  return y
}}
{training}
"""


@pytest.mark.parametrize("n", [2, 4, 10])
@pytest.mark.parametrize("statements", FALSE_ALARMS.values(), ids=FALSE_ALARMS)
def test_right_programs_are_no_false_alarms(statements: str, n: int) -> None:
    check_program(source_of(statements, n))


@pytest.mark.parametrize("statements", TRAINED_FALSE_ALARMS.values(), ids=TRAINED_FALSE_ALARMS)
def test_right_steps_are_no_false_alarms(statements: str) -> None:
    training = "train m { minimize y; optimizer = adamw(learning_rate = 0.125); clip = 0.5 }"
    check_program(source_of(statements, 2, training))
