"""The execution simulator of FlexFlow (section 5). Devices take tasks first come, first served.

These equations define a timeline:

    ready(t) = the latest end of the tasks that t comes after, 0 if there are none
    start(t) = ready(t), or the end of the task before t on its device, if that is later
    end(t)   = start(t) + seconds(t)
    the tasks of a device are in the order of (ready, id)

They have one solution: edges and the orders of devices both go upward in (ready, id), so the times of a task follow from those of
tasks with smaller (ready, id). `simulate` finds the solution task by task in this order (Algorithm 1). `Simulation` keeps a
solution up to date while the graph changes (Algorithm 2). It follows the same order, but visits only tasks for which an equation
may no longer hold. Times before the current task are final, as all effects of a change come later. So `Simulation` visits each
affected task at its old and its new place. Both algorithms do the same arithmetic and give the same numbers to the last bit.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from heapq import heappop, heappush
from math import inf

from mtfc.compiler.cost.task_graph import Id, Slot, Task, TaskGraph, Timeline

Key = tuple[float, Id]
"""The time at which a task is ready, and its id. Tasks of a device run in the order of these pairs."""


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


class Simulation:
    """A graph and its timeline, which follows changes of the graph (Algorithm 2)."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self.graph = TaskGraph(tasks)
        self.timeline: dict[Id, Slot] = simulate(self.graph)
        self._place = {id: (self.graph.tasks[id].device, slot.ready) for id, slot in self.timeline.items()}
        self._queues: dict[str, list[Key]] = {}
        for id, (device, ready) in self._place.items():
            insort(self._queues.setdefault(device, []), (ready, id))
        self._suspects: list[Key] = []
        self.visits = 0

    def change(self, tasks: Iterable[Task], removed: Iterable[Id] = ()) -> None:
        """Change the graph (see `TaskGraph.change`) and its timeline."""
        tasks, removed = tuple(tasks), tuple(removed)
        self.graph.change(tasks, removed)
        for id in removed:
            self._leave(id)
            del self.timeline[id]
        for task in tasks:
            self._suspect(task.id)
        while self._suspects:
            key = heappop(self._suspects)
            while self._suspects and self._suspects[0] == key:
                heappop(self._suspects)
            self._visit(key)

    def _visit(self, key: Key) -> None:
        """Recompute the times of one task by its equations. All tasks before `key` are final."""
        id = key[1]
        if id not in self.graph.tasks:
            return
        self.visits += 1
        task, now = self.graph.tasks[id], (self._ready(id), id)
        placed = self._place.get(id)
        if placed is not None and (placed[1], id) <= key and (placed != (task.device, now[0])):
            self._leave(id)
            self._end(id, None)
        if now == key:
            self._run(task, now)
        elif now[0] < inf and id not in self._place:
            heappush(self._suspects, now)

    def _run(self, task: Task, key: Key) -> None:
        """Set the place and the times of a task."""
        if task.id in self._place and self._place[task.id] != (task.device, key[0]):
            self._leave(task.id)
        queue = self._queues.setdefault(task.device, [])
        at = bisect_left(queue, key)
        if task.id not in self._place:
            queue.insert(at, key)
            self._place[task.id] = (task.device, key[0])
            self._suspect_next(queue, at + 1)
        before = self.timeline[queue[at - 1][1]].end if at else 0.0
        start = max(key[0], before)
        slot = Slot(key[0], start, start + task.seconds)
        if self.timeline.get(task.id) == slot:
            return
        self._suspect_next(queue, at + 1)
        self._end(task.id, slot)

    def _end(self, id: Id, slot: Slot | None) -> None:
        """Set the times of a task, None if not known, and visit the tasks that wait for it."""
        if slot is None:
            del self.timeline[id]
        else:
            self.timeline[id] = slot
        for waiting in self.graph.waiting[id]:
            self._suspect(waiting)

    def _leave(self, id: Id) -> None:
        """Remove a task from the queue of its device."""
        if id not in self._place:
            return
        device, ready = self._place.pop(id)
        queue = self._queues[device]
        at = bisect_left(queue, (ready, id))
        del queue[at]
        self._suspect_next(queue, at)

    def _suspect_next(self, queue: list[Key], at: int) -> None:
        if at < len(queue):
            heappush(self._suspects, queue[at])

    def _suspect(self, id: Id) -> None:
        """Plan visits of a task at its present place and at the place where it belongs."""
        if id in self._place:
            heappush(self._suspects, (self._place[id][1], id))
        ready = self._ready(id)
        if ready < inf:
            heappush(self._suspects, (ready, id))

    def _ready(self, id: Id) -> float:
        """Return the time at which a task is ready, infinite while a task that it waits for has no times."""
        times = (self.timeline.get(before) for before in self.graph.tasks[id].after)
        return max((slot.end if slot else inf for slot in times), default=0.0)
