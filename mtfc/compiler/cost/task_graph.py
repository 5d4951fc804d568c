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
        self.tasks: dict[Id, Task] = {}
        self.waiting: dict[Id, set[Id]] = {}
        self.change(tasks)

    def change(self, tasks: Iterable[Task], removed: Iterable[Id] = ()) -> None:
        """Add tasks, which replace those with the same ids, and remove others."""
        tasks = tuple(tasks)
        for id in (*removed, *(task.id for task in tasks)):
            for before in self.tasks[id].after if id in self.tasks else ():
                self.waiting[before].discard(id)
        for id in removed:
            del self.tasks[id], self.waiting[id]
        for task in tasks:
            self.tasks[task.id] = task
            self.waiting.setdefault(task.id, set())
        for task in tasks:
            self._connect(task)

    def _connect(self, task: Task) -> None:
        for before in task.after:
            if before not in self.tasks or before >= task.id:
                raise ValueError(f"task {task.id} cannot come after {before}")
            self.waiting[before].add(task.id)
