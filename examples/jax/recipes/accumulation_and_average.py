"""optax: gradients of several steps are accumulated, and an average of the parameters is kept, all under one plan."""

import jax
import jax.numpy as jnp
import optax

import mtfc

jax.config.update("jax_num_cpu_devices", 8)  # virtual devices; leave it out on a real machine

OPTIMIZER = optax.MultiSteps(optax.adamw(1e-2), every_k_schedule=4)
AVERAGE = optax.ema(0.9)


def step(params, state, average, x, y):
    def loss(params):
        return jnp.mean((jax.nn.relu(x @ params["fc1"]) @ params["fc2"] - y) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    updates, state = OPTIMIZER.update(gradients, state, params)
    params = optax.apply_updates(params, updates)
    _, average = AVERAGE.update(params, average)
    return params, state, average, value


def batch(seed):
    x = jax.random.normal(jax.random.key(seed), (32, 16))
    return x, jnp.tanh(x[:, :8])


def init():
    first, second = jax.random.split(jax.random.key(0))
    params = {
        "fc1": jax.random.normal(first, (16, 32)) / 4,
        "fc2": jax.random.normal(second, (32, 8)) / 6,
    }
    return params, OPTIMIZER.init(params), AVERAGE.init(params)


def main():
    args = init()
    program = mtfc.from_jax(step, *args, *batch(0))
    layout = {
        "batch": "data",
        "hidden": "model",
        "optimizer": {"*": "data"},
    }  # ZeRO-1: the state is split further
    plan = program.plan(layout, {"data": 4, "model": 2})
    planned = plan.jit(step)
    for seed in range(20):
        *args, loss = planned(*args, *batch(seed))
    print(f"loss {loss:.2f}; averages are split as {args[2].ema['fc1'].sharding.spec}")
    return float(loss)


def alone():
    """Return the loss of the same steps on one device."""
    args, run = init(), jax.jit(step)
    for seed in range(20):
        *args, loss = run(*args, *batch(seed))
    return float(loss)


if __name__ == "__main__":
    main()
