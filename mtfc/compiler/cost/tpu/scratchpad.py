"""Small programs on TPUs: programs without loops whose memory fits into the scratchpad (VMEM, on v4 also CMEM).

XLA's compiler for TPUs (libtpu 0.0.42) keeps all arrays of such a program there, and fuses more (all of `tpu_fusion.py` holds
besides):

- A dot computes its elementwise operands itself, unless they are windows. So each dot computes the operands that it needs.
- The kernel of a dot also computes the elementwise equations that follow it, the update of the parameter whose gradient it makes
  (unless the gradient is sent), and reductions of all these. The result is not stored if a dot is its only reader.
- An elementwise equation that computes a small array for larger ones, such as the divisor of a softmax, is a kernel of its own.
  Scalars start no kernel.
- Reductions over arrays with the same dimensions are one kernel, unless one needs the result of the other.
- Kernels read and write the scratchpad at its own rates (`Scratchpad`). Register traffic costs the same as elsewhere.
- A dot starts after the latency of the scratchpad. The first dot starts after the latency of memory. So does a dot whose result
  is rounded because only dots read it, on devices whose elementwise kernels read no faster than from memory.

XLA compiles larger programs like this in part. Predictions for these are closer without these rules than with some of them, so
there is a step in predicted times where a program outgrows the scratchpad.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mtfc.compiler.analysis.buffer_kinds import is_elementwise, storage
from mtfc.compiler.analysis.dot_operand_layout import is_dot
from mtfc.compiler.cost.hardware import Device, Scratchpad
from mtfc.compiler.cost.tpu.tpu_fusion import TpuFusion
from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.types import Dim, Mesh

Kernel = Equation | None
"""The dot that a kernel computes; None for all other kernels."""


class ScratchpadFusion(TpuFusion):
    """The kernels of a program that lies in the scratchpad.

    rounds: True if dots wait for memory to round their results. small: elementwise results from which larger arrays are
    computed. parts: the dot whose kernel stores the result of an equation. without_kernel: equations that have no kernel of
    their own. kernels: all kernels that compute an equation. computed: the equations that the kernel of a dot computes.
    """

    crosses_stages = True

    def __init__(
        self, function: Function, mesh: Mesh, device: Device, vmem: Scratchpad, is_placed: bool
    ) -> None:
        """Decide which kernel computes each equation. is_placed: True if the collectives are explicit."""
        self.vmem = vmem
        self.rounds = is_placed and (vmem.reads or 0.0) <= device.bandwidth.peak
        self.small: set[Value] = set()
        self.parts: dict[Equation, Equation] = {}
        self.without_kernel: set[Equation] = set()
        self.seconds_per_byte: dict[Equation, float] = {}
        super().__init__(function, mesh, device)
        self.kernels = self._computing(function.body)
        self.computed: dict[Kernel, list[Equation]] = {eqn: [] for eqn in filter(is_dot, function.body)}
        for eqn in function.body:
            for kernel in self.kernels[eqn]:
                self.computed.setdefault(kernel, []).append(eqn)

    # Seconds

    def memory_seconds(self, eqn: Equation, size: int) -> float:
        if eqn not in self.seconds_per_byte:
            self.seconds_per_byte[eqn] = self._seconds_per_byte(eqn)
        return size * self.seconds_per_byte[eqn]

    def _seconds_per_byte(self, eqn: Equation) -> float:
        """Return the mean over all bytes that an equation moves."""
        moved = self.moved(eqn)
        values = (v for v in dict.fromkeys(eqn.operands) if not self.is_joined(eqn, v))
        read = sum(map(self.read, values))
        written = sum(self.bytes(value.type) for value in eqn.results if value in self.stored)
        vmem, rate = self.vmem, self.device.bandwidth.at(moved)
        in_dot = self.kernels[eqn] != {None}
        reads, writes = (vmem.factors, vmem.results) if in_dot else (vmem.reads, vmem.writes)
        seconds = (moved - read - written) / rate + read / (reads or rate) + written / (writes or rate)
        return seconds / moved if moved else 0.0

    def latency(self, eqn: Equation) -> float:
        """Return the latency of a kernel.

        The first dot, and dots that wait for memory, also wait for the start of a kernel.
        """
        if not is_dot(eqn):
            return super().latency(eqn)
        is_first = eqn is next(iter(self.computed))
        is_rounded = self.rounds and self._is_rounded(eqn)
        return max(self.vmem.latency, self.device.overhead) if is_first or is_rounded else self.vmem.latency

    def is_kernel(self, eqn: Equation) -> bool:
        return super().is_kernel(eqn) and eqn not in self.without_kernel

    def _is_rounded(self, dot: Equation) -> bool:
        """True if the kernel of a dot stores a value that only dots read."""
        made = {value for eqn in self.computed[dot] for value in eqn.results}
        for value in made.intersection(self.stored) - self.returned:
            others = [user for user in self.users(value) if self.parts.get(user) is not dot]
            if others and all(map(is_dot, others)):
                return True
        return False

    # What is stored

    def _fuses_operands(self, eqn: Equation) -> bool:
        reads_windows = any(map(self.is_window, eqn.operands))
        return super()._fuses_operands(eqn) or (is_dot(eqn) and not reads_windows)

    def _store_ends(self, function: Function) -> None:
        """Store small values and ends; then find the equations that run in the kernel of a dot, or in no kernel."""
        self.small = set(self._small(function.body))
        self.stored |= self.small
        super()._store_ends(function)
        self.stored -= {value for value in self.ends if self._is_factor(value)}
        self.parts = self._parts(function.body)
        scalars = (
            eqn for eqn in function.body if not any(v.type.dims for v in (*eqn.operands, *eqn.results))
        )
        self.without_kernel = {*self.parts, *scalars, *self._later_reductions(function.body)}

    def _small(self, body: Iterable[Equation]) -> Iterator[Value]:
        """Yield the elementwise results from which larger arrays are computed."""
        for eqn in body:
            if is_elementwise(eqn) and not has_trait(eqn, "stop_gradient") and eqn.result.type.dims:
                users = filter(is_elementwise, self.users(eqn.result))
                if self._makers(eqn) and any(user.result.type.size > eqn.result.type.size for user in users):
                    yield eqn.result

    def _is_factor(self, value: Value) -> bool:
        """True if a dot is the only reader of the value."""
        found = list(self.users(value))
        return value not in self.returned and len(found) == 1 and is_dot(found[0])

    def _is_accumulated(self, value: Value) -> bool:
        """Return True for a dot whose only use is an addition, or whose result a following dot of the same kernel adds to."""
        maker = self.makers.get(value)
        is_followed = maker is not None and is_dot(maker) and self._follower(value) is not None
        return is_followed or super()._is_accumulated(value)

    def is_joined(self, eqn: Equation, value: Value) -> bool:
        return self.seen(value)[-1] not in self.small and super().is_joined(eqn, value)

    # Equations of one kernel

    def _parts(self, body: Sequence[Equation]) -> dict[Equation, Equation]:
        """Return the dot for each equation of its kernel. The kernel must compute the last operand of each equation.

        ready: the number of the equation whose kernel makes the last operand; -1 if all operands are arguments.
        """
        parts: dict[Equation, Equation] = {}
        ready: dict[Equation, int] = {}
        for i, eqn in enumerate(body):
            makers = self._makers(eqn)
            ready[eqn] = i if makers else -1
            if is_dot(eqn):
                parts[eqn] = eqn
            elif makers and self._can_follow(eqn):
                last = max(ready[maker] for maker in makers)
                latest = [maker for maker in makers if ready[maker] == last]
                dot = parts.get(latest[0])
                if dot is not None and self._is_part(eqn, dot, latest):
                    parts[eqn] = dot
                if eqn in parts or not (self.is_stored(eqn) or _is_reduction(eqn)):
                    ready[eqn] = last
        return parts

    def _later_reductions(self, body: Iterable[Equation]) -> Iterator[Equation]:
        """Yield reductions that the kernel of an earlier reduction computes."""
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

    def _can_follow(self, eqn: Equation) -> bool:
        """True if the kernel of a dot can compute the equation after the dot."""
        is_able = is_elementwise(eqn) or _is_reduction(eqn)
        return is_able and not has_trait(eqn, "is_argmax") and not any(map(self.is_window, eqn.operands))

    def _is_part(self, eqn: Equation, dot: Equation, latest: Sequence[Equation]) -> bool:
        """True if the kernel of a dot, which computes the operands `latest`, also computes the equation."""
        if any(map(_is_reduction, latest)):
            return False
        return _is_reduction(eqn) or dot not in latest or not self.is_stored(dot)

    def _computing(self, body: Sequence[Equation]) -> dict[Equation, set[Kernel]]:
        """Return the kernels of each equation. Every kernel that uses a value computes the value if it is not stored."""
        found: dict[Equation, set[Kernel]] = {}
        for eqn in reversed(body):
            found[eqn] = {self.parts.get(eqn)}
            if is_elementwise(eqn) and not self.is_stored(eqn):
                found[eqn] = set[Kernel]().union(*(found[user] for user in self.users(eqn.result)))
        return found

    def _makers(self, eqn: Equation) -> list[Equation]:
        """Return the equations that compute the operands."""
        found = (self.makers.get(self.seen(value)[-1]) for value in eqn.operands)
        return [maker for maker in found if maker is not None and storage(maker) != "made"]


def _is_reduction(eqn: Equation) -> bool:
    return storage(eqn) == "reduced"
