"""Test attention and the layers of the Transformer against computations for each position and head."""

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


def attend(q: Any, k: Any, v: Any, mask: Any, bias: Any = 0.0) -> Any:
    """Compute attention.

    q: [batch, length, heads, d_k]. k, v: [batch, memory, heads, d_k]. mask: [length, memory] or [batch, length, memory]. bias:
    [heads, length, memory]."""
    scores = jnp.einsum("blhk,bmhk->bhlm", q, k) / np.sqrt(q.shape[-1]) + bias
    mask = jnp.broadcast_to(mask, (q.shape[0], *mask.shape[-2:]))[:, None]
    return jnp.einsum("bhlm,bmhk->blhk", jax.nn.softmax(jnp.where(mask, scores, -jnp.inf)), v)


def multi_head(x: Any, source: Any, mask: Any, p: Any, name: str, bias: Any = 0.0) -> Any:
    q = jnp.einsum("bld,hdk->blhk", x, p[f"{name}_wq"])
    k, v = (jnp.einsum("bmd,hdk->bmhk", source, p[f"{name}_{w}"]) for w in ("wk", "wv"))
    return jnp.einsum("blhk,hkd->bld", attend(q, k, v, mask, bias), p[f"{name}_wo"])


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


def test_documents_in_one_row_do_not_see_each_other() -> None:
    network = Network(
        imports=["attention"],
        dims=DIMS,
        layouts=["batch: a, length: b", "batch: b, heads: a"],
        inputs={**ROWS, "segments": "i32[batch, length]"},
        body="""
          causal = attention.causal[length = length, memory = memory]()
          mask = causal and attention.same_segment[memory = memory](segments)
          y = attention.multi_head[memory = memory, heads = heads, d_k = d_k](x, mask = mask) as packed
        """,
        outputs={"y": "batch, length, d"},
        below={"segments": 3},
    )

    def expected(x: Any, segments: Any, **p: Any) -> dict[str, Any]:
        same = segments[:, :, None] == segments[:, None, :]
        assert 0 < same.mean() < 1
        return {"y": multi_head(x, x, CAUSAL & same, p, "packed")}

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


def test_shared_keys_and_values_for_one_position_after_the_other() -> None:
    network = Network(
        imports=["decoding"],
        dims=DIMS,
        layouts=["batch: a, heads: b"],
        inputs=ROWS,
        body="""
          keys = zeros([batch, memory, d_k])
          values = zeros([batch, memory, d_k])
          scan x_i = x, i = range(length) along length {
            y_i, keys, values = decoding.multi_query_at[heads = heads](x_i, keys, values, i) as multi_query
            yield y = y_i
          }
        """,
        outputs={"y": "length, batch, d"},
    )

    def expected(x: Any, **p: Any) -> dict[str, Any]:
        return {"y": jnp.swapaxes(multi_query(x, p), 0, 1)}

    agrees(network, expected)


def multi_query(x: Any, p: Any) -> Any:
    q = jnp.einsum("bld,hdk->blhk", x, p["multi_query_wq"])
    k, v = (jnp.repeat((x @ p[f"multi_query_{w}"])[:, :, None], 4, 2) for w in ("wk", "wv"))
    return jnp.einsum("blhk,hkd->bld", attend(q, k, v, CAUSAL), p["multi_query_wo"])


def grouped_query(x: Any, p: Any) -> Any:
    """Compute attention with a copy of keys and values for each head of queries."""
    q = rotated(jnp.einsum("bld,ghdk->blghk", x, p["grouped_query_wq"]).reshape(2, 8, 8, 4))
    k, v = (jnp.einsum("bld,gdk->blgk", x, p[f"grouped_query_{w}"]) for w in ("wk", "wv"))
    k, v = (jnp.repeat(each, 4, 2) for each in (rotated(k), v))
    found = attend(q, k, v, CAUSAL).reshape(2, 8, 2, 4, 4)
    return jnp.einsum("blghk,ghkd->bld", found, p["grouped_query_wo"])


def rotated(x: Any) -> Any:
    """Rotate `x` [batch, length, heads, d], whose halves of d are parts of complex numbers."""
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
    """Compute attention in which blocks of two positions see themselves and up to `reach` positions before."""
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
        inputs={
            **ROWS,
            "source": "f32[batch, source_length, d]",
            "seen": "bool[batch, source_length]",
            "near": "f32[heads, length, memory]",
            "far": "f32[heads, source_length, source_memory]",
        },
        body="""
          e = transformer.encoder_layer[memory = source_memory, heads = heads, d_k = d_k, d_ff = ff](
            source, mask = rename(seen, source_length -> source_memory), bias = far
          ) as encoder
          l = transformer.decoder_layer[memory = memory, heads = heads, d_k = d_k, d_ff = ff](x, bias = near) as alone
          y = transformer.cross_decoder_layer[memory = memory, heads = heads, d_k = d_k, d_ff = ff](
            x, e, source_mask = seen, bias = near
          ) as decoder
        """,
        outputs={"e": "batch, source_length, d", "l": "batch, length, d", "y": "batch, length, d"},
    )

    def expected(x: Any, source: Any, seen: Any, near: Any, far: Any, **p: Any) -> dict[str, Any]:
        s = source
        s = s + heads(s, seen[:, None], far, p, "encoder")
        s = s + forward(normalized(s, p, "encoder_layer_norm_2"), p, "encoder_feed_forward")
        a = x + heads(x, CAUSAL, near, p, "alone")
        a = a + forward(normalized(a, p, "alone_layer_norm_2"), p, "alone_feed_forward")
        y = x + heads(x, CAUSAL, near, p, "decoder")
        y = y + multi_head(normalized(y, p, "decoder_layer_norm_2"), s, seen[:, None], p, "decoder_cross")
        y = y + forward(normalized(y, p, "decoder_layer_norm_3"), p, "decoder_feed_forward")
        return {"e": s, "l": a, "y": y}

    agrees(network, expected)


