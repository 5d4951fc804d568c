"""Measured times of operator parts: one for each size, in the place of those of the roofline."""

from random import Random

import pytest

from mtfc.compiler.passes.pipelines import run, simplification
from mtfc.frontend.hardware_targets import find_hardware
from mtfc.placements.operators.operator_parts import OperatorParts
from mtfc.placements.operators.strategy import random_strategy
from mtfc.placements.placement_search import PlacementSpace, placement_space
from mtfc.placements.running.jax.part_times import MeasuredTimes, PartPass, passes, transfer_times
from tests.harness import load
from tests.placements.placement_programs import prepared
from tests.placements.test_jax_modules import STACK

DEVICES = 4


def space_with(times: MeasuredTimes | None, name: str = "dense") -> PlacementSpace:
    return placement_space(prepared(name), find_hardware("k80_cluster", {}), DEVICES, times=times)


def parts_of(space: PlacementSpace, operator: int, degrees: tuple[tuple[str, int], ...]) -> list[PartPass]:
    """Return the passes of a part of an operator."""
    own = space.graph.operators[operator]
    parts = OperatorParts(own, degrees)
    return [each for step in own.steps for each in passes(space.evaluator.tasks.flow, step, parts)]


def test_simulated_tasks_take_the_measured_seconds() -> None:
    times = MeasuredTimes({}, (0.5, 1e3), measure=lambda each: 1.0)
    space = space_with(times)
    strategy = random_strategy(space.choices, Random(1))
    found = space.evaluator.full(strategy)
    graph, tasks = found.base.graph, space.evaluator.tasks
    computing = [each for each in tasks.names if each.kind in ("step", "back")]
    for name in computing:
        block = tasks.index[name]
        own = graph.seconds[graph.offsets[block] : graph.offsets[block + 1]]
        assert set(own.tolist()) == {1.0}
    sent = graph.seconds[graph.device >= tasks.links.count]
    assert sent[sent > 0].min() >= 0.5
    assert times.missing == 0


def test_parts_without_a_time_take_that_of_the_roofline() -> None:
    times = MeasuredTimes({})
    strategy = random_strategy(space_with(None).choices, Random(1))
    assert (
        space_with(times).evaluator.full(strategy).seconds
        == space_with(None).evaluator.full(strategy).seconds
    )
    assert times.found == 0
    assert times.missing > 0


def test_each_size_is_measured_once() -> None:
    measured: list[str] = []

    def measure(each: PartPass) -> float:
        measured.append(each.key)
        return 1.0

    times = MeasuredTimes({}, measure=measure)
    space = space_with(times)
    for seed in range(5):
        space.evaluator.full(random_strategy(space.choices, Random(seed)))
    assert len(measured) == len(set(measured)) == len(times.known)


def test_keys_tell_sizes_apart_but_not_names() -> None:
    """The second and the third layer compute the same; half of the batch is another size."""
    text = STACK[: STACK.index("placement")].replace("layers = 3", "layers = 4")
    program = run(load(text).programs[0], simplification())
    space = placement_space(program, find_hardware("k80_cluster", {}), DEVICES)
    assert [each.name for each in space.graph.operators[1:3]] == ["layers.y[1]", "layers.y[2]"]
    second, third, half = (
        [each.key for each in parts_of(space, operator, degrees)]
        for operator, degrees in ((1, ()), (2, ()), (1, (("batch", 2),)))
    )
    assert second == third
    assert not set(second) & set(half)


@pytest.mark.parametrize("name", ["dense", "convolutions"])
def test_parts_run_alone(name: str) -> None:
    """Dropout reads the position of the part in the whole tensor; an embedding reads whole numbers."""
    space = space_with(None, name)
    for each in parts_of(space, 0, (("batch", 2),)):
        assert 0 < each.seconds() < 1


def test_transfers_are_measured_between_two_devices() -> None:
    measured = transfer_times(2)
    assert measured is not None
    latency, bandwidth = measured
    assert 0 < latency < 0.1
    assert bandwidth > 1e6
    assert transfer_times(1) is None
