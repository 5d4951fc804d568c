"""Build the tasks and edges of blocks (see `strategy_tasks.py`), in compiled loops over flat arrays.

A transfer is one task on each port of its route. A sum among devices is an all-reduce. It is one task on each port of the routes
from members to the next ones in ascending order. Each task takes as long as the ring, or as the tree if that is faster:

    ring  2 (n - 1) latency + 2 (n - 1) s / (n b)        tree  2 ceil(log2 n) (latency + s / b)

with the largest latency and the smallest bandwidth around the ring. FlexFlow's paper does not say how it synchronizes
parameters. On a machine with parameter servers, members send their gradients to one of them, which adds them up and sends the sum
back.
"""

from typing import Any, NamedTuple

import numpy as np

from mtfc.compiler.search.jit import jit, jit_inline, jit_internal, jit_no_refcount

Array = Any
"""A NumPy array."""


class TaskBlocks(NamedTuple):
    """Blocks of tasks, one after the other. Block i has the tasks from `offsets[i]` and the edges from `edge_offsets[i]`.

    device, seconds [task]: the device or port of a task, and its duration. edges [edge, 4]: block and task number of a
    predecessor, then of its successor. sent [block]: bytes sent between devices. memory [block, device]: bytes kept.
    """

    offsets: Array
    edge_offsets: Array
    device: Array
    seconds: Array
    edges: Array
    sent: Array
    memory: Array

    @property
    def size(self) -> int:
        return len(self.device)

    @property
    def ends(self) -> tuple[Array, Array]:
        """The source and the target of each edge, with tasks of all blocks numbered together."""
        of = self.edges
        return self.offsets[of[:, 0]] + of[:, 1], self.offsets[of[:, 2]] + of[:, 3]


TAKEN, STEP, SUMMED, RETURNED, COLLECTED, BACK, ADDED, READ, NORM, KNOWN, UPDATED, STORED = range(12)
"""The kinds of blocks, in the order of `strategy_tasks.BlockKind`."""


class FlatGraph(NamedTuple):
    """The part of the encoding that all strategies of a graph on a machine share.

    blocks [block, column]: the kind, and then

    - taken, returned: the maker, the output's index, the user, the index of the user's table, 1 if pending, the blocks
      before and after, the value's dimensions, and bytes of an element
    - step, back: the step, and the block of its forward pass
    - summed, collected: the step, the output's index, and the block of its pass
    - added, updated: the bundle, and the block after or before
    - stored: the bundle
    - norm: the blocks before and after, and bytes of the norm

    operator [step]. bundles [bundle, 4]: first user and end of users, first parameter and end of parameters. users [user,
    2]: a step, and the block of its backward pass or -1. parameters [parameter, 3]: dimensions, bytes of an element, and
    the offset in `places`, where each user of the bundle has the number of its table or -1. port, rate, latency, bandwidth: see
    `DeviceLinks`. idle: the pseudo-device of tasks without duration. kind, memory_bandwidth [device]: the kind of a device, and
    bytes/s of its memory. servers: the devices that add up gradients. states: optimizer states per parameter. clips: 1 if
    gradients are clipped by their norm.
    """

    blocks: Array
    operator: Array
    bundles: Array
    users: Array
    parameters: Array
    places: Array
    port: Array
    rate: Array
    latency: Array
    bandwidth: Array
    idle: int
    kind: Array
    memory_bandwidth: Array
    servers: Array
    states: int
    clips: bool


PARTS, FIRST, KEPT = range(3)
"""Columns of `PartTables.forms`; KEPT is the first of a column for each kind of device."""
PIECES, SIZE, ROWS, BOUNDS = range(4)
"""Columns of `PartTables.tables`."""


