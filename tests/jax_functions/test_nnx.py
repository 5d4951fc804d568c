"""Functions of Flax NNX that change the modules and optimizers that they get."""

from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import mtfc
from tests.jax_functions.models import array


class Network(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.first = nnx.Linear(16, 32, rngs=rngs)
        self.norm = nnx.BatchNorm(32, rngs=rngs)
        self.second = nnx.Linear(32, 8, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.second(nnx.relu(self.norm(self.first(x))))


def loss(model: Any, x: Any, y: Any) -> Any:
    return ((model(x) - y) ** 2).mean()


@nnx.jit
def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
    value, gradients = nnx.value_and_grad(loss)(model, x, y)
    optimizer.update(model, gradients)
    return value


def start() -> tuple[Any, Any]:
    model = Network(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.sgd(1e-2, momentum=0.9), wrt=nnx.Param)


def batch(seed: int) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    return random.standard_normal((8, 16), np.float32), random.standard_normal((8, 8), np.float32)


def test_a_step_returns_the_objects_that_it_changes() -> None:
    model, optimizer = start()
    program = mtfc.from_jax(step, model, optimizer, *batch(0))
    roles = {leaf.name: leaf.role for leaf in program.imported.inputs}
    assert roles["first_kernel_value"] == "parameter"
    assert roles["opt_state_0_trace_first_kernel_value"] == "state"
    assert roles["norm_mean_value"] == "state"  # the loss of a training step does not read it
    assert program.imported.main.name == "step"


def test_planned_training_is_training() -> None:
    """Three planned steps give the model that three steps of `nnx.jit` make of the same objects in place."""
    model, optimizer = start()
    program = mtfc.from_jax(step, model, optimizer, *batch(0))
    plan = program.plan({"batch": "x"}, {"x": 4})
    planned = jax.jit(plan.apply(step))
    found: Any = start()
    with jax.sharding.set_mesh(plan.mesh):
        for i in range(3):
            *found, value = planned(*found, *batch(i))
    for i in range(3):
        expected = step(model, optimizer, *batch(i))
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(found[0]), jax.tree.leaves(model), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_the_callers_objects_stay_as_they_are() -> None:
    model, optimizer = start()
    before = np.asarray(model.first.kernel[...])
    program = mtfc.from_jax(step, model, optimizer, *batch(0))
    program.function(model, optimizer, *batch(0))
    np.testing.assert_array_equal(before, model.first.kernel[...])


def test_functions_that_change_nothing_stay_as_they_are() -> None:
    def outputs(model: Any, x: Any) -> Any:
        return model.second(x)

    model = nnx.eval_shape(lambda: Network(nnx.Rngs(0)))
    for function in (outputs, nnx.jit(outputs)):
        program = mtfc.from_jax(function, model, array(8, 32))
        assert [leaf.shape for leaf in program.imported.outputs] == [(8, 8)]


def _in_tuple(both: Any, x: Any, y: Any) -> Any:
    return step(*both, x, y)


def _in_dict(x: Any, y: Any, *, state: Any) -> Any:
    return step(state["model"], state["optimizer"], x, y)


@pytest.mark.parametrize("is_named", [False, True])
def test_objects_inside_of_arguments_are_returned_with_these(is_named: bool) -> None:
    both, data = start(), batch(0)
    if is_named:
        function, args, kwargs = _in_dict, data, {"state": {"model": both[0], "optimizer": both[1]}}
    else:
        function, args, kwargs = _in_tuple, (both, *data), {}
    program = mtfc.from_jax(function, *args, **kwargs)
    plan = program.plan({"batch": "x"}, {"x": 4})
    with jax.sharding.set_mesh(plan.mesh):
        new, value = jax.jit(plan.apply())(*args, **kwargs)
    np.testing.assert_allclose(value, step(*both, *data), rtol=1e-5)
    model, optimizer = new.values() if is_named else new
    for a, b in zip(jax.tree.leaves((model, optimizer)), jax.tree.leaves(both), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_random_streams_and_metrics_are_returned() -> None:
    """A second step must draw other numbers."""

    def noisy(model: Any, rngs: Any, metric: Any, x: Any) -> Any:
        y = model.first(nnx.Dropout(0.5)(x, rngs=rngs))
        metric.update(values=y)
        return y

    args = start()[0], nnx.Rngs(dropout=1), nnx.metrics.Average(), batch(0)[0]
    program = mtfc.from_jax(noisy, *args)
    plan = program.plan({"batch": "x"}, {"x": 4})
    rngs, metric, first = plan.step(*args)
    assert int(rngs.dropout.count[...]) == 1
    assert int(args[1].dropout.count[...]) == 0
    assert float(metric.count[...]) == first.size
    again = plan.step(args[0], rngs, metric, args[3])[-1]
    np.testing.assert_allclose(first, noisy(*args), rtol=1e-5)
    np.testing.assert_allclose(again, noisy(*args), rtol=1e-5)
    assert not np.allclose(first, again)


@pytest.mark.parametrize("is_inside", [False, True])
def test_a_plan_of_abstract_objects_is_for_real_ones(is_inside: bool) -> None:
    """Each building makes an optimizer with functions of its own. Batches may be made while the mesh is set."""
    plan = mtfc.from_jax(step, *nnx.eval_shape(start), *batch(0)).plan({"batch": "x"}, {"x": 4})
    expected = step(*start(), *batch(0))
    with jax.sharding.set_mesh(plan.mesh):
        inside = start(), jax.numpy.asarray(batch(0)[0]), jax.numpy.asarray(batch(0)[1])
    objects, *data = inside if is_inside else (start(), *batch(0))
    for _ in range(2):
        model, optimizer, value = plan.jit(step)(*objects, *data)
        np.testing.assert_allclose(value, expected, rtol=1e-5)
    placed = jax.device_put(start(), plan.in_shardings[:2])
    options = {"in_shardings": plan.in_shardings, "out_shardings": plan.out_shardings}
    found = jax.jit(plan.apply(step), **options)(*placed, *batch(0))
    np.testing.assert_allclose(found[-1], expected, rtol=1e-5)
    assert plan.jit(step)(model, optimizer, *data)[-1] < expected


def test_trees_that_differ_in_more_than_functions_do_not_fit() -> None:
    def other() -> Any:
        model = Network(nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    plan = mtfc.from_jax(step, *start(), *batch(0)).plan({"batch": "x"}, {"x": 4})
    with pytest.raises(ValueError, match="a structure other than that of the plan"):
        plan.jit(step)(*other(), *batch(0))
