"""JAX's derivative of an emitted `forward`, under any layout, equals the compiler's own gradient."""

from __future__ import annotations

from mtfc.backends.interpreter import interpret
from mtfc.compiler.passes.pipelines import lower
from tests.generators.programs import programs
from tests.generators.scope import Options
from tests.harness import FINE, HasSource, differentiated, exact_data, load
from tests.jax_gradients import gradients_by_jax
from tests.properties.campaign import FEW_EXAMPLES, holds_for


@holds_for(programs(Options(reals=("f64",), layouts=1, training=False)), FEW_EXAMPLES)
def test_jax_differentiates_forward(program: HasSource) -> None:
    module = load(program.source)
    (original,), layout = module.programs, module.layouts[0]
    whole = differentiated(original, "gradients")
    arrays = exact_data(whole.function("gradients"), seed=8)
    expected = interpret(whole.function("gradients"), whole, arrays)
    actual = gradients_by_jax(lower(original, layout.mesh, layout.layout, "gradients"), arrays)
    FINE.check(actual, {name: expected[name] for name in actual}, "jax.grad of forward")
