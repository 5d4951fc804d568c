"""Functions and loops mean the same as their bodies, written out once for each call and each iteration."""

import re
from typing import Protocol

from mtfc.backends.interpreter import interpret
from mtfc.backends.jax import backend as jax_backend
from mtfc.backends.numpy import backend as numpy_backend
from mtfc.compiler.diagnostics import Diagnostics
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.parser import read_program
from mtfc.compiler.ir.printer import print_program
from mtfc.compiler.ir.types import Layout, Mesh
from mtfc.compiler.passes.pipelines import lower
from mtfc.frontend.elaborate import elaborate
from mtfc.frontend.syntax.parser import parse
from tests.generators.flat import flat_parameter
from tests.generators.programs import programs
from tests.generators.scope import Options
from tests.generators.statements import MODULE
from tests.harness import (
    FILE,
    Arrays,
    HasSource,
    call,
    differentiated,
    exact_data,
    jax_module,
    load,
    numpy_module,
    tolerance,
    with_unused_values,
)
from tests.program_equality import same_program
from tests.properties.campaign import FEW_EXAMPLES, holds_for


class Structured(Protocol):
    """Draw a program with functions and loops, the same program without, and the same program in two files. `parameters` maps the
    names of the first.
    """

    source: str
    flat: str
    main: str
    library: str
    parameters: tuple[str, ...]


@holds_for(programs(Options(structured=True, layouts=1)))
def test_functions_and_loops_are_what_they_stand_for(program: Structured) -> None:
    """Compare outputs, and the gradients of inputs and parameters. The gradient of a loop is a loop that runs the other way."""
    (original,), (flat,) = load(program.source).programs, load(program.flat).programs
    arrays = exact_data(original.function("forward"), seed=8)
    renamed = {name: flat_parameter(name) for name in program.parameters}
    expected = _gradients(flat, {renamed.get(name, name): x for name, x in arrays.items()})
    named = {f"d_{name}": f"d_{other}" for name, other in renamed.items()}
    actual = {named.get(name, name): x for name, x in _gradients(original, arrays).items()}
    tolerance(original).check(actual, expected, "written out")


@holds_for(programs(Options(structured=True, layouts=1)), FEW_EXAMPLES)
def test_functions_of_another_file_are_the_same(program: Structured) -> None:
    (one,) = load(program.source).programs
    diagnostics = Diagnostics()
    text = {f"{MODULE}.mtf": program.library}.get
    with with_unused_values():
        elaborated = elaborate(parse(program.main, FILE, diagnostics), diagnostics, neighbour=text)
    diagnostics.raise_if_errors()
    (other,) = elaborated.programs
    assert same_program(one, other, locations=False)


def _gradients(program: Program, arrays: Arrays) -> Arrays:
    whole = differentiated(program, "gradients")
    return interpret(whole.function("gradients"), whole, arrays)


HEAD = re.compile(r"^( *(?:repeat|scan) .*) \{$", re.MULTILINE)


@holds_for(programs(Options(structured=True, rough=False, layouts=1)), FEW_EXAMPLES)
def test_a_condition_that_holds_changes_nothing(program: Structured) -> None:
    """With `while true`, every loop of a model gives the same results under a layout, in NumPy and in JAX."""
    plain = program.source.partition("\ntrain ")[0]
    source = HEAD.sub(r"\1 while true {", plain)
    (original,), module = load(plain).programs, load(source)
    forward = original.function("forward")
    arrays = exact_data(forward, seed=3)
    placed = lower(module.programs[0], module.layouts[0].mesh, module.layouts[0].layout, "step")
    assert same_program(read_program(print_program(placed, locations=True)), placed)
    expected = interpret(forward, original, arrays)
    for backend in (numpy_module(placed), *([jax_module(placed)] if source != plain else [])):
        tolerance(original).check(call(backend, placed.function("forward"), arrays), expected, "while true")


COUNTED = Options(structured=True, counted=True, rough=False, statements=6, layouts=1)
NUMBER = re.compile(r"\d+(\.\d+)?(e-?\d+)?")


@holds_for(programs(COUNTED), FEW_EXAMPLES)
def test_more_iterations_change_nothing_but_numbers(program: HasSource) -> None:
    """Between 3 and 7 iterations, and between 6000 and 6001, the generated modules differ only in numbers. (The place where a sum
    is completed may depend on the number.)
    """
    layout = load(program.source).layouts[0]
    assert _generated(program.source, 3, None, None) == _generated(program.source, 7, None, None)
    few, many = (_generated(program.source, n, layout.mesh, layout.layout) for n in (6000, 6001))
    assert few == many


def _generated(source: str, iterations: int, mesh: Mesh | None, layout: Layout | None) -> list[str]:
    """Return the modules of both backends, with all numbers removed."""
    (program,) = load(source.replace("dim trips = 3", f"dim trips = {iterations}")).programs
    of = "step" if program.training else "gradients"
    placed = lower(program, mesh, layout, of)
    return [NUMBER.sub("", text) for text in (numpy_backend.generate(placed), jax_backend.generate(placed))]
