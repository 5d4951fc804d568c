"""Bounds of attention whose rows and keys are split alike: no form of `spread-attention` costs less."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mtfc
from mtfc.compiler.ir.types import Mesh
from mtfc.compiler.search.global_layouts.layout_bound import LayoutBound
from mtfc.compiler.search.global_layouts.layout_space import LayoutSpace, Rows, space_of
from mtfc.compiler.search.global_layouts.step_facts import StepFacts
from mtfc.compiler.search.pricer import LayoutPricer
from mtfc.driver.jax_functions.imported_program import ImportedProgram
from mtfc.driver.jax_functions.plan import machine
from tests.jax_functions.models import array
from tests.search.layout_bounds import SLOW_LINKS, check_rows, effects_of

BATCH, LENGTH, HEADS, SIZE = 4, 1024, 4, 8
MESH = Mesh("mesh", (("x", 4), ("y", 2)))


def imported(is_causal: bool, groups: int, dtype: Any = jnp.float32) -> ImportedProgram:
    """Import a gradient step of an attention layer; `groups` heads of queries share each head of keys."""

    def loss(p: Any, x: Any) -> Any:
        p, x = jax.tree.map(lambda each: each.astype(dtype), (p, x))
        q = (x @ p["q"]).reshape(BATCH, LENGTH, HEADS // groups, groups, SIZE)
        k, v = ((x @ p[name]).reshape(BATCH, LENGTH, HEADS // groups, SIZE) for name in "kv")
        logits = jnp.einsum("blkgd,bmkd->bkglm", q, k)
        if is_causal:
            logits = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), logits, -1e30)
        y = jnp.einsum("bkglm,bmkd->blkgd", jax.nn.softmax(logits), v)
        return jnp.sum((x + y.reshape(x.shape) @ p["o"]) ** 2)

    def step(p: Any, x: Any) -> Any:
        return jax.tree.map(lambda w, g: w - g, p, jax.grad(loss)(p, x))

    width, keys = HEADS * SIZE, HEADS // groups * SIZE
    shapes = {"q": (width, width), "k": (width, keys), "v": (width, keys), "o": (width, width)}
    params = {name: array(*shape) for name, shape in shapes.items()}
    return mtfc.from_jax(step, params, array(BATCH, LENGTH, width), names={"x": "batch length embed"})


def rows_of(space: LayoutSpace) -> Rows:
    """Return some layouts that split the sequence."""
    random, length = np.random.default_rng(0), space.number["length"]
    rows, known = (
        space.extended(np.zeros((1, len(space.columns)), np.uint8), length, frozenset(), MESH)[0],
        {length},
    )
    rows = rows[rows[:, length] != 0]
    for column in (i for i in range(len(space.columns)) if i != length):
        rows = space.extended(rows, column, frozenset(known), MESH)[0]
        rows = rows[random.permutation(len(rows))[:6]]
        known.add(column)
    return rows


@pytest.mark.parametrize(
    ("is_causal", "groups", "dtype"),
    [
        (True, 1, jnp.float32),
        (True, 4, jnp.float32),
        (False, 1, jnp.float32),
        (True, 1, jnp.bfloat16),
        (False, 4, jnp.bfloat16),
    ],
)
@pytest.mark.parametrize(
    "hardware", [machine("h100"), machine("tpu_v5p"), SLOW_LINKS], ids=lambda each: each.name
)
def test_no_layout_costs_less_than_its_bound(is_causal: bool, groups: int, dtype: Any, hardware: Any) -> None:
    program = imported(is_causal, groups, dtype)
    space = space_of(program.imported.main, program.unsplit().rules)
    check_rows(program.program, MESH, hardware, space, rows_of(space))


def test_keys_travel_and_a_ring_keeps_more_than_half_of_the_arithmetic() -> None:
    """Without a mask all of the arithmetic remains."""
    found = []
    for is_causal in (True, False):
        program = imported(is_causal, 1)
        space = space_of(program.imported.main, program.unsplit().rules)
        pricer = LayoutPricer.of(program.program, machine("h100"))
        facts = StepFacts.of(pricer.undistributed(), pricer.hardware.device)
        bound = LayoutBound(space, facts, MESH, pricer.hardware)
        row = np.zeros((1, len(space.columns)), np.uint8)
        row[0, space.number["length"]] = 2
        effects = effects_of(bound, bound.exactly(row))
        assert effects["data movement"][0] > 0
        found.append(effects["kernels"][0])
    assert found[0] < found[1]
