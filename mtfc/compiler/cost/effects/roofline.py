"""The time that a processor computes: of each equation, its FLOPs or the bytes that it moves, whichever take longer.

The model of the device's kernels (`fusion.py`, `device_models.py`) says which values are in memory, which equations are one
kernel, and how dots are padded. An equation reads its stored operands and writes its stored results, and each kernel costs the
device's overhead. The roofline is a lower bound for one kernel. Kernels rarely overlap on one device, so the time of a step is
their sum.

Some devices have rates for operands that are transposed or reordered for a dot (`analysis/dot_operand_layout.py`). Those add to
its time.

Searches price equations that each have a layout of their own, before it is known where values are resharded (`EquationTimes`).
Which values are stored is then taken from the program before it is placed. Left out are the stores that a reshard adds between
two fused kernels, and the time of loops besides their iterations. So a compiled program may cost a little more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import inf, prod

import attrs

from mtfc.compiler.analysis.attention_forms import is_attention, least_share, shared_dots
from mtfc.compiler.analysis.dimension_names import (
    PARAMS,
    SINGLE,
    DimensionNames,
    Dims,
    Pairs,
    bridge_of,
    called,
    iteration,
    own_dims,
    pairs_of,
    rule_of,
)
from mtfc.compiler.analysis.dot_operand_layout import (
    copied_elements,
    is_dot,
    role_sizes,
    transposed_elements,
)
from mtfc.compiler.analysis.liveness import storage
from mtfc.compiler.cost.device_models import fusion_of, fusion_of_program
from mtfc.compiler.cost.fusion import FusionModel
from mtfc.compiler.cost.hardware import PASSES, Device, Rate
from mtfc.compiler.cost.lower_bounds import (
    CommonProgram,
    Least,
    Most,
    ShardedAmount,
    Term,
    Total,
    Unless,
    Unmoved,
)
from mtfc.compiler.cost.sizes import Numbers
from mtfc.compiler.cost.tpu_kernels import REGISTERS, stacks
from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.loops import dim_of, pairs, region_of
from mtfc.compiler.ir.opdef import BY_NAME, no_flops
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.ops.attention import HIGH, LOW, MEMORY
from mtfc.compiler.ir.printer import shown_layout
from mtfc.compiler.ir.sharding_rules import operand_type
from mtfc.compiler.ir.types import Mesh, TensorType
from mtfc.compiler.records import frozen

REARRANGED = {"transposed": transposed_elements, "reordered": copied_elements}
"""Functions that count the elements rearranged for a dot, by the names of their rates."""


@frozen
class KernelWork:
    """FLOPs, bytes and seconds of one execution of an equation on one processor."""

    flops: int
    bytes: int
    seconds: float


def work(function: Function, mesh: Mesh, device: Device) -> list[KernelWork]:
    """Return the work of each equation of a placed function. Collectives have none; loops have their costs besides the
    iterations.
    """
    return work_in(function, fusion_of_program(function, mesh, device))


def work_in(function: Function, fusion: FusionModel) -> list[KernelWork]:
    """Return the work of each equation, for given kernels."""
    loops = fusion.loop_costs(function)
    return [KernelWork(0, *loops[eqn]) if eqn.regions else _work(eqn, fusion) for eqn in function.body]


def _work(eqn: Equation, fusion: FusionModel) -> KernelWork:
    """Return the FLOPs, the bytes and the seconds of the kernel of an equation.

    Collectives and views have no kernel seconds.
    """
    if has_trait(eqn, "sends"):
        return KernelWork(0, 0, 0.0)
    flops = OPS[eqn.op].flops(eqn, Numbers(fusion.mesh))
    if storage(eqn) in ("view", "made"):
        return KernelWork(flops, 0, 0.0)
    size = fusion.moved(eqn)
    copied = [fusion.bytes(value.type) for value in fusion.copied(eqn)]
    seconds = kernel_seconds(eqn, eqn, flops * fusion.mxu_padding(eqn), size, fusion)
    copying = sum(copy_seconds(each, fusion.device) for each in copied)
    return KernelWork(int(flops * (fusion.attended(eqn) or 1)), size + 2 * sum(copied), seconds + copying)


def computation_of(function: Function, mesh: Mesh, device: Device) -> float:
    """Return the seconds that one processor computes in one execution of a placed function."""
    total = 0.0
    for eqn, each in zip(function.body, work(function, mesh, device), strict=True):
        inside = computation_of(region_of(eqn), mesh, device) * dim_of(eqn).size if eqn.regions else 0.0
        total += inside + each.seconds
    return total


def largest(eqn: Equation, mesh: Mesh) -> int:
    """Return the elements of the largest array that a placed equation reads or writes. Of a table, only those that indices
    point at count.
    """
    values = eqn.operands if has_trait(eqn, "scatter") else (*eqn.operands, *eqn.results)
    if storage(eqn) == "lookup" or has_trait(eqn, "in_place"):
        values = values[1:]
    return max(value.type.local_size(mesh) for value in values)


def copy_seconds(size: int, device: Device) -> float:
    """Return the seconds to copy an array of `size` bytes, which is read and written."""
    return 2 * size / device.bandwidth.at(2 * size) + device.overhead


def kernel_seconds(eqn: Equation, placed: Equation, flops: float, size: int, fusion: FusionModel) -> float:
    """Return the seconds of an equation's kernel without copies.

    flops: its FLOPs with padding. size: the bytes that it moves. placed: the equation with the types of its placement.
    """
    device = fusion.device
    computing, moving = flops / _reached(placed, flops, fusion), fusion.memory_seconds(eqn, size)
    seconds = max(computing, moving) + (1 - device.overlap) * min(computing, moving)
    kernel = fusion.kernel(eqn)
    if rate := device.ops.get(kernel):
        seconds = max(seconds, largest(placed, fusion.mesh) / rate)
    for part, elements in REARRANGED.items() if kernel == "einsum" else ():
        if rate := device.ops.get(part):
            seconds += elements(placed, fusion.mesh) / rate
    return seconds + fusion.latency(eqn)


def _reached(placed: Equation, flops: float, fusion: FusionModel) -> float:
    """Return the FLOP/s that a placed equation reaches. Attention without a kernel reaches no more than with one."""
    device = fusion.device
    if device.attention and is_attention(placed):
        return _attention_rate(placed, device).at(_keys(placed, fusion.mesh))
    dtype = (placed.operands or placed.results)[0].type.dtype
    return device.rate(dtype).at(flops) * dot_share(placed, device, fusion.mesh)


def _keys(eqn: Equation, mesh: Mesh) -> int:
    """Return the keys of attention on a processor."""
    k, memory = eqn.operands[1].type, MEMORY.of(eqn.attrs)
    sizes = zip(k.dims, k.local_shape(mesh), strict=True)
    return prod(size for dim, size in sizes if dim in memory)


def _attention_rate(eqn: Equation, device: Device) -> Rate:
    """Return the FLOP/s of a kernel for attention, by the number of keys."""
    own = PASSES if has_trait(eqn, "attention") else PASSES[::-1]
    return next(device.attention[each] for each in own if each in device.attention)


def dot_share(placed: Equation, device: Device, mesh: Mesh) -> float:
    """Return the share of the device's rate that a placed equation reaches: less than 1 for dots of some shapes."""
    return 1.0 if device.dots is None or not is_dot(placed) else device.dots.of(*role_sizes(placed, mesh))


