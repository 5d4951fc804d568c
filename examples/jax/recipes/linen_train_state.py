"""Flax linen: a `TrainState`, whose step is a Python number, is planned and trained as it is."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

import mtfc

jax.config.update("jax_num_cpu_devices", 8)  # virtual devices; leave it out on a real machine


class Network(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(10, name="fc2")(nn.relu(nn.Dense(64, name="fc1")(x)))


def init():
    model = Network()
    params = model.init(jax.random.key(0), jnp.ones((1, 16)))["params"]
    return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adamw(1e-2))


def step(state, x, y):
    def loss(params):
        logits = state.apply_fn({"params": params}, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    value, gradients = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=gradients), value


def batch(seed):
    x = jax.random.normal(jax.random.key(seed), (32, 16))
    return x, jnp.argmax(x[:, :10], 1)


def main():
    state = init()
    program = mtfc.from_jax(step, state, *batch(0))
    plan = program.plan({"batch": "data", "hidden": "model"}, {"data": 4, "model": 2})
    planned = plan.jit(step)
    for seed in range(20):
        state, loss = planned(state, *batch(seed))
    print(
        f"step {state.step}, loss {loss:.2f}; fc1 is split as {state.params['fc1']['kernel'].sharding.spec}"
    )
    return float(loss)


def alone():
    """Return the loss of the same steps on one device."""
    state, run = init(), jax.jit(step)
    for seed in range(20):
        state, loss = run(state, *batch(seed))
    return float(loss)


if __name__ == "__main__":
    main()
