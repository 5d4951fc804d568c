"""Halos: the elements that the shards of a dimension send to their neighbours, for the `distribute` rules of `ir/ops`.

Every function works on tensors whose split dimension is cut in two, [blocks, inner] (see `opdef.Split`). The only op that
communicates is `shift` along `blocks`: each processor hands its part to one other processor.
"""

from mtfc.compiler.ir.core import Equation, Value
from mtfc.compiler.ir.opdef import BlockRewriter, Split
from mtfc.compiler.ir.types import Dim
from mtfc.compiler.records import frozen

Part = tuple[Value, Dim]
"""A tensor, and the dimension that it has in place of `inner`."""


def slice_blocks(b: BlockRewriter, part: Part, s: Split, start: int, size: int) -> Part:
    """Return `size` elements of every block, from `start` on."""
    x, source = part
    if size == source.size:
        return part
    target = b.part(s.dim, size)
    return b.build("slice", x, source=source, target=target, start=start, stride=1), target


def shift_blocks(
    b: BlockRewriter, part: Part, s: Split, by: int, wrap: bool = False, fill: float = 0
) -> Part:
    """Move every block's part `by` blocks on. Blocks that receive no part get `fill`, unless the shift wraps around."""
    (x, dim), count = part, s.blocks.size
    if by == 0 or (wrap and by % count == 0):
        return part
    if abs(by) >= count and not wrap:
        value = bool(fill) if x.type.dtype == "bool" else fill
        return b.build("full", dims=x.type.dims, value=value, dtype=x.type.dtype), dim
    found = b.build("shift", x, dim=s.blocks, by=by, wrap=wrap)
    if wrap or fill == 0:
        return found, dim
    index, edge = b.build("range", dim=s.blocks), by if by > 0 else count + by
    outside = b.build("lt" if by > 0 else "ge", index, b.build.constant(edge, "i32"))
    return b.build("where", outside, b.build.like(fill, x), found), dim


def concat_parts(b: BlockRewriter, s: Split, *parts: Part) -> Part:
    """Return the concatenation of parts, within each block, and its dimension.

    A part is an array and the dimension that it has there.
    """
    if len(parts) == 1:
        return parts[0]
    sources = tuple(dim for _, dim in parts)
    dim = b.part(s.dim, sum(source.size for source in sources))
    return b.build("concat", *(x for x, _ in parts), sources=sources, target=dim), dim


def shift_elements(b: BlockRewriter, x: Value, s: Split, by: int, wrap: bool) -> Part:
    """Move every element `by` places on, across blocks: the elements that leave a block go one block further than the rest."""
    hops, rest = divmod(by, s.inner.size)
    first, block = s.inner.size - rest, (x, s.inner)
    kept = shift_blocks(b, slice_blocks(b, block, s, 0, first), s, hops, wrap)
    if rest == 0:
        return kept
    return concat_parts(
        b, s, shift_blocks(b, slice_blocks(b, block, s, first, rest), s, hops + 1, wrap), kept
    )


def extend_blocks(b: BlockRewriter, x: Value, s: Split, left: int, right: int, fill: float) -> Part:
    """Give every block its halos: the `left` elements that precede it, and the `right` elements that follow it.

    A negative `right` cuts elements off. A halo that is longer than a block comes from several blocks. Beyond the ends of the
    dimension lies `fill`.
    """
    size, block = s.inner.size, (x, s.inner)
    parts = []
    for hop in range(-left // size, -(-right // size) + 1):
        low, high = max(0, -left - hop * size), min(size, right + (1 - hop) * size)
        parts.append(shift_blocks(b, slice_blocks(b, block, s, low, high - low), s, -hop, fill=fill))
    return concat_parts(b, s, *parts)


@frozen
class NeededRange:
    """The elements of the source that each block of a result needs: block j needs `size`, from `first` + `drift` * j on.

    Positions count from the first element of the source's own block. The drift is 0 if the result has as many elements as the
    op's stride says: then every block needs the same halos.

    split: the blocks of the source.
    """

    split: Split
    first: int
    drift: int
    size: int

    @property
    def starts(self) -> tuple[int, int]:
        """The first positions that the first and the last block need."""
        return self.first, self.first + self.drift * (self.split.blocks.size - 1)

    @property
    def left(self) -> int:
        """Elements of the halo in front."""
        return max(0, -min(self.starts))

    @property
    def right(self) -> int:
        """Elements of the halo behind; negative if no block is needed to its end."""
        return max(self.starts) + self.size - self.split.inner.size


def needed_range(
    b: BlockRewriter, eqn: Equation, source: Dim, target: Dim, first: int, stride: int = 1, extent: int = 1
) -> NeededRange | None:
    """Return the range for an op whose element i reads `extent` elements of the source, from `first` + `stride` * i on.

    Return None if the two dimensions are not split alike, or the halos are larger than the data that a gather sends.
    """
    axes = b.axes(eqn, source)
    split = b.split(eqn, source) if axes == b.axes(eqn, target) else None
    return None if split is None else range_of(split, target.size, first, stride, extent)


def range_of(split: Split, size: int, first: int, stride: int = 1, extent: int = 1) -> NeededRange | None:
    """Return the range for a result of `size` elements that is split as the source; None if the halos are too large."""
    count = size // split.blocks.size
    found = NeededRange(split, first, stride * count - split.inner.size, stride * (count - 1) + extent)
    return found if found.left + max(0, found.right) <= split.dim.size - split.inner.size else None


def take_range(b: BlockRewriter, x: Value, needed: NeededRange, fill: float = 0) -> Part:
    """Return the range of `x` that each block needs; beyond the ends lies `fill`.

    needed: the range, relative to each block.
    """
    s = needed.split
    x, dim = extend_blocks(b, b.cut(x, s), s, needed.left, needed.right, fill)
    start = needed.left + needed.first
    if needed.drift == 0:
        return slice_blocks(b, (x, dim), s, start, needed.size)
    target = b.part(s.dim, needed.size)
    dims = tuple(target if each == dim else each for each in x.type.dims)
    found = b.build("gather", x, _positions(b, needed, target, start), dim=dim)
    return b.build.ordered(found, dims), target


def _positions(b: BlockRewriter, needed: NeededRange, target: Dim, start: int) -> Value:
    """Return the positions of each block's range in the extended block: start + drift * j + i."""
    build, dims = b.build, (needed.split.blocks, target)
    drift = build("mul", build("range", dim=needed.split.blocks), build.constant(needed.drift, "i32"))
    first = build("add", build("broadcast", drift, dims=dims), build.constant(start, "i32"))
    return build("add", first, build("range", dim=target))