class PartTables(NamedTuple):
    """Sizes and times of all known forms. A form is a step at some degrees; see `strategy_tasks.py`.

    forms [form, 2 + kinds]: number of parts, the first table, and bytes that a part keeps on each kind of device. The tables of
    outputs, inputs and arguments follow each other. seconds [form, 2 * kinds]: a part's forward and backward pass on each kind of
    device. tables [table, 4]: number of pieces,
    bytes of a piece of an output, and offsets in `numbers` of rows and bounds. Rows: the piece of each part. Bounds: for
    each piece and dimension, the first position and the position after the last.
    """

    forms: Array
    seconds: Array
    tables: Array
    numbers: Array


class FlatStrategy(NamedTuple):
    """A strategy: the form of each step, and the devices of each operator's parts. [step], [operator, part]"""

    form: Array
    devices: Array


class FlatPlacement(NamedTuple):
    """A strategy of a graph, with the sizes and times of parts."""

    graph: FlatGraph
    tables: PartTables
    strategy: FlatStrategy


class ReplicaGroups(NamedTuple):
    """The devices that hold the same piece of a bundle's parameters. Groups of bundle i begin at `at[i]`.

    members [group, device], sizes [group]: bytes.
    """

    at: Array
    members: Array
    sizes: Array


TICK = 2.0**-44
"""All task times are multiples of this many seconds, rounded up, so that their sums are exact."""


class BlockBuffers(NamedTuple):
    """Buffers for blocks, whose replica groups are known. used [3]: tasks, edges, and tasks before the current block; overflowing
    entries are only counted. members [device]: a scratch set of devices.
    """

    blocks: TaskBlocks
    groups: ReplicaGroups
    used: Array
    members: Array


@jit
def build_blocks(numbers: Array, placement: FlatPlacement, room: Array) -> TaskBlocks:
    """Build the blocks with some numbers, which are ascending.

    room [3]: the sizes of buffers for tasks, edges and replica groups; grows if they do not suffice.
    """
    bundles, devices = len(placement.graph.bundles), len(placement.graph.port)
    while True:
        at, members = np.empty(bundles + 1, np.int64), np.empty((room[2], devices), np.bool_)
        groups = ReplicaGroups(at, members, np.empty(room[2], np.int64))
        if find_groups(numbers, placement, groups):
            break
        room[2] *= 2
    while True:
        out = _empty(len(numbers), room[0], room[1], devices, groups)
        _build(numbers, placement, out)
        tasks, edges = out.used[0], out.used[1]
        if tasks <= room[0] and edges <= room[1]:
            break
        room[0], room[1] = max(tasks, room[0]), max(edges, room[1])
    b = out.blocks
    return TaskBlocks(
        b.offsets, b.edge_offsets, b.device[:tasks], b.seconds[:tasks], b.edges[:edges], b.sent, b.memory
    )


@jit_internal
def _empty(count: int, tasks: int, edges: int, devices: int, groups: ReplicaGroups) -> BlockBuffers:
    """Return room for some blocks with as many tasks and edges as all of them have together."""
    blocks = TaskBlocks(
        np.empty(count + 1, np.int64),
        np.empty(count + 1, np.int64),
        np.empty(tasks, np.int32),
        np.empty(tasks),
        np.empty((edges, 4), np.int64),
        np.zeros(count, np.int64),
        np.zeros((count, devices)),
    )
    return BlockBuffers(blocks, groups, np.zeros(3, np.int64), np.empty(devices, np.bool_))


@jit_no_refcount
def _build(numbers: Array, placement: FlatPlacement, out: BlockBuffers) -> None:
    """Write the tasks and edges of blocks into `out`, one block after the other, each by its kind."""
    out.blocks.offsets[0] = out.blocks.edge_offsets[0] = 0
    for i in range(len(numbers)):
        own = numbers[i]
        kind = placement.graph.blocks[own, 0]
        out.used[2] = out.used[0]
        if kind in (STEP, BACK):
            _add_pass(own, i, placement, out)
        elif kind in (TAKEN, RETURNED):
            _add_transfers(own, i, placement, out)
        elif kind in (SUMMED, COLLECTED):
            _add_sum(own, i, placement, out)
        elif kind == ADDED:
            _add_gradients(own, i, placement, out)
        elif kind == NORM:
            _add_norm(own, i, placement, out)
        elif kind in (READ, KNOWN):
            _add_task(out, placement.graph.idle, 0.0)
        else:
            _add_updates(own, i, placement.graph, out)
        out.blocks.offsets[i + 1], out.blocks.edge_offsets[i + 1] = out.used[0], out.used[1]


