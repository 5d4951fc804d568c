"""Parts of axes that have a factor of the axis: imported programs compute what NumPy computes from the jaxpr.

`make parts` tries all parts of all sizes up to 12.
"""

import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, product
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import mtfc
from mtfc.compiler.passes.pipelines import lower
from mtfc.frontend.jaxpr.factors import index_of_part
from tests.jax_functions.arguments import interpreted, program_arguments, run
from tests.jax_functions.linked_parts import MOST, MOVES, Case, batches, cases, drawn, pads, wrong
from tests.jax_functions.test_primitives import MESH, assert_same, layouts
from tests.sampling import some

IS_LONG = "EVERY_PART" in os.environ
SMALL = {"split": 5, "concatenate": 5, "slice": 6, "dynamic_slice": 4}
"""Family of moves -> the largest size that is always tried; 3 for others."""

DRAWN = 20_000 if IS_LONG else 64


def small(name: str) -> Iterator[Case]:
    """Yield the cases of a family of moves that are always tried."""
    family = partial(pads, most=2, gaps=1) if name == "pad" else MOVES[name]
    moves = chain.from_iterable(map(family, range(2, SMALL.get(name, 3) + 1)))
    return chain.from_iterable(map(cases, moves))


@pytest.mark.parametrize("name", MOVES)
def test_all_small_parts(name: str) -> None:
    for batch in batches(small(name)):
        assert not wrong(batch)


@pytest.mark.skipif(not IS_LONG, reason="takes 22 minutes of computing: make parts")
@pytest.mark.parametrize("size", range(2, MOST + 1))
@pytest.mark.parametrize("name", MOVES)
def test_all_parts(name: str, size: int) -> None:
    number = 0
    for batch in batches(chain.from_iterable(map(cases, MOVES[name](size)))):
        assert not wrong(batch)
        number += len(batch)
    print(f"{name} of {size}: {number} cases")


def test_drawn_parts() -> None:
    """Two moves of one array, or of both axes of a plane, whose axes have several links."""
    random = Random(0)
    for batch in batches(drawn(random, MOST) for _ in range(DRAWN)):
        assert not wrong(batch)


def overlapping_frames(x: Any, w: Any) -> Any:
    """Frames that overlap by half, times a window, as in a short-time Fourier transform."""
    return jnp.stack([x[:, i : i + 4] * w for i in (0, 2, 4)], 1)


def rotary_embeddings(x: Any, w: Any) -> Any:
    """Halves, every second number, and pairs, times the same cosines."""
    a, b, p, q = x[:, :4], x[:, 4:], x[:, ::2], x[:, 1::2]
    return (
        jnp.concatenate([a * w - b, b * w + a], 1),
        jnp.stack([p * w - q, q * w + p], -1).reshape(2, 8),
        x.reshape(2, 4, 2) * w[:, None],
    )


def haar_tree(x: Any, w: Any) -> Any:
    found = [x.reshape(2, 2, 4) * w]
    while x.shape[1] > 1:
        a, b = x[:, ::2], x[:, 1::2]
        x, found = a + b, [*found, (a - b) * w[: a.shape[1]]]
    return found, x


def crops(x: Any, w: Any) -> Any:
    """Corners and the centre of a plane; both axes of a crop have a factor of the other axis."""
    plane = x[:, :, None] * x[:, None, :]
    corners = [plane[:, i : i + 4, k : k + 4] for i, k in ((0, 0), (0, 4), (4, 0), (4, 4), (2, 2))]
    turned = lax.slice(plane, (0, 1, 3), (2, 5, 7)) * w[:, None]
    return jnp.stack(corners, 1) * w, turned, plane.reshape(2, 8, 2, 4) * w


def chunks(x: Any, w: Any) -> Any:
    """Attention of chunks to themselves and the ones before."""
    own = x.reshape(2, 4, 2)
    before = jnp.pad(own, ((0, 0), (1, 0), (0, 0)))[:, :-1]
    return jnp.einsum("bcq,bck->bcqk", own, jnp.concatenate([before, own], 2)) * w, x[:, 3:7] * w


