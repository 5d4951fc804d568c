"""Kernel times of equations that each have a layout of their own, before it is known where values are resharded.

Which values are stored is taken from the program before it is placed. Left out are the stores that a reshard adds between two
fused kernels, and the time of loops besides their iterations. So a compiled program may cost a little more: `roofline.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from mtfc.compiler.analysis.buffer_kinds import storage
from mtfc.compiler.cost.device_models import fusion_of_program
from mtfc.compiler.cost.effects.roofline import copy_seconds, kernel_seconds
from mtfc.compiler.cost.fusion import FusionModel
from mtfc.compiler.cost.hardware import Device
from mtfc.compiler.cost.sizes import Numbers
from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.printer import shown_layout
from mtfc.compiler.ir.sharding_rules import operand_type
from mtfc.compiler.ir.types import Mesh, TensorType

Placed = Sequence[Equation]
"""One equation in several layouts, each with the types of the operands and results in that layout."""


class EquationTimes:
    """The seconds of the equations of one function, also those in loops."""

    def __init__(self, function: Function, mesh: Mesh, device: Device) -> None:
        self.mesh, self.device = mesh, device
        self.fusions: dict[Value, FusionModel] = {}
        self.flops: dict[int, tuple[Placed, list[float]]] = {}
        self._add(function)

    def _add(self, function: Function) -> None:
        fusion = fusion_of_program(function, self.mesh, self.device, is_placed=False)
        self.fusions |= dict.fromkeys(fusion.makers, fusion)
        for eqn in function.body:
            for region in eqn.regions:
                self._add(region)

    def seconds(self, eqn: Equation, placed: Placed) -> list[float]:
        """Return the seconds of one execution in each layout."""
        if storage(eqn) in ("view", "made"):
            return [0.0] * len(placed)
        fusion = self.fusions[eqn.results[0]]
        moved = (self._moved(fusion, eqn, each) for each in placed)
        return [
            kernel_seconds(eqn, each, flops, size, fusion)
            for each, flops, size in zip(placed, self._flops(placed, fusion), moved, strict=True)
        ]

    def copying(self, eqn: Equation, value: Value, types: Sequence[TensorType]) -> list[float]:
        """Return the seconds to copy an operand or result for a dot, for each of these placements.

        Only a loop's slice and a result count: a collective may stand between a view and the dot, which is not known here.
        """
        fusion = self.fusions[eqn.results[0]]
        if value not in fusion.copied(eqn) or value not in {*fusion.slices, *eqn.results}:
            return [0.0] * len(types)
        return [copy_seconds(fusion.bytes(type), self.device) for type in types]

    def _flops(self, placed: Placed, fusion: FusionModel) -> list[float]:
        """Return the FLOPs in each layout, padding included; equal placements share the result."""
        key, numbers = id(placed), Numbers(self.mesh)
        if key not in self.flops:
            found = [OPS[each.op].flops(each, numbers) * fusion.mxu_padding(each) for each in placed]
            self.flops[key] = placed, found
        return self.flops[key][1]

    def _moved(self, fusion: FusionModel, eqn: Equation, placed: Equation) -> int:
        """Return the bytes that an equation reads and writes in one layout."""
        operands = zip(eqn.operands, placed.operands, strict=True)
        seen = {value: self._seen(fusion, value, each.type) for value, each in operands}
        return fusion.moved_as(eqn, [value.type for value in placed.results], seen)

    def _seen(self, fusion: FusionModel, value: Value, type: TensorType) -> list[TensorType]:
        """Return the type of a value in this placement, and the types of the arrays that the value is a view of."""
        found = [type]
        for view in fusion.seen(value)[1:]:
            maker = fusion.makers[value]
            rule = OPS[maker.op].layout_rule(maker)
            type = operand_type(rule, attrs.evolve(maker, layout=shown_layout(type)), 0)
            found.append(type)
            value = view
        return found
