"""assign-layouts: give every equation the layout of its iteration space, and every argument and output a placement.

The layout of an equation is the file's layout, restricted to the equation's dimensions (Mesh-TensorFlow paper, section 5). More
rules apply:

- A `value` rule overrides the layout of the value or equation that it names.
- Equations of the update run in the layout in which the optimizer state is stored. So a gradient is scattered before them, and a
  parameter gathered after them.
- An array that only loops read, slice by slice, stays as it is stored. So it is gathered one slice at a time.
- A dimension that an op needs whole is not split.
- If two dimensions of one equation would use the same axis, one of them gives the axis up: the choice that sends the fewest
bytes.

The loop over micro-batches takes parameters as they are stored, and carries the sums of gradients as parameters are stored. A
parameter split by a rule of `params` is gathered in each micro-batch, and its gradient scattered. So memory stays that of one
micro-batch. A sum over axes that do not split the parameter stays pending, and is completed once per step.

An axis of size 1 splits nothing and is left out everywhere.

Input:   %h: f32[batch, hidden] = einsum %x, %w          with layout { batch: rows, hidden: cols }
Output:  %h: f32[batch, hidden] = einsum %x, %w  layout {batch: rows, hidden: cols}
After this pass every equation, argument and output has a layout; types are still global.
"""

from collections.abc import Iterable, Mapping
from itertools import product
from typing import ClassVar

import attrs

from mtfc.compiler.analysis.equation_names import layout_target_names
from mtfc.compiler.analysis.reshard_plans import plan
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Program, Value
from mtfc.compiler.ir.loops import (
    ROLES,
    dim_of,
    is_over_micro_batches,
    looped_dims,
    pairs,
    region_of,
    sliced_type,
)
from mtfc.compiler.ir.opdef import BY_NAME, LayoutRule
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.printer import shown_layout
from mtfc.compiler.ir.types import Axes, Dim, Layout, Mesh, Rules, TensorType
from mtfc.compiler.ir.verifier import Level
from mtfc.compiler.passes.partition.layout_rules import LayoutRules
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.records import frozen

Splits = Mapping[str, Axes]


@frozen
class AssignLayouts(Pass):
    name: ClassVar[str] = "assign-layouts"
    takes: ClassVar[tuple[Level, ...]] = ("global", "assigned")
    level: ClassVar[Level | None] = "assigned"

    def run(self, program: Program) -> Program:
        """Return the program on its mesh, whose equations, arguments and outputs have the layouts of the rules."""
        mesh, layout = program.mesh or Mesh("single", ()), program.layout or Layout("undistributed")
        placed = attrs.evolve(program, mesh=mesh, layout=layout)
        looped = frozenset[Dim]().union(*map(looped_dims, program.functions))

        def assigned(function: Function) -> Function:
            """Return a function whose equations have their layouts."""
            names = layout_target_names(function)
            layout_rules = LayoutRules(mesh, layout, names, looped, function)
            return LayoutAssigner(mesh, layout_rules).function(function)

        return placed.map_functions(assigned)


def only_sliced(function: Function) -> set[Value]:
    """Return the values that only loops use, slice by slice, such as the cast parameters of all layers."""
    sliced: set[Value] = set()
    others = {output.value for output in function.outputs}
    for eqn in function.body:
        roles = [a.role for a in region_of(eqn).arguments] if eqn.regions else [""] * len(eqn.operands)
        for value, role in zip(eqn.operands, roles, strict=True):
            (sliced if role == "sliced" else others).add(value)
    return sliced - others


