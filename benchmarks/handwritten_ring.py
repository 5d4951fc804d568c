"""Ring attention as a JAX user writes it: `shard_map`, `ppermute`, and a backward pass of its own.

Queries are [head, sharer, position, depth], keys and values [head, position, depth]; positions are split over the axis `ring`.
Each device keeps its queries, and attends to one block of keys and values after the other, in chunks of queries, as they travel
(Liu et al., "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

MASKED = -30000.0
MOST = 2**20
"""The logits in memory at once."""

P: Any = PartitionSpec
QUERIES, KEYS = P(None, None, "ring"), P(None, "ring")


def next_device(*arrays: Any) -> tuple[Any, ...]:
    size = lax.axis_size("ring")
    permute: Any = lax.ppermute
    return tuple(permute(x, "ring", [(i, (i + 1) % size) for i in range(size)]) for x in arrays)


def chunks(q: Any) -> int:
    heads, sharers, positions, _ = q.shape
    total = heads * sharers * positions * positions
    return next(
        n
        for n in range(1, positions + 1)
        if positions % n == 0 and (total <= n * MOST or positions <= n * 64)
    )


def in_chunks(function: Any, number: int, arrays: tuple[Any, ...], axis: int = 2) -> Any:
    """Apply a function to chunks of arrays along an axis, and join the results."""
    if number == 1:
        return function(*arrays)
    parts = [
        jnp.moveaxis(x.reshape(*x.shape[:axis], number, -1, *x.shape[axis + 1 :]), axis, 0) for x in arrays
    ]
    found = lax.map(lambda each: function(*each), tuple(parts))

    def joined(x: Any) -> Any:
        x = jnp.moveaxis(x, 0, axis)
        return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])

    return jax.tree.map(joined, found)


def logits_of(q: Any, k: Any, rows: Any, columns: Any, is_causal: bool) -> Any:
    found = jnp.einsum("hsld,hmd->hslm", q, k)
    return jnp.where(rows[0, 0, :, None] >= columns, found, MASKED) if is_causal else found


def positions(number: Any, size: int) -> Any:
    return number * size + jnp.arange(size)


def block(q: Any, k: Any, v: Any, rows: Any, columns: Any, is_causal: bool) -> Any:
    """Return the weighted sum, the largest logit and the sum of the exponentials of the rest."""

    def chunk(q: Any, rows: Any) -> Any:
        logits = logits_of(q, k, rows, columns, is_causal)
        largest = logits.max(-1)
        weights = jnp.exp(logits - largest[..., None])
        return jnp.einsum("hslm,hmd->hsld", weights, v), largest, weights.sum(-1)

    return in_chunks(chunk, chunks(q), (q, rows[None, None]))


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def ring_attention(q: Any, k: Any, v: Any, is_causal: bool) -> Any:
    return forward(q, k, v, is_causal)[0]


def forward(q: Any, k: Any, v: Any, is_causal: bool) -> Any:
    own, size = lax.axis_index("ring"), lax.axis_size("ring")
    rows = positions(own, q.shape[2])

    def attended(hop: Any, k: Any, v: Any, sums: Any) -> Any:
        columns = positions((own - hop) % size, k.shape[1])
        found, largest, total = block(q, k, v, rows, columns, is_causal)
        new = jnp.maximum(sums[1], largest)
        before, share = jnp.exp(sums[1] - new), jnp.exp(largest - new)
        return sums[0] * before[..., None] + found * share[..., None], new, sums[2] * before + total * share

    def hop(i: Any, carry: Any) -> Any:
        k, v, sums = carry
        sent = next_device(k, v)
        return *sent, attended(i, k, v, sums)

    numbers = jnp.zeros_like(q[..., 0])
    sums = jnp.zeros_like(q), numbers - jnp.inf, numbers
    moved_k, moved_v, sums = lax.fori_loop(0, size - 1, hop, (k, v, sums))
    total, largest, share = attended(size - 1, moved_k, moved_v, sums)
    y = total / share[..., None]
    return y, (q, k, v, y, largest, share)


def backward(is_causal: bool, kept: Any, given: Any) -> Any:
    q, k, v, y, largest, share = kept
    own, size = lax.axis_index("ring"), lax.axis_size("ring")
    rows, delta = positions(own, q.shape[2]), (y * given).sum(-1)

    def gradients(hop: Any, k: Any, v: Any) -> Any:
        columns = positions((own - hop) % size, k.shape[1])

        def chunk(q: Any, given: Any, largest: Any, share: Any, delta: Any, rows: Any) -> Any:
            logits = logits_of(q, k, rows, columns, is_causal)
            weights = jnp.exp(logits - largest[..., None]) / share[..., None]
            change = weights * (jnp.einsum("hsld,hmd->hslm", given, v) - delta[..., None])
            dk, dv = jnp.einsum("hslm,hsld->hmd", change, q), jnp.einsum("hslm,hsld->hmd", weights, given)
            return jnp.einsum("hslm,hmd->hsld", change, k), dk, dv

        number = chunks(q)
        if number == 1:
            return chunk(q, given, largest, share, delta, rows[None, None])

        def parts(x: Any) -> Any:
            return jnp.moveaxis(x.reshape(*x.shape[:2], number, -1, *x.shape[3:]), 2, 0)

        def added(sums: Any, part: Any) -> Any:
            dq, *more = chunk(*part)
            return tuple(map(jnp.add, sums, more)), dq

        operands = tuple(map(parts, (q, given, largest, share, delta, rows[None, None])))
        (dk, dv), dq = lax.scan(added, (jnp.zeros_like(k), jnp.zeros_like(v)), operands)
        return jnp.moveaxis(dq, 0, 2).reshape(q.shape), dk, dv

    def hop(i: Any, carry: Any) -> Any:
        k, v, dq, dk, dv = carry
        more = gradients(i, k, v)
        sent = next_device(k, v)
        dk, dv = next_device(dk + more[1], dv + more[2])
        return *sent, dq + more[0], dk, dv

    zeros = jnp.zeros_like(q), jnp.zeros_like(k), jnp.zeros_like(v)
    moved_k, moved_v, dq, dk, dv = lax.fori_loop(0, size - 1, hop, (k, v, *zeros))
    more = gradients(size - 1, moved_k, moved_v)
    return dq + more[0], *next_device(dk + more[1], dv + more[2])


ring_attention.defvjp(forward, backward)


def loss_and_gradients(is_causal: bool) -> Any:
    """Return a function of arrays on a mesh with the axis `ring`: the sum of attention times `given`, and its gradients."""

    @partial(jax.shard_map, in_specs=(QUERIES, KEYS, KEYS, QUERIES), out_specs=P())
    def loss(q: Any, k: Any, v: Any, given: Any) -> Any:
        total: Any = lax.psum
        return total((ring_attention(q, k, v, is_causal) * given).sum(), "ring")

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))
