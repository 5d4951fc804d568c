"""partition-spatial: let shards compute together where the layout splits a dimension whose positions an op mixes.

An op's `distribute` rule says how, in terms of other ops on the dimension cut in two, [blocks, inner] (see `position_blocks.py`).
The rule decides what the shards send each other: the halos of a window, or the total of a cumulative sum. An op without such a
rule, and an op whose rule does not apply, keeps the dimension whole; if the layout splits the dimension, it will be gathered.

Input:   %y: f32[n] = shift %x dim=n by=1 wrap=false                                     with layout { n: all }, all: 4, n = 8
Output:  %r: f32[n.blocks, n.part] = reshape %x; %t: f32[n.blocks, n.part_2] = slice %r (the last element of each block);
         %s = shift %t dim=n.blocks by=1 wrap=false; ... %c = concat %s, %h (the others); %y: f32[n] = reshape %c
After this pass the program declares the new dimensions, and its layout has rules for those that are split.
"""

from collections.abc import Sequence
from typing import ClassVar

from mtfc.compiler.ir.builder import Builder, Rewrite, rewritten
from mtfc.compiler.ir.core import Equation, Function, Program, Value
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.types import Axes, Dim, Mesh, Rules, TensorType
from mtfc.compiler.ir.verifier import Level
from mtfc.compiler.passes.partition.layout_rules import LayoutRules
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.passes.spatial.position_blocks import NewDims, PositionBlocks
from mtfc.compiler.records import frozen


@frozen
class PartitionSpatial(Pass):
    name: ClassVar[str] = "partition-spatial"
    takes: ClassVar[tuple[Level, ...]] = ("global",)

    def run(self, program: Program) -> Program:
        """Return the program with blocks in the place of positions that the layout splits."""
        if program.mesh is None or program.layout is None:
            return program
        each = SpatialPartitioner(
            program.mesh, LayoutRules(program.mesh, program.layout), NewDims(program.dims)
        )
        return each.dims.declared_in(program.map_functions(each.function))


@frozen
class SpatialPartitioner:
    """Applies the `distribute` rules to the equations of one program."""

    mesh: Mesh
    layout_rules: LayoutRules
    dims: NewDims

    def function(self, function: Function) -> Function:
        """Rewrite a function, or the region of a loop."""
        return rewritten(function, self._rule)

    def _rule(self, function: Function) -> Rewrite:
        """Return a rewrite that replaces an equation by its op's equations on blocks, where the op has a rule for that."""
        defined = {value: eqn for eqn in function.body for value in eqn.results}

        def distributed(build: Builder, eqn: Equation) -> Sequence[Value] | None:
            """Return the results of an equation computed on blocks; None if its op has no rule for that."""
            rule = OPS[eqn.op].distribute
            blocks = PositionBlocks(build, self.axes, self.mesh.size, defined.get, self.dims)
            return rule and rule(blocks, eqn)

        return distributed

    def axes(self, eqn: Equation, dim: Dim) -> Axes:
        """Return the axes that split `dim` in an equation.

        There are none if `dim` does not divide evenly, or if another dimension of a tensor there wants one of the axes.
        """
        rules = self.layout_rules.defined(eqn)
        axes = rules.get(dim.name)
        types = [value.type for value in (*eqn.operands, *eqn.results) if dim in value.type.dims]
        free = all(set(axes).isdisjoint(_others(type, dim, rules)) for type in types)
        return axes if axes and free and dim.size % self.mesh.size(axes) == 0 else ()


def _others(type: TensorType, dim: Dim, rules: Rules) -> list[str]:
    """Return the axes that split the other dimensions of a tensor."""
    return [axis for other in type.dims if other != dim for axis in rules.get(other.name)]
