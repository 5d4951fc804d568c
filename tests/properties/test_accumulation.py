"""Repeat the properties for steps over several micro-batches, under layouts that store parameters in another split."""

from __future__ import annotations

from tests.generators.programs import programs
from tests.generators.scope import Options
from tests.properties import test_jax, test_numpy, test_passes
from tests.properties.campaign import holds_for

ACCUMULATED = programs(Options(accumulated=True, statements=5))
SINGLE_PRECISION = programs(
    Options(reals=("f32",), rough=False, constants=False, accumulated=True, statements=5, layouts=1)
)

EXAMPLES, FEW_EXAMPLES = 8, 4

test_passes_keep_results = holds_for(ACCUMULATED, EXAMPLES)(
    test_passes.test_every_pass_keeps_the_results.check
)
test_simulation_gives_results = holds_for(ACCUMULATED, EXAMPLES)(
    test_numpy.test_simulation_of_all_processors_gives_the_results.check
)
test_simulation_sends_what_cost_predicts = holds_for(ACCUMULATED, EXAMPLES)(
    test_numpy.test_simulation_sends_what_cost_predicts.check
)
test_jax_gives_results = holds_for(SINGLE_PRECISION, FEW_EXAMPLES)(test_jax.test_jax_gives_the_results.check)
test_xla_compiles_what_cost_predicts = holds_for(SINGLE_PRECISION, FEW_EXAMPLES)(
    test_jax.test_xla_compiles_the_collectives_that_cost_predicts.check
)
