"""Blocks of a task graph as flat arrays, one after the other.

What the compiled loops that make a task graph are told, in flat arrays: of graph and machine, of parts, of a strategy.

Makes the blocks of a task graph (`block_names.py` says which there are), as compiled loops on flat arrays.

A sum among devices is an all-reduce: a task on the port of each, from each to the next around a ring of them in ascending
order, that takes as long as the ring or, where that is sooner, a tree

    ring  2 (n - 1) latency + 2 (n - 1) s / (n b)        tree  2 ceil(log2 n) (latency + s / b)

of the largest latency and the least bandwidth around the ring. FlexFlow's paper does not say how it synchronizes parameters.


Which devices hold the same parts of the parameters of a bundle, whose gradients they add up.

A parameter is cut wherever a part that some step uses ends; the pieces are then sorted by who holds them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mtfc.compiler.search.jit import jit, jit_inline, jit_internal, jit_no_refcount

Array = Any
"""A NumPy array."""


class TaskBlocks(NamedTuple):
    """Block i has the tasks from `offsets[i]` on and the edges from `edge_offsets[i]` on, up to those of the next.

    device, seconds [task]: where a task runs, which may be a port, and for how long. edges [edge, 4]: block and number there of a
    task, and of one that waits for it. sent [block]: bytes that go from device to device. held [block, device]: bytes kept.
    """

    offsets: Array
    edge_offsets: Array
    device: Array
    seconds: Array
    edges: Array
    sent: Array
    held: Array

    @property
    def size(self) -> int:
        """How many tasks there are."""
        return len(self.device)


TAKEN, STEP, SUMMED, RETURNED, COLLECTED, BACK, ADDED, READ, NORM, KNOWN, UPDATED, STORED = range(12)
"""The kinds of blocks, in the order of `block_names.Kind`."""


class FlatGraph(NamedTuple):
    """What all strategies of a graph on a machine have in common.

    blocks [block, column]: the kind, and then

    - taken, returned: the maker, which of its outputs, the user, which of its tables, whether the value is pending, the blocks
      before and after, the value's dimensions, and bytes of an item
    - step, back: the step, and the block of its first pass
    - summed, collected: the step, which of its outputs, and the block of its pass
    - added, updated: the bundle, and the block after or before
    - stored: the bundle
    - norm: the blocks before and after, and bytes of the norm

    operator [step]. bundles [bundle, 4]: its first user and the one after its last, and the same of parameters. users [user, 2]:
    a step, and the block of its backward pass, -1 where parameters are not trained. parameters [parameter, 3]: dimensions, bytes
    of an item, and where in `places` it begins: for each user of the bundle the number of its table, or -1.
    port, latency, bandwidth [sender, receiver]. idle: the number of a device for tasks that take no time. memory: bytes/s of a
    device's memory. states: numbers that the optimizer keeps for each parameter. clips: whether gradients are clipped by their
    norm.
    """

    blocks: Array
    operator: Array
    bundles: Array
    users: Array
    parameters: Array
    places: Array
    port: Array
    latency: Array
    bandwidth: Array
    idle: int
    memory: float
    states: int
    clips: bool


PARTS, KEPT, FIRST = range(3)
PIECES, SIZE, ROWS, BOUNDS = range(4)


class PartTables(NamedTuple):
    """What parts of steps have, need and take, wherever they are: see `part_sizes.py`.

    forms [form, 3]: how many parts, bytes that one keeps, and the number of the first table: that of the first output; those of
    other outputs, inputs and arguments follow. seconds [form, 2]: of a part's passes. tables [table, 4]: how many pieces, bytes
    of one of an output, and where in `numbers` its rows and bounds begin. Rows: the number of the piece of each part. Bounds: of
    each piece, for each dimension of the value, the first position and the one after the last.
    """

    forms: Array
    seconds: Array
    tables: Array
    numbers: Array


class FlatStrategy(NamedTuple):
    """A strategy: the form of each step, and the devices of each operator's parts. [step], [operator, part]"""

    form: Array
    devices: Array


