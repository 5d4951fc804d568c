"""Repeated layers: programs with fewer of them are valid, and give the prices of the whole program."""

from collections.abc import Callable
from itertools import pairwise
from time import process_time
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mtfc
from mtfc.compiler.ir.types import EVERY, Layout, Mesh, Rules
from mtfc.compiler.search import pricer as pricers
from mtfc.compiler.search.global_layouts.layout_bound import LayoutBound
from mtfc.compiler.search.global_layouts.layout_space import space_of
from mtfc.compiler.search.global_layouts.repeated_facts import RepeatedFacts
from mtfc.compiler.search.global_layouts.step_facts import StepFacts
from mtfc.compiler.search.global_layouts.sum_bound import SumBound
from mtfc.compiler.search.pricer import LayoutPricer
from mtfc.compiler.search.repeated_layers import RepeatedLayers, shortened_program
from mtfc.driver.jax_functions.imported_program import ImportedProgram
from mtfc.driver.jax_functions.plan import machine
from mtfc.driver.searching.layouts import LayoutFinder
from tests.jax_functions.models import array

LAYERS = 9
MESH = Mesh("mesh", (("x", 4), ("y", 2)))


def block(x: Any, p: Any) -> Any:
    h = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)
    return x + jnp.tanh(h @ p["up"] * p["scale"]) @ p["down"]


def plain(x: Any, layers: Any) -> Any:
    for p in layers:
        x = block(x, p)
    return x


def twice(x: Any, layers: Any) -> Any:
    """Add to the input twice in each layer: there are two cuts where one value is alive."""
    for p in layers:
        x = x + jnp.tanh(x @ p["up"]) @ p["up"].T
        x = x + jnp.sin(x @ p["down"].T * p["scale"]) @ p["down"]
    return x


def remembering_its_inputs(x: Any, layers: Any) -> Any:
    for p in layers:
        x = jax.checkpoint(lambda x, p: twice(x, [p]))(x, p)
    return x


def mixed(x: Any, p: Any) -> Any:
    """Compute a block in bf16: sums in f32 end where they are rounded, and so within their layer."""
    x, p = jax.tree.map(lambda a: a.astype(jnp.bfloat16), (x, p))
    return block(x, p)


def rounding(x: Any, layers: Any) -> Any:
    for p in layers:
        x = x + mixed(x, p).astype(x.dtype)
    return x


def remembering(x: Any, layers: Any) -> Any:
    """Use a value of every layer at the end."""
    found = []
    for p in layers:
        found.append(jnp.tanh(x @ p["up"]))
        x = block(x, p)
    return x * jnp.stack(found).max()


def scaled_often(x: Any, layers: Any) -> Any:
    """Multiply by many different numbers behind the layers, which are the smaller part of the step."""
    x = plain(x, layers)
    for i in range(400):
        x = x * (1 + i / 1e4)
    return x


def imported(model: Callable[[Any, Any], Any]) -> ImportedProgram:
    """Import a training step with momentum, whose gradients are clipped by their common norm."""

    def step(params: Any, momenta: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            return jnp.mean(model(x @ params["in"], params["layers"]) ** 2)

        value, gradients = jax.value_and_grad(loss)(params)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradients)))
        momenta = jax.tree.map(lambda m, g: 0.9 * m + g / norm, momenta, gradients)
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, momenta), momenta, value

    layers = [{"up": array(64, 128), "scale": array(128), "down": array(128, 64)} for _ in range(LAYERS)]
    params = {"in": array(16, 64), "layers": layers}
    return mtfc.from_jax(step, params, params, array(256, 16), names={"**/up": "embed hidden"})


@pytest.fixture(scope="module")
def program() -> ImportedProgram:
    return imported(plain)


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pricers, "MANY_EQUATIONS", 100)


