"""Layouts of equations, written into a file and read back: every equation runs in its chosen layout."""

from random import Random

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from mtfc.backends.interpreter import interpret
from mtfc.compiler.analysis.equation_names import layout_target_names
from mtfc.compiler.cost.effects.roofline import EquationTimes, work
from mtfc.compiler.ir.core import Equation, Program
from mtfc.compiler.ir.types import Layout, Mesh
from mtfc.compiler.ir.verifier import verify
from mtfc.compiler.passes.pipelines import default_pipeline, lower, run
from mtfc.compiler.search.per_equation.equation_strategies import PlacedStrategies, Strategy, strategies
from mtfc.compiler.search.per_equation.per_equation_search import layout_of_choices
from mtfc.driver.loading.layout_targets import prepared
from mtfc.frontend.hardware_targets import find_hardware
from mtfc.frontend.layouts.layout_text import layout_text
from tests.documents import ROOT
from tests.generators.programs import Generated, programs
from tests.harness import call, chosen_layout, differentiated, exact_data, load, numpy_module, tolerance
from tests.search.equation_networks import network_of


def assigned(program: Program, mesh: Mesh, layout: Layout) -> Program:
    """Return the program after every equation has its layout."""
    passes = default_pipeline()
    stop = next(i for i, each in enumerate(passes) if each.name == "place-reductions")
    return run(attrs.evolve(program, mesh=mesh, layout=layout), passes[:stop])


@settings(max_examples=20)
@given(programs(), st.integers(0, 2**16))
def test_written_equation_layouts_are_those_chosen(generated: Generated, seed: int) -> None:
    """Choose any strategy for each equation: the file says so, and the results stay the same."""
    (program,), mesh = load(generated.source).programs, generated.mesh
    network, random = network_of(program, mesh), Random(seed)
    choices = [random.randrange(len(node.options)) for node in network.nodes]
    text = layout_text(layout_of_choices(network, choices, "tiled"), mesh)
    module = load(f"{generated.source}\n{text}")
    layout, (program,) = chosen_layout(module, "tiled").layout, module.programs

    placed = assigned(program, mesh, layout)
    name = "step" if program.training else "forward"
    found = {name: thing for thing, name in layout_target_names(placed.function(name)).items()}
    names = layout_target_names(network.function)
    for node, choice in zip(network.nodes, choices, strict=True):
        option = node.options[choice]
        if isinstance(node.owner, Equation) and isinstance(option, Strategy):
            assert found[names[node.owner]].layout == option.layout, names[node.owner]

    of, name = ("step", "step") if program.training else ("gradients", "gradients")
    original, lowered = differentiated(program, of), lower(program, mesh, layout, of)
    verify(lowered, "lowered")
    arrays = exact_data(original.function(name), seed=7)
    expected = interpret(original.function(name), original, arrays)
    tolerance(program).check(call(numpy_module(lowered), lowered.function(name), arrays), expected, name)


def test_equations_on_one_tpu_take_what_the_roofline_says() -> None:
    """Each equation takes the seconds of the placed program's roofline."""
    mesh, device = Mesh("single", ()), find_hardware("tpu_v2", {}).device
    step = prepared(load((ROOT / "examples" / "two_layer.mtf").read_text("utf-8")).programs[0])
    times = EquationTimes(step, mesh, device)
    for eqn, expected in zip(step.body, work(step, mesh, device), strict=True):
        choices = PlacedStrategies.of(eqn, strategies(eqn, mesh, (), ()), mesh)
        assert times.seconds(eqn, choices.placed) == [expected.seconds]
