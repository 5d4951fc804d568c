"""The properties again, for steps over several micro-batches, and for windows and shifts along dimensions that layouts split."""

from typing import Any

from tests.generators.programs import programs
from tests.generators.scope import Options
from tests.properties import test_gradients, test_jax, test_numpy, test_passes
from tests.properties.campaign import holds_for
from tests.sampling import EVERY_CASE

EXAMPLES, FEW_EXAMPLES = (5, 3) if EVERY_CASE else (3, 2)


def properties_of(kind: str) -> dict[str, Any]:
    """Return properties by name. kind: the option that programs of the kind have."""
    every = programs(Options(**{kind: True}, statements=5))
    single = programs(
        Options(reals=("f32",), rough=False, constants=False, **{kind: True}, statements=5, layouts=1)
    )
    found = {
        test_passes.test_every_pass_keeps_the_results: (every, EXAMPLES),
        test_numpy.test_simulation_of_all_processors_gives_the_results: (every, EXAMPLES),
        test_numpy.test_simulation_gives_the_results_and_sends_what_cost_predicts: (every, EXAMPLES),
        test_jax.test_jax_gives_the_results: (single, FEW_EXAMPLES),
        test_jax.test_xla_compiles_the_collectives_that_cost_predicts: (single, FEW_EXAMPLES),
    }
    return {f"{each.__name__}_{kind}": holds_for(*drawn)(each.check) for each, drawn in found.items()}


globals().update(properties_of("accumulated") | properties_of("spatial"))

test_gradients_of_windows_are_those_of_jax = holds_for(
    programs(Options(reals=("f64",), spatial=True, statements=5, layouts=1)), FEW_EXAMPLES
)(test_gradients.test_results_and_gradients_are_those_of_jax.check)
test_gradients_of_windows_are_those_of_finite_differences = holds_for(
    programs(Options(reals=("f64",), slopes=True, spatial=True, statements=5, layouts=1)), EXAMPLES
)(test_gradients.test_gradients_are_those_of_finite_differences.check)
