"""Makes the blocks of a task graph (`names.py` says which there are), as compiled loops on flat arrays.

A sum among devices is an all-reduce: a task on the port of each, from each to the next around a ring of them in ascending
order, that takes as long as the ring or, where that is sooner, a tree

    ring  2 (n - 1) latency + 2 (n - 1) s / (n b)        tree  2 ceil(log2 n) (latency + s / b)

of the largest latency and the least bandwidth around the ring. FlexFlow's paper does not say how it synchronizes parameters.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mtfc.compiler.search.soap.blocks import Array
from mtfc.compiler.search.soap.forms import Known
from mtfc.compiler.search.soap.shares import shares
from mtfc.compiler.search.solver.kernels import compiled

TAKEN, STEP, SUMMED, RETURNED, COLLECTED, BACK, ADDED, NORM, KNOWN, UPDATED = range(10)
"""The kinds of blocks, in the order of `names.Kind`."""


class Plan(NamedTuple):
    """What all strategies of a graph on a machine have in common.

    kind [block]. of [block, column]: what a block is made of, see `tasks.py`. operator [step].
    Bundle i has the steps at `steps_at[i]` to `steps_at[i + 1]` in `steps`, whose backward passes are the blocks in `backs`, and
    the parameters from `parameters_at[i]` on: with so many `dims`, so many bytes an `item`, and in `places`, from `places_at` on,
    the number of the table in each of the bundle's steps, or -1.
    port, latency, bandwidth [sender, receiver]. idle: the number of a device for tasks that take no time.
    memory: bytes/s of a device's memory. states: numbers that the optimizer keeps for each parameter. clips: whether gradients
    are clipped by their norm.
    """

    kind: Array
    of: Array
    operator: Array
    steps_at: Array
    steps: Array
    backs: Array
    parameters_at: Array
    dims: Array
    item: Array
    places_at: Array
    places: Array
    port: Array
    latency: Array
    bandwidth: Array
    idle: int
    memory: float
    states: int
    clips: bool


class Placed(NamedTuple):
    """A strategy: the form of each step, and the devices of each operator's parts. [step], [operator, part]"""

    form: Array
    devices: Array


class Made(NamedTuple):
    """Room for blocks, which are `blocks.Blocks` when they are made. used: tasks and edges that there are, and tasks that there
    were when the present block was begun. Where room does not suffice they are counted only.
    """

    offsets: Array
    edge_offsets: Array
    device: Array
    seconds: Array
    edges: Array
    sent: Array
    held: Array
    used: Array


@compiled
def build(numbers: Array, plan: Plan, known: Known, placed: Placed, made: Made) -> None:
    """The blocks with some numbers, in ascending order."""
    made.offsets[0] = made.edge_offsets[0] = 0
    for i in range(len(numbers)):
        own = numbers[i]
        kind = plan.kind[own]
        made.used[2] = made.used[0]
        if kind in (STEP, BACK):
            _computed(own, i, plan, known, placed, made)
        elif kind in (TAKEN, RETURNED):
            _exchanged(own, i, plan, known, placed, made)
        elif kind in (SUMMED, COLLECTED):
            _summed(own, i, plan, known, placed, made)
        elif kind == ADDED:
            _added(own, i, plan, known, placed, made)
        elif kind == NORM:
            _norm(own, i, plan, known, placed, made)
        elif kind == KNOWN:
            _task(made, plan.idle, 0.0)
        else:
            _updated(own, i, plan, known, placed, made)
        made.offsets[i + 1], made.edge_offsets[i + 1] = made.used[0], made.used[1]


@compiled
def _task(made: Made, device: int, seconds: float) -> int:
    """Append a task to the present block; its number there."""
    at = made.used[0]
    if at < len(made.device):
        made.device[at], made.seconds[at] = device, seconds
    made.used[0] += 1
    return int(at - made.used[2])


@compiled
def _edge(made: Made, block: int, task: int, after: int, other: int) -> None:
    """The second task waits for the first."""
    at = made.used[1]
    if at < len(made.edges):
        made.edges[at, 0], made.edges[at, 1], made.edges[at, 2], made.edges[at, 3] = block, task, after, other
    made.used[1] += 1


