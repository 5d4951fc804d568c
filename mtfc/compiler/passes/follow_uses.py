"""follow-uses: an equation runs in the layout that its one use wants, where it sends or computes less there.

The layout rules place an intermediate value although nobody looks at it. Between two renames, say, they may ask for all of a
tensor on every processor: an all-gather, and a slice right after it, where one all-to-all does. Equations are visited from
last to first, so that a whole chain follows its end. Those that reduce a dimension stay where the rules put them.

Input:   %r: f32[c, b] = rename %x (a -> c) layout {}; %s: f32[c, d] = rename %r (b -> d) layout {d: all}       x is [a{all}, b]
Output:  %r: f32[c, b] = rename %x (a -> c) layout {b: all}; %s: f32[c, d] = rename %r (b -> d) layout {d: all}
After this pass no such equation would send less, and compute no more, in its use's layout; types are still global.
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from mtfc.compiler.analysis.resharding import plan
from mtfc.compiler.ir.core import Equation, Function, Program, Value
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.place import operand_type, result_types
from mtfc.compiler.ir.transform import Pass
from mtfc.compiler.ir.types import Axes, Mesh, TensorType


@attrs.frozen
class FollowUses(Pass):
    name: ClassVar[str] = "follow-uses"

    def run(self, program: Program) -> Program:
        mesh = program.mesh
        assert mesh is not None, "assign-layouts gives every program a mesh"
        fixed = set(program.layout.value_rules) if program.layout else set()
        return program.map_functions(lambda function: Following(mesh, fixed).function(function))


def only_uses(function: Function) -> dict[Value, tuple[Equation, int]]:
    """Values that exactly one operand of one equation uses, and no output: that equation and the operand's number."""
    uses: dict[Value, list[tuple[Equation, int]]] = {}
    for eqn in function.body:
        for i, value in enumerate(eqn.operands):
            uses.setdefault(value, []).append((eqn, i))
    outputs = {output.value for output in function.outputs}
    return {value: found[0] for value, found in uses.items() if len(found) == 1 and value not in outputs}


class Following:
    """Moves the layouts of one function's equations towards their uses."""

    def __init__(self, mesh: Mesh, fixed: set[str]) -> None:
        self.mesh, self.fixed = mesh, fixed
        self.placed: dict[Value, TensorType] = {}
        self.changed: dict[Equation, Equation] = {}

    def function(self, function: Function) -> Function:
        for argument in function.arguments:
            self.placed[argument.value] = argument.value.type.split_by(argument.layout or {})
        for eqn in function.body:
            self._place(eqn)
        uses = only_uses(function)
        for eqn in reversed(function.body):
            if self._moves(eqn) and eqn.result in uses:
                self._follow(eqn, *uses[eqn.result])
        return attrs.evolve(function, body=tuple(self.changed.get(eqn, eqn) for eqn in function.body))

    def _place(self, eqn: Equation) -> None:
        types = result_types(eqn, OPS[eqn.op].layout_rule(eqn), (), self.mesh)
        self.placed.update(zip(eqn.results, types, strict=True))

    def _moves(self, eqn: Equation) -> bool:
        return bool(eqn.operands) and eqn.path not in self.fixed and not OPS[eqn.op].layout_rule(eqn).reduced

    def _follow(self, eqn: Equation, user: Equation, operand: int) -> None:
        user = self.changed.get(user, user)
        wanted = operand_type(OPS[user.op].layout_rule(user), user, operand)
        rule = OPS[eqn.op].layout_rule(eqn)
        layout = {dim: axes for dim, axes in zip(wanted.names, wanted.splits, strict=True) if axes}
        moved = attrs.evolve(eqn, layout=layout)
        if rule.whole & set(layout) or not self._runs(moved):
            return
        placed = self.placed[eqn.result]
        sent = self._sent(eqn) + plan(placed, wanted, self.mesh)[0]
        computed, moved_computed = placed.local_size(self.mesh), wanted.local_size(self.mesh)
        if moved_computed <= computed and (self._sent(moved), moved_computed) < (sent, computed):
            self.changed[eqn] = moved
            self.placed[eqn.result] = wanted

    def _runs(self, eqn: Equation) -> bool:
        """Whether the operands' dimensions divide as the equation's layout splits them."""
        rule, layout = OPS[eqn.op].layout_rule(eqn), eqn.layout or {}

        def divides(size: int, axes: Axes) -> bool:
            return size % self.mesh.size(axes) == 0

        return all(
            divides(dim.size, rule.operand_axes(dim.name, layout))
            for v in eqn.operands
            for dim in v.type.dims
        )

    def _sent(self, eqn: Equation) -> float:
        """Bytes that a processor sends to bring the operands to where the equation's layout needs them."""
        rule = OPS[eqn.op].layout_rule(eqn)
        return sum(
            plan(self.placed[value], operand_type(rule, eqn, i), self.mesh)[0]
            for i, value in enumerate(eqn.operands)
        )
