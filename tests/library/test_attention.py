"""Attention and the layers of the Transformer, each position and head apart."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.library.networks import Network, agrees

DIMS = {"batch": 2, "length": 8, "memory": 8, "d": 8, "heads": 4, "d_k": 4, "ff": 16}
ROWS = {"x": "f32[batch, length, d]"}
MODEL_PARALLEL = "batch: a, heads: b, ff: b"
SEQUENCE_PARALLEL = "length: a, heads: b"


def attend(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """q: [batch, length, heads, d_k]; k, v: [batch, memory, heads, d_k]; mask: [length, memory] or [batch, length, memory]."""
    scores = jnp.einsum("blhk,bmhk->bhlm", q, k) / np.sqrt(q.shape[-1])
    mask = jnp.broadcast_to(mask, (q.shape[0], *mask.shape[-2:]))[:, None]
    return jnp.einsum("bhlm,bmhk->blhk", jax.nn.softmax(jnp.where(mask, scores, -jnp.inf)), v)


def multi_head(x: Any, source: Any, mask: Any, p: Any, name: str) -> Any:
    q = jnp.einsum("bld,hdk->blhk", x, p[f"{name}_wq"])
    k, v = (jnp.einsum("bmd,hdk->bmhk", source, p[f"{name}_{w}"]) for w in ("wk", "wv"))
    return jnp.einsum("blhk,hkd->bld", attend(q, k, v, mask), p[f"{name}_wo"])


CAUSAL = np.tril(np.ones((8, 8), bool))


@pytest.mark.parametrize("layout", [MODEL_PARALLEL, SEQUENCE_PARALLEL, "memory: b, batch: a"])
def test_multi_head(layout: str) -> None:
    network = Network(
        imports=["attention"],
        dims=DIMS,
        layouts=[layout],
        inputs={**ROWS, "seen": "bool[batch, memory]"},
        body="""
          full = attention.multi_head[memory = memory, heads = heads, d_k = d_k](x)
          mask = attention.causal[length = length, memory = memory]()
          left = attention.multi_head[memory = memory, heads = heads, d_k = d_k](x, mask = mask) as left
          some = attention.multi_head[memory = memory, heads = heads, d_k = d_k](x, mask = seen) as some
        """,
        outputs=dict.fromkeys(("full", "left", "some"), "batch, length, d"),
    )

    def expected(x: Any, seen: Any, **p: Any) -> dict[str, Any]:
        return {
            "full": multi_head(x, x, np.ones((8, 8), bool), p, "multi_head"),
            "left": multi_head(x, x, CAUSAL, p, "left"),
            "some": multi_head(x, x, seen[:, None], p, "some"),
        }

    agrees(network, expected)


def test_shared_keys_and_values() -> None:
    network = Network(
        imports=["attention"],
        dims={**DIMS, "groups": 2},
        layouts=["batch: a, heads: b", "batch: b, groups: a"],
        inputs=ROWS,
        body="""
          mask = attention.causal[length = length, memory = memory]()
          one = attention.multi_query[memory = memory, heads = heads, d_k = d_k](x, mask = mask)
          two = attention.grouped_query[memory = memory, groups = groups, heads = heads, d_k = d_k](x, mask = mask)
        """,
        outputs=dict.fromkeys(("one", "two"), "batch, length, d"),
    )

    def expected(x: Any, **p: Any) -> dict[str, Any]:
        return {"one": multi_query(x, p), "two": grouped_query(x, p)}

    agrees(network, expected)


def multi_query(x: Any, p: Any) -> Any:
    q = jnp.einsum("bld,hdk->blhk", x, p["multi_query_wq"])
    k, v = (jnp.repeat((x @ p[f"multi_query_{w}"])[:, :, None], 4, 2) for w in ("wk", "wv"))
    return jnp.einsum("blhk,hkd->bld", attend(q, k, v, CAUSAL), p["multi_query_wo"])


def grouped_query(x: Any, p: Any) -> Any:
    """With a copy of keys and values for each head of queries."""
    q = rotated(jnp.einsum("bld,ghdk->blghk", x, p["grouped_query_wq"]).reshape(2, 8, 8, 4))
    k, v = (jnp.einsum("bld,gdk->blgk", x, p[f"grouped_query_{w}"]) for w in ("wk", "wv"))
    k, v = (jnp.repeat(each, 4, 2) for each in (rotated(k), v))
    found = attend(q, k, v, CAUSAL).reshape(2, 8, 2, 4, 4)
    return jnp.einsum("blghk,ghkd->bld", found, p["grouped_query_wo"])


def rotated(x: Any) -> Any:
    """`x` [batch, length, heads, d], as complex numbers of halves of d, turned."""
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[1])[:, None, None] * 10000.0 ** (-np.arange(half) / half)
    turned = jax.lax.complex(x[..., :half], x[..., half:]) * np.exp(1j * angle).astype(np.complex64)
    return jnp.concatenate([turned.real, turned.imag], -1)


def test_rotary() -> None:
    network = Network(
        imports=["attention"],
        dims={"batch": 2, "length": 8, "heads": 4, "d": 6},
        layouts=["length: a, heads: b"],
        inputs={"x": "f32[batch, heads, length, d]", "y": "f32[batch, d]", "t": "i32[]"},
        body="""
          all = attention.rotary(x)
          later = attention.rotary(x, offset = 5)
          one = attention.rotary_at(y, t)
        """,
        outputs={"all": "batch, heads, length, d", "later": "batch, heads, length, d", "one": "batch, d"},
        below={"t": 8},
    )

    def expected(x: Any, y: Any, t: Any) -> dict[str, Any]:
        x = jnp.swapaxes(x, 1, 2)
        padded = jnp.concatenate([jnp.zeros((2, 5, 4, 6), jnp.float32), x], 1)
        rows = rotated(jnp.broadcast_to(y[:, None, None], (2, 8, 1, 6)))
        return {
            "all": jnp.swapaxes(rotated(x), 1, 2),
            "later": jnp.swapaxes(rotated(padded)[:, 5:], 1, 2),
            "one": rows[:, t, 0],
        }

    agrees(network, expected)


@pytest.mark.parametrize(("memory", "reach"), [(4, 2), (5, 3)])
def test_local(memory: int, reach: int) -> None:
    """Blocks of two positions see themselves and up to `reach` positions back."""
    network = Network(
        imports=["attention"],
        dims={**DIMS, "memory": memory, "blocks": 4, "block": 2},
        layouts=[MODEL_PARALLEL, "length: a, blocks: a, heads: b"],
        inputs=ROWS,
        body="""
          y = attention.local[blocks = blocks, block = block, memory = memory, heads = heads, d_k = d_k](x)
        """,
        outputs={"y": "batch, length, d"},
    )
    distance = np.arange(8)[:, None] - np.arange(8)
    mask = (distance >= 0) & (distance <= reach)

    def expected(x: Any, **p: Any) -> dict[str, Any]:
        return {"y": multi_head(x, x, mask, p, "local")}

    agrees(network, expected)


def normalized(x: Any, p: Any, name: str) -> Any:
    unit = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6)
    return unit * p[f"{name}_scale"] + p[f"{name}_bias"]


def forward(x: Any, p: Any, name: str) -> Any:
    return jnp.maximum(x @ p[f"{name}_wi"], 0) @ p[f"{name}_wo"]


def test_transformer_layers() -> None:
    network = Network(
        imports=["transformer"],
        dims={**DIMS, "source_length": 4, "source_memory": 4},
        layouts=[MODEL_PARALLEL],
        inputs={**ROWS, "source": "f32[batch, source_length, d]", "seen": "bool[batch, source_length]"},
        body="""
          e = transformer.encoder_layer[memory = source_memory, heads = heads, d_k = d_k, d_ff = ff](
            source, mask = rename(seen, source_length -> source_memory)
          ) as encoder
          l = transformer.decoder_layer[memory = memory, heads = heads, d_k = d_k, d_ff = ff](x) as alone
          y = transformer.cross_decoder_layer[memory = memory, heads = heads, d_k = d_k, d_ff = ff](
            x, e, source_mask = seen
          ) as decoder
        """,
        outputs={"e": "batch, source_length, d", "l": "batch, length, d", "y": "batch, length, d"},
    )

    def expected(x: Any, source: Any, seen: Any, **p: Any) -> dict[str, Any]:
        s = source
        s = s + heads(s, s, seen[:, None], p, "encoder", "layer_norm")
        s = s + forward(normalized(s, p, "encoder_layer_norm_2"), p, "encoder_feed_forward")
        a = x + heads(x, x, CAUSAL, p, "alone", "layer_norm")
        a = a + forward(normalized(a, p, "alone_layer_norm_2"), p, "alone_feed_forward")
        y = x + heads(x, x, CAUSAL, p, "decoder", "layer_norm")
        y = y + multi_head(normalized(y, p, "decoder_layer_norm_2"), s, seen[:, None], p, "decoder_cross")
        y = y + forward(normalized(y, p, "decoder_layer_norm_3"), p, "decoder_feed_forward")
        return {"e": s, "l": a, "y": y}

    agrees(network, expected)


def heads(x: Any, source: Any, mask: Any, p: Any, scope: str, norm: str) -> Any:
    """Self-attention after normalization."""
    n = normalized(x, p, f"{scope}_{norm}")
    return multi_head(n, n, mask, p, f"{scope}_multi_head")


def test_llama_layer() -> None:
    network = Network(
        imports=["transformer"],
        dims={**DIMS, "groups": 2},
        layouts=["batch: a, groups: b, ff: b"],
        inputs=ROWS,
        body="""
          y = transformer.llama_layer[
            memory = memory, groups = groups, heads = heads, d_k = d_k, d_ff = ff
          ](x) as layer
        """,
        outputs={"y": "batch, length, d"},
    )

    def root(x: Any, scale: Any) -> Any:
        return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * scale

    def expected(x: Any, **p: Any) -> dict[str, Any]:
        q = {name.removeprefix("layer_"): value for name, value in p.items()}
        h = x + grouped_query(root(x, q["rms_norm_scale"]), q)
        n = root(h, q["rms_norm_2_scale"])
        gate = jax.nn.silu(n @ q["swiglu_w_gate"])
        return {"y": h + (gate * (n @ q["swiglu_w_up"])) @ q["swiglu_w_down"]}

    agrees(network, expected)