@jit_inline
def _add_task(out: BlockBuffers, device: int, seconds: float) -> int:
    """Append a task to the current block; return its number there."""
    at = out.used[0]
    if at < len(out.blocks.device):
        out.blocks.device[at], out.blocks.seconds[at] = device, np.ceil(seconds / TICK) * TICK
    out.used[0] += 1
    return int(at - out.used[2])


@jit_inline
def _add_edge(out: BlockBuffers, block: int, task: int, after: int, other: int) -> None:
    """Make the second task wait for the first."""
    at, edges = out.used[1], out.blocks.edges
    if at < len(edges):
        edges[at, 0], edges[at, 1], edges[at, 2], edges[at, 3] = block, task, after, other
    out.used[1] += 1


@jit_inline
def _add_pass(own: int, i: int, placement: FlatPlacement, out: BlockBuffers) -> None:
    """Add a pass of a step: a task for each part."""
    graph, tables, strategy = placement
    step, before = graph.blocks[own, 1], graph.blocks[own, 2]
    form, devices = strategy.form[step], strategy.devices[graph.operator[step]]
    for part in range(tables.forms[form, PARTS]):
        kind = graph.kind[devices[part]]
        if graph.blocks[own, 0] == STEP:
            _add_task(out, devices[part], tables.seconds[form, 2 * kind])
            out.blocks.memory[i, devices[part]] += tables.forms[form, KEPT + kind]
        else:
            _add_task(out, devices[part], tables.seconds[form, 2 * kind + 1])
            _add_edge(out, before, part, own, part)


@jit_inline
def _add_transfers(block_number: int, i: int, placement: FlatPlacement, out: BlockBuffers) -> None:
    """Add the transfers of a value to its user's parts, or of its cotangent back to its maker's parts."""
    graph, tables, strategy = placement
    kind, maker, output, user, taken, is_pending, block, next_block, dims, item = graph.blocks[block_number]
    maker_devices, there = strategy.devices[graph.operator[maker]], strategy.devices[graph.operator[user]]
    parts, targets = tables.forms[strategy.form[maker], PARTS], tables.forms[strategy.form[user], PARTS]
    maker_table = tables.forms[strategy.form[maker], FIRST] + output
    user_table = tables.forms[strategy.form[user], FIRST] + taken
    sums = 0
    for piece in range(tables.tables[maker_table, PIECES]):
        first = sums
        if is_pending:
            _find_holders(tables, maker_table, piece, parts, maker_devices, out.members)
            sums += _tasks_of_sum(out.members, graph)
        for part in range(targets):
            size = item * _common_elements(tables, maker_table, piece, user_table, part, dims)
            if size == 0:
                continue
            sender = _sender(tables, maker_table, piece, parts, maker_devices, there[part], part)
            if kind == TAKEN:
                task = sums - 1 if is_pending else sender
                ends = _add_transfer(i, maker_devices[sender], there[part], size, graph, out)
                if ends >= 0:
                    out.blocks.memory[i, there[part]] += size
                _connect(block_number, block, task, next_block, part, ends, out)
            else:
                task = first if is_pending else sender
                ends = _add_transfer(i, there[part], maker_devices[sender], size, graph, out)
                _connect(block_number, block, part, next_block, task, ends, out)


