"""Arguments by place and by keyword, and the names of arrays in the trees of arguments and results."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import pytest

import mtfc
from mtfc.driver.jax_functions.comparison import drawn_arguments
from mtfc.driver.jax_functions.imported_program import ImportedProgram
from tests.jax_functions.models import array

OPTIMIZER = optax.adam(1e-3)
PARAMS = [{"w": array(8, 4), "b": array(4)}]
STATE = jax.eval_shape(OPTIMIZER.init, PARAMS)
BATCH = {"x": array(16, 8)}


def step(params: Any, opt_state: Any, batch: Any, scale: float = 1.0) -> Any:
    def loss(params: Any) -> Any:
        return scale * jnp.mean(jnp.tanh(batch["x"] @ params[0]["w"] + params[0]["b"]) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    updates, opt_state = OPTIMIZER.update(gradients, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, value


def step_by_keyword(*, params: Any, opt_state: Any, batch: Any) -> Any:
    return step(params, opt_state, batch)


def roles(program: ImportedProgram) -> dict[str, str]:
    return {leaf.name: leaf.role for leaf in program.imported.inputs}


BY_PLACE = roles(mtfc.from_jax(step, PARAMS, STATE, BATCH))


@pytest.mark.parametrize("function", [step, jax.jit(step), partial(step, scale=2.0)])
@pytest.mark.parametrize("places", [0, 1])
def test_an_argument_by_keyword_is_as_one_by_place(function: Callable[..., Any], places: int) -> None:
    by_name = {"batch": BATCH, "params": PARAMS, "opt_state": STATE}
    args = [by_name.pop("params")] if places else []
    program = mtfc.from_jax(function, *args, **by_name)
    assert roles(program) == BY_PLACE
    plan = program.plan({"batch": "data", "optimizer": {"*": "data"}}, {"data": 4})
    (params, state, batch), named = drawn_arguments(plan, 0)
    assert not named and len(plan.in_shardings) == 3
    expected = function(params, state, batch)
    with jax.sharding.set_mesh(plan.mesh):
        for road in (plan.apply(function), plan.step):
            found = jax.jit(road)(params, batch=batch, opt_state=state)
            for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
                assert jnp.allclose(x, y, atol=1e-5)
    assert program.verify(plan, batch=batch, params=params, opt_state=state).ok


def test_a_model_by_keyword_alone_is_a_model() -> None:
    program = mtfc.from_jax(step_by_keyword, params=PARAMS, opt_state=STATE, batch=BATCH)
    assert roles(program) == BY_PLACE
    plan = program.plan({"batch": "data", "params": {"*": "data"}}, {"data": 4})
    (sharding,) = (each["w"] for each in plan.shardings.params)
    assert sharding.spec != jax.sharding.PartitionSpec(None, None)
    assert program.verify(plan).ok


def test_jit_of_a_plan_takes_arguments_in_every_way_and_donates() -> None:
    """It places arguments that are elsewhere; those that a step returns are placed already, and it may overwrite them."""
    layout, mesh = {"batch": "data", "optimizer": {"*": "data"}}, {"data": 4}
    plan = mtfc.from_jax(step, PARAMS, STATE, BATCH).plan(layout, mesh)
    (params, state, batch), _ = drawn_arguments(plan, 0)
    expected = step(params, state, batch)
    named = mtfc.from_jax(step_by_keyword, params=PARAMS, opt_state=STATE, batch=BATCH).plan(layout, mesh)
    run = plan.jit(step)
    for found in (
        run(params, state, batch),
        run(params, batch=batch, opt_state=state),
        named.jit(step_by_keyword)(batch=batch, params=params, opt_state=state),
        plan.with_explicit_axes().jit(step)(params, state, batch),
    ):
        for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert jnp.allclose(x, y, atol=1e-5)
    given = run(params, state, batch)
    plan.jit(step, donate_argnums=(0, 1))(*given[:2], batch)
    assert all(x.is_deleted() for x in jax.tree.leaves(given[1]))
    with pytest.raises(ValueError, match="shape"):
        run(params, state, {"x": jnp.ones((8, 7))})
    with pytest.raises(ValueError, match="a structure other than that of the plan"):
        run(params, state, {"y": batch["x"]})


def test_jit_of_a_plan_inside_of_another_transformation() -> None:
    def loss(w: Any, x: Any) -> Any:
        return jnp.mean(jnp.tanh(x @ w) ** 2)

    plan = mtfc.from_jax(loss, array(4, 3), array(8, 4)).plan({"batch": "data"}, {"data": 4})
    w, x = jnp.linspace(-1, 1, 12).reshape(4, 3), jnp.linspace(-1, 1, 32).reshape(8, 4)
    for transform in (jax.grad, jax.jit):
        assert jnp.allclose(transform(plan.jit(loss))(w, x), transform(loss)(w, x), atol=1e-6)


def test_arrays_are_named_by_their_places() -> None:
    """An array that is returned anew has the name of the argument. Numbers alone are no name."""
    program = mtfc.from_jax(step, PARAMS, STATE, BATCH)
    model, first = ["params_0_b", "params_0_w"], ["opt_state_0_count", "opt_state_0_mu_0_b"]
    given, made = ([x.name for x in each] for each in (program.imported.inputs, program.imported.outputs))
    assert given[:4] == made[:4] == [*model, *first]
    assert given[-1] == "batch_x" and made[-1] == "result_2"


@jax.tree_util.register_dataclass
@dataclass
class State:
    w: Any
    inner: Any


class Pair(NamedTuple):
    a: Any
    b: Any


def test_names_of_fields() -> None:
    def update(state: Any, x: Any, *more: Any) -> Any:
        return State(state.w - x.sum(), Pair(*state.inner)), Pair(x @ state.w, {"m": more[0]})

    program = mtfc.from_jax(update, State(array(8, 8), Pair(array(8), array(2))), array(4, 8), array(3))
    made = [leaf.name for leaf in program.imported.outputs]
    assert [leaf.name for leaf in program.imported.inputs] == ["w", "inner_a", "inner_b", "x", "more0"]
    assert made == ["w", "inner_a", "inner_b", "result_1_a", "result_1_b_m"]
    single = mtfc.from_jax(lambda x: x * 2, array(3)).imported.outputs
    assert [leaf.name for leaf in single] == ["result"]
