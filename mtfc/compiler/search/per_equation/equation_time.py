"""How long an equation takes under a strategy: by the roofline, as `cost/roofline.py` has it for programs that are placed.

Which values are in memory is taken from the program before it is placed; what a reshard in between adds to that is left out, and
so is what loops take besides their iterations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from mtfc.compiler.cost.device_models import fusion_of_program
from mtfc.compiler.cost.fusion import FusionModel
from mtfc.compiler.cost.hardware import Device
from mtfc.compiler.cost.roofline import copy_seconds, kernel_seconds
from mtfc.compiler.cost.sizes import Numbers
from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.loops import dim_of, region_of
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.printer import shown_layout
from mtfc.compiler.ir.sharding_rules import operand_type
from mtfc.compiler.ir.types import Mesh, TensorType
from mtfc.compiler.search.per_equation.equation_strategies import Choices

Sizes: TypeAlias = NDArray[np.int64]

Seconds: TypeAlias = NDArray[np.float64]


def least_seconds(function: Function, mesh: Mesh, device: Device) -> float:
    """What every tiling takes of a function that is not placed: all processors together compute all products, each at most at the
    peak rate. So the one that computes the most has an equal share at least.
    """
    total = 0.0
    for eqn in function.body:
        if eqn.regions:
            total += dim_of(eqn).size * least_seconds(region_of(eqn), mesh, device)
        elif has_trait(eqn, "dot"):
            flops = OPS[eqn.op].flops(eqn, Numbers(mesh)) / mesh.devices
            total += flops / device.rate(eqn.operands[0].type.dtype).peak
    return total


class Roofline:
    """The seconds of one function's equations, those in loops too."""

    def __init__(self, function: Function, mesh: Mesh, device: Device) -> None:
        self.mesh, self.device = mesh, device
        self.fusions: dict[Value, FusionModel] = {}
        self.flops: dict[Choices, list[float]] = {}
        self._add(function)

    def _add(self, function: Function) -> None:
        """The memory that each result of its equations is in."""
        fusion = fusion_of_program(function, self.mesh, self.device, is_placed=False)
        self.fusions |= dict.fromkeys(fusion.makers, fusion)
        for eqn in function.body:
            for region in eqn.regions:
                self._add(region)

    def seconds(self, eqn: Equation, choices: Choices) -> Seconds:
        """Of one execution, by each strategy."""
        if OPS[eqn.op].storage in ("view", "made"):
            return np.zeros(len(choices.placed))
        fusion = self.fusions[eqn.results[0]]
        moved = self._moved(eqn, choices).tolist()
        each = zip(choices.placed, self._flops(choices, fusion), moved, strict=True)
        found = [kernel_seconds(eqn, placed, flops, size, fusion) for placed, flops, size in each]
        return np.array(found, np.float64)

    def copying(self, eqn: Equation, value: Value, types: Sequence[TensorType]) -> Seconds:
        """Of what a product has copied of an operand or its result, if it is the loop's slice, or what the loop keeps, itself:
        of a view of these it is not known here whether something is sent between.
        """
        fusion = self.fusions[eqn.results[0]]
        if value not in fusion.copied(eqn) or value not in {*fusion.slices, *eqn.results}:
            return np.zeros(len(types))
        return np.array([copy_seconds(fusion.bytes(type), self.device) for type in types])

    def _flops(self, choices: Choices, fusion: FusionModel) -> list[float]:
        """FLOP rules look at the types of operands and results."""
        numbers = Numbers(self.mesh)
        if choices not in self.flops:
            self.flops[choices] = [
                OPS[placed.op].flops(placed, numbers) * fusion.mxu_padding(placed)
                for placed in choices.placed
            ]
        return self.flops[choices]

    def _moved(self, eqn: Equation, choices: Choices) -> Sizes:
        """Bytes that it reads and writes."""
        fusion, moved = self.fusions[eqn.results[0]], np.zeros(len(choices.placed), np.int64)
        for i, value in enumerate(eqn.results):
            if value in fusion.stored:
                moved += self._bytes(fusion, choices.made(i))
        seen = {value: self._seen(fusion, value, choices.needed(i)) for i, value in enumerate(eqn.operands)}
        read = [self._read(fusion, eqn, value, types) for value, types in seen.items()]
        if OPS[eqn.op].storage == "lookup":
            read[0] = np.minimum(read[0], self._bytes(fusion, choices.made(0)))
        moved += self._register_traffic(fusion, eqn, choices, seen)
        return sum(read, start=moved)

    def _register_traffic(
        self,
        fusion: FusionModel,
        eqn: Equation,
        choices: Choices,
        seen: Mapping[Value, list[list[TensorType]]],
    ) -> Sizes:
        """Bytes of register traffic by each strategy."""
        if not fusion.has_register_traffic:
            return np.zeros(len(choices.placed), np.int64)
        found = []
        for n in range(len(choices.placed)):
            made = [choices.made(i)[n] for i in range(len(eqn.results))]
            types = {value: [each[n] for each in views] for value, views in seen.items()}
            found.append(fusion.register_traffic(eqn, made, types))
        return np.array(found, np.int64)

    def _read(self, fusion: FusionModel, eqn: Equation, value: Value, types: list[list[TensorType]]) -> Sizes:
        if fusion.is_joined(eqn, value) or not fusion.views(value):
            return np.zeros(len(types[0]), np.int64)
        found: Sizes = np.min([self._bytes(fusion, each) for each in types], axis=0)
        return found

    def _bytes(self, fusion: FusionModel, types: Iterable[TensorType]) -> Sizes:
        return np.array([fusion.bytes(type) for type in types], np.int64)

    def _seen(self, fusion: FusionModel, value: Value, types: list[TensorType]) -> list[list[TensorType]]:
        """A value that is placed in these ways, what it is a view of, and so on."""
        found = [types]
        for view in fusion.seen(value)[1:]:
            maker = fusion.makers[value]
            rule = OPS[maker.op].layout_rule(maker)
            types = [operand_type(rule, attrs.evolve(maker, layout=shown_layout(type)), 0) for type in types]
            found.append(types)
            value = view
        return found
