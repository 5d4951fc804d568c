"""Test the exhaustive search for placements (FlexFlow, section 8.4)."""

import time
from itertools import product
from math import inf
from pathlib import Path
from random import Random

import numpy as np
import pytest

from mtfc.compiler.activity import progress_to
from mtfc.compiler.passes.pipelines import preparation, run
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import choose
from mtfc.frontend.hardware_targets import find_hardware
from mtfc.placements.exhaustive import best_strategy
from mtfc.placements.mcmc import SearchBudget
from mtfc.placements.placement_search import PlacementSpace, placement_search, placement_space
from mtfc.placements.strategy_bounds import StrategyBounds, transfer_times
from tests.harness import AMPLE
from tests.placements.placement_programs import PROGRAMS, prepared

EXAMPLES = Path(__file__).parents[2] / "examples"


def space_of(name: str, devices: int, target: str = "k80_cluster") -> PlacementSpace:
    return placement_space(prepared(name), find_hardware(target, {}), devices)


def example(name: str, target: str, **dims: int) -> PlacementSpace:
    path = EXAMPLES / f"{name}.mtf"
    chosen = choose(path.read_text("utf-8"), str(path), Choice(None, None, None, dims))
    return placement_space(run(chosen.program, preparation()), find_hardware(target, {}), 4)


@pytest.mark.parametrize(("target", "devices"), [("k80_cluster", 2), ("p100_cluster", 3)])
def test_the_best_is_that_of_looking_at_every_strategy(target: str, devices: int) -> None:
    space = space_of("dense", devices, target)
    seconds = min(space.evaluator.full(each).seconds for each in product(*space.choices))
    found = best_strategy(space.evaluator, space.choices, space.data_parallel())
    assert found.is_optimal and found.lower_bound == found.best.seconds == seconds
    assert found.evaluated < space.strategies == np.prod([each.count for each in space.choices])


@pytest.mark.parametrize("target", ["k80_cluster", "p100_cluster"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_bounds_of_sets_are_never_above_what_a_strategy_in_them_takes(name: str, target: str) -> None:
    space, random = space_of(name, 4 if name == "dense" else 2, target), Random(1)
    lists = [list(each) for each in space.choices]
    tables = transfer_times(space.evaluator.tasks, lists)
    bounds, everything = StrategyBounds(tables), tables.parts > 0
    for _ in range(60):
        chosen = [random.randrange(len(each)) for each in lists]
        seconds = space.evaluator.full(tuple(each[i] for each, i in zip(lists, chosen, strict=True))).seconds
        for decided in (0, len(lists) // 2, len(lists)):
            allowed = everything.copy()
            for operator in random.sample(range(len(lists)), decided):
                allowed[operator] = np.arange(allowed.shape[1]) == chosen[operator]
            found = bounds.of(allowed)
            assert max(found[np.arange(len(lists)), chosen]) <= seconds * (1 + 1e-9)
            assert np.isinf(found[~allowed]).all() and np.isfinite(found[allowed]).all()


def test_bounds_say_what_one_device_takes() -> None:
    """One device only works and sends nothing, so the bound is exact."""
    space = space_of("recurrent", 1)
    tables = transfer_times(space.evaluator.tasks, [list(each) for each in space.choices])
    seconds = space.data_parallel().seconds
    assert StrategyBounds(tables).of(tables.parts > 0).min() == pytest.approx(seconds)


@pytest.mark.parametrize("target", ["k80_cluster", "p100_cluster"])
def test_the_search_finds_the_best_strategy_of_lenet(target: str) -> None:
    """There are 3 * 10 ** 9 strategies on 4 P100s and 2 * 10 ** 11 on 4 K80s."""
    space = example("lenet", target)
    found = placement_search(space, SearchBudget(60.0, 300))
    proven = best_strategy(space.evaluator, space.choices, found.best, time.perf_counter() + AMPLE)
    assert proven.is_optimal
    assert proven.best is found.best


def test_the_best_strategy_of_two_steps_of_a_recurrent_network() -> None:
    """There are 7 * 10 ** 9 strategies on 4 P100s. The result does not depend on the strategy to begin with."""
    space = example("rnnlm", "p100_cluster", length=2)
    found = [
        best_strategy(space.evaluator, space.choices, known)
        for known in (space.data_parallel(), space.expert())
    ]
    assert all(each.is_optimal for each in found)
    assert found[0].best.seconds == found[1].best.seconds


def test_without_time_nothing_is_proven() -> None:
    space = space_of("attention", 2)
    found = best_strategy(space.evaluator, space.choices, space.data_parallel(), deadline=-inf)
    assert not found.is_optimal and found.best.seconds == space.data_parallel().seconds
    assert 0 == found.lower_bound < found.best.seconds


def test_an_interrupt_leaves_a_bound() -> None:
    """The interrupt comes after half of the sets."""
    space, told = space_of("dense", 3), list[str]()

    def interrupt(doing: str, best: float | None, bound: float | None) -> None:
        told.append(doing)
        if len(told) == 3:
            raise KeyboardInterrupt

    best = best_strategy(space.evaluator, space.choices, space.data_parallel())
    with progress_to(interrupt):
        found = best_strategy(space.evaluator, space.choices, space.data_parallel())
    assert found.is_interrupted and not best.is_interrupted and len(told) == 3
    assert 0 < found.lower_bound <= best.best.seconds <= found.best.seconds
