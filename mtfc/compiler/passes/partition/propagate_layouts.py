"""propagate-layouts: run an equation in the layout that its uses need, or its operand has, if that sends or computes less.

The layout rules also place intermediate values, whose placement does not matter to the user. Between two renames, for example,
the rules may leave a tensor whole on every processor. That takes an all-gather and then a slice; one all-to-all would do.

Equations are visited from last to first, so that a chain follows its end. A reshape or interleave whose operand changes is
visited again, as it may now follow the operand. Three kinds of equations keep the layout of the rules: equations that reduce a
dimension, equations that may add pending sums, which `place-reductions` completes together, and casts of pending sums that are to
be completed in the wider dtype. A loop's yielded output takes the placement that all uses of the stack need, if that is smaller.
So a gradient is scattered layer by layer. An output that replaces an argument is a use, too.

Input:   %r: f32[c, b] = rename %x (a -> c) layout {}; %s: f32[c, d] = rename %r (b -> d) layout {d: all}       x is [a{all}, b]
Output:  %r: f32[c, b] = rename %x (a -> c) layout {b: all}; %s: f32[c, d] = rename %r (b -> d) layout {d: all}
After this pass no such equation would send less, and compute no more, in the layout of its uses; types are still global.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import ClassVar

import attrs

from mtfc.compiler.analysis.equation_names import LayoutTarget, layout_target_names
from mtfc.compiler.analysis.pending_values import axes_pending
from mtfc.compiler.analysis.reshard_plans import needed_type, plan
from mtfc.compiler.ir.core import Equation, Function, Output, Program, Value, walk
from mtfc.compiler.ir.loops import dim_of, region_of, sliced_type
from mtfc.compiler.ir.opdef import BY_NAME, Trait
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.printer import shown_layout
from mtfc.compiler.ir.sharding_rules import (
    IsPending,
    OperandGroup,
    is_cast_of_terms,
    passing_groups,
    pending_groups,
    result_types,
)
from mtfc.compiler.ir.types import Axes, Dim, Mesh, TensorType
from mtfc.compiler.ir.verifier import Level
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.records import frozen


@frozen
class PropagateLayouts(Pass):
    name: ClassVar[str] = "propagate-layouts"
    takes: ClassVar[tuple[Level, ...]] = ("assigned",)

    def run(self, program: Program) -> Program:
        """Return the program with the layouts of equations changed to those of their uses or operands."""
        mesh = program.placed_on
        named = program.named_values
        return program.map_functions(
            lambda function: LayoutPropagator(
                mesh, fixed(function, named), axes_pending(function, mesh.names)
            ).function(function)
        )


def fixed(function: Function, named: set[str]) -> set[LayoutTarget]:
    """Return the targets that a `value` rule places."""
    if not named:
        return set()
    names = layout_target_names(function)
    paths = {eqn for eqn in walk(function.body) if eqn.path in named}
    return paths.union(each for each, name in names.items() if name in named)


MOVING: tuple[Trait, ...] = ("reshape", "interleave")
"""Equations that may follow their operand, though not all dimensions keep their names or may be split."""

Use = tuple[Equation, int] | Output
"""An equation with the number of the operand, or an output that replaces an argument."""


def placed_uses(function: Function) -> dict[Value, list[Use]]:
    """Return the uses of each value whose placement is free: not of values that are outputs and replace no argument."""
    uses: dict[Value, list[Use]] = {}
    for eqn in function.body:
        for i, value in enumerate(eqn.operands):
            uses.setdefault(value, []).append((eqn, i))
    for output in function.outputs:
        if output.updates is not None:
            uses.setdefault(output.value, []).append(output)
    for output in function.outputs:
        if output.updates is None:
            uses.pop(output.value, None)
    return uses


class LayoutPropagator:
    """Changes the layouts of one function's equations to those of their uses or operands."""

    def __init__(self, mesh: Mesh, fixed: set[LayoutTarget], pending: Mapping[Value, set[str]]) -> None:
        """Start with nothing placed.

        fixed: the targets of a user's rules, whose layouts stay. placed: the type of each value. pending: axes over which a
        sum may be pending in a value, by the layouts before this pass. changed: equations that have changed.
        """
        self.mesh, self.fixed, self.pending = mesh, fixed, pending
        self.placed: dict[Value, TensorType] = {}
        self.changed: dict[Equation, Equation] = {}

    def function(self, function: Function) -> Function:
        """Return a function with changed layouts: visit its equations from the last to the first, after all of their uses."""
        for argument in function.arguments:
            self.placed[argument.value] = argument.value.type.split_by(argument.layout or {})
        for eqn in function.body:
            self._place(eqn)
        uses = placed_uses(function)
        for eqn in reversed(function.body):
            if eqn.regions:
                self.changed[eqn] = self._loop(eqn, uses)
            else:
                self._visit(eqn, uses)
        return attrs.evolve(function, body=tuple(self.changed.get(eqn, eqn) for eqn in function.body))

    def _visit(self, eqn: Equation, uses: Mapping[Value, list[Use]]) -> None:
        """Let an equation follow its uses or its operand, and if it does let reshapes and interleaves follow it."""
        if not self._moves(eqn) or eqn.result not in uses or not self._follow(eqn, uses[eqn.result]):
            return
        for use in uses[eqn.result]:
            if not isinstance(use, Output) and has_trait(use[0], *MOVING):
                self._visit(use[0], uses)

    def _loop(self, eqn: Equation, uses: Mapping[Value, list[Use]]) -> Equation:
        """Return a loop with stacks as their uses need them, and with changed layouts inside."""
        region = region_of(eqn)
        outputs = tuple(
            output
            if output.updates or output in self.fixed
            else self._yielded(output, dim_of(eqn), uses.get(result, []))
            for result, output in zip(eqn.results, region.outputs, strict=True)
        )
        inside = LayoutPropagator(self.mesh, self.fixed, self.pending).function(
            attrs.evolve(region, outputs=outputs)
        )
        changed = attrs.evolve(eqn, regions=(inside,))
        for result, output in zip(eqn.results, outputs, strict=True):
            self.placed[result] = result.type.split_by(output.layout or {})
        return changed

    def _yielded(self, output: Output, dim: Dim, uses: list[Use]) -> Output:
        """Return the output as all uses of the stack need it, if that is smaller than its present placement."""
        wanted = dict.fromkeys(self._wanted(use) for use in uses)
        if len(wanted) != 1:
            return output
        (type,) = wanted
        made = output.value.type.split_by(output.layout or {})
        if type.axes_of(dim.name) or sliced_type(type, dim).local_size(self.mesh) >= made.local_size(
            self.mesh
        ):
            return output
        return attrs.evolve(output, layout=shown_layout(sliced_type(type, dim)))

    def _place(self, eqn: Equation) -> None:
        """Note the types of the results of an equation, by its layout."""
        if eqn.regions:
            for result, output in zip(eqn.results, region_of(eqn).outputs, strict=True):
                self.placed[result] = result.type.split_by(output.layout or {})
            return
        types = result_types(eqn, OPS[eqn.op].layout_rule(eqn), (), self.mesh)
        self.placed.update(zip(eqn.results, types, strict=True))

    def _groups(self, eqn: Equation) -> dict[str, tuple[OperandGroup, ...]]:
        """Return the groups of operands through which a sum over an axis may pass, for each axis that has any."""
        arriving = {axis for value in eqn.operands for axis in self.pending.get(value, ())}
        groups = {
            axis: passing_groups(OPS[eqn.op], eqn, axis, self._may_be_pending(axis))
            for axis in self.mesh.ordered(arriving)
        }
        return {axis: found for axis, found in groups.items() if found}

    def _may_be_pending(self, axis: str) -> IsPending:
        return lambda value: axis in self.pending.get(value, ())

    def _moves(self, eqn: Equation) -> bool:
        """Return True if the layout of an equation may change: no rule names it, it sums over nothing, and it ends no pending
        sum.
        """
        opdef = OPS[eqn.op]
        if not eqn.operands or len(eqn.results) > 1 or eqn in self.fixed or opdef.layout_rule(eqn).reduced:
            return False
        adds = is_cast_of_terms(eqn)
        return not any(
            adds or len(group) > 1
            for axis in self.mesh.names
            for group in pending_groups(opdef, eqn, self._may_be_pending(axis))
        )

    def _wanted(self, use: Use) -> TensorType:
        """Return the type in which a use needs a value."""
        if isinstance(use, Output):
            return use.value.type.split_by(use.layout or {})
        return needed_type(self.changed.get(use[0], use[0]), use[1])

    def _follow(self, eqn: Equation, uses: list[Use]) -> bool:
        """Choose the cheapest of three layouts: the present layout, the layout of all uses, and the layout of the only
        operand.

        Return True if it is another one than the present.
        """
        eqn, source = self.changed.get(eqn, eqn), eqn
        wanted = dict.fromkeys(self._wanted(use) for use in uses)
        layouts = [layout for layout in self._candidates(eqn, list(wanted)) if layout != eqn.layout]
        if not layouts:
            return False
        candidates = [attrs.evolve(eqn, layout=layout) for layout in layouts]
        size = self._made(eqn).local_size(self.mesh)
        fitting = [c for c in candidates if self._runs(c) and self._made(c).local_size(self.mesh) <= size]
        best = min([eqn, *fitting], key=lambda candidate: self._cost(candidate, wanted))
        if best is eqn:
            return False
        self.changed[source] = best
        self.placed[eqn.result] = self._made(best)
        return True

    def _candidates(self, eqn: Equation, wanted: list[TensorType]) -> Iterator[dict[str, Axes]]:
        """Yield the layouts that an equation may follow: the one that all uses want, and that of its only operand.

        An op of which the layout rule forbids a split, or does not divide a dimension evenly, does not follow. wanted: types of
        the uses.
        """
        rule, operands = OPS[eqn.op].layout_rule(eqn), [self.placed[value] for value in eqn.operands]
        found = wanted if len(wanted) == 1 else []
        follows = rule is BY_NAME or has_trait(eqn, *MOVING)
        if len(operands) == 1 and follows and not operands[0].pending:
            found = [*found, self._as_operand(eqn, operands[0])]
        for type in found:
            if all(
                dim.size % self.mesh.size(axes) == 0 and rule.allows(dim, axes, self.mesh)
                for dim, axes in zip(type.dims, type.splits, strict=True)
            ):
                yield shown_layout(type)

    def _as_operand(self, eqn: Equation, operand: TensorType) -> TensorType:
        """Return the type of the result if each dimension is split as the operand's dimension that runs along it."""
        rule = OPS[eqn.op].layout_rule(eqn)
        pairs = zip(operand.names, operand.splits, strict=True)
        return eqn.result.type.split_by({rule.index.get(name, name) or "": axes for name, axes in pairs})

    def _made(self, eqn: Equation) -> TensorType:
        """Return the type of an equation's only result, by its layout."""
        (type,) = result_types(eqn, OPS[eqn.op].layout_rule(eqn), (), self.mesh)
        return type

    def _cost(self, eqn: Equation, wanted: Iterable[TensorType]) -> tuple[float, int]:
        """Return the bytes that a processor sends before and after the equation, and the elements that it computes.

        wanted: the types that the uses need.
        """
        groups = self._groups(eqn)
        made = self._pending(self._made(eqn), set(groups))
        arriving = min(
            self._sent(eqn, dict(zip(groups, choice, strict=True))) for choice in product(*groups.values())
        )
        sent = arriving + sum(plan(made, type, self.mesh)[0] for type in wanted)
        return sent, made.local_size(self.mesh)

    def _pending(self, type: TensorType, axes: set[str]) -> TensorType:
        """Return the type with sums pending over `axes` too, as far as these do not split it."""
        axes = axes.difference(type.split_axes)
        return attrs.evolve(type, pending=self.mesh.ordered({*type.pending, *axes})) if axes else type

    def _runs(self, eqn: Equation) -> bool:
        """Return True if the operands' dimensions divide evenly under the equation's layout."""
        return OPS[eqn.op].layout_rule(eqn).divides(eqn.operands, eqn.layout or {}, self.mesh)

    def _sent(self, eqn: Equation, passing: Mapping[str, OperandGroup]) -> float:
        """Return the bytes that a processor sends to place the operands as the equation's layout needs them.

        passing: the operands through which a sum over an axis passes; other operands are completed.
        """
        sent = 0.0
        for i, value in enumerate(eqn.operands):
            arriving = self.pending.get(value, set())
            source = self._pending(self.placed[value], arriving)
            staying = {axis for axis in arriving if i in passing.get(axis, ())}
            sent += plan(source, self._pending(needed_type(eqn, i), staying), self.mesh)[0]
        return sent