@jit_inline
def _common_elements(tables: PartTables, given: int, piece: int, wanted: int, part: int, dims: int) -> int:
    """Return the number of elements that a piece of one table and the piece of a part in another table have in common."""
    a = tables.tables[given, BOUNDS] + 2 * dims * piece
    b = tables.tables[wanted, BOUNDS] + 2 * dims * tables.numbers[tables.tables[wanted, ROWS] + part]
    size = 1
    for dim in range(dims):
        low = max(tables.numbers[a + 2 * dim], tables.numbers[b + 2 * dim])
        high = min(tables.numbers[a + 2 * dim + 1], tables.numbers[b + 2 * dim + 1])
        if high <= low:
            return 0
        size *= high - low
    return size


@jit_inline
def _sender(
    tables: PartTables, table: int, piece: int, parts: int, devices: Array, target: int, turn: int
) -> int:
    """Return the part with a piece that sends it: one on the target's device if there is one, else the parts take turns."""
    if tables.tables[table, PIECES] == parts:
        return piece
    rows, count = tables.tables[table, ROWS], 0
    for part in range(parts):
        if tables.numbers[rows + part] == piece:
            if devices[part] == target:
                return part
            count += 1
    turn %= count
    for part in range(parts):
        if tables.numbers[rows + part] == piece:
            if turn == 0:
                return part
            turn -= 1
    return -1


@jit_inline
def _add_transfer(i: int, source: int, target: int, size: int, graph: FlatGraph, out: BlockBuffers) -> int:
    """Add a transfer, a task for each port of its route; return its first task, or -1 on one device."""
    if source == target:
        return -1
    out.blocks.sent[i] += size
    first = out.used[0] - out.used[2]
    for hop in range(_hops(graph, source, target)):
        seconds = graph.latency[source, target] + size / graph.rate[source, target, hop]
        _add_task(out, graph.port[source, target, hop], seconds)
    return int(first)


@jit_inline
def _hops(graph: FlatGraph, source: int, target: int) -> int:
    """Return the number of ports of a route."""
    count = 1
    while count < graph.port.shape[2] and graph.port[source, target, count] >= 0:
        count += 1
    return count


@jit_inline
def _connect(
    own: int, block: int, task: int, after: int, other: int, transfer: int, out: BlockBuffers
) -> None:
    """Make a task wait for another one, through a transfer if there is one, whose tasks are the last ones."""
    if transfer < 0:
        _add_edge(out, block, task, after, other)
        return
    for hop in range(transfer, out.used[0] - out.used[2]):
        _add_edge(out, block, task, own, hop)
        _add_edge(out, own, hop, after, other)


@jit_inline
def _find_holders(
    tables: PartTables, table: int, piece: int, parts: int, devices: Array, members: Array
) -> None:
    """Mark the devices that have a part with a piece."""
    members[:] = False
    for part in range(parts):
        if tables.numbers[tables.tables[table, ROWS] + part] == piece:
            members[devices[part]] = True


@jit_inline
def _add_all_reduce(own: int, i: int, members: Array, size: int, graph: FlatGraph, out: BlockBuffers) -> Any:
    """Add a sum of `size` bytes on each of some devices; return its first and its last task."""
    start, count, seconds = _add_task(out, graph.idle, 0.0), members.sum(), 0.0
    if count > 1:
        seconds = _all_reduce_seconds(members, count, size, graph)
        out.blocks.sent[i] += 2 * (count - 1) * size
    for device in range(len(members) if count > 1 else 0):
        if members[device]:
            other = _next_member(members, device)
            for hop in range(_hops(graph, device, other)):
                task = _add_task(out, graph.port[device, other, hop], seconds)
                _add_edge(out, own, start, own, task)
    end = _add_task(out, graph.idle, 0.0)
    for task in range(min(start + 1, end - 1), end):
        _add_edge(out, own, task, own, end)
    return start, end


@jit_inline
def _all_reduce_seconds(members: Array, count: int, size: int, graph: FlatGraph) -> float:
    """Return the seconds of an all-reduce of `size` bytes between `count` members: by a ring or a tree, whichever is faster.

    members: for each device, whether it takes part. The slowest link between neighbours decides.
    """
    latency, bandwidth, rounds = 0.0, np.inf, 0
    for device in range(len(members)):
        if members[device]:
            other = _next_member(members, device)
            latency = max(latency, graph.latency[device, other])
            bandwidth = min(bandwidth, graph.bandwidth[device, other])
    while 1 << rounds < count:
        rounds += 1
    ring = 2 * (count - 1) * (latency + size / (count * bandwidth))
    tree = 2 * rounds * (latency + size / bandwidth)
    return min(ring, tree)