# Lower bounds


@frozen
class KernelBound:
    """A lower bound on the seconds of an equation's kernel in one step.

    arithmetic: seconds of its FLOPs at the peak rate. completing: pending sums that the kernel makes or reads, each with the
    seconds of the kernel if the sum is completed there. A completed sum is sent, and therefore stored and read again.
    """

    equation: Equation
    arithmetic: ShardedAmount
    seconds: Term
    completing: tuple[tuple[Value, Term], ...] = ()


@frozen
class _KernelParts:
    """The parts of a kernel's bound: bytes in `moved`, seconds in all others.

    loads: seconds of loading a matrix unit with either operand of a dot, if any.
    """

    arithmetic: ShardedAmount = attrs.field(factory=lambda: ShardedAmount(0.0))
    loads: tuple[Term, ...] = ()
    moved: tuple[Term, ...] = ()
    overhead: float = 0.0
    copied: tuple[Term, ...] = ()

    def seconds(self, device: Device, trips: int) -> Term:
        """Return the time of a kernel that runs `trips` times: the longer of its arithmetic and its traffic, and what comes
        on top.
        """
        computing = Total((self.arithmetic, Least(self.loads))) if self.loads else self.arithmetic
        moving = Total(self.moved, 1 / device.bandwidth.peak)
        return Total((Most((computing, moving)), ShardedAmount(self.overhead), *self.copied), trips)