def pads_and_shifts(x: Any, w: Any) -> Any:
    return (
        sum(x[:, i::4] * w[i] for i in range(4)),
        lax.pad(x, 2.0, ((0, 0, 0), (-2, -2, 0))) * w,
        lax.pad(x, 2.0, ((0, 0, 0), (-3, 2, 1))) * jnp.repeat(w, 7)[:14],
        x + jnp.pad(x[:, :-2], ((0, 0), (2, 0))),
        jnp.pad(x[:, 2:6], ((0, 0), (1, 3))) * x,
        jnp.roll(x, 3, 1) * jnp.tile(w, 2),
        [part * w[: part.shape[1]] for part in jnp.split(x, [1, 5], 1)],
        x[:, ::-2] * w,
        x.reshape(2, 2, 4) * w,
    )


def moved_starts(x: Any, w: Any) -> Any:
    """Slices from computed starts, also in a scan and for each row."""
    first = jnp.argmax(x[:, :4], 1).astype("int32")
    rows = jax.vmap(lambda r, i: lax.dynamic_slice(r, (i,), (4,)))(x, first)
    scanned = lax.scan(lambda c, r: (c + r[1:5] * w, r[3:7] * c), w, x)
    return rows * w, lax.dynamic_slice(x, (0, first[0]), (2, 4)) * w, scanned, x.reshape(2, 2, 4) * w


PATTERNS = (
    overlapping_frames, rotary_embeddings, haar_tree, crops, chunks, pads_and_shifts, moved_starts,
)  # fmt: skip


@pytest.mark.parametrize("function", some(PATTERNS, 4), ids=lambda f: f.__name__)
def test_usual_patterns_under_layouts(function: Callable[..., Any]) -> None:
    """Values and gradients under layouts that split each dimension."""

    def both(x: Any, w: Any) -> Any:
        def loss(x: Any, w: Any) -> Any:
            return sum((y * y).sum() for y in jax.tree.leaves(function(x, w)))

        return function(x, w), jax.grad(loss, (0, 1))(x, w)

    random = np.random.default_rng(1)
    args = tuple(jnp.asarray(random.integers(-4, 5, shape), "float32") for shape in ((2, 8), (4,)))
    expected = [np.asarray(y) for y in jax.tree.leaves(both(*args))]
    program = mtfc.from_jax(both, *args, parameters=())
    arguments = program_arguments(program, args)
    assert_same(interpreted(program, arguments), expected, "interpreter")
    for layout in layouts(program):
        lowered = lower(program.program, MESH, layout)
        assert_same(run(program, lowered, arguments, "numpy"), expected, str(layout.rules))


def test_a_gather_that_transposes() -> None:
    """Indices that count all of an axis read the table, in another order of its axes."""
    numbers = lax.GatherDimensionNumbers((), (1,), (1,), (0,), (1,))

    def transposed(x: Any) -> Any:
        return lax.gather(x, lax.broadcasted_iota("int32", (4, 4, 1), 0), numbers, (1, 1), mode="clip")

    x = np.arange(16, dtype="float32").reshape(4, 4)
    program = mtfc.from_jax(transposed, x)
    (found,) = interpreted(program, program_arguments(program, (x,)))
    np.testing.assert_array_equal(found, x.T)


def test_the_rule_of_parts() -> None:
    """A part is a factor exactly if an index of all other factors gives the elements, in order."""
    for size, start, stride, number in product(range(1, 25), range(24), range(1, 13), range(2, 25)):
        elements = [start + i * stride for i in range(number)]
        if elements[-1] >= size:
            continue
        expected = None
        if size % (number * stride) == 0:
            rows = np.arange(size).reshape(-1, number, stride).transpose(0, 2, 1).reshape(-1, number)
            expected = next((i for i, row in enumerate(rows) if row.tolist() == elements), None)
        assert index_of_part(size, start, stride, number) == expected
