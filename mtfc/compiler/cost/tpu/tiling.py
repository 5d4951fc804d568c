"""Padding on TPUs: of arrays to whole tiles in memory, and of dots to the sides of the matrix unit (MXU).

XLA lays arrays out in tiles of 8 x 128 elements along two of their dimensions (OpenXLA, "Tiled layout"). A tile has 1, 2 or 4
rows if the array has no more. XLA chooses the two dimensions; here it takes those that pad least, but no dimension that windows
slide along. An image, for example, has tiles along channels and batch. Registers hold 8 x 128 elements in f32, so tiles of fewer
rows fill them only in part (`register_bytes`).

The MXU (`Device.mxu_size`) holds a square of one factor, with summands along one side. Rows of the other factor pass through the
MXU in groups of 8. Loading the square takes as long as passing its rows or its columns, whichever are fewer. XLA chooses which
factor the MXU holds (`mxu_schedules`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from itertools import pairwise, permutations
from math import prod

from mtfc.compiler.analysis.dot_operand_layout import role_sizes
from mtfc.compiler.cost.hardware import Device
from mtfc.compiler.cost.sizes import Numbers
from mtfc.compiler.ir.core import Equation
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.ops.structure import reshape_groups
from mtfc.compiler.ir.types import ITEM_BYTES, Dim, Mesh, TensorType
from mtfc.compiler.records import frozen

ROWS, LANES = 8, 128
"""The sides of a tile."""


@frozen
class Tiles(Numbers):
    """Sizes of one processor's arrays with the padding of a device. pixels: see `pixels_of`."""

    device: Device
    pixels: Set[Dim]

    def elements(self, type: TensorType) -> int:
        return stored_bytes(type, self.mesh, self.device, self.pixels) // ITEM_BYTES[type.local_dtype]


# Tiles in memory


def pixels_of(equations: Iterable[Equation], mesh: Mesh) -> set[Dim]:
    """Return the dimensions that windows slide along, those within windows, and the parts and wholes of both where they are
    split.
    """
    equations = list(equations)
    found, blocks = set[Dim](), set[Dim]()
    for eqn in equations:
        if has_trait(eqn, "window", "fold"):
            source, made = eqn.operands[0].type.dims, eqn.result.type.dims
            turned = set(source) ^ set(made)
            blocks |= {before for before, dim in (*pairwise(source), *pairwise(made)) if dim in turned}
            found |= turned
    for block, part, whole in _split_dims(equations, mesh):
        if block in blocks or part in found:
            found |= {part, whole}
    return found


def _split_dims(equations: Iterable[Equation], mesh: Mesh) -> Iterator[tuple[Dim, Dim, Dim]]:
    """Yield (blocks, block, whole) for each dimension that a reshape cuts into one block per processor, or joins again."""
    for eqn in equations:
        types = (eqn.operands[0].type, eqn.result.type) if has_trait(eqn, "reshape") else ()
        for whole, parts in permutations(types, 2):
            sizes = dict(zip(parts.dims, parts.local_shape(mesh), strict=True))
            for group in reshape_groups(whole.dims, parts.dims):
                if len(group.sources) == 1 and len(group.targets) == 2 and sizes[group.targets[0]] == 1:
                    yield (*group.targets, *group.sources)


def stored_bytes(type: TensorType, mesh: Mesh, device: Device, pixels: Set[Dim] = frozenset()) -> int:
    """Return the bytes of one processor's array in memory. pixels: see `pixels_of`."""
    if device.mxu_size is None:
        return type.local_bytes(mesh)
    return _tiled(type, mesh, pixels)[0] * ITEM_BYTES[type.local_dtype]


def register_bytes(type: TensorType, mesh: Mesh, pixels: Set[Dim] = frozenset()) -> int:
    """Return the bytes of the registers that hold one processor's array in f32."""
    return _tiled(type, mesh, pixels)[1] * ITEM_BYTES["f32"]


def least_tiled_bytes(type: TensorType) -> int:
    """Return a lower bound on the bytes of all shards of a tensor together, under any layout.

    All shards together have at least the lanes of the whole. This does not hold for rows, as small tiles have fewer.
    """
    if not type.dims:
        return type.size * ITEM_BYTES[type.dtype]
    return (
        min(type.size // dim.size * round_up(dim.size, LANES) for dim in type.dims) * ITEM_BYTES[type.dtype]
    )


def _tiled(type: TensorType, mesh: Mesh, pixels: Set[Dim]) -> tuple[int, int]:
    """Return the elements of an array in whole tiles, and in the same number of tiles of 8 rows."""
    shape = type.local_shape(mesh)
    size = prod(shape)
    if size == 0 or not shape:
        return size, size
    lanes = [size // n * round_up(n, LANES) for n in shape]
    if len(shape) < 2:
        return lanes[0], lanes[0]
    rows = [min(round_up(n, ROWS), 1 << (n - 1).bit_length()) for n in shape]
    every = range(len(shape))
    wanted = [i for i in every if type.dims[i] not in pixels and shape[i] > 1]
    sides = ((i, j) for i in wanted or every for j in (wanted if len(wanted) > 1 else every) if i != j)
    return min(
        (lanes[i] // shape[j] * rows[j], lanes[i] // shape[j] * round_up(shape[j], ROWS)) for i, j in sides
    )


# Dots in the MXU


def mxu_schedules(eqn: Equation, mesh: Mesh, side: int) -> list[tuple[float, float]]:
    """Return (passing rows, loading) for a dot whose first factor the MXU holds, and for one whose second it holds.

    Both are times over the time of the FLOPs.
    """
    one, other, summed = role_sizes(eqn, mesh)
    flops = one * other * summed
    taken = (_schedule(one, other, summed, side), _schedule(other, one, summed, side))
    return [(passing / flops, loading / flops) for passing, loading in taken]


def _schedule(columns: int, rows: int, summed: int, side: int) -> tuple[int, int]:
    """Return the multiplications that an MXU could do while rows pass, and while it loads the columns."""
    passing = round_up(rows, ROWS) * round_up(columns, side) * round_up(summed, side)
    loading = min(round_up(columns, side) * summed, columns * round_up(summed, side)) * side
    return passing, loading


def round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
