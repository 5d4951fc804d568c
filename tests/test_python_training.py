"""Training from Python: the state as a pytree, and the functions of a compiled model under JAX's transformations."""

import doctest
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

import mtfc
import mtfc.api

MODEL = """
dim batch = 8
dim io = 4
dim hidden = 6
mesh grid = [rows: 2, cols: 2]
layout rows on grid = { batch: rows }
layout both on grid = { batch: rows, hidden: cols }
layout stored on grid = { batch: (rows, cols), params: { hidden: rows } }
model small(x: [batch, io], y: [batch, io]) {
  param w: [io, hidden] = normal(stddev = 0.5)
  param v: [hidden, io] = normal(stddev = 0.5)
  out = einsum(tanh(einsum(x, w -> [batch, hidden])), v -> [batch, io])
  loss = mean(square(out - y))
  return out, loss
}
train small {
  minimize loss
  optimizer = adam(learning_rate = 0.05)
}
"""

LAYOUTS = ("rows", "both", "stored")


def batch(seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {name: random.standard_normal((8, 4), np.float32) for name in ("x", "y")}


@pytest.fixture(scope="module")
def both() -> mtfc.api.Compiled:
    return mtfc.compile_text(MODEL, layout="both")


def test_the_examples_in_the_api_run() -> None:
    assert doctest.testmod(mtfc.api).failed == 0


def test_losses_are_the_same_under_every_layout() -> None:
    curves = []
    for layout in LAYOUTS:
        p = mtfc.compile_text(MODEL, layout=layout)
        state, losses = p.init(seed=3), []
        for i in range(5):
            state, metrics = p.train_step(state, batch(i))
            losses.append(float(metrics["loss"]))
        assert int(state.step) == 5
        curves.append(losses)
    np.testing.assert_allclose(curves[1:], [curves[0]] * 2, rtol=1e-5)


def test_a_state_is_a_pytree_with_shardings(both: mtfc.api.Compiled) -> None:
    import jax

    state = both.init()
    assert all(isinstance(x.sharding, jax.sharding.NamedSharding) for x in jax.tree.leaves(state))
    assert state.params["w"].sharding.spec == jax.sharding.PartitionSpec(None, "cols")
    doubled = jax.tree.map(lambda x: 2 * x, state)
    np.testing.assert_array_equal(doubled.params["w"], 2 * np.asarray(state.params["w"]))
    for made, abstract in zip(jax.tree.leaves(state), jax.tree.leaves(both.abstract_state), strict=True):
        assert (made.shape, made.dtype, made.sharding) == (abstract.shape, abstract.dtype, abstract.sharding)


def test_a_step_works_under_jit_and_donates_the_state(both: mtfc.api.Compiled) -> None:
    import jax

    step = jax.jit(both.train_step, donate_argnums=0)
    plain, jitted = both.init(), both.init()
    for i in range(3):
        given = jitted
        jitted, inside = step(jitted, both.place(batch(i), stacked=True))
        plain, outside = both.train_step(plain, batch(i))
        np.testing.assert_allclose(inside["loss"], outside["loss"], rtol=1e-6)
        assert given.params["w"].is_deleted()
    assert int(jitted.step) == 3


def test_several_steps_fit_in_one_scan(both: mtfc.api.Compiled) -> None:
    import jax

    batches = [batch(i) for i in range(4)]
    stacked = {name: np.stack([each[name] for each in batches]) for name in ("x", "y")}
    state, metrics = jax.jit(lambda state, xs: jax.lax.scan(both.train_step, state, xs))(both.init(), stacked)
    alone, losses = both.init(), []
    for each in batches:
        alone, result = both.train_step(alone, each)
        losses.append(float(result["loss"]))
    assert int(state.step) == 4
    np.testing.assert_allclose(metrics["loss"], losses, rtol=1e-6)


def test_gradients_of_forward_are_those_of_the_step(both: mtfc.api.Compiled) -> None:
    import jax

    params = both.init().params
    loss, gradients = both.value_and_grad(params, batch())
    wanted, by_jax = jax.value_and_grad(lambda q: both.forward(q, batch())["loss"])(params)
    np.testing.assert_allclose(loss, wanted, rtol=1e-6)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, by_jax[name], rtol=1e-4, atol=1e-6)
        assert gradient.sharding == params[name].sharding


