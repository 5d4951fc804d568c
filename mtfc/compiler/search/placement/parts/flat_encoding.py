"""What the compiled loops that make a task graph are told, in flat arrays: of graph and machine, of parts, of a strategy."""

from __future__ import annotations

from typing import NamedTuple

from mtfc.compiler.search.placement.parts.block_arrays import Array

TAKEN, STEP, SUMMED, RETURNED, COLLECTED, BACK, ADDED, READ, NORM, KNOWN, UPDATED, STORED = range(12)
"""The kinds of blocks, in the order of `block_names.Kind`."""


class Plan(NamedTuple):
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


class Known(NamedTuple):
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


class Placed(NamedTuple):
    """A strategy: the form of each step, and the devices of each operator's parts. [step], [operator, part]"""

    form: Array
    devices: Array


class Shares(NamedTuple):
    """Who holds how much of the parameters of bundles in common: those of bundle i begin at `at[i]`.

    members [share, device], sizes [share]: bytes.
    """

    at: Array
    members: Array
    sizes: Array
