"""How long an equation takes under a strategy: by the roofline, as `analysis/roofline.py` has it for programs that are placed.

Which values are in memory is taken from the program before it is placed; what a reshard in between adds to that is left out, and
so is what loops take besides their iterations on a TPU.
"""

from __future__ import annotations

from functools import partial

import attrs

from mtfc.compiler.analysis.kernels import HELD, Memory, held_bytes
from mtfc.compiler.analysis.roofline import kernel_seconds
from mtfc.compiler.analysis.sizes import Numbers
from mtfc.compiler.analysis.tiles import filled
from mtfc.compiler.hardware import Device
from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.place import operand_type
from mtfc.compiler.ir.printer import shown_layout
from mtfc.compiler.ir.types import Mesh, TensorType
from mtfc.compiler.search.tiling.strategies import Strategy


class Roofline:
    """The seconds of one function's equations, those in loops too."""

    def __init__(self, function: Function, mesh: Mesh, device: Device) -> None:
        self.mesh, self.device = mesh, device
        self.memories: dict[Value, Memory] = {}
        self._add(function)

    def _add(self, function: Function) -> None:
        """The memory that each result of its equations is in."""
        memory = Memory(function, self.mesh, self.device)
        self.memories |= dict.fromkeys(memory.makers, memory)
        for eqn in function.body:
            for region in eqn.regions:
                self._add(region)

    def seconds(self, eqn: Equation, strategy: Strategy) -> float:
        """Of one execution; the equation has the strategy's layout."""
        if OPS[eqn.op].storage in ("view", "made"):
            return 0.0
        placed, memory = self._placed(eqn, strategy), self.memories[eqn.results[0]]
        flops = OPS[eqn.op].flops(placed, Numbers(self.mesh)) * filled(placed, self.mesh, self.device)
        moved = self._moved(eqn, strategy) + memory.merged(eqn, placed, self.device)
        return kernel_seconds(eqn, placed, flops, moved, memory, self.device)

    def _placed(self, eqn: Equation, strategy: Strategy) -> Equation:
        """FLOP rules look at the types of operands and results."""
        rule = OPS[eqn.op].layout_rule(eqn)
        operands = (strategy.operand_type(rule, eqn, i) for i in range(len(eqn.operands)))
        made = strategy.made(rule, eqn, self.mesh)
        return attrs.evolve(
            eqn,
            operands=tuple(Value(v.name, type) for v, type in zip(eqn.operands, operands, strict=True)),
            results=tuple(Value(v.name, type) for v, type in zip(eqn.results, made, strict=True)),
        )

    def _moved(self, eqn: Equation, strategy: Strategy) -> int:
        """Bytes that it reads and writes."""
        rule, memory = OPS[eqn.op].layout_rule(eqn), self.memories[eqn.results[0]]
        made = strategy.made(rule, eqn, self.mesh)
        size = partial(memory.bytes, device=self.device)
        pairs = zip(eqn.results, made, strict=True)
        times = {value: 1 + memory.is_kept(value) for value in memory.stored.intersection(eqn.results)}
        written = sum(times.get(value, 0) * size(type) for value, type in pairs)
        needed = {value: strategy.operand_type(rule, eqn, i) for i, value in enumerate(eqn.operands)}
        seen = {value: self._seen(memory, value, type) for value, type in needed.items()}
        joined = {value for value in needed if memory.is_joined(eqn, value, self.device)}
        read = [
            min(map(size, types)) if value not in joined and memory.views(value) else 0
            for value, types in seen.items()
        ]
        if OPS[eqn.op].storage == "lookup":
            read[0] = min(read[0], size(made[0]))
        if memory.is_holding(eqn, self.device):
            written += max(held_bytes(types, memory, self.device) for types in seen.values())
        if memory.is_widened(eqn, self.device):
            written += sum(size(type.with_dtype(HELD)) for type in made)
        return written + sum(read)

    def _seen(self, memory: Memory, value: Value, type: TensorType) -> list[TensorType]:
        """A value that is placed so, what it is a view of, and so on."""
        types = [type]
        for view in memory.seen(value)[1:]:
            maker = memory.makers[value]
            type = operand_type(
                OPS[maker.op].layout_rule(maker), attrs.evolve(maker, layout=shown_layout(type)), 0
            )
            types.append(type)
            value = view
        return types
