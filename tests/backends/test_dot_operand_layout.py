"""Dots on CPU: the operands that XLA transposes, compared with its compiled text, and how the JAX backend avoids it."""

import re

import numpy as np
import pytest

from mtfc.backends.jax import backend as jax_backend
from mtfc.backends.jax import runtime as jax_runtime
from mtfc.compiler.analysis.dot_operand_layout import copied_elements, swaps_operands, transposed_elements
from mtfc.compiler.ir.core import Program
from mtfc.compiler.passes.pipelines import lower
from mtfc.driver.loading.selection import ONE_DEVICE, UNDISTRIBUTED
from tests.harness import load

SIZES = {"b": 24, "l": 20, "m": 64, "f": 48, "n": 40, "k": 32, "h": 16, "i": 36, "j": 28, "c": 4}

DOT = re.compile(r"\[([\d,]+)\]\{[\d,]+\} dot\(.*?lhs_contracting_dims=\{(\d+)\}")
TRANSPOSE = re.compile(r"\[([\d,]+)\]\{(\d+)[\d,]*\} transpose\(")


def product(subscripts: str, **sizes: int) -> Program:
    """Return a model of one einsum, on one device."""
    sizes = SIZES | sizes
    factors, result = subscripts.split("->")
    x, y = (", ".join(each) for each in factors.split(","))
    dims = "".join(f"dim {name} = {sizes[name]}\n" for name in dict.fromkeys(factors.replace(",", "")))
    text = f"{dims}model net(x: [{x}], y: [{y}]) {{\n  z = einsum(x, y -> [{', '.join(result)}])\n  return z\n}}\n"
    (program,) = load(text).programs
    return lower(program, ONE_DEVICE, UNDISTRIBUTED)


def has_other_last(shape: str, number: str) -> bool:
    return int(number) != shape.count(",")


@pytest.mark.parametrize(
    "subscripts",
    [
        "bk,kn->bn", "kb,kn->bn", "bk,nk->bn", "kb,nk->bn", "bk,kc->cb", "bc,bk->kc",
        "blm,blf->mf", "blm,mf->blf", "blf,mf->blm", "blm,mhk->blhk", "blhk,mhk->blm", "blm,mhk->bhlk",
        "bij,bjk->bik", "bji,bjk->bik", "bij,bkj->bik", "ijb,jkb->ikb", "bhlk,bhmk->bhlm", "lhm,hmf->lhf",
        "blm,blhk->mhk", "blm,blhk->hmk", "bhlk,hmk->blm", "bhlm,bhlk->bhmk",
    ],
)  # fmt: skip
def test_xla_transposes_the_predicted_operands(subscripts: str) -> None:
    """XLA transposes by a copy, or by a dot that sums over the rows of its first factor."""
    program = product(subscripts)
    (eqn,) = program.function("forward").body
    compiled = jax_runtime.hlo(program)
    found = [*DOT.findall(compiled), *TRANSPOSE.findall(compiled)]
    assert found
    moved = transposed_elements(eqn, ONE_DEVICE) + copied_elements(eqn, ONE_DEVICE)
    assert (moved > 0) == any(has_other_last(*each) for each in found)


def test_a_narrow_dot_has_the_narrow_matrix_first() -> None:
    program = product("bc,bk->kc", b=240)
    (eqn,) = program.function("forward").body
    assert swaps_operands(eqn, ONE_DEVICE)
    assert transposed_elements(eqn, ONE_DEVICE) == 240 * 4 + 32 * 4
    text = jax_backend.generate(program)
    assert 'turned(jnp.einsum("bc,bk->ck", x, y))' in text
    ((shape, _),) = DOT.findall(jax_runtime.hlo(program))
    assert shape == "4,32"
    module = jax_runtime.load(text)
    draw = np.random.default_rng(0)
    x, y = (draw.normal(size=value.type.local_shape(ONE_DEVICE)).astype("f") for value in eqn.operands)
    found = module.forward({}, module.shard({"x": x, "y": y}, module.INPUTS))
    np.testing.assert_allclose(found["z"], y.T @ x, rtol=1e-4, atol=1e-4)


def test_factors_stay_in_the_order_that_copies_less() -> None:
    """For attention heads and experts, `jnp.einsum` would swap the factors and copy elements of all three arrays."""
    for subscripts, order, places in (
        ("blm,mhk->bhlk", "blhk", (0, 2, 1, 3)),
        ("lhm,hmf->lhf", "hlf", (1, 0, 2)),
    ):
        program = product(subscripts)
        (eqn,) = program.function("forward").body
        assert copied_elements(eqn, ONE_DEVICE) == 0
        text = jax_backend.generate(program)
        assert f'jnp.einsum("{subscripts.split("->")[0]}->{order}", x, y).transpose{places}' in text
        module = jax_runtime.load(text)
        draw = np.random.default_rng(0)
        x, y = (draw.normal(size=value.type.local_shape(ONE_DEVICE)).astype("f") for value in eqn.operands)
        found = module.forward({}, module.shard({"x": x, "y": y}, module.INPUTS))
        np.testing.assert_allclose(found["z"], np.einsum(subscripts, x, y), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("one", ["b", "l", "h"])
def test_dimensions_of_one_element_count_for_the_order_only(one: str) -> None:
    program = product("blm,mhk->bhlk", **{one: 1})
    (eqn,) = program.function("forward").body
    assert copied_elements(eqn, ONE_DEVICE) == transposed_elements(eqn, ONE_DEVICE) == 0
    assert '"blm,mhk->blhk"' in jax_backend.generate(program)
    compiled = jax_runtime.hlo(program)
    assert not any(has_other_last(*each) for each in [*DOT.findall(compiled), *TRANSPOSE.findall(compiled)])


def test_other_dots_stay_as_they_are() -> None:
    for subscripts in ("kb,kn->bn", "bij,bjk->bik"):
        assert "turned" not in jax_backend.generate(product(subscripts))
