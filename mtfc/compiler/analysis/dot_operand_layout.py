"""Dot operand layouts: the arrays that XLA's CPU backend transposes or copies for a dot (jaxlib 0.10).

A dot has shared dimensions (in both operands and the result), summed dimensions, and dimensions of one operand alone. XLA needs
the first operand as (shared, own, summed) and the second as (shared, summed, own). The last two groups of the second may be
swapped if each is one dimension. XLA computes the result as (shared, own of the first, own of the second).

- An operand in another order is copied first. This is slow if the last dimension changes. Copies that keep whole rows are cheap,
  and are not counted here.
- The first operand of a matrix multiplication is not copied but transposed during the multiplication, which is slower still. If
  the other matrix is narrow, as in the gradient of a classifier's last layer, the transposition takes many times as long as the
  dot. The JAX backend then swaps the operands and transposes the result.
- If neither order of operands gives the wanted result, `jnp.einsum` swaps the operands even if it then copies more. For the heads
  of an attention (`blm,mhk->bhlk`) it copies all three arrays element by element. The JAX backend keeps the order that copies
  less.
"""

from __future__ import annotations

from math import prod

from mtfc.compiler.ir.core import Equation, Value
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.types import Mesh
from mtfc.compiler.records import frozen

WORTH = 2
"""The operands are swapped if this transposes at least this many times fewer elements."""

Dims = tuple[tuple[str, int], ...]
"""Names of dimensions and their sizes on one processor."""


def is_dot(eqn: Equation) -> bool:
    """Return True for an einsum that sums over a dimension and has a dimension that only one of its two operands has.

    Dimensions of size 1 are left out.
    """
    if not has_trait(eqn, "dot") or len(eqn.operands) != 2:
        return False
    types = (value.type for value in (*eqn.operands, eqn.result))
    return _Dot(*(tuple((dim.name, dim.size) for dim in type.dims) for type in types)).dense.is_dot


def role_sizes(eqn: Equation, mesh: Mesh) -> tuple[int, int, int]:
    """Return the elements of one processor along the dimensions that only the first operand of a dot keeps, along those that
    only the second keeps, and along those that are summed.
    """
    dot = _Dot(*(_dims(value, mesh) for value in (*eqn.operands, eqn.result)))
    return _size(dot.firsts), _size(dot.others), _size(dot.summed)


def transposed_elements(eqn: Equation, mesh: Mesh) -> int:
    """Return the elements that one processor transposes during a matrix multiplication by the JAX backend; 0 for other ops."""
    dot = _dense_dot(eqn, mesh)
    if dot is None or not dot.is_of_matrices:
        return 0
    return dot.turned if dot.is_turned else dot.transposed


def copied_elements(eqn: Equation, mesh: Mesh) -> int:
    """Return the elements that one processor copies into another order for a dot that is no matrix multiplication."""
    dot = _dense_dot(eqn, mesh)
    return 0 if dot is None or dot.is_of_matrices else dot.reordered


def copied_operands(eqn: Equation, mesh: Mesh) -> tuple[Value, ...]:
    """Return the operands that are copied into another order for a dot that is no matrix multiplication."""
    dot, written = _dense_dot(eqn, mesh), _written(eqn, mesh)
    if dot is None or written is None or dot.is_of_matrices:
        return ()
    is_swapped = written.first != _dims(eqn.operands[0], mesh)
    first, other = reversed(eqn.operands) if is_swapped else eqn.operands
    return (first,) * dot.copies_first + (other,) * dot.copies_other


def swaps_operands(eqn: Equation, mesh: Mesh) -> bool:
    """Return True if the JAX backend swaps the operands of a matrix multiplication."""
    if [len(value.type.dims) for value in (*eqn.operands, *eqn.results)] != [2, 2, 2]:
        return False
    dot = _dense_dot(eqn, mesh)
    return dot is not None and dot.is_of_matrices and dot.is_turned


def kept_order(eqn: Equation, mesh: Mesh) -> tuple[str, ...] | None:
    """Return the result's dimensions in the order that the dot computes, if the JAX backend keeps `jnp.einsum` from swapping.

    The backend then transposes the result. None: `jnp.einsum` gives the wanted order.
    """
    dot = _written(eqn, mesh)
    if dot is None or dot.first != _dims(eqn.operands[0], mesh) or dot.made == dot.result:
        return None
    return tuple(name for name, _ in dot.made)


