"""The working material of `distribute` rules: a dimension that the layout splits, cut into the two dimensions [blocks, inner].

`blocks` has one element for each shard, and is split over the same mesh axes. `inner` holds the elements of a shard, and is
whole. A tensor that is cut that way stays where it is, so the reshapes there and back send nothing. A rule then writes the op in
terms of other ops, as for one processor. The layout applies to them as to the rest of the program: an op along `inner` is local,
and an op along `blocks` lets shards communicate.
"""

from collections.abc import Callable, Container

import attrs

from mtfc.compiler.ir.builder import Builder
from mtfc.compiler.ir.core import Equation, Program, Value
from mtfc.compiler.ir.opdef import BlockRewriter, Split
from mtfc.compiler.ir.types import Axes, Dim, Rules, TensorType
from mtfc.compiler.passes.autodiff.backward import backward
from mtfc.compiler.records import frozen


class NewDims:
    """The dimensions that a pass adds to a program; `added` maps the name of each to it and the mesh axes that will split it.

    The name says what the dimension is for. A request for the same name, size and axes gives the same dimension, so that `cse`
    finds equal equations.
    """

    def __init__(self, taken: Container[str]) -> None:
        self.added: dict[str, tuple[Dim, Axes]] = {}
        self._taken = taken

    def get(self, name: str, size: int, axes: Axes = ()) -> Dim:
        """Return the dimension `name`, or `name_2` ... if another dimension has the name."""
        number, wanted, found = 2, name, (Dim(name, size), axes)
        while name in self._taken or self.added.setdefault(name, found) != found:
            name, number = f"{wanted}_{number}", number + 1
            found = (Dim(name, size), axes)
        return found[0]

    def declared_in(self, program: Program) -> Program:
        """Return the program with the added dimensions, and with rules of its layout that split them."""
        dims = {name: dim for name, (dim, _) in self.added.items()}
        layout = program.layout
        if layout is not None:
            blocks = Rules(tuple((name, axes) for name, (_, axes) in self.added.items() if axes))
            layout = attrs.evolve(layout, blocks=layout.blocks.override(blocks))
        return attrs.evolve(program, dims={**program.dims, **dims}, layout=layout)


@frozen
class PositionBlocks:
    """The `BlockRewriter` of one equation.

    build: makes equations.
    axes: (equation, dimension) -> the mesh axes over which the layout splits the dimension there; none if it cannot be split.
    shards: mesh axes -> the number of processors along them.
    defined: value -> the equation of the source program that defines it; None for an argument.
    dims: makes dimensions.
    """

    build: Builder
    axes: Callable[[Equation, Dim], Axes]
    shards: Callable[[Axes], int]
    defined: Callable[[Value], Equation | None]
    dims: NewDims

    def split(self, eqn: Equation, dim: Dim) -> Split | None:
        """Return how the layout splits `dim` in an equation, or None if it leaves `dim` whole."""
        axes = self.axes(eqn, dim)
        if not axes:
            return None
        shards = self.shards(axes)
        blocks = self.dims.get(f"{dim.name}.blocks", shards, axes)
        return Split(dim, axes, blocks, self.part(dim, dim.size // shards))

    def part(self, dim: Dim, size: int) -> Dim:
        """Return a dimension for `size` of the elements of a shard of `dim`."""
        return self.dims.get(f"{dim.name}.part", size)

    def new_dim(self, name: str, size: int, axes: Axes) -> Dim:
        return self.dims.get(name, size, axes)

    def cut(self, x: Value, split: Split) -> Value:
        """Reshape `x`: [blocks, inner] take the place of the dimension."""
        pairs = ((split.blocks, split.inner) if dim == split.dim else (dim,) for dim in x.type.dims)
        return self.build("reshape", x, dims=tuple(dim for pair in pairs for dim in pair))

    def first(self, split: Split) -> Value:
        """Return the index of each block's first element in the whole dimension, i32[blocks]."""
        size = self.build.constant(split.inner.size, "i32")
        return self.build("mul", self.build("range", dim=split.blocks), size)

    def merged(self, x: Value, blocks: Dim, inner: Dim, into: Dim) -> Value:
        """Bring `blocks` next to `inner`, and reshape: `into` takes the place of the two."""
        dims = [dim for dim in x.type.dims if dim != blocks]
        place = dims.index(inner)
        x = self.build.ordered(x, [*dims[:place], blocks, *dims[place:]])
        return self.build("reshape", x, dims=(*dims[:place], into, *dims[place + 1 :]))

    def transposed(
        self, linear: Callable[[BlockRewriter, Value], Value], type: TensorType, y: Value
    ) -> Value:
        """Apply the transpose of a linear map of tensors of `type` to `y`. The map's equations that use no tensor are kept."""
        x, build = Value("x", type), Builder(self.build.names, self.build.span, self.build.stage)
        result = linear(attrs.evolve(self, build=build), x)
        varying = {x}
        for eqn in build.body:
            if varying.isdisjoint(eqn.operands):
                self.build.append(eqn)
            else:
                varying.update(eqn.results)
        seed = self.build.ordered(y, result.type.dims)
        return backward(self.build, build.body, {result: seed}, [x], dtypes=[type.dtype])[x]
