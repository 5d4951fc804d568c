"""A pass can run at every level that it names: twice in a row, after every other pass, and on programs that a later pass made."""

from collections.abc import Iterator
from random import Random
from zlib import crc32

import attrs
import pytest

from mtfc.backends.interpreter import interpret
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.verifier import Level
from mtfc.compiler.passes.pass_base import Pass, PipelineError
from mtfc.compiler.passes.pipelines import PASSES, default_pipeline, run
from mtfc.frontend.layouts.declared_layouts import DeclaredLayout
from tests.generators.programs import programs
from tests.generators.scope import Options
from tests.harness import Arrays, HasSource, exact_data, functions, load, tolerance
from tests.properties.campaign import FEW_EXAMPLES, holds_for
from tests.sampling import EVERY_CASE

FEATURES = """
dim batch = 8
dim io = 4
dim hidden = 8
dim layers = 2
mesh grid = [rows: 2, cols: 2]
layout both on grid = { batch: rows, hidden: cols, params: { *: rows } }
layout spatial on grid = { io: rows, batch: cols }

model m(x: [batch, io]) {
  param w: [io, hidden] = normal(stddev = 0.5)
  h = x
  repeat layers {
    param v: [io, hidden] = normal()
    h = h + einsum(tanh(einsum(h, v -> [batch, hidden])), v -> [batch, io])
  }
  h = cumsum(h, over = io) + shift(h, io, by = 1)
  y = einsum(einsum(h, w -> [batch, hidden]), w -> [batch, io])
  loss = sum(square(y - x)) + mean(max(y, over = [io]))
  return loss
}

train m {
  minimize loss
  optimizer = adam(learning_rate = 0.1)
  accumulate = 2
  clip = 1.0
  precision = { params: f32, compute: bf16 }
}
"""
SOME = 16
"""Number of places in the pipeline of a random program at which another pass runs."""


@attrs.frozen(eq=False)
class Place:
    """A program in the pipeline, its level, and the pass that made it."""

    after: str
    level: Level
    program: Program
    _results: dict[str, tuple[Arrays, Arrays]] = attrs.field(factory=dict, init=False)

    def results(self, function: str) -> tuple[Arrays, Arrays]:
        """Return arguments and results of a function; all passes at this place are compared with them."""
        if function not in self._results:
            called = self.program.function(function)
            arrays = exact_data(called, seed=1)
            self._results[function] = arrays, interpret(called, self.program, arrays)
        return self._results[function]


def places(program: Program, layout: DeclaredLayout, of: str) -> Iterator[Place]:
    """Yield the program before the pipeline, and after each of its passes that changes the program or its level."""
    program = attrs.evolve(program, mesh=layout.mesh, layout=layout.layout)
    place = Place("nothing", "global", program)
    yield place
    for each in default_pipeline(of):
        after = Place(each.name, each.level or place.level, run(place.program, (each,), level=place.level))
        if (after.level, after.program) != (place.level, place.program):
            place = after
            yield place


def made(name: str, of: str) -> Pass:
    return PASSES[name].with_options({"of": of} if name == "differentiate" else {})


def check_place(place: Place, name: str, of: str, function: str) -> None:
    """Assert that a pass keeps the results at a place, run once and twice; or that it refuses the place."""
    wanted = made(name, of)
    if place.level not in wanted.takes:
        with pytest.raises(PipelineError, match=f"`{name}` has to run (before|after) `"):
            run(place.program, (wanted,), level=place.level)
        return
    again = run(place.program, (wanted, wanted), level=place.level)
    for each in ("forward", function):
        if place.program.has_function(each) and place.program.function(each) != again.function(each):
            arrays, expected = place.results(each)
            actual = interpret(again.function(each), again, arrays)
            tolerance(again).check(actual, expected, f"{each}: {name} after {place.after}")


@pytest.mark.parametrize(("of", "layout"), [("gradients", "both"), ("step", "spatial")][not EVERY_CASE :])
def test_all_pairs_of_passes(of: str, layout: str) -> None:
    module = load(FEATURES)
    (program,) = module.programs
    (declared,) = (each for each in module.layouts if each.name == layout)
    for place in places(program, declared, of):
        for name in PASSES:
            check_place(place, name, of, of)


@holds_for(programs(Options(layouts=1)), FEW_EXAMPLES)
def test_passes_in_another_order_keep_the_results(program: HasSource) -> None:
    module = load(program.source)
    (original,) = module.programs
    random = Random(crc32(program.source.encode()))
    for of, function in functions(original):
        pairs = [(place, name) for place in places(original, module.layouts[0], of) for name in PASSES]
        for place, name in random.sample(pairs, SOME):
            check_place(place, name, of, function)
