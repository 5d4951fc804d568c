"""Renames of imported functions take the fewest bytes that cuts of two labels find."""

from collections.abc import Callable, Iterator, Sequence
from itertools import permutations, product
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import mtfc
from mtfc.compiler.ir.core import Equation
from mtfc.compiler.ir.loops import dim_of
from mtfc.compiler.ir.types import ITEM_BYTES
from mtfc.frontend.jaxpr import importing
from mtfc.frontend.jaxpr.renames import CutArray, CutPlace, Space, improve
from tests.sampling import EVERY_CASE, some


def array(*shape: int) -> Any:
    struct: Any = jax.ShapeDtypeStruct
    return struct(shape, "float32")


# Random conflicts


def random_graph(seed: int, conflicts: int, labels: int) -> tuple[list[Space], list[CutArray]]:
    """Return seven spaces, of which the first ones have two places, and arrays of one axis among them."""
    random = Random(seed)
    spaces = [Space(is_dot=random.random() < 0.2) for _ in range(7)]
    for i, space in enumerate(spaces):
        own = random.sample(range(labels), 2 if i < conflicts else 1)
        space.places = [CutPlace(label, space) for label in own]
    places = [place for space in spaces for place in space.places]
    arrays = []
    for _ in range(random.randint(7, 14)):
        pins = random.sample(places, random.randint(2, 4))
        arrays.append(CutArray(random.randint(1, 9), [(pin,) for pin in pins]))
        for pin in pins:
            pin.nets.append((arrays[-1], 0))
    return spaces, arrays


def cost(arrays: Sequence[CutArray]) -> int:
    return sum(array.cost() for array in arrays)


def least(spaces: Sequence[Space], arrays: Sequence[CutArray], labels: int) -> int:
    """Return the fewest bytes of all labels. A dot has no higher ones than at first."""

    def choices(space: Space) -> Iterator[tuple[int, ...]]:
        own = sorted(place.label for place in space.places)
        for found in permutations(range(labels), len(own)):
            if not space.is_dot or all(x <= y for x, y in zip(sorted(found), own, strict=True)):
                yield found

    costs = []
    for each in product(*(list(choices(space)) for space in spaces)):
        for space, found in zip(spaces, each, strict=True):
            for place, label in zip(space.places, found, strict=True):
                place.label = label
        costs.append(cost(arrays))
    return min(costs)


@pytest.mark.parametrize("seed", range(30))
def test_one_conflict_is_cut_exactly(seed: int) -> None:
    spaces, arrays = random_graph(seed, conflicts=1, labels=2)
    improve(arrays, lambda label: label)
    assert cost(arrays) == least(spaces, arrays, 2)


@pytest.mark.parametrize(("conflicts", "labels"), [(1, 3), (2, 2), (3, 2), *([(3, 3)] if EVERY_CASE else [])])
def test_several_conflicts_are_near_the_least(conflicts: int, labels: int) -> None:
    """All bytes of 20 graphs are at most a tenth above the least, and no space has a label twice."""
    found = best = 0
    for seed in range(20):
        spaces, arrays = random_graph(seed, conflicts, labels)
        before = cost(arrays)
        improve(arrays, lambda label: label)
        assert cost(arrays) <= before
        assert all(len({place.label for place in space.places}) == len(space.places) for space in spaces)
        found += cost(arrays)
        best += least(spaces, arrays, labels)
    assert best <= found <= 1.1 * best


# Programs


def renames(body: Sequence[Equation], times: int = 1) -> list[int]:
    """Return the bytes of each rename of equations, those of loops with all iterations."""
    found = []
    for eqn in body:
        for region in eqn.regions:
            found += renames(region.body, times * dim_of(eqn).size)
        if eqn.op == "rename":
            type = eqn.operands[0].type
            found.append(type.size * ITEM_BYTES[type.dtype] * times)
    return found


PROJECTIONS = {"q": array(16, 16), "k": array(16, 16), "v": array(16, 16), "o": array(16, 16)}
LAYER = {"attention": PROJECTIONS, "up": array(16, 24), "down": array(24, 16)}
WORDS = array(2, 8, 16)
WORDS_BYTES = 2 * 8 * 16 * 4


def attention(p: Any, x: Any, memory: Any, mask: Any = True) -> Any:
    q = (x @ p["q"]).reshape(2, 8, 2, 8)
    k, v = ((memory @ p[name]).reshape(2, 8, 2, 8) for name in "kv")
    scores = jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(2, 8, 16) @ p["o"]


def layer(x: Any, p: Any) -> Any:
    x = x + attention(p["attention"], x, x, jnp.tril(jnp.ones((8, 8), bool)))
    return x + jax.nn.relu(x @ p["up"]) @ p["down"]


def unrolled(layers: Any, x: Any) -> Any:
    for p in layers:
        x = layer(jnp.tanh(x), p)
    return (x**2).sum()


