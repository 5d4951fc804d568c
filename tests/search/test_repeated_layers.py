"""Repeated layers: programs with fewer of them are valid, and give the prices of the whole program."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import mtfc
from mtfc.compiler.ir.types import EVERY, Layout, Mesh, Rules
from mtfc.compiler.search import pricer as pricers
from mtfc.compiler.search.pricer import LayersPricer, LayoutPricer
from mtfc.compiler.search.repeated_layers import RepeatedLayers, shortened_program
from mtfc.driver.jax_functions.imported_program import ImportedProgram
from mtfc.driver.jax_functions.plan import machine
from tests.jax_functions.models import array

LAYERS = 9
MESH = Mesh("mesh", (("x", 4), ("y", 2)))


def block(x: Any, p: Any) -> Any:
    h = x - x.mean(-1, keepdims=True)
    return x + jnp.tanh(h @ p["up"] * p["scale"]) @ p["down"]


def plain(x: Any, layers: Any) -> Any:
    for p in layers:
        x = block(x, p)
    return x


def remembering(x: Any, layers: Any) -> Any:
    """Use a value of every layer at the end."""
    found = []
    for p in layers:
        found.append(jnp.tanh(x @ p["up"]))
        x = block(x, p)
    return x * jnp.stack(found).max()


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
    layers = LayersPricer.of(exact)
    assert layers is not None
    assert layers.number >= LAYERS - 2
    assert layers.share < 1
    found, expected = layers.pricing("overlap")(MESH, layout), exact.with_overlap(MESH, layout)
    assert (found.memory, found.tiled) == (expected.memory, expected.tiled)
    assert found.compute == pytest.approx(expected.compute, rel=1e-9)
    assert found.communication == pytest.approx(expected.communication, rel=0.2)  # buckets of collectives
    assert found.overlapping == pytest.approx(expected.overlapping, rel=0.1)


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
def test_layers_that_are_needed_elsewhere_stay() -> None:
    assert LayersPricer.of(LayoutPricer.of(imported(remembering).program, machine("h100"))) is None


@pytest.mark.usefixtures("many")
def test_the_best_layout_is_priced_exactly(program: ImportedProgram) -> None:
    found = program.search(8, "h100", mesh={"x": 4, "y": 2}, budget=1).found
    assert found is not None
    exact = LayoutPricer.of(program.program, machine("h100"))(found.mesh, found.layout)
    assert found.objective == exact.seconds
    assert 0 < found.lower_bound <= found.objective