@pytest.mark.parametrize("layout", LAYOUTS)
def test_forward_maps_over_parameters_and_over_batches(layout: str) -> None:
    import jax

    p = mtfc.compile_text(MODEL, layout=layout)
    members = [p.init(seed).params for seed in range(3)]
    stacked = jax.tree.map(lambda *xs: np.stack(xs), *members)
    ensemble = jax.vmap(lambda q: p.forward(q, batch()))(stacked)
    several = {name: np.stack([batch(i)[name] for i in range(3)]) for name in ("x", "y")}
    mapped = jax.vmap(lambda b: p.forward(members[0], b))(several)
    for i in range(3):
        np.testing.assert_allclose(ensemble["out"][i], p.forward(members[i], batch())["out"], rtol=1e-5)
        np.testing.assert_allclose(mapped["out"][i], p.forward(members[0], batch(i))["out"], rtol=1e-5)


def test_a_step_is_mapped_but_not_differentiated(both: mtfc.api.Compiled) -> None:
    import jax

    states = [both.init(seed) for seed in range(2)]
    stacked = jax.tree.map(lambda *xs: np.stack(xs), *states)
    with pytest.raises(ValueError, match="differentiate `forward`"):
        jax.grad(lambda params: both.value_and_grad(params, batch())[0])(states[0].params)
    with pytest.raises(ValueError, match="differentiate `forward`"):
        jax.grad(lambda params: both.train_step(attrs.evolve(states[0], params=params), batch())[1]["loss"])(
            states[0].params
        )
    after, metrics = jax.vmap(lambda state: both.train_step(state, batch()))(stacked)
    for i, state in enumerate(states):
        alone, result = both.train_step(state, batch())
        np.testing.assert_allclose(metrics["loss"][i], result["loss"], rtol=1e-6)
        np.testing.assert_allclose(after.params["w"][i], alone.params["w"], rtol=1e-5)


def test_optax_updates_the_parameters(both: mtfc.api.Compiled) -> None:
    import jax
    import optax

    tx = optax.adam(0.05)
    params = both.init().params
    state, own = tx.init(params), both.init()
    for i in range(5):
        loss, gradients = both.value_and_grad(params, batch(i), i)
        updates, state = tx.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        own, metrics = both.train_step(own, batch(i))
        np.testing.assert_allclose(loss, metrics["loss"], rtol=1e-5)
    assert jax.tree.leaves(state)[1].sharding is not None


def test_orbax_keeps_a_state_for_another_layout(tmp_path: Path, both: mtfc.api.Compiled) -> None:
    import jax
    import orbax.checkpoint as ocp

    state, _ = both.train_step(both.init(), batch())
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        other = mtfc.compile_text(MODEL, layout="stored")
        restored = checkpointer.restore(tmp_path / "state", other.abstract_state)
    jax.tree.map(np.testing.assert_array_equal, restored, state)
    assert restored.params["w"].sharding.spec == jax.sharding.PartitionSpec(None, "rows")
    _, metrics = other.train_step(restored, batch(1))
    _, wanted = both.train_step(state, batch(1))
    np.testing.assert_allclose(metrics["loss"], wanted["loss"], rtol=1e-5)


def test_micro_batches_are_stacked() -> None:
    p = mtfc.compile_text(MODEL, layout="both", set={"accumulate": 2})
    pair = {name: np.stack([batch(0)[name], batch(1)[name]]) for name in ("x", "y")}
    _, metrics = p.train_step(p.init(), pair)
    losses = [p.value_and_grad(p.init().params, batch(i))[0] for i in range(2)]
    np.testing.assert_allclose(metrics["loss"], np.mean(losses), rtol=1e-6)
    with pytest.raises(ValueError, match="stack 2 of these along a new first dimension"):
        p.train_step(p.init(), batch())


def test_wrong_batches_are_refused(both: mtfc.api.Compiled) -> None:
    state = both.init()
    with pytest.raises(ValueError, match=r'"x" is float32\[batch: 8, io: 4\].*--dim batch=4'):
        both.train_step(state, {name: x[:4] for name, x in batch().items()})
    with pytest.raises(ValueError, match='lacks "y"'):
        both.forward(state.params, {"x": batch()["x"]})
    untrained = mtfc.compile_text(MODEL.split("train small")[0], layout="both")
    with pytest.raises(ValueError, match="needs a `train small` block"):
        untrained.train_step(untrained.init(), batch())