def scanned(layers: Any, x: Any) -> Any:
    return (jax.lax.scan(lambda x, p: (layer(x, p), None), x, layers)[0] ** 2).sum()


def crossing(p: Any, source: Any, target: Any) -> Any:
    memory = layer(source + p["place"], p["encoder"])
    x = layer(target + p["place"], p["decoder"])
    return (attention(p["cross"], x, memory) ** 2).sum()


def lstm(p: Any, xs: Any) -> Any:
    def cell(carry: Any, x: Any) -> Any:
        h, c = carry
        i, f, o, u = jnp.split(x @ p["x"] + h @ p["h"], 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(u)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((4, 16))
    return (jax.lax.scan(cell, (zeros, zeros), xs)[1] ** 2).sum()


def triangle(z: Any, m: Any) -> Any:
    return ((z + jnp.einsum("cik,cjk->cij", jnp.tanh(z) * m, jax.nn.sigmoid(z))) ** 2).sum()


def kernel(x: Any) -> Any:
    n = (x**2).sum(-1)
    return jnp.exp(-(n[:, None] + n - 2 * x @ x.T)) @ x


STACK = jax.tree.map(lambda x: array(3, *x.shape), LAYER)
CROSS = {"place": array(8, 16), "encoder": LAYER, "decoder": LAYER, "cross": PROJECTIONS}

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], int, int]] = {
    # keys and values of each layer, forward and backward
    "attention": (unrolled, ([LAYER], WORDS), 2, 2 * WORDS_BYTES),
    "two layers": (jax.grad(unrolled, (0, 1)), ([LAYER] * 2, WORDS), 8, 8 * WORDS_BYTES),
    "scan": (jax.grad(scanned), (STACK, WORDS), 4, 12 * WORDS_BYTES),
    "encoder and decoder": (jax.grad(crossing), (CROSS, WORDS, WORDS), 10, 10 * WORDS_BYTES),
    # the output of a cell, and its cotangent, in 8 iterations
    "lstm": (jax.grad(lstm), ({"x": array(16, 64), "h": array(16, 64)}, array(8, 4, 16)), 2, 16 * 4 * 16 * 4),
    "Gram matrix": (lambda x: x @ x.T, (array(8, 4),), 1, 128),
    "gradient of a Gram matrix": (jax.grad(lambda x: ((x @ x.T) ** 2).sum()), (array(8, 4),), 2, 256),
    "x @ x": (lambda x: x @ x, (array(8, 8),), 1, 256),
    "x + x.T": (lambda x: x + x.T, (array(8, 8),), 1, 256),
    "three axes in a ring": (lambda x: x + x.transpose(1, 2, 0), (array(4, 4, 4),), 1, 256),
    "distances": (lambda x: ((x[:, None] - x) ** 2).sum(-1), (array(8, 4),), 1, 128),
    "kernel of distances": (kernel, (array(8, 4),), 2, 32 + 128),
    "triangle": (jax.grad(triangle), (array(2, 8, 8), array(8)), 5, 5 * 2 * 8 * 8 * 4),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_renames_take_few_bytes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, args, number, bytes = PROGRAMS[name]
    program = mtfc.from_jax(function, *args)
    found = renames(program.imported.main.body)
    assert (len(found), sum(found)) == (number, bytes)
    assert len(program.imported.renames) == number
    assert all(rename.step.span is not None for rename in program.imported.renames)
    monkeypatch.setattr(importing, "place_renames", lambda linker, flat: None)
    assert bytes <= sum(renames(mtfc.from_jax(function, *args).imported.main.body))


@pytest.mark.parametrize("name", some(["two layers", "scan", "encoder and decoder", "lstm", "triangle"], 3))
def test_programs_with_moved_renames_are_right(name: str) -> None:
    """Split the dimension that is renamed."""
    function, args, _, _ = PROGRAMS[name]
    program = mtfc.from_jax(function, *args)
    dim = program.imported.renames[0].before[0].name
    found = program.verify(program.plan({dim: "model"}, {"model": 2}))
    assert found.ok, found


def test_copies_of_a_layer_have_the_same_renames() -> None:
    """Four layers with a gradient: each renames keys, values and their cotangents, and nothing else."""
    program = mtfc.from_jax(jax.grad(unrolled, (0, 1)), [LAYER] * 4, WORDS)
    lines = [(rename.step.span, rename.before, rename.after) for rename in program.imported.renames]
    assert {lines.count(line) for line in lines} == {4}


def test_names_join_dimensions_beside_moved_renames() -> None:
    """The features of the input and of the state become one dimension by name."""
    shapes = {"x": array(16, 64), "h": array(16, 64)}
    program = mtfc.from_jax(jax.grad(lstm), shapes, array(8, 4, 16), names={"p/*": "features (gates hidden)"})
    assert len(program.imported.renames) == 2
    found = program.verify(program.plan({"features": "model", "batch": "data"}, {"data": 2, "model": 2}))
    assert found.ok, found
