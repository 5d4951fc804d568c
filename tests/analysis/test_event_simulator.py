"""Test the simulator: FlexFlow's example, and the equations of a timeline on random graphs."""

import random
from itertools import pairwise

import pytest

from mtfc.compiler.cost.event_simulator import Id, Slot, Task, TaskGraph, makespan, simulate


def test_a_chain_waits_for_its_transfer() -> None:
    tasks = [Task((0,), "gpu", 2.0), Task((1,), "link", 3.0, ((0,),)), Task((2,), "gpu", 1.0, ((1,),))]
    assert simulate(TaskGraph(tasks))[2,] == Slot(5.0, 5.0, 6.0)


def test_transfers_overlap_with_computation() -> None:
    tasks = [
        Task((0,), "gpu", 2.0),
        Task((1,), "link", 3.0, ((0,),)),
        Task((2,), "gpu", 4.0, ((0,),)),
        Task((3,), "gpu", 1.0, ((1,),)),
    ]
    timeline = simulate(TaskGraph(tasks))
    assert timeline[3,] == Slot(5.0, 6.0, 7.0)
    assert makespan(timeline) == 7.0


def test_first_come_first_served() -> None:
    """The task with the larger id is ready first, so it runs first."""
    tasks = [
        Task((0,), "a", 5.0),
        Task((1,), "b", 1.0),
        Task((2,), "c", 10.0, ((0,),)),
        Task((3,), "c", 10.0, ((1,),)),
    ]
    timeline = simulate(TaskGraph(tasks))
    assert (timeline[3,].start, timeline[2,].start) == (1.0, 11.0)


def test_edges_go_upward() -> None:
    with pytest.raises(ValueError, match="cannot come after"):
        TaskGraph([Task((0,), "a", 1.0, ((1,),)), Task((1,), "a", 1.0)])
    with pytest.raises(ValueError, match="cannot come after"):
        TaskGraph([Task((3,), "a", 1.0, ((1,),))])


def some_task(draw: random.Random, id: Id, known: list[Id], devices: int) -> Task:
    """Draw a task. Durations have few values, so that many tasks are ready at once; some are zero."""
    below = [each for each in known if each < id]
    after = draw.sample(below, min(len(below), draw.randint(0, 3)))
    return Task(id, f"d{draw.randrange(devices)}", draw.choice((0.0, 1.0, 1.0, 2.0, 0.3, 7.1)), tuple(after))


def some_graph(draw: random.Random) -> list[Task]:
    ids = [(i,) for i in range(draw.randint(1, 20))]
    devices = draw.randint(1, 5)
    return [some_task(draw, id, ids, devices) for id in ids]


def test_a_timeline_satisfies_its_equations() -> None:
    draw = random.Random(1)
    for _ in range(100):
        graph = TaskGraph(some_graph(draw))
        timeline = simulate(graph)
        for id, task in graph.tasks.items():
            slot = timeline[id]
            assert slot.ready == max((timeline[before].end for before in task.after), default=0.0)
            assert slot.end == slot.start + task.seconds
        for device in {task.device for task in graph.tasks.values()}:
            queue = sorted((timeline[t.id].ready, t.id) for t in graph.tasks.values() if t.device == device)
            for (_, before), (ready, after) in pairwise(queue):
                assert timeline[after].start == max(ready, timeline[before].end)