class ReplicaGroups(NamedTuple):
    """Who holds how much of the parameters of bundles in common: those of bundle i begin at `at[i]`.

    members [share, device], sizes [share]: bytes.
    """

    at: Array
    members: Array
    sizes: Array


TICK = 2.0**-44
"""Seconds of which all times of tasks are multiples, so that sums of them are exact; they are rounded up."""


class BlockBuffers(NamedTuple):
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


@jit
def build_blocks(
    numbers: Array, plan: FlatGraph, known: PartTables, placed: FlatStrategy, room: Array
) -> TaskBlocks:
    """The blocks with some numbers, in ascending order. room [3]: for how many tasks, edges and shares; is made larger."""
    devices = len(plan.port)
    while True:
        at, members = np.empty(len(plan.bundles) + 1, np.int64), np.empty((room[2], devices), np.bool_)
        shares = ReplicaGroups(at, members, np.empty(room[2], np.int64))
        if find_groups(numbers, plan, known, placed, shares):
            break
        room[2] *= 2
    while True:
        made = _empty(len(numbers), room[0], room[1], devices)
        _build(numbers, plan, known, placed, shares, made)
        tasks, edges = made.used[0], made.used[1]
        if tasks <= room[0] and edges <= room[1]:
            break
        room[0], room[1] = max(tasks, room[0]), max(edges, room[1])
    return TaskBlocks(
        made.offsets,
        made.edge_offsets,
        made.device[:tasks],
        made.seconds[:tasks],
        made.edges[:edges],
        made.sent,
        made.held,
    )


