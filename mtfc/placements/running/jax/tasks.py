"""The tasks of a placed module: calls of functions on devices, and data that moves between devices, in order of dispatch.

A device runs its tasks in the order in which they are handed to it. So tasks are ordered by a simulation: a free device takes the
ready task of the earliest micro-batch, its backward pass first. Then stages of a pipeline overlap, and at most as many
micro-batches are under way as there are devices.
"""

import heapq
import keyword
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod

import attrs

from mtfc.compiler.ir.builder import Names
from mtfc.compiler.ir.types import ARRAY_DTYPES, TensorType
from mtfc.placements.running.jax.parts import PREFIX, WrittenFunction

Ends = tuple[tuple[int, int], ...]
"""The first position and the one after the last along each dimension of an array."""


@attrs.frozen(eq=False)
class PlacedTask:
    """One statement that hands work to a device. reads, writes: variables. group: its micro-batch, and 0 for a backward pass or
    1 for others, which come later.
    """

    device: int
    text: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    work: int
    group: tuple[int, int]


@attrs.frozen
class HeldPiece:
    """A region of an array in a variable on a device. ends: the bounds of the region along each dimension.

    name: the variable.
    """

    device: int
    ends: Ends
    name: str


@attrs.define(eq=False)
class TaskList:
    """Tasks in an order in which they can run. sent: bytes from device to device."""

    names: Names
    group: tuple[int, int] = (0, 1)
    tasks: list[PlacedTask] = attrs.field(factory=list)
    device: dict[str, int] = attrs.field(factory=dict)
    sent: int = 0
    _known: dict[tuple[object, ...], str] = attrs.field(factory=dict)

    def given(self, wanted: str, device: int) -> str:
        """Return a variable that the module defines before its tasks."""
        name = self.names.fresh(
            f"the_{wanted}" if wanted.startswith(PREFIX) or keyword.iskeyword(wanted) else wanted
        )
        self.device[name] = device
        return name

    def add(
        self, device: int, text: str, reads: Iterable[str], wanted: Sequence[str], work: int = 1
    ) -> list[str]:
        """Add a task with the text of its call; return its variables."""
        found = [self.given(each, device) for each in wanted]
        line = f"{', '.join(found)} = {text}"
        self.tasks.append(PlacedTask(device, line, tuple(reads), tuple(found), work, self.group))
        return found

    def apply(
        self, device: int, function: str, given: Sequence[object], wanted: Sequence[str], work: int = 1
    ) -> list[str]:
        """Add a call of a function. Arguments that are no variables are made where they stand."""
        reads = [each for each in given if isinstance(each, str) and each in self.device]
        assert function == "send" or all(self.device[each] == device for each in reads)
        return self.add(device, f"{function}({', '.join(map(str, given))})", reads, wanted, work)

    def call(
        self, device: int, function: WrittenFunction, operands: Sequence[str], wanted: Sequence[str]
    ) -> list[str]:
        """Call a function of the module on a device."""
        given = [*operands, *(f"at({position}, {device})" for position in function.positions)]
        return self.apply(device, function.name, given, wanted, function.work)

    def filled(self, type: TensorType, value: float, device: int, wanted: str = "zeros") -> str:
        """Return a variable with an array of equal numbers on a device."""
        shape = tuple(dim.size for dim in type.dims)
        text = f'filled({shape}, {value}, "{ARRAY_DTYPES[type.dtype]}", {device})'
        return self._once((text, wanted), lambda: self.add(device, text, [], [wanted])[0])

    def on(self, name: str, device: int, size: int) -> str:
        """Return a variable on a device, sent there if it is on another. size: its bytes."""
        source = self.device[name]
        if source == device:
            return name

        def send() -> str:
            self.sent += size
            return self.apply(device, "send", [name, device], [f"{name}_on_{device}"])[0]

        return self._once(("send", name, device), send)

    def cut(self, name: str, have: Ends, wanted: Ends) -> str:
        """Return the wanted region of a variable that holds another region."""
        if have == wanted:
            return name
        inside = relative(wanted, have)
        device = self.device[name]
        return self._once(
            ("cut", name, inside),
            lambda: self.apply(device, "cut", [name, inside], [f"{name}_cut"])[0],
        )

    def joined(self, device: int, wanted: Ends, pieces: Sequence[HeldPiece], base: str, adds: bool) -> str:
        """Return a region made of pieces on its device, which may overlap if they are added up."""
        if all(each.ends == wanted for each in pieces) and (adds or len(pieces) == 1):
            return self.total(device, [each.name for each in pieces], base)
        shape = tuple(last - first for first, last in wanted)
        places = tuple(relative(each.ends, wanted) for each in pieces)
        given = (shape, places, adds, *(each.name for each in pieces))
        return self._once(
            ("assembled", *given),
            lambda: self.apply(device, "assembled", given, [base], volume(wanted))[0],
        )

    def total(self, device: int, names: Sequence[str], base: str) -> str:
        """Return the sum of variables on a device; an empty text for none."""
        if len(names) < 2:
            return names[0] if names else ""
        return self.apply(device, "total", names, [base])[0]

    def summed(self, held: Sequence[HeldPiece], item: int, base: str, turn: int = 0) -> dict[int, str]:
        """Return the sum of pieces on each device that holds one; a piece without a name has no term. item: bytes of an element.

        One of the devices with terms of the same elements adds them up, and sends the sum to all.
        """
        parts: dict[int, list[HeldPiece]] = {piece.device: [] for piece in held}
        for region in regions_of([piece.ends for piece in held]):
            holders = [piece for piece in held if common(piece.ends, region) == region]
            terms = [self.cut(piece.name, piece.ends, region) for piece in holders if piece.name]
            if not terms:
                continue
            root = self.device[terms[turn % len(terms)]]
            sent = [self.on(name, root, item * volume(region)) for name in terms]
            total = self.total(root, sent, base)
            for piece in holders:
                name = self.on(total, piece.device, item * volume(region))
                parts[piece.device].append(HeldPiece(piece.device, region, name))
        return {
            piece.device: self.joined(piece.device, piece.ends, parts[piece.device], base, adds=True)
            for piece in held
            if parts[piece.device]
        }

    def _once(self, key: tuple[object, ...], make: object) -> str:
        """Return the variable of a task with a key; the task is added the first time."""
        if key not in self._known:
            self._known[key] = make()  # type: ignore[operator]
        return self._known[key]


