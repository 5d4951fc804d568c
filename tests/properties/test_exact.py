"""Over a finite field, every layout agrees with the undistributed program bit for bit, and gradients with forward mode."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import attrs
import pytest

from mtfc.backends.exact.check import DRAWS, ExactReference, compared, evaluated
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
        actual = evaluated(function, arguments, field)
        for name, right in expected.items():
            assert compared(actual[name], right)[0] == 0, f"{where}: {function.name}: {name}"


FALSE_ALARMS = {
    "a product of random scalars": """
dim n = 4
mesh grid = [rows: 2]
layout main on grid = { n: rows }
model m(x: f32[n]) {
  repeat n {
    yield y = random.normal([]) * (0.5 * random.normal([]))
  }
  return y
}
""",
    "a cast of residues": """
dim n = 4
mesh grid = [rows: 2]
layout main on grid = { n: rows }
model m(x: f32[n]) {
  y = cast(sum(x), i32)
  return y
}
""",
    "a scalar sigmoid": """
dim n = 4
mesh grid = [rows: 2]
layout main on grid = { n: rows }
model m(x: f32[n]) {
  y = sigmoid(sum(x)) * abs(sum(x))
  return y
}
""",
    "a random scalar in f64": """
dim n = 4
mesh grid = [rows: 2]
layout main on grid = { n: rows }
model m(x: f64[n]) {
  y = random.uniform([], dtype = f64) * x
  return y
}
""",
    "slopes of equal numbers": """
dim n = 4
mesh grid = [rows: 2]
layout main on grid = { n: rows }
model m(x: f32[n]) {
  y = maximum(x, stop_gradient(x)) + relu(x - stop_gradient(x))
  return y
}
""",
    "a power of a number": """
dim n = 4
mesh grid = [rows: 2]
layout main on grid = { n: rows }
model m(x: f32[n]) {
  y = 0.5 ** x
  return y
}
""",
    "a scalar to a power": """
dim n = 4
mesh grid = [rows: 2]
layout main on grid = { n: rows }
model m(x: f32[n]) {
  y = sum(x) ** x
  return y
}
""",
    "a gradient that is known to be 0": """
dim n = 1
dim io = 2
mesh grid = [rows: 2]
layout main on grid = { io: rows }
model m(x: f32[io]) {
  param w: f32[n, io] = zeros()
  loss = mean(square(shift(w, n, by = 1, wrap = false)))
  return loss
}
train m {
  minimize loss
  optimizer = adamw(learning_rate = 0.125)
  clip = 0.5
}
""",
    "a sum of numbers that are rounded": """
dim n = 10
mesh grid = [rows: 2]
layout main on grid = { n: rows }
model m(x: f32[n]) {
  y = abs(sum(broadcast(0.02 -> [n]) -> []))
  return y
}
""",
    "a sum of numbers that is exact by chance": """
dim n = 3
dim m = 2
mesh grid = [rows: 2]
layout main on grid = { m: rows }
model net(x: i32[m]) {
  param w: f64[n] = zeros()
  loss = 0.125 * sum(rsqrt(m) * w) + mean(w)
  return loss
}
""",
}


@pytest.mark.parametrize("source", FALSE_ALARMS.values(), ids=FALSE_ALARMS)
def test_right_programs_are_no_false_alarms(source: str) -> None:
    check_program(source)
