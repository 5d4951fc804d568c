"""Test task graphs of placements, their simulation, and the search."""

import subprocess
import sys
from contextlib import suppress
from functools import cache
from itertools import product
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import attrs
import numpy as np
import pytest

from mtfc.compiler.activity import progress_to
from mtfc.compiler.cost.event_simulator import Task, TaskGraph, makespan, simulate
from mtfc.compiler.cost.tables.device_links import device_links
from mtfc.compiler.search.found import NothingFits
from mtfc.frontend.hardware_targets import find_hardware
from mtfc.placements.mcmc import ChainSettings, SearchBudget
from mtfc.placements.operators.operator_graph import OperatorStep
from mtfc.placements.operators.operator_parts import OperatorParts
from mtfc.placements.operators.strategy import Configuration, Strategy, random_strategy
from mtfc.placements.placed_step import Attribution, attributions, longest_path, placed_step
from mtfc.placements.placement_search import (
    PlacementSpace,
    placement_search,
    placement_space,
    proven,
)
from mtfc.placements.simulator import evaluation
from mtfc.placements.simulator.evaluation import EvaluatedStrategy
from mtfc.placements.strategy_bounds import lower_bound
from mtfc.placements.strategy_tasks import ParameterBundle, ValueUse
from tests.placements.placement_programs import PROGRAMS, prepared
from tests.placements.test_simulator import assert_kept
from tests.placements.transfers import holders, replicated_pieces, stored_regions, transfers


@cache
def space_of(name: str, devices: int = 4, target: str = "k80_cluster") -> PlacementSpace:
    return placement_space(prepared(name), find_hardware(target, {}), devices)


