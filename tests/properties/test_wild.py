"""Over a finite field, layouts of models and functions that care for no bounds agree with the undistributed program."""

import numpy as np
import pytest

from tests.generators.jax_functions import jax_function
from tests.generators.wild import wild
from tests.properties.wild_cases import check_jax_function, check_wild
from tests.sampling import some

MODELS = (7, 20, 23, 54, 975, 1369, 2068, 2150, 4512, 6179, 1012, 1555, *some(range(100, 112), 3))
"""Models that the check once called wrong or that once had no program, and others."""

FUNCTIONS = (0, 39, 143, 333, *some(range(200, 212), 3))


@pytest.mark.parametrize("seed", MODELS)
def test_wild_models_are_exact(seed: int) -> None:
    assert check_wild(seed) > 0


@pytest.mark.parametrize("seed", FUNCTIONS)
def test_functions_of_jax_are_exact(seed: int) -> None:
    with np.errstate(all="ignore"):
        check_jax_function(seed)


def test_cases_depend_on_their_seed_alone() -> None:
    assert wild(5) == wild(5) != wild(6)
    assert jax_function(5) == jax_function(5) != jax_function(6)
