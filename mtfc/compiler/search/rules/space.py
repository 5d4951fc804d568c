"""The space of global layouts: every shape of the mesh, and every legal map from dimensions to its axes.

A layout is legal if no axis splits two dimensions of one tensor and all sizes divide (Mesh-TensorFlow paper, section 5). In one
axis's eyes a layout is a set of dimensions of which no two lie in one tensor, so a map is written as one set of axes for each
dimension, a bit mask. Several axes split a dimension in the mesh's order, the outer ones first. What loops run along stays whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import attrs

from mtfc.compiler.ir.core import Function, Value, walk
from mtfc.compiler.ir.loops import dim_of
from mtfc.compiler.ir.types import Axes, Dim, Layout, Mesh, Rules

AXES = "xyzuvw"
"""Names of mesh axes, the outermost first."""


@attrs.frozen
class Space:
    """The dimensions that may be split, and for each the numbers of those that some tensor has beside it.

    fixed: rules that are not to be chosen.
    """

    dims: tuple[Dim, ...]
    beside: tuple[frozenset[int], ...]
    fixed: Rules = Rules()  # noqa: RUF009

    def masks(self, dim: int, mesh: Mesh) -> list[int]:
        """The sets of axes that dimension number `dim` can be split over; axes of size 1 split nothing."""
        if self.dims[dim].name in self.fixed.by_dim:
            axes = self.fixed.get(self.dims[dim].name)
            return [sum(1 << mesh.names.index(axis) for axis in axes)]
        units = sum(1 << i for i, (_, size) in enumerate(mesh.axes) if size == 1)
        sets = (mask for mask in range(1 << len(mesh.axes)) if not mask & units)
        return [mask for mask in sets if self.dims[dim].size % degree(mask, mesh) == 0]


def space_of(forward: Function, fixed: Rules = Rules()) -> Space:  # noqa: B008
    """The layouts of a model's forward pass; its gradients have no tensors of other dimensions."""
    tensors = {frozenset(value.type.dims) for value in values_of(forward)}
    looped = {dim_of(eqn) for eqn in walk(forward.body) if eqn.regions}
    names = dict.fromkeys(dim for tensor in tensors for dim in tensor if dim.size > 1 and dim not in looped)
    dims = tuple(sorted(names, key=lambda dim: dim.name))
    number = {dim: i for i, dim in enumerate(dims)}
    together = [{number[dim] for dim in tensor if dim in number} for tensor in tensors]
    return Space(
        dims,
        tuple(frozenset().union(*(each for each in together if i in each)) - {i} for i in range(len(dims))),
        fixed,
    )


def values_of(function: Function) -> Iterator[Value]:
    """All values of a function, those in loops too."""
    yield from (argument.value for argument in function.arguments)
    for eqn in walk(function.body):
        yield from eqn.results
        yield from (argument.value for region in eqn.regions for argument in region.arguments)


def degree(mask: int, mesh: Mesh) -> int:
    """The processors along a set of axes."""
    return prod(size for i, (_, size) in enumerate(mesh.axes) if mask >> i & 1)


def meshes(devices: int, most_axes: int) -> Iterator[Mesh]:
    """All shapes of so many processors with up to `most_axes` axes: which axis is innermost matters, so all orders of sizes."""
    for number in range(1, most_axes + 1):
        for sizes in _factors(devices, number):
            yield Mesh("found_mesh", tuple(zip(AXES, sizes, strict=False)))


def _factors(product: int, number: int) -> Iterator[tuple[int, ...]]:
    if number == 1:
        if product > 1:
            yield (product,)
        return
    for first in range(2, product // 2 + 1):
        if product % first == 0:
            yield from ((first, *rest) for rest in _factors(product // first, number - 1))


def axes_of(mask: int, mesh: Mesh) -> Axes:
    return tuple(name for i, name in enumerate(mesh.names) if mask >> i & 1)


def layout_of(space: Space, masks: list[int], mesh: Mesh) -> Layout:
    """The layout that splits each dimension over its set of axes."""
    pairs = zip(space.dims, masks, strict=True)
    return Layout("found", Rules(tuple((dim.name, axes_of(mask, mesh)) for dim, mask in pairs if mask)))
