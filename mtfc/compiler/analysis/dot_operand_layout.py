"""What XLA's CPU backend transposes to multiply, as seen in what it compiles (jaxlib 0.10).

A product has dimensions that both factors and the result have, those that it sums over, and those of one factor alone. XLA wants
the first factor as (shared, its own, summed), the other as (shared, summed, its own), or the two swapped where they are one
dimension each, and makes (shared, first's, other's). What lies otherwise is copied first, which takes long where other elements
become neighbours: what is copied row by row is left out here. The first of two matrices is not copied, but transposed while it
is multiplied, which takes longer still: many times longer than the product where the other matrix is narrow, as in the gradient
of a classifier's last one. So the JAX backend takes such products the other way round, and transposes the result.

Where neither order makes the result as it is wanted, `jnp.einsum` swaps the factors, whatever that copies: for the heads of an
attention (`blm,mhk->bhlk`) all three arrays, one element at a time. There the JAX backend keeps the order that copies less.
"""

from __future__ import annotations

from math import prod

import attrs

from mtfc.compiler.ir.core import Equation, Value
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.types import Dim, Mesh

WORTH = 2
"""A product is turned around where that transposes so many times fewer elements."""

Dims = tuple[tuple[str, int], ...]
"""Names and sizes on one processor."""


def is_dot(eqn: Equation) -> bool:
    """True for an einsum that sums over a dimension and has a dimension that only one of its two operands has."""
    if not has_trait(eqn, "dot") or len(eqn.operands) != 2:
        return False
    one, other, summed = dot_roles(eqn)
    return bool((one or other) and summed)


def dot_roles(eqn: Equation) -> tuple[list[Dim], list[Dim], list[Dim]]:
    """Return the dimensions that only the first operand keeps, that only the second keeps, and that are summed, without those of size 1."""
    (a, b), made = (set(value.type.dims) for value in eqn.operands), set(eqn.result.type.dims)
    sets = ((a & made) - b, (b & made) - a, (a & b) - made)
    one, other, summed = ([dim for dim in each if dim.size > 1] for each in sets)
    return one, other, summed


def transposed(eqn: Equation, mesh: Mesh) -> int:
    """Elements that one processor transposes while it multiplies matrices, as the JAX backend writes a placed equation; 0 for
    all that is no product of two.
    """
    product = _product(eqn, mesh)
    if product is None or not product.is_of_matrices:
        return 0
    return product.turned if product.is_turned else product.transposed


def reordered(eqn: Equation, mesh: Mesh) -> int:
    """Elements that one processor copies in another order for any other product."""
    product = _product(eqn, mesh)
    return 0 if product is None or product.is_of_matrices else product.reordered


def is_turned(eqn: Equation, mesh: Mesh) -> bool:
    """Whether the JAX backend takes a product of two matrices the other way round."""
    if [len(value.type.dims) for value in (*eqn.operands, *eqn.results)] != [2, 2, 2]:
        return False
    product = _product(eqn, mesh)
    return product is not None and product.is_of_matrices and product.is_turned


def made(eqn: Equation, mesh: Mesh) -> tuple[str, ...] | None:
    """Names of the result's dimensions in the order in which the JAX backend makes them, where it keeps `jnp.einsum` from
    swapping the factors.
    """
    product = _written(eqn, mesh)
    if product is None or product.first != _dims(eqn.operands[0], mesh) or product.made == product.result:
        return None
    return tuple(name for name, _ in product.made)


@attrs.frozen
class _Product:
    """Its factors in the order in which they are multiplied, and the result as it is wanted."""

    first: Dims
    other: Dims
    result: Dims

    @property
    def shared(self) -> Dims:
        return tuple(dim for dim in self.first if dim in self.other and dim in self.result)

    @property
    def summed(self) -> Dims:
        return tuple(dim for dim in self.first if dim in self.other and dim not in self.result)

    @property
    def firsts(self) -> Dims:
        return tuple(dim for dim in self.first if dim not in self.other and dim in self.result)

    @property
    def others(self) -> Dims:
        return tuple(dim for dim in self.other if dim not in self.first and dim in self.result)

    @property
    def made(self) -> Dims:
        return self.shared + self.firsts + self.others

    @property
    def dense(self) -> _Product:
        """Without dimensions of one element."""
        dims = (self.first, self.other, self.result)
        return _Product(*(tuple(dim for dim in each if dim[1] > 1) for each in dims))

    @property
    def is_product(self) -> bool:
        """Whether it sums, over arrays of which at least one has more dimensions."""
        return bool(self.summed and (self.firsts or self.others))

    @property
    def is_of_matrices(self) -> bool:
        return not self.shared and len(self.firsts) == len(self.others) == len(self.summed) == 1

    @property
    def reordered(self) -> int:
        """Elements of the arrays whose last dimension is none that XLA wants there."""
        is_paired = len(self.summed) == len(self.others) == 1 and self.other[:-2] == self.shared
        last = self.summed + self.others if is_paired else self.others or self.summed
        return (
            _size(self.first) * (self.first[-1] not in self.summed)
            + _size(self.other) * (self.other[-1] not in last)
            + _size(self.result) * (self.result[-1:] != self.made[-1:])
        )

    @property
    def moved(self) -> int:
        """Elements of which the product waits for another order."""
        return self.transposed if self.is_of_matrices else self.reordered

    @property
    def transposed(self) -> int:
        """Elements of the first of two matrices, if it is transposed."""
        return _size(self.first) * (self.first[0] in self.summed)

    @property
    def turned(self) -> int:
        """Elements that are transposed where the other matrix comes first, and those of the result."""
        return _size(self.other) * (self.other[0] in self.summed) + _size(self.result)

    @property
    def is_turned(self) -> bool:
        return WORTH * self.turned < self.transposed


def _product(eqn: Equation, mesh: Mesh) -> _Product | None:
    """As XLA sees it, without dimensions of one element."""
    product = _written(eqn, mesh)
    return product.dense if product is not None and product.dense.is_product else None


def _written(eqn: Equation, mesh: Mesh) -> _Product | None:
    """In the order in which `jnp.einsum` has the factors: the one of the result, or else swapped, if it is not kept from that."""
    if not has_trait(eqn, "dot") or len(eqn.operands) != 2:
        return None
    first, other, result = (_dims(value, mesh) for value in (*eqn.operands, eqn.result))
    product, swapped = _Product(first, other, result), _Product(other, first, result)
    if product.made == result:
        return product
    is_free = swapped.made != result and product.dense.is_product
    return product if is_free and product.dense.moved < swapped.dense.moved else swapped


def _dims(value: Value, mesh: Mesh) -> Dims:
    return tuple(zip(value.type.names, value.type.local_shape(mesh), strict=True))


def _size(dims: Dims) -> int:
    return prod(size for _, size in dims)
