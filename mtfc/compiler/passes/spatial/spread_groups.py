"""spread-groups: let each processor compute the rows of its own groups, where the layout splits the groups of a grouped dot.

A grouped dot (`ir/ops/contraction.py`) whose groups are split gives each row on one processor, and zeros on the others: a sum is
pending. What follows, such as a ReLU, would need the whole sum, and the next grouped dot needs only rows of its own groups.
So the groups are cut into [blocks, inner], where `blocks` are the shards, and values get a *part* for each block: a second value
with the dimension `blocks`, right where a row belongs to the block, and arbitrary elsewhere. An equation that keeps the rows has
the same equation for the parts. A grouped dot over the same numbers reads parts, and selects the rows of each block. Other uses
read the value itself, the sum of the dots over blocks. Linear equations that follow a dot come before this sum, where they make
it no larger. `dce` then drops the values and the parts that nothing uses.

Where the layout splits rows and groups over the same axes, either the rows travel, or the parameters of the groups. Rows do if
they are much smaller: a processor then has arrays for the rows of all processors along the axes. Rows that travel get a dimension
of another name, which the layout does not split: they are gathered, and the sum over blocks becomes a reduce-scatter.

Input:   %h = grouped_dot %x, %w, %n group=experts; %r = relu %h; %y = grouped_dot %r, %v, %n group=experts
                                                                                             with layout { experts: all }
Output:  %n_2 = sub %n, (the first number of each block); %p: f32[experts.blocks, rows, io] = grouped_dot %x, (%w, cut), %n_2;
         %q = relu %p; %s = grouped_dot %q, (%v, cut), %n_2 group=experts.part; %y = sum %s over=[experts.blocks]
After this pass no groups of a grouped dot are split, unless rows are split over the same axes, and parameters travel.
"""

from collections.abc import Iterable, Mapping
from math import inf, prod
from typing import Any, ClassVar

import attrs

from mtfc.compiler.ir.builder import Builder, Names, names_of
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Program, Value
from mtfc.compiler.ir.loops import by_role, dim_of, make_loop, pairs, region_of, sliced_type
from mtfc.compiler.ir.micro_batch_rule import LISTS_OF_DIMS, REDUCED
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.ops.contraction import GROUP, RESULT_DIMS
from mtfc.compiler.ir.sharding_rules import linear_groups
from mtfc.compiler.ir.types import ITEM_BYTES, Axes, Dim, TensorType
from mtfc.compiler.ir.verifier import Level
from mtfc.compiler.passes.partition.layout_rules import LayoutRules
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.passes.spatial.partition_spatial import SpatialPartitioner
from mtfc.compiler.passes.spatial.position_blocks import NewDims
from mtfc.compiler.records import frozen


@frozen
class SpreadGroups(Pass):
    """rows: if the parameters of groups have more than `rows` times as many elements as the rows, the rows travel.

    The entry `groups` of a layout's `forms` decides instead, if it is there.
    """

    name: ClassVar[str] = "spread-groups"
    takes: ClassVar[tuple[Level, ...]] = ("global",)

    rows: int = 4

    def run(self, program: Program) -> Program:
        """Return the program with spread groups, by the layout's form or the option."""
        if program.mesh is None or program.layout is None:
            return program
        dims = NewDims(program.dims)
        rules = SpatialPartitioner(program.mesh, LayoutRules(program.mesh, program.layout), dims)
        factor = {"rows": 0.0, "parameters": inf}.get(program.layout.forms.groups, self.rows)
        spread = program.map_functions(lambda each: GroupSpreader(rules, factor).function(each))
        return dims.declared_in(spread)


@frozen
class BlockRows:
    """The rows that parts are right for: those whose number is in the block.

    numbers: see `GroupSpreader.same`. dims: of the rows. new: dimensions with other names in the parts: old -> new.
    """

    numbers: Value
    dims: frozenset[Dim]
    group: Dim
    blocks: Dim
    new: tuple[tuple[Dim, Dim], ...]

    def renamed(self, dims: Iterable[Dim]) -> tuple[Dim, ...]:
        return tuple(dict(self.new).get(dim, dim) for dim in dims)