def relative(ends: Ends, inside: Ends) -> Ends:
    """Return the place of a region in another one."""
    return tuple((a - low, b - low) for (a, b), (low, _) in zip(ends, inside, strict=True))


def volume(ends: Ends) -> int:
    return prod(last - first for first, last in ends)


def common(one: Ends, other: Ends) -> Ends | None:
    """Return the region that two regions share, or None."""
    found = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return found if all(a < b for a, b in found) else None


def cells(chosen: Mapping[Ends, int], wanted: Ends) -> Iterator[tuple[int, Ends]]:
    """Cut the wanted region along the ends of pieces that overlap; yield a piece for each cell that has one."""
    grid: list[Ends] = [()]
    for axis, (low, high) in enumerate(wanted):
        marks = sorted({m for ends in chosen for m in ends[axis] if low < m < high} | {low, high})
        grid = [(*cell, step) for cell in grid for step in pairwise(marks)]
    for cell in grid:
        number = next((i for ends, i in chosen.items() if common(ends, cell) == cell), None)
        if number is not None:
            yield number, cell


def regions_of(alike: Sequence[Ends]) -> Iterator[Ends]:
    """Yield regions that do not overlap, and of which each given region consists."""
    marks = dict.fromkeys(alike, 0)
    if all(common(a, b) is None for a in marks for b in marks if a != b):
        yield from marks
        return
    yield from dict.fromkeys(cell for ends in marks for _, cell in cells(marks, ends))


def dispatch_order(tasks: Sequence[PlacedTask], devices: int) -> Iterator[PlacedTask]:
    """Yield tasks in the order in which free devices take them: see the module's docstring."""
    makers = {name: i for i, task in enumerate(tasks) for name in task.writes}
    users: list[list[int]] = [[] for _ in tasks]
    waits = [0] * len(tasks)
    for i, task in enumerate(tasks):
        for maker in {makers[name] for name in task.reads if name in makers}:
            users[maker].append(i)
            waits[i] += 1
    left = Counter(task.group[0] for task in tasks)
    ready: list[list[tuple[tuple[int, int], int]]] = [[] for _ in range(devices)]
    later: list[tuple[tuple[int, int], int]] = []
    free = [0] * devices
    running: list[tuple[int, int]] = []
    first = min(left, default=0)

    def open_up(i: int) -> None:
        """Put a task that waits for no other into the queue of its device, or among those of later groups."""
        task = tasks[i]
        queue = ready[task.device] if task.group[0] < first + devices else later
        heapq.heappush(queue, (task.group, i))

    for i, number in enumerate(waits):
        if not number:
            open_up(i)
    now = 0
    while any(ready) or running or later:
        for device, queue in enumerate(ready):
            if queue and free[device] <= now:
                _, i = heapq.heappop(queue)
                yield tasks[i]
                free[device] = now + tasks[i].work
                heapq.heappush(running, (free[device], i))
        if not running:
            break
        now, i = heapq.heappop(running)
        left[tasks[i].group[0]] -= 1
        while first in left and not left[first]:
            first += 1
        while later and later[0][0][0] < first + devices:
            heapq.heappush(ready[tasks[later[0][1]].device], heapq.heappop(later))
        for user in users[i]:
            waits[user] -= 1
            if not waits[user]:
                open_up(user)


def with_deletions(tasks: Sequence[PlacedTask], stay: Iterable[str]) -> Iterator[str]:
    """Yield the statements of tasks, and delete each variable after its last use unless it stays."""
    kept, last = {*stay}, {name: i for i, task in enumerate(tasks) for name in (*task.reads, *task.writes)}
    gone: dict[int, list[str]] = {}
    for name, i in last.items():
        if name not in kept:
            gone.setdefault(i, []).append(name)
    for i, task in enumerate(tasks):
        yield task.text
        if i in gone:
            yield f"del {', '.join(gone[i])}"
