"""A Transformer with tensor parallelism as a JAX user writes it after Megatron-LM, with and without sequence parallelism.

The batch is split over the axis `rows`, heads and hidden units over `cols`. With sequence parallelism `cols` splits the batch
between the dots, too: a reduce-scatter ends each layer, and an all-gather begins it (Korthikanti et al., "Reducing Activation
Recomputation in Large Transformer Models", 2022). JAX differentiates the function inside of `shard_map`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

P: Any = PartitionSpec
psum: Any = lax.psum
pmax: Any = lax.pmax
pmean: Any = lax.pmean

LAYER = {
    "layer_norm.scale": P(None, None),
    "layer_norm.bias": P(None, None),
    "multi_head.wq": P(None, "cols"),
    "multi_head.wk": P(None, "cols"),
    "multi_head.wv": P(None, "cols"),
    "multi_head.wo": P(None, "cols"),
    "layer_norm_2.scale": P(None, None),
    "layer_norm_2.bias": P(None, None),
    "feed_forward.wi": P(None, None, "cols"),
    "feed_forward.wo": P(None, "cols"),
}
"""The parameters of a layer, stacked along the layers: [layer, head, d_model, d_k] and [layer, head, d_k, d_model]."""

ENDS = {
    "embedding.table": P("cols"),
    "layer_norm.scale": P(None),
    "layer_norm.bias": P(None),
    "dense_no_bias.w": P(None, "cols"),
}
BATCH = P("rows")


def layer_norm(x: Any, scale: Any, bias: Any) -> Any:
    centred = x - jnp.mean(x, -1, keepdims=True)
    return centred * lax.rsqrt(jnp.mean(jnp.square(centred), -1, keepdims=True) + 1e-6) * scale + bias


def summed(x: Any, on_parts: bool) -> Any:
    """Complete a sum over `cols`: a part of the batch, or everything."""
    scatter: Any = lax.psum_scatter
    return scatter(x, "cols", scatter_dimension=0, tiled=True) if on_parts else psum(x, "cols")


def gathered(x: Any, on_parts: bool) -> Any:
    return lax.all_gather(x, "cols", axis=0, tiled=True) if on_parts else x


def layer(x: Any, w: dict[str, Any], on_parts: bool) -> Any:
    h = gathered(layer_norm(x, w["layer_norm.scale"], w["layer_norm.bias"]), on_parts)
    q, k, v = (jnp.einsum("bld,hdk->bhlk", h, w[f"multi_head.{name}"]) for name in ("wq", "wk", "wv"))
    logits = jnp.einsum("bhlk,bhmk->bhlm", q * q.shape[-1] ** -0.5, k)
    logits = jnp.where(jnp.tril(jnp.ones(logits.shape[-2:], bool)), logits, -30000.0)
    a = jnp.einsum("bhlm,bhmk->bhlk", jax.nn.softmax(logits), v)
    x = x + summed(jnp.einsum("bhlk,hkd->bld", a, w["multi_head.wo"]), on_parts)
    h = gathered(layer_norm(x, w["layer_norm_2.scale"], w["layer_norm_2.bias"]), on_parts)
    f = jax.nn.relu(jnp.einsum("bld,df->blf", h, w["feed_forward.wi"]))
    return x + summed(jnp.einsum("blf,fd->bld", f, w["feed_forward.wo"]), on_parts)


def loss(params: dict[str, dict[str, Any]], tokens: Any, on_parts: bool, computes_again: bool) -> Any:
    """Return the mean cross-entropy of the tokens of this device's part of the batch."""
    ends = params["ends"]
    table = ends["embedding.table"]
    first = lax.axis_index("cols") * table.shape[0]
    own = (tokens >= first) & (tokens < first + table.shape[0])
    x = summed(jnp.where(own[..., None], table[jnp.where(own, tokens - first, 0)], 0.0), on_parts)
    body: Any = partial(layer, on_parts=on_parts)
    body = jax.checkpoint(body) if computes_again else body
    x, _ = lax.scan(lambda x, w: (body(x, w), None), x, params["layers"])
    h = gathered(layer_norm(x, ends["layer_norm.scale"], ends["layer_norm.bias"]), on_parts)
    logits = jnp.einsum("bld,dv->blv", h, ends["dense_no_bias.w"])
    logits -= pmax(lax.stop_gradient(jnp.max(logits, -1, keepdims=True)), "cols")
    total = psum(jnp.sum(jnp.exp(logits), -1), "cols")
    picked = jnp.take_along_axis(logits, jnp.where(own, tokens - first, 0)[..., None], -1)[..., 0]
    wanted = psum(jnp.where(own, picked, 0.0), "cols")
    return pmean(jnp.mean(jnp.log(total) - wanted), "rows")


def loss_and_gradients(mesh: Any, on_parts: bool, computes_again: bool) -> Any:
    """Return the jitted function of parameters and tokens."""
    specs = {"layers": LAYER, "ends": ENDS}
    compute = jax.value_and_grad(partial(loss, on_parts=on_parts, computes_again=computes_again))
    mapped = jax.shard_map(compute, mesh=mesh, in_specs=(specs, BATCH), out_specs=(P(), specs))
    return jax.jit(mapped)
