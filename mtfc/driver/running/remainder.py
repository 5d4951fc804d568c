"""Compile the same file a second time, for a last batch of data with fewer rows.

A mask would have to reach every operation that adds up rows. With another size of the dimension, means, derived sizes and the
split of the layout follow by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain

import attrs

from mtfc.compiler.diagnostics import CompileError, Diagnostics
from mtfc.compiler.ir.core import Function, Program, walk
from mtfc.compiler.ir.types import Dim, Layout, Mesh, Rules, TensorType
from mtfc.driver.data.inputs import inputs_of, joined_axis
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.multi_mesh_case import MultiMeshCase
from mtfc.driver.loading.selection import Case, LayoutOnMesh, Selection, choose
from mtfc.driver.loading.sources import Sources, known_as
from mtfc.frontend.semantics.names.modules import declarations_of
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.parser import parse


@attrs.frozen(slots=False)
class Resizing:
    """Compiles a selection again, with another size of one dimension."""

    path: str
    choice: Choice
    sources: Sources
    selection: Selection

    def refusal(self, dim: Dim, inputs: Sequence[str], joined: bool = False) -> str | None:
        """Return the reason why `dim` cannot have that size in these inputs with all other sizes unchanged; None if it can.

        `joined`: the outputs of all batches must fit together along the dimension.
        """
        if dim.name not in self._plain:
            return f"the file does not declare `{dim.name}` as a number"
        try:
            resized = self.program(dim)
        except CompileError as error:
            return f"with `{dim.name}` of {dim.size}, {error.diagnostics[0].message}"
        before = self.selection.program
        found = chain(
            _conflicts(before, resized, dim.name, inputs), _apart(before, resized, dim.name) if joined else ()
        )
        return next(found, None)

    @cached_property
    def _file(self) -> str:
        return known_as(self.path)

    @cached_property
    def _plain(self) -> frozenset[str]:
        """The dimensions whose size is a number in the file."""
        decls = declarations_of(parse(self.sources.texts[self._file], self._file, Diagnostics()), ast.DimDecl)
        return frozenset(decl.name.text for decl in decls if isinstance(decl.size, ast.Int))

    def program(self, dim: Dim) -> Program:
        """Return the undistributed model with that size. Raises `CompileError`."""
        dims = {**self.choice.dims, dim.name: dim.size}
        choice = attrs.evolve(self.choice, layout=None, mesh=None, dims=dims)
        text, neighbour = self.sources.texts[self._file], self.sources.neighbour
        return choose(text, self._file, choice, neighbour=neighbour, skip_illegal=True).program

    def case(self, program: Program) -> Case:
        """Return the first case of the selection, without the rules that cannot split this program's dimensions evenly.

        A layout never changes a result. A placement leaves out such splits by itself.
        """
        case = self.selection.case
        if isinstance(case, MultiMeshCase):
            rules = zip(case.declared.parts, case.rules, strict=True)
            sizes = _sizes(program)
            return attrs.evolve(case, rules=tuple(dividing(each, part.mesh, sizes) for part, each in rules))
        if not isinstance(case, LayoutOnMesh):
            return case
        return LayoutOnMesh(case.mesh, dividing(case.layout, case.mesh, _sizes(program)))


def _conflicts(program: Program, resized: Program, dim: str, inputs: Sequence[str]) -> Iterator[str]:
    """Yield the reasons why data and parameters of `program` do not fit `resized`."""
    for before, after in zip(program.parameters, resized.parameters, strict=True):
        if before.type != after.type:
            yield f"the shape of parameter `{before.name}` depends on `{dim}`"
    types = _types(resized.function("forward"))
    for name, type in _types(program.function("forward")).items():
        if name in inputs and type.names[0] != dim:
            yield f"the first dimension of `{name}` is `{type.names[0]}`, and not `{dim}`"
        elif name not in inputs and type != types[name]:
            yield f"the shape of `{name}` depends on `{dim}`, and its array holds one batch"
        elif name in inputs and type.dims[1:] != types[name].dims[1:]:
            yield f"a further dimension of `{name}` depends on `{dim}`"


def _apart(program: Program, resized: Program, dim: str) -> Iterator[str]:
    """Yield the outputs that cannot be joined along the dimension."""
    types = {output.name: output.value.type for output in resized.function("forward").handed_out}
    for output in program.function("forward").handed_out:
        before, after = list(output.value.type.dims), list(types[output.name].dims)
        axis = joined_axis(output.value.type, {dim})
        if [*before[:axis], *before[axis + 1 :]] != [*after[:axis], *after[axis + 1 :]]:
            yield f"a further dimension of output `{output.name}` depends on `{dim}`"


def _types(function: Function) -> dict[str, TensorType]:
    return {argument.value.name: argument.value.type.unsplit() for argument in inputs_of(function)}


def _sizes(program: Program) -> dict[str, int]:
    """Return every dimension of the program, including dimensions that functions declare."""
    function = program.function("forward")
    arguments = [argument.value for argument in function.arguments]
    values = (*arguments, *(value for eqn in walk(function.body) for value in eqn.results))
    return {dim.name: dim.size for value in values for dim in value.type.dims}


def dividing(layout: Layout, mesh: Mesh, sizes: Mapping[str, int]) -> Layout:
    """Return the layout without the rules whose axes do not divide the dimension."""

    def kept(rules: Rules) -> Rules:
        return Rules(
            tuple((dim, axes) for dim, axes in rules.axes if not sizes.get(dim, 0) % mesh.size(axes))
        )

    values = tuple((path, kept(rules)) for path, rules in layout.values)
    return attrs.evolve(
        layout,
        rules=kept(layout.rules),
        params=kept(layout.params),
        optimizer=kept(layout.optimizer),
        values=values,
    )
