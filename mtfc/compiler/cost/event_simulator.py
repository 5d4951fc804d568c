"""Task graphs, and the execution simulator of FlexFlow (section 5). Devices take tasks first come, first served.

A connection between devices is a device too, and a transfer is a task on it. So computation and communication overlap unless an
edge forbids it. Edges only order tasks in time. The id of a task is a tuple of numbers, and every edge goes from a smaller id to
a larger one. So a graph has no cycle, and ids can break ties. Ids of equations follow the order of the program; further numbers
tell the tasks of one equation apart.

These equations define a timeline:

    ready(t) = the latest end of the tasks that t comes after, 0 if there are none
    start(t) = ready(t), or the end of the task before t on its device, if that is later
    end(t)   = start(t) + seconds(t)
    the tasks of a device are in the order of (ready, id)

They have one solution: edges and the orders of devices both go upward in (ready, id), so the times of a task follow from those of
tasks with smaller (ready, id). `simulate` finds the solution task by task in this order (Algorithm 1). The placement search
changes graphs, and has a simulator of its own: `placements/simulator/`.
"""

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush

from mtfc.compiler.records import frozen

Id = tuple[int, ...]

Key = tuple[float, Id]
"""The time at which a task is ready, and its id. Tasks of a device run in the order of these pairs."""


@frozen
class Task:
    """A task that takes `seconds` on `device` after all tasks of `after` have ended."""

    id: Id
    device: str
    seconds: float
    after: tuple[Id, ...] = ()


@frozen
class Slot:
    """The seconds at which a task could start, starts and ends."""

    ready: float
    start: float
    end: float


Timeline = Mapping[Id, Slot]


class TaskGraph:
    """Tasks by id. waiting: for each task, the tasks that wait for it.

    Raises `ValueError` if an edge leads nowhere or to a smaller id.
    """

    def __init__(self, tasks: Iterable[Task]) -> None:
        """Link tasks to the tasks that they wait for, which must have smaller ids."""
        self.tasks: dict[Id, Task] = {task.id: task for task in tasks}
        self.waiting: dict[Id, set[Id]] = {id: set() for id in self.tasks}
        for task in self.tasks.values():
            for before in task.after:
                if before not in self.tasks or before >= task.id:
                    raise ValueError(f"task {task.id} cannot come after {before}")
                self.waiting[before].add(task.id)


def simulate(graph: TaskGraph) -> dict[Id, Slot]:
    """Return the timeline of a graph (Algorithm 1)."""
    missing = {id: len(set(task.after)) for id, task in graph.tasks.items()}
    ready = dict.fromkeys(graph.tasks, 0.0)
    free: dict[str, float] = {}
    found: dict[Id, Slot] = {}
    queue: list[Key] = sorted((0.0, id) for id, count in missing.items() if not count)
    while queue:
        _, id = heappop(queue)
        task = graph.tasks[id]
        start = max(ready[id], free.get(task.device, 0.0))
        found[id] = Slot(ready[id], start, start + task.seconds)
        free[task.device] = found[id].end
        for waiting in graph.waiting[id]:
            ready[waiting] = max(ready[waiting], found[id].end)
            missing[waiting] -= 1
            if not missing[waiting]:
                heappush(queue, (ready[waiting], waiting))
    return found


def makespan(timeline: Timeline) -> float:
    """Return the time at which all tasks have ended."""
    return max((slot.end for slot in timeline.values()), default=0.0)
