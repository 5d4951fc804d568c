"""Models of Keras: their variables as arguments, and `fit` under a plan's distribution."""

import os
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import jax
import numpy as np
import pytest

import mtfc
from mtfc.compiler.ir.types import Layout, Mesh, Rules
from mtfc.compiler.passes.pipelines import lower
from mtfc.driver.jax_functions.comparison import verified
from mtfc.driver.jax_functions.imported_program import ImportedProgram
from mtfc.driver.jax_functions.plan import Plan
from tests.jax_functions.arguments import data, program_arguments, rounding_spread, run


class Keras:
    """The package, imported by the first test that needs it: it takes seconds, and every process of the tests reads this file."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest asks every object of a file
            raise AttributeError(name)
        os.environ["KERAS_BACKEND"] = "jax"
        return getattr(import_module("keras"), name)


keras: Any = Keras()
IMAGES = np.random.default_rng(0).standard_normal((16, 8, 8, 2)).astype("float32")
LABELS = np.arange(16, dtype="int32") % 4


def network() -> Any:
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.layers.Input((8, 8, 2)),
            keras.layers.Conv2D(8, 3, strides=2, padding="same"),
            keras.layers.BatchNormalization(),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(4),
        ]
    )


def imported(model: Any, **options: Any) -> ImportedProgram:
    """Import the gradients of a model's loss."""

    def loss(variables: Any, others: Any, images: Any, labels: Any) -> Any:
        logits, others = model.stateless_call(variables, others, images, training=True)
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, logits), others

    variables = model.trainable_variables, model.non_trainable_variables
    return mtfc.from_jax(jax.value_and_grad(loss, has_aux=True), *variables, IMAGES, LABELS, **options)


@pytest.fixture
def alone() -> Iterator[None]:
    """Paths of variables as in a new process, and no distribution afterwards."""
    keras.utils.clear_session()
    yield
    keras.distribution.set_distribution(None)
    keras.utils.clear_session()


def planned(model: Any) -> Plan:
    program = imported(model, names={"**/dense/kernel": "inner hidden"})
    return program.plan({"batch": "data", "hidden": "model"}, {"data": 4, "model": 2})


def fitted(model: Any) -> list[float]:
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(IMAGES, LABELS, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return list(history.history["loss"])


@pytest.mark.usefixtures("alone")
def test_variables_are_known_by_their_own_paths() -> None:
    program = imported(network())
    names = [leaf.name for leaf in program.imported.inputs]
    assert names[:2] == ["sequential_conv2d_kernel", "sequential_conv2d_bias"]
    assert {leaf.role for leaf in program.imported.inputs if "moving" in leaf.name} == {"state"}
    assert program.dims["batch"] == 16
    with pytest.raises(mtfc.CompileError, match="variables/sequential_1/dense_2/kernel"):
        imported(network(), names={"**/dence/kernel": "inner hidden"})


@pytest.mark.usefixtures("alone")
def test_fit_under_a_plan_learns_what_one_device_learns() -> None:
    model = network()
    plan = planned(model)
    result = verified(plan, (), {}, 0, exact=False)
    assert result.ok, str(result)
    expected = fitted(model)
    distribution = plan.keras_distribution()
    keras.utils.clear_session()
    keras.distribution.set_distribution(distribution)
    model = network()
    found = fitted(model)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    kernel = model.layers[4].kernel
    assert kernel.path == "sequential/dense/kernel"
    assert kernel.value.sharding.spec == jax.sharding.PartitionSpec(None, "model")
    momentum = next(v for v in model.optimizer.variables if "dense_kernel" in v.path)
    assert momentum.value.sharding.spec == jax.sharding.PartitionSpec(None, "model")


@pytest.mark.usefixtures("alone")
def test_a_variable_that_the_plan_lacks_is_refused() -> None:
    """Keras would replicate it in silence."""
    distribution = planned(network()).keras_distribution()
    keras.distribution.set_distribution(distribution)
    with pytest.raises(ValueError, match="no variable sequential_1/conv2d_1/kernel"):
        network()


@pytest.mark.usefixtures("alone")
def test_plans_that_keras_lacks_are_refused() -> None:
    program = imported(network())
    with pytest.raises(ValueError, match="first axis"):
        program.plan({"batch": ["x", "y"]}, {"x": 2, "y": 2}).keras_distribution()
    other = mtfc.from_jax(lambda w, x: x @ w, np.ones((4, 4), "f"), np.ones((8, 4), "f"))
    with pytest.raises(ValueError, match="trainable_variables"):
        other.plan({"batch": "x"}, {"x": 2}).keras_distribution()


@pytest.mark.usefixtures("alone")
def test_variables_are_arguments_of_plans() -> None:
    """A whole step of AdamW updates them, and its plan takes the variables themselves, but for `jax.jit`."""
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8)])
    optimizer = keras.optimizers.AdamW(1e-3)
    optimizer.build(model.trainable_variables)

    def step(variables: Any, state: Any, x: Any) -> Any:
        def loss(variables: Any) -> Any:
            return (model.stateless_call(variables, [], x)[0] ** 2).mean()

        return optimizer.stateless_apply(state, jax.grad(loss)(variables), variables)

    args = model.trainable_variables, optimizer.variables, np.ones((8, 4), "float32")
    program = mtfc.from_jax(step, *args)
    assert {leaf.name: leaf.role for leaf in program.imported.inputs}["adam_w_iteration"] == "state"
    plan = program.plan({"batch": "data"}, {"data": 4})
    assert verified(plan, args, {}, 0, exact=False).ok
    expected = jax.jit(step)(*([v.value for v in each] for each in args[:2]), args[2])
    for road in (plan.step, plan.apply()):
        found = road(*args)
        np.testing.assert_allclose(found[0][0], expected[0][0], rtol=1e-5)