def kernel_bounds(
    program: CommonProgram,
    function: Function,
    sums: Mapping[Value, Collection[Equation]],
    trips: int = 1,
    stored: Collection[Value] = (),
    free: Collection[Value] | None = None,
) -> Iterator[KernelBound]:
    """Yield a bound for each kernel that all layouts have, at peak rates. `function` is the program's, or a loop's that runs
    `trips` times.

    Whether other equations store or fuse their operands is not known. Every equation that computes something reads its operands.
    sums: values in which a sum may be completed, with their readers. stored: slices of arguments of the whole function. free:
    values that kernels may compute again where they read them, so that no loop stacks or carries them; None if all are kept.
    """
    device, is_common = program.device, program.is_common
    body = tuple(eqn for eqn in function.body if eqn.regions or is_common(eqn))
    outputs = function.outputs
    if free is not None:
        passing = {None, *(argument.value.name for argument in function.arguments if argument.value in free)}
        outputs = tuple(each for each in outputs if each.updates not in passing)
    fusion = fusion_of(attrs.evolve(function, body=body, outputs=outputs), SINGLE, device, whole=function)
    read_values = {*fusion.makers, *(argument.value for argument in function.arguments)}
    reads = _Reads(fusion, program.names, read_values, frozenset(stored), frozenset(free or ()))

    def bound(eqn: Equation, parts: _KernelParts, *completing: tuple[Value, _KernelParts]) -> KernelBound:
        """Return the bound of a kernel.

        completing: the sums that it may complete, each with the parts of the longer kernel.
        """
        arithmetic = attrs.evolve(parts.arithmetic, amount=parts.arithmetic.amount * trips)
        completions = tuple((value, each.seconds(device, trips)) for value, each in completing)
        return KernelBound(eqn, arithmetic, parts.seconds(device, trips), completions)

    stays = {*stored, *(a.value for a in function.arguments if a.role in ("parameter", "input"))}
    for eqn in body:
        if eqn.regions:
            slices = [a.value for v, a in pairs(eqn) if a.role == "sliced" and v in stays]
            inner = trips * dim_of(eqn).size
            within = None if free is None else {*free, *(a.value for v, a in pairs(eqn) if v in free)}
            yield from kernel_bounds(program, region_of(eqn), sums, inner, slices, within)
            iterations = dim_of(eqn).size * device.loop
            yield bound(eqn, _KernelParts(moved=tuple(_cleared(eqn, reads)), overhead=iterations))
        elif OPS[eqn.op].storage not in ("view", "made"):
            read = eqn.operands[has_trait(eqn, "in_place") :]
            operands = {value: reads.operand(eqn, value) for value in dict.fromkeys(read)}
            each = _parts_of(eqn, operands, reads)
            yield bound(eqn, each, *_completing(eqn, each, operands, reads, sums))
    for eqn in function.body:
        is_replaced = not eqn.regions and is_binary(eqn) and not is_common(eqn)
        if is_replaced and OPS[eqn.op].flops is not no_flops:
            operand_terms = (reads.operand(eqn, value) for value in dict.fromkeys(eqn.operands))
            moved = tuple(each for each in operand_terms if each is not None)
            yield bound(eqn, attrs.evolve(_left_of(eqn, reads), moved=moved))


