"""A Llama as a JAX user writes it for TPUs: `jit` with named shardings, splash attention, and layers that compute all again.

The batch is split over `data`; vocabulary, heads and hidden units over `model`. With FSDP, parameters and the state of AdamW are
also split over `data`, along the width of the model. XLA's partitioner places the collectives. Only the kernel stands in a
`shard_map`, as it cannot be partitioned. Parameters are f32, computation is bf16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.sharding import PartitionSpec

P: Any = PartitionSpec
constrained: Any = lax.with_sharding_constraint
Described: Any = jax.ShapeDtypeStruct
BLOCKS = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")

Attention = Callable[[Any, Any, Any], Any]
"""A function of queries [head, query, depth], already scaled, and of keys and values [group, key, depth]."""


@attrs.frozen
class Sizes:
    """vocab, d_model, groups of heads that share keys, heads in a group, d_k, d_ff, and layers of `examples/llama.mtf`."""

    vocab: int = 128256
    d_model: int = 4096
    groups: int = 8
    sharers: int = 4
    d_k: int = 128
    d_ff: int = 14336
    layers: int = 32

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        heads = self.groups * self.sharers
        return {
            "embed": (self.vocab, self.d_model),
            "layers.norm": (self.layers, self.d_model),
            "layers.wq": (self.layers, self.d_model, heads, self.d_k),
            "layers.wk": (self.layers, self.d_model, self.groups, self.d_k),
            "layers.wv": (self.layers, self.d_model, self.groups, self.d_k),
            "layers.wo": (self.layers, heads, self.d_k, self.d_model),
            "layers.norm_2": (self.layers, self.d_model),
            "layers.gate": (self.layers, self.d_model, self.d_ff),
            "layers.up": (self.layers, self.d_model, self.d_ff),
            "layers.down": (self.layers, self.d_ff, self.d_model),
            "norm": (self.d_model,),
            "head": (self.d_model, self.vocab),
        }


def specs(width: str | None) -> dict[str, Any]:
    """Return where each parameter is split. width: the axis that splits the width of the model; None without FSDP."""
    return {
        "embed": P("model", width),
        "layers.norm": P(None, width),
        "layers.wq": P(None, width, "model", None),
        "layers.wk": P(None, width, "model", None),
        "layers.wv": P(None, width, "model", None),
        "layers.wo": P(None, "model", None, width),
        "layers.norm_2": P(None, width),
        "layers.gate": P(None, width, "model"),
        "layers.up": P(None, width, "model"),
        "layers.down": P(None, "model", width),
        "norm": P(width),
        "head": P(width, "model"),
    }


def splash_attention(q: Any, k: Any, v: Any) -> Any:
    """Attend causally, by the kernel for grouped queries that ships with JAX."""
    heads, length, _ = q.shape
    groups = k.shape[0]
    block = min(1024, length)
    sharers = heads // groups
    mask = masks.MultiHeadMask([masks.CausalMask((length, length))] * sharers)
    kernel = splash.make_splash_mqa_single_device(
        mask, block_sizes=splash.BlockSizes(**{f"block_{name}": block for name in BLOCKS})
    )
    return jax.vmap(kernel)(q.reshape(groups, sharers, length, -1), k, v).reshape(q.shape)


def plain_attention(q: Any, k: Any, v: Any) -> Any:
    """Compute the same as `splash_attention` where there is no kernel."""
    heads, length, _ = q.shape
    k, v = (jnp.repeat(x, heads // k.shape[0], 0) for x in (k, v))
    logits = jnp.einsum("hqd,hkd->hqk", q, k, preferred_element_type=jnp.float32)
    logits = jnp.where(jnp.tril(jnp.ones((length, length), bool)), logits, -jnp.inf)
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(logits).astype(v.dtype), v)


def rms_norm(x: Any, scale: Any) -> Any:
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt(jnp.mean(jnp.square(wide), -1, keepdims=True) + 1e-5)).astype(x.dtype) * scale


def rotary(x: Any) -> Any:
    """Rotate pairs of elements, half of the last dimension apart; x: [batch, head, position, depth]."""
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[-2])[:, None] * 500000.0 ** (-jnp.arange(half) / half)
    cosine, sine = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cosine - b * sine, b * cosine + a * sine], -1)


def layer(x: Any, w: Mapping[str, Any], attention: Attention) -> Any:
    w = {name: value.astype(jnp.bfloat16) for name, value in w.items()}
    h = rms_norm(x, w["norm"])
    q, k, v = (jnp.einsum("bld,dhk->bhlk", h, w[name]) for name in ("wq", "wk", "wv"))
    parts = P("data", "model")
    attend: Any = jax.shard_map(
        jax.vmap(attention), in_specs=(parts, parts, parts), out_specs=parts, check_vma=False
    )
    a = attend(rotary(q) * q.shape[-1] ** -0.5, rotary(k), v)
    x += jnp.einsum("bhlk,hkd->bld", a, w["wo"])
    h = rms_norm(x, w["norm_2"])
    f = jax.nn.silu(jnp.einsum("bld,df->blf", h, w["gate"])) * jnp.einsum("bld,df->blf", h, w["up"])
    return constrained(x + jnp.einsum("blf,fd->bld", f, w["down"]), P("data"))


def loss(params: Mapping[str, Any], tokens: Any, attention: Attention) -> Any:
    """Return the mean cross-entropy of each token, given those before it."""
    before = jnp.pad(tokens, ((0, 0), (1, 0)))[:, :-1]
    x = constrained(params["embed"].astype(jnp.bfloat16)[before], P("data"))
    layers = {name[7:]: value for name, value in params.items() if name.startswith("layers.")}
    body: Any = jax.checkpoint(partial(layer, attention=attention))
    x, _ = lax.scan(lambda x, w: (body(x, w), None), x, layers)
    h = rms_norm(x, params["norm"].astype(jnp.bfloat16))
    logits = jnp.einsum("bld,dv->blv", h, params["head"].astype(jnp.bfloat16))
    logits = constrained(logits, P("data", None, "model"))
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), tokens))


def optimizer() -> Any:
    rate = optax.warmup_cosine_decay_schedule(0.0, 3e-4, 2000, 500000, 3e-5)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, b2=0.95, weight_decay=0.1))


def step(mesh: Any, is_fsdp: bool, batch: int, length: int, attention: Attention, sizes: Sizes) -> Any:
    """Return the training step as a `jax.stages.Lowered`, without data. mesh: [data, model]."""
    placed = specs("data" if is_fsdp else None)
    update = optimizer()

    def described(shape: tuple[int, ...], dtype: Any, spec: Any) -> Any:
        return Described(shape, dtype, sharding=jax.NamedSharding(mesh, spec))

    def train(params: Any, state: Any, tokens: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, tokens, attention)
        changes, state = update.update(gradients, state, params)
        return value, optax.apply_updates(params, changes), state

    params = {name: described(shape, jnp.float32, placed[name]) for name, shape in sizes.shapes.items()}
    state = optax.tree_map_params(
        update,
        lambda each, spec: described(each.shape, each.dtype, spec),
        jax.eval_shape(update.init, params),
        placed,
        transform_non_params=lambda each: described(each.shape, each.dtype, P()),
    )
    tokens = described((batch, length), jnp.int32, P("data"))
    out: Any = jax.tree.map(lambda each: each.sharding, (params, state))
    with jax.set_mesh(mesh):
        jitted: Any = jax.jit(
            train, out_shardings=(jax.NamedSharding(mesh, P()), *out), donate_argnums=(0, 1)
        )
        return jitted.lower(params, state, tokens)