def as_task_graph(found: EvaluatedStrategy) -> TaskGraph:
    """Return the same tasks, equally numbered, for the simulator of `cost/event_simulator.py`."""
    graph = found.base.graph
    device, seconds = graph.device.tolist(), graph.seconds.tolist()
    after: list[dict[int, None]] = [{} for _ in device]
    for source, target in zip(*(each.tolist() for each in graph.ends), strict=True):
        after[target][source] = None
    return TaskGraph(
        Task((i,), str(device[i]), seconds[i], tuple((before,) for before in after[i]))
        for i in range(len(device))
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_compiled_simulator_is_that_of_the_analysis_to_the_last_bit(name: str) -> None:
    space = space_of(name, 8)
    found = space.evaluator.full(random_strategy(space.choices, Random(1)))
    timeline, times = simulate(as_task_graph(found)), found.base.timeline
    assert makespan(timeline) == found.seconds
    assert [timeline[(i,)].ready for i in range(len(timeline))] == times.ready.tolist()
    assert [timeline[(i,)].end for i in range(len(timeline))] == times.end.tolist()


@pytest.mark.parametrize("name", PROGRAMS)
def test_delta_simulation_gives_the_timeline_of_full_simulation(name: str) -> None:
    space, random = space_of(name, 8), Random(2)
    current = space.evaluator.full(random_strategy(space.choices, random))
    for _ in range(25):
        operators = random.sample(
            range(len(space.choices)), min(len(space.choices), random.choice([1, 1, 2]))
        )
        old, changes = current, {i: space.choices[i].draw(random) for i in operators}
        current = space.evaluator.delta(old, changes)
        assert_kept(space.evaluator._arrays, old.base.graph, old.base.timeline)
        assert_alike(current, space.evaluator.full(current.strategy))
    assert space.evaluator.delta(current, {}) is current


def assert_alike(found: EvaluatedStrategy, wanted: EvaluatedStrategy) -> None:
    assert (found.seconds, found.sent) == (wanted.seconds, wanted.sent)
    assert found.memory.tolist() == wanted.memory.tolist()


@pytest.mark.parametrize("room", [(1, 0), (1, 40), (3, 40)])
def test_delta_simulation_starts_from_any_strategy_whatever_room_there_is(
    room: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proposals end within a limit or beyond it, are kept or not, and start from the last strategy or an earlier one."""
    monkeypatch.setattr(evaluation, "ROOM", room[0])
    monkeypatch.setattr(evaluation, "SLACK", room[1])
    space, random = placement_space(prepared("convolutions"), find_hardware("k80_cluster", {}), 8), Random(3)
    known = [space.evaluator.full(random_strategy(space.choices, random)) for _ in range(2)]
    for _ in range(150):
        old, operator = known[-1 if random.random() < 0.8 else 0], random.randrange(len(space.choices))
        limit = random.choice([inf, old.seconds, 0.5 * old.seconds])
        found = space.evaluator.delta(old, {operator: space.choices[operator].draw(random)}, limit)
        assert_alike(found, space.evaluator.full(found.strategy, limit))
        if found.seconds < inf and random.random() < 0.5:
            known = [known[1], found]


@pytest.mark.parametrize("what", ["propose_strategy", "load_state", "EvaluatedStrategy"])
def test_an_evaluator_that_was_interrupted_goes_on(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt comes when compiled code returns, or anywhere in Python."""
    space, random = placement_space(prepared("convolutions"), find_hardware("k80_cluster", {}), 8), Random(4)
    known = [space.evaluator.full(random_strategy(space.choices, random)) for _ in range(2)]
    work = getattr(evaluation, what)

    def interrupted(*args: Any) -> Any:
        found = work(*args)
        if random.random() < 0.3:
            raise KeyboardInterrupt
        return found

    for i in range(100):
        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr(evaluation, what, interrupted)
            space.evaluator.delta(known[0], {0: space.choices[0].draw(random)})
        old, operator = random.choice(known), random.randrange(len(space.choices))
        found = space.evaluator.delta(old, {operator: space.choices[operator].draw(random)})
        assert_alike(found, space.evaluator.full(found.strategy))
        known = [known[1], found] if i % 2 else known


@pytest.mark.parametrize("name", PROGRAMS)
def test_blocks_send_what_parts_need_of_each_other(name: str) -> None:
    """The blocks send the bytes that a running placement sends: of values, and of gradients by holders of a piece."""
    space, random = space_of(name, 8), Random(6)
    tasks = space.evaluator.tasks
    for _ in range(5):
        found = space.evaluator.full(random_strategy(space.choices, random))
        for number, name_of in enumerate(tasks.names):
            if name_of.kind in ("taken", "returned"):
                wanted = _bytes_between(space, found.strategy, name_of.of)
            elif name_of.kind == "added":
                wanted = _bytes_of_gradients(space, found.strategy, name_of.of)
            else:
                continue
            assert found.base.graph.sent[number] == wanted


def _bytes_between(space: PlacementSpace, strategy: Strategy, use: ValueUse) -> int:
    made, here = _placed(space, strategy, use.maker)
    used, there = _placed(space, strategy, use.user)
    sent = transfers(use.value, made, use.maker, used, use.user)
    source = holders(use.value, made, here, sent, there)
    return int(sent.bytes[here[source] != there[sent.targets]].sum())


def _bytes_of_gradients(space: PlacementSpace, strategy: Strategy, bundle: ParameterBundle) -> int:
    total = 0
    for parameter in bundle.parameters:
        held = set()
        for step in bundle.steps:
            parts, devices = _placed(space, strategy, step)
            if parameter in step.arguments:
                held |= set(stored_regions(parameter, parts, step, devices.tolist()))
        total += sum(
            2 * (cell.mask.bit_count() - 1) * cell.bytes for cell in replicated_pieces(parameter, held)
        )
    return total


def _placed(space: PlacementSpace, strategy: Strategy, step: OperatorStep) -> tuple[OperatorParts, Any]:
    configuration = strategy[space.evaluator.tasks.number[step]]
    return OperatorParts(space.graph.operator_of[step], configuration.degrees), np.array(
        configuration.devices
    )


def test_task_graphs_do_not_depend_on_the_room_that_was_made_for_them() -> None:
    space = placement_space(prepared("recurrent"), find_hardware("k80_cluster", {}), 8)
    strategy = random_strategy(space.choices, Random(7))
    first, again = space.evaluator.full(strategy), space.evaluator.full(strategy)
    a, b = first.base.graph, again.base.graph
    assert len(a.device) > 200 and len(a.edges) > 200
    assert np.array_equal(a.seconds, b.seconds) and np.array_equal(a.edges, b.edges)


def test_a_limit_never_hides_a_strategy_within_it() -> None:
    space, random = space_of("convolutions"), Random(3)
    for _ in range(20):
        strategy = random_strategy(space.choices, random)
        seconds = space.evaluator.full(strategy).seconds
        assert space.evaluator.full(strategy, seconds).seconds == seconds
        assert space.evaluator.full(strategy, 0.99 * seconds).seconds in (seconds, inf)


def test_nothing_is_updated_before_all_gradients_are_known_if_these_are_clipped() -> None:
    space, random = space_of("clipped"), Random(5)
    kinds = np.array([name.kind for name in space.evaluator.tasks.names])
    for _ in range(10):
        found = space.evaluator.full(random_strategy(space.choices, random))
        graph, times = found.base.graph, found.base.timeline
        of = np.repeat(kinds, np.diff(graph.offsets))
        start = times.end - graph.seconds
        assert start[of == "updated"].min() >= times.end[of == "added"].max()
    assert "norm" not in {name.kind for name in space_of("dense").evaluator.tasks.names}


@pytest.mark.parametrize("devices", [1, 3, 8])
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_strategy_is_below_the_bound(name: str, devices: int) -> None:
    space, random = space_of(name, devices), Random(4)
    bound = lower_bound(space.evaluator.tasks, space.choices)
    strategies = [random_strategy(space.choices, random) for _ in range(20)]
    taken = [space.evaluator.full(each).seconds for each in (on_one_device(space), *strategies)]
    assert bound <= min(taken) * (1 + 1e-9)
    assert devices > 1 or bound == pytest.approx(min(taken))


def on_one_device(space: PlacementSpace) -> Strategy:
    return tuple(Configuration((), (0,)) for _ in space.graph.operators)


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_device_sends_nothing_and_works_without_a_break(name: str) -> None:
    space = space_of(name)
    found = space.evaluator.full(on_one_device(space))
    assert found.sent == 0
    assert found.seconds == pytest.approx(found.base.graph.seconds.sum())


def test_data_parallelism_sends_gradients_and_the_loss() -> None:
    """Each of the four devices has all gradients; a ring passes each byte six times in all."""
    space = space_of("dense")
    parameters = 4 * (12 * 16 + 16 + 16 * 4)
    loss = 4  # and its cotangent, which all have that made it
    assert space.data_parallel().sent == 2 * 3 * (parameters + 2 * loss)


def test_parameters_that_are_not_trained_take_memory() -> None:
    """Each device stores half of two parameters, and all of the third."""
    space = space_of("untrained", devices=2)
    split, whole = (Configuration(degrees, (0, 1)) for degrees in ((("hidden", 2),), (("batch", 2),)))
    found = space.evaluator.full((split, *[whole] * (len(space.choices) - 1)))
    is_stored = [name.kind == "stored" for name in space.evaluator.tasks.names]
    assert found.base.graph.memory[is_stored].sum(axis=0).tolist() == [4 * (12 * 8 + 8 + 16 * 4)] * 2
    assert placed_step(space.evaluator.tasks, found).memory["parameters"] == 4 * (12 * 8 + 8 + 16 * 4)


def test_links_of_the_k80_cluster() -> None:
    """A K80 is a pair of GPUs, a node has two pairs, and the GPUs of a node share a network port."""
    found = device_links(find_hardware("k80_cluster", {}), 8)
    assert found.bandwidth[0, 1] == found.bandwidth[0, 2] == 15.75e9 and found.bandwidth[0, 4] == 7e9
    assert found.port[0, 1] != found.port[0, 2] == found.port[1, 3] == found.port[3, 0]
    assert found.port[0, 4] == found.port[3, 7] != found.port[4, 0]
    assert found.latency[0, 1] == 1e-6 and found.latency[0, 4] == 2e-6


def test_links_of_a_ring_are_one_for_each_direction() -> None:
    found = device_links(find_hardware("p100_cluster", {}), 4)
    assert found.latency[0, 2] == 2 * found.latency[0, 1] == 2 * found.latency[0, 3]
    assert found.port[0, 1] != found.port[0, 3]


@pytest.mark.parametrize("name", PROGRAMS)
def test_times_attributed_to_operators_add_up_to_the_step(name: str) -> None:
    """The operators of the tasks on a longest path account for the whole step."""
    space, random = space_of(name, 8), Random(8)
    tasks = space.evaluator.tasks
    for _ in range(5):
        found = space.evaluator.full(random_strategy(space.choices, random))
        graph, times = found.base.graph, found.base.timeline
        path = list(longest_path(found.base))
        begins = (times.end - graph.seconds)[path]
        assert begins[:-1].tolist() == times.end[path][1:].tolist() and begins[-1] == 0.0
        whole = sum(attributions(tasks, found).values(), Attribution())
        assert (whole.time, whole.sent, whole.memory) == (found.seconds, found.sent, found.memory.max())


@pytest.mark.parametrize(
    "asked",
    [
        {0: Configuration((("batch", 2),), ()), 2: Configuration((), (1,))},
        {1: Configuration((("batch", 2),), (1, 1))},
        {2: Configuration((("batch", 2),), (1, 0)), 0: Configuration((("hidden", 2),), ())},
    ],
)
def test_a_strategy_with_forced_configurations_is_the_best_of_those(asked: dict[int, Configuration]) -> None:
    """The space is small enough to evaluate all strategies."""
    space = space_of("dense", 2)
    known = placement_search(space, SearchBudget(60.0, 200))
    within = space.restricted_to(asked)
    strategies = {"found": known.best, **known.baselines}
    found = placement_search(within, SearchBudget(60.0, 200), starts=strategies, evaluated=strategies)
    every = list(product(*within.choices))
    assert len(every) == within.strategies < space.strategies
    assert found.best.seconds == min(space.evaluator.full(each).seconds for each in every)
    assert proven(within, found, 60.0).best.seconds == found.best.seconds
    for operator, each in asked.items():
        chosen = found.best.strategy[operator]
        assert chosen.degrees == each.degrees and (not each.devices or chosen == each)


@pytest.mark.parametrize("name", ["dense", "attention"])
def test_results_are_locally_optimal(name: str) -> None:
    """No other configuration of a single operator is better (FlexFlow, section 8.4)."""
    space = space_of(name)
    found = placement_search(space, SearchBudget(60.0, 200))
    assert found.locally_optimal
    assert found.best.seconds <= min(each.seconds for each in found.baselines.values())
    for i, choices in enumerate(space.choices):
        for configuration in choices:
            strategy = (*found.best.strategy[:i], configuration, *found.best.strategy[i + 1 :])
            assert space.evaluator.full(strategy).seconds >= found.best.seconds


def test_operators_that_share_parameters_need_not_have_the_same_degrees() -> None:
    space = space_of("padding")
    first, second = (choices.legal for choices in space.choices)
    assert first - second
    found = placement_search(space, SearchBudget(60.0, 200))
    assert all(
        each.degrees in own.legal for each, own in zip(found.best.strategy, space.choices, strict=True)
    )


def test_a_seed_determines_the_result() -> None:
    """Full simulation finds the same strategies as delta simulation, one after the other."""
    first, *others = (
        placement_search(space_of("recurrent"), SearchBudget(60.0, 60, 200), ChainSettings(seed=7, full=full))
        for full in (False, False, True)
    )
    for other in others:
        assert other.best.strategy == first.best.strategy
        assert other.evaluated == first.evaluated
        assert [each.cost for each in other.history] == [each.cost for each in first.history]
        assert [each.evaluated for each in other.history] == [each.evaluated for each in first.history]
    costs, times = [each.cost for each in first.history], [each.seconds for each in first.history]
    assert len(costs) > 1 and costs == sorted(set(costs), reverse=True) and costs[-1] == first.best.seconds
    assert times == sorted(times)


def test_a_small_beta_accepts_more() -> None:
    """The chains leave good strategies, and so find less."""
    space, budget = space_of("attention"), SearchBudget(60.0, 120, 0)
    found = {
        beta: [
            placement_search(space, budget, ChainSettings(beta, seed), starts=["random"]).best.seconds
            for seed in range(3)
        ]
        for beta in (1e-6, 300.0)
    }
    assert sum(found[300.0]) < sum(found[1e-6])


def test_chains_start_where_they_are_asked_to() -> None:
    space, budget = space_of("dense"), SearchBudget(60.0, 0, 0)
    expert = placement_search(space, budget, starts=["expert"])
    assert expert.best.strategy == space.expert().strategy and set(expert.baselines) == {
        "data_parallel",
        "expert",
    }
    random = placement_search(space, budget, ChainSettings(seed=3), starts=["random"])
    assert random.best.strategy == random_strategy(space.choices, Random(3))
    given = {"mine": random.best.strategy}
    assert placement_search(space, budget, given=given, starts=["mine"]).best.strategy == given["mine"]


KINDS_OF_OPERATORS = {"dense": {"S", "P"}, "attention": {"S", "A", "P"}, "convolutions": {"S", "A", "P"}}


@pytest.mark.parametrize("allowed", ["S", "P", "O", "SP", "SAP", "SO", "SOAP"])
@pytest.mark.parametrize("name", KINDS_OF_OPERATORS)
def test_restricted_spaces(name: str, allowed: str) -> None:
    """A restricted space has the configurations of the whole space that split the allowed dimensions only."""
    space = space_of(name)
    kinds = {own.kind_of(dim.name, space.graph) for own in space.choices for dim in own.operator.dims
             if any(dim.name == split for split, _ in own.alone)}  # fmt: skip
    assert kinds == KINDS_OF_OPERATORS[name]
    for one in (False, True):
        within = space.within(allowed, one)
        assert within.data_parallel().strategy == space.data_parallel().strategy
        for whole, part in zip(space.choices, within.choices, strict=True):
            legal = [
                each
                for each in whole
                if all(whole.kind_of(dim, space.graph) in allowed for dim, _ in each.degrees)
                and (not one or len(each.degrees) < 2)
                and ("O" in allowed or 0 in each.devices)
            ]
            assert set(part) <= set(legal) and part.count == len(list(part))
            assert "O" not in allowed or list(part) == legal
            assert "O" in allowed or min(part, key=lambda each: len(each.devices)).devices == (0,)
        found = placement_search(within, SearchBudget(60.0, 30, 60))
        assert all(each in set(own) for each, own in zip(found.best.strategy, within.choices, strict=True))
        assert found.lower_bound <= found.best.seconds


def test_the_best_of_a_restricted_space_is_the_best_of_its_strategies() -> None:
    space = space_of("dense", 2).within("SP")
    found = placement_search(space, SearchBudget(60.0, 200))
    every = list(product(*space.choices))
    assert len(every) == space.strategies < space_of("dense", 2).strategies
    assert found.best.seconds == min(space.evaluator.full(each).seconds for each in every)
    assert proven(space, found, 60.0).is_optimal


def test_loops_that_are_not_compiled_find_the_same() -> None:
    """Without Numba the loops run as Python, on numbers that warn where they overflow."""
    imports = "from tests.placements.test_search import seconds_found"
    code = f"import sys; sys.modules['numba'] = None; {imports}; print(seconds_found().hex())"
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert float.fromhex(done.stdout) == seconds_found()


def seconds_found() -> float:
    return placement_search(space_of("recurrent"), SearchBudget(60.0, 60, 100)).best.seconds


def test_memory_is_respected() -> None:
    """There is room for neighbours of the best strategy on several devices, but not for everything on one."""
    program, hardware = prepared("dense"), find_hardware("k80_cluster", {})
    free = placement_search(space_of("dense"), SearchBudget(60.0, 200)).best
    room = int(free.memory.max()) - 1
    small = attrs.evolve(hardware, device=attrs.evolve(hardware.device, memory=room))
    found = placement_search(placement_space(program, small, 4), SearchBudget(60.0, 400)).best
    assert found.memory.max() <= room and found.seconds >= free.seconds
    tiny = attrs.evolve(hardware, device=attrs.evolve(hardware.device, memory=8))
    with pytest.raises(NothingFits):
        placement_search(placement_space(program, tiny, 4), SearchBudget(60.0, 50))


@pytest.mark.parametrize("proposals", [0, 30])
def test_an_interrupted_search_has_the_best_so_far(proposals: int) -> None:
    space, told = space_of("attention"), list[float]()

    def interrupt(doing: str, best: float | None, bound: float | None) -> None:
        assert best is not None
        told.append(best)
        if len(told) > proposals:
            raise KeyboardInterrupt

    with progress_to(interrupt):
        found = placement_search(space, SearchBudget(60.0, 200))
    assert found.is_interrupted and not found.locally_optimal
    assert found.best.seconds == min(told)
    assert len(told) == proposals + 1
