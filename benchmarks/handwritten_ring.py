"""Ring attention as a JAX user writes it: `shard_map`, `ppermute`, and a backward pass of its own.

Queries are [head, sharer, position, depth], keys and values [head, position, depth]; positions are split over the axis `ring`.
Each device keeps its queries, and attends to one block of keys and values after the other, in chunks of queries, as they travel
(Liu et al., "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023).

The balanced ring for causal masks gives each device a half of the sequence from the front and one from the back (zig-zag order).
Its model has positions in natural order, so halves are exchanged on the way in and on the way out: each device keeps half of its
block. A hop then takes half of the products, which differ from device to device: `lax.cond` chooses.
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


def block_gradients(of_rows: Any, k: Any, v: Any, rows: Any, columns: Any, is_causal: bool) -> Any:
    """Return the gradients of queries, keys and values.

    of_rows: queries, gradients of results, largest logits, sums of exponentials, and products of results with their gradients.
    """

    def chunk(q: Any, given: Any, largest: Any, share: Any, delta: Any, rows: Any) -> Any:
        logits = logits_of(q, k, rows, columns, is_causal)
        weights = jnp.exp(logits - largest[..., None]) / share[..., None]
        change = weights * (jnp.einsum("hsld,hmd->hslm", given, v) - delta[..., None])
        dk, dv = jnp.einsum("hslm,hsld->hmd", change, q), jnp.einsum("hslm,hsld->hmd", weights, given)
        return jnp.einsum("hslm,hmd->hsld", change, k), dk, dv

    q, given_rows = of_rows[0], (*of_rows, rows[None, None])
    number = chunks(q)
    if number == 1:
        return chunk(*given_rows)

    def parts(x: Any) -> Any:
        return jnp.moveaxis(x.reshape(*x.shape[:2], number, -1, *x.shape[3:]), 2, 0)

    def added(sums: Any, part: Any) -> Any:
        dq, *more = chunk(*part)
        return tuple(map(jnp.add, sums, more)), dq

    operands = tuple(map(parts, given_rows))
    (dk, dv), dq = lax.scan(added, (jnp.zeros_like(k), jnp.zeros_like(v)), operands)
    return jnp.moveaxis(dq, 0, 2).reshape(q.shape), dk, dv


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
        return block_gradients((q, given, largest, share, delta), k, v, rows, columns, is_causal)

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


# The balanced ring. Arrays hold the front half and then the back half of a device.


def mirrored(x: Any) -> Any:
    size = lax.axis_size("ring")
    permute: Any = lax.ppermute
    return permute(x, "ring", [(i, size - 1 - i) for i in range(size)])


def ordered(first: Any, second: Any) -> Any:
    """Return two halves as they are on devices whose own first half is their front half, else the other way round."""
    is_front = 2 * lax.axis_index("ring") < lax.axis_size("ring")
    return jnp.where(is_front, first, second), jnp.where(is_front, second, first)


def balanced(x: Any, axis: int = -2) -> Any:
    """Return the front and the back half of each device, from a block of neighbouring positions."""
    first, second = jnp.split(x, 2, axis)
    return jnp.concatenate(ordered(first, mirrored(second)), axis)


def natural(x: Any) -> Any:
    """Return the block of neighbouring positions: the reverse of `balanced`."""
    first, second = ordered(*jnp.split(x, 2, -2))
    return jnp.concatenate([first, mirrored(second)], -2)


def front(x: Any, axis: int = -2) -> Any:
    return jnp.split(x, 2, axis)[0]


def back(x: Any, axis: int = -2) -> Any:
    return jnp.split(x, 2, axis)[1]


def behind(x: Any, axis: int, nothing: float = 0.0) -> Any:
    """Return numbers of the back half behind a front half of nothing."""
    return jnp.concatenate([jnp.full_like(x, nothing), x], axis)


def front_number(device: Any) -> Any:
    return jnp.minimum(2 * device, 2 * lax.axis_size("ring") - 1 - 2 * device)


def comes_before(hop: Any) -> Any:
    """Return True if a block that comes in so many hops has a front half before that of the device."""
    own, size = lax.axis_index("ring"), lax.axis_size("ring")
    return front_number((own - hop) % size) < front_number(own)


def own_positions(size: int) -> Any:
    first = front_number(lax.axis_index("ring"))
    last = 2 * lax.axis_size("ring") - 1 - first
    return jnp.concatenate([positions(first, size // 2), positions(last, size // 2)])


@jax.custom_vjp
def balanced_attention(q: Any, k: Any, v: Any) -> Any:
    return balanced_forward(q, k, v)[0]


def merged(x: Any, y: Any) -> Any:
    new = jnp.maximum(x[1], y[1])
    before, share = jnp.exp(x[1] - new), jnp.exp(y[1] - new)
    return x[0] * before[..., None] + y[0] * share[..., None], new, x[2] * before + y[2] * share


def balanced_forward(q: Any, k: Any, v: Any) -> Any:
    q, k, v = balanced(q), balanced(k), balanced(v)
    size, rows = lax.axis_size("ring"), own_positions(q.shape[2])

    def visible(q: Any, k: Any, v: Any) -> Any:
        return block(q, k, v, rows[: q.shape[2]], rows, is_causal=False)

    def earlier(k: Any, v: Any) -> Any:
        return visible(q, front(k), front(v))

    def later(k: Any, v: Any) -> Any:
        total, largest, share = visible(back(q), k, v)
        return behind(total, 2), behind(largest, 2, -jnp.inf), behind(share, 2)

    def hop(i: Any, carry: Any) -> Any:
        k, v, sums = carry
        sent = next_device(k, v)
        return *sent, merged(sums, lax.cond(comes_before(i), earlier, later, k, v))

    sums = block(q, k, v, rows, rows, is_causal=True)
    last_k, last_v, sums = lax.fori_loop(1, size - 1, hop, (*next_device(k, v), sums))
    found = lax.cond(comes_before(size - 1), earlier, later, last_k, last_v)
    total, largest, share = merged(sums, found)
    y = total / share[..., None]
    return natural(y), (q, k, v, y, largest, share)


def balanced_backward(kept: Any, given: Any) -> Any:
    q, k, v, y, largest, share = kept
    size, rows, given = lax.axis_size("ring"), own_positions(q.shape[2]), balanced(given)
    of_rows = q, given, largest, share, (y * given).sum(-1)

    def earlier(k: Any, v: Any) -> Any:
        dq, dk, dv = block_gradients(of_rows, front(k), front(v), rows, rows, is_causal=False)
        nothing = jnp.zeros_like(dk)
        return dq, jnp.concatenate([dk, nothing], 1), jnp.concatenate([dv, nothing], 1)

    def later(k: Any, v: Any) -> Any:
        half = tuple(back(x, 2) for x in of_rows)
        dq, dk, dv = block_gradients(half, k, v, rows[: half[0].shape[2]], rows, is_causal=False)
        return behind(dq, 2), dk, dv

    def hop(i: Any, carry: Any) -> Any:
        k, v, dq, dk, dv = carry
        more = lax.cond(comes_before(i), earlier, later, k, v)
        sent, (dk, dv) = next_device(k, v), next_device(dk, dv)
        return *sent, dq + more[0], dk + more[1], dv + more[2]

    own = block_gradients(of_rows, k, v, rows, rows, is_causal=True)
    last_k, last_v, dq, dk, dv = lax.fori_loop(1, size - 1, hop, (*next_device(k, v), *own))
    more = lax.cond(comes_before(size - 1), earlier, later, last_k, last_v)
    dk, dv = next_device(dk, dv)
    dk, dv = next_device(dk + more[1], dv + more[2])
    return natural(dq + more[0]), natural(dk), natural(dv)


balanced_attention.defvjp(balanced_forward, balanced_backward)


def loss_and_gradients(is_causal: bool, is_balanced: bool = False) -> Any:
    """Return a function of arrays on a mesh with the axis `ring`: the sum of attention times `given`, and its gradients."""
    attention: Any = balanced_attention if is_balanced else lambda q, k, v: ring_attention(q, k, v, is_causal)

    @partial(jax.shard_map, in_specs=(QUERIES, KEYS, KEYS, QUERIES), out_specs=P())
    def loss(q: Any, k: Any, v: Any, given: Any) -> Any:
        total: Any = lax.psum
        return total((attention(q, k, v) * given).sum(), "ring")

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))