def is_binary(eqn: Equation) -> bool:
    """False for dots of several operands, whose order of contraction depends on the layout."""
    return not has_trait(eqn, "dot") or len(eqn.operands) == 2


def _cleared(eqn: Equation, reads: _Reads) -> Iterator[Term]:
    """Yield the arrays that a backward loop clears before it fills them."""
    if reads.fusion.clears(eqn):
        yield from (reads.tiled(value) for value in stacks(eqn))


def _parts_of(eqn: Equation, operands: Mapping[Value, Term | None], reads: _Reads) -> _KernelParts:
    """Return the parts of the least kernel time of an equation: arithmetic, loads of the MXU, moved bytes, overhead, and
    copies.

    operands: the term for reading each operand, None if reading it costs nothing.
    """
    fusion, device = reads.fusion, reads.fusion.device
    stored = [value for value in eqn.results if value in fusion.stored and value not in fusion.ends]
    is_kernel = bool(stored) or not fusion.near.isdisjoint(eqn.results)
    computed = OPS[eqn.op].flops(eqn, Numbers(SINGLE)) / _peak(eqn, device)
    rows, loads = zip(*fusion.mxu_schedules(eqn), strict=True)
    if device.attending and is_attention(eqn):
        rows = (least_share(eqn, device.attending),)
    loaded = zip(loads, eqn.operands, strict=False) if any(loads) else ()
    seconds = max(computed * min(rows), largest(eqn, SINGLE) / _fastest(eqn, device))
    written = [reads.tiled(eqn.operands[1])] if has_trait(eqn, "in_place") else map(reads.tiled, stored)
    traffic = reads.register_traffic(eqn, bool(stored))
    return _KernelParts(
        arithmetic=ShardedAmount(seconds, _split(eqn, reads.names), pairs_of(bridge_of(eqn))),
        loads=tuple(
            ShardedAmount(computed * load, iteration(eqn, rule_of(eqn), value)) for load, value in loaded
        ),
        moved=(*written, *(each for each in (*operands.values(), traffic) if each is not None)),
        overhead=device.overhead * is_kernel,
        copied=tuple(reads.copied(eqn)),
    )


def _peak(eqn: Equation, device: Device) -> float:
    """Return the highest FLOP/s that an equation may reach under any layout."""
    peak = device.rate((eqn.operands or eqn.results)[0].type.dtype).peak
    if device.attention and is_attention(eqn):
        return _attention_rate(eqn, device).most(_keys(eqn, SINGLE))
    return peak * largest_share(eqn, device)


def largest_share(eqn: Equation, device: Device, is_joined: bool = False) -> float:
    """Return the largest share of the device's rate under any layout; is_joined: for any dot that has the equation as a part."""
    if device.dots is None or not is_dot(eqn):
        return 1.0
    return device.dots.most(*((inf,) * 3 if is_joined else role_sizes(eqn, SINGLE)))


NOWHERE = ""
"""The name of no dimension: an array is unmoved only if the dimension beside it is whole."""

RING = 0.5
"""The share of the FLOPs of masked attention that remains where a ring leaves out all hidden blocks."""


