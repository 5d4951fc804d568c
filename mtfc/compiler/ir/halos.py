"""What the shards of a dimension send to their neighbours: the equations that `distribute` rules are made of.

All of them work on tensors that have the dimension cut in two, [blocks, inner] (see `blocks.py`). The one op that communicates is
`shift` along `blocks`: each processor hands its part to one other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from mtfc.compiler.ir.core import Equation, Value
from mtfc.compiler.ir.types import Dim

if TYPE_CHECKING:
    from mtfc.compiler.passes.spatial.position_blocks import Blocks, Split

Part = tuple[Value, Dim]
"""A tensor, and the dimension that it has in place of `inner`."""


def piece(b: Blocks, part: Part, s: Split, start: int, size: int) -> Part:
    """`size` elements of every block, from `start` on."""
    x, source = part
    if size == source.size:
        return part
    target = b.part(s.dim, size)
    return b.build("slice", x, source=source, target=target, start=start, stride=1), target


def moved(b: Blocks, part: Part, s: Split, by: int, wrap: bool = False, fill: float = 0) -> Part:
    """What every block has, `by` blocks further on; where none is that far back, `fill`, unless it wraps around."""
    (x, dim), count = part, s.blocks.size
    if by == 0 or (wrap and by % count == 0):
        return part
    if abs(by) >= count and not wrap:
        return b.build("full", dims=x.type.dims, value=fill, dtype=x.type.dtype), dim
    found = b.build("shift", x, dim=s.blocks, by=by, wrap=wrap)
    if wrap or fill == 0:
        return found, dim
    index, edge = b.build("range", dim=s.blocks), by if by > 0 else count + by
    outside = b.build("lt" if by > 0 else "ge", index, b.build.constant(edge, "i32"))
    return b.build("where", outside, b.build.like(fill, x), found), dim


def joined(b: Blocks, s: Split, *parts: Part) -> Part:
    """Parts of every block, one after the other."""
    if len(parts) == 1:
        return parts[0]
    sources = tuple(dim for _, dim in parts)
    dim = b.part(s.dim, sum(source.size for source in sources))
    return b.build("concat", *(x for x, _ in parts), sources=sources, target=dim), dim


def shifted(b: Blocks, x: Value, s: Split, by: int, wrap: bool) -> Part:
    """Every element `by` places further on, across the blocks: of each, what leaves it goes one block further than the rest."""
    hops, rest = divmod(by, s.inner.size)
    first, block = s.inner.size - rest, (x, s.inner)
    kept = moved(b, piece(b, block, s, 0, first), s, hops, wrap)
    if rest == 0:
        return kept
    return joined(b, s, moved(b, piece(b, block, s, first, rest), s, hops + 1, wrap), kept)


def extended(b: Blocks, x: Value, s: Split, left: int, right: int, fill: float) -> Part:
    """Every block with `left` elements that precede and `right` that follow it: its halos. A negative `right` cuts off.

    A halo that is longer than a block comes from several; beyond the ends lies `fill`.
    """
    size, block = s.inner.size, (x, s.inner)
    parts = []
    for hop in range(-left // size, -(-right // size) + 1):
        low, high = max(0, -left - hop * size), min(size, right + (1 - hop) * size)
        parts.append(moved(b, piece(b, block, s, low, high - low), s, -hop, fill=fill))
    return joined(b, s, *parts)


@attrs.frozen
class Stretch:
    """What each block of a result needs of the source: block j `size` elements, from `first` + `drift` * j on.

    They are counted from the first of the source's own block. Where source and result have as many elements as the op's stride
    says, there is no drift: every block needs the same halos.
    """

    split: Split
    first: int
    drift: int
    size: int

    @property
    def starts(self) -> tuple[int, int]:
        """Of the first block and of the last."""
        return self.first, self.first + self.drift * (self.split.blocks.size - 1)

    @property
    def left(self) -> int:
        """Elements of the halo in front."""
        return max(0, -min(self.starts))

    @property
    def right(self) -> int:
        """Elements of the halo behind; negative where no block is needed to its end."""
        return max(self.starts) + self.size - self.split.inner.size


def stretch(
    b: Blocks, eqn: Equation, source: Dim, target: Dim, first: int, stride: int = 1, extent: int = 1
) -> Stretch | None:
    """The stretch for an op of which element i needs `extent` elements of the source, from `first` + `stride` * i on.

    None unless both dimensions are split alike, and halos are no more than what a gather would send.
    """
    axes = b.axes(eqn, source)
    split = b.split(eqn, source) if axes == b.axes(eqn, target) else None
    if split is None:
        return None
    count = target.size // split.blocks.size
    found = Stretch(split, first, stride * count - split.inner.size, stride * (count - 1) + extent)
    return found if found.left + max(0, found.right) <= source.size - split.inner.size else None


def taken(b: Blocks, x: Value, s: Stretch, fill: float = 0) -> Part:
    """Every block's stretch of `x`; beyond the ends lies `fill`."""
    x, dim = extended(b, b.cut(x, s.split), s.split, s.left, s.right, fill)
    start = s.left + s.first
    if s.drift == 0:
        return piece(b, (x, dim), s.split, start, s.size)
    target = b.part(s.split.dim, s.size)
    dims = tuple(target if each == dim else each for each in x.type.dims)
    found = b.build("gather", x, _places(b, s, target, start), dim=dim)
    return b.build.ordered(found, dims), target


def _places(b: Blocks, s: Stretch, target: Dim, start: int) -> Value:
    """Where the elements of each block's stretch lie in the extended block: start + drift * j + i."""
    build, dims = b.build, (s.split.blocks, target)
    drift = build("mul", build("range", dim=s.split.blocks), build.constant(s.drift, "i32"))
    first = build("add", build("broadcast", drift, dims=dims), build.constant(start, "i32"))
    return build("add", first, build("range", dim=target))
