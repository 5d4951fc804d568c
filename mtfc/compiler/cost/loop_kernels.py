"""What a loop takes besides its iterations' own kernels.

An iteration costs `Device.loop`. On a TPU, as XLA's compiler for TPUs has it (libtpu 0.0.42), there is more:

- What a loop fills is cleared before where the loop runs backwards, as in the gradient, or where another loop fills an array
  that looks the same. What only one loop fills, first index first, is not.
- What a loop takes in slices, in f32 and for products alone, is rounded to 16 bits before, once for all loops. (That products
  then read half as much is left out.)
- What stays in the processor's own memory from iteration to iteration is read and written once.
- What an iteration keeps but does not compute is copied: what it was given, what was sent, what a loop inside gave. So is the
  slice that a loop inside takes its own slices of, and what is carried if the product reads it that makes what takes its place,
  but where products leave that in the processor's own memory.
- A loop that runs once is none: it costs nothing.

What is cleared or rounded in kernels of its own may take longer than its bytes (`hardware.KERNELS`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import inf

import attrs

from mtfc.compiler.analysis.buffer_kinds import is_elementwise, readers_of
from mtfc.compiler.cost.fusion import Memory, users
from mtfc.compiler.cost.hardware import Device
from mtfc.compiler.cost.tpu.register_traffic import HELD, clearing_bytes, copying_bytes, rounding_bytes
from mtfc.compiler.cost.tpu.tiling import is_dot
from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.loops import carried, dim_of, pairs, region_of
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.types import TensorType

Looks = tuple[str, tuple[int, ...]]
"""Dtype and sizes of one processor's array."""


@attrs.frozen
class Loops:
    """The loops of a function. alike: how many loops fill arrays that look so. rounded: the first loop that has it rounded."""

    memory: Memory
    device: Device
    alike: Mapping[Looks, int]
    rounded: Mapping[Value, Equation]

    @classmethod
    def of(cls, function: Function, memory: Memory, device: Device) -> Loops:
        loops = [eqn for eqn in function.body if is_repeated(eqn) and device.matrix is not None]
        looks = ({_looks(value.type, memory) for value in stacks(loop)} for loop in loops)
        alike = Counter(each for found in looks for each in found)
        rounded = {value: loop for loop in reversed(loops) for value in _rounded(loop)}
        return cls(
            memory, device, alike, {v: loop for v, loop in rounded.items() if not _is_stack(v, memory)}
        )

    def around(self, loop: Equation) -> tuple[int, float]:
        """Bytes and seconds besides those of its iterations."""
        trips = dim_of(loop).size
        if self.device.matrix is None:
            return 0, trips * self.device.loop
        if not is_repeated(loop):
            return 0, 0.0
        inside = Memory(region_of(loop), self.memory.mesh, self.device)
        passes = [*self._passes(loop), *self._loaded(inside)]
        types = [*_copied(region_of(loop), inside)]
        if not (inside.is_near and self.device.keeps_results):
            types += _displaced(region_of(loop), inside)
        copied = sum(copying_bytes(each, self.memory, self.device) for each in types)
        copying = len(types) * self.device.overhead + copied / self.device.bandwidth.at(copied)
        each = self.device.loop + copying
        size = sum(size for size, _ in passes) + trips * copied
        return size, sum(seconds for _, seconds in passes) + trips * each

    def _passes(self, loop: Equation) -> Iterator[tuple[int, float]]:
        for value in stacks(loop):
            if loop.attrs["reverse"] or self.alike[_looks(value.type, self.memory)] > 1:
                yield self._pass(clearing_bytes(value.type, self.memory, self.device), value.type, "clear")
        for value, first in self.rounded.items():
            if first is loop:
                yield self._pass(rounding_bytes(value.type, self.memory, self.device), value.type, "round")

    def _loaded(self, inside: Memory) -> Iterator[tuple[int, float]]:
        """What stays for all iterations."""
        for value in inside.staying:
            size = self.memory.bytes(value.type, self.device)
            yield size, size / self.device.bandwidth.at(size)

    def _pass(self, size: int, type: TensorType, kernel: str) -> tuple[int, float]:
        elements = type.local_size(self.memory.mesh)
        rate = self.device.ops.get(kernel, inf)
        return size, max(size / self.device.bandwidth.at(size), elements / rate)


def is_repeated(eqn: Equation) -> bool:
    """Whether it is a loop of several iterations."""
    return bool(eqn.regions) and dim_of(eqn).size > 1


def stacks(loop: Equation) -> list[Value]:
    """What a loop fills."""
    given = zip(loop.results, region_of(loop).outputs, strict=True)
    return [value for value, output in given if output.updates is None]


def _looks(type: TensorType, memory: Memory) -> Looks:
    return type.dtype, type.local_shape(memory.mesh)


def _is_stack(value: Value, memory: Memory) -> bool:
    maker = memory.makers.get(value)
    return maker is not None and bool(maker.regions)


def _rounded(loop: Equation) -> Iterator[Value]:
    """What it takes in slices, in f32 and for products alone."""
    readers = readers_of(region_of(loop))
    for value, argument in pairs(loop):
        found = [*users(argument.value, readers)]
        if argument.role == "sliced" and value.type.dtype == HELD and found and all(map(is_dot, found)):
            yield value


def _copied(region: Function, memory: Memory) -> Iterator[TensorType]:
    """What each iteration copies to keep it, as it does not compute it, or to take slices of it."""
    for output in region.outputs:
        maker = memory.makers.get(memory.seen(output.value)[-1])
        is_computed = maker is not None and not maker.regions and not has_trait(maker, "sends")
        if output.updates is None and not is_computed:
            yield output.value.type
    for argument in region.arguments:
        if argument.role == "sliced" and any(eqn.regions for eqn in memory.users(argument.value)):
            yield argument.value.type


def _displaced(region: Function, memory: Memory) -> Iterator[TensorType]:
    """What is carried, and read by the kernel of the product that makes what takes its place."""
    for argument, output in zip(carried(region), region.outputs, strict=False):
        maker = memory.makers.get(memory.seen(output.value)[-1])
        product = memory.following.get(maker) if maker else None
        if product and any(argument.value in _sources(value, memory) for value in product.operands):
            yield argument.value.type


def _sources(value: Value, memory: Memory) -> list[Value]:
    """What a product reads that takes this value, or what is component-wise of something."""
    source = memory.seen(value)[-1]
    maker = memory.makers.get(source)
    computed = maker.operands if maker is not None and is_elementwise(maker) else ()
    return [source, *(memory.seen(each)[-1] for each in computed)]
