"""A checkpoint opens under every layout, mesh and number of devices, with the same bits."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import attrs
import jax
import numpy as np
import pytest

import mtfc
from mtfc.api import Compiled
from mtfc.driver.data.array_files import About, read_array
from mtfc.driver.errors import FailedRequest
from mtfc.driver.training.checkpoints import Checkpoints, NotFinite, kinds
from tests.sampling import some

MODEL = """
dim batch = 8
dim io = 8
dim hidden = 16
mesh line = [all: 8]
mesh grid = [rows: 4, cols: 2]
mesh four = [part: 4]
mesh one = [only: 1]
layout copies on line = {}
layout rows on line = { batch: all }
layout model on line = { hidden: all }
layout both on grid = { batch: rows, hidden: cols }
layout zero on grid = { batch: rows, optimizer: { io: rows } }
layout fsdp on line = { batch: all, params: { *: all } }
layout crossed on grid = { batch: rows, hidden: cols, params: { io: rows }, optimizer: { io: rows } }
layout part on four = { batch: part, params: { hidden: part } }
layout alone on one = {}
model small(x: [batch, io], y: [batch, io]) {
  param w: [io, hidden] = normal(stddev = 0.5)
  param bias: [hidden] = zeros()
  param v: [hidden, io] = normal(stddev = 0.5)
  h = tanh(einsum(x, w -> [batch, hidden]) + bias)
  loss = mean(square(einsum(h, v -> [batch, io]) - y))
  return loss
}
train small {
  minimize loss
  optimizer = adam(learning_rate = 0.01)
  precision = { params: PRECISION, compute: PRECISION }
}
"""

LAYOUTS = ("copies", "rows", "model", "both", "zero", "fsdp", "crossed", "part", "alone")


@pytest.fixture(scope="module", params=["f32", "bf16"])
def precision(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@lru_cache
def compiled(precision: str, layout: str) -> Compiled:
    return mtfc.compile_text(MODEL.replace("PRECISION", precision), layout=layout)


def trained(program: Compiled) -> Any:
    """Return the state after two steps."""
    state, numbers = program.init(seed=1), np.random.default_rng(0)
    for _ in range(2):
        batch = {name: numbers.standard_normal((8, 8), np.float32) for name in "xy"}
        state, _ = program.train_step(state, batch)
    return state


def about(state: Any) -> About:
    return About("small", "0", int(state.step), 1, kinds(state), {})


@contextmanager
def opened(folder: Path) -> Iterator[Checkpoints]:
    with Checkpoints.open(folder, keep=10) as checkpoints:
        yield checkpoints


def host(state: Any) -> list[tuple[tuple[int, ...], str, bytes]]:
    """Return the bits of every array."""
    return [(x.shape, x.dtype.name, np.asarray(x).tobytes()) for x in jax.tree.leaves(state)]


@pytest.mark.parametrize("written", some(["copies", "fsdp", "alone", "crossed"], 2))
def test_every_layout_opens_every_checkpoint(precision: str, written: str, tmp_path: Path) -> None:
    state = trained(compiled(precision, written))
    bits, w = host(state), np.asarray(state.params["w"]).tobytes()
    with opened(tmp_path) as checkpoints:
        checkpoints.save(state, about(state))
        checkpoints.wait()
        for layout in LAYOUTS:
            abstract = compiled(precision, layout).abstract_state
            found, _ = checkpoints.restore(2, abstract)
            assert host(found) == bits, layout
            wanted = [each.sharding for each in jax.tree.leaves(abstract)]
            assert [each.sharding for each in jax.tree.leaves(found)] == wanted, layout
    assert read_array(tmp_path / "2", About.read(tmp_path / "2"), "params/w").tobytes() == w


@pytest.mark.parametrize("layout", some(["copies", "fsdp", "both", "alone"], 2))
def test_steps_after_a_save_do_not_change_what_is_written(layout: str, tmp_path: Path) -> None:
    """Steps donate the state of which orbax reads the buffers."""
    program = compiled("f32", layout)
    state, numbers, bits = trained(program), np.random.default_rng(1), {}
    with opened(tmp_path) as checkpoints:
        for _ in range(3):
            bits[int(state.step)] = host(state)
            checkpoints.save(state, about(state))
            for _ in range(3):
                batch = {name: numbers.standard_normal((8, 8), np.float32) for name in "xy"}
                state, _ = program.train_step(state, batch)
        checkpoints.wait()
        assert checkpoints.steps == list(bits)
        for step, saved in bits.items():
            assert host(checkpoints.restore(step, program.abstract_state)[0]) == saved


def test_a_state_that_is_not_finite_is_not_saved(tmp_path: Path) -> None:
    program = compiled("f32", "fsdp")
    state = trained(program)
    broken = attrs.evolve(state, params={**state.params, "v": state.params["v"].at[3, 3].set(np.nan)})
    with opened(tmp_path) as checkpoints:
        checkpoints.save(broken, about(broken))
        with pytest.raises(NotFinite, match="the parameters after step 2 are not finite"):
            checkpoints.wait()
        assert checkpoints.steps == []
    with opened(tmp_path) as checkpoints:
        assert checkpoints.steps == []


def test_a_layout_of_another_precision_is_refused(tmp_path: Path) -> None:
    state = trained(compiled("f32", "rows"))
    with opened(tmp_path) as checkpoints:
        checkpoints.save(state, about(state))
        checkpoints.wait()
        with pytest.raises(
            FailedRequest, match=r"it has params/w: float32\[8, 16\], and the model has params/w: bfloat16"
        ):
            checkpoints.restore(2, compiled("bf16", "rows").abstract_state)
