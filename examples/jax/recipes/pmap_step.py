"""Older code: a step for `jax.pmap` becomes a step of the whole batch by `jax.vmap` with the same axis name."""

import jax
import jax.numpy as jnp
import optax

import mtfc

jax.config.update("jax_num_cpu_devices", 8)  # virtual devices; leave it out on a real machine

OPTIMIZER = optax.adam(1e-2)


def step(params, state, x, y):
    """The step of one device, as it was written for `jax.pmap(step, axis_name="devices")`."""

    def loss(params):
        return jnp.mean((jax.nn.relu(x @ params["fc1"]) @ params["fc2"] - y) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    gradients, value = jax.lax.pmean((gradients, value), "devices")
    updates, state = OPTIMIZER.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value


whole = jax.vmap(step, in_axes=(None, None, 0, 0), out_axes=None, axis_name="devices")


def batch(seed):
    """Return a batch with an axis of devices in front, as `jax.pmap` takes it."""
    x = jax.random.normal(jax.random.key(seed), (8, 4, 16))
    return x, jnp.tanh(x[:, :, :8])


def init():
    first, second = jax.random.split(jax.random.key(0))
    params = {
        "fc1": jax.random.normal(first, (16, 32)) / 4,
        "fc2": jax.random.normal(second, (32, 8)) / 6,
    }
    return params, OPTIMIZER.init(params)


def main():
    params, state = init()
    program = mtfc.from_jax(whole, params, state, *batch(0), names={"x": "devices _ _"})
    plan = program.plan({"devices": "data"}, {"data": 8})
    planned = plan.jit(whole)
    for seed in range(20):
        params, state, loss = planned(params, state, *batch(seed))
    print(f"loss {loss:.2f}; x is split as {plan.shardings.x.spec}")
    return float(loss)


def alone():
    """Return the loss of the same steps by `jax.pmap`."""
    args = jax.tree.map(lambda x: jnp.stack([x] * 8), init())
    run = jax.pmap(step, axis_name="devices")
    for seed in range(20):
        *args, loss = run(*args, *batch(seed))
    return float(loss[0])


if __name__ == "__main__":
    main()