@pytest.mark.usefixtures("alone")
def test_a_whole_batch_is_not_split() -> None:
    program = imported(network(), names={"**/dense/kernel": "inner hidden"})
    distribution = program.plan({"hidden": "model"}, {"model": 2}).keras_distribution()
    assert distribution.batch_dim_name == "unsplit"
    assert distribution.device_mesh.shape == (1, 2)


@pytest.mark.skipif(os.environ.get("EVERY_LAYOUT") != "1", reason="takes minutes: make examples")
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", ["ResNet50", "ConvNeXtTiny", "EfficientNetB0", "DenseNet121"])
def test_gradients_of_large_models(name: str) -> None:
    """The modules of a split batch compute Keras' gradients, to rounding of the largest."""
    model = getattr(keras.applications, name)(weights=None, input_shape=(64, 64, 3), classes=10)
    loss_of = keras.losses.SparseCategoricalCrossentropy()

    def loss(variables: Any, others: Any, images: Any, labels: Any) -> Any:
        found, others = model.stateless_call(variables, others, images, training=True)
        return loss_of(labels, found), others

    function = jax.value_and_grad(loss, has_aux=True)
    images = np.random.default_rng(0).standard_normal((4, 64, 64, 3)).astype("float32")
    variables = model.trainable_variables, model.non_trainable_variables
    program = mtfc.from_jax(function, *variables, images, np.arange(4, dtype="int32"))
    assert program.coverage().share.bytes < 0.02
    args = (*([v.value for v in each] for each in variables), images, np.arange(4, dtype="int32"))
    expected = [data(x).astype(np.float64) for x in jax.tree.leaves(jax.jit(function)(*args))]
    spread = rounding_spread(jax.jit(function), args, expected)
    lowered = lower(program.program, Mesh("mesh", (("x", 2),)), Layout("split", Rules((("batch", ("x",)),))))
    largest = max(np.abs(x).max() for x in expected)
    for backend in ("numpy", "jax"):
        found = run(program, lowered, program_arguments(program, args), backend)
        for left, right, moves in zip(found, expected, spread, strict=True):
            assert (np.abs(left - right) <= 10 * moves + 1e-3 * largest).all(), backend
