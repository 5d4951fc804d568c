"""Kernels of TPUs, as XLA's compiler for TPUs makes and times them (libtpu 0.0.42).

Beyond `fusion.py`:

- Arrays lie in whole tiles, and dots are padded to the MXU (see `Tiles`).
- A dot whose result is only added to something is one kernel with the addition and with the elementwise equations that follow.
  Only the end of this chain is stored.
- An elementwise kernel also computes the reductions of its result, and the elementwise equations of the same stage that read the
  result. These do not read the result from memory, even if it is stored.
- Registers hold f32. Some values take the time of their bytes in f32, in whole tiles of 8 rows, besides their bytes in memory
  (register traffic): operands of a reduction, results in 16 bits, and results in tiles of fewer than 8 rows.

Loops:

- A loop whose iteration fits into the scratchpad (VMEM) keeps there the factors that all iterations multiply by, such as
  weights. If dots can write there, the loop also keeps sums of dots, such as gradients of weights, or these alone if not all of
  it fits.
- A backward loop clears its stacks before it fills them.
- Slices in f32 that only dots read are rounded to 16 bits before the loop, the whole stack once for all loops.
- An iteration copies what it stacks but does not compute itself: arguments, received values, results of inner loops. It also
  copies a slice of which an inner loop takes slices.

Padding:

- XLA lays arrays out in tiles of 8 x 128 elements along two of their dimensions (OpenXLA, "Tiled layout"). A tile has 1, 2 or 4
  rows if the array has no more. XLA chooses the two dimensions; here it takes those that pad least, but no dimension that windows
  slide along. An image, for example, has tiles along channels and batch. Registers hold 8 x 128 elements in f32, so tiles of
  fewer rows fill them only in part (`register_bytes`).
- The MXU (`Device.mxu_size`) holds a square of one factor, with summands along one side. Rows of the other factor pass through
  the MXU in groups of 8. Loading the square takes as long as passing its rows or its columns, whichever are fewer. XLA chooses
  which factor the MXU holds (`mxu_schedules`).

Small programs on TPUs: programs without loops whose memory fits into the scratchpad (VMEM, on v4 also CMEM).

XLA's compiler for TPUs (libtpu 0.0.42) keeps all arrays of such a program there, and fuses more (the rules above hold
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

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import pairwise, permutations
from math import inf, prod

from mtfc.compiler.analysis.dot_operand_layout import is_dot, role_sizes
from mtfc.compiler.analysis.liveness import is_elementwise, readers_of, storage
from mtfc.compiler.cost.fusion import FusionModel, stacked_outputs, users
from mtfc.compiler.cost.hardware import Device, Scratchpad
from mtfc.compiler.cost.sizes import Numbers
from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.loops import carried, dim_of, is_loop_body, outputs_of, pairs, region_of
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.ops.structure import reshape_groups
from mtfc.compiler.ir.types import ITEM_BYTES, Dim, Mesh, TensorType
from mtfc.compiler.records import frozen

REGISTERS = "f32"


class TpuFusion(FusionModel):
    """The kernels of a function on a TPU."""

    has_register_traffic = True
    crosses_stages = False

    def __init__(self, function: Function, mesh: Mesh, device: Device, whole: Function | None = None) -> None:
        """Decide which values are stored in memory, and which stay in the scratchpad of a loop's body.

        pixels: dimensions along which no tiles lie (`pixels_of`). ends: values stored in place of dots whose only use is an
        addition. crosses_stages: True if elementwise equations of another stage may belong to the kernel of a dot.
        """
        super().__init__(function, mesh, device, whole)
        self.pixels = pixels_of((whole or function).body, mesh)
        self._store_ends(function)
        if device.vmem is not None and is_loop_body(function):
            self.near = set(_carried_or_invariant(function)) if whole else self._kept_near(function)
            self.stored -= self.near

    # What is stored

    def _store_ends(self, function: Function) -> None:
        """Store the ends of chains after dots in place of the dots."""
        added = {value for value in self.stored if self._is_accumulated(value)}
        sums = {eqn.result for value in added for eqn in self.users(value)}
        self.ends = {self._end(value) for value in sums} - self.stored
        self.stored = self.stored - added | self.ends

    def _is_accumulated(self, value: Value) -> bool:
        """True for a dot whose only use is an addition."""
        found, maker = list(self.users(value)), self.makers.get(value)
        is_added = value not in self.returned and bool(found) and all(has_trait(eqn, "add") for eqn in found)
        return is_added and maker is not None and is_dot(maker)

    def _end(self, value: Value) -> Value:
        """Return the last value of a chain of elementwise equations in which each is the only reader of the previous one."""
        while (follower := self._follower(value)) is not None:
            value = follower.result
        return value

    def _follower(self, value: Value) -> Equation | None:
        """Return the elementwise equation that is the only user of a value, if one kernel may compute both."""
        found = list(self.users(value))
        is_alone = value not in self.returned and len(found) == 1 and is_elementwise(found[0])
        is_part = is_alone and (self.crosses_stages or found[0].stage == self.makers[value].stage)
        return found[0] if is_part else None

    def is_joined(self, eqn: Equation, value: Value) -> bool:
        """Return True if the kernel of an equation computes an operand itself: elementwise, and of the same stage."""
        maker = self.makers.get(self.seen(value)[-1])
        if maker is None or not is_elementwise(maker):
            return False
        if storage(eqn) == "reduced":
            return not self.is_window(value)
        return is_elementwise(eqn) and eqn.stage == maker.stage

    # Bytes

    def bytes(self, type: TensorType) -> int:
        return stored_bytes(type, self.mesh, self.device, self.pixels)

    def register_traffic(
        self, eqn: Equation, made: Sequence[TensorType], seen: Mapping[Value, Sequence[TensorType]]
    ) -> int:
        """Return the bytes that a kernel moves between VMEM and registers because its values are wider there.

        made: the types of its results. seen: operand -> the types of the views that it is read through.
        """
        if storage(eqn) == "reduced":
            return max(min(map(self._in_registers, types)) for types in seen.values())
        is_upcast = self.upcasts(eqn) and self.is_stored(eqn)
        if eqn.results[0] in self.folded or not (is_upcast or is_dot(eqn) or self.is_kernel(eqn)):
            return 0
        return sum(self._in_registers(type) for type in made if is_upcast or self._has_few_rows(type))

    def upcasts(self, eqn: Equation) -> bool:
        return all(is_short(value.type) for value in eqn.results) and (is_elementwise(eqn) or is_dot(eqn))

    def _in_registers(self, type: TensorType) -> int:
        return register_bytes(type, self.mesh, self.pixels)

    def _has_few_rows(self, type: TensorType) -> bool:
        """True if the tiles of an array have fewer rows than registers."""
        return self._in_registers(type) > self.bytes(type.with_dtype(REGISTERS))

    def copied(self, eqn: Equation) -> Iterator[Value]:
        """Yield nothing: on TPUs dots are not library kernels."""
        yield from ()

    # Seconds

    def mxu_schedules(self, eqn: Equation) -> list[tuple[float, float]]:
        """Return the ways in which the MXU may compute a dot: see `mxu_schedules`."""
        if not is_dot(eqn) or self.device.mxu_size is None:
            return super().mxu_schedules(eqn)
        return mxu_schedules(eqn, self.mesh, self.device.mxu_size)

    def loop_costs(self, function: Function) -> Mapping[Equation, tuple[int, float]]:
        """Return for each loop the bytes and the seconds that it adds to its kernels.

        A value is rounded in front of its first loop.
        """
        loops = [eqn for eqn in function.body if eqn.regions]
        rounding = {value: loop for loop in reversed(loops) for value in _rounded(loop)}
        return {
            loop: self._loop_cost(loop, [value for value, first in rounding.items() if first is loop])
            for loop in loops
        }

    def _loop_cost(self, loop: Equation, rounded: Sequence[Value]) -> tuple[int, float]:
        """Return the bytes and the seconds that a loop adds to its kernels: arrays cleared, arrays rounded, and copies in each
        iteration.

        rounded: the values that are rounded in front of this loop.
        """
        region = region_of(loop)
        trips = dim_of(loop).size
        passes = [self._pass("clear", self.bytes(value.type), value.type) for value in self._cleared(loop)]
        passes += [
            self._pass("round", self.bytes(value.type) * 3 // 2, value.type)
            for value in rounded
            if not self._is_stack(value)
        ]
        types = list(_copied(region, TpuFusion(region, self.mesh, self.device)))
        copied = 2 * sum(map(self.bytes, types))
        seconds = len(types) * self.device.overhead + copied / self.device.bandwidth.at(copied)
        size = sum(size for size, _ in passes) + trips * copied
        return size, sum(each for _, each in passes) + trips * (self.device.loop + seconds)

    def _cleared(self, loop: Equation) -> list[Value]:
        return stacks(loop) if self.clears(loop) else []

    def _pass(self, kernel: str, size: int, type: TensorType) -> tuple[int, float]:
        """Return the bytes and seconds of a kernel that clears or rounds an array."""
        rate = self.device.ops.get(kernel, inf)
        return size, max(size / self.device.bandwidth.at(size), type.local_size(self.mesh) / rate)

    def _is_stack(self, value: Value) -> bool:
        maker = self.makers.get(value)
        return maker is not None and bool(maker.regions)

    # Loops in the scratchpad

    def _kept_near(self, region: Function) -> set[Value]:
        """Return the values that a loop keeps in the scratchpad from iteration to iteration."""
        vmem = self.device.vmem
        if vmem is None or any(eqn.regions for eqn in region.body):
            return set()
        invariant = (argument.value for argument in region.arguments if argument.role == "invariant")
        weights = {value for value in invariant if all(map(is_dot, self.users(value)))}
        totals = dict(self._totals(region))
        values = self.stored.union(argument.value for argument in region.arguments)
        others = values.difference(weights, totals, totals.values())
        for near in (weights.union(totals), set(totals)) if vmem.results is not None else (weights,):
            if sum(self.bytes(value.type) for value in others | near) <= vmem.bytes:
                return near.union(after for before, after in totals.items() if before in near)
        return set()

    def _totals(self, region: Function) -> Iterator[tuple[Value, Value]]:
        """Yield the carries to which iterations add dots, before and after the addition."""
        stacked = set(stacked_outputs(region))
        for argument, output in zip(carried(region), region.outputs, strict=False):
            sums = [*self.users(argument.value)]
            is_total = len(sums) == 1 and any(map(self._is_accumulated, sums[0].operands))
            if is_total and sums[0].results == (output.value,) and output.value not in stacked:
                yield argument.value, output.value

    # Lower bounds under all layouts

    def least_bytes(self, type: TensorType) -> int:
        return least_tiled_bytes(type)

    def clears(self, loop: Equation) -> bool:
        return bool(loop.attrs["reverse"])


def is_short(type: TensorType) -> bool:
    """True if elements have 16 bits."""
    return ITEM_BYTES[type.dtype] == 2


def stacks(loop: Equation) -> list[Value]:
    """Return the results that a loop fills slice by slice."""
    return [value for value, output in outputs_of(loop) if output.updates is None]


def _rounded(loop: Equation) -> Iterator[Value]:
    """Yield the operands in f32 of which a loop takes slices for dots alone."""
    readers = readers_of(region_of(loop).body)
    for value, argument in pairs(loop):
        found = [*users(argument.value, readers)]
        if argument.role == "sliced" and value.type.dtype == REGISTERS and found and all(map(is_dot, found)):
            yield value


def _copied(region: Function, model: TpuFusion) -> Iterator[TensorType]:
    """Yield the types that an iteration copies."""
    for value in stacked_outputs(region):
        maker = model.makers.get(model.seen(value)[-1])
        if maker is None or maker.regions or has_trait(maker, "sends"):
            yield value.type
    for argument in region.arguments:
        if argument.role == "sliced" and any(eqn.regions for eqn in model.users(argument.value)):
            yield argument.value.type


def _carried_or_invariant(region: Function) -> Iterator[Value]:
    """Yield the values that some loop with these equations could keep in the scratchpad."""
    yield from (argument.value for argument in region.arguments if argument.role in ("carried", "invariant"))
    yield from (output.value for _, output in zip(carried(region), region.outputs, strict=False))


# Padding


ROWS, LANES = 8, 128
"""The sides of a tile."""


@frozen
class Tiles(Numbers):
    """Sizes of one processor's arrays with the padding of a device. pixels: see `pixels_of`."""

    device: Device
    pixels: Set[Dim]

    def elements(self, type: TensorType) -> int:
        return stored_bytes(type, self.mesh, self.device, self.pixels) // ITEM_BYTES[type.local_dtype]


