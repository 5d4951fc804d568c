"""Task graphs: tasks on devices, their durations, and their order (FlexFlow, section 5.1).

A connection between devices is a device too, and a transfer is a task on it. So computation and communication overlap unless an
edge forbids it. Edges only order tasks in time. The id of a task is a tuple of numbers, and every edge goes from a smaller id to
a larger one. So a graph has no cycle, and ids can break ties. Ids of equations follow the order of the program; further numbers
tell the tasks of one equation apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mtfc.compiler.records import frozen

Id = tuple[int, ...]


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
    """Tasks by id, and for each task those that wait for it. Raises `ValueError` if an edge leads nowhere or to a smaller id."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self.tasks = {task.id: task for task in tasks}
        self.waiting: dict[Id, set[Id]] = {id: set() for id in self.tasks}
        for task in self.tasks.values():
            for before in task.after:
                if before not in self.tasks or before >= task.id:
                    raise ValueError(f"task {task.id} cannot come after {before}")
                self.waiting[before].add(task.id)
