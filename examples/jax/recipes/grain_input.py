"""grain: a pipeline of NumPy arrays feeds the planned step; each batch is placed as the plan says."""

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax

import mtfc

jax.config.update("jax_num_cpu_devices", 8)  # virtual devices; leave it out on a real machine

OPTIMIZER = optax.adam(1e-2)


def step(params, state, batch):
    def loss(params):
        hidden = jax.nn.relu(batch["x"] @ params["fc1"])
        return jnp.mean((hidden @ params["fc2"] - batch["y"]) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    updates, state = OPTIMIZER.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value


def example(seed):
    x = np.random.default_rng(seed).standard_normal(16).astype("float32")
    return {"x": x, "y": np.tanh(x[:8])}


def batches():
    return iter(grain.MapDataset.range(640).shuffle(seed=0).map(example).batch(32).to_iter_dataset())


def init():
    first, second = jax.random.split(jax.random.key(0))
    params = {
        "fc1": jax.random.normal(first, (16, 32)) / 4,
        "fc2": jax.random.normal(second, (32, 8)) / 6,
    }
    return params, OPTIMIZER.init(params)


def main():
    params, state = init()
    program = mtfc.from_jax(step, params, state, next(batches()))
    plan = program.plan({"batch": "data", "hidden": "model"}, {"data": 4, "model": 2})
    planned = plan.jit(step)
    for batch in batches():
        params, state, loss = planned(params, state, batch)
    print(f"loss {loss:.2f}")
    return float(loss)


def alone():
    """Return the loss of the same steps on one device."""
    args, run = init(), jax.jit(step)
    for batch in batches():
        *args, loss = run(*args, batch)
    return float(loss)


if __name__ == "__main__":
    main()
