"""What an op's `distribute` rule works with: a dimension that the layout splits, as the two dimensions [blocks, inner].

`blocks` has one element for each shard and is split over the same mesh axes; `inner` holds the elements of a shard and is whole.
A tensor cut that way lies where it lay before, so the reshapes there and back send nothing. What a rule then writes down in terms
of other ops, as in a program of one processor, is laid out like the rest of the program: what works along `inner` is local, what
works along `blocks` is where shards tell each other something.
"""

from __future__ import annotations

from collections.abc import Callable, Container

import attrs

from mtfc.compiler.ir.builder import Builder
from mtfc.compiler.ir.core import Equation, Value
from mtfc.compiler.ir.types import Axes, Dim, TensorType
from mtfc.compiler.passes.autodiff.backward import backward


@attrs.frozen
class Split:
    """`dim`, split over `axes` by the layout, and the two dimensions that it is cut into."""

    dim: Dim
    axes: Axes
    blocks: Dim
    inner: Dim


class NewDims:
    """Dimensions that a pass adds to a program, each under a name that follows from what it is for.

    One that is asked for again is the same, so that equations that mean the same are found to be equal. `added` holds them by
    name, with the mesh axes that are to split each.
    """

    def __init__(self, taken: Container[str]) -> None:
        self.added: dict[str, tuple[Dim, Axes]] = {}
        self._taken = taken

    def get(self, name: str, size: int, axes: Axes = ()) -> Dim:
        """The dimension `name`; `name_2` ... where another has taken the name."""
        number, wanted, found = 2, name, (Dim(name, size), axes)
        while name in self._taken or self.added.setdefault(name, found) != found:
            name, number = f"{wanted}_{number}", number + 1
            found = (Dim(name, size), axes)
        return found[0]


@attrs.frozen
class Blocks:
    """The rule's hands while it rewrites one equation.

    build: makes equations. axes: the mesh axes that the layout splits a dimension over in an equation; none where it cannot be
    split. shards: how many processors are along them. defined: the equation of the source program that defines a value, None for
    an argument. dims: makes dimensions.
    """

    build: Builder
    axes: Callable[[Equation, Dim], Axes]
    shards: Callable[[Axes], int]
    defined: Callable[[Value], Equation | None]
    dims: NewDims

    def split(self, eqn: Equation, dim: Dim) -> Split | None:
        """How the layout splits `dim` in an equation; None where it leaves it whole."""
        axes = self.axes(eqn, dim)
        if not axes:
            return None
        shards = self.shards(axes)
        blocks = self.dims.get(f"{dim.name}.blocks", shards, axes)
        return Split(dim, axes, blocks, self.part(dim, dim.size // shards))

    def part(self, dim: Dim, size: int) -> Dim:
        """A dimension for `size` of the elements of a shard of `dim`."""
        return self.dims.get(f"{dim.name}.part", size)

    def cut(self, x: Value, split: Split) -> Value:
        """`x` with [blocks, inner] in place of the dimension."""
        pairs = ((split.blocks, split.inner) if dim == split.dim else (dim,) for dim in x.type.dims)
        return self.build("reshape", x, dims=tuple(dim for pair in pairs for dim in pair))

    def first(self, split: Split) -> Value:
        """The index in the dimension of each block's first element."""
        size = self.build.constant(split.inner.size, "i32")
        return self.build("mul", self.build("range", dim=split.blocks), size)

    def merged(self, x: Value, blocks: Dim, inner: Dim, into: Dim) -> Value:
        """`x` with the dimension `into` in place of `blocks` and `inner`, which are brought next to each other."""
        dims = [dim for dim in x.type.dims if dim != blocks]
        place = dims.index(inner)
        x = self.build.ordered(x, [*dims[:place], blocks, *dims[place:]])
        return self.build("reshape", x, dims=(*dims[:place], into, *dims[place + 1 :]))

    def transposed(self, linear: Callable[[Blocks, Value], Value], type: TensorType, y: Value) -> Value:
        """The transpose of a linear map of tensors of a type, applied to `y`. What the map makes without them is kept."""
        x, build = Value("x", type), Builder(self.build.names, self.build.span, self.build.stage)
        result = linear(attrs.evolve(self, build=build), x)
        varying = {x}
        for eqn in build.body:
            if varying.isdisjoint(eqn.operands):
                self.build.append(eqn)
            else:
                varying.update(eqn.results)
        seed = self.build.ordered(y, result.type.dims)
        return backward(self.build, build.body, {result: seed}, [x])[x]
