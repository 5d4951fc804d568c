"""`value_and_grad` of emitted modules: the gradients of a training step, for another optimizer than the file's."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

from mtfc.backends.interpreter import interpret
from tests.harness import FINE, SINGLE, differentiated, exact_data, jax_module, load, numpy_module, stages

SOURCE = """
dim batch = 8
dim io = 8
dim hidden = 4
dim layers = 2
mesh grid = [rows: 2, cols: 2]
layout data on grid = { batch: rows }
layout hybrid on grid = { batch: rows, hidden: cols }
layout sharded on grid = { batch: (rows, cols), params: { io: (rows, cols) }, optimizer: { io: (rows, cols) } }

model m(x: f64[batch, io]) {
  param scale: f64[io] = ones()
  param unused: f64[hidden] = ones()
  h = x * scale
  repeat layers {
    param w: f64[io, hidden] = normal(stddev = 0.5)
    param v: f64[hidden, io] = normal(stddev = 0.5)
    h = h + einsum(tanh(einsum(h, w -> [batch, hidden])), v -> [batch, io])
  }
  loss = mean(square(h - 1.0))
  return loss
}

train m {
  minimize loss
  optimizer = sgd(learning_rate = 0.5)
  clip = 0.25
  accumulate = 3
}
"""
LAYOUTS = ("data", "hybrid", "sharded")


def module_of(source: str, layout: str, backend: str) -> Any:
    """Return the module as `mtfc compile` emits it."""
    found = load(source)
    chosen = next(each for each in found.layouts if each.name == layout)
    ((_, *_, (_, placed)),) = [stages(found.programs[0], chosen, "module")]
    return jax_module(placed) if backend == "jax" else numpy_module(placed)


def reference(source: str, arrays: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Return loss and gradients of the parameters, by the interpreter, undistributed."""
    whole = differentiated(load(source).programs[0], "gradients")
    found = interpret(whole.function("gradients"), whole, arrays)
    names = [parameter.name for parameter in whole.parameters]
    return float(found["loss"]), {name: found[f"d_{name}"] for name in names}


def data(seed: int) -> dict[str, Any]:
    whole = differentiated(load(SOURCE).programs[0], "gradients")
    return exact_data(whole.function("gradients"), seed)


def split(module: Any, arrays: dict[str, Any]) -> tuple[Any, Any]:
    params = module.shard({name: arrays[name] for name in module.PARAMETERS}, module.PARAMETERS)
    return params, module.shard({"x": arrays["x"]}, module.INPUTS)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_one_batch(layout: str, backend: str) -> None:
    module, arrays = module_of(SOURCE, layout, backend), data(0)
    params, inputs = split(module, arrays)
    loss, gradients = module.value_and_grad(params, inputs)
    value, expected = reference(SOURCE, arrays)
    assert float(np.ravel(loss)[0]) == pytest.approx(value)
    FINE.check(module.unshard(gradients, module.PARAMETERS), expected, layout)
    assert not np.any(expected["unused"])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_micro_batches_and_clipping_are_chosen_by_argument(layout: str, backend: str) -> None:
    module = module_of(SOURCE, layout, backend)
    batches = [{**data(0), "x": data(i)["x"]} for i in range(3)]
    params, _ = split(module, batches[0])
    inputs = module.shard({"x": np.stack([batch["x"] for batch in batches])}, module.BATCHES)
    several = [reference(SOURCE, batch) for batch in batches]
    mean = {name: np.mean([each[1][name] for each in several], axis=0) for name in params}
    norm = np.sqrt(sum(np.sum(np.square(x)) for x in mean.values()))
    assert norm > 0.25
    loss, gradients = module.value_and_grad(params, inputs, accumulate=True)
    assert float(np.ravel(loss)[0]) == pytest.approx(np.mean([each[0] for each in several]))
    FINE.check(module.unshard(gradients, module.PARAMETERS), mean, "accumulated")
    clipped = module.value_and_grad(params, inputs, accumulate=True, clip=True)[1]
    scaled = {name: x * 0.25 / norm for name, x in mean.items()}
    SINGLE.check(module.unshard(clipped, module.PARAMETERS), scaled, "clipped")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_are_placed_as_parameters_are(layout: str) -> None:
    module = module_of(SOURCE, layout, "jax")
    params, inputs = split(module, data(0))
    for options in ({}, {"clip": True}):
        gradients = module.value_and_grad(params, inputs, **options)[1]
        for name, x in params.items():
            assert gradients[name].sharding.is_equivalent_to(x.sharding, x.ndim), name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_optax_takes_the_place_of_the_optimizer(layout: str) -> None:
    """Gradient descent by optax on these gradients is the file's own training step."""
    module = module_of(SOURCE, layout, "jax")
    arrays = data(0)
    inputs = module.shard({"x": np.stack([data(i)["x"] for i in range(3)])}, module.BATCHES)
    ours, _ = split(module, arrays)
    theirs, _ = split(module, arrays)
    tx = optax.sgd(0.5)
    state = tx.init(theirs)
    for step in range(4):
        _, ours, _ = module.train_step(ours, {}, inputs, step)
        _, gradients = module.value_and_grad(theirs, inputs, step, accumulate=True, clip=True)
        changes, state = tx.update(gradients, state, theirs)
        theirs = optax.apply_updates(theirs, changes)
    FINE.check(
        {name: np.asarray(x) for name, x in theirs.items()}, module.unshard(ours, module.PARAMETERS), layout
    )


def test_options_are_there_where_the_file_asks_for_them() -> None:
    plain = SOURCE.replace("  clip = 0.25\n  accumulate = 3\n", "")
    module = module_of(plain, "hybrid", "numpy")
    params, inputs = split(module, data(0))
    module.value_and_grad(params, inputs)
    with pytest.raises(TypeError):
        module.value_and_grad(params, inputs, clip=True)


def test_draws_follow_the_step() -> None:
    source = SOURCE.replace(
        "  h = x * scale", "  h = x * scale * cast(random.bernoulli([batch, io], 0.5), f64)"
    )
    for backend in ("numpy", "jax"):
        module = module_of(source, "hybrid", backend)
        params, inputs = split(module, data(0))
        losses = [float(np.ravel(module.value_and_grad(params, inputs, step)[0])[0]) for step in (0, 0, 1)]
        assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("layout", ["hybrid", "tiled_3d"])
def test_the_example_trains_by_optax(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example reaches the same losses under each layout, with parameters that stay split."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    import optax_loop

    found, whole = (optax_loop.train(each, 20) for each in (layout, "replicated"))
    assert found["losses"][-1] < 0.8 * found["losses"][0]
    np.testing.assert_allclose(found["losses"], whole["losses"], atol=1e-4)
    assert found["averaged"] == pytest.approx(whole["averaged"], abs=1e-4)
    assert any(any(x.sharding.spec) for x in found["params"].values())
    assert all(isinstance(x, jax.Array) for x in found["params"].values())