STORED = Rules(((EVERY, ("x",)),))


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(
    "layout",
    [
        Layout("nothing"),
        Layout("data", Rules((("batch", ("x", "y")),))),
        Layout("tensor", Rules((("batch", ("x",)), ("hidden", ("y",)))), optimizer=STORED),
        Layout("fsdp", Rules((("batch", ("x",)),)), params=STORED, optimizer=STORED),
    ],
    ids=lambda layout: layout.name,
)
def test_prices_are_those_of_the_whole_program(program: ImportedProgram, layout: Layout) -> None:
    exact = LayoutPricer.of(program.program, machine("h100"))
    layers = exact.layers[0]
    assert layers is not None
    assert layers.number >= LAYERS - 2
    assert layers.share < 1
    found, expected = layers.pricing("time")(MESH, layout), exact(MESH, layout)
    assert (found.memory, found.tiled) == (expected.memory, expected.tiled)
    assert found.compute == pytest.approx(expected.compute, rel=1e-9)
    assert found.communication == pytest.approx(expected.communication, rel=0.2)  # buckets of collectives
    assert found.seconds == pytest.approx(expected.seconds, rel=0.1)


def test_layers_are_taken_out_with_all_their_copies(program: ImportedProgram) -> None:
    whole = LayoutPricer.of(program.program, machine("h100")).program
    layers = RepeatedLayers.of(whole.functions[0])
    assert layers is not None
    sizes = []
    for kept in range(layers.number + 1):
        short = shortened_program(whole, layers, kept)
        assert short is not None
        (function,) = short.functions
        sizes.append(len(function.body))
        states = [a for a in function.arguments if a.role == "state"]
        assert len(states) == 1 + 3 * (LAYERS - layers.number + kept)
        assert {o.updates for o in function.outputs} - {None} == {
            a.value.name for a in function.arguments if a.role != "input"
        }
    assert len({after - before for before, after in pairwise(sizes)}) == 1
    assert sizes[-1] == len(whole.functions[0].body)


