"""Sizes on one processor, as numbers or as formulas.

Analyses add up the amounts of a `Scale` without asking for their kind. So a formula cannot disagree with the number that it
stands for.
"""

from __future__ import annotations

from collections.abc import Collection
from fractions import Fraction
from math import ceil, prod

from mtfc.compiler.cost.symbolic import Formula, Symbol
from mtfc.compiler.ir.types import ITEM_BYTES, Axes, Dim, Mesh, TensorType
from mtfc.compiler.records import frozen

Amount = int | Fraction | Formula
"""Elements, bytes or FLOPs on one processor."""


def whole(amount: Amount) -> int:
    """Return a number rounded up: a fraction of a byte is sent as a whole byte."""
    assert not isinstance(amount, Formula)
    return ceil(amount)


@frozen
class Numbers:
    """Sizes as integers."""

    mesh: Mesh

    def dim(self, dim: Dim, axes: Axes) -> int:
        return dim.size // self.mesh.size(axes)

    def elements(self, type: TensorType) -> int:
        return type.local_size(self.mesh)

    def group(self, axes: Axes) -> Fraction:
        """Return a fraction, so that quotients are exact."""
        return Fraction(self.mesh.size(axes))


UNDISTRIBUTED = Numbers(Mesh("one", ()))
"""Sizes of whole tensors."""


class FormulaSizes:
    """Sizes as formulas in the names of dimensions and mesh axes.

    An axis with the name of a dimension is written with its mesh's name: `line.batch`.
    """

    def __init__(self, dims: Collection[Dim], mesh: Mesh) -> None:
        """Make a symbol for each dimension and each mesh axis.

        values: the size that each symbol stands for.
        """
        self._dims = {dim.name: Symbol(i, dim.name, True) for i, dim in enumerate(dims)}
        self._axes: dict[str, Symbol] = {}
        for axis in mesh.names:
            name = f"{mesh.name}.{axis}" if axis in self._dims else axis
            self._axes[axis] = Symbol(len(self._dims) + len(self._axes), name, False)
        self.values = {dim.name: dim.size for dim in dims} | {
            self._axes[axis].name: size for axis, size in mesh.axes
        }

    def dim(self, dim: Dim, axes: Axes) -> Formula:
        return Formula.symbol(self._dims[dim.name]) / self.group(axes)

    def elements(self, type: TensorType) -> Formula:
        return prod(map(self.dim, type.dims, type.splits), start=Formula.of(1))

    def group(self, axes: Axes) -> Formula:
        return prod((Formula.symbol(self._axes[axis]) for axis in axes), start=Formula.of(1))


Scale = Numbers | FormulaSizes
"""The sizes that FLOP rules of ops use (`opdef.Sizes`), and the sizes of groups of processors."""


def bytes_of(type: TensorType, scale: Scale) -> Amount:
    """Bytes of one processor's array."""
    return scale.elements(type) * ITEM_BYTES[type.local_dtype]
