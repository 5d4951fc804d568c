"""Test mixtures of experts against all experts on all tokens, masked by the capacity."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.harness import communication
from tests.library.networks import Network, agrees

GROUPS, TOKENS, EXPERTS = 4, 6, 4


def mixture(rank: int, capacity: int, layouts: list[str]) -> Network:
    return Network(
        imports=["moe"],
        dims={"groups": GROUPS, "tokens": TOKENS, "d": 8, "experts": EXPERTS, "capacity": capacity, "ff": 16},
        layouts=layouts,
        inputs={"x": "f32[groups, tokens, d]"},
        body=f"""
          y, balance = moe.top_{rank}[experts = experts, capacity = capacity, d_ff = ff](x) as moe
        """,
        outputs={"y": "groups, tokens, d", "balance": ""},
    )


def expert(x: Any, number: int, p: Any) -> Any:
    h = jnp.maximum(x @ p["moe_routed_feed_forwards_wi"][number], 0)
    return h @ p["moe_routed_feed_forwards_wo"][number]


def taken(gates: Any, rank: int, capacity: int) -> Any:
    """Return a mask of [group, token, expert] within the capacity: better ranks first, then earlier tokens."""
    left = np.full((GROUPS, EXPERTS), capacity)
    order = np.argsort(-gates, axis=-1)
    found = np.zeros((GROUPS, TOKENS, EXPERTS), np.float32)
    for choice in range(rank):
        for group, token in np.ndindex(GROUPS, TOKENS):
            number = order[group, token, choice]
            if left[group, number]:
                found[group, token, number] = 1
                left[group, number] -= 1
    return found


@pytest.mark.parametrize(("rank", "capacity"), [(1, 2), (2, 3), (2, 12)])
def test_mixture_of_experts(rank: int, capacity: int) -> None:
    layouts = ["groups: a, experts: a, ff: b", "groups: (a, b), experts: (a, b)", "experts: b"]
    network = mixture(rank, capacity, layouts)

    def expected(x: Any, **p: Any) -> dict[str, Any]:
        gates = jax.nn.softmax(x @ p["moe_router"])
        best = jnp.sort(gates, -1)[..., ::-1][..., :rank]
        share = gates / (best.sum(-1, keepdims=True) if rank > 1 else 1)
        share = share * taken(jax.lax.stop_gradient(gates), rank, capacity)
        y = sum(share[..., number, None] * expert(x, number, p) for number in range(EXPERTS))
        used = jax.nn.one_hot(gates.argmax(-1), EXPERTS).mean(1)
        return {"y": y, "balance": EXPERTS * (used * gates.mean(1)).sum(-1).mean()}

    agrees(network, expected)


def test_tokens_travel_by_all_to_all() -> None:
    """The forward pass sends tokens to the experts once and back once, and the balance is one number."""
    network = mixture(2, 3, ["groups: (a, b), experts: (a, b)"])
    sent = GROUPS * EXPERTS * 3 * 8 // 4
    found = communication(network.source, of="forward")
    assert [each for each in found if each[0] == "all_to_all"] == [("all_to_all", ("a", "b"), sent)] * 2
    assert all(kind == "all_reduce" and size <= 2 for kind, _, size in found if kind != "all_to_all")
