"""Programs that were once compiled wrongly: `regressions/*.mtf`, each with a comment on the mistake.

Each goes through all checks of the random programs.
"""

from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.properties import test_exact, test_jax, test_numpy, test_passes, test_text

CASES = sorted((Path(__file__).parent / "regressions").glob("*.mtf"))
CHECKS: tuple[Any, ...] = (
    test_passes.test_every_pass_keeps_the_results, test_passes.test_differentiation_keeps_the_outputs,
    test_numpy.test_simulation_of_all_processors_gives_the_results,
    test_numpy.test_simulation_gives_the_results_and_sends_what_cost_predicts, test_jax.test_jax_gives_the_results,
    test_jax.test_xla_compiles_the_collectives_that_cost_predicts, test_text.test_ir_text_is_read_back,
    test_text.test_ir_text_has_all_of_the_meaning, test_exact.test_layouts_are_exact,
)  # fmt: skip


@attrs.frozen
class Case:
    """A regression program in the form that the checks need."""

    source: str


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_regression(case: Path, check: Any) -> None:
    check.check(Case(case.read_text("utf-8")))
