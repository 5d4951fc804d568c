"""Makes the blocks of a task graph (`block_names.py` says which there are), as compiled loops on flat arrays.

A sum among devices is an all-reduce: a task on the port of each, from each to the next around a ring of them in ascending
order, that takes as long as the ring or, where that is sooner, a tree

    ring  2 (n - 1) latency + 2 (n - 1) s / (n b)        tree  2 ceil(log2 n) (latency + s / b)

of the largest latency and the least bandwidth around the ring. FlexFlow's paper does not say how it synchronizes parameters.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mtfc.compiler.search.placement.graph.replica_groups import share
from mtfc.compiler.search.placement.parts.block_arrays import Array, Blocks
from mtfc.compiler.search.placement.parts.flat_encoding import (
    ADDED,
    BACK,
    BOUNDS,
    COLLECTED,
    FIRST,
    KEPT,
    KNOWN,
    NORM,
    PARTS,
    PIECES,
    READ,
    RETURNED,
    ROWS,
    SIZE,
    STEP,
    STORED,
    SUMMED,
    TAKEN,
    Known,
    Placed,
    Plan,
    Shares,
)
from mtfc.compiler.search.solver.message_passing import compiled, inner, lean, tight

TICK = 2.0**-44
"""Seconds of which all times of tasks are multiples, so that sums of them are exact; they are rounded up."""


class Made(NamedTuple):
    """Room for blocks, which are `block_arrays.Blocks` when they are made. used: tasks and edges that there are, and tasks that there
    were when the present block was begun. Where room does not suffice they are counted only. members [device]: room for a set.
    """

    offsets: Array
    edge_offsets: Array
    device: Array
    seconds: Array
    edges: Array
    sent: Array
    held: Array
    used: Array
    members: Array


@compiled
def built(numbers: Array, plan: Plan, known: Known, placed: Placed, room: Array) -> Blocks:
    """The blocks with some numbers, in ascending order. room [3]: for how many tasks, edges and shares; is made larger."""
    devices = len(plan.port)
    while True:
        at, members = np.empty(len(plan.bundles) + 1, np.int64), np.empty((room[2], devices), np.bool_)
        shares = Shares(at, members, np.empty(room[2], np.int64))
        if share(numbers, plan, known, placed, shares):
            break
        room[2] *= 2
    while True:
        made = _empty(len(numbers), room[0], room[1], devices)
        _build(numbers, plan, known, placed, shares, made)
        tasks, edges = made.used[0], made.used[1]
        if tasks <= room[0] and edges <= room[1]:
            break
        room[0], room[1] = max(tasks, room[0]), max(edges, room[1])
    return Blocks(
        made.offsets,
        made.edge_offsets,
        made.device[:tasks],
        made.seconds[:tasks],
        made.edges[:edges],
        made.sent,
        made.held,
    )


@inner
def _empty(count: int, tasks: int, edges: int, devices: int) -> Made:
    return Made(
        np.empty(count + 1, np.int64),
        np.empty(count + 1, np.int64),
        np.empty(tasks, np.int32),
        np.empty(tasks),
        np.empty((edges, 4), np.int64),
        np.zeros(count, np.int64),
        np.zeros((count, devices)),
        np.zeros(3, np.int64),
        np.empty(devices, np.bool_),
    )


@lean
def _build(numbers: Array, plan: Plan, known: Known, placed: Placed, shares: Shares, made: Made) -> None:
    """The blocks with some numbers, in ascending order."""
    made.offsets[0] = made.edge_offsets[0] = 0
    for i in range(len(numbers)):
        own = numbers[i]
        kind = plan.blocks[own, 0]
        made.used[2] = made.used[0]
        if kind in (STEP, BACK):
            _computed(own, i, plan, known, placed, made)
        elif kind in (TAKEN, RETURNED):
            _exchanged(own, i, plan, known, placed, made)
        elif kind in (SUMMED, COLLECTED):
            _summed(own, i, plan, known, placed, made)
        elif kind == ADDED:
            _added(own, i, plan, known, placed, shares, made)
        elif kind == NORM:
            _norm(own, i, plan, known, placed, made)
        elif kind in (READ, KNOWN):
            _task(made, plan.idle, 0.0)
        elif kind == STORED:
            _stored(own, i, plan, shares, made)
        else:
            _updated(own, i, plan, shares, made)
        made.offsets[i + 1], made.edge_offsets[i + 1] = made.used[0], made.used[1]


@tight
def _task(made: Made, device: int, seconds: float) -> int:
    """Append a task to the present block; its number there."""
    at = made.used[0]
    if at < len(made.device):
        made.device[at], made.seconds[at] = device, np.ceil(seconds / TICK) * TICK
    made.used[0] += 1
    return int(at - made.used[2])


@tight
def _edge(made: Made, block: int, task: int, after: int, other: int) -> None:
    """The second task waits for the first."""
    at = made.used[1]
    if at < len(made.edges):
        made.edges[at, 0], made.edges[at, 1], made.edges[at, 2], made.edges[at, 3] = block, task, after, other
    made.used[1] += 1


@tight
def _computed(own: int, i: int, plan: Plan, known: Known, placed: Placed, made: Made) -> None:
    """A pass of a step."""
    step, before = plan.blocks[own, 1], plan.blocks[own, 2]
    form, devices = placed.form[step], placed.devices[plan.operator[step]]
    for part in range(known.forms[form, PARTS]):
        if plan.blocks[own, 0] == STEP:
            _task(made, devices[part], known.seconds[form, 0])
            made.held[i, devices[part]] += known.forms[form, KEPT]
        else:
            _task(made, devices[part], known.seconds[form, 1])
            _edge(made, before, part, own, part)


@tight
def _exchanged(own: int, i: int, plan: Plan, known: Known, placed: Placed, made: Made) -> None:
    """What parts of the user of a value take of it from its maker's, or return of its cotangent."""
    kind, maker, output, user, taken, is_pending, block, after, dims, item = plan.blocks[own]
    here, there = placed.devices[plan.operator[maker]], placed.devices[plan.operator[user]]
    parts, targets = known.forms[placed.form[maker], PARTS], known.forms[placed.form[user], PARTS]
    given = known.forms[placed.form[maker], FIRST] + output
    wanted = known.forms[placed.form[user], FIRST] + taken
    sums = 0
    for piece in range(known.tables[given, PIECES]):
        first = sums
        if is_pending:
            _hold(known, given, piece, parts, here, made.members)
            sums += _tasks(_count(made.members))
        for part in range(targets):
            size = item * _shared(known, given, piece, wanted, part, dims)
            if size == 0:
                continue
            giver = _giver(known, given, piece, parts, here, there[part], part)
            if kind == TAKEN:
                task = sums - 1 if is_pending else giver
                ends = _sent(i, here[giver], there[part], size, plan, made)
                if ends >= 0:
                    made.held[i, there[part]] += size
                _passed(own, block, task, after, part, ends, made)
            else:
                task = first if is_pending else giver
                ends = _sent(i, there[part], here[giver], size, plan, made)
                _passed(own, block, part, after, task, ends, made)


