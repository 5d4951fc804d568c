"""Small programs on a TPU: those without loops whose memory is no more than the processor's own (`Device.scratchpad`).

There they lie, and XLA's compiler for TPUs (libtpu 0.0.42) expects less of their kernels:

- A product computes its component-wise operands itself, unless it reads windows: each product those that it has.
- What is component-wise of a product that nothing else uses is part of the product's kernel, with the update of a parameter whose
  gradient is not sent. So are reductions of this, or of a product. It is not stored if one product uses it, and nothing else.
- All that such a kernel moves, it moves while it multiplies.
- What is component-wise of something that was computed, and small beside what is computed of it, is a kernel of its own: what a
  softmax divides by. Numbers alone are none.
- Reductions of arrays with the same dimensions are one kernel, if none of them needs another.
- What the program is given comes from memory where it is first read. Everything else is read and written at rates of its own, and
  what is added up is held as elsewhere.
- A product waits (`Scratchpad.wait`); for memory the first one does, and those whose results are rounded, as only products use
  them, where what is component-wise reads at the rate of memory.

Larger programs are compiled like that in part. What `fusion.py` says of those was found without, and comes nearer to what the
compiler expects of them than it does with a part of this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mtfc.compiler.analysis.buffer_kinds import is_elementwise, storage
from mtfc.compiler.cost.fusion import Memory
from mtfc.compiler.cost.hardware import Device, Scratchpad
from mtfc.compiler.cost.memory import memory_on
from mtfc.compiler.cost.sizes import whole
from mtfc.compiler.cost.tpu.tiling import is_dot, is_sum
from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.loops import is_loop_body
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.types import Dim, Mesh

Kernel = Equation | None
"""A product, or any other kernel."""


def kernels_of(function: Function, mesh: Mesh, device: Device, is_placed: bool = True) -> Memory:
    """The memory of a function that is all that runs, or of the body of a loop.

    is_placed: whether it is known what is sent. If not, nothing is sure to be rounded.
    """
    own = device.own
    has_loops = is_loop_body(function) or any(eqn.regions for eqn in function.body)
    if own is None or has_loops or whole(memory_on(function, mesh, device).total) > own.bytes:
        return Memory(function, mesh, device)
    return Resident(function, mesh, device, own, is_placed)


class Resident(Memory):
    """The processor's own memory, with all that a program has.

    broadcast: what larger arrays are computed of. parts: the product whose kernel stores what an equation computes. kernels: the
    products whose kernels compute it, and None for all others. computed: what the kernel of a product computes. loading: the
    first equation to read a value. rounds: whether products wait for memory to round what they store. bytes_of: what is known of
    one kernel for an equation.
    """

    crosses_stages = True

    def __init__(
        self, function: Function, mesh: Mesh, device: Device, own: Scratchpad, is_placed: bool
    ) -> None:
        self.own = own
        self.is_placed = is_placed
        self.rounds = is_placed and (own.reads or 0.0) <= device.bandwidth.peak
        self.broadcast: set[Value] = set()
        self.parts: dict[Equation, Equation] = {}
        super().__init__(function, mesh, device)
        self.kernels = self._computing(function.body)
        products = filter(is_dot, function.body)
        self.computed: dict[Kernel, list[Equation]] = {each: [] for each in products}
        self.loading: dict[Value, Equation] = {}
        self.bytes_of: dict[Equation, tuple[int, int, int]] = {}
        for eqn in function.body:
            for kernel in self.kernels[eqn]:
                self.computed.setdefault(kernel, []).append(eqn)
            for value in eqn.operands if storage(eqn) != "view" else ():
                self.loading.setdefault(self.seen(value)[-1], eqn)

    def moved(self, eqn: Equation, device: Device) -> int:
        return super().moved(eqn, device) * len(self.kernels[eqn])

    def moving(self, eqn: Equation, size: int, device: Device) -> float:
        """Of what the kernel of a product moves altogether; if nothing is placed, of what an equation moves itself, in parts."""
        if not self.is_placed:
            moved = super().moved(eqn, device)
            return self._moving(eqn, self.kernels[eqn] != {None}, device) * size / moved if moved else 0.0
        if is_dot(eqn):
            return sum(self._moving(each, True, device) for each in self.computed[eqn])
        return self._moving(eqn, False, device) if None in self.kernels[eqn] else 0.0

    def _moving(self, eqn: Equation, by_product: bool, device: Device) -> float:
        """Seconds of what one kernel moves for an equation."""
        if eqn not in self.bytes_of:
            self.bytes_of[eqn] = self._bytes_of(eqn, device)
        size, read, written = self.bytes_of[eqn]
        own, rate = self.own, device.bandwidth.at(size)
        reads, writes = (own.factors, own.results) if by_product else (own.reads, own.writes)
        return (size - read - written) / rate + read / (reads or rate) + written / (writes or rate)

    def _bytes_of(self, eqn: Equation, device: Device) -> tuple[int, int, int]:
        """What one kernel moves for it, and what of that it reads and writes here."""
        values = (v for v in dict.fromkeys(eqn.operands) if not self.is_joined(eqn, v, device))
        read = sum(self.read(value, device) for value in values if self._is_here(eqn, value))
        written = sum(self.bytes(value.type, device) for value in eqn.results if value in self.stored)
        return super().moved(eqn, device), read, written

    def _is_here(self, eqn: Equation, value: Value) -> bool:
        """Whether an equation finds it here when it reads it."""
        source = self.seen(value)[-1]
        return source in self.makers or self.loading[source] is not eqn

    def waiting(self, eqn: Equation, device: Device) -> float:
        if not is_dot(eqn):
            return super().waiting(eqn, device)
        is_first = eqn is next(iter(self.computed))
        is_rounded = self.rounds and self._is_rounded(eqn)
        return max(self.own.wait, device.overhead) if is_first or is_rounded else self.own.wait

    def _is_rounded(self, product: Equation) -> bool:
        """Whether its kernel stores something, and only products use that then."""
        made = {value for eqn in self.computed[product] for value in eqn.results}
        for value in made.intersection(self.stored) - self.given:
            others = [user for user in self.users(value) if self.parts.get(user) is not product]
            if others and all(map(is_dot, others)):
                return True
        return False

    def is_joined(self, eqn: Equation, value: Value, device: Device) -> bool:
        return self.seen(value)[-1] not in self.broadcast and super().is_joined(eqn, value, device)

    # What is stored

    def _computes(self, eqn: Equation) -> bool:
        reads_windows = any(map(self.is_window, eqn.operands))
        return super()._computes(eqn) or (is_dot(eqn) and not reads_windows)

    def _store_ends(self, function: Function) -> None:
        self.broadcast = set(self._broadcast(function.body))
        self.stored |= self.broadcast
        super()._store_ends(function)
        self.stored -= {value for value in self.ends if self._is_operand(value)}
        self.parts = self._parts(function.body)
        numbers = (
            eqn for eqn in function.body if not any(v.type.dims for v in (*eqn.operands, *eqn.results))
        )
        self.elsewhere = {*self.parts, *numbers, *self._later_siblings(function.body)}

    def _broadcast(self, body: Iterable[Equation]) -> Iterator[Value]:
        for eqn in body:
            if is_elementwise(eqn) and not has_trait(eqn, "stop_gradient") and eqn.result.type.dims:
                users = filter(is_elementwise, self.users(eqn.result))
                if self._makers(eqn) and any(user.result.type.size > eqn.result.type.size for user in users):
                    yield eqn.result

    def _is_operand(self, value: Value) -> bool:
        """Whether a product uses it, and nothing else does."""
        found = list(self.users(value))
        return value not in self.given and len(found) == 1 and is_dot(found[0])

    def _is_accumulated(self, value: Value) -> bool:
        maker = self.makers.get(value)
        follows = maker is not None and is_dot(maker) and self._follower(value) is not None
        return follows or super()._is_accumulated(value)

    # What is one kernel

    def _parts(self, body: Sequence[Equation]) -> dict[Equation, Equation]:
        """See `parts`. Of all that an equation needs, the kernel of the product must compute the last.

        ready: the number of the equation whose kernel computes the last of it; -1 where all of it is given.
        """
        parts: dict[Equation, Equation] = {}
        ready: dict[Equation, int] = {}
        for i, eqn in enumerate(body):
            makers = self._makers(eqn)
            ready[eqn] = i if makers else -1
            if is_dot(eqn):
                parts[eqn] = eqn
            elif makers and self._is_able(eqn):
                last = max(ready[maker] for maker in makers)
                latest = [maker for maker in makers if ready[maker] == last]
                product = parts.get(latest[0])
                if product is not None and self._is_part(eqn, product, latest):
                    parts[eqn] = product
                if eqn in parts or not (self.is_stored(eqn) or _is_reduction(eqn)):
                    ready[eqn] = last
        return parts

    def _later_siblings(self, body: Iterable[Equation]) -> Iterator[Equation]:
        """Reductions that the kernel of one before computes, of arrays with the same dimensions: neither needs the other."""
        depths: dict[Equation, int] = {}
        before: set[tuple[frozenset[Dim], int]] = set()
        for eqn in body:
            depths[eqn] = max((depths[maker] for maker in self._makers(eqn)), default=0)
            if _is_reduction(eqn) and eqn not in self.parts:
                depths[eqn] += 1
                alike = frozenset(dim for value in eqn.operands for dim in value.type.dims), depths[eqn]
                if alike in before and not has_trait(eqn, "is_argmax"):
                    yield eqn
                before.add(alike)

    def _is_able(self, eqn: Equation) -> bool:
        """Whether the kernel of a product can compute it."""
        is_able = is_elementwise(eqn) or _is_reduction(eqn)
        return is_able and not has_trait(eqn, "is_argmax") and not any(map(self.is_window, eqn.operands))

    def _is_part(self, eqn: Equation, product: Equation, latest: Sequence[Equation]) -> bool:
        """Whether the kernel of a product computes what it needs `latest`, and so computes it, too."""
        if any(map(_is_reduction, latest)):
            return False
        return _is_reduction(eqn) or product not in latest or not self.is_stored(product)

    def _computing(self, body: Sequence[Equation]) -> dict[Equation, set[Kernel]]:
        """See `kernels`. What is not stored, each kernel computes that uses it."""
        found: dict[Equation, set[Kernel]] = {}
        for eqn in reversed(body):
            found[eqn] = {self.parts.get(eqn)}
            if is_elementwise(eqn) and not self.is_stored(eqn):
                found[eqn] = set[Kernel]().union(*(found[user] for user in self.users(eqn.result)))
        return found

    def _makers(self, eqn: Equation) -> list[Equation]:
        """What computes something of what it reads."""
        found = (self.makers.get(self.seen(value)[-1]) for value in eqn.operands)
        return [maker for maker in found if maker is not None and storage(maker) != "made"]


def _is_reduction(eqn: Equation) -> bool:
    return storage(eqn) == "reduced" or is_sum(eqn)