@jit_inline
def _next_member(members: Array, device: int) -> int:
    """Return the member that follows a device, around the ring of all devices."""
    other = (device + 1) % len(members)
    while not members[other]:
        other = (other + 1) % len(members)
    return other


@jit_inline
def _server(bundle: int, graph: FlatGraph) -> int:
    """Return the server of a bundle's gradients."""
    return int(graph.servers[bundle % len(graph.servers)])


@jit_inline
def _add_server_sum(
    own: int, i: int, members: Array, size: int, server: int, graph: FlatGraph, out: BlockBuffers
) -> Any:
    """Let a server add `size` bytes of each member, and send the sum back; return the first and the last task.

    own: the number of the block that the tasks belong to. i: its row in the buffers.
    """
    start = _add_task(out, graph.idle, 0.0)
    for device in range(len(members)):
        if members[device]:
            _add_transfer(i, device, server, size, graph, out)
    added = _add_task(out, server, (members.sum() + 1) * size / graph.memory_bandwidth[server])
    for task in range(start + 1, added):
        _add_edge(out, own, start, own, task)
        _add_edge(out, own, task, own, added)
    for device in range(len(members)):
        if members[device]:
            _add_transfer(i, server, device, size, graph, out)
    end = _add_task(out, graph.idle, 0.0)
    for task in range(added + 1, end):
        _add_edge(out, own, added, own, task)
        _add_edge(out, own, task, own, end)
    if not members[server]:
        out.blocks.memory[i, server] += size
    return start, end


@jit_inline
def _add_sum(own: int, i: int, placement: FlatPlacement, out: BlockBuffers) -> None:
    """Add the all-reduce of a pending value, or of its cotangent, among the parts that have terms."""
    graph, tables, strategy = placement
    step, output, block = graph.blocks[own, 1], graph.blocks[own, 2], graph.blocks[own, 3]
    form, devices = strategy.form[step], strategy.devices[graph.operator[step]]
    parts, table = tables.forms[form, PARTS], tables.forms[form, FIRST] + output
    for piece in range(tables.tables[table, PIECES]):
        _find_holders(tables, table, piece, parts, devices, out.members)
        start, end = _add_all_reduce(own, i, out.members, tables.tables[table, SIZE], graph, out)
        for part in range(parts):
            if tables.numbers[tables.tables[table, ROWS] + part] == piece:
                if graph.blocks[own, 0] == SUMMED:
                    _add_edge(out, block, part, own, start)
                else:
                    _add_edge(out, own, end, block, part)


@jit_inline
def _add_gradients(own: int, i: int, placement: FlatPlacement, out: BlockBuffers) -> None:
    """Add the all-reduce of a bundle's gradients. If they are clipped, each device then reads its gradient for the norm."""
    graph, tables, strategy = placement
    groups = out.groups
    bundle, after = graph.blocks[own, 1], graph.blocks[own, 2]
    for number in range(groups.at[bundle], groups.at[bundle + 1]):
        members, size = groups.members[number], groups.sizes[number]
        if len(graph.servers) > 0 and members.sum() > 1:
            start, end = _add_server_sum(own, i, members, size, _server(bundle, graph), graph, out)
        else:
            start, end = _add_all_reduce(own, i, members, size, graph, out)
        for user in range(graph.bundles[bundle, 0], graph.bundles[bundle, 1]):
            step, back = graph.users[user]
            for part in range(tables.forms[strategy.form[step], PARTS]):
                if members[strategy.devices[graph.operator[step], part]]:
                    _add_edge(out, back, part, own, start)
        for device in range(len(members) if graph.clips else 0):
            if members[device]:
                read = _add_task(out, device, size / graph.memory_bandwidth[device])
                _add_edge(out, own, end, own, read)
                _add_edge(out, own, read, after, 0)


