"""Exhaustive search of the `soap` space (FlexFlow, section 8.4)."""

from __future__ import annotations

import time
from itertools import product
from pathlib import Path
from random import Random

import pytest

from mtfc.cli.selection import Choice, choose
from mtfc.compiler.pipelines import run, simplification
from mtfc.compiler.search.soap.exhaustive import Bound, best_strategy
from mtfc.compiler.search.soap.mcmc import Budget
from mtfc.compiler.search.soap.search import SoapSpace, soap_search, soap_space
from mtfc.frontend.targets import named
from tests.search.soap_programs import PROGRAMS, prepared

EXAMPLES = Path(__file__).parents[2] / "examples"


def space_of(name: str, devices: int, target: str = "k80_cluster") -> SoapSpace:
    return soap_space(prepared(name), named(target, {}), devices)


@pytest.mark.parametrize("target", ["k80_cluster", "p100_cluster"])
def test_the_best_is_that_of_looking_at_every_strategy(target: str) -> None:
    space = space_of("dense", 3, target)
    seconds = min(space.evaluator.full(each).seconds for each in product(*space.choices))
    found = best_strategy(space.evaluator, space.choices, space.data_parallel())
    assert found.is_optimal
    assert found.best.seconds == seconds


@pytest.mark.parametrize("name", PROGRAMS)
def test_bounds_of_beginnings_are_never_above_what_a_strategy_takes(name: str) -> None:
    space, random = space_of(name, 2), Random(1)
    bound = Bound(space.evaluator.tasks, [list(each) for each in space.choices])
    for _ in range(60):
        chosen = tuple(random.randrange(each.count) for each in space.choices)
        strategy = tuple(list(each)[i] for each, i in zip(space.choices, chosen, strict=True))
        seconds = space.evaluator.full(strategy).seconds
        for i, each in enumerate(chosen):
            assert bound.of(chosen[:i])[each] <= seconds * (1 + 1e-9)


def test_the_search_finds_the_best_strategy_of_lenet() -> None:
    """On 4 devices, of 3 * 10 ** 9 strategies."""
    path = EXAMPLES / "lenet.mtf"
    chosen = choose(path.read_text("utf-8"), str(path), Choice(None, None, None, {}))
    space = soap_space(run(chosen.program, simplification()), named("p100_cluster", {}), 4)
    found = soap_search(space, Budget(60.0, 100))
    proven = best_strategy(space.evaluator, space.choices, found.best, time.perf_counter() + 60.0)
    assert proven.is_optimal
    assert proven.best is found.best


def test_without_time_nothing_is_proven() -> None:
    space = space_of("attention", 2)
    found = best_strategy(space.evaluator, space.choices, space.data_parallel(), deadline=0.0)
    assert not found.is_optimal and found.best.seconds == space.data_parallel().seconds