@jit_internal
def _empty(count: int, tasks: int, edges: int, devices: int) -> BlockBuffers:
    return BlockBuffers(
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


@jit_no_refcount
def _build(
    numbers: Array,
    plan: FlatGraph,
    known: PartTables,
    placed: FlatStrategy,
    shares: ReplicaGroups,
    made: BlockBuffers,
) -> None:
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


@jit_inline
def _task(made: BlockBuffers, device: int, seconds: float) -> int:
    """Append a task to the present block; its number there."""
    at = made.used[0]
    if at < len(made.device):
        made.device[at], made.seconds[at] = device, np.ceil(seconds / TICK) * TICK
    made.used[0] += 1
    return int(at - made.used[2])


@jit_inline
def _edge(made: BlockBuffers, block: int, task: int, after: int, other: int) -> None:
    """The second task waits for the first."""
    at = made.used[1]
    if at < len(made.edges):
        made.edges[at, 0], made.edges[at, 1], made.edges[at, 2], made.edges[at, 3] = block, task, after, other
    made.used[1] += 1


@jit_inline
def _computed(
    own: int, i: int, plan: FlatGraph, known: PartTables, placed: FlatStrategy, made: BlockBuffers
) -> None:
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


@jit_inline
def _exchanged(
    own: int, i: int, plan: FlatGraph, known: PartTables, placed: FlatStrategy, made: BlockBuffers
) -> None:
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


@jit_inline
def _shared(known: PartTables, given: int, piece: int, wanted: int, part: int, dims: int) -> int:
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


@jit_inline
def _giver(
    known: PartTables, table: int, piece: int, parts: int, devices: Array, target: int, turn: int
) -> int:
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


@jit_inline
def _sent(i: int, source: int, target: int, size: int, plan: FlatGraph, made: BlockBuffers) -> int:
    """A transfer; the number of its task, or -1 on one device."""
    if source == target:
        return -1
    made.sent[i] += size
    seconds = plan.latency[source, target] + size / plan.bandwidth[source, target]
    return _task(made, plan.port[source, target], seconds)


@jit_inline
def _passed(
    own: int, block: int, task: int, after: int, other: int, transfer: int, made: BlockBuffers
) -> None:
    """A task waits for another one, by a transfer if there is one."""
    if transfer < 0:
        _edge(made, block, task, after, other)
    else:
        _edge(made, block, task, own, transfer)
        _edge(made, own, transfer, after, other)


@jit_inline
def _hold(known: PartTables, table: int, piece: int, parts: int, devices: Array, members: Array) -> None:
    """Find which devices have a part with a piece."""
    _clear(members)
    for part in range(parts):
        if known.numbers[known.tables[table, ROWS] + part] == piece:
            members[devices[part]] = True


@jit_inline
def _clear(members: Array) -> None:
    for device in range(len(members)):
        members[device] = False


@jit_inline
def _reduced(own: int, i: int, members: Array, size: int, plan: FlatGraph, made: BlockBuffers) -> Any:
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


@jit_inline
def _around(members: Array, count: int, size: int, plan: FlatGraph) -> float:
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


@jit_inline
def _next(members: Array, device: int) -> int:
    """The next member."""
    other = (device + 1) % len(members)
    while not members[other]:
        other = (other + 1) % len(members)
    return other


@jit_inline
def _count(members: Array) -> int:
    found = 0
    for is_member in members:
        found += is_member
    return found


@jit_inline
def _summed(
    own: int, i: int, plan: FlatGraph, known: PartTables, placed: FlatStrategy, made: BlockBuffers
) -> None:
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


@jit_inline
def _added(
    own: int,
    i: int,
    plan: FlatGraph,
    known: PartTables,
    placed: FlatStrategy,
    shares: ReplicaGroups,
    made: BlockBuffers,
) -> None:
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


@jit_inline
def _norm(
    own: int, i: int, plan: FlatGraph, known: PartTables, placed: FlatStrategy, made: BlockBuffers
) -> None:
    """The norm of all gradients, added up among all devices that have some."""
    _clear(made.members)
    for user in range(len(plan.users)):
        step, back = plan.users[user]
        for part in range(known.forms[placed.form[step], PARTS] if back >= 0 else 0):
            made.members[placed.devices[plan.operator[step], part]] = True
    start, end = _reduced(own, i, made.members, plan.blocks[own, 3], plan, made)
    _edge(made, plan.blocks[own, 1], 0, own, start)
    _edge(made, own, end, plan.blocks[own, 2], 0)


@jit_inline
def _updated(own: int, i: int, plan: FlatGraph, shares: ReplicaGroups, made: BlockBuffers) -> None:
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


@jit_inline
def _stored(own: int, i: int, plan: FlatGraph, shares: ReplicaGroups, made: BlockBuffers) -> None:
    """Each device's copy of the parameters of a bundle that are not trained."""
    bundle = plan.blocks[own, 1]
    for number in range(shares.at[bundle], shares.at[bundle + 1]):
        for device in range(len(plan.port)):
            if shares.members[number, device]:
                made.held[i, device] += shares.sizes[number]


@jit_inline
def _tasks(count: int) -> int:
    """How many tasks a sum among so many devices is."""
    return count + 2 if count > 1 else 2


@jit_internal
def find_groups(
    numbers: Array, plan: FlatGraph, known: PartTables, placed: FlatStrategy, found: ReplicaGroups
) -> bool:
    """Find the shares of the bundles that some blocks belong to; whether there was room for them."""
    wanted = np.zeros(len(plan.bundles), np.bool_)
    for block in numbers:
        if plan.blocks[block, 0] in (ADDED, UPDATED, STORED):
            wanted[plan.blocks[block, 1]] = True
    found.at[0] = 0
    for bundle in range(len(wanted)):
        found.at[bundle + 1] = found.at[bundle]
        first, last = plan.bundles[bundle, 2], plan.bundles[bundle, 3]
        for parameter in range(first, last if wanted[bundle] else first):
            if not _find_groups_of(bundle, parameter, plan, known, placed, found):
                return False
    return True


@jit_internal
def _find_groups_of(
    bundle: int,
    parameter: int,
    plan: FlatGraph,
    known: PartTables,
    placed: FlatStrategy,
    found: ReplicaGroups,
) -> bool:
    """Add those of a parameter."""
    bounds, holders = _regions(bundle, parameter, plan, known, placed)
    marks, steps = _marks(bounds)
    pieces = 1
    for step in steps:
        pieces *= step
    mine = np.empty(len(plan.port), np.bool_)
    for piece in range(pieces):
        size = plan.parameters[parameter, 1] * _piece(piece, marks, steps, bounds, holders, mine)
        if size and not _put(bundle, mine, size, found):
            return False
    return True


@jit_internal
def _put(bundle: int, mine: Array, size: int, found: ReplicaGroups) -> bool:
    """Add bytes that some devices have; whether there is room."""
    last = found.at[bundle + 1]
    for at in range(found.at[bundle], last):
        is_same = True
        for device in range(len(mine)):
            is_same &= found.members[at, device] == mine[device]
        if is_same:
            found.sizes[at] += size
            return True
    if last == len(found.sizes):
        return False
    for device in range(len(mine)):
        found.members[last, device] = mine[device]
    found.sizes[last] = size
    found.at[bundle + 1] += 1
    return True


@jit_internal
def _regions(bundle: int, parameter: int, plan: FlatGraph, known: PartTables, placed: FlatStrategy) -> Any:
    """The different parts of a parameter that are used, and which devices do. [region, 2 * dimension], [region, device]"""
    first, last, places = plan.bundles[bundle, 0], plan.bundles[bundle, 1], plan.parameters[parameter, 2]
    most = 0
    for i in range(last - first):
        if plan.places[places + i] >= 0:
            form = placed.form[plan.users[first + i, 0]]
            most += known.tables[known.forms[form, FIRST] + plan.places[places + i], PIECES]
    bounds = np.empty((most, 2 * plan.parameters[parameter, 0]), np.int64)
    holders, count = np.zeros((most, len(plan.port)), np.bool_), 0
    for i in range(last - first):
        step = plan.users[first + i, 0]
        form, operator = placed.form[step], plan.operator[step]
        table = known.tables[known.forms[form, FIRST] + max(plan.places[places + i], 0)]
        for part in range(known.forms[form, PARTS] if plan.places[places + i] >= 0 else 0):
            piece = known.numbers[table[ROWS] + part]
            begin = table[BOUNDS] + bounds.shape[1] * piece
            region = _find(bounds, count, known.numbers, begin, piece)
            if region == count:
                for end in range(bounds.shape[1]):
                    bounds[region, end] = known.numbers[begin + end]
                count += 1
            holders[region, placed.devices[operator, part]] = True
    return bounds[:count], holders[:count]


@jit_internal
def _find(bounds: Array, count: int, numbers: Array, begin: int, likely: int) -> int:
    """The number of the region whose bounds begin at some place among numbers, or else `count`."""
    for k in range(count):
        region = (likely + k) % count
        is_same = True
        for end in range(bounds.shape[1]):
            is_same &= bounds[region, end] == numbers[begin + end]
        if is_same:
            return region
    return count


@jit_internal
def _marks(bounds: Array) -> Any:
    """Along each dimension the ends of regions, in order, and how many intervals they make. [dimension, mark], [dimension]"""
    count, dims = len(bounds), bounds.shape[1] // 2
    marks, steps = np.zeros((dims, 2 * count), np.int64), np.full(dims, -1)
    for dim in range(dims):
        for i in range(2 * count):
            mark, at = bounds[i // 2, 2 * dim + i % 2], 0
            while at <= steps[dim] and marks[dim, at] < mark:
                at += 1
            if at <= steps[dim] and marks[dim, at] == mark:
                continue
            steps[dim] += 1
            for other in range(steps[dim], at, -1):
                marks[dim, other] = marks[dim, other - 1]
            marks[dim, at] = mark
    return marks, steps


@jit_internal
def _piece(number: int, marks: Array, steps: Array, bounds: Array, holders: Array, mine: Array) -> int:
    """How many elements a piece of the grid of marks has, or 0 where nobody does; `mine` becomes who has it."""
    inside, size, is_held = np.ones(len(bounds), np.bool_), 1, False
    for dim in range(len(steps) - 1, -1, -1):
        at = number % steps[dim]
        number //= steps[dim]
        low, high = marks[dim, at], marks[dim, at + 1]
        size *= high - low
        for region in range(len(bounds)):
            inside[region] &= bounds[region, 2 * dim] <= low and bounds[region, 2 * dim + 1] >= high
    for device in range(len(mine)):
        mine[device] = False
        for region in range(len(bounds)):
            mine[device] |= inside[region] and holders[region, device]
        is_held |= mine[device]
    return size if is_held else 0