@tight
def _shared(known: Known, given: int, piece: int, wanted: int, part: int, dims: int) -> int:
    """How many elements a piece of one table and that of a part in another have in common."""
    a = known.tables[given, BOUNDS] + 2 * dims * piece
    b = known.tables[wanted, BOUNDS] + 2 * dims * known.numbers[known.tables[wanted, ROWS] + part]
    size = 1
    for dim in range(dims):
        low = max(known.numbers[a + 2 * dim], known.numbers[b + 2 * dim])
        high = min(known.numbers[a + 2 * dim + 1], known.numbers[b + 2 * dim + 1])
        if high <= low:
            return 0
        size *= high - low
    return size


@tight
def _giver(known: Known, table: int, piece: int, parts: int, devices: Array, target: int, turn: int) -> int:
    """Of the parts that have a piece the one on the target's device, if there is one; else they take turns."""
    if known.tables[table, PIECES] == parts:
        return piece
    rows, count = known.tables[table, ROWS], 0
    for part in range(parts):
        if known.numbers[rows + part] == piece:
            if devices[part] == target:
                return part
            count += 1
    turn %= count
    for part in range(parts):
        if known.numbers[rows + part] == piece:
            if turn == 0:
                return part
            turn -= 1
    return -1


@tight
def _sent(i: int, source: int, target: int, size: int, plan: Plan, made: Made) -> int:
    """A transfer; the number of its task, or -1 on one device."""
    if source == target:
        return -1
    made.sent[i] += size
    seconds = plan.latency[source, target] + size / plan.bandwidth[source, target]
    return _task(made, plan.port[source, target], seconds)


@tight
def _passed(own: int, block: int, task: int, after: int, other: int, transfer: int, made: Made) -> None:
    """A task waits for another one, by a transfer if there is one."""
    if transfer < 0:
        _edge(made, block, task, after, other)
    else:
        _edge(made, block, task, own, transfer)
        _edge(made, own, transfer, after, other)


@tight
def _hold(known: Known, table: int, piece: int, parts: int, devices: Array, members: Array) -> None:
    """Find which devices have a part with a piece."""
    _clear(members)
    for part in range(parts):
        if known.numbers[known.tables[table, ROWS] + part] == piece:
            members[devices[part]] = True


@tight
def _clear(members: Array) -> None:
    for device in range(len(members)):
        members[device] = False


@tight
def _reduced(own: int, i: int, members: Array, size: int, plan: Plan, made: Made) -> Any:
    """A sum of `size` bytes on each of some devices; the numbers of its start and its end."""
    start, count, seconds = _task(made, plan.idle, 0.0), _count(members), 0.0
    if count > 1:
        seconds = _around(members, count, size, plan)
        made.sent[i] += 2 * (count - 1) * size
    for device in range(len(members) if count > 1 else 0):
        if members[device]:
            task = _task(made, plan.port[device, _next(members, device)], seconds)
            _edge(made, own, start, own, task)
    end = _task(made, plan.idle, 0.0)
    for task in range(min(start + 1, end - 1), end):
        _edge(made, own, task, own, end)
    return start, end