@jit_inline
def _add_norm(own: int, i: int, placement: FlatPlacement, out: BlockBuffers) -> None:
    """Add the all-reduce of the gradient norm, among all devices that have gradients."""
    graph, tables, strategy = placement
    out.members[:] = False
    for user in range(len(graph.users)):
        step, back = graph.users[user]
        for part in range(tables.forms[strategy.form[step], PARTS] if back >= 0 else 0):
            out.members[strategy.devices[graph.operator[step], part]] = True
    start, end = _add_all_reduce(own, i, out.members, graph.blocks[own, 3], graph, out)
    _add_edge(out, graph.blocks[own, 1], 0, own, start)
    _add_edge(out, own, end, graph.blocks[own, 2], 0)


@jit_inline
def _add_updates(own: int, i: int, graph: FlatGraph, out: BlockBuffers) -> None:
    """Add the bytes of a bundle. A bundle that is trained is updated on each device, after its gradients are added up or the
    norm is known.
    """
    groups, is_trained = out.groups, graph.blocks[own, 0] == UPDATED
    bundle, before, end = graph.blocks[own, 1], graph.blocks[own, 2], -1
    for number in range(groups.at[bundle], groups.at[bundle + 1]):
        members, size = groups.members[number], groups.sizes[number]
        end += _tasks_of_gradients(members, bundle, graph)
        for device in range(len(members)):
            if members[device]:
                out.blocks.memory[i, device] += size * (2 + graph.states if is_trained else 1)
            if members[device] and is_trained:
                seconds = size * (3 + 2 * graph.states) / graph.memory_bandwidth[device]
                task = _add_task(out, device, seconds)
                _add_edge(out, before, 0 if graph.clips else end, own, task)


@jit_inline
def _tasks_of_sum(members: Array, graph: FlatGraph) -> int:
    """Return the number of tasks of an all-reduce."""
    count = members.sum()
    if count < 2 or graph.port.shape[2] == 1:
        return int(count + 2 if count > 1 else 2)
    tasks = 2
    for device in range(len(members)):
        if members[device]:
            tasks += _hops(graph, device, _next_member(members, device))
    return tasks


@jit_inline
def _tasks_of_gradients(members: Array, bundle: int, graph: FlatGraph) -> int:
    """Return the number of tasks that add up gradients."""
    if len(graph.servers) == 0 or members.sum() < 2:
        return _tasks_of_sum(members, graph)
    tasks, server = 3, _server(bundle, graph)
    for device in range(len(members)):
        if members[device] and device != server:
            tasks += _hops(graph, device, server) + _hops(graph, server, device)
    return tasks


@jit_internal
def find_groups(numbers: Array, placement: FlatPlacement, found: ReplicaGroups) -> bool:
    """Find the replica groups of the bundles that some blocks belong to; return whether there was room.

    A parameter is cut wherever a region that some step uses ends. The pieces are then grouped by the devices that hold
    them.
    """
    graph = placement.graph
    wanted = np.zeros(len(graph.bundles), np.bool_)
    for block in numbers:
        if graph.blocks[block, 0] in (ADDED, UPDATED, STORED):
            wanted[graph.blocks[block, 1]] = True
    found.at[0] = 0
    for bundle in range(len(wanted)):
        found.at[bundle + 1] = found.at[bundle]
        first, last = graph.bundles[bundle, 2], graph.bundles[bundle, 3]
        for parameter in range(first, last if wanted[bundle] else first):
            if not _find_groups_of(bundle, parameter, placement, found):
                return False
    return True


