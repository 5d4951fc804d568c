"""Explicit sharding: a function whose arrays have shardings in their types is planned, and results have the plan's ones."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import mtfc

jax.config.update("jax_num_cpu_devices", 8)  # virtual devices; leave it out on a real machine


def step(params, x, y):
    def loss(params):
        hidden = jax.nn.relu(jnp.dot(x, params["fc1"], out_sharding=P("data", "model")))
        return jnp.mean((jnp.dot(hidden, params["fc2"], out_sharding=P("data", None)) - y) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients), value


def batch(seed):
    x = np.random.default_rng(seed).standard_normal((32, 16)).astype("float32")
    return x, np.tanh(x[:, :8])


def init():
    first, second = jax.random.split(jax.random.key(0))
    return {"fc1": jax.random.normal(first, (16, 32)) / 4, "fc2": jax.random.normal(second, (32, 8)) / 6}


def main():
    params = init()
    with jax.sharding.set_mesh(jax.make_mesh((4, 2), ("data", "model"), (AxisType.Explicit,) * 2)):
        program = mtfc.from_jax(step, params, *batch(0))
    plan = program.plan({"batch": "data", "hidden": "model"}, {"data": 2, "model": 4}).with_explicit_axes()
    planned = plan.jit(step)
    for seed in range(20):
        params, loss = planned(params, *batch(seed))
    print(f"loss {loss:.2f}; the type of fc1 is {jax.typeof(params['fc1'])}")
    return float(loss)


def alone():
    """Return the loss of the same steps as the function is written."""
    params = init()
    mesh = jax.make_mesh((4, 2), ("data", "model"), (AxisType.Explicit,) * 2)
    with jax.sharding.set_mesh(mesh):
        run, specs = jax.jit(step), (P(None, "model"), P("model", None))
        params = {key: jax.device_put(params[key], spec) for key, spec in zip(params, specs, strict=True)}
        for seed in range(20):
            params, loss = run(params, *jax.device_put(batch(seed), P("data", None)))
    return float(loss)


if __name__ == "__main__":
    main()
