"""How long a processor computes: each equation by its FLOPs or by the bytes it moves, whichever takes longer.

What is in memory at all, and which equations are one kernel, `fusion.py` says. An equation moves the bytes of stored operands
and, where it is stored itself, of its results; each kernel costs the device's overhead. The roofline is a
bound from below for a kernel, and a sum of them one from above for kernels that overlap, which on one device they rarely do.

Where the device has rates for it, products take longer by what is transposed or reordered for them (`analysis/dot_operand_layout.py`).

On a TPU (`Device.matrix`) products are filled up besides (`tiling.py`). Loops take more than their iterations (`loop_kernels.py`).
"""

from __future__ import annotations

import attrs

from mtfc.compiler.analysis.buffer_kinds import storage
from mtfc.compiler.analysis.dot_operand_layout import reordered, transposed
from mtfc.compiler.cost.fusion import Memory
from mtfc.compiler.cost.hardware import Device
from mtfc.compiler.cost.loop_kernels import Loops
from mtfc.compiler.cost.sizes import Numbers
from mtfc.compiler.cost.tpu.scratchpad import kernels_of
from mtfc.compiler.cost.tpu.tiling import filled
from mtfc.compiler.ir.core import Equation, Function
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.types import Mesh

FOR_PRODUCTS = {"transposed": transposed, "reordered": reordered}
"""Elements that are moved for a product besides, by the names of their rates."""


@attrs.frozen
class Work:
    """What one equation computes and moves on one processor, once: FLOPs, bytes, seconds."""

    flops: int
    bytes: int
    seconds: float


def work(function: Function, mesh: Mesh, device: Device) -> list[Work]:
    """Of each equation of a placed function, in order; nothing for collectives, and for loops what they do not repeat."""
    return works(function, kernels_of(function, mesh, device), device)


def works(function: Function, memory: Memory, device: Device) -> list[Work]:
    """The same, where it is known already what is in memory."""
    loops = Loops.of(function, memory, device)
    return [
        Work(0, *loops.around(eqn)) if eqn.regions else _work(eqn, memory, device) for eqn in function.body
    ]


def _work(eqn: Equation, memory: Memory, device: Device) -> Work:
    if has_trait(eqn, "sends"):
        return Work(0, 0, 0.0)
    flops = OPS[eqn.op].flops(eqn, Numbers(memory.mesh))
    if storage(eqn) in ("view", "made"):
        return Work(flops, 0, 0.0)
    size, computed = memory.moved(eqn, device), flops * filled(eqn, memory.mesh, device, memory.windows(eqn))
    copied = [memory.bytes(value.type, device) for value in memory.copied(eqn, device)]
    seconds = kernel_seconds(eqn, eqn, computed, size, memory, device)
    return Work(flops, size + 2 * sum(copied), seconds + sum(copy_seconds(each, device) for each in copied))


def largest(eqn: Equation, mesh: Mesh) -> int:
    """Elements of the largest array that a placed equation reads or writes; of a table, those that indices point at."""
    values = eqn.operands if has_trait(eqn, "scatter") else (*eqn.operands, *eqn.results)
    if storage(eqn) == "lookup":
        values = values[1:]
    return max(value.type.local_size(mesh) for value in values)


def copy_seconds(size: int, device: Device) -> float:
    """Of an array of so many bytes that is copied: it is read and written."""
    return 2 * size / device.bandwidth.at(2 * size) + device.overhead


def kernel_seconds(
    eqn: Equation, placed: Equation, flops: float, size: int, memory: Memory, device: Device
) -> float:
    """Seconds of so many FLOPs on so many bytes, for an equation that the memory knows, as it is placed; without what is copied
    for it.
    """
    dtype = (eqn.operands or eqn.results)[0].type.dtype
    computing, moving = flops / device.rate(dtype).at(flops), memory.moving(eqn, size, device)
    seconds = max(computing, moving) + (1 - device.overlap) * min(computing, moving)
    kernel = memory.kernel(eqn)
    if rate := device.ops.get(kernel):
        seconds = max(seconds, largest(placed, memory.mesh) / rate * memory.copies(eqn, device))
    for part, elements in FOR_PRODUCTS.items() if kernel == "einsum" else ():
        if rate := device.ops.get(part):
            seconds += elements(placed, memory.mesh) / rate
    return seconds + memory.waiting(eqn, device)
