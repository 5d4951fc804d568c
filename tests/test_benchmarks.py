"""The figures of `make bench` that no clock decides."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import peer_jax, peer_moe
from benchmarks.programs import dense_chain
from tests.harness import lowered

SMALL = {"batch": 32, "io": 16, "hidden": 64}


@pytest.mark.parametrize("layout", peer_jax.LAYOUTS)
def test_generated_jax_sends_no_more_than_the_automatic_partitioner(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_jax, "DIMS", SMALL)
    arrays = {name: np.ones((SMALL["batch"], SMALL["io"]), np.float32) for name in ("x", "target")}
    sizes, rules = peer_jax.LAYOUTS[layout]
    _, generated = peer_jax.generated(sizes, rules, arrays)
    _, handwritten = peer_jax.handwritten(sizes, rules, arrays)
    assert generated <= handwritten


def equations(layers: int, layout: str) -> int:
    """Equations of all functions but all-reduces, of which more fit into one where shards are smaller."""
    functions = lowered(dense_chain(layers), layout=layout).functions
    return sum(eqn.op != "all_reduce" for function in functions for eqn in function.body)


def test_programs_do_not_grow_with_the_mesh_and_linearly_with_the_layers() -> None:
    assert equations(8, "on_8") == equations(8, "on_512")
    assert equations(16, "on_8") - equations(12, "on_8") == equations(12, "on_8") - equations(8, "on_8")


def test_experts_by_hand_compute_what_the_library_computes_and_send_no_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = {"groups": 8, "tokens": 6, "d_model": 8, "experts": 8, "d_ff": 16, "capacity": 2}
    monkeypatch.setattr(peer_moe, "DIMS", small)
    arrays = peer_moe.drawn()
    ours = peer_moe.generated(arrays, "with a capacity")
    losses = [ours.run(), ours.run()]
    for theirs in peer_moe.handwritten(arrays).values():
        assert [theirs.run(), theirs.run()] == pytest.approx(losses, rel=1e-5)
        assert ours.sent <= theirs.sent
