"""Pieces of a module's arrays: the device of each, and its region.

A parameter, an input and a state of the optimizer are stored in pieces. A device holds one piece of an array: the region that its
parts need.
"""

from collections.abc import Iterable, Mapping, Sequence

import attrs

from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.types import Dim, TensorType
from mtfc.placements.operators.unroll_loops import Slices
from mtfc.placements.running.jax.tasks import Ends, cells, volume

Index = tuple[int | tuple[int, int], ...]
"""The index of a piece in its array: a position of each axis that a loop slices, a range of each other axis."""


@attrs.frozen(eq=False)
class StoredPiece:
    """A piece of an array between steps: its device, its region in the value of the unrolled program, and its index in the
    array of the user's name. ends: the bounds of the region.
    """

    value: Value
    device: int
    ends: Ends
    index: Index

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(last - first for first, last in self.ends)

    @property
    def type(self) -> TensorType:
        return region_type(self.value.type, self.ends)

    @property
    def region(self) -> Ends:
        """The region in the array of the user's name."""
        return tuple((each, each + 1) if isinstance(each, int) else each for each in self.index)


PiecesByName = Mapping[str, Sequence[StoredPiece]]
"""An array, by the user's name or as a value of the unrolled program -> its pieces."""


def pieces_by_value(pieces: Mapping[str, Iterable[StoredPiece]]) -> PiecesByName:
    """Return the pieces of each value; those of an array that a loop slices belong to several values."""
    found: dict[str, list[StoredPiece]] = {}
    for piece in (piece for each in pieces.values() for piece in each):
        found.setdefault(piece.value.name, []).append(piece)
    return found


def pieces_of(value: Value, held: Mapping[int, Ends], at: Slices) -> list[StoredPiece]:
    """Return the pieces of a value that is a slice of an array. held: device -> region."""
    return [StoredPiece(value, device, ends, _index(ends, at)) for device, ends in sorted(held.items())]


def _index(ends: Ends, at: Slices) -> Index:
    """Return the index of a region of a slice in the array that is sliced."""
    found: list[int | tuple[int, int]] = list(ends)
    for axis, index in reversed(at):
        found.insert(axis, index)
    return tuple(found)


def region_type(type: TensorType, ends: Ends) -> TensorType:
    """Return the type of a region of an array."""
    dims = tuple(Dim(dim.name, last - first) for dim, (first, last) in zip(type.dims, ends, strict=True))
    return TensorType(type.dtype, dims)


def cover(regions: Sequence[Ends], whole: Ends) -> bool:
    """Return True if every element of an array is in a region."""
    found = cells({ends: i for i, ends in enumerate(regions)}, whole)
    return sum(volume(cell) for _, cell in found) == volume(whole)