def _left_of(eqn: Equation, reads: _Reads) -> _KernelParts:
    """Return the arithmetic that surely remains of an equation that a layout replaces: of attention its dots, of others none."""
    if not is_attention(eqn):
        return _KernelParts()
    flops = OPS[eqn.op].flops(eqn, Numbers(SINGLE))
    device = reads.fusion.device
    seconds = flops * shared_dots(eqn, device.attending) / _peak(eqn, device)
    names = (iteration(eqn, rule_of(eqn), value) | reads.names.names[value] for value in eqn.operands)
    dims = frozenset[str]().union(*names, own_dims(eqn, rule_of(eqn)))
    is_masked = LOW.name in eqn.attrs or HIGH.name in eqn.attrs
    return _KernelParts(ShardedAmount(RING * seconds if is_masked else seconds, dims))


def _completing(
    eqn: Equation,
    parts: _KernelParts,
    operands: Mapping[Value, Term | None],
    reads: _Reads,
    sums: Mapping[Value, Collection[Equation]],
) -> Iterator[tuple[Value, _KernelParts]]:
    """Yield the sums whose completion here changes the kernel: results that it does not store yet, operands that it does not read
    yet.
    """
    if eqn.results[0] in sums and reads.is_passing(eqn):
        moved = (*parts.moved, *reads.stored(eqn))
        yield eqn.result, attrs.evolve(parts, moved=moved, overhead=reads.fusion.device.overhead)
    for value, read in operands.items():
        if read is None and eqn in sums.get(value, ()) and OPS[eqn.op].storage != "lookup":
            moved = (*parts.moved, Least(reads.arrays(eqn, [value])))
            yield value, attrs.evolve(parts, moved=moved)


def _fastest(eqn: Equation, device: Device) -> float:
    """Return the elements/s of the fastest kernel that may compute the op."""
    return max(device.ops.get(name, inf) for name in (eqn.op, _joined(eqn)))


def _joined(eqn: Equation) -> str:
    """Return the name of a larger kernel that may compute the op, or the op."""
    if has_trait(eqn, "fold"):
        return "unpool"
    if has_trait(eqn, "dot"):
        return "convolution"
    return "pool" if OPS[eqn.op].storage == "reduced" else eqn.op


