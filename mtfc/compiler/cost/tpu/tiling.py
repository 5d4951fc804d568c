"""What TPUs fill up: arrays to whole tiles in memory, products to the sides of the matrix units.

XLA lays arrays out in tiles of 8 x 128 elements of two of their dimensions (OpenXLA, "Tiled layout"; of 1, 2 or 4 x 128 where
there are no more rows), and chooses which two: here those that leave the least room unused, but none that windows turn into
others, as an image has its channels and the batch there.

A matrix unit (`Device.matrix`) holds a square of one factor, of as many summands as columns, and the rows of the other go through
it in tiles of 8. To load it takes a row's time for each row of what it holds, summands or columns, whichever are fewer. Which
factor is held is chosen, too.

XLA's compiler for TPUs (libtpu 0.0.42) lets the pixels of a convolution go through the unit, or holds them, so many of one place
in as many images as the unit has columns. In the first case only those places of a window are summed together that lie in a row,
in the second all. The gradient of images is a convolution as well, with the filter turned around: each pixel takes all places
that can lie on it, one by one. Where pixels are held for it, the unit is loaded for each place anew while rows go through it, and
what takes longer counts. The gradient of a filter is a product like others.

Registers have 8 x 128 elements in f32: what lies in smaller tiles fills them only in part (`held_bytes`).

`least_bytes` is for bounds. However a dimension is split, the tiles of all parts together have no fewer lanes than those of the
whole. That does not hold for rows, of which a tile may have fewer. Of products it holds: `filled` times the FLOPs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import pairwise, permutations
from math import prod

import attrs

from mtfc.compiler.cost.hardware import Device
from mtfc.compiler.cost.sizes import Numbers
from mtfc.compiler.ir.core import Equation
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.ops.structure import reshape_groups
from mtfc.compiler.ir.ops.windows import geometry
from mtfc.compiler.ir.types import ITEM_BYTES, Dim, Mesh, TensorType

ROWS, LANES = 8, 128


@attrs.frozen
class Tiles(Numbers):
    """Elements that arrays have room for in the memory of a device."""

    device: Device
    pixels: Set[Dim]

    def elements(self, type: TensorType) -> int:
        return stored_bytes(type, self.mesh, self.device, self.pixels) // ITEM_BYTES[type.dtype]


def pixels_of(equations: Iterable[Equation], mesh: Mesh) -> set[Dim]:
    """The dimensions that windows turn into others, and those that these are parts of."""
    equations = list(equations)
    found, blocks = set[Dim](), set[Dim]()
    for eqn in equations:
        if has_trait(eqn, "window", "fold"):
            source, made = eqn.operands[0].type.dims, eqn.result.type.dims
            turned = set(source) ^ set(made)
            blocks |= {before for before, dim in (*pairwise(source), *pairwise(made)) if dim in turned}
            found |= turned
    for block, part, whole in _parts(equations, mesh):
        if block in blocks or part in found:
            found |= {part, whole}
    return found


def wholes_of(equations: Iterable[Equation], mesh: Mesh) -> dict[Dim, Dim]:
    """By what each processor has of it, where halos are added to that, a split dimension."""
    return {part: whole for _, part, whole in _parts(equations, mesh)}


def _parts(equations: Iterable[Equation], mesh: Mesh) -> Iterator[tuple[Dim, Dim, Dim]]:
    """Split dimensions that are taken apart, or put together: blocks, of which a processor has one, its size, and the whole."""
    for eqn in equations:
        types = (eqn.operands[0].type, eqn.result.type) if has_trait(eqn, "reshape") else ()
        for whole, parts in permutations(types, 2):
            sizes = dict(zip(parts.dims, parts.local_shape(mesh), strict=True))
            for group in reshape_groups(whole.dims, parts.dims):
                if len(group.sources) == 1 and len(group.targets) == 2 and sizes[group.targets[0]] == 1:
                    yield (*group.targets, *group.sources)


def stored_bytes(type: TensorType, mesh: Mesh, device: Device, pixels: Set[Dim] = frozenset()) -> int:
    """Bytes that one processor's array takes in memory; `pixels` are those of `pixels_of`."""
    if device.matrix is None:
        return prod(type.local_shape(mesh)) * ITEM_BYTES[type.dtype]
    return _tiled(type, mesh, pixels)[0] * ITEM_BYTES[type.dtype]


def held_bytes(type: TensorType, mesh: Mesh, pixels: Set[Dim] = frozenset()) -> int:
    """Bytes that registers have room for where a kernel holds one in f32: of each of its tiles all 8 rows."""
    return _tiled(type, mesh, pixels)[1] * ITEM_BYTES["f32"]


