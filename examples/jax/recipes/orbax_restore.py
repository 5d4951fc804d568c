"""Orbax: a checkpoint that is written under one plan is restored under another one, each device reads its own part."""

import tempfile

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp

import mtfc

jax.config.update("jax_num_cpu_devices", 8)  # virtual devices; leave it out on a real machine

OPTIMIZER = optax.adam(1e-2)


def step(params, state, x, y):
    def loss(params):
        return jnp.mean((jax.nn.relu(x @ params["fc1"]) @ params["fc2"] - y) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    updates, state = OPTIMIZER.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value


def batch(seed):
    x = jax.random.normal(jax.random.key(seed), (32, 16))
    return x, jnp.tanh(x[:, :8])


def init():
    first, second = jax.random.split(jax.random.key(0))
    params = {
        "fc1": jax.random.normal(first, (16, 32)) / 4,
        "fc2": jax.random.normal(second, (32, 8)) / 6,
    }
    return params, OPTIMIZER.init(params)


def trained(plan, params, state, seeds):
    planned = plan.jit(step)
    for seed in seeds:
        params, state, loss = planned(params, state, *batch(seed))
    return params, state, loss


def main():
    program = mtfc.from_jax(step, *init(), *batch(0))
    first = program.plan({"batch": "data"}, {"data": 8})
    other = program.plan({"batch": "data", "hidden": "model"}, {"data": 2, "model": 4})
    with tempfile.TemporaryDirectory() as folder, ocp.StandardCheckpointer() as checkpointer:
        params, state, _ = trained(first, *init(), range(10))
        checkpointer.save(f"{folder}/step_10", (params, state))
        checkpointer.wait_until_finished()
        params, state = checkpointer.restore(f"{folder}/step_10", other.abstract_state[:2])
    params, state, loss = trained(other, params, state, range(10, 20))
    print(f"loss {loss:.2f}; fc1 is split as {params['fc1'].sharding.spec} on {other.mesh_text}")
    return float(loss)


def alone():
    """Return the loss of the same steps on one device."""
    args, run = init(), jax.jit(step)
    for seed in range(20):
        *args, loss = run(*args, *batch(seed))
    return float(loss)


if __name__ == "__main__":
    main()
