"""A layer of experts as JAX users write it: routed by one-hot einsums under `jax.jit`, and by indices inside of `jax.shard_map`.

Both take a token to its two best experts, each with room for `capacity` tokens of a group, and add a square loss and the balance.
Groups and experts are split over one mesh axis. XLA decides on the communication of the first; the second has two all-to-alls.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

lax: Any = jax.lax
P: Any = PartitionSpec

LEARNING_RATE = 0.1
RANK = 2


def _routes(x: Any, router: Any, capacity: int) -> tuple[Any, Any, Any, Any]:
    """Return experts, places in their queues and shares [groups, tokens, rank] of the chosen experts, and the balance."""
    gates = jax.nn.softmax(jnp.einsum("gtd,de->gte", x, router))
    values, chosen = lax.top_k(gates, RANK)
    shares = values / (values.sum(-1, keepdims=True) + 1e-9)
    hot = jax.nn.one_hot(chosen, router.shape[1], dtype=jnp.int32)
    queues = hot.swapaxes(1, 2).reshape(len(x), -1, router.shape[1])  # better ranks first
    before = (jnp.cumsum(queues, 1) - queues).reshape(len(x), RANK, x.shape[1], -1).swapaxes(1, 2)
    places = (before * hot).sum(-1)
    used = hot[:, :, 0].astype(x.dtype).mean(1)
    return chosen, places, shares, router.shape[1] * (used * gates.mean(1)).sum(-1)


def _experts(received: Any, params: dict[str, Any]) -> Any:
    h = jax.nn.relu(jnp.einsum("gecd,edf->gecf", received, params["wi"]))
    return jnp.einsum("gecf,efd->gecd", h, params["wo"])


def einsum_loss(params: dict[str, Any], x: Any, target: Any, capacity: int, specs: tuple[Any, Any]) -> Any:
    """Return the loss of the whole program. specs: the shardings of slots at the tokens and at the experts."""
    at_tokens, at_experts = specs
    experts = params["router"].shape[1]
    chosen, places, shares, balance = _routes(x, params["router"], capacity)
    seats = jax.nn.one_hot(places, capacity, dtype=x.dtype)
    hot = jax.nn.one_hot(chosen, experts, dtype=x.dtype)
    dispatch = jnp.einsum("gtre,gtrc->gtec", hot, seats)
    combine = jnp.einsum("gtr,gtre,gtrc->gtec", shares, hot, seats)
    sent = lax.with_sharding_constraint(jnp.einsum("gtd,gtec->gecd", x, dispatch), at_tokens)
    made = _experts(lax.with_sharding_constraint(sent, at_experts), params)
    returned = lax.with_sharding_constraint(lax.with_sharding_constraint(made, at_experts), at_tokens)
    y = x + jnp.einsum("gecd,gtec->gtd", returned, combine)
    return jnp.mean(jnp.square(y - target)) + 0.01 * balance.mean()


def index_loss(params: dict[str, Any], x: Any, target: Any, capacity: int, axis: str) -> Any:
    """Return this device's part of the loss. Each slot knows the number of its token, each token the number of its slot."""
    groups, tokens, width = x.shape
    experts = params["router"].shape[1]
    chosen, places, shares, balance = _routes(x, params["router"], capacity)
    slots = experts * capacity
    slot = jnp.where(places < capacity, chosen * capacity + places, slots)
    each = jnp.arange(groups)[:, None]
    numbers = jnp.broadcast_to(jnp.arange(tokens)[:, None], (tokens, RANK)).reshape(-1)
    token = jnp.full((groups, slots), tokens).at[each, slot.reshape(groups, -1)].set(numbers, mode="drop")
    sent = x.at[each, token].get(mode="fill", fill_value=0).reshape(groups, experts, capacity, width)
    received = lax.all_to_all(sent, axis, split_axis=1, concat_axis=0, tiled=True)
    returned = lax.all_to_all(_experts(received, params), axis, split_axis=0, concat_axis=1, tiled=True)
    flat = returned.reshape(groups, slots, width)
    taken = flat.at[each[..., None], slot].get(mode="fill", fill_value=0)
    y = x + (shares[..., None] * taken).sum(2)
    devices = lax.axis_size(axis)
    return (jnp.mean(jnp.square(y - target)) + 0.01 * balance.mean()) / devices


def _updated(params: Any, gradients: Any) -> Any:
    return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, gradients)


def compiled_steps(mesh: Any, capacity: int) -> tuple[dict[str, Any], dict[str, NamedSharding]]:
    """Return the jitted steps by name, and the sharding of each argument. The mesh has one axis."""
    (axis,) = mesh.axis_names
    specs: Any = {"router": P(), "wi": P(axis), "wo": P(axis)}
    split: Any = P(axis)
    sharded = partial(NamedSharding, mesh)

    def by_einsum(params: Any, x: Any, target: Any) -> Any:
        slots = (sharded(split), sharded(P(None, axis)))
        value, gradients = jax.value_and_grad(einsum_loss)(params, x, target, capacity, slots)
        return value, _updated(params, gradients)

    def by_index(params: Any, x: Any, target: Any) -> Any:
        value, gradients = jax.value_and_grad(index_loss)(params, x, target, capacity, axis)
        return lax.psum(value, axis), _updated(params, gradients)

    manual = jax.shard_map(
        by_index,
        mesh=mesh,
        in_specs=(specs, split, split),
        out_specs=(P(), specs),
    )
    places = {name: sharded(spec) for name, spec in {**specs, "x": split, "target": split}.items()}
    params = {name: places[name] for name in specs}
    jitted = partial(
        jax.jit,
        in_shardings=(params, places["x"], places["target"]),
        out_shardings=(sharded(P()), params),
        donate_argnums=0,
    )
    return {"jax.jit, one-hot einsums": jitted(by_einsum), "jax.shard_map, indices": jitted(manual)}, places
