# mypy: allow-untyped-calls
"""Small models as their authors write them: Flax NNX and linen, Haiku, Equinox, and plain JAX, most with their gradients.

Each function returns a function to import, and its arguments as `jax.ShapeDtypeStruct`s.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

Model = tuple[Callable[..., Any], tuple[Any, ...]]


def array(*shape: int, dtype: str = "float32") -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


def cross_entropy(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def perceptron() -> Model:
    def loss(params: Any, x: Any, y: Any) -> Any:
        for w, b in params:
            x = jax.nn.relu(x @ w + b)
        return jnp.mean((x - y) ** 2)

    params = [(array(16, 32), array(32)), (array(32, 8), array(8))]
    return jax.value_and_grad(loss), (params, array(24, 16), array(24, 8))


def nnx_transformer() -> Model:
    """A training step of AdamW with dropout, unrolled."""
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, rngs: Any, d: int = 32) -> None:
            self.norm1, self.norm2 = nnx.LayerNorm(d, rngs=rngs), nnx.LayerNorm(d, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(4, d, rngs=rngs, decode=False)
            self.up, self.down = nnx.Linear(d, 4 * d, rngs=rngs), nnx.Linear(4 * d, d, rngs=rngs)
            self.dropout = nnx.Dropout(0.1)

        def __call__(self, x: Any, mask: Any, rngs: Any) -> Any:
            x = x + self.attention(self.norm1(x), mask=mask)
            return x + self.dropout(self.down(nnx.gelu(self.up(self.norm2(x)))), rngs=rngs)

    class Decoder(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.embedding = nnx.Embed(64, 32, rngs=rngs)
            self.blocks = nnx.List([Block(rngs) for _ in range(2)])
            self.out = nnx.Linear(32, 64, rngs=rngs)

        def __call__(self, ids: Any, rngs: Any) -> Any:
            x, mask = self.embedding(ids), nnx.make_causal_mask(ids)
            for block in self.blocks:
                x = block(x, mask, rngs)
            return self.out(x)

    graph, params = nnx.split(nnx.eval_shape(lambda: Decoder(nnx.Rngs(0))))
    optimizer = optax.adamw(1e-3)
    state = jax.eval_shape(optimizer.init, params)

    def step(params: Any, state: Any, ids: Any, key: Any) -> Any:
        def loss(params: Any) -> Any:
            logits = nnx.merge(graph, params)(ids[:, :-1], nnx.Rngs(dropout=key))
            return cross_entropy(logits, ids[:, 1:])

        value, gradients = jax.value_and_grad(loss)(params)
        updates, new = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), new, value

    key = jax.eval_shape(lambda: jax.random.key(0))
    return step, (params, state, array(8, 17, dtype="int32"), key)


def linen_transformer() -> Model:
    """A scan over layers that are computed again in the backward pass."""
    import flax.linen as nn

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any) -> Any:
            h, mask = nn.LayerNorm()(x), nn.make_causal_mask(jnp.ones(x.shape[:2]))
            x = x + nn.MultiHeadDotProductAttention(4)(h, h, mask=mask)
            return x + nn.Dense(32)(nn.gelu(nn.Dense(128)(nn.LayerNorm()(x)))), None

    class Decoder(nn.Module):
        @nn.compact
        def __call__(self, ids: Any) -> Any:
            x = nn.Embed(64, 32)(ids)
            layers = nn.scan(
                nn.remat(Block), variable_axes={"params": 0}, split_rngs={"params": True}, length=3
            )
            return nn.Dense(64)(layers()(x, None)[0])

    model, ids = Decoder(), array(8, 16, dtype="int32")
    variables = jax.eval_shape(model.init, jax.random.key(0), ids)
    return jax.value_and_grad(lambda v, ids: cross_entropy(model.apply(v, ids), ids)), (variables, ids)


def residual_network() -> Model:
    """Convolutions, one of them depthwise, with batch statistics, and pooling."""
    import flax.linen as nn

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.relu(nn.BatchNorm(use_running_average=False)(nn.Conv(16, (3, 3), strides=2)(x)))
            x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
            for features in (16, 32):
                stride = 1 if features == 16 else 2
                y = nn.relu(
                    nn.BatchNorm(use_running_average=False)(nn.Conv(features, (3, 3), strides=stride)(x))
                )
                y = nn.Conv(features, (3, 3))(y)
                x = nn.relu((x if stride == 1 else nn.Conv(features, (1, 1), strides=2)(x)) + y)
            x = x + nn.Conv(32, (3, 3), feature_group_count=32)(x)
            return nn.Dense(10)(nn.avg_pool(x, (2, 2), (2, 2)).mean((1, 2)))

    model, x = Network(), array(8, 32, 32, 3)
    variables = jax.eval_shape(model.init, jax.random.key(0), x)

    def loss(variables: Any, x: Any, y: Any) -> Any:
        logits, statistics = model.apply(variables, x, mutable=["batch_stats"])
        return cross_entropy(logits, y), statistics

    return jax.value_and_grad(loss, has_aux=True), (variables, x, array(8, dtype="int32"))


def haiku_lstm() -> Model:
    import haiku as hk

    def outputs(x: Any) -> Any:
        core = hk.LSTM(16)
        y, _ = hk.dynamic_unroll(core, x, core.initial_state(x.shape[1]))
        return hk.Linear(5)(y)

    model: Any = hk.without_apply_rng(hk.transform(outputs))
    x = array(12, 8, 10)
    params = jax.eval_shape(model.init, jax.random.key(0), x)
    return jax.value_and_grad(lambda p, x: jnp.mean(model.apply(p, x) ** 2)), (params, x)


def equinox_mixer() -> Model:
    import equinox as eqx

    class Mixer(eqx.Module):
        patches: eqx.nn.MLP
        features: eqx.nn.MLP
        norm1: eqx.nn.LayerNorm
        norm2: eqx.nn.LayerNorm

        def __init__(self, key: Any) -> None:
            self.patches = eqx.nn.MLP(16, 16, 32, 1, key=key)
            self.features = eqx.nn.MLP(24, 24, 48, 1, key=key)
            self.norm1, self.norm2 = eqx.nn.LayerNorm((24, 16)), eqx.nn.LayerNorm((24, 16))

        def __call__(self, y: Any) -> Any:
            y = y + jax.vmap(self.patches)(self.norm1(y))
            return y + jax.vmap(self.features)(self.norm2(y).T).T

    model = eqx.filter_eval_shape(Mixer, jax.random.key(0))
    params, rest = eqx.partition(model, lambda x: hasattr(x, "shape"))
    return (
        jax.value_and_grad(lambda p, x: jnp.mean(jax.vmap(eqx.combine(p, rest))(x) ** 2)),
        (params, array(8, 24, 16)),
    )


def experts() -> Model:
    """A mixture of experts with capacity, by one-hot dispatch."""

    def loss(p: Any, x: Any) -> Any:
        weights, chosen = jax.lax.top_k(jax.nn.softmax(x @ p["gate"]), 2)
        places = jax.nn.one_hot(chosen, 4)
        mask = places.sum(1)
        order = jnp.cumsum(mask, 0) * mask
        dispatch = jax.nn.one_hot((order - 1).astype(int), 8) * ((order <= 8) * mask)[..., None]
        sent = jnp.einsum("tec,td->ecd", dispatch, x)
        hidden = jax.nn.relu(jnp.einsum("ecd,edf->ecf", sent, p["up"]))
        combine = dispatch * jnp.einsum("tk,tke->te", weights, places)[..., None]
        y = jnp.einsum("tec,ecd->td", combine, jnp.einsum("ecf,efd->ecd", hidden, p["down"]))
        return jnp.mean((y - x) ** 2)

    params = {"gate": array(16, 4), "up": array(4, 16, 32), "down": array(4, 32, 16)}
    return jax.value_and_grad(loss), (params, array(32, 16))


def ragged_experts() -> Model:
    """A mixture of experts without capacity, by sorting."""

    def loss(p: Any, x: Any) -> Any:
        expert = jnp.argmax(x @ p["gate"], -1)
        order = jnp.argsort(expert)
        sizes = jnp.bincount(expert, length=4).astype("int32")
        y = jax.lax.ragged_dot(x[order], p["up"], sizes)
        return jnp.mean(jnp.zeros_like(y).at[order].set(y) ** 2)

    return jax.value_and_grad(loss), ({"gate": array(16, 4), "up": array(4, 16, 32)}, array(32, 16))


def u_net() -> Model:
    """Convolutions with attention in the middle."""

    def conv(x: Any, w: Any, stride: int = 1) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=numbers)

    def loss(p: Any, x: Any) -> Any:
        a = jax.nn.silu(conv(x, p["first"]))
        b = jax.nn.silu(conv(a, p["second"], 2))
        n, h, w, c = b.shape
        t = b.reshape(n, h * w, c)
        q, k, v = jnp.split(t @ p["qkv"], 3, -1)
        t = t + jax.nn.softmax(q @ k.transpose(0, 2, 1) / 4) @ v
        u = jax.image.resize(t.reshape(n, h, w, c), (n, 2 * h, 2 * w, c), "nearest")
        return jnp.mean((conv(jnp.concatenate([u, a], -1), p["third"]) - x) ** 2)

    params = {
        "first": array(3, 3, 3, 8),
        "second": array(3, 3, 8, 16),
        "qkv": array(16, 48),
        "third": array(3, 3, 24, 3),
    }
    return jax.value_and_grad(loss), (params, array(4, 8, 8, 3))


def vision_transformer() -> Model:
    def loss(p: Any, x: Any, y: Any) -> Any:
        n = x.shape[0]
        t = x.reshape(n, 4, 4, 4, 4, 3).transpose(0, 1, 3, 2, 4, 5).reshape(n, 16, 48) @ p["patch"]
        t = jnp.concatenate([jnp.broadcast_to(p["class"], (n, 1, 32)), t], 1) + p["position"]
        q, k, v = jnp.moveaxis((t @ p["qkv"]).reshape(n, 17, 3, 4, 8), 2, 0)
        t = t + jax.nn.dot_product_attention(q, k, v).reshape(n, 17, 32) @ p["out"]
        return cross_entropy(t[:, 0] @ p["head"], y)

    shapes = {
        "patch": (48, 32),
        "class": (32,),
        "position": (17, 32),
        "qkv": (32, 96),
        "out": (32, 32),
        "head": (32, 10),
    }
    params = {name: array(*shape) for name, shape in shapes.items()}
    return jax.value_and_grad(loss), (params, array(8, 16, 16, 3), array(8, dtype="int32"))


def cached_decoding() -> Model:
    def decode(p: Any, cache: Any, x: Any, i: Any) -> Any:
        new = {name: jax.lax.dynamic_update_slice(cache[name], x @ p[name], (0, i, 0)) for name in "kv"}
        scores = jnp.einsum("bqd,bld->bql", x @ p["q"], new["k"])
        scores = jnp.where(jnp.arange(16)[None, None] <= i, scores, -1e9)
        return jax.nn.softmax(scores) @ new["v"], new

    params = {name: array(8, 8) for name in "qkv"}
    cache = {name: array(4, 16, 8) for name in "kv"}
    return decode, (params, cache, array(4, 1, 8), array(dtype="int32"))


def fused_decoder() -> Model:
    """A training step of AdamW: two layers with fused queries, keys and values, and tied embeddings."""

    def layer(x: Any, p: Any) -> Any:
        n, length, embed = x.shape
        h = x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
        qkv = (h @ p["qkv"]).reshape(n, length, 3, 4, embed // 4)
        scores = jnp.einsum("blhd,bmhd->bhlm", qkv[:, :, 0], qkv[:, :, 1]) / 4
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e30)
        o = jnp.einsum("bhlm,bmhd->blhd", jax.nn.softmax(scores), qkv[:, :, 2])
        x = x + o.reshape(n, length, embed) @ p["out"]
        return x + jax.nn.gelu(h @ p["up"]) @ p["down"]

    def loss(p: Any, ids: Any, labels: Any) -> Any:
        x = p["embedding"][ids]
        for each in p["layers"]:
            x = layer(x, each)
        return cross_entropy(x @ p["embedding"].T, labels)

    optimizer = optax.adamw(1e-3)

    def step(params: Any, state: Any, ids: Any, labels: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, ids, labels)
        updates, new = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), new, value

    shapes = {"qkv": (32, 96), "out": (32, 32), "up": (32, 128), "down": (128, 32)}
    layers = [{name: array(*shape) for name, shape in shapes.items()} for _ in range(2)]
    params = {"embedding": array(64, 32), "layers": layers}
    ids = array(8, 16, dtype="int32")
    return step, (params, jax.eval_shape(optimizer.init, params), ids, ids)


MODELS: dict[str, Callable[[], Model]] = {
    each.__name__: each
    for each in (
        perceptron, nnx_transformer, linen_transformer, residual_network, haiku_lstm, equinox_mixer, experts, ragged_experts,
        u_net, vision_transformer, cached_decoding, fused_decoder,
    )
}  # fmt: skip
