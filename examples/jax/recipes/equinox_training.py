"""Equinox: the arrays of a module are the model, and the rest of the module is bound to the step."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import mtfc

jax.config.update("jax_num_cpu_devices", 8)  # virtual devices; leave it out on a real machine

OPTIMIZER = optax.adam(1e-2)
PARAMS, REST = eqx.partition(eqx.nn.MLP(16, 8, 32, 2, key=jax.random.key(0)), eqx.is_array)


def step(params, state, x, y):
    def loss(params):
        return jnp.mean((jax.vmap(eqx.combine(params, REST))(x) - y) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    updates, state = OPTIMIZER.update(gradients, state, params)
    return eqx.apply_updates(params, updates), state, value


def batch(seed):
    x = jax.random.normal(jax.random.key(seed), (32, 16))
    return x, jnp.tanh(x[:, :8])


def main():
    params, state = PARAMS, OPTIMIZER.init(PARAMS)
    program = mtfc.from_jax(step, params, state, *batch(0))
    plan = program.plan({"batch": "data", "layers_0": "model"}, {"data": 4, "model": 2})
    planned = plan.jit(step)
    for seed in range(20):
        params, state, loss = planned(params, state, *batch(seed))
    print(f"loss {loss:.2f}; the first layer is split as {params.layers[0].weight.sharding.spec}")
    return float(loss)


def alone():
    """Return the loss of the same steps on one device."""
    params, state, run = PARAMS, OPTIMIZER.init(PARAMS), jax.jit(step)
    for seed in range(20):
        params, state, loss = run(params, state, *batch(seed))
    return float(loss)


if __name__ == "__main__":
    main()
