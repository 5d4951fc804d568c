"""How long a processor computes: each equation by its FLOPs or by the bytes it moves, whichever takes longer.

What an equation moves follows from what a compiler like XLA keeps in memory at all, which each op says (`opdef.Storage`): whoever
reads a view reads what it is a view of, at most as many bytes as the view has; fused equations become one kernel with what uses
them, and are stored only where something else than fused equations and reductions uses them, or where the function, or a loop,
gives them away. A product and the `fold` that adds up what it makes are one kernel, the transpose of a convolution.

An equation moves the bytes of stored operands and, where it is stored itself, of its results; each stored one is a kernel, which
costs the device's overhead and reads an array once, however many of its equations need it. The roofline is a bound from below for
a kernel, and a sum of them one from above for kernels that overlap, which on one device they rarely do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import attrs

from mtfc.compiler.analysis.sizes import Numbers
from mtfc.compiler.hardware import Device
from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.opdef import Storage
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.ops.collectives import KIND_OF
from mtfc.compiler.ir.types import Mesh
from mtfc.compiler.ir.views import folded


@attrs.frozen
class Work:
    """What one equation computes and moves on one processor, once: FLOPs, bytes, seconds."""

    flops: int
    bytes: int
    seconds: float


def work(function: Function, mesh: Mesh, device: Device) -> list[Work]:
    """Of each equation of a placed function, in order; nothing for loops and collectives."""
    memory = Memory(function, mesh)
    return [_work(eqn, memory, device) for eqn in function.body]


def _work(eqn: Equation, memory: Memory, device: Device) -> Work:
    if eqn.regions or eqn.op in KIND_OF:
        return Work(0, 0, 0.0)
    flops = OPS[eqn.op].flops(eqn, Numbers(memory.mesh))
    if _storage(eqn) in ("view", "made"):
        return Work(flops, 0, 0.0)
    size = memory.moved(eqn)
    return Work(flops, size, kernel_seconds(eqn, flops, size, memory.is_stored(eqn), device))


def kernel_seconds(eqn: Equation, flops: int, size: int, is_stored: bool, device: Device) -> float:
    """Seconds of so many FLOPs on so many bytes."""
    dtype = (eqn.operands or eqn.results)[0].type.dtype
    seconds = max(flops / device.rate(dtype).at(flops), size / device.bandwidth.at(size))
    return seconds + (device.overhead if is_stored else 0.0)


def _storage(eqn: Equation) -> Storage:
    """Loops store what they give."""
    return "kernel" if eqn.regions else OPS[eqn.op].storage


class Memory:
    """Which values of a function are stored, and what reading each one reads; `mesh` is where they are placed."""

    def __init__(self, function: Function, mesh: Mesh) -> None:
        self.mesh = mesh
        self.makers: dict[Value, Equation] = {v: eqn for eqn in function.body for v in eqn.results}
        self.stored = _stored(function, self.makers) - folded(function.body)
        self.reads = dict(self._reads(function))

    def is_stored(self, eqn: Equation) -> bool:
        return any(value in self.stored for value in eqn.results)

    def moved(self, eqn: Equation) -> int:
        """Bytes that an equation reads and writes."""
        written = sum(value.type.local_bytes(self.mesh) for value in eqn.results if value in self.stored)
        read = {value: self.read(value) for value in self.reads[eqn.results[0]]}
        if _storage(eqn) == "lookup":
            (table, *_) = eqn.operands
            read[table] = min(read.get(table, 0), eqn.result.type.local_bytes(self.mesh))
        return written + sum(read.values())

    def _reads(self, function: Function) -> Iterator[tuple[Value, tuple[Value, ...]]]:
        """First results of equations, and what they read: of a kernel's equations, the first to need an array does."""
        kernels = self._kernels(function)
        known: set[tuple[Equation, Value]] = set()
        for eqn in function.body:
            arrays = {
                value: (kernels[eqn], self.views(value)[-1]) for value in eqn.operands if self.views(value)
            }
            yield eqn.results[0], tuple(value for value, array in arrays.items() if array not in known)
            known.update(arrays.values())

    def _kernels(self, function: Function) -> dict[Equation, Equation]:
        """The equation whose result the kernel stores that an equation is part of; where there are several, the first."""
        users: dict[Value, Equation] = {}
        found: dict[Equation, Equation] = {}
        for eqn in reversed(function.body):
            users |= dict.fromkeys(eqn.operands, eqn)
            user = None if self.is_stored(eqn) else next((users[v] for v in eqn.results if v in users), None)
            is_part = user is not None and _storage(eqn) in ("view", "fused")
            found[eqn] = found[user] if is_part and user is not None else eqn
        return found

    def read(self, value: Value) -> int:
        """Bytes that come from memory where a value is read."""
        return min((each.type.local_bytes(self.mesh) for each in self.views(value)), default=0)

    def views(self, value: Value) -> list[Value]:
        """The value, what it is a view of, and so on to what is in memory; nothing where nothing is read."""
        found = [value]
        while (maker := self.makers.get(found[-1])) is not None and _storage(maker) == "view":
            found.append(maker.operands[0])
        if maker is not None and (_storage(maker) == "made" or found[-1] not in self.stored):
            return []
        return found


def _stored(function: Function, makers: Mapping[Value, Equation]) -> set[Value]:
    """The values that are in memory: see the top."""
    unstored = ("view", "made", "fused")
    found = {value for eqn in function.body if _storage(eqn) not in unstored for value in eqn.results}
    given = [output.value for output in function.outputs]
    absorbing = ("view", "fused", "reduced")
    read = [value for eqn in function.body if _storage(eqn) not in absorbing for value in eqn.operands]
    return found | set(_sources((*given, *read), makers))


def _sources(values: Iterable[Value], makers: Mapping[Value, Equation]) -> Iterable[Value]:
    """What the values are views of, or they themselves."""
    for value in values:
        while (maker := makers.get(value)) is not None and _storage(maker) == "view":
            (value, *_) = maker.operands
        yield value