@pytest.mark.usefixtures("many")
def test_the_whole_program_is_priced_only_where_values_must_be_computed_again(
    program: ImportedProgram,
) -> None:
    plain = LayoutPricer.of(program.program, machine("h100"))
    data, nothing = Layout("data", Rules((("batch", ("x", "y")),))), Layout("nothing")
    small, large = plain(MESH, data), plain(MESH, nothing)
    assert small.tiled < large.tiled
    room = attrs.evolve(plain.hardware.device, memory=(small.tiled + large.tiled) // 2)
    exact = attrs.evolve(plain, hardware=attrs.evolve(plain.hardware, device=room), recomputes=True, alike={})
    layers = exact.layers[0]
    assert layers is not None
    pricing = layers.pricing("time")
    fits = pricing(MESH, data)
    assert fits.tiled == small.tiled
    assert not exact.alike
    again = pricing(MESH, nothing)
    assert again == exact(MESH, nothing) if large.seconds < fits.seconds else again.tiled > room.memory


@pytest.mark.parametrize("model", [twice, remembering_its_inputs])
def test_layers_with_two_residuals_are_cut_where_all_passes_allow(model: Callable[[Any, Any], Any]) -> None:
    whole = LayoutPricer.of(imported(model).program, machine("h100")).program
    layers = RepeatedLayers.of(whole.functions[0])
    assert layers is not None
    assert layers.number >= LAYERS - 3
    assert len(layers.runs) >= 3
    assert all(layers.shortened(kept) is not None for kept in range(layers.number))


@pytest.mark.usefixtures("many")
def test_layers_that_are_needed_elsewhere_stay() -> None:
    exact = LayoutPricer.of(imported(remembering).program, machine("h100"))
    assert exact.layers[0] is None


@pytest.mark.usefixtures("many")
def test_layers_that_are_the_smaller_part_stay() -> None:
    """Two shorter programs would take longer than the whole, and their difference would be a small one of large figures."""
    exact = LayoutPricer.of(imported(scaled_often).program, machine("h100"))
    assert RepeatedLayers.of(exact.program.functions[0]) is not None
    assert exact.layers == (None, None)


@pytest.mark.usefixtures("many")
def test_a_wrong_price_of_layers_makes_no_result_worse(
    program: ImportedProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pricers, "_extrapolated", lambda a, b, number: attrs.evolve(b, seconds=-b.seconds))
    finder = LayoutFinder(program.program, LayoutPricer.of(program.program, machine("h100")), "time")
    known = [(MESH, Layout("nothing")), (MESH, Layout("data", Rules((("batch", ("x", "y")),))))]
    found = finder.best_global([MESH], process_time() + 2, known)
    assert found.objective == finder.pricer(found.mesh, found.layout).seconds
    assert found.objective <= min(finder.pricer(*each).seconds for each in known)


def recomputing(x: Any, layers: Any) -> Any:
    for p in layers:
        x = x + jax.checkpoint(mixed)(x, p).astype(x.dtype)
    return x


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("model", [rounding, plain, recomputing])
def test_bounds_are_those_of_the_whole_program(
    model: Callable[[Any, Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The facts of a few layers give the same bounds, for layouts that are decided and for others.

    Without rounding, a sum may travel along the gradients of all layers; the short routes end within a layer.
    """
    # facts of a few layers lack chains of sums, and the norm of all gradients
    monkeypatch.setattr(SumBound, "_in_turn", lambda self, latencies: np.zeros(latencies.shape[1]))
    found = imported(model)
    pricer = LayoutPricer.of(found.program, machine("h100"))
    short = pricer.layers[1]
    assert short is not None
    assert short[1] >= LAYERS - 3
    space = space_of(found.program.function("forward"), found.unsplit().rules, storage=True)
    whole = StepFacts.of(pricer.undistributed(), pricer.hardware.device, has_short_routes=True)
    repeated = RepeatedFacts.of_layers(whole, *short, space.split)
    bounds = [LayoutBound(space, facts, MESH, pricer.hardware) for facts in (whole, repeated)]
    rows, decided = np.zeros((1, len(space.columns)), np.uint8), frozenset[int]()
    for column in range(len(space.columns)):
        expected, seconds = (bound.seconds(bound.known(rows, decided)) for bound in bounds)
        np.testing.assert_array_less(seconds, expected * (1 + 1e-9))
        np.testing.assert_allclose(seconds, expected, 0.02)  # the norm of all gradients joins all layers
        rows = space.extended(rows, column, decided, MESH)[0][-64:]
        decided |= {column}
    assert all(split in repeated.found for split in (frozenset[str](), repeated.mixed))
    assert len(whole.facts(frozenset()).routes) > 2 * len(repeated.facts(frozenset()).routes)


@pytest.mark.usefixtures("many")
def test_layers_with_facts_of_their_own_are_not_repeated() -> None:
    """A second and a third layer must add the same facts."""
    found = imported(rounding)
    pricer = LayoutPricer.of(found.program, machine("h100"))
    short = pricer.layers[1]
    assert short is not None
    (first, second, third, fourth), number = short
    whole = StepFacts.of(pricer.undistributed(), pricer.hardware.device)
    dims = frozenset({"batch", "hidden"})
    wrong = RepeatedFacts.of_layers(whole, (first, second, second, fourth), number, dims)
    right = RepeatedFacts.of_layers(whole, (first, second, third, fourth), number, dims)
    assert wrong.facts(frozenset()).routes == whole.facts(frozenset()).routes
    assert len(right.facts(frozenset()).routes) < len(whole.facts(frozenset()).routes)


def test_an_update_computes_one_parameter_after_the_other() -> None:
    """A step of optax computes each quantity for all parameters; in memory they are for one parameter at a time."""
    optimizer = optax.adam(1e-3)

    def step(params: Any, state: Any, x: Any) -> Any:
        gradients = jax.grad(lambda p: jnp.sum(plain(x @ p["in"], p["layers"]) ** 2))(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    layers = [{"up": array(64, 128), "scale": array(128), "down": array(128, 64)} for _ in range(4)]
    params = {"in": array(4, 64), "layers": layers}
    found = mtfc.from_jax(step, params, jax.eval_shape(optimizer.init, params), array(8, 4))
    memory = found.plan({}, {"x": 1}).cost()["memory_per_device"]
    assert memory["activations_peak"] < memory["parameters"] / 2


@pytest.mark.usefixtures("many")
def test_the_best_layout_is_priced_exactly(program: ImportedProgram) -> None:
    found = program.search(8, "h100", mesh={"x": 4, "y": 2}, budget=1).found
    assert found is not None
    exact = LayoutPricer.of(program.program, machine("h100"))(found.mesh, found.layout)
    assert found.objective == exact.seconds
    assert 0 < found.lower_bound <= found.objective