@frozen
class BlockPart:
    """The value that stands for another one on each block. is_zero: True if it is 0 in rows of other blocks."""

    value: Value
    rows: BlockRows
    is_zero: bool


@frozen
class GroupSpreader:
    """Spreads the groups of one function.

    factor: see `SpreadGroups`. defined: value -> its equation. parts: value -> its part. decided: (numbers, group) -> True if
    rows travel. same: argument of a region, or result of a loop -> the value that it is a slice, a copy or a stack of, so that a
    loop of the backward pass knows the numbers of the forward pass.
    """

    rules: SpatialPartitioner
    factor: float
    defined: dict[Value, Equation] = attrs.field(factory=dict)
    parts: dict[Value, BlockPart] = attrs.field(factory=dict)
    same: dict[Value, Value] = attrs.field(factory=dict)
    decided: dict[tuple[Value, Dim], bool] = attrs.field(factory=dict)

    def function(self, function: Function) -> Function:
        """Rewrite a function, or the region of a loop."""
        build = Builder(names_of(function))
        for eqn in function.body:
            build.span, build.stage = eqn.span, eqn.stage
            self.defined.update(dict.fromkeys(eqn.results, eqn))
            if eqn.regions:
                self._loop(build, eqn)
            elif not self._grouped(build, eqn) and not self._linear(build, eqn):
                build.append(eqn)
                self._alike(build, eqn)
        return attrs.evolve(function, body=tuple(build.body))

    def _grouped(self, build: Builder, eqn: Equation) -> bool:
        """Append a grouped dot on blocks, and the value that it stands for. Return False if the groups are not split."""
        rows = self._rows(eqn) if has_trait(eqn, "groups") else None
        if rows is None:
            return False
        inner = self.rules.dims.get(f"{rows.group.name}.part", rows.group.size // rows.blocks.size)
        cut = {rows.group: (rows.blocks, inner)}
        x, y = (self._read(build, value, rows) for value in eqn.operands[:2])
        numbers = self._numbers(build, eqn.operands[2], rows, inner)
        dims = RESULT_DIMS.of(eqn.attrs)
        if rows.group in y.type.dims:
            y = build("reshape", y, dims=_replaced(y.type.dims, cut))
            wanted = (rows.blocks, *rows.renamed(dims))
            part = BlockPart(build("grouped_dot", x, y, numbers, dims=wanted, group=inner), rows, True)
            self._sum(build, eqn, part)
        else:
            wanted = _replaced(rows.renamed(dims), cut)
            found = build("grouped_dot", x, y, numbers, dims=wanted, group=inner)
            found = _renamed(build, found, {new: old for old, new in rows.new})
            build.append(attrs.evolve(eqn, op="reshape", operands=(found,), attrs={"dims": dims}))
        return True

    def _rows(self, eqn: Equation) -> BlockRows | None:
        """Return the rows of blocks of a grouped dot, or None if its groups stay together."""
        group, numbers = GROUP.of(eqn.attrs), self.same.get(eqn.operands[2], eqn.operands[2])
        axes, layout = self.rules.axes(eqn, group), self.rules.layout_rules.defined(eqn)
        if not axes:
            return None
        parameters = next(each for each in (eqn.operands[1], eqn.result) if group in each.type.dims).type
        dims = dict.fromkeys(dim for value in (*eqn.operands, eqn.result) for dim in value.type.dims)
        shared = [dim for dim in dims if dim != group and not set(axes).isdisjoint(layout.get(dim.name))]
        if shared:
            of_rows, of_groups = (
                self._gathered_size(each, axes) for each in (eqn.operands[0].type, parameters)
            )
            if not self.decided.setdefault((numbers, group), self.factor * of_rows < of_groups):
                return None
        blocks = self.rules.dims.get(f"{group.name}.blocks", self.rules.mesh.size(axes), axes)
        new = tuple((dim, self._gathered(dim, axes, layout.get(dim.name))) for dim in shared)
        return BlockRows(numbers, frozenset(eqn.operands[2].type.dims), group, blocks, new)

    def _gathered(self, dim: Dim, axes: Axes, split: Axes) -> Dim:
        return self.rules.dims.get(f"{dim.name}.all", dim.size, tuple(a for a in split if a not in axes))

    def _gathered_size(self, type: TensorType, axes: Axes) -> int:
        """Return the elements that a processor has after a tensor was gathered over the axes."""
        rules, mesh = self.rules.layout_rules.compute, self.rules.mesh
        split = [tuple(a for a in rules.get(dim.name) if a not in axes) for dim in type.dims]
        return prod(dim.size for dim in type.dims) // prod(map(mesh.size, split))

    def _numbers(self, build: Builder, numbers: Value, rows: BlockRows, inner: Dim) -> Value:
        """Return the numbers of groups within each block; they are out of range for rows of other blocks."""
        first = build("mul", build("range", dim=rows.blocks), build.constant(inner.size, "i32"))
        numbers = _renamed(build, numbers, dict(rows.new))
        type = TensorType("i32", (rows.blocks, *numbers.type.dims))
        return build("sub", build.broadcast(numbers, type), build.broadcast(first, type))

    def _read(self, build: Builder, value: Value, rows: BlockRows) -> Value:
        """Return the part of a value, or the value with the names of its dimensions in parts.

        An equation that repeats its operands is computed again, so that the operands travel, and not the larger result.
        """
        part, eqn = self.parts.get(value), self.defined.get(value)
        if part is not None and part.rows == rows:
            return part.value
        repeats = eqn is not None and _is_alike(eqn) and sum(map(_size, eqn.operands)) < _size(value)
        if eqn is not None and repeats and rows.new and len(eqn.results) == 1:
            return self._of_parts(build, eqn, rows)
        return _renamed(build, value, dict(rows.new))

    def _sum(self, build: Builder, eqn: Equation, part: BlockPart) -> None:
        """Append the sum over blocks as the result of an equation."""
        self.parts[eqn.result] = part
        old, over = {new: old for old, new in part.rows.new}, (part.rows.blocks,)
        mapping = tuple((dim, old[dim]) for dim in part.value.type.dims if dim in old)
        if not mapping:
            build.append(attrs.evolve(eqn, op="sum", operands=(part.value,), attrs={"over": over}))
            return
        total = build("sum", part.value, over=over)
        build.append(attrs.evolve(eqn, op="rename", operands=(total,), attrs={"mapping": mapping}))

    def _linear(self, build: Builder, eqn: Equation) -> bool:
        """Append a linear equation before the sum over blocks. Return False if it is not linear, or if more would travel."""
        terms = [
            i for i, value in enumerate(eqn.operands) if value in self.parts and self.parts[value].is_zero
        ]
        if len(terms) != 1 or (terms[0],) not in linear_groups(OPS[eqn.op], eqn) or not _is_alike(eqn):
            return False
        operand = eqn.operands[terms[0]]
        others = [value for value in (*eqn.operands, eqn.result) if value is not operand]
        if sum(map(_size, others)) > _size(operand):
            return False
        rows = self.parts[operand].rows
        self._sum(build, eqn, BlockPart(self._of_parts(build, eqn, rows), rows, True))
        return True

    def _alike(self, build: Builder, eqn: Equation) -> None:
        """Append the same equation for the parts of its operands, if it keeps their rows."""
        found = {part.rows for value in eqn.operands if (part := self.parts.get(value)) is not None}
        if len(found) != 1 or len(eqn.results) != 1 or not _is_alike(eqn):
            return
        (rows,) = found
        read = [value for value in eqn.operands if value in self.parts]
        if all(rows.dims <= {*value.type.dims} for value in (*read, eqn.result)):
            self.parts[eqn.result] = BlockPart(self._of_parts(build, eqn, rows), rows, False)

    def _of_parts(self, build: Builder, eqn: Equation, rows: BlockRows) -> Value:
        """Append an equation that computes on parts of its operands, where they have parts, as `eqn` computes on whole
        values.
        """
        operands = [self._read(build, value, rows) for value in eqn.operands]
        blocks = (rows.blocks,) if any(rows.blocks in value.type.dims for value in operands) else ()
        attributes: dict[str, Any] = dict(eqn.attrs)
        for key in {*LISTS_OF_DIMS, REDUCED} & attributes.keys():
            attributes[key] = (*(() if key == REDUCED else blocks), *rows.renamed(attributes[key]))
        needed = {*rows.renamed(eqn.result.type.dims), *(() if has_trait(eqn, "dot") else blocks)}
        if blocks and not any(needed <= {*value.type.dims} for value in operands):
            operands = [
                x if rows.blocks in x.type.dims else build("broadcast", x, dims=(rows.blocks, *x.type.dims))
                for x in operands
            ]
        return build(eqn.op, *operands, **attributes)

    def _loop(self, build: Builder, eqn: Equation) -> None:
        """Append a loop that also takes the parts of operands, and yields the parts of outputs."""
        given = self._loop_operands(eqn)
        region = attrs.evolve(region_of(eqn), arguments=tuple(argument for _, argument in given))
        region = self.function(region)
        yielded = [output for output in region.outputs if output.updates is None]
        whole = [output for output in yielded if self._is_whole(output.value)]
        taken = Names(output.name for output in region.outputs)
        more = tuple(Output(taken.fresh(o.name), self.parts[o.value].value) for o in whole)
        region = attrs.evolve(region, outputs=(*region.outputs, *more))
        loop = make_loop(build.names, region, [operand for operand, _ in given], eqn, eqn.results)
        build.append(loop)
        results = dict(zip((output.name for output in region.outputs), loop.results, strict=True))
        for output in yielded:
            self.same[results[output.name]] = self.same.get(output.value, output.value)
        for output, new in zip(whole, more, strict=True):
            part = self.parts[output.value]
            rows = attrs.evolve(part.rows, dims=part.rows.dims | {dim_of(eqn)})
            self.parts[results[output.name]] = BlockPart(results[new.name], rows, part.is_zero)

    def _loop_operands(self, eqn: Equation) -> list[tuple[Value, Argument]]:
        """Return the operands and arguments of a loop; parts of operands stand behind the operands of the same role."""
        found, names = list(pairs(eqn)), names_of(region_of(eqn))
        for operand, argument in pairs(eqn):
            if argument.role == "carried":
                continue
            self.same[argument.value] = self.same.get(operand, operand)
            if self._is_whole(operand):
                outer, dim = self.parts[operand], dim_of(eqn) if argument.role == "sliced" else None
                inner = _inside(outer, names.fresh(argument.value.name), dim)
                self.parts[argument.value] = inner
                found.append((outer.value, Argument(inner.value, argument.role)))
        return by_role(found)

    def _is_whole(self, value: Value) -> bool:
        """Return True if a value has a part with all rows."""
        part = self.parts.get(value)
        return part is not None and part.rows.dims <= {*value.type.dims}


def _inside(part: BlockPart, name: str, dim: Dim | None) -> BlockPart:
    """Return the part as an argument of a region, where it is a slice along `dim`, if any."""
    type, dims = part.value.type, part.rows.dims
    if dim is not None:
        type, dims = sliced_type(type, dim), dims - {dim}
    return attrs.evolve(part, value=Value(name, type), rows=attrs.evolve(part.rows, dims=dims))


def _size(value: Value) -> int:
    """Return the bytes of a value."""
    return prod(dim.size for dim in value.type.dims) * ITEM_BYTES[value.type.dtype]


def _is_alike(eqn: Equation) -> bool:
    """Return True if an equation treats the dimensions of its operands alike, but for those that it reduces."""
    if eqn.regions:
        return False
    rule = OPS[eqn.op].layout_rule(eqn)
    return not (rule.index or rule.whole or rule.single or has_trait(eqn, "random", "groups", "rename"))


def _replaced(dims: Iterable[Dim], new: Mapping[Dim, tuple[Dim, ...]]) -> tuple[Dim, ...]:
    return tuple(each for dim in dims for each in new.get(dim, (dim,)))


def _renamed(build: Builder, x: Value, new: Mapping[Dim, Dim]) -> Value:
    mapping = tuple((dim, new[dim]) for dim in x.type.dims if dim in new)
    return build("rename", x, mapping=mapping) if mapping else x