@compiled
def _computed(own: int, i: int, plan: Plan, known: Known, placed: Placed, made: Made) -> None:
    """A pass of a step."""
    step, before = plan.of[own, 0], plan.of[own, 1]
    form, devices = placed.form[step], placed.devices[plan.operator[step]]
    for part in range(known.parts[form]):
        if plan.kind[own] == STEP:
            _task(made, devices[part], known.forward[form])
            made.held[i, devices[part]] += known.kept[form]
        else:
            _task(made, devices[part], known.backward[form])
            _edge(made, before, part, own, part)


@compiled
def _exchanged(own: int, i: int, plan: Plan, known: Known, placed: Placed, made: Made) -> None:
    """What parts of the user of a value take of it from its maker's, or return of its cotangent."""
    maker, output, user, taken, is_pending, block, after, dims, item = plan.of[own]
    here, there = placed.devices[plan.operator[maker]], placed.devices[plan.operator[user]]
    parts, targets = known.parts[placed.form[maker]], known.parts[placed.form[user]]
    given, wanted = known.first[placed.form[maker]] + output, known.first[placed.form[user]] + taken
    sums = 0
    for piece in range(known.pieces[given]):
        first = sums
        if is_pending:
            count = _holders(known, given, piece, parts, here, plan).sum()
            sums += count + 2 if count > 1 else 2
        for part in range(targets):
            size = item * _shared(known, given, piece, wanted, part, dims)
            if size == 0:
                continue
            giver = _giver(known, given, piece, parts, here, there[part], part)
            if plan.kind[own] == TAKEN:
                task = sums - 1 if is_pending else giver
                ends = _sent(own, i, here[giver], there[part], size, plan, made)
                if ends >= 0:
                    made.held[i, there[part]] += size
                _passed(own, block, task, after, part, ends, made)
            else:
                task = first if is_pending else giver
                ends = _sent(own, i, there[part], here[giver], size, plan, made)
                _passed(own, block, part, after, task, ends, made)


@compiled
def _shared(known: Known, given: int, piece: int, wanted: int, part: int, dims: int) -> int:
    """How many elements a piece of one table and that of a part in another have in common."""
    a = known.bounds_at[given] + 2 * dims * piece
    b = known.bounds_at[wanted] + 2 * dims * known.rows[known.rows_at[wanted] + part]
    size = 1
    for dim in range(dims):
        low = max(known.bounds[a + 2 * dim], known.bounds[b + 2 * dim])
        high = min(known.bounds[a + 2 * dim + 1], known.bounds[b + 2 * dim + 1])
        if high <= low:
            return 0
        size *= high - low
    return size


@compiled
def _giver(known: Known, table: int, piece: int, parts: int, devices: Array, target: int, turn: int) -> int:
    """Of the parts that have a piece the one on the target's device, if there is one; else they take turns."""
    if known.pieces[table] == parts:
        return piece
    rows, count = known.rows_at[table], 0
    for part in range(parts):
        if known.rows[rows + part] == piece:
            if devices[part] == target:
                return part
            count += 1
    turn %= count
    for part in range(parts):
        if known.rows[rows + part] == piece:
            if turn == 0:
                return part
            turn -= 1
    return -1


@compiled
def _sent(own: int, i: int, source: int, target: int, size: int, plan: Plan, made: Made) -> int:
    """A transfer; the number of its task, or -1 on one device."""
    if source == target:
        return -1
    made.sent[i] += size
    seconds = plan.latency[source, target] + size / plan.bandwidth[source, target]
    return _task(made, plan.port[source, target], seconds)


@compiled
def _passed(own: int, block: int, task: int, after: int, other: int, transfer: int, made: Made) -> None:
    """A task waits for another one, by a transfer if there is one."""
    if transfer < 0:
        _edge(made, block, task, after, other)
    else:
        _edge(made, block, task, own, transfer)
        _edge(made, own, transfer, after, other)


@compiled
def _holders(known: Known, table: int, piece: int, parts: int, devices: Array, plan: Plan) -> Array:
    """Which devices have a part with a piece."""
    found = np.zeros(len(plan.port), np.bool_)
    for part in range(parts):
        if known.rows[known.rows_at[table] + part] == piece:
            found[devices[part]] = True
    return found