@frozen
class _Dot:
    """The dimensions of a dot. first, other: its operands, in the order of the multiplication.

    result: the wanted order of the result.
    """

    first: Dims
    other: Dims
    result: Dims

    @property
    def shared(self) -> Dims:
        """The dimensions that both operands and the result have."""
        return tuple(dim for dim in self.first if dim in self.other and dim in self.result)

    @property
    def summed(self) -> Dims:
        """The dimensions of both operands that the result has not."""
        return tuple(dim for dim in self.first if dim in self.other and dim not in self.result)

    @property
    def firsts(self) -> Dims:
        """The dimensions that the result has from the first operand alone."""
        return tuple(dim for dim in self.first if dim not in self.other and dim in self.result)

    @property
    def others(self) -> Dims:
        """The dimensions that the result has from the other operand alone."""
        return tuple(dim for dim in self.other if dim not in self.first and dim in self.result)

    @property
    def made(self) -> Dims:
        """The dimensions of the result in the order in which the multiplication makes them."""
        return self.shared + self.firsts + self.others

    @property
    def dense(self) -> _Dot:
        """Return the dot without dimensions of size 1."""
        dims = (self.first, self.other, self.result)
        return _Dot(*(tuple(dim for dim in each if dim[1] > 1) for each in dims))

    @property
    def is_dot(self) -> bool:
        """Return True if the dot sums, and at least one operand has a dimension of its own."""
        return bool(self.summed and (self.firsts or self.others))

    @property
    def is_of_matrices(self) -> bool:
        return not self.shared and len(self.firsts) == len(self.others) == len(self.summed) == 1

    @property
    def reordered(self) -> int:
        """Return the elements of the arrays that lack the last dimension that XLA needs."""
        return (
            _size(self.first) * self.copies_first
            + _size(self.other) * self.copies_other
            + _size(self.result) * (self.result[-1:] != self.made[-1:])
        )

    @property
    def copies_first(self) -> bool:
        return self.first[-1] not in self.summed

    @property
    def copies_other(self) -> bool:
        is_paired = len(self.summed) == len(self.others) == 1 and self.other[:-2] == self.shared
        return self.other[-1] not in (self.summed + self.others if is_paired else self.others or self.summed)

    @property
    def moved(self) -> int:
        """Return the elements that are transposed or copied."""
        return self.transposed if self.is_of_matrices else self.reordered

    @property
    def transposed(self) -> int:
        """Return the elements of the first matrix if it is transposed, else 0."""
        return _size(self.first) * (self.first[0] in self.summed)

    @property
    def turned(self) -> int:
        """Return the elements that are transposed if the operands are swapped; the elements of the result count too."""
        return _size(self.other) * (self.other[0] in self.summed) + _size(self.result)

    @property
    def is_turned(self) -> bool:
        return WORTH * self.turned < self.transposed


def _dense_dot(eqn: Equation, mesh: Mesh) -> _Dot | None:
    """Return the dot as XLA sees it, without dimensions of size 1; None if the equation is no dot."""
    dot = _written(eqn, mesh)
    return dot.dense if dot is not None and dot.dense.is_dot else None


def _written(eqn: Equation, mesh: Mesh) -> _Dot | None:
    """Return the dot with the operands in the order in which the JAX backend multiplies them.

    The order stays if it gives the wanted result. Else `jnp.einsum` swaps the operands. The backend prevents this if XLA
    has a dot there, and the swapped order does not give the wanted result either, and copies more.
    """
    if not has_trait(eqn, "dot") or len(eqn.operands) != 2:
        return None
    first, other, result = (_dims(value, mesh) for value in (*eqn.operands, eqn.result))
    dot, swapped = _Dot(first, other, result), _Dot(other, first, result)
    if dot.made == result:
        return dot
    is_free = swapped.made != result and dot.dense.is_dot
    return dot if is_free and dot.dense.moved < swapped.dense.moved else swapped


def _dims(value: Value, mesh: Mesh) -> Dims:
    return tuple(zip(value.type.names, value.type.local_shape(mesh), strict=True))


def _size(dims: Dims) -> int:
    return prod(size for _, size in dims)