def pixels_of(equations: Iterable[Equation], mesh: Mesh) -> set[Dim]:
    """Return the dimensions that windows slide along, those within windows, and the parts and wholes of both where they are
    split.
    """
    equations = list(equations)
    found, blocks = set[Dim](), set[Dim]()
    for eqn in equations:
        if has_trait(eqn, "window", "fold"):
            source, made = eqn.operands[0].type.dims, eqn.result.type.dims
            turned = set(source) ^ set(made)
            blocks |= {before for before, dim in (*pairwise(source), *pairwise(made)) if dim in turned}
            found |= turned
    for block, part, whole in _split_dims(equations, mesh):
        if block in blocks or part in found:
            found |= {part, whole}
    return found


def _split_dims(equations: Iterable[Equation], mesh: Mesh) -> Iterator[tuple[Dim, Dim, Dim]]:
    """Yield (blocks, block, whole) for each dimension that a reshape cuts into one block per processor, or joins again."""
    for eqn in equations:
        types = (eqn.operands[0].type, eqn.result.type) if has_trait(eqn, "reshape") else ()
        for whole, parts in permutations(types, 2):
            sizes = dict(zip(parts.dims, parts.local_shape(mesh), strict=True))
            for group in reshape_groups(whole.dims, parts.dims):
                if len(group.sources) == 1 and len(group.targets) == 2 and sizes[group.targets[0]] == 1:
                    yield (*group.targets, *group.sources)