@tight
def _around(members: Array, count: int, size: int, plan: Plan) -> float:
    """Seconds of an all-reduce."""
    latency, bandwidth, rounds = 0.0, np.inf, 0
    for device in range(len(members)):
        if members[device]:
            other = _next(members, device)
            latency = max(latency, plan.latency[device, other])
            bandwidth = min(bandwidth, plan.bandwidth[device, other])
    while 1 << rounds < count:
        rounds += 1
    ring = 2 * (count - 1) * (latency + size / (count * bandwidth))
    tree = 2 * rounds * (latency + size / bandwidth)
    return min(ring, tree)


@tight
def _next(members: Array, device: int) -> int:
    """The next member."""
    other = (device + 1) % len(members)
    while not members[other]:
        other = (other + 1) % len(members)
    return other


@tight
def _count(members: Array) -> int:
    found = 0
    for is_member in members:
        found += is_member
    return found


@tight
def _summed(own: int, i: int, plan: Plan, known: Known, placed: Placed, made: Made) -> None:
    """The terms of a pending value, or of its cotangent, added up among the parts that have them."""
    step, output, block = plan.blocks[own, 1], plan.blocks[own, 2], plan.blocks[own, 3]
    form, devices = placed.form[step], placed.devices[plan.operator[step]]
    parts, table = known.forms[form, PARTS], known.forms[form, FIRST] + output
    for piece in range(known.tables[table, PIECES]):
        _hold(known, table, piece, parts, devices, made.members)
        start, end = _reduced(own, i, made.members, known.tables[table, SIZE], plan, made)
        for part in range(parts):
            if known.numbers[known.tables[table, ROWS] + part] == piece:
                if plan.blocks[own, 0] == SUMMED:
                    _edge(made, block, part, own, start)
                else:
                    _edge(made, own, end, block, part)


@tight
def _added(own: int, i: int, plan: Plan, known: Known, placed: Placed, shares: Shares, made: Made) -> None:
    """The gradients of a bundle; before they are clipped each device reads its own, for their norm."""
    bundle, after = plan.blocks[own, 1], plan.blocks[own, 2]
    for number in range(shares.at[bundle], shares.at[bundle + 1]):
        members, size = shares.members[number], shares.sizes[number]
        start, end = _reduced(own, i, members, size, plan, made)
        for user in range(plan.bundles[bundle, 0], plan.bundles[bundle, 1]):
            step, back = plan.users[user]
            for part in range(known.forms[placed.form[step], PARTS]):
                if members[placed.devices[plan.operator[step], part]]:
                    _edge(made, back, part, own, start)
        for device in range(len(members) if plan.clips else 0):
            if members[device]:
                read = _task(made, device, size / plan.memory)
                _edge(made, own, end, own, read)
                _edge(made, own, read, after, 0)


@tight
def _norm(own: int, i: int, plan: Plan, known: Known, placed: Placed, made: Made) -> None:
    """The norm of all gradients, added up among all devices that have some."""
    _clear(made.members)
    for user in range(len(plan.users)):
        step, back = plan.users[user]
        for part in range(known.forms[placed.form[step], PARTS] if back >= 0 else 0):
            made.members[placed.devices[plan.operator[step], part]] = True
    start, end = _reduced(own, i, made.members, plan.blocks[own, 3], plan, made)
    _edge(made, plan.blocks[own, 1], 0, own, start)
    _edge(made, own, end, plan.blocks[own, 2], 0)


@tight
def _updated(own: int, i: int, plan: Plan, shares: Shares, made: Made) -> None:
    """Each device's copy of the parameters of a bundle, once their gradients are added up, or the norm of all is known."""
    bundle, before, end = plan.blocks[own, 1], plan.blocks[own, 2], -1
    for number in range(shares.at[bundle], shares.at[bundle + 1]):
        members, size = shares.members[number], shares.sizes[number]
        end += _tasks(_count(members))
        for device in range(len(members)):
            if members[device]:
                task = _task(made, device, size * (3 + 2 * plan.states) / plan.memory)
                _edge(made, before, 0 if plan.clips else end, own, task)
                made.held[i, device] += size * (2 + plan.states)


@tight
def _stored(own: int, i: int, plan: Plan, shares: Shares, made: Made) -> None:
    """Each device's copy of the parameters of a bundle that are not trained."""
    bundle = plan.blocks[own, 1]
    for number in range(shares.at[bundle], shares.at[bundle + 1]):
        for device in range(len(plan.port)):
            if shares.members[number, device]:
                made.held[i, device] += shares.sizes[number]


@tight
def _tasks(count: int) -> int:
    """How many tasks a sum among so many devices is."""
    return count + 2 if count > 1 else 2
