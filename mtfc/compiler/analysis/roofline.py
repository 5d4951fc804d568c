"""How long a processor computes: each equation by its FLOPs or by the bytes it moves, whichever takes longer.

What an equation moves follows from what a compiler like XLA keeps in memory at all, which each op says (`opdef.Storage`): whoever
reads a view reads what it is a view of, at most as many bytes as the view has; fused equations become one kernel with what uses
them, and are stored only where something else than fused equations and reductions uses them, or where the function, or a loop,
gives them away. A product and the `fold` that adds up what it makes are one kernel, the transpose of a convolution.

An equation moves the bytes of stored operands and, where it is stored itself, of its results; each stored one is a kernel, which
costs the device's overhead. The roofline is a bound from below for a kernel, and a sum of them one from above for kernels that
overlap, which on one device they rarely do.

Where the device has a rate for it, products take longer by what is transposed for them (`ir/products.py`).

On a TPU (`Device.matrix`) arrays and products are filled up besides (`tiles.py`), and three more things are as XLA's compiler
for TPUs expects them, of kernels that it was given one by one (libtpu 0.0.42; the same on v2 to v5p):

- What is added up takes the time of its bytes in f32 as if it were written, so `sum(x * x)` takes twice as long as reading x.
- What a component-wise equation computes is reduced by the same kernel, stored or not, and so is not read for that.
- What is component-wise and cheap is computed again by each kernel that uses it. Random numbers are: adding, shifting and xor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from mtfc.compiler.analysis.sizes import Numbers
from mtfc.compiler.analysis.tiles import filled, is_sum, stored_bytes
from mtfc.compiler.hardware import Device
from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.opdef import Storage
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.ops.collectives import KIND_OF
from mtfc.compiler.ir.products import transposed
from mtfc.compiler.ir.types import Mesh, TensorType
from mtfc.compiler.ir.views import folded

HELD = "f32"
"""What is added up is held as: see above."""


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
    size, computed = memory.moved(eqn, device), flops * filled(eqn, memory.mesh, device)
    return Work(flops, size, kernel_seconds(eqn, eqn, computed, size, memory, device))


def largest(eqn: Equation, mesh: Mesh) -> int:
    """Elements of the largest array that a placed equation reads or writes."""
    return max(value.type.local_size(mesh) for value in (*eqn.operands, *eqn.results))


def kernel_seconds(
    eqn: Equation, placed: Equation, flops: float, size: int, memory: Memory, device: Device
) -> float:
    """Seconds of so many FLOPs on so many bytes, for an equation that the memory knows, as it is placed."""
    dtype = (eqn.operands or eqn.results)[0].type.dtype
    computing, moving = flops / device.rate(dtype).at(flops), size / device.bandwidth.at(size)
    seconds = max(computing, moving) + (1 - device.overlap) * min(computing, moving)
    kernel = memory.kernel(eqn)
    if rate := device.ops.get(kernel):
        seconds = max(seconds, largest(placed, memory.mesh) / rate * memory.copies(eqn, device))
    if kernel == "einsum" and (rate := device.ops.get("transposed")):
        seconds += transposed(placed, memory.mesh) / rate
    return seconds + (device.overhead if memory.is_stored(eqn) else 0.0)


def holds(eqn: Equation, device: Device) -> bool:
    """Whether it moves what it adds up."""
    return device.matrix is not None and (_storage(eqn) == "reduced" or is_sum(eqn))


def held_bytes(types: Iterable[TensorType], mesh: Mesh, device: Device) -> int:
    """Of what can be seen as any of these types."""
    return min(stored_bytes(type.with_dtype(HELD), mesh, device) for type in types)


def _storage(eqn: Equation) -> Storage:
    """Loops store what they give."""
    return "kernel" if eqn.regions else OPS[eqn.op].storage


class Memory:
    """Which values of a function are stored, and what reading each one reads; `mesh` is where they are placed.

    whole: the function, where some of its equations are left out.
    """

    def __init__(self, function: Function, mesh: Mesh, whole: Function | None = None) -> None:
        self.mesh = mesh
        self.makers: dict[Value, Equation] = {v: eqn for eqn in function.body for v in eqn.results}
        self.given = {output.value for output in function.outputs}
        self.readers: dict[Value, list[Equation]] = {}
        for eqn in function.body:
            for value in dict.fromkeys(eqn.operands):
                self.readers.setdefault(value, []).append(eqn)
        self.folded = folded(whole or function)
        self.stored = _stored(function, self.makers) - self.folded

    def is_stored(self, eqn: Equation) -> bool:
        return any(value in self.stored for value in eqn.results)

    def kernel(self, eqn: Equation) -> str:
        """The op, or what it is together with others (`hardware.KERNELS`)."""
        if eqn.op == "fold":
            return "fold" if eqn.operands[0] in self.folded else "unpool"
        is_windowed = any(map(self._is_window, eqn.operands))
        if eqn.op == "einsum":
            return "convolution" if is_windowed or eqn.result in self.folded else eqn.op
        return "pool" if is_windowed and _storage(eqn) == "reduced" else eqn.op

    def _is_window(self, value: Value) -> bool:
        """Whether it is a view of windows."""
        while (maker := self.makers.get(value)) is not None and _storage(maker) == "view":
            if maker.op == "window":
                return True
            value = maker.operands[0]
        return False

    def copies(self, eqn: Equation, device: Device) -> int:
        """How many kernels compute it."""
        if device.matrix is None or _storage(eqn) != "fused":
            return 1
        return max(1, sum(map(self._kernels, eqn.results)))

    def _kernels(self, value: Value) -> int:
        """How many read a value, wherever it is sent before."""
        found = int(value in self.given)
        for eqn in self.readers.get(value, ()):
            is_sent = eqn.op in KIND_OF or _storage(eqn) == "view"
            passed = zip(eqn.operands, eqn.results, strict=False) if is_sent else ()
            found += sum(self._kernels(made) for each, made in passed if each == value) if is_sent else 1
        return found

    def moved(self, eqn: Equation, device: Device) -> int:
        """Bytes that an equation reads and writes."""
        values = [value for value in dict.fromkeys(eqn.operands) if not self.is_joined(eqn, value, device)]
        read = [self.read(value, device) for value in values]
        if _storage(eqn) == "lookup":
            read[0] = min(read[0], stored_bytes(eqn.result.type, self.mesh, device))
        written = (
            stored_bytes(value.type, self.mesh, device) for value in eqn.results if value in self.stored
        )
        return sum(written) + sum(read) + self.held(eqn, device)

    def held(self, eqn: Equation, device: Device) -> int:
        """Bytes of what is added up."""
        if not holds(eqn, device):
            return 0
        types = ([each.type for each in self.seen(value)] for value in eqn.operands)
        return max(held_bytes(each, self.mesh, device) for each in types)

    def is_joined(self, eqn: Equation, value: Value, device: Device) -> bool:
        """Whether an equation that reduces is done by the kernel that makes its operand."""
        maker = self.makers.get(self.seen(value)[-1])
        is_able = device.matrix is not None and _storage(eqn) == "reduced"
        return is_able and maker is not None and _storage(maker) == "fused"

    def read(self, value: Value, device: Device) -> int:
        """Bytes that come from memory where a value is read."""
        return min((stored_bytes(each.type, self.mesh, device) for each in self.views(value)), default=0)

    def views(self, value: Value) -> list[Value]:
        """The value, what it is a view of, and so on to what is in memory; nothing where nothing is read."""
        found = self.seen(value)
        maker = self.makers.get(found[-1])
        if maker is not None and (_storage(maker) == "made" or found[-1] not in self.stored):
            return []
        return found

    def seen(self, value: Value) -> list[Value]:
        """The value, what it is a view of, and so on."""
        found = [value]
        while (maker := self.makers.get(found[-1])) is not None and _storage(maker) == "view":
            found.append(maker.operands[0])
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
