"""A GPT-2 of 124 million parameters in plain JAX, and its training step by AdamW of optax. Nothing here knows mtfc."""

import jax
import jax.numpy as jnp
import optax

LAYERS, EMBED, HEADS, VOCAB, LENGTH, BATCH = 12, 768, 12, 50304, 1024, 32


def norm(x, p):
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * p["scale"] + p["bias"]


def attention(x, p):
    batch, length, embed = x.shape
    qkv = x @ p["qkv"]["kernel"] + p["qkv"]["bias"]
    q, k, v = (a.reshape(batch, length, HEADS, -1) for a in jnp.split(qkv, 3, axis=-1))
    mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    return mixed.reshape(batch, length, embed) @ p["out"]["kernel"] + p["out"]["bias"]


def mlp(x, p):
    h = jax.nn.gelu(x @ p["up"]["kernel"] + p["up"]["bias"])
    return h @ p["down"]["kernel"] + p["down"]["bias"]


@jax.checkpoint
def block(x, p):
    x = x + attention(norm(x, p["norm1"]), p["attention"])
    return x + mlp(norm(x, p["norm2"]), p["mlp"]), None


def loss(params, tokens):
    x = params["tokens"][tokens[:, :-1]] + params["positions"]
    x, _ = jax.lax.scan(block, x, params["blocks"])
    logits = norm(x, params["norm"]) @ params["tokens"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


optimizer = optax.adamw(3e-4, weight_decay=0.1)


def step(params, state, tokens):
    value, gradients = jax.value_and_grad(loss)(params, tokens)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value


def init(key):
    keys = iter(jax.random.split(key, 6))

    def weights(*shape):
        return 0.02 * jax.random.normal(next(keys), shape)

    def dense(*shape):
        return {"kernel": weights(LAYERS, *shape), "bias": jnp.zeros((LAYERS, shape[-1]))}

    def scale(*shape):
        return {"scale": jnp.ones(shape), "bias": jnp.zeros(shape)}

    blocks = {
        "norm1": scale(LAYERS, EMBED),
        "attention": {"qkv": dense(EMBED, 3 * EMBED), "out": dense(EMBED, EMBED)},
        "norm2": scale(LAYERS, EMBED),
        "mlp": {"up": dense(EMBED, 4 * EMBED), "down": dense(4 * EMBED, EMBED)},
    }
    tokens, positions = weights(VOCAB, EMBED), weights(LENGTH, EMBED)
    return {"tokens": tokens, "positions": positions, "blocks": blocks, "norm": scale(EMBED)}


def example():
    """Return the shapes of the arguments of `step`. Nothing is computed."""
    params = jax.eval_shape(init, jax.random.key(0))
    return params, jax.eval_shape(optimizer.init, params), jax.ShapeDtypeStruct((BATCH, LENGTH + 1), "int32")
