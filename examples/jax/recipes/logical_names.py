"""A trainer with logical names, as MaxText's and other public ones: its names of axes and its rules give the plan.

The parameters are boxes of Flax with a logical name for each axis, and constraints on values have logical names, too.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import mtfc

jax.config.update("jax_num_cpu_devices", 8)  # virtual devices; leave it out on a real machine

RULES = (("activation_batch", "data"), ("embed", None), ("mlp", "tensor"), ("vocab", "tensor"))
OPTIMIZER = optax.adamw(1e-2)


def named(*names):
    return nn.with_logical_partitioning(nn.initializers.normal(0.1), names)


class Decoder(nn.Module):
    @nn.compact
    def __call__(self, ids):
        embed = nn.Embed(64, 16, embedding_init=named("vocab", "embed"))
        x = nn.with_logical_constraint(embed(ids), ("activation_batch", "activation_length", "embed"))
        h = nn.relu(nn.Dense(64, kernel_init=named("embed", "mlp"), use_bias=False, name="wi")(x))
        x = x + nn.Dense(16, kernel_init=named("mlp", "embed"), use_bias=False, name="wo")(h)
        return embed.attend(x)


MODEL = Decoder()


def step(params, state, batch):
    def loss(params):
        with nn.logical_axis_rules(RULES):
            logits = MODEL.apply(params, batch["inputs"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]).mean()

    value, gradients = jax.value_and_grad(loss)(params)
    updates, state = OPTIMIZER.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value


def batch(seed):
    ids = (jnp.arange(17) + 5 * jnp.arange(16)[:, None] + seed) % 64
    return {"inputs": ids[:, :-1], "targets": ids[:, 1:]}


def init():
    params = MODEL.init(jax.random.key(0), batch(0)["inputs"])
    return params, OPTIMIZER.init(params)


def main():
    params, state = init()
    program = mtfc.from_jax(step, params, state, batch(0))
    layout = {"batch": "data"} | {name: axis for name, axis in RULES if axis and name in program.dims}
    plan = program.plan(layout, {"data": 4, "tensor": 2})
    planned = plan.jit(step)
    for seed in range(20):
        params, state, loss = planned(params, state, batch(seed))
    print(f"{plan}; loss {loss:.2f}")
    return float(loss)


def alone():
    """Return the loss of the same steps on one device."""
    args, run = init(), jax.jit(step)
    for seed in range(20):
        *args, loss = run(*args, batch(seed))
    return float(loss)


if __name__ == "__main__":
    main()
