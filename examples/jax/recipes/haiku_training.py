"""Haiku: a transformed function with its state, and a step by our own program on packed arrays, which are donated."""

import haiku as hk
import jax
import jax.numpy as jnp
import optax

import mtfc

jax.config.update("jax_num_cpu_devices", 8)  # virtual devices; leave it out on a real machine

OPTIMIZER = optax.sgd(0.1, momentum=0.9)


@hk.without_apply_rng
@hk.transform_with_state
def model(x):
    x = hk.Linear(32, name="fc1")(x)
    x = hk.BatchNorm(True, True, 0.9)(x, is_training=True)
    return hk.Linear(8, name="fc2")(jax.nn.relu(x))


def step(params, statistics, state, x, y):
    def loss(params):
        outputs, new = model.apply(params, statistics, x)
        return jnp.mean((outputs - y) ** 2), new

    (value, statistics), gradients = jax.value_and_grad(loss, has_aux=True)(params)
    updates, state = OPTIMIZER.update(gradients, state, params)
    return optax.apply_updates(params, updates), statistics, state, value


def batch(seed):
    x = jax.random.normal(jax.random.key(seed), (32, 16))
    return x, jnp.tanh(x[:, :8])


def init():
    params, statistics = model.init(jax.random.key(0), batch(0)[0])
    return params, statistics, OPTIMIZER.init(params)


def main():
    args = *init(), *batch(0)
    program = mtfc.from_jax(step, *args)
    plan = program.plan({"batch": "data", "hidden": "model"}, {"data": 4, "model": 2})
    packed, run = plan.pack(*args), jax.jit(plan.packed_step, donate_argnums=0)
    for seed in range(20):
        inputs = plan.pack(*args[:3], *batch(seed))
        packed, outputs = run(packed | {"x": inputs["x"], "y": inputs["y"]})
    loss = plan.unpack(outputs)[-1]
    print(f"loss {loss:.2f} on {plan.mesh_text}")
    return float(loss)


def alone():
    """Return the loss of the same steps on one device."""
    args, run = init(), jax.jit(step)
    for seed in range(20):
        *args, loss = run(*args, *batch(seed))
    return float(loss)


if __name__ == "__main__":
    main()
