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

from mtfc.compiler.cost.fusion import Memory
from mtfc.compiler.cost.hardware import Device
from mtfc.compiler.cost.roofline import copy_seconds, kernel_seconds
from mtfc.compiler.cost.sizes import Numbers
from mtfc.compiler.cost.tpu.register_traffic import held
from mtfc.compiler.cost.tpu.scratchpad import kernels_of
from mtfc.compiler.cost.tpu.tiling import Windows, filled
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
        self.memories: dict[Value, Memory] = {}
        self.flops: dict[tuple[Choices, Windows | None], list[float]] = {}
        self._add(function)

    def _add(self, function: Function) -> None:
        """The memory that each result of its equations is in."""
        memory = kernels_of(function, self.mesh, self.device, is_placed=False)
        self.memories |= dict.fromkeys(memory.makers, memory)
        for eqn in function.body:
            for region in eqn.regions:
                self._add(region)

    def seconds(self, eqn: Equation, choices: Choices) -> Seconds:
        """Of one execution, by each strategy."""
        if OPS[eqn.op].storage in ("view", "made"):
            return np.zeros(len(choices.placed))
        memory = self.memories[eqn.results[0]]
        flops = self._flops(choices, memory.windows(eqn))
        each = zip(choices.placed, flops, self._moved(eqn, choices).tolist(), strict=True)
        found = []
        for placed, computed, moved in each:
            size = moved + memory.rearranged(eqn, placed, self.device)
            found.append(kernel_seconds(eqn, placed, computed, size, memory, self.device))
        return np.array(found, np.float64)

    def copying(self, eqn: Equation, value: Value, types: Sequence[TensorType]) -> Seconds:
        """Of what a product has copied of an operand or its result, if it is the loop's slice, or what the loop keeps, itself:
        of a view of these it is not known here whether something is sent between.
        """
        memory = self.memories[eqn.results[0]]
        if value not in memory.copied(eqn, self.device) or value not in {*memory.slices, *eqn.results}:
            return np.zeros(len(types))
        return np.array([copy_seconds(memory.bytes(type, self.device), self.device) for type in types])

    def _flops(self, choices: Choices, windows: Windows | None) -> list[float]:
        """FLOP rules look at the types of operands and results."""
        key, numbers = (choices, windows), Numbers(self.mesh)
        if key not in self.flops:
            self.flops[key] = [
                OPS[placed.op].flops(placed, numbers) * filled(placed, self.mesh, self.device, windows)
                for placed in choices.placed
            ]
        return self.flops[key]

    def _moved(self, eqn: Equation, choices: Choices) -> Sizes:
        """Bytes that it reads and writes."""
        memory, moved = self.memories[eqn.results[0]], np.zeros(len(choices.placed), np.int64)
        for i, value in enumerate(eqn.results):
            if value in memory.stored:
                moved += (1 + memory.is_kept(value)) * self._bytes(memory, choices.made(i))
        seen = {value: self._seen(memory, value, choices.needed(i)) for i, value in enumerate(eqn.operands)}
        read = [self._read(memory, eqn, value, types) for value, types in seen.items()]
        if OPS[eqn.op].storage == "lookup":
            read[0] = np.minimum(read[0], self._bytes(memory, choices.made(0)))
        moved += self._held(memory, eqn, choices, seen)
        return sum(read, start=moved)

    def _held(
        self, memory: Memory, eqn: Equation, choices: Choices, seen: Mapping[Value, list[list[TensorType]]]
    ) -> Sizes:
        """Bytes that it holds besides."""
        if self.device.matrix is None:
            return np.zeros(len(choices.placed), np.int64)
        found = []
        for n in range(len(choices.placed)):
            made = [choices.made(i)[n] for i in range(len(eqn.results))]
            types = {value: [each[n] for each in views] for value, views in seen.items()}
            found.append(held(memory, eqn, made, types, self.device))
        return np.array(found, np.int64)

    def _read(self, memory: Memory, eqn: Equation, value: Value, types: list[list[TensorType]]) -> Sizes:
        if memory.is_joined(eqn, value, self.device) or not memory.views(value):
            return np.zeros(len(types[0]), np.int64)
        found: Sizes = np.min([self._bytes(memory, each) for each in types], axis=0)
        return found

    def _bytes(self, memory: Memory, types: Iterable[TensorType]) -> Sizes:
        return np.array([memory.bytes(type, self.device) for type in types], np.int64)

    def _seen(self, memory: Memory, value: Value, types: list[TensorType]) -> list[list[TensorType]]:
        """A value that is placed in these ways, what it is a view of, and so on."""
        found = [types]
        for view in memory.seen(value)[1:]:
            maker = memory.makers[value]
            rule = OPS[maker.op].layout_rule(maker)
            types = [operand_type(rule, attrs.evolve(maker, layout=shown_layout(type)), 0) for type in types]
            found.append(types)
            value = view
        return found
