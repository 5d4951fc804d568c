"""The campaign of mutants judges all faults of a small model, and notices a check that is blind."""

from collections import Counter
from random import Random
from unittest.mock import patch

import numpy as np
import pytest

from mtfc.backends.exact.check import ExactReference
from tests.mutants.__main__ import Subject, of_example
from tests.mutants.reasons import CAUGHT, MISSED
from tests.test_examples import EXAMPLES

DIGITS = dict(of_example(EXAMPLES[0]))


def outcomes(name: str) -> Counter[str]:
    subject: Subject = DIGITS[name]()
    with np.errstate(all="ignore"):
        return Counter(outcome() for _, outcome in subject.mutants(Random(0)))


@pytest.mark.parametrize("name", ["digits gradients", "digits tiled"])
def test_every_fault_is_caught_or_explained(name: str) -> None:
    found = outcomes(name)
    assert found[CAUGHT] > 0
    assert found[MISSED] == 0


def test_a_blind_check_of_gradients_is_noticed() -> None:
    with patch.object(ExactReference, "agrees", lambda *_: True):
        found = outcomes("digits gradients")
    assert found[CAUGHT] == 0
    assert found[MISSED] > 0