def test_wrong_containers_are_refused(both: mtfc.api.Compiled) -> None:
    state, x = both.init(), batch()["x"]
    for wrong in ((x, x), [x, x], x, None):
        for use in (both.place, partial(both.forward, state.params), partial(both.train_step, state)):
            with pytest.raises(ValueError, match='a batch is a dict of arrays by input, "x", "y", and not'):
                use(wrong)
    for value in (x.tolist(), tuple(x), {"a": x}, None, "x"):
        with pytest.raises(ValueError, match=r'batch\["x"\] is an array, and not'):
            both.forward(state.params, {**batch(), "x": value})
    for wrong_state in (state.params, (state, {}), None):
        with pytest.raises(ValueError, match="the state is a TrainState, as `init` returns it, and not"):
            both.train_step(wrong_state, batch())
    with pytest.raises(ValueError, match="the batch is the second argument"):
        both.train_step(batch(), state)
    for step in (np.float32(1), np.zeros(2, np.int32)):
        with pytest.raises(ValueError, match="the state's step is one whole number, and not"):
            both.train_step(attrs.evolve(state, step=step), batch())
    for take in (both.forward, both.value_and_grad):
        with pytest.raises(ValueError, match="and not the whole state"):
            take(state, batch())


def test_parameters_are_replaced_in_a_state(both: mtfc.api.Compiled) -> None:
    """A state with the parameters of another one trains as that one does; donated parameters are refused everywhere."""
    other = both.init(1)
    held = {name: np.asarray(x) for name, x in other.params.items()}
    replaced = attrs.evolve(both.init(0), params=held)
    steps = [both.train_step(state, batch()) for state in (replaced, other)]
    assert float(steps[0][1]["loss"]) == float(steps[1][1]["loss"])
    for use in (both.forward, both.value_and_grad):
        with pytest.raises(ValueError, match="which donates them"):
            use(other.params, batch())


def test_an_array_may_be_in_a_state_twice(both: mtfc.api.Compiled) -> None:
    """JAX would end the process: a step donates each array once, also if another one shares its buffers."""
    import jax

    state = both.init()
    zeros = {name: np.zeros_like(x) for name, x in state.optimizer.items()}
    assert {"w.m", "w.v"} < zeros.keys()
    twice = {**zeros, **dict.fromkeys(("w.m", "w.v"), state.optimizer["w.m"])}
    tied, metrics = both.train_step(attrs.evolve(state, optimizer=twice), batch())
    plain, expected = both.train_step(both.init(), batch())
    assert float(metrics["loss"]) == float(expected["loss"])
    np.testing.assert_array_equal(tied.params["w"], plain.params["w"])
    state = both.init()
    w = state.params["w"]
    shards = [each.data for each in w.addressable_shards]
    same = jax.make_array_from_single_device_arrays(w.shape, w.sharding, shards)
    tied, _ = both.train_step(attrs.evolve(state, optimizer={**state.optimizer, "w.m": same}), batch())
    moment = {**both.init().optimizer, "w.m": np.asarray(both.init().params["w"])}
    plain, _ = both.train_step(attrs.evolve(both.init(), optimizer=moment), batch())
    np.testing.assert_array_equal(tied.params["w"], plain.params["w"])


def test_parameters_of_other_devices_are_moved(both: mtfc.api.Compiled) -> None:
    import jax

    state, expected = both.init(), both.forward(both.init().params, batch())["loss"]
    for device in (jax.devices()[0], jax.devices()[-1]):
        alone = {name: jax.device_put(np.asarray(x), device) for name, x in state.params.items()}
        np.testing.assert_allclose(both.forward(alone, batch())["loss"], expected, rtol=1e-6)
        both.train_step(attrs.evolve(both.init(), params=alone), batch())


def test_a_module_refuses_donated_arrays(both: mtfc.api.Compiled) -> None:
    module = both.load("jax")
    params, state, inputs = module.init(), module.init_state(), module.shard(batch(), module.INPUTS)
    module.train_step(params, state, inputs, 0)
    for use in (module.forward, module.value_and_grad, partial(module.train_step, params, state)):
        with pytest.raises(ValueError, match="which donates them"):
            use(*((inputs, 0) if isinstance(use, partial) else (params, inputs)))


def test_batches_of_several_processes_are_checked_like_whole_ones(
    both: mtfc.api.Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jax

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    placed = both.place({name: x.astype("float64") for name, x in batch().items()})
    np.testing.assert_array_equal(placed["x"], batch()["x"])
    assert both.place(placed)["x"] is placed["x"]
    with pytest.raises(ValueError, match=r'convert it with \.astype\("float32"\)'):
        both.place({name: x.astype("int32") for name, x in batch().items()})
    with pytest.raises(ValueError, match="give the whole array"):
        both.place({name: x[:3] for name, x in batch().items()})