@compiled
def _reduced(own: int, i: int, members: Array, size: int, plan: Plan, made: Made) -> Any:
    """A sum of `size` bytes on each of some devices; the numbers of its start and its end."""
    start, count = _task(made, plan.idle, 0.0), members.sum()
    devices = np.flatnonzero(members)
    if count > 1:
        latency, bandwidth = 0.0, np.inf
        for n in range(count):
            a, b = devices[n], devices[(n + 1) % count]
            latency, bandwidth = max(latency, plan.latency[a, b]), min(bandwidth, plan.bandwidth[a, b])
        rounds = 0
        while 1 << rounds < count:
            rounds += 1
        ring = 2 * (count - 1) * (latency + size / (count * bandwidth))
        tree = 2 * rounds * (latency + size / bandwidth)
        for n in range(count):
            task = _task(made, plan.port[devices[n], devices[(n + 1) % count]], min(ring, tree))
            _edge(made, own, start, own, task)
        made.sent[i] += 2 * (count - 1) * size
    end = _task(made, plan.idle, 0.0)
    if count > 1:
        for task in range(start + 1, end):
            _edge(made, own, task, own, end)
    else:
        _edge(made, own, start, own, end)
    return start, end


@compiled
def _summed(own: int, i: int, plan: Plan, known: Known, placed: Placed, made: Made) -> None:
    """The terms of a pending value, or of its cotangent, added up among the parts that have them."""
    step, output, block = plan.of[own, 0], plan.of[own, 1], plan.of[own, 2]
    form, devices = placed.form[step], placed.devices[plan.operator[step]]
    parts, table = known.parts[form], known.first[form] + output
    for piece in range(known.pieces[table]):
        members = _holders(known, table, piece, parts, devices, plan)
        start, end = _reduced(own, i, members, known.size[table], plan, made)
        for part in range(parts):
            if known.rows[known.rows_at[table] + part] == piece:
                if plan.kind[own] == SUMMED:
                    _edge(made, block, part, own, start)
                else:
                    _edge(made, own, end, block, part)


@compiled
def _added(own: int, i: int, plan: Plan, known: Known, placed: Placed, made: Made) -> None:
    """The gradients of a bundle; before they are clipped each device reads its own, for their norm."""
    bundle, norm = plan.of[own, 0], plan.of[own, 1]
    all_members, sizes = shares(bundle, plan, known, placed)
    for share in range(len(sizes)):
        members, size = all_members[share], sizes[share]
        start, end = _reduced(own, i, members, size, plan, made)
        for at in range(plan.steps_at[bundle], plan.steps_at[bundle + 1]):
            devices = placed.devices[plan.operator[plan.steps[at]]]
            for part in range(known.parts[placed.form[plan.steps[at]]]):
                if members[devices[part]]:
                    _edge(made, plan.backs[at], part, own, start)
        if plan.clips:
            for device in np.flatnonzero(members):
                read = _task(made, int(device), size / plan.memory)
                _edge(made, own, end, own, read)
                _edge(made, own, read, norm, 0)


@compiled
def _norm(own: int, i: int, plan: Plan, known: Known, placed: Placed, made: Made) -> None:
    """The norm of all gradients, added up among all devices that have some."""
    members = np.zeros(len(plan.port), np.bool_)
    for step in plan.steps:
        for part in range(known.parts[placed.form[step]]):
            members[placed.devices[plan.operator[step], part]] = True
    _, end = _reduced(own, i, members, 4, plan, made)
    _edge(made, own, end, plan.of[own, 0], 0)


@compiled
def _updated(own: int, i: int, plan: Plan, known: Known, placed: Placed, made: Made) -> None:
    """Each device's copy of the parameters of a bundle, once their gradients are added up, or the norm of all is known."""
    bundle, before = plan.of[own, 0], plan.of[own, 1]
    all_members, sizes = shares(bundle, plan, known, placed)
    end = -1
    for share in range(len(sizes)):
        size, devices = sizes[share], np.flatnonzero(all_members[share])
        end += len(devices) + 2 if len(devices) > 1 else 2
        for device in devices:
            task = _task(made, int(device), size * (3 + 2 * plan.states) / plan.memory)
            _edge(made, before, 0 if plan.clips else end, own, task)
            made.held[i, device] += size * (2 + plan.states)
