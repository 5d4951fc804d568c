"""A decoder in plain JAX with an optimizer of optax, and a plan that splits its training step over eight devices."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import mtfc

jax.config.update("jax_num_cpu_devices", 8)  # virtual devices; leave it out on a real machine

EMBED, HEADS, VOCAB = 64, 8, 256


def layer(x, p):
    batch, length, _ = x.shape
    h = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
    q, k, v = jnp.moveaxis((h @ p["qkv"]).reshape(batch, length, 3, HEADS, -1), 2, 0)
    scores = jnp.einsum("blhd,bmhd->bhlm", q, k) / q.shape[-1] ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e30)
    mixed = jnp.einsum("bhlm,bmhd->blhd", jax.nn.softmax(scores), v)
    x = x + mixed.reshape(batch, length, -1) @ p["out"]
    return x + jax.nn.gelu(h @ p["up"]) @ p["down"]


def loss(params, ids):
    x = params["embedding"][ids[:, :-1]]
    for p in params["layers"]:
        x = layer(x, p)
    logits = x @ params["embedding"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:]).mean()


optimizer = optax.adamw(1e-2)


def step(params, state, ids):
    value, gradients = jax.value_and_grad(loss)(params, ids)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value


def init(seed):
    random = np.random.default_rng(seed)
    shapes = {
        "qkv": (EMBED, 3 * EMBED),
        "out": (EMBED, EMBED),
        "up": (EMBED, 4 * EMBED),
        "down": (4 * EMBED, EMBED),
    }

    def draw(*shape):
        return jnp.asarray(random.standard_normal(shape) * 0.05, jnp.float32)

    layers = [{name: draw(*shape) for name, shape in shapes.items()} for _ in range(2)]
    return {"embedding": draw(VOCAB, EMBED), "layers": layers}


def main():
    params = init(0)
    state, ids = optimizer.init(params), jnp.tile(jnp.arange(33), (16, 1))

    names = {"ids": "batch length", "**/up": "embed hidden", "**/qkv": "embed (three heads head_dim)"}
    program = mtfc.from_jax(step, params, state, ids, names=names)  # computes nothing
    plan = program.plan({"batch": "data", "hidden": "model", "heads": "model"}, {"data": 4, "model": 2})
    print(plan)
    print(plan.explain().split("\n\n")[1].splitlines()[0], "...")
    print(program.verify(plan, params, state, ids))

    planned = plan.jit(step)
    for _ in range(20):
        params, state, value = planned(params, state, ids)
    print(f"loss {value:.3f}; up is split as {params['layers'][0]['up'].sharding.spec}")


if __name__ == "__main__":
    main()