def stored_bytes(type: TensorType, mesh: Mesh, device: Device, pixels: Set[Dim] = frozenset()) -> int:
    """Return the bytes of one processor's array in memory. pixels: see `pixels_of`."""
    if device.mxu_size is None:
        return type.local_bytes(mesh)
    return _tiled(type, mesh, pixels)[0] * ITEM_BYTES[type.local_dtype]


def register_bytes(type: TensorType, mesh: Mesh, pixels: Set[Dim] = frozenset()) -> int:
    """Return the bytes of the registers that hold one processor's array in f32."""
    return _tiled(type, mesh, pixels)[1] * ITEM_BYTES["f32"]


def least_tiled_bytes(type: TensorType) -> int:
    """Return a lower bound on the bytes of all shards of a tensor together, under any layout.

    All shards together have at least the lanes of the whole. This does not hold for rows, as small tiles have fewer.
    """
    if not type.dims:
        return type.size * ITEM_BYTES[type.dtype]
    return (
        min(type.size // dim.size * round_up(dim.size, LANES) for dim in type.dims) * ITEM_BYTES[type.dtype]
    )


def _tiled(type: TensorType, mesh: Mesh, pixels: Set[Dim]) -> tuple[int, int]:
    """Return the elements of an array in whole tiles, and in the same number of tiles of 8 rows."""
    shape = type.local_shape(mesh)
    size = prod(shape)
    if size == 0 or not shape:
        return size, size
    lanes = [size // n * round_up(n, LANES) for n in shape]
    if len(shape) < 2:
        return lanes[0], lanes[0]
    rows = [min(round_up(n, ROWS), 1 << (n - 1).bit_length()) for n in shape]
    every = range(len(shape))
    wanted = [i for i in every if type.dims[i] not in pixels and shape[i] > 1]
    sides = ((i, j) for i in wanted or every for j in (wanted if len(wanted) > 1 else every) if i != j)
    return min(
        (lanes[i] // shape[j] * rows[j], lanes[i] // shape[j] * round_up(shape[j], ROWS)) for i, j in sides
    )


# Dots in the MXU


def mxu_schedules(eqn: Equation, mesh: Mesh, side: int) -> list[tuple[float, float]]:
    """Return (passing rows, loading) for a dot whose first factor the MXU holds, and for one whose second it holds.

    Both are times over the time of the FLOPs.
    """
    one, other, summed = role_sizes(eqn, mesh)
    flops = one * other * summed
    taken = (_schedule(one, other, summed, side), _schedule(other, one, summed, side))
    return [(passing / flops, loading / flops) for passing, loading in taken]


def _schedule(columns: int, rows: int, summed: int, side: int) -> tuple[int, int]:
    """Return the multiplications that an MXU could do while rows pass, and while it loads the columns."""
    passing = round_up(rows, ROWS) * round_up(columns, side) * round_up(summed, side)
    loading = min(round_up(columns, side) * summed, columns * round_up(summed, side)) * side
    return passing, loading


def round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


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
        """Return the seconds to move the bytes of an equation, which arrays in VMEM make fewer."""
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
