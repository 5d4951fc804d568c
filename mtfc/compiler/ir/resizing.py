"""Programs with other dimensions, sizes of mesh axes, and numbers in attributes."""

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from mtfc.compiler.ir.builder import fresh_copy
from mtfc.compiler.ir.core import Attr, Equation, Function, Program, Update
from mtfc.compiler.ir.twins import smaller
from mtfc.compiler.ir.types import Dim, Mesh, TensorType


@attrs.frozen
class Renumbering:
    """Other numbers for a program. attributes: equation -> its attributes; dimensions and axes are changed after that.

    dim, number: return another dimension and another number.
    """

    dim: Callable[[Dim], Dim]
    number: Callable[[Any], Any] = lambda number: number
    attributes: Callable[[Equation], Mapping[str, Attr]] = lambda eqn: eqn.attrs

    def type(self, type: TensorType) -> TensorType:
        return attrs.evolve(type, dims=tuple(map(self.dim, type.dims)))

    def attribute(self, value: Any) -> Any:
        """Return an attribute with new dims and numbers, also those in tuples."""
        if isinstance(value, Dim):
            return self.dim(value)
        if isinstance(value, tuple):
            return tuple(map(self.attribute, value))
        return self.number(value)

    def function(self, function: Function) -> Function:
        """Return a copy of a function with new dims and numbers in its types and attributes."""

        def attributes(eqn: Equation) -> dict[str, Attr]:
            return {key: self.attribute(value) for key, value in self.attributes(eqn).items()}

        return fresh_copy(function, lambda value: self.type(value.type), attributes)

    def mesh(self, mesh: Mesh) -> Mesh:
        return attrs.evolve(mesh, axes=tuple((name, self.number(size)) for name, size in mesh.axes))

    def __call__(self, program: Program) -> Program:
        """Return the program with other numbers."""
        training, layout = program.training, program.layout
        if training is not None:
            updates = tuple(
                Update(each.parameters, self.function(each.function)) for each in training.updates
            )
            training = attrs.evolve(training, updates=updates, accumulate=self.number(training.accumulate))
        if layout is not None:
            pipelines = tuple(
                attrs.evolve(
                    each, micro_batches=self.number(each.micro_batches), chunks=self.number(each.chunks)
                )
                for each in layout.pipelines
            )
            layout = attrs.evolve(layout, pipelines=pipelines)
        return attrs.evolve(
            program,
            dims={name: self.dim(dim) for name, dim in program.dims.items()},
            parameters=tuple(attrs.evolve(each, type=self.type(each.type)) for each in program.parameters),
            functions=tuple(map(self.function, program.functions)),
            training=training,
            layout=layout,
            mesh=program.mesh and self.mesh(program.mesh),
        )


def smaller_program(program: Program, which: int) -> Program:
    """Return one of the smaller programs of a program whose numbers are twins."""
    sizes = {name: Dim(name, smaller(dim.size, which)) for name, dim in program.dims.items()}
    return Renumbering(lambda dim: sizes[dim.name], lambda number: smaller(number, which))(program)