@jit_internal
def _find_groups_of(bundle: int, parameter: int, placement: FlatPlacement, found: ReplicaGroups) -> bool:
    """Add the groups of a parameter; return whether there was room."""
    graph = placement.graph
    bounds, holders = _regions_used(bundle, parameter, placement)
    marks, steps = _grid_marks(bounds)
    pieces = 1
    for step in steps:
        pieces *= step
    mine = np.empty(len(graph.port), np.bool_)
    for piece in range(pieces):
        size = graph.parameters[parameter, 1] * _piece_size(piece, marks, steps, bounds, holders, mine)
        if size and not _add_to_group(bundle, mine, size, found):
            return False
    return True


@jit_internal
def _add_to_group(bundle: int, mine: Array, size: int, found: ReplicaGroups) -> bool:
    """Add bytes to the group with these members; return whether there was room."""
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
def _regions_used(bundle: int, parameter: int, placement: FlatPlacement) -> Any:
    """Return the regions of a parameter that are used, and their devices. [region, 2 * dimension], [region, device]"""
    graph, tables, strategy = placement
    first, last, places = graph.bundles[bundle, 0], graph.bundles[bundle, 1], graph.parameters[parameter, 2]
    most = 0
    for i in range(last - first):
        if graph.places[places + i] >= 0:
            form = strategy.form[graph.users[first + i, 0]]
            most += tables.tables[tables.forms[form, FIRST] + graph.places[places + i], PIECES]
    bounds = np.empty((most, 2 * graph.parameters[parameter, 0]), np.int64)
    holders, count = np.zeros((most, len(graph.port)), np.bool_), 0
    for i in range(last - first):
        step = graph.users[first + i, 0]
        form, operator = strategy.form[step], graph.operator[step]
        table = tables.tables[tables.forms[form, FIRST] + max(graph.places[places + i], 0)]
        for part in range(tables.forms[form, PARTS] if graph.places[places + i] >= 0 else 0):
            piece = tables.numbers[table[ROWS] + part]
            begin = table[BOUNDS] + bounds.shape[1] * piece
            region = _region_number(bounds, count, tables.numbers, begin, piece)
            if region == count:
                for end in range(bounds.shape[1]):
                    bounds[region, end] = tables.numbers[begin + end]
                count += 1
            holders[region, strategy.devices[operator, part]] = True
    return bounds[:count], holders[:count]


@jit_internal
def _region_number(bounds: Array, count: int, numbers: Array, begin: int, likely: int) -> int:
    """Return the number of the region whose bounds stand in `numbers` from `begin` on; `count` if there is none.

    likely: the region to compare first.
    """
    for k in range(count):
        region = (likely + k) % count
        is_same = True
        for end in range(bounds.shape[1]):
            is_same &= bounds[region, end] == numbers[begin + end]
        if is_same:
            return region
    return count


@jit_internal
def _grid_marks(bounds: Array) -> Any:
    """Return the ends of regions along each dimension, sorted, and the number of intervals. [dimension, mark], [dimension]"""
    count, dims = len(bounds), bounds.shape[1] // 2
    marks, steps = np.zeros((dims, 2 * count), np.int64), np.zeros(dims, np.int64)
    for dim in range(dims):
        found = np.unique(bounds[:, 2 * dim : 2 * dim + 2])
        marks[dim, : len(found)] = found
        steps[dim] = len(found) - 1
    return marks, steps


@jit_internal
def _piece_size(number: int, marks: Array, steps: Array, bounds: Array, holders: Array, mine: Array) -> int:
    """Return the elements of a piece of the grid, 0 if no device has it; `mine` receives the devices that have it."""
    inside, size, is_used = np.ones(len(bounds), np.bool_), 1, False
    for dim in range(len(steps) - 1, -1, -1):
        at = number % steps[dim]
        number //= steps[dim]
        low, high = marks[dim, at], marks[dim, at + 1]
        size *= high - low
        for region in range(len(bounds)):
            inside[region] &= bounds[region, 2 * dim] <= low and bounds[region, 2 * dim + 1] >= high
    mine[:] = False
    for device in range(len(mine)):
        for region in range(len(bounds)):
            mine[device] |= inside[region] and holders[region, device]
        is_used |= mine[device]
    return size if is_used else 0