@frozen(eq=False, slots=False)
class _Reads:
    """The reads of the equations of a function, which must be queried in the order of the equations. known: values that are known
    to be stored or not. slices: slices of arguments of the whole function. free: values that kernels may compute again. before:
    arrays that were read before.

    A folded array is read again where halos are added to it, and the sum may not be stored. So only the first use of an array
    counts where halos may be added to it.
    """

    fusion: FusionModel
    names: DimensionNames
    known: set[Value]
    slices: frozenset[Value]
    free: frozenset[Value] = frozenset()
    before: set[Value] = attrs.field(factory=set)

    def operand(self, eqn: Equation, value: Value) -> Term | None:
        """Return the bytes read of an operand; None where nothing is known."""
        views = [] if self.fusion.is_joined(eqn, value) else self.fusion.views(value)
        if not views or not self.known.issuperset(views) or self._is_free(eqn, views):
            return None
        base, arrays = views[-1], self.arrays(eqn, views)
        unless = self._haloed(base) if base in self.before else frozenset()
        self.before.add(base)
        if OPS[eqn.op].storage == "lookup" and value == eqn.operands[0]:
            arrays = (*arrays, self.tiled(eqn.result))
        return Unless(Least(arrays), unless) if unless else Least(arrays)

    def register_traffic(self, eqn: Equation, is_stored: bool) -> Term | None:
        """Return the bytes of a stored result in 16 bits, or of the largest operand of a reduction; None if not known."""
        if is_stored and self.fusion.upcasts(eqn):
            return self.upcast(eqn.result)
        seen = {value: self.fusion.seen(value) for value in eqn.operands}
        is_reduced = self.fusion.has_register_traffic and OPS[eqn.op].storage == "reduced"
        if not is_reduced or not all(map(self.known.issuperset, seen.values())):
            return None
        if any(self._is_free(eqn, each) for each in seen.values()):
            return None
        value = max(seen, key=lambda value: min(each.type.size for each in seen[value]))
        return Least(self.arrays(eqn, seen[value], REGISTERS))

    def _is_free(self, eqn: Equation, values: Collection[Value]) -> bool:
        """Return True if an equation may compute one of the values again; dots read arrays from memory."""
        return OPS[eqn.op].storage in ("fused", "reduced") and not self.free.isdisjoint(values)

    def copied(self, eqn: Equation) -> Iterator[Term]:
        """Yield the seconds of copying a loop's slice for a dot, and a dot's result for a stack, on CPUs and GPUs (`fusion.py`).

        Every layout copies at least the shard of a slice, unless the slice is resharded for the dot. The loop leaves a slice
        of an argument placed as the argument is stored (assign-layouts). The dot reduces a dimension, so it stays where the rules
        put it (propagate-layouts). A result is resharded before it is stacked if a dimension that the dot sums over is split.
        """
        rule = rule_of(eqn)
        for value in self.fusion.copied(eqn) if eqn.stage != "update" else ():
            known = self.names.own if value in self.slices else self.names.names
            names = tuple((name, name.removeprefix(PARAMS)) for name in sorted(known[value]))
            if value in eqn.results:
                names = tuple((called(eqn, dim.name), NOWHERE) for dim in rule.reduced)
            seconds = 2 * self.tiled(value).amount / self.fusion.device.bandwidth.peak
            split = frozenset(name.removeprefix(PARAMS) for name in known[value])
            copy = Total((ShardedAmount(seconds, split), ShardedAmount(self.fusion.device.overhead)))
            yield Unmoved(copy, names, own_dims(eqn, rule))

    def arrays(
        self, eqn: Equation, views: Sequence[Value], dtype: str | None = None
    ) -> tuple[ShardedAmount, ...]:
        """Return the least bytes that all shards together read of an operand, and of each array that the operand is a view of."""
        found, share = [], 1.0
        for i, each in enumerate(views):
            bridge = bridge_of(self.fusion.makers[views[i - 1]]) if i else None
            share *= bridge.share if bridge else 1.0
            type = each.type.with_dtype(dtype or each.type.dtype)
            least = int(type.local_bytes(SINGLE) * share) if share < 1 else self.fusion.least_bytes(type)
            found.append(
                ShardedAmount(least, self.names.names[each] if i else _needed(eqn, each, self.names))
            )
        return tuple(found)

    def is_passing(self, eqn: Equation) -> bool:
        """Return True if the only result stays in the kernel, but would be stored for a collective."""
        return len(eqn.results) == 1 and eqn.result not in self.fusion.stored | self.fusion.folded

    def stored(self, eqn: Equation) -> Iterator[Term]:
        """Yield the further bytes that a kernel moves if its result is stored."""
        yield self.tiled(eqn.result)
        if self.fusion.upcasts(eqn):
            yield self.upcast(eqn.result)

    def upcast(self, value: Value) -> ShardedAmount:
        """Return the bytes of a value in registers."""
        least = self.fusion.least_bytes(value.type.with_dtype(REGISTERS))
        return ShardedAmount(least, self.names.names[value])

    def tiled(self, value: Value) -> ShardedAmount:
        """Return the bytes of a value in memory."""
        return ShardedAmount(self.fusion.least_bytes(value.type), self.names.names[value])

    def _haloed(self, value: Value) -> Pairs:
        """Return the pairs of dimensions along which halos may be added to a value, or to values that it is folded from."""
        maker = self.fusion.makers.get(value)
        bridge = bridge_of(maker) if maker else None
        if maker is None or bridge is None:
            return frozenset()
        own: Pairs = frozenset() if bridge.is_local else pairs_of(bridge)
        return own | self._haloed(maker.operands[0])


