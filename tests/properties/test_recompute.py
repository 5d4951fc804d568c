"""A memory limit changes no bit of a result: what is computed again equals what was computed before."""

import numpy as np

from mtfc.backends.interpreter import interpret
from mtfc.compiler.cost.effects.memory import memory_of
from mtfc.compiler.cost.sizes import Numbers, whole
from mtfc.compiler.ir.core import Function
from mtfc.compiler.ir.types import Mesh
from mtfc.compiler.passes.pipelines import lower, run
from mtfc.compiler.passes.recompute import Recompute
from tests.generators.programs import programs
from tests.generators.scope import Options
from tests.harness import HasSource, exact_data, functions, load
from tests.properties.campaign import FEW_EXAMPLES, holds_for


def check_program(source: str) -> int:
    """Assert that a program keeps its bits within less memory, and return the number of functions that changed."""
    module, count = load(source), 0
    (original,) = module.programs
    for layout in module.layouts:
        for of, name in functions(original):
            lowered = lower(original, layout.mesh, layout.layout, of)
            function = lowered.function(name)
            arrays = exact_data(function, seed=3)
            expected = interpret(function, lowered, arrays)
            most = _bytes(function, layout.mesh)
            for limit in (1, most * 3 // 4):
                found = run(lowered, [Recompute(limit, must_fit=False)], level="lowered")
                changed = found.function(name)
                assert limit == 1 or _bytes(changed, layout.mesh) <= most
                actual = interpret(changed, found, arrays)
                for key, right in expected.items():
                    assert np.array_equal(actual[key], right, equal_nan=True), f"{layout.name}: {name}: {key}"
                count += changed is not function
    return count


def _bytes(function: Function, mesh: Mesh) -> int:
    return whole(memory_of(function, mesh, Numbers(mesh)).total)


@holds_for(programs(Options(layouts=1)), FEW_EXAMPLES)
def test_straight_code_keeps_its_bits(program: HasSource) -> int:
    return check_program(program.source)


@holds_for(programs(Options(structured=True, layouts=1)), FEW_EXAMPLES)
def test_loops_keep_their_bits(program: HasSource) -> int:
    return check_program(program.source)
