"""How long a processor computes: each equation by its FLOPs or by the bytes it moves, whichever takes longer.

What an equation moves follows from what a compiler like XLA keeps in memory at all, which each op says (`opdef.Storage`): whoever
reads a view reads what it is a view of, at most as many bytes as the view has; fused equations become one kernel with what uses
them, and are stored only where something else than fused equations and reductions uses them, or where the function, or a loop,
gives them away. A product and the `fold` that adds up what it makes are one kernel, the transpose of a convolution.

An equation moves the bytes of stored operands and, where it is stored itself, of its results; each stored one is a kernel, which
costs the device's overhead. The roofline is a bound from below for a kernel, and a sum of them one from above for kernels that
overlap, which on one device they rarely do.

Where the device has a rate for it, products take longer by what is transposed for them (`ir/products.py`).

On a TPU (`Device.matrix`) arrays and products are filled up besides (`tiles.py`), and more is as XLA's compiler for TPUs has it
(libtpu 0.0.42). It expects of single kernels, the same on v2 to v5p:

- What is added up takes the time of its bytes in f32 as if it were written, so `sum(x * x)` takes twice as long as reading x.
- So does what is computed component-wise and stored in 16 bits.
- What is component-wise and cheap is computed again by each kernel that uses it. Random numbers are: adding, shifting and xor.

And it makes kernels of several equations:

- What a component-wise equation computes is reduced, or used component-wise in the same stage, by the same kernel, stored or not,
  and so is not read for that. Products that are sums, without rows and columns, are reductions.
- Several reductions of an array hold once what they add up.
- A product that is only added to something is added by its own kernel, and stored nowhere.
- What a loop keeps of each iteration is written twice where the iteration itself uses it, and what a loop that runs backwards
  fills is cleared before.
- Features of a convolution that are several dimensions are copied to be one, unless whole tiles lie side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import attrs

from mtfc.compiler.analysis.sizes import Numbers
from mtfc.compiler.analysis.tiles import LANES, filled, is_product, is_sum, stored_bytes
from mtfc.compiler.hardware import Device
from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.loops import ROLES, region_of
from mtfc.compiler.ir.opdef import Storage
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.ops.collectives import KIND_OF
from mtfc.compiler.ir.products import transposed
from mtfc.compiler.ir.types import ITEM_BYTES, Dim, Mesh, TensorType
from mtfc.compiler.ir.views import folded

HELD = "f32"
"""What is added up, or computed, is held as: see above."""


@attrs.frozen
class Work:
    """What one equation computes and moves on one processor, once: FLOPs, bytes, seconds."""

    flops: int
    bytes: int
    seconds: float


def work(function: Function, mesh: Mesh, device: Device) -> list[Work]:
    """Of each equation of a placed function, in order; nothing for collectives, and for loops what they do not repeat."""
    return works(function, Memory(function, mesh, device), device)


def works(function: Function, memory: Memory, device: Device) -> list[Work]:
    """The same, where it is known already what is in memory."""
    return [_work(eqn, memory, device) for eqn in function.body]


def _work(eqn: Equation, memory: Memory, device: Device) -> Work:
    if eqn.regions:
        cleared = sum(memory.bytes(value.type, device) for value in memory.cleared(eqn, device))
        return Work(0, cleared, cleared / device.bandwidth.at(cleared))
    if eqn.op in KIND_OF:
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


def held_bytes(types: Iterable[TensorType], memory: Memory, device: Device) -> int:
    """Of what can be seen as any of these types."""
    return min(memory.bytes(type.with_dtype(HELD), device) for type in types)


def _storage(eqn: Equation) -> Storage:
    """Loops store what they give."""
    return "kernel" if eqn.regions else OPS[eqn.op].storage


class Memory:
    """Which values of a function are stored, and what reading each one reads; `mesh` is where they are placed.

    whole: the function, where some of its equations are left out.
    """

    def __init__(
        self, function: Function, mesh: Mesh, device: Device | None = None, whole: Function | None = None
    ) -> None:
        self.mesh = mesh
        self.makers: dict[Value, Equation] = {v: eqn for eqn in function.body for v in eqn.results}
        self.given = {output.value for output in function.outputs}
        self.readers: dict[Value, list[Equation]] = {}
        for eqn in function.body:
            for value in dict.fromkeys(eqn.operands):
                self.readers.setdefault(value, []).append(eqn)
        self.folded = folded(whole or function)
        is_tpu = device is not None and device.matrix is not None
        self.stored = _stored(function, self.makers, is_tpu) - self.folded
        self.pixels: set[Dim] = set()
        self.stacked: set[Value] = set()
        self.holders: dict[Value, Equation] = {}
        if is_tpu:
            self._know_tpu(whole or function)

    def _know_tpu(self, function: Function) -> None:
        """What counts on TPUs: see the top.

        pixels: dimensions that windows turn into others. stacked: what a loop keeps. holders: the first to add up an array.
        """
        self.stored -= {value for value in self.stored if self._is_accumulated(value)}
        if any(argument.role in ROLES for argument in function.arguments):
            self.stacked = {output.value for output in function.outputs if output.updates is None}
        for eqn in function.body:
            if eqn.op in ("window", "fold"):
                self.pixels |= set(eqn.operands[0].type.dims) ^ set(eqn.result.type.dims)
            for value in eqn.operands if _storage(eqn) == "reduced" or is_sum(eqn) else ():
                self.holders.setdefault(self.seen(value)[-1], eqn)

    def _is_accumulated(self, value: Value) -> bool:
        """Whether it is a product that is only added to something."""
        users = list(self._users(value))
        maker = self.makers.get(value)
        is_alone = value not in self.given and bool(users) and all(eqn.op == "add" for eqn in users)
        return is_alone and maker is not None and is_product(maker)

    def _users(self, value: Value) -> Iterator[Equation]:
        """What computes something of a value, or of what is a view of it, or sends it."""
        for eqn in self.readers.get(value, ()):
            if _storage(eqn) == "view":
                yield from self._users(eqn.results[0])
            else:
                yield eqn

    def is_kept(self, value: Value) -> bool:
        """Whether a loop keeps it of each iteration, and the iteration uses it, too."""
        return value in self.stacked and any(self._users(value))

    def bytes(self, type: TensorType, device: Device) -> int:
        """What an array of this type takes."""
        return stored_bytes(type, self.mesh, device, self.pixels)

    def cleared(self, loop: Equation, device: Device) -> list[Value]:
        """What is cleared for a loop."""
        if device.matrix is None or not loop.attrs["reverse"]:
            return []
        pairs = zip(loop.results, region_of(loop).outputs, strict=True)
        return [value for value, output in pairs if output.updates is None]

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
            read[0] = min(read[0], self.bytes(eqn.result.type, device))
        written = [value for value in eqn.results if value in self.stored]
        written += [value for value in written if self.is_kept(value)]
        moved = sum(self.bytes(value.type, device) for value in written) + sum(read)
        return moved + self.held(eqn, device) + self._merged(eqn, device)

    def held(self, eqn: Equation, device: Device) -> int:
        """Bytes of what is added up, or computed and stored in 16 bits, as it is held."""
        if self.is_widened(eqn, device):
            return sum(self.bytes(value.type.with_dtype(HELD), device) for value in eqn.results)
        if not self.is_holding(eqn, device):
            return 0
        types = ([each.type for each in self.seen(value)] for value in eqn.operands)
        return max(held_bytes(each, self, device) for each in types)

    def is_widened(self, eqn: Equation, device: Device) -> bool:
        """Whether it computes component-wise what it stores in 16 bits."""
        is_able = device.matrix is not None and _storage(eqn) == "fused" and self.is_stored(eqn)
        return is_able and all(ITEM_BYTES[value.type.dtype] == 2 for value in eqn.results)

    def _merged(self, eqn: Equation, device: Device) -> int:
        """Bytes that are copied so that the features of a convolution are one dimension, or several again."""
        if device.matrix is None or self.kernel(eqn) != "convolution":
            return 0
        windows = [value for value in eqn.operands if self._is_window(value)]
        others = [value for value in eqn.operands if value not in windows]
        if not (len(windows) == len(others) == 1):
            return 0
        ((known,), (other,)) = windows, others
        sizes = dict(zip(other.type.dims, other.type.local_shape(self.mesh), strict=True))
        features = [n for dim, n in sizes.items() if n > 1 and dim not in self.pixels.union(known.type.dims)]
        is_aligned = len(features) < 2 or features[-1] % LANES == 0
        return 0 if is_aligned else 2 * max(self.bytes(value.type, device) for value in (other, eqn.result))

    def is_holding(self, eqn: Equation, device: Device) -> bool:
        """Whether it moves what it adds up, as none before does."""
        sources = [self.seen(value)[-1] for value in eqn.operands] if holds(eqn, device) else []
        return bool(sources) and all(self.holders[source] is eqn for source in sources)

    def is_joined(self, eqn: Equation, value: Value, device: Device) -> bool:
        """Whether an equation is part of the kernel that makes its operand, component-wise."""
        maker = self.makers.get(self.seen(value)[-1])
        if device.matrix is None or maker is None or _storage(maker) != "fused":
            return False
        return holds(eqn, device) or (_storage(eqn) == "fused" and eqn.stage == maker.stage)

    def read(self, value: Value, device: Device) -> int:
        """Bytes that come from memory where a value is read."""
        return min((self.bytes(each.type, device) for each in self.views(value)), default=0)

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


def _stored(function: Function, makers: Mapping[Value, Equation], is_tpu: bool) -> set[Value]:
    """The values that are in memory: see the top."""
    unstored = ("view", "made", "fused")
    found = {value for eqn in function.body if _storage(eqn) not in unstored for value in eqn.results}
    given = [output.value for output in function.outputs]
    absorbing = ("view", "fused", "reduced")
    reading = (
        eqn for eqn in function.body if _storage(eqn) not in absorbing and not (is_tpu and is_sum(eqn))
    )
    return found | set(_sources((*given, *(value for eqn in reading for value in eqn.operands)), makers))


def _sources(values: Iterable[Value], makers: Mapping[Value, Equation]) -> Iterable[Value]:
    """What the values are views of, or they themselves."""
    for value in values:
        while (maker := makers.get(value)) is not None and _storage(maker) == "view":
            (value, *_) = maker.operands
        yield value
