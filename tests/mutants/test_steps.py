"""The check of training steps finds faults of steps, and says nothing where there is none."""

from random import Random

import attrs
import pytest

from tests.mutants.reasons import CAUGHT, MISSED
from tests.mutants.steps import FAULTS, StepFault, TrainBlocks, wrong_in
from tests.sampling import some

MISSED_BEFORE = FAULTS[:4]
"""Faults that a comparison of equations with themselves misses."""


@pytest.mark.parametrize(
    "fault", some([*MISSED_BEFORE, *Random(0).sample(FAULTS[4:], 6)], 4), ids=lambda fault: fault.name
)
def test_a_fault_is_caught(fault: StepFault) -> None:
    assert wrong_in(fault.entries) == ()
    with fault.planted():
        assert wrong_in(fault.entries)


def test_every_fault_has_an_outcome() -> None:
    (_, first), *others = TrainBlocks().mutants(Random(0))
    assert first() == CAUGHT
    assert len(others) + 1 == len(FAULTS)


def test_a_fault_that_the_block_does_not_show_is_missed() -> None:
    (fault,) = (each for each in FAULTS if each.name == "weight decay times ten")
    assert TrainBlocks().outcome(attrs.evolve(fault, entries="optimizer = sgd(0.1)")) == MISSED