def _needed(eqn: Equation, value: Value, names: DimensionNames) -> Dims:
    """Return the dimensions that may split an operand where an equation needs it."""
    rule = rule_of(eqn)
    if rule.reduced:
        return iteration(eqn, rule, value)
    if rule is BY_NAME and len(eqn.results) == 1:
        return names.names[eqn.result]
    return names.names[value].union(*(names.names[result] for result in eqn.results))


def _split(eqn: Equation, names: DimensionNames) -> Dims:
    """Return all names of those dimensions of the iteration space that a layout may split."""
    rule = rule_of(eqn)
    if rule.reduced:
        return own_dims(eqn, rule)
    whole = {called(eqn, name) for name in rule.whole}
    return frozenset[str]().union(*(names.names[value] for value in eqn.results)) - whole


# Layouts of single equations


Placed = Sequence[Equation]
"""One equation in several layouts, each with the types of the operands and results in that layout."""


class EquationTimes:
    """The seconds of the equations of one function, also of equations in loops."""

    def __init__(self, function: Function, mesh: Mesh, device: Device) -> None:
        """Find the kernels of a function.

        fusions: value -> the kernels of its body. flops: FLOPs by placement, for equal equations.
        """
        self.mesh, self.device = mesh, device
        self.fusions: dict[Value, FusionModel] = {}
        self.flops: dict[int, tuple[Placed, list[float]]] = {}
        self._add(function)

    def _add(self, function: Function) -> None:
        """Find the kernels of a function and of the loops in it."""
        fusion = fusion_of_program(function, self.mesh, self.device, is_placed=False)
        self.fusions |= dict.fromkeys(fusion.makers, fusion)
        for eqn in function.body:
            for region in eqn.regions:
                self._add(region)

    def seconds(self, eqn: Equation, placed: Placed) -> list[float]:
        """Return the seconds of one execution in each layout."""
        if storage(eqn) in ("view", "made"):
            return [0.0] * len(placed)
        fusion = self.fusions[eqn.results[0]]
        moved = (self._moved(fusion, eqn, each) for each in placed)
        return [
            kernel_seconds(eqn, each, flops, size, fusion)
            for each, flops, size in zip(placed, self._flops(placed, fusion), moved, strict=True)
        ]

    def copying(self, eqn: Equation, value: Value, types: Sequence[TensorType]) -> list[float]:
        """Return the seconds to copy an operand or result for a dot, for each of these placements.

        Only a loop's slice and a result count: a collective may stand between a view and the dot, which is not known here.
        """
        fusion = self.fusions[eqn.results[0]]
        if value not in fusion.copied(eqn) or value not in {*fusion.slices, *eqn.results}:
            return [0.0] * len(types)
        return [copy_seconds(fusion.bytes(type), self.device) for type in types]

    def _flops(self, placed: Placed, fusion: FusionModel) -> list[float]:
        """Return the FLOPs in each layout, padding included; equal placements share the result."""
        key, numbers = id(placed), Numbers(self.mesh)
        if key not in self.flops:
            found = [OPS[each.op].flops(each, numbers) * fusion.mxu_padding(each) for each in placed]
            self.flops[key] = placed, found
        return self.flops[key][1]

    def _moved(self, fusion: FusionModel, eqn: Equation, placed: Equation) -> int:
        """Return the bytes that an equation reads and writes in one layout."""
        operands = zip(eqn.operands, placed.operands, strict=True)
        seen = {value: self._seen(fusion, value, each.type) for value, each in operands}
        return fusion.moved_as(eqn, [value.type for value in placed.results], seen)

    def _seen(self, fusion: FusionModel, value: Value, type: TensorType) -> list[TensorType]:
        """Return the type of a value in this placement, and the types of the arrays that the value is a view of."""
        found = [type]
        for view in fusion.seen(value)[1:]:
            maker = fusion.makers[value]
            rule = OPS[maker.op].layout_rule(maker)
            type = operand_type(rule, attrs.evolve(maker, layout=shown_layout(type)), 0)
            found.append(type)
            value = view
        return found
