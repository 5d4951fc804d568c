"""Tests of the model: `pytest` needs no accelerator."""

from pathlib import Path

import pytest
from data import spirals

import mtfc

MODEL = Path(__file__).with_name("model.mtf")


def test_the_model_has_no_errors():
    assert not mtfc.check(MODEL)


def test_no_layout_changes_the_results():
    assert mtfc.verify(MODEL, backend="numpy")["ok"]


def test_training_tells_the_spirals_apart():
    pytest.importorskip("jax")
    program = mtfc.compile(MODEL, layout="both")
    data = spirals(64 * 200, seed=0)
    state = program.init(seed=0)
    for first in range(0, 64 * 200, 64):
        batch = {name: array[first : first + 64] for name, array in data.items()}
        state, _ = program.train_step(state, batch)
    assert program.forward(state.params, spirals(64, seed=1))["accuracy"] > 0.9
