"""The generated JAX module on eight virtual devices: its results, and the collectives of the program that XLA compiles."""

import attrs

from mtfc.backends import hlo
from mtfc.backends.interpreter import interpret
from mtfc.backends.jax import runtime as jax_runtime
from mtfc.compiler.passes.pipelines import lower
from tests.generators.programs import programs
from tests.generators.scope import Options
from tests.harness import HasSource, call, differentiated, exact_data, functions, jax_module, load, tolerance
from tests.properties.campaign import FEW_EXAMPLES, holds_for
from tests.properties.test_numpy import predicted
from tests.xla import FULL

AS_WRITTEN = {
    **FULL,
    "xla_disable_hlo_passes": "cse,constant_folding,algsimp,while-loop-invariant-code-motion,simplify-while-loops",
}
SINGLE_PRECISION = Options(reals=("f32",), statements=8, layouts=1)


@holds_for(programs(SINGLE_PRECISION), FEW_EXAMPLES)
def test_jax_gives_the_results(program: HasSource) -> None:
    module = load(program.source)
    (original,), layout = module.programs, module.layouts[0]
    for of, name in functions(original):
        whole = differentiated(original, of)
        arrays = exact_data(whole.function(name), seed=5)
        expected = interpret(whole.function(name), whole, arrays)
        placed = lower(original, layout.mesh, layout.layout, of)
        actual = call(jax_module(placed), placed.function(name), arrays)
        tolerance(original).check(actual, expected, f"{name} on JAX")


@holds_for(programs(attrs.evolve(SINGLE_PRECISION, rough=False, constants=False)), FEW_EXAMPLES)
def test_xla_compiles_the_collectives_that_cost_predicts(program: HasSource) -> None:
    """XLA may join several collectives of a kind, so the test compares the bytes that they send and not their number.

    XLA also sends nothing that it can compute beforehand (such as u * 0 of integers), and moves out of a loop what every
    iteration would send alike. So the test turns its simplifications off, and programs make no tensors of constants.
    """
    module = load(program.source)
    (original,), layout = module.programs, module.layouts[0]
    for of, name in functions(original):
        placed = lower(original, layout.mesh, layout.layout, of)
        compiled = jax_runtime.lowered(placed, name).compile(compiler_options=AS_WRITTEN)
        assert _carried(hlo.collectives(compiled.as_text())) == _carried(predicted(placed, name)), name


def _carried(figures: dict[str, dict[str, int]]) -> dict[str, tuple[int, int]]:
    return {kind: (sent["elements_per_device"], sent["bytes_per_device"]) for kind, sent in figures.items()}
