"""Test mixtures of experts against all experts on all tokens, masked by the capacity."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.harness import call, communication, exact_data, jax_module, lowered, numpy_module
from tests.library.networks import Expected, Network, agrees

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


def taken(rank: int, capacity: int, gates: Any) -> Any:
    """Return a mask of [group, token, expert] within the capacity: better ranks first, then earlier tokens."""
    gates = np.asarray(gates)
    left = np.full((GROUPS, gates.shape[-1]), capacity)
    order = np.argsort(-gates, axis=-1)
    found = np.zeros(gates.shape, np.float32)
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

    agrees(network, mixed(rank, capacity))


@pytest.mark.parametrize(("rank", "experts"), [(1, 4), (2, 4), (1, 1)])
def test_dropless_mixture_of_experts(rank: int, experts: int) -> None:
    layouts = ["groups: (a, b)", "tokens: a, ff: b"]
    if experts > 1:
        layouts = [
            "groups: (a, b), experts: (a, b)",
            "groups: (a, b), experts: b",
            "tokens: b, groups: a, experts: (b, a)",
        ]
    agrees(dropless(rank, layouts, experts), mixed(rank, TOKENS, experts))


def mixed(rank: int, capacity: int, experts: int = EXPERTS) -> Expected:
    """Return a function that computes every expert for every token."""

    def expected(x: Any, **p: Any) -> dict[str, Any]:
        gates = jax.nn.softmax(x @ p["moe_router"])
        best = jnp.sort(gates, -1)[..., ::-1][..., :rank]
        share = gates / (best.sum(-1, keepdims=True) if rank > 1 else 1)
        mask = jax.ShapeDtypeStruct(gates.shape, "float32")
        share *= jax.pure_callback(partial(taken, rank, capacity), mask, jax.lax.stop_gradient(gates))
        y = sum(share[..., number, None] * expert(x, number, p) for number in range(experts))
        used = jax.nn.one_hot(gates.argmax(-1), experts).mean(1)
        return {"y": y, "balance": experts * (used * gates.mean(1)).sum(-1).mean()}

    return expected


def test_ties_go_to_one_expert_and_nan_stays_in_its_token() -> None:
    """Tokens of zeros tie: all of them go to the first two experts. A token of NaN makes no other token NaN."""
    source = dropless(2, ["groups: (a, b), experts: (a, b)"]).source
    program = lowered(source, of="forward")
    arrays = exact_data(program.function("forward"), seed=0)
    arrays["x"] = np.zeros_like(arrays["x"])
    arrays["x"][1, 2] = np.nan
    for made in (numpy_module(program), jax_module(program)):
        y = np.asarray(call(made, program.function("forward"), arrays)["y"])
        assert np.isnan(y[1, 2]).all()
        assert np.isnan(y).sum() == y[1, 2].size


def dropless(rank: int, layouts: list[str], experts: int = EXPERTS) -> Network:
    return Network(
        imports=["moe"],
        dims={"groups": GROUPS, "tokens": TOKENS, "d": 8, "experts": experts, "ff": 64},
        layouts=layouts,
        inputs={"x": "f32[groups, tokens, d]"},
        body=f"y, balance = moe.dropless_top_{rank}[experts = experts, d_ff = ff](x) as moe",
        outputs={"y": "groups, tokens, d", "balance": ""},
    )


def test_tokens_travel_by_all_to_all() -> None:
    """The forward pass sends tokens to the experts once and back once, and the balance is one number."""
    network = mixture(2, 3, ["groups: (a, b), experts: (a, b)"])
    sent = GROUPS * EXPERTS * 3 * 8 // 4
    found = communication(network.source, of="forward")
    assert [each for each in found if each[0] == "all_to_all"] == [("all_to_all", ("a", "b"), sent)] * 2
    assert all(kind == "all_reduce" and size <= 2 for kind, _, size in found if kind != "all_to_all")


def test_tokens_without_capacity_are_gathered_and_their_results_scattered() -> None:
    """Two dots and a ReLU in between send x, the numbers and weights of the tokens there, and the sum of both ranks back."""
    found = communication(dropless(2, ["groups: (a, b), experts: (a, b)"]).source, of="forward")
    kinds = [(kind, size) for kind, _, size in found if kind != "all_reduce"]
    tokens = GROUPS * TOKENS
    each = tokens // 4
    assert sorted(kinds) == [
        ("all_gather", each * 2),
        ("all_gather", each * 2),
        ("all_gather", each * 8),
        ("reduce_scatter", tokens * 8),
    ]


def test_small_parameters_travel_in_the_place_of_tokens() -> None:
    network = dropless(2, ["groups: (a, b), experts: (a, b)"])
    source = network.source.replace("dim ff = 64", "dim ff = 4").replace("dim tokens = 6", "dim tokens = 60")
    found = communication(source, of="forward")
    assert {kind for kind, _, _ in found} == {"all_gather", "all_reduce"}
    assert sum(size for kind, _, size in found if kind == "all_gather") == 2 * 8 * 4
    rows = source.replace("experts: (a, b)", "experts: (a, b), forms: { groups: rows }")
    assert "reduce_scatter" in {kind for kind, _, _ in communication(rows, of="forward")}
