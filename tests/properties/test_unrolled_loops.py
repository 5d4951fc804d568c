"""Random layers have the same results on JAX, and send the same, where several iterations of their loop run in one."""

from random import Random

from hypothesis import strategies as st

from mtfc.backends import hlo
from mtfc.backends.interpreter import interpret
from mtfc.backends.jax import runtime
from mtfc.compiler.ir.core import walk
from mtfc.compiler.ir.loops import unroll_of
from mtfc.compiler.passes.pipelines import lower
from tests.harness import HasSource, call, differentiated, exact_data, jax_module, load, tolerance
from tests.properties.campaign import holds_for
from tests.properties.test_jax import AS_WRITTEN, _carried
from tests.properties.test_numpy import predicted
from tests.properties.test_split_regions import LayersCase, case_of

FORMS = (
    "unroll: 2",
    "unroll: 3, dots: joined",
    "unroll: 2, regions: time",
    "unroll: 2, regions: memory, dots: joined, flops_per_byte: 9",
)


def unrolled_case(seed: int) -> LayersCase:
    """Return a model of four random layers in a loop, under a layout with forms."""
    random = Random(seed)
    source = next(
        text for text in (case_of(random.randrange(2**32)).source for _ in range(99)) if "repeat" in text
    )
    source = source.replace("layers = 2", "layers = 4")
    return LayersCase(source.replace(" }\nmodel", f", forms: {{ {random.choice(FORMS)} }} }}\nmodel"))


def check_program(source: str) -> int:
    """Assert that a program has its results and sends what cost predicts. Return the number of unrolled loops."""
    module = load(source)
    (original,), (layout,) = module.programs, module.layouts
    whole, placed = differentiated(original, "step"), lower(original, layout.mesh, layout.layout)
    arrays = exact_data(whole.function("step"), seed=5)
    expected = interpret(whole.function("step"), whole, arrays)
    actual = call(jax_module(placed), placed.function("step"), arrays)
    tolerance(original).check(actual, expected, "step on JAX")
    compiled = runtime.lowered(placed, "step").compile(compiler_options=AS_WRITTEN).as_text()
    assert _carried(hlo.collectives(compiled)) == _carried(predicted(placed, "step"))
    return sum(unroll_of(eqn) > 1 for eqn in walk(placed.function("step").body) if eqn.regions)


@holds_for(st.integers(0, 2**32).map(unrolled_case), 1)
def test_unrolled_loops_change_nothing(program: HasSource) -> int:
    return check_program(program.source)