def least_bytes(type: TensorType, device: Device) -> int:
    """Of a whole tensor: no more bytes than all its parts take together, however it is split."""
    if device.matrix is None or not type.dims:
        return type.size * ITEM_BYTES[type.dtype]
    return min(type.size // dim.size * up(dim.size, LANES) for dim in type.dims) * ITEM_BYTES[type.dtype]


@attrs.frozen
class Windows:
    """Those that a convolution reads, or makes where it is the gradient of images. places: the dimensions within windows. pixels:
    those that windows lie along, `width` the last of them, where windows have so many places in a `row`. growth: of a gradient,
    pixels that windows lie on, if only in part, for each window; of 5 pixels without padding, 14 x 14 for 10 x 10.
    """

    is_made: bool
    places: frozenset[Dim]
    pixels: frozenset[Dim]
    growth: float
    width: Dim
    row: int

    @classmethod
    def of(cls, equations: Iterable[Equation], is_made: bool, wholes: Mapping[Dim, Dim]) -> Windows:
        """What `window` equations make, or `fold` equations add up, the last dimension first."""
        found = [geometry(eqn.attrs) for eqn in equations]
        places, pixels = [g.kernel for g in found], [wholes.get(g.out, g.out) for g in found]
        growth = prod(max(1.0, g.source.size / (g.out.size * g.stride)) for g in found) if is_made else 1.0
        return cls(is_made, frozenset(places), frozenset(pixels), growth, pixels[0], places[0].size)


def filled(eqn: Equation, mesh: Mesh, device: Device, windows: Windows | None = None) -> float:
    """How many times the FLOPs of an equation are what the device computes for it. windows: those that it reads or makes."""
    least = min(map(sum, ways(eqn, mesh, device)))
    if windows is None or device.matrix is None or not is_dot(eqn):
        return least
    return max(least, _convolved(eqn, mesh, device.matrix, device.loading, windows))


def _convolved(eqn: Equation, mesh: Mesh, side: int, loading: float, windows: Windows) -> float:
    """The same of a convolution, or of the gradient of its images: see the top. 0 of others, as the gradient of a filter."""
    (one, other, summed), big = _roles(eqn), {dim for dim in windows.places if dim.size > 1}
    images, filter = (one, other) if windows.pixels.intersection(one) else (other, one)
    if not big.issubset(filter if windows.is_made else summed):
        return 0.0
    sizes = (images, set(images) - windows.pixels, set(filter) - big, set(summed) - big, big)
    pixels, batch, made, added, places = (size_of(dims, eqn, mesh) for dims in sizes)
    if windows.is_made:
        rows, together = max(up(made, ROWS), min(added, side) / loading) * up(added, side) * places, 1
    else:
        rows = up(made, ROWS) * up(added * places, side) + added * places * side / loading
        together = max((dim.size for dim in big), default=1)
    images_held = pixels // batch * up(batch, side) * rows
    images_through = up(pixels, ROWS) * up(made, side) * up(added * together, side) * places / together
    return min(images_held, images_through) * windows.growth / (pixels * made * added * places)


def ways(eqn: Equation, mesh: Mesh, device: Device) -> list[tuple[float, float]]:
    """Of a product, where its first factor is held, and where the other is: the rows that go through the unit, and the loading of
    it, as multiples of the FLOPs. Of others the FLOPs alone.
    """
    if device.matrix is None or not is_dot(eqn):
        return [(1.0, 0.0)]
    one, other, summed = (size_of(dims, eqn, mesh) for dims in _roles(eqn))
    computed = one * other * summed
    taken = (_taken(one, other, summed, device.matrix), _taken(other, one, summed, device.matrix))
    return [(through / computed, loaded / computed) for through, loaded in taken]


def _taken(columns: int, rows: int, summed: int, side: int) -> tuple[int, int]:
    """Multiplications that could be done while the rows go through a matrix unit, and while it is loaded with the columns."""
    through = up(rows, ROWS) * up(columns, side) * up(summed, side)
    loaded = min(up(columns, side) * summed, columns * up(summed, side)) * side
    return through, loaded


def is_dot(eqn: Equation) -> bool:
    """Whether matrix units compute it: two factors, of which one has dimensions of its own, and sums."""
    if not has_trait(eqn, "dot") or len(eqn.operands) != 2:
        return False
    one, other, summed = _roles(eqn)
    return bool((one or other) and summed)


def is_sum(eqn: Equation) -> bool:
    """Whether it multiplies element by element and adds up."""
    return has_trait(eqn, "dot") and len(eqn.operands) == 2 and not is_dot(eqn) and bool(_roles(eqn)[2])


def _roles(eqn: Equation) -> tuple[list[Dim], list[Dim], list[Dim]]:
    """The dimensions of a product that only the first factor has, those that only the other has, and those of its sums."""
    (a, b), made = (set(value.type.dims) for value in eqn.operands), set(eqn.result.type.dims)
    sets = ((a & made) - b, (b & made) - a, (a & b) - made)
    one, other, summed = ([dim for dim in each if dim.size > 1] for each in sets)
    return one, other, summed


def size_of(dims: Iterable[Dim], eqn: Equation, mesh: Mesh) -> int:
    """Of the dimensions together, on one processor."""
    axes = {
        dim: each
        for value in eqn.operands
        for dim, each in zip(value.type.dims, value.type.splits, strict=True)
    }
    return prod(dim.size // mesh.size(axes[dim]) for dim in dims)


def _tiled(type: TensorType, mesh: Mesh, pixels: Set[Dim]) -> tuple[int, int]:
    """Elements of an array of whole tiles, and of as many with all their rows. They lie along other dimensions than `pixels` if
    there are enough.
    """
    shape = type.local_shape(mesh)
    size = prod(shape)
    if size == 0 or not shape:
        return size, size
    lanes = [size // n * up(n, LANES) for n in shape]
    if len(shape) < 2:
        return lanes[0], lanes[0]
    rows = [min(up(n, ROWS), 1 << (n - 1).bit_length()) for n in shape]
    every = range(len(shape))
    wanted = [i for i in every if type.dims[i] not in pixels and shape[i] > 1]
    pairs = ((i, j) for i in wanted or every for j in (wanted if len(wanted) > 1 else every) if i != j)
    return min((lanes[i] // shape[j] * rows[j], lanes[i] // shape[j] * up(shape[j], ROWS)) for i, j in pairs)


def up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
