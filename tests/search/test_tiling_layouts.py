"""A layout for each equation: written into a file and read back, every equation runs in the layout that was chosen for it."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from mtfc.backends.interpreter import interpret
from mtfc.compiler.analysis.equation_names import placeable_names
from mtfc.compiler.ir.core import Equation, Program
from mtfc.compiler.ir.types import Layout, Mesh
from mtfc.compiler.ir.verify import verify
from mtfc.compiler.pipelines import default_pipeline, lower, run
from mtfc.compiler.search.tiling.search import tiling
from mtfc.compiler.search.tiling.strategies import Strategy
from mtfc.frontend.layout_text import layout_text
from tests.generators.programs import Generated, programs
from tests.harness import call, differentiated, exact_data, numpy_module, tolerance
from tests.search.tilings import loaded, network_of, on


def assigned(program: Program, mesh: Mesh, layout: Layout) -> Program:
    """The program when every equation has its layout."""
    passes = default_pipeline()
    stop = next(i for i, each in enumerate(passes) if each.name == "insert-reshards")
    return run(on(mesh, program, layout), passes[:stop])


@given(programs(), st.integers(0, 2**16))
def test_a_written_tiling_is_what_was_chosen(generated: Generated, seed: int) -> None:
    (program,), mesh = loaded(generated.source).programs, generated.mesh
    random = Random(seed)
    network = network_of(program, mesh)
    choices = [random.randrange(len(node.options)) for node in network.nodes]
    layout = tiling(network, choices, "tiled")
    module = loaded(generated.source + "\n" + layout_text(layout, mesh))
    declared = next(each for each in module.layouts if each.name == "tiled")
    (read,) = module.programs

    placed = assigned(read, mesh, declared.layout)
    function = placed.function("step" if placed.has_function("step") else "forward")
    found = {
        name: thing.layout for thing, name in placeable_names(function).items() if isinstance(thing, Equation)
    }
    names = placeable_names(network.function)
    for node, choice in zip(network.nodes, choices, strict=True):
        option = node.options[choice]
        if isinstance(node.owner, Equation) and isinstance(option, Strategy):
            assert found[names[node.owner]] == option.layout, names[node.owner]


@given(programs(), st.integers(0, 2**16))
def test_a_tiling_does_not_change_results(generated: Generated, seed: int) -> None:
    (program,), mesh = loaded(generated.source).programs, generated.mesh
    random = Random(seed)
    network = network_of(program, mesh)
    choices = [random.randrange(len(node.options)) for node in network.nodes]
    layout = tiling(network, choices, "tiled")
    for of, name in [("step", "step")] if program.training else [("gradients", "gradients")]:
        original = differentiated(program, of)
        arrays = exact_data(original.function(name), seed=7)
        expected = interpret(original.function(name), original, arrays)
        placed = lower(program, mesh, layout, of)
        verify(placed, "lowered")
        tolerance(program).check(call(numpy_module(placed), placed.function(name), arrays), expected, name)
