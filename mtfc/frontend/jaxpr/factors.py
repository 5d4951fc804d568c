"""Factors: the dimensions of imported arrays before they have names.

An axis of an array is a product of factors, the most major first. Two axes that run along the same dimension have the same
factors. A reshape that splits an axis of size 32 into 4 and 8 splits its factor, in all arrays that have it. An array never has a
factor twice: `unite` refuses that, and the caller renames the axis at this use instead.

A factor is a node of a union-find structure. Its root is a leaf, or it has been split into parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from math import prod
from operator import mul

import attrs


@attrs.define(eq=False)
class Factor:
    """A dimension, or a part of one. `spaces` are the numbers of the arrays and iteration spaces that have it.

    wanted: names for it, the best first. alternate: the factor that takes its place where an array would have it twice.
    stands_in: True if it takes the place of its alternate. united: the factor that it was merged into. parts: the factors
    that it is split into.
    """

    size: int
    spaces: set[int] = attrs.field(factory=set)
    wanted: list[tuple[int, str]] = attrs.field(factory=list)
    united: Factor | None = None
    parts: tuple[Factor, ...] = ()
    alternate: Factor | None = None
    stands_in: bool = False

    def root(self) -> Factor:
        """Return the node that stands for all nodes united with this one."""
        node = self
        while node.united is not None:
            if node.united.united is not None:
                node.united = node.united.united
            node = node.united
        return node


Axis = tuple[Factor, ...]
"""The factors of one axis, the most major first. An axis of size 1 has none."""


def axis(size: int) -> Axis:
    """Return a new axis."""
    return (Factor(int(size)),) if size != 1 else ()


def leaves(factors: Iterable[Factor]) -> Axis:
    """Return the factors of which the given ones consist, none of them split."""
    found: list[Factor] = []
    for factor in factors:
        root = factor if factor.united is None else factor.root()
        found += leaves(root.parts) if root.parts else (root,)
    return tuple(found)


def size_of(factors: Iterable[Factor]) -> int:
    return prod(factor.size for factor in factors)


def has_bounds(factors: Sequence[Factor], sizes: Sequence[int]) -> bool:
    """Return True if the factors can be split so that groups of the given sizes, the most major first, consist of whole ones."""
    return _divides(sorted({*_minor(f.size for f in leaves(factors)), *_minor(sizes)}))


def cut(factors: Sequence[Factor], sizes: Sequence[int]) -> tuple[Axis, ...] | None:
    """Split factors into axes of the given sizes. Return None if no factorization has these bounds."""
    if not has_bounds(factors, sizes):
        return None
    sizes = [int(size) for size in sizes]
    groups: list[Axis] = []
    rest = list(leaves(factors))
    for size in sizes:
        group: list[Factor] = []
        while size_of(group) != size:
            first, needed = rest.pop(0), size // size_of(group)
            if first.size > needed:
                first, other = _split(first, needed)
                rest.insert(0, other)
            group.append(first)
        groups.append(tuple(group))
    return tuple(groups)


def index_of_part(size: int, start: int, stride: int, number: int) -> int | None:
    """Return the index along all other factors of the elements `start + i * stride` of an axis, for 0 <= i < number.

    With factors of sizes (size / (number * stride), number, stride), the element (a, i, b) of the axis is
    (a * number + i) * stride + b, where 0 <= i < number and 0 <= b < stride. So the elements are those of the middle factor, with
    one index (a, b) along the others, exactly if number * stride divides the size and the element `start` has i = 0. The index is
    a * stride + b. Else no factor has just these elements, and the result is None. A single element is a part of any axis.
    """
    if number == 1:
        return start
    if start < 0 or size % (number * stride) or start // stride % number:
        return None
    return start // (number * stride) * stride + start % stride


def cut_part(factors: Sequence[Factor], start: int, number: int) -> Axis | None:
    """Split factors so that an axis has just the adjacent elements from `start` on, and return it; None if no factor has them."""
    size = size_of(leaves(factors))
    if index_of_part(size, start, 1, number) is None:
        return None
    found = cut(factors, (size // number, number))
    return found[1] if found is not None else None


def others_of_part(
    factors: Sequence[Factor], some: Sequence[Factor], start: int, stride: int
) -> tuple[Axis, int] | None:
    """Return the factors of an axis beside `some`, and the index along them where `some` have the elements from `start` on.

    Return None if `some` are no adjacent factors of the axis, or have other elements: see `index_of_part`.
    """
    own, run = leaves(factors), leaves(some)
    number = size_of(run)
    index = index_of_part(size_of(own), start, stride, number)
    for i in range(len(own) - len(run) + 1):
        behind = own[i + len(run) :]
        is_run = own[i : i + len(run)] == run and (number == 1 or size_of(behind) == stride)
        if is_run and index is not None:
            return (*own[:i], *behind), index
    return None


def refine(a: Sequence[Factor], b: Sequence[Factor]) -> bool:
    """Split the factors of two axes until they have the same sizes. Return False if no factorization serves both."""
    own, other = ([f.size for f in leaves(each)] for each in (a, b))
    if own == other:
        return True
    bounds = sorted({*_minor(own), *_minor(other)})
    if not _divides(bounds):
        return False
    sizes = [high // low for low, high in pairwise(bounds)][::-1]
    cut(a, sizes)
    cut(b, sizes)
    cut(a, sizes)  # a split of b may have split a factor of a
    return [f.size for f in leaves(a)] == [f.size for f in leaves(b)]


def unite(a: Sequence[Factor], b: Sequence[Factor]) -> bool:
    """Make two axes the same. Return False, and change no result, if an array would have a factor twice."""
    if a == b or leaves(a) == leaves(b):
        return True
    if size_of(a) != size_of(b) or not refine(a, b):
        return False
    pairs = [(x, y) for x, y in zip(leaves(a), leaves(b), strict=True) if x is not y]
    if any(not x.spaces.isdisjoint(y.spaces) for x, y in pairs):
        return False
    for x, y in pairs:
        x, y = x.root(), y.root()
        if x is y:
            continue
        if not x.spaces.isdisjoint(y.spaces):
            return False
        _merge(x, y)
    return True


def may_unite(a: Sequence[Factor], b: Sequence[Factor]) -> bool:
    """Return True if two axes have factors of the same sizes, and no array has a factor of both."""
    pairs = [*zip(leaves(a), leaves(b), strict=False)]
    same_sizes = [f.size for f in leaves(a)] == [f.size for f in leaves(b)]
    return same_sizes and all(x is y or x.spaces.isdisjoint(y.spaces) for x, y in pairs)


def register(factors: Iterable[Factor], space: int) -> None:
    """Say that an array or an iteration space has factors."""
    for factor in leaves(factors):
        factor.spaces.add(space)


def alternate(factors: Sequence[Factor]) -> Axis:
    """Return the axis that takes the place of an axis where an array would have it twice, the same wherever that happens."""
    found = []
    for factor in leaves(factors):
        if factor.alternate is None:
            factor.alternate = Factor(factor.size, alternate=factor, stands_in=True)
        found.append(factor.alternate)
    return tuple(found)


def _merge(x: Factor, y: Factor) -> None:
    """Merge a factor into another, which takes over its spaces and its wanted names."""
    if len(x.spaces) < len(y.spaces):
        x, y = y, x
    y.united = x
    x.spaces |= y.spaces
    x.wanted += y.wanted
    x.stands_in = x.stands_in or y.stands_in
    if x.alternate is None:
        x.alternate = y.alternate
    elif y.alternate is not None:
        unite((x.alternate,), (y.alternate,))


def _split(factor: Factor, minor_first: int) -> Axis:
    """Split a leaf into a major part of the given size and the rest."""
    root = factor.root()
    sizes = (minor_first, root.size // minor_first)
    root.parts = tuple(Factor(size, set(root.spaces), stands_in=root.stands_in) for size in sizes)
    if root.alternate is not None and (found := cut((root.alternate,), sizes)):
        for part, (other, *more) in zip(root.parts, found, strict=True):
            if not more:
                part.alternate = other
    return root.parts


def _minor(sizes: Iterable[int]) -> list[int]:
    """Return the products of the last sizes: 1, the last one, the last two, and so on."""
    return [1, *accumulate(reversed([*sizes]), mul)]


def _divides(bounds: Sequence[int]) -> bool:
    return all(high % low == 0 for low, high in pairwise(bounds))