def heads(x: Any, mask: Any, bias: Any, p: Any, scope: str) -> Any:
    """Compute self-attention after normalization."""
    n = normalized(x, p, f"{scope}_layer_norm")
    return multi_head(n, n, mask, p, f"{scope}_multi_head", bias)


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


@pytest.mark.parametrize("layout", ["batch: a, heads: b", "length: a, heads: b", "short: a, batch: b"])
def test_compressed(layout: str) -> None:
    network = Network(
        imports=["attention"],
        dims={**DIMS, "length": 12, "short": 4, "three": 3, "five": 5},
        layouts=[layout],
        inputs=ROWS,
        body="""
          all = attention.compressed[memory = short, kernel = five, heads = heads, d_k = d_k](x) as all
          left = attention.compressed[memory = short, kernel = three, heads = heads, d_k = d_k](x, causal = true) as left
        """,
        outputs=dict.fromkeys(("all", "left"), "batch, length, d"),
    )

    def attended(x: Any, rows: Any, mask: Any, p: Any, name: str) -> Any:
        """Compute attention with one key and value for each of `rows` [short, kernel, batch, d]."""
        q = jnp.einsum("bld,hdk->blhk", x, p[f"{name}_wq"])
        k, v = (jnp.einsum("mcbd,chdk->bmhk", rows, p[f"{name}_{w}"]) for w in ("wk", "wv"))
        return jnp.einsum("blhk,hkd->bld", attend(q, k, v, mask), p[f"{name}_wo"])

    def expected(x: Any, **p: Any) -> dict[str, Any]:
        steps = jnp.moveaxis(jnp.pad(x, ((0, 0), (3, 2), (0, 0))), 1, 0)
        all = jnp.stack([steps[m + 3 : m + 8] for m in range(0, 12, 3)])
        before = jnp.stack([steps[m : m + 3] for m in range(0, 12, 3)])
        seen = np.array([[3 * m - 1 <= i for m in range(4)] for i in range(12)])
        return {
            "all": attended(x, all, np.ones((12, 4), bool), p, "all"),
            "left": attended(x, before, seen, p, "left"),
        }

    agrees(network, expected)


def bucket(distance: int, buckets: int, causal: bool, furthest: int) -> int:
    """Return the last bucket i with a distance of at least exact * (furthest / exact) ** (i / wide), in integer arithmetic."""
    first, side = (0, buckets) if causal else (buckets // 2 * (distance > 0), buckets // 2)
    far = max(-distance, 0) if causal else abs(distance)
    exact, wide = side // 2, side - side // 2
    if far < exact:
        return first + far
    reached = [i for i in range(wide) if far**wide * exact**i >= furthest**i * exact**wide]
    return first + exact + reached[-1]


def test_relative_bias() -> None:
    network = Network(
        imports=["attention"],
        dims={**DIMS, "length": 40, "memory": 40, "buckets": 16},
        layouts=["batch: a, heads: b", "length: a, memory: b"],
        inputs={"x": "f32[batch, length, d]"},
        body="""
          both = attention.relative_bias[length = length, memory = memory, buckets = buckets, heads = heads](
            furthest = 32
          ) as both
          left = attention.relative_bias[length = length, memory = memory, buckets = buckets, heads = heads](
            causal = true
          ) as left
          y = attention.multi_head[memory = memory, heads = heads, d_k = d_k](x, bias = both)
        """,
        outputs={**dict.fromkeys(("both", "left"), "heads, length, memory"), "y": "batch, length, d"},
    )

    def expected(x: Any, both_table: Any, left_table: Any, **p: Any) -> dict[str, Any]:
        both, left = biases(both_table, False, 32), biases(left_table, True, 128)
        return {"both": both, "left": left, "y": multi_head(x, x, ALL, p, "multi_head", both)}

    agrees(network, expected)


def biases(table: Any, causal: bool, furthest: int) -> Any:
    """Return the bias [heads, length, memory] of 40 positions from a table [buckets, heads]."""
    chosen = [[bucket(m - i, 16, causal, furthest) for m in range(40)] for i in range(40)]
    return jnp.moveaxis(table[np.array(chosen)], 2, 0)


ALL = np.ones((40, 40), bool)


def test_relative_bias_for_one_position_after_the_other() -> None:
    network = Network(
        imports=["decoding"],
        dims={**DIMS, "length": 40, "memory": 40, "buckets": 16},
        layouts=["batch: a, heads: b"],
        inputs={"x": "f32[batch, length, d]"},
        body="""
          keys = zeros([batch, heads, memory, d_k])
          values = zeros([batch, heads, memory, d_k])
          scan x_i = x, i = range(length) along length {
            bias = decoding.relative_bias_at[memory = memory, buckets = buckets, heads = heads](
              i, furthest = 32
            ) as relative_bias
            y_i, keys, values = decoding.decoder_layer_at[d_ff = ff](
              x_i, keys, values, i, bias = bias
            ) as layer
            yield y = y_i
          }
        """,
        outputs={"y": "length, batch, d"},
    )

    def expected(x: Any, relative_bias_table: Any, **p: Any) -> dict[str, Any]:
        y = x + heads(x, np.tril(ALL), biases(relative_bias_table, True, 32), p, "layer")
        y = y + forward(normalized(y, p, "layer_layer_norm_2"), p, "layer_feed_forward")
        return {"y": jnp.swapaxes(y, 0, 1)}

    agrees(network, expected)
