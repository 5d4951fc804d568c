"""Random programs that watch their variables: every layout hands the values out, and everything else stays as it is."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import attrs
import numpy as np

from mtfc.backends.interpreter import interpret
from mtfc.compiler.ir.core import Program
from tests.generators.programs import Generated, programs
from tests.generators.scope import Options
from tests.harness import HasSource, diagnose, differentiated, exact_data, load
from tests.properties import test_jax, test_numpy
from tests.properties.campaign import holds_for

EXAMPLES = 3

BODY = re.compile(r"(fn|model|optimizer|train) ")
ASSIGNED = re.compile(r"( +)(\w+(?:, \w+)*) = ")
WATCH = re.compile(r"\n *watch .*")


@attrs.frozen
class Watching:
    """A program with `watch` statements."""

    source: str

    def __str__(self) -> str:
        return self.source


def watching(program: Generated) -> Watching:
    """Watch each variable of models and functions after its first assignment.

    A variable cannot be stacked along a dimension that it has, or that a layout splits over an axis of its own dimensions: then
    only variables of the model outside of its loops are watched.
    """
    for bodies, deepest in ((("fn", "model"), 99), (("model",), 2)):
        source = "\n".join(_watching(program.source.splitlines(), bodies, deepest))
        if not any(each.code.startswith("E") for each in diagnose(source)):
            break
    return Watching(source)


def _watching(lines: Iterable[str], bodies: tuple[str, ...], deepest: int) -> Iterator[str]:
    """Yield the lines of a program, with a `watch` below assignments in these bodies that are indented by at most `deepest`."""
    seen, is_watched = set[str](), False
    for line in lines:
        if BODY.match(line):
            seen, is_watched = set(), line.startswith(bodies)
        yield line
        assigned = ASSIGNED.match(line)
        if assigned and is_watched and len(assigned[1]) <= deepest:
            new = [name for name in assigned[2].split(", ") if name not in seen]
            yield from (f"{assigned[1]}watch {name}" for name in new)
            seen |= set(new)


WATCHED = programs(Options(structured=True)).map(watching)
SINGLE_PRECISION = programs(
    Options(reals=("f32",), rough=False, constants=False, structured=True, layouts=1)
).map(watching)


@holds_for(WATCHED, EXAMPLES)
def test_watch_changes_nothing_else(program: HasSource) -> None:
    (watched,) = load(program.source).programs
    (plain,) = load(WATCH.sub("", program.source)).programs
    name = "step" if plain.training is not None else "forward"
    found, expected = results(watched, name), results(plain, name)
    assert "watch" in program.source and found.keys() >= expected.keys()
    for output, array in expected.items():
        np.testing.assert_array_equal(found[output], array, err_msg=str(output))


def results(program: Program, name: str) -> dict[tuple[str, str | None], Any]:
    """Return the results of a function by their names, or by the names of the arguments that they replace."""
    whole = differentiated(program, "step")
    function = whole.function(name)
    arrays = interpret(function, whole, exact_data(function, seed=5))
    return {("" if o.updates else o.name, o.updates): arrays[o.name] for o in function.outputs}


test_simulation_gives_results = holds_for(WATCHED, EXAMPLES)(
    test_numpy.test_simulation_of_all_processors_gives_the_results.check
)
test_simulation_sends_what_cost_predicts = holds_for(WATCHED, 1)(
    test_numpy.test_simulation_gives_the_results_and_sends_what_cost_predicts.check
)
test_jax_gives_results = holds_for(SINGLE_PRECISION, 1)(test_jax.test_jax_gives_the_results.check)
