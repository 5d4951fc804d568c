"""Every pass keeps a program's results: outputs, gradients and one training step."""

from mtfc.backends.interpreter import interpret
from tests.generators.programs import programs
from tests.generators.scope import Options
from tests.harness import HasSource, changes, differentiated, exact_data, functions, load, stages, tolerance
from tests.properties.campaign import holds_for


@holds_for(programs(Options(layouts=1)))
def test_every_pass_keeps_the_results(program: HasSource) -> None:
    module = load(program.source)
    (original,) = module.programs
    for of, name in functions(original):
        whole = differentiated(original, of)
        arrays = exact_data(whole.function(name), seed=1)
        expected = interpret(whole.function(name), whole, arrays)
        for layout in module.layouts:
            for passed, found in changes(original, layout, of):
                actual = interpret(found.function(name), found, arrays)
                tolerance(original).check(actual, expected, f"{layout.name}: {name} after {passed}")


@holds_for(programs(Options(training=False)))
def test_differentiation_keeps_the_outputs(program: HasSource) -> None:
    """The gradients' outputs are those of the model before any pass, but in the precision that is asked for."""
    module = load(program.source)
    (original,) = module.programs
    arrays = exact_data(original.function("forward"), seed=2)
    expected = interpret(original.function("forward"), original, arrays)
    whole = stages(original, module.layouts[0], "gradients")[0][1]
    found = interpret(whole.function("gradients"), whole, arrays)
    outputs = {name: found[name].astype(x.dtype) for name, x in expected.items()}
    tolerance(original).check(outputs, expected, "gradients")