class LayoutAssigner:
    """Assigns layouts to one function, in order of definition."""

    def __init__(self, mesh: Mesh, layout_rules: LayoutRules) -> None:
        """Start with nothing placed.

        placed: the type of each value so far. sliced: the values that only loops use, slice by slice. kept: start or update
        of a sum of gradients -> the layout of the sum.
        """
        self.mesh, self.layout_rules = mesh, layout_rules
        self.placed: dict[Value, TensorType] = {}
        self.sliced: set[Value] = set()
        self.kept: dict[Value, Splits] = {}

    def function(self, function: Function) -> Function:
        """Return a function, or a loop's region, with layouts."""
        arguments = tuple(self._argument(argument) for argument in function.arguments)
        self.sliced |= only_sliced(function)
        for eqn in filter(is_over_micro_batches, function.body):
            self.kept |= {operand: self._summed(a) for operand, a in pairs(eqn) if a.role == "carried"}
        body = tuple(self._loop(eqn) if eqn.regions else self._equation(eqn) for eqn in function.body)
        replaced = {argument.value.name: argument for argument in arguments}
        outputs = tuple(self._output(output, replaced) for output in function.outputs)
        return attrs.evolve(function, arguments=arguments, body=body, outputs=outputs)

    def _restrict(self, type: TensorType, rules: Rules) -> dict[str, Axes]:
        """Return the axes that rules give to the dimensions of a type."""
        return {dim.name: rules.get(dim.name) for dim in type.dims if rules.get(dim.name)}

    def _argument(self, argument: Argument) -> Argument:
        """Return an argument with its layout: the one that it has, or the one that it is stored in."""
        type = argument.value.type
        layout = argument.layout
        if layout is None:
            layout = self._restrict(type, self.layout_rules.stored(argument))
        layout = self._legal(type, layout) if argument.role in ROLES else layout
        self.placed[argument.value] = type.split_by(layout)
        return attrs.evolve(argument, layout=layout)

    def _output(self, output: Output, arguments: Mapping[str, Argument]) -> Output:
        """Place an update as the argument that it replaces, and any other output as it is computed, unless a rule names it."""
        rules = self.layout_rules.own(output)
        if rules is None:
            if output.updates is None:
                return attrs.evolve(output, layout=shown_layout(self.placed[output.value]))
            layout = arguments[output.updates].layout or {}
        else:
            layout = self._restrict(output.value.type, rules)
        return attrs.evolve(output, layout=self._legal(output.value.type, layout))

    def _loop(self, eqn: Equation) -> Equation:
        """Return a loop whose region has layouts. Sums over micro-batches keep the layout that they arrive with."""
        over_micro_batches, dim = is_over_micro_batches(eqn), dim_of(eqn)
        arguments = tuple(self._arriving(o, a, dim, over_micro_batches) for o, a in pairs(eqn))
        if over_micro_batches:
            layouts = {a.value.name: a.layout for a in arguments if a.role == "carried"}
            self.kept |= {o.value: layouts[o.updates] or {} for o in region_of(eqn).outputs if o.updates}
        region = self.function(attrs.evolve(region_of(eqn), arguments=arguments))
        for result, output in zip(eqn.results, region.outputs, strict=True):
            self.placed[result] = result.type.split_by(output.layout or {})
        return attrs.evolve(eqn, regions=(region,), layout={})

    def _arriving(self, operand: Value, argument: Argument, dim: Dim, over_micro_batches: bool) -> Argument:
        """Place a loop's argument; a slice is placed as the whole array is, with the loop's own dimension not split."""
        if argument.role == "sliced":
            return attrs.evolve(argument, layout=shown_layout(sliced_type(self.placed[operand], dim)))
        if not over_micro_batches or self.layout_rules.own(argument) is not None:
            return argument
        if argument.role == "invariant":
            return attrs.evolve(argument, layout=shown_layout(self.placed[operand]))
        return attrs.evolve(argument, layout=self._summed(argument))

    def _summed(self, argument: Argument) -> Splits:
        """Return the layout of a sum of gradients over micro-batches: the layout of a parameter with these dimensions."""
        type = argument.value.type
        return self._legal(type, self._restrict(type, self.layout_rules.parameter(type)))

    def _equation(self, eqn: Equation) -> Equation:
        """Return an equation with its layout.

        Without a rule of its own, an equation that only passes on a slice has the operand's layout, and the new value of a kept
        sum has the sum's. Other equations have what the rules want, with no axis used twice.
        """
        rule = OPS[eqn.op].layout_rule(eqn)
        is_free = rule is BY_NAME and self.layout_rules.own(eqn) is None
        if is_free and len(eqn.operands) == 1 and self.sliced.issuperset(eqn.results):
            layout = shown_layout(self.placed[eqn.operands[0]])
        elif is_free and eqn.results[0] in self.kept:
            layout = dict(self.kept[eqn.results[0]])
        else:
            layout = self._injective(eqn, rule, self._wanted(eqn, rule))
        for value in eqn.results:
            self.placed[value] = value.type.split_by(layout)
        return attrs.evolve(eqn, layout=layout)

    def _wanted(self, eqn: Equation, rule: LayoutRule) -> dict[str, Axes]:
        """Return the rules for the iteration space, as far as the op and the operands' sizes allow them."""
        own, rules = self.layout_rules.defined(eqn), self.layout_rules.reduced(eqn)
        dims = [dim for value in eqn.results for dim in value.type.dims]
        wanted = {
            dim.name: own.get(dim.name) for dim in dims if rule.allows(dim, own.get(dim.name), self.mesh)
        }
        wanted.update({dim.name: rules.get(dim.name) for dim in rule.reduced})
        return {
            name: axes
            for name, axes in wanted.items()
            if axes and rule.divides(eqn.operands, {name: axes}, self.mesh)
        }

    def _injective(self, eqn: Equation, rule: LayoutRule, wanted: dict[str, Axes]) -> dict[str, Axes]:
        """Leave each axis of `wanted` to one dimension, by the choice that sends the fewest bytes."""
        users: dict[str, list[str]] = {}
        for dim, axes in wanted.items():
            for axis in axes:
                users.setdefault(axis, []).append(dim)
        contested = [axis for axis, dims in users.items() if len(dims) > 1]
        if not contested:
            return wanted
        choices = [
            self._allowed(eqn, rule, _without(wanted, contested, winners))
            for winners in product(*(users[axis] for axis in contested))
        ]
        return min(choices, key=lambda layout: self._sent(eqn, rule, layout, wanted))

    def _allowed(self, eqn: Equation, rule: LayoutRule, layout: Splits) -> dict[str, Axes]:
        """Return `layout` without the dimensions that the op cannot compute in these parts."""
        results = {dim.name: dim for value in eqn.results for dim in value.type.dims}
        return {
            name: axes
            for name, axes in layout.items()
            if name not in results or rule.allows(results[name], axes, self.mesh)
        }

    def _sent(self, eqn: Equation, rule: LayoutRule, layout: Splits, wanted: Splits) -> float:
        """Return the bytes that a processor sends to place the operands for `layout` and then the results for `wanted`."""
        pairs: list[tuple[TensorType, TensorType]] = []
        for value in eqn.operands:
            needed = {dim.name: rule.operand_axes(dim.name, layout) for dim in value.type.dims}
            pairs.append((self.placed[value], value.type.split_by(needed)))
        for value in eqn.results:
            reduced = [axis for dim in rule.reduced for axis in layout.get(dim.name, ())]
            made = value.type.split_by(layout, self.mesh.ordered(reduced), rule.reduction)
            pairs.append((made, value.type.split_by(self._legal(value.type, wanted))))
        return sum(plan(source, target, self.mesh)[0] for source, target in pairs)

    def _legal(self, type: TensorType, wanted: Splits) -> dict[str, Axes]:
        """Return `wanted` for one tensor; an axis that two of its dims want goes to the first."""
        taken: set[str] = set()
        legal: dict[str, Axes] = {}
        for dim in type.dims:
            axes = tuple(axis for axis in wanted.get(dim.name, ()) if axis not in taken)
            legal |= {dim.name: axes} if axes else {}
            taken.update(axes)
        return legal


def _without(wanted: Splits, contested: Iterable[str], winners: Iterable[str]) -> dict[str, Axes]:
    """Return wanted splits, in which each contested axis only splits the dimension that won it."""
    winner = dict(zip(contested, winners, strict=True))
    kept = {d: tuple(axis for axis in axes if winner.get(axis, d) == d) for d, axes in wanted.items()}
    return {dim: axes for dim, axes in kept.items() if axes}
