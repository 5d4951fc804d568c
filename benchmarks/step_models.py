# mypy: allow-untyped-calls
"""Training steps of public shapes as their authors write them, a few MB each: for the memory of `plan.step`.

Each function returns a `TrainingStep`: AdamW on the loss of a model, whose arguments are shapes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import optax
from jax.nn import dot_product_attention, gelu, one_hot, relu, silu, softmax

EMBED, HIDDEN, HEADS, LENGTH, BATCH, VOCAB = 128, 512, 4, 128, 16, 1024


@attrs.frozen
class TrainingStep:
    """A function to import, its arguments, and the axes of parameters that tensor parallelism splits: part of a path -> axis."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    tensor: dict[str, int]


def array(*shape: int, dtype: str = "float32") -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


def ids(*shape: int) -> Any:
    return array(*(shape or (BATCH, LENGTH)), dtype="int32")


def shapes(**given: tuple[int, ...]) -> dict[str, Any]:
    return {name: array(*shape) for name, shape in given.items()}


def training(
    loss: Callable[..., Any], params: Any, batch: tuple[Any, ...], tensor: dict[str, int] | None = None
) -> TrainingStep:
    """Return a step of AdamW. loss: of the parameters and the arrays of the batch."""
    optimizer = optax.adamw(1e-3)

    def step(params: Any, state: Any, *batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    return TrainingStep(step, (params, jax.eval_shape(optimizer.init, params), *batch), tensor or {})


def cross_entropy(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def rms_norm(x: Any, scale: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def layer_norm(x: Any, scale: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-6) * scale


def rotated(x: Any) -> Any:
    """Rotate [batch, heads, length, head_dim]."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[2])[:, None] / 10_000.0 ** (jnp.arange(half) / half)
    a, b = jnp.split(x, 2, -1)
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def llama3() -> TrainingStep:
    """The decoder of jax-llm-examples: a list of layers, grouped queries, separate projections, bf16 weights of the dots."""

    def layer(x: Any, p: Any) -> Any:
        h = rms_norm(x, p["norm"])
        q, k, v = (jnp.einsum("btd,dnh->bnth", h, p[each]) for each in "qkv")
        q, k = rotated(q), rotated(k)
        q = q.reshape(q.shape[0], k.shape[1], -1, *q.shape[2:])
        scores = jnp.einsum("bkgth,bksh->bkgts", q, k) / q.shape[-1] ** 0.5
        at = jnp.arange(scores.shape[-1])
        scores = jnp.where(at[:, None] >= at, scores, -1e30)
        o = jnp.einsum("bkgts,bksh->bkgth", softmax(scores), v)
        o = o.reshape(o.shape[0], -1, *o.shape[3:])
        x = x + jnp.einsum("bnth,nhd->btd", o, p["out"])
        h = rms_norm(x, p["norm2"])
        return x + jnp.einsum("btf,fd->btd", silu(h @ p["gate"]) * (h @ p["up"]), p["down"])

    def loss(p: Any, tokens: Any, labels: Any) -> Any:
        x = p["embedding"][tokens]
        for each in p["layers"]:
            x = layer(x, each)
        logits = rms_norm(x, p["norm"]) @ p["head"]
        return -jnp.mean(jnp.sum(one_hot(labels, VOCAB) * jax.nn.log_softmax(logits), -1))

    head = EMBED // HEADS
    layers = [
        shapes(
            norm=(EMBED,), q=(EMBED, HEADS, head), k=(EMBED, 2, head), v=(EMBED, 2, head), out=(HEADS, head, EMBED),
            norm2=(EMBED,), gate=(EMBED, HIDDEN), up=(EMBED, HIDDEN), down=(HIDDEN, EMBED),
        )
        for _ in range(2)
    ]  # fmt: skip
    params = {"layers": layers, **shapes(embedding=(VOCAB, EMBED), norm=(EMBED,), head=(EMBED, VOCAB))}
    return training(loss, params, (ids(), ids()), {"gate": 1, "k": 1})


def nano_gpt() -> TrainingStep:
    """Fused queries, keys and values, tied embeddings, learned positions."""

    def layer(x: Any, p: Any) -> Any:
        n, length, embed = x.shape
        qkv = (layer_norm(x, p["norm"]) @ p["qkv"]).reshape(n, length, 3, HEADS, -1)
        q, k, v = jnp.moveaxis(qkv, 2, 0)
        x = x + dot_product_attention(q, k, v, is_causal=True).reshape(n, length, embed) @ p["out"]
        return x + gelu(layer_norm(x, p["norm2"]) @ p["up"]) @ p["down"]

    def loss(p: Any, tokens: Any) -> Any:
        x = p["embedding"][tokens] + p["positions"]
        for each in p["layers"]:
            x = layer(x, each)
        logits = layer_norm(x, p["norm"]) @ p["embedding"].T
        return cross_entropy(logits[:, :-1], tokens[:, 1:])

    each = shapes(
        norm=(EMBED,), qkv=(EMBED, 3 * EMBED), out=(EMBED, EMBED), norm2=(EMBED,), up=(EMBED, HIDDEN), down=(HIDDEN, EMBED)
    )  # fmt: skip
    own = shapes(embedding=(VOCAB, EMBED), positions=(LENGTH, EMBED), norm=(EMBED,))
    return training(loss, {"layers": [each, each], **own}, (ids(),), {"up": 1})


def gemma() -> TrainingStep:
    """A scan over layers with stacked keys and values, stacked gates, a soft cap, tied embeddings."""

    def layer(x: Any, p: Any) -> Any:
        h = rms_norm(x, 1 + p["norm"])
        q = jnp.einsum("btd,ndh->btnh", h, p["q"])
        k, v = jnp.einsum("bsd,ckdh->cbskh", h, p["kv"])
        q, k = (jnp.swapaxes(rotated(jnp.swapaxes(each, 1, 2)), 1, 2) for each in (q, k))
        q = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[3])
        scores = jnp.einsum("btkgh,bskh->btkgs", q, k) / q.shape[-1] ** 0.5
        scores = jnp.tanh(scores / 50) * 50
        at = jnp.arange(scores.shape[-1])
        scores = jnp.where((at[:, None] >= at)[:, None, None], scores, -2.3e38)
        o = jnp.einsum("btkgs,bskh->btkgh", softmax(scores), v).reshape(*x.shape[:2], HEADS, -1)
        x = x + jnp.einsum("btnh,nhd->btd", o, p["out"])
        gate, up = jnp.einsum("btd,cdf->cbtf", rms_norm(x, 1 + p["norm2"]), p["gates"])
        return x + (gelu(gate) * up) @ p["down"], None

    def loss(p: Any, tokens: Any) -> Any:
        x = p["embedding"][tokens] * EMBED**0.5
        x, _ = jax.lax.scan(layer, x, p["layers"])
        logits = jnp.tanh(rms_norm(x, 1 + p["norm"]) @ p["embedding"].T / 30) * 30
        return cross_entropy(logits[:, :-1], tokens[:, 1:])

    head, n = EMBED // HEADS, 3
    layers = shapes(
        norm=(n, EMBED), q=(n, HEADS, EMBED, head), kv=(n, 2, 2, EMBED, head), out=(n, HEADS, head, EMBED),
        norm2=(n, EMBED), gates=(n, 2, EMBED, HIDDEN), down=(n, HIDDEN, EMBED),
    )  # fmt: skip
    params = {"layers": layers, **shapes(embedding=(VOCAB, EMBED), norm=(EMBED,))}
    return training(loss, params, (ids(),), {"gates": 3})


def lm1b() -> TrainingStep:
    """The decoder of Flax's example: linen, sinusoidal positions, smoothed labels, weights of padding."""
    import flax.linen as nn
    import numpy as np

    places = np.arange(LENGTH)[:, None] / 10_000.0 ** (np.arange(EMBED // 2) / (EMBED // 2))
    positions = np.concatenate([np.sin(places), np.cos(places)], -1).astype(np.float32)

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any, mask: Any) -> Any:
            h = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(HEADS, use_bias=False)(h, h, mask=mask)
            h = nn.Dense(HIDDEN)(nn.LayerNorm()(x))
            return x + nn.Dense(EMBED)(nn.relu(h))

    class Decoder(nn.Module):
        @nn.compact
        def __call__(self, tokens: Any) -> Any:
            mask = nn.combine_masks(
                nn.make_attention_mask(tokens > 0, tokens > 0), nn.make_causal_mask(tokens)
            )
            embedding = nn.Embed(VOCAB, EMBED)
            x = embedding(jnp.pad(tokens, ((0, 0), (1, 0)))[:, :-1]) + positions
            for _ in range(2):
                x = Block()(x, mask)
            return embedding.attend(nn.LayerNorm()(x)) / EMBED**0.5

    model: Any = Decoder()

    def loss(variables: Any, tokens: Any) -> Any:
        logits, low = model.apply(variables, tokens), 0.1 / (VOCAB - 1)
        targets = one_hot(tokens, VOCAB) * (0.9 - low) + low
        each, weights = -jnp.sum(targets * nn.log_softmax(logits), -1), (tokens > 0).astype("float32")
        return (each * weights).sum() / weights.sum()

    return training(loss, jax.eval_shape(model.init, jax.random.key(0), ids()), (ids(),), {"Dense_0": 1})


def linen_scan() -> TrainingStep:
    """Layers of linen in a scan that computes them again."""
    import flax.linen as nn

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any) -> Any:
            h, mask = nn.LayerNorm()(x), nn.make_causal_mask(jnp.ones(x.shape[:2]))
            x = x + nn.MultiHeadDotProductAttention(HEADS)(h, h, mask=mask)
            return x + nn.Dense(EMBED)(nn.gelu(nn.Dense(HIDDEN)(nn.LayerNorm()(x)))), None

    class Decoder(nn.Module):
        @nn.compact
        def __call__(self, tokens: Any) -> Any:
            layers = nn.scan(
                nn.remat(Block), variable_axes={"params": 0}, split_rngs={"params": True}, length=3
            )
            return nn.Dense(VOCAB)(layers()(nn.Embed(VOCAB, EMBED)(tokens), None)[0])

    model = Decoder()
    variables = jax.eval_shape(model.init, jax.random.key(0), ids())
    return training(
        lambda v, tokens, labels: cross_entropy(model.apply(v, tokens), labels), variables, (ids(), ids())
    )


def nnx_decoder() -> TrainingStep:
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.norm1, self.norm2 = nnx.LayerNorm(EMBED, rngs=rngs), nnx.LayerNorm(EMBED, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(HEADS, EMBED, rngs=rngs, decode=False)
            self.up, self.down = nnx.Linear(EMBED, HIDDEN, rngs=rngs), nnx.Linear(HIDDEN, EMBED, rngs=rngs)

        def __call__(self, x: Any, mask: Any) -> Any:
            x = x + self.attention(self.norm1(x), mask=mask)
            return x + self.down(nnx.gelu(self.up(self.norm2(x))))

    class Decoder(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.embedding = nnx.Embed(VOCAB, EMBED, rngs=rngs)
            self.blocks = nnx.List([Block(rngs) for _ in range(2)])
            self.out = nnx.Linear(EMBED, VOCAB, rngs=rngs)

        def __call__(self, tokens: Any) -> Any:
            x, mask = self.embedding(tokens), nnx.make_causal_mask(tokens)
            for block in self.blocks:
                x = block(x, mask)
            return self.out(x)

    graph, params = nnx.split(nnx.eval_shape(lambda: Decoder(nnx.Rngs(0))))
    return training(
        lambda p, tokens, labels: cross_entropy(nnx.merge(graph, p)(tokens), labels), params, (ids(), ids())
    )


def haiku_transformer() -> TrainingStep:
    """The decoder of Haiku's example."""
    import haiku as hk

    def outputs(tokens: Any) -> Any:
        initial = hk.initializers.TruncatedNormal(0.02)
        x = hk.Embed(VOCAB, EMBED, w_init=initial)(tokens)
        x = x + hk.get_parameter("positions", (LENGTH, EMBED), init=initial)
        mask = jnp.tril(jnp.ones((1, 1, LENGTH, LENGTH))) * (tokens > 0)[:, None, None]
        for _ in range(2):
            h = hk.LayerNorm(-1, True, True)(x)
            x = x + hk.MultiHeadAttention(HEADS, EMBED // HEADS, w_init=initial)(h, h, h, mask=mask)
            h = hk.LayerNorm(-1, True, True)(x)
            x = x + hk.Linear(EMBED)(gelu(hk.Linear(HIDDEN)(h)))
        return hk.Linear(VOCAB)(hk.LayerNorm(-1, True, True)(x))

    model: Any = hk.without_apply_rng(hk.transform(outputs))

    def loss(p: Any, tokens: Any, labels: Any) -> Any:
        each = jnp.sum(one_hot(labels, VOCAB) * jax.nn.log_softmax(model.apply(p, tokens)), -1)
        weights = (tokens > 0).astype("float32")
        return -jnp.sum(each * weights) / jnp.sum(weights)

    params = jax.eval_shape(model.init, jax.random.key(0), ids())
    return training(loss, params, (ids(), ids()))


def haiku_lstm() -> TrainingStep:
    import haiku as hk

    def outputs(x: Any) -> Any:
        core = hk.LSTM(128)
        y, _ = hk.dynamic_unroll(core, jnp.swapaxes(x, 0, 1), core.initial_state(x.shape[0]))
        return hk.Linear(32)(jnp.swapaxes(y, 0, 1))

    model: Any = hk.without_apply_rng(hk.transform(outputs))
    x = array(64, 32, 64)
    params = jax.eval_shape(model.init, jax.random.key(0), x)
    return training(lambda p, x, y: cross_entropy(model.apply(p, x), y), params, (x, ids(64, 32)))


def equinox_mixer() -> TrainingStep:
    import equinox as eqx

    class Block(eqx.Module):
        patches: Any
        features: Any
        norm1: Any
        norm2: Any

        def __init__(self, key: Any) -> None:
            self.patches, self.features = (
                eqx.nn.MLP(64, 64, 128, 1, key=key),
                eqx.nn.MLP(128, 128, 256, 1, key=key),
            )
            self.norm1, self.norm2 = eqx.nn.LayerNorm((128, 64)), eqx.nn.LayerNorm((128, 64))

        def __call__(self, y: Any) -> Any:
            y = y + jax.vmap(self.patches)(self.norm1(y))
            return y + jax.vmap(self.features)(self.norm2(y).T).T

    class Mixer(eqx.Module):
        blocks: Any
        head: Any

        def __init__(self, key: Any) -> None:
            self.blocks = [Block(key) for _ in range(2)]
            self.head = eqx.nn.Linear(128, 10, key=key)

        def __call__(self, y: Any) -> Any:
            for block in self.blocks:
                y = block(y)
            return self.head(y.mean(1))

    params, rest = eqx.partition(
        eqx.filter_eval_shape(Mixer, jax.random.key(0)), lambda x: hasattr(x, "shape")
    )

    def loss(p: Any, x: Any, y: Any) -> Any:
        return cross_entropy(jax.vmap(eqx.combine(p, rest))(x), y)

    return training(loss, params, (array(64, 128, 64), ids(64)))


def linen_mixer() -> TrainingStep:
    import flax.linen as nn

    class Mlp(nn.Module):
        hidden: int

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(x.shape[-1])(nn.gelu(nn.Dense(self.hidden)(x)))

    class Mixer(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Conv(128, (4, 4), strides=(4, 4))(x)
            x = x.reshape(x.shape[0], -1, x.shape[-1])
            for _ in range(2):
                x = x + jnp.swapaxes(Mlp(64)(jnp.swapaxes(nn.LayerNorm()(x), 1, 2)), 1, 2)
                x = x + Mlp(256)(nn.LayerNorm()(x))
            return nn.Dense(10)(nn.LayerNorm()(x).mean(1))

    model, x = Mixer(), array(32, 32, 32, 3)
    params = jax.eval_shape(model.init, jax.random.key(0), x)
    return training(lambda p, x, y: cross_entropy(model.apply(p, x), y), params, (x, ids(32)))


def keras_classifier() -> TrainingStep:
    keras = _keras()
    layers = keras.layers
    return _of_keras(
        keras.Sequential(
            [
                layers.Input((32, 32, 3)),
                layers.Conv2D(32, 3, padding="same", activation="relu"),
                layers.Conv2D(64, 3, strides=2, padding="same", activation="relu"),
                layers.MaxPooling2D(),
                layers.Flatten(),
                layers.Dense(128, activation="relu"),
                layers.Dense(10),
            ]
        ),
        (array(32, 32, 32, 3), ids(32)),
    )


def keras_transformer() -> TrainingStep:
    keras = _keras()
    layers = keras.layers
    x = start = layers.Input((LENGTH, EMBED))
    for _ in range(2):
        h = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(HEADS, EMBED // HEADS)(h, h)])
        hidden = layers.Dense(HIDDEN, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(EMBED)(hidden)])
    return _of_keras(keras.Model(start, layers.Dense(64)(x)), (array(BATCH, LENGTH, EMBED), ids()))


def _keras() -> Any:
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras

    return keras


def _of_keras(model: Any, batch: tuple[Any, ...]) -> TrainingStep:
    """Return a step of a model without state beside its variables."""

    def loss(variables: Any, x: Any, y: Any) -> Any:
        return cross_entropy(model.stateless_call(variables, [], x, training=True)[0], y)

    return training(loss, [array(*v.shape) for v in model.trainable_variables], batch)


def vision_transformer() -> TrainingStep:
    """The ViT of big_vision: a scan over layers that are computed again, patches by a convolution, pooled by a mean."""
    import flax.linen as nn

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any) -> Any:
            h = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(HEADS)(h, h)
            return x + nn.Dense(EMBED)(nn.gelu(nn.Dense(HIDDEN)(nn.LayerNorm()(x)))), None

    class Transformer(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Conv(EMBED, (4, 4), strides=(4, 4), padding="VALID")(x)
            x = x.reshape(x.shape[0], -1, EMBED)
            x = x + self.param("positions", nn.initializers.normal(0.02), (1, x.shape[1], EMBED))
            layers = nn.scan(
                nn.remat(Block, prevent_cse=False),
                variable_axes={"params": 0},
                split_rngs={"params": True},
                length=3,
            )
            return nn.Dense(10)(nn.LayerNorm()(layers()(x, None)[0]).mean(1))

    model, x = Transformer(), array(32, 32, 32, 3)
    params = jax.eval_shape(model.init, jax.random.key(0), x)

    def loss(p: Any, x: Any, y: Any) -> Any:
        return optax.sigmoid_binary_cross_entropy(model.apply(p, x), one_hot(y, 10)).sum(-1).mean()

    return training(loss, params, (x, ids(32)))


def residual_network() -> TrainingStep:
    """Convolutions with batch statistics, which are returned."""
    import flax.linen as nn

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            def norm(x: Any) -> Any:
                return nn.BatchNorm(use_running_average=False)(x)

            x = nn.relu(norm(nn.Conv(32, (3, 3))(x)))
            for features in (32, 64):
                stride = 1 if features == 32 else 2
                y = nn.relu(norm(nn.Conv(features, (3, 3), strides=stride)(x)))
                y = norm(nn.Conv(features, (3, 3))(y))
                x = nn.relu((x if stride == 1 else nn.Conv(features, (1, 1), strides=2)(x)) + y)
            return nn.Dense(10)(x.mean((1, 2)))

    model, x = Network(), array(32, 16, 16, 3)
    params = jax.eval_shape(model.init, jax.random.key(0), x)

    def loss(p: Any, x: Any, y: Any) -> Any:
        return cross_entropy(model.apply(p, x, mutable=["batch_stats"])[0], y)

    return training(loss, params, (x, ids(32)))


def u_net() -> TrainingStep:
    def conv(x: Any, w: Any, stride: int = 1) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=numbers)

    def loss(p: Any, x: Any) -> Any:
        a = silu(conv(x, p["first"]))
        b = silu(conv(a, p["second"], 2))
        n, h, w, c = b.shape
        t = b.reshape(n, h * w, c)
        q, k, v = jnp.split(t @ p["qkv"], 3, -1)
        t = t + softmax(q @ k.transpose(0, 2, 1) / 8) @ v
        u = jax.image.resize(t.reshape(n, h, w, c), (n, 2 * h, 2 * w, c), "nearest")
        return jnp.mean((conv(jnp.concatenate([u, a], -1), p["third"]) - x) ** 2)

    params = shapes(first=(3, 3, 3, 32), second=(3, 3, 32, 64), qkv=(64, 192), third=(3, 3, 96, 3))
    return training(loss, params, (array(16, 16, 16, 3),), {"second": 3})


def evoformer() -> TrainingStep:
    """A block of AlphaFold: row attention biased by pairs, an outer product mean, a triangle update, transitions."""
    rows, residues, m, z, head = 16, 32, 64, 32, 16

    def block(msa: Any, pair: Any, p: Any) -> Any:
        h = layer_norm(msa, p["norm"])
        q, k, v, g = (jnp.einsum("nsrc,chd->nsrhd", h, p[each]) for each in ("q", "k", "v", "g"))
        bias = jnp.einsum("nijc,ch->nhij", layer_norm(pair, p["pair_norm"]), p["bias"])
        scores = jnp.einsum("nsihd,nsjhd->nshij", q, k) / head**0.5 + bias[:, None]
        o = jnp.einsum("nshij,nsjhd->nsihd", softmax(scores), v) * jax.nn.sigmoid(g)
        msa = msa + jnp.einsum("nsihd,hdc->nsic", o, p["out"])
        msa = msa + relu(layer_norm(msa, p["norm2"]) @ p["up"]) @ p["down"]
        h = layer_norm(msa, p["norm3"])
        outer = jnp.einsum("nsia,nsjb->nijab", h @ p["left"], h @ p["right"]) / rows
        pair = pair + jnp.einsum("nijab,abc->nijc", outer, p["outer"])
        h = layer_norm(pair, p["pair_norm2"])
        a = jax.nn.sigmoid(h @ p["gate_a"]) * (h @ p["a"])
        b = jax.nn.sigmoid(h @ p["gate_b"]) * (h @ p["b"])
        pair = pair + jnp.einsum("nikc,njkc->nijc", a, b) @ p["triangle"]
        return msa, pair + relu(layer_norm(pair, p["pair_norm3"]) @ p["pair_up"]) @ p["pair_down"]

    def loss(p: Any, msa: Any, pair: Any) -> Any:
        x, y = msa, pair
        for each in p:
            x, y = block(x, y, each)
        return jnp.mean((x - msa) ** 2) + jnp.mean((y - pair) ** 2)

    each = shapes(
        norm=(m,), q=(m, 4, head), k=(m, 4, head), v=(m, 4, head), g=(m, 4, head), pair_norm=(z,), bias=(z, 4),
        out=(4, head, m), norm2=(m,), up=(m, 4 * m), down=(4 * m, m), norm3=(m,), left=(m, 8), right=(m, 8),
        outer=(8, 8, z), pair_norm2=(z,), gate_a=(z, z), a=(z, z), gate_b=(z, z), b=(z, z), triangle=(z, z),
        pair_norm3=(z,), pair_up=(z, 4 * z), pair_down=(4 * z, z),
    )  # fmt: skip
    return training(
        loss,
        [each, each],
        (array(8, rows, residues, m), array(8, residues, residues, z)),
        {"'up": 1, "pair_up": 1},
    )


def experts() -> TrainingStep:
    """A mixture of experts with capacity in each group of tokens, by one-hot dispatch."""
    count, capacity = 8, 32

    def loss(p: Any, x: Any) -> Any:
        weights, chosen = jax.lax.top_k(softmax(x @ p["gate"]), 2)
        places = one_hot(chosen, count)
        mask = places.sum(2)
        order = jnp.cumsum(mask, 1) * mask
        dispatch = one_hot((order - 1).astype(int), capacity) * ((order <= capacity) * mask)[..., None]
        sent = jnp.einsum("gtec,gtd->gecd", dispatch, x)
        hidden = relu(jnp.einsum("gecd,edf->gecf", sent, p["up"]))
        combine = dispatch * jnp.einsum("gtk,gtke->gte", weights, places)[..., None]
        y = jnp.einsum("gtec,gecd->gtd", combine, jnp.einsum("gecf,efd->gecd", hidden, p["down"]))
        return jnp.mean((y - x) ** 2)

    params = shapes(gate=(64, count), up=(count, 64, 256), down=(count, 256, 64))
    return training(loss, params, (array(16, 64, 64),), {"up": 2})


def ppo() -> TrainingStep:
    """The loss of PPO: advantages by a scan back in time, a shared body, clipped ratios, a value and an entropy."""

    def body(p: Any, x: Any) -> Any:
        h = jnp.tanh(jnp.tanh(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"])
        return h @ p["policy"], (h @ p["value"])[..., 0]

    def loss(p: Any, x: Any, actions: Any, old: Any, values: Any, rewards: Any, ends: Any) -> Any:
        def back(carry: Any, now: Any) -> Any:
            following, advantage = carry
            value, reward, end = now
            advantage = reward + 0.99 * following * (1 - end) - value + 0.9405 * (1 - end) * advantage
            return (value, advantage), advantage

        start = values[:, -1], jnp.zeros_like(values[:, 0])
        _, advantages = jax.lax.scan(back, start, (values.T, rewards.T, ends.T), reverse=True)
        targets = advantages.T + values
        advantages = (advantages.T - advantages.mean()) / (advantages.std() + 1e-8)
        logits, value = body(p, x)
        logs = jax.nn.log_softmax(logits)
        ratio = jnp.exp(jnp.take_along_axis(logs, actions[..., None], -1)[..., 0] - old)
        gain = jnp.minimum(ratio * advantages, jnp.clip(ratio, 0.8, 1.2) * advantages)
        entropy = -jnp.sum(jnp.exp(logs) * logs, -1)
        return -gain.mean() + 0.5 * jnp.mean((value - targets) ** 2) - 0.01 * entropy.mean()

    params = shapes(w1=(32, 256), b1=(256,), w2=(256, 256), b2=(256,), policy=(256, 8), value=(256, 1))
    steps = 64, 32
    batch = (array(*steps, 32), ids(*steps), *(array(*steps) for _ in range(4)))
    return training(loss, params, batch, {"w1": 1})


def perceptron() -> TrainingStep:
    def loss(p: Any, x: Any, y: Any) -> Any:
        for w, b in p:
            x = relu(x @ w + b)
        return jnp.mean((x - y) ** 2)

    sizes = (256, 512, 512, 64)
    params = [(array(a, b), array(b)) for a, b in pairwise(sizes)]
    return training(loss, params, (array(512, 256), array(512, 64)))


STEPS: dict[str, Callable[[], TrainingStep]] = {
    each.__name__: each
    for each in (
        perceptron, llama3, nano_gpt, gemma, lm1b, linen_scan, nnx_decoder, haiku_transformer, haiku_lstm, equinox_mixer,
        linen_mixer, keras_classifier, keras_transformer, vision_transformer, residual_network, u_net, evoformer, experts, ppo,
    )
}  # fmt: skip
