"""What a step computes and moves: each equation of the undistributed program that every layout has, split over its dimensions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from math import inf

import attrs

from mtfc.compiler.analysis.buffer_kinds import is_elementwise
from mtfc.compiler.cost.fusion import Memory
from mtfc.compiler.cost.hardware import Device
from mtfc.compiler.cost.loop_kernels import is_repeated, stacks
from mtfc.compiler.cost.roofline import largest
from mtfc.compiler.cost.sizes import Numbers
from mtfc.compiler.cost.tpu.register_traffic import HELD, is_held, is_holding, is_short, is_widened
from mtfc.compiler.cost.tpu.tiling import is_dot, is_sum, least_bytes, ways
from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.loops import dim_of, pairs, region_of
from mtfc.compiler.ir.opdef import BY_NAME, no_flops
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.search.global_layouts.dimension_names import (
    PARAMS,
    Dims,
    Naming,
    called,
    iteration,
    rule_of,
)
from mtfc.compiler.search.global_layouts.named_arrays import (
    SINGLE,
    Array,
    Pairs,
    Sure,
    bridge_of,
    own_dims,
    pairs_of,
)


@attrs.frozen
class Moved:
    """Bytes of an array, the smallest of several that it can be read as; not where some of `unless` may be split alike."""

    arrays: tuple[Array, ...]
    unless: Pairs = frozenset()


@attrs.frozen
class Copied:
    """A slice that a loop takes of an argument of the function, which a product copies on CPUs and GPUs (`kernels.py`).

    bytes: read and written, of all shards of a slice. names: what each dimension is called where the argument is stored, and by
    the product. beside: all dimensions of the product.

    No layout copies less than its shard: only what is resharded for the product is not copied. The loop leaves a slice placed as
    the argument is stored (assign-layouts), and a product, as it reduces, stays where the rules of the computation put it
    (propagate-layouts). That is the same place if the argument is not split further where it is stored, and if no axis could split two
    dimensions of the product, of which one had to give it up. Where one of these is not known, nothing counts. Nor does what an
    equation makes before the loop, or in it of the slice: that may follow other uses.
    """

    bytes: int
    names: tuple[tuple[str, str], ...]
    beside: Dims


@attrs.frozen(cache_hash=True)
class Work:
    """Seconds of FLOPs at the peak rate, split over `dims`, and over those in `alike` if these are split alike; of a product,
    what loading a matrix unit with either factor takes, split over its dimensions; bytes that are moved; `overhead` seconds; what
    is copied for it. All of it `trips` times.
    """

    seconds: float
    dims: Dims
    alike: Pairs
    loads: tuple[tuple[float, Dims], ...]
    moved: tuple[Moved, ...]
    overhead: float
    trips: int
    copied: tuple[Copied, ...] = ()


Completing = tuple[tuple[Value, Work], ...]
"""Sums that an equation makes or reads, and what its work is where they are completed: they are stored, and read again."""


def work_of(
    function: Function,
    naming: Naming,
    device: Device,
    trips: int,
    sure: Sure,
    sums: Mapping[Value, Collection[Equation]],
    stored: Collection[Value] = (),
) -> Iterator[tuple[Work, Completing]]:
    """What is sure; of what unsure equations make, or fold, it is not known whether it is stored. What computes something of its
    operands reads them, however it is distributed. sums: values that may be completed, and what reads them then. stored: slices
    of arguments of the whole function.
    """
    body = tuple(eqn for eqn in function.body if eqn.regions or sure(eqn))
    memory = Memory(attrs.evolve(function, body=body), SINGLE, device, whole=function)
    known = {*memory.makers, *(argument.value for argument in function.arguments)}
    reads = _Reads(memory, naming, device, known, frozenset(stored))
    stays = {*stored, *(a.value for a in function.arguments if a.role in ("parameter", "input"))}
    for eqn in body:
        if eqn.regions:
            slices = [a.value for v, a in pairs(eqn) if a.role == "sliced" and v in stays]
            yield from work_of(region_of(eqn), naming, device, trips * dim_of(eqn).size, sure, sums, slices)
            is_cleared = device.matrix is not None and is_repeated(eqn) and eqn.attrs["reverse"]
            cleared = [Moved((reads.tiled(value),)) for value in stacks(eqn) if is_cleared]
            cleared += [reads.widened(value) for value in stacks(eqn) if is_cleared and is_short(value.type)]
            yield Work(0.0, frozenset(), frozenset(), (), tuple(cleared), 0.0, trips), ()
        elif OPS[eqn.op].storage not in ("view", "made"):
            operands = {value: reads.operand(eqn, value) for value in dict.fromkeys(eqn.operands)}
            each = _of_equation(eqn, operands, reads, trips)
            yield each, tuple(_completing(eqn, each, operands, reads, sums))
    for eqn in function.body:
        is_distributed = not eqn.regions and is_ordered(eqn) and not sure(eqn)
        if is_distributed and OPS[eqn.op].flops is not no_flops:
            found = tuple(filter(None, (reads.operand(eqn, value) for value in dict.fromkeys(eqn.operands))))
            yield Work(0.0, frozenset(), frozenset(), (), found, 0.0, trips), ()


def _of_equation(eqn: Equation, operands: Mapping[Value, Moved | None], reads: _Reads, trips: int) -> Work:
    memory, device = reads.memory, reads.device
    stored = [value for value in eqn.results if value in memory.stored and value not in memory.ends]
    stored += [value for value in stored if memory.is_kept(value)]
    written = [Moved((reads.tiled(value),)) for value in stored]
    dtype = (eqn.operands or eqn.results)[0].type.dtype
    computed = OPS[eqn.op].flops(eqn, Numbers(SINGLE)) / device.rate(dtype).peak
    rows, loads = zip(*ways(eqn, SINGLE, device), strict=True)
    held = zip(loads, eqn.operands, strict=False) if any(loads) else ()
    elements = largest(eqn, SINGLE) * reads.copies(eqn)
    is_waiting = device.matrix is not None and is_dot(eqn) and not memory.is_near
    waits = any(operands.values()) + bool(stored) if is_waiting else 0
    return Work(
        seconds=max(computed * min(rows), elements / _fastest(eqn, device)),
        dims=_split(eqn, reads.naming),
        alike=pairs_of(bridge_of(eqn)),
        loads=tuple((computed * load, iteration(eqn, rule_of(eqn), value)) for load, value in held),
        moved=(*written, *filter(None, (*operands.values(), reads.held(eqn)))),
        overhead=waits * device.overhead + (_overhead(eqn, device) if memory.is_stored(eqn) else 0.0),
        trips=trips,
        copied=tuple(reads.copied(eqn)),
    )


def _completing(
    eqn: Equation,
    work: Work,
    operands: Mapping[Value, Moved | None],
    reads: _Reads,
    sums: Mapping[Value, Collection[Equation]],
) -> Iterator[tuple[Value, Work]]:
    """What is made and stored already changes nothing, nor what is read already."""
    if eqn.results[0] in sums and reads.is_passing(eqn):
        moved = (*work.moved, *reads.stored(eqn))
        yield eqn.result, attrs.evolve(work, moved=moved, overhead=_overhead(eqn, reads.device))
    for value, read in operands.items():
        if read is None and eqn in sums.get(value, ()) and OPS[eqn.op].storage != "lookup":
            moved = (*work.moved, Moved(reads.arrays(eqn, [value])))
            yield value, attrs.evolve(work, moved=moved)


def _overhead(eqn: Equation, device: Device) -> float:
    """Of what is stored: on a TPU products only wait, and what is component-wise may join the kernel of an operand."""
    is_sure = device.matrix is None or (
        not is_elementwise(eqn) and (not has_trait(eqn, "dot") or is_sum(eqn))
    )
    return device.overhead if is_sure else 0.0


def _fastest(eqn: Equation, device: Device) -> float:
    """Elements/s of the kernel that the op is, or is a part of, whichever it may be once its operands are distributed."""
    return max(device.ops.get(name, inf) for name in (eqn.op, _joined(eqn)))


def _joined(eqn: Equation) -> str:
    """Return the kernel that the op may be a part of, or the op."""
    if has_trait(eqn, "fold"):
        return "unpool"
    if has_trait(eqn, "dot"):
        return "convolution"
    return "pool" if OPS[eqn.op].storage == "reduced" else eqn.op


@attrs.frozen(eq=False, slots=False)
class _Reads:
    """What the equations of a function read, one after the other. known: values of which it is known whether they are stored.
    slices: those of arguments of the whole function. before: what was read before.

    What is folded is read again where halos are added to it, and what they are added to may not be stored: so only its first use
    counts where there may be some.
    """

    memory: Memory
    naming: Naming
    device: Device
    known: set[Value]
    slices: frozenset[Value]
    before: set[Value] = attrs.field(factory=set)

    def operand(self, eqn: Equation, value: Value) -> Moved | None:
        """What is read of an operand; None where nothing is known."""
        views = [] if self.memory.is_joined(eqn, value, self.device) else self.memory.views(value)
        if not views or not self.known.issuperset(views):
            return None
        base, arrays = views[-1], self.arrays(eqn, views)
        unless = self._haloed(base) if base in self.before else frozenset()
        self.before.add(base)
        if OPS[eqn.op].storage == "lookup" and value == eqn.operands[0]:
            arrays = (*arrays, self.tiled(eqn.result))
        return Moved(arrays, unless)

    def held(self, eqn: Equation) -> Moved | None:
        """What is stored in 16 bits, or added up, as the largest operand can be seen; None where that is not known."""
        seen = {value: self.memory.seen(value) for value in eqn.operands}
        is_known = all(map(self.known.issuperset, seen.values()))
        if is_widened(self.memory, eqn, self.device) and (is_known or not is_elementwise(eqn)):
            return self.widened(eqn.result)
        if not (is_holding(self.memory, eqn, self.device) and is_known):
            return None
        value = max(seen, key=lambda value: min(each.type.size for each in seen[value]))
        return Moved(self.arrays(eqn, seen[value], HELD))

    def copies(self, eqn: Equation) -> int:
        """How many kernels compute it at least: halos are joined to it once for all."""
        return 1 if self._has_halos else self.memory.copies(eqn, self.device)

    @cached_property
    def _has_halos(self) -> bool:
        """Whether there may be some."""
        return any(bridge_of(each) for each in self.memory.makers.values())

    def copied(self, eqn: Equation) -> Iterator[Copied]:
        """The factors of a product that are such slices."""
        if self.device.matrix is not None or not is_dot(eqn) or eqn.stage == "update":
            return
        for value in (value for value in eqn.operands if value in self.slices):
            names = tuple((name, name.removeprefix(PARAMS)) for name in sorted(self.naming.own[value]))
            yield Copied(2 * self.tiled(value).bytes, names, own_dims(eqn, rule_of(eqn)))

    def arrays(self, eqn: Equation, views: Sequence[Value], dtype: str | None = None) -> tuple[Array, ...]:
        """An operand and what it is a view of, as large as what the parts of each read together at least."""
        found, share = [], 1.0
        for i, each in enumerate(views):
            bridge = bridge_of(self.memory.makers[views[i - 1]]) if i else None
            share *= bridge.share if bridge else 1.0
            type = each.type.with_dtype(dtype or each.type.dtype)
            least = int(type.local_bytes(SINGLE) * share) if share < 1 else least_bytes(type, self.device)
            found.append(Array(least, self.naming.names[each] if i else _needed(eqn, each, self.naming)))
        return tuple(found)

    def is_passing(self, eqn: Equation) -> bool:
        """Whether its one result is stored nowhere, and would be if it were sent."""
        return len(eqn.results) == 1 and eqn.result not in self.memory.stored | self.memory.folded

    def stored(self, eqn: Equation) -> Iterator[Moved]:
        """What else it would move then."""
        yield Moved((self.tiled(eqn.result),))
        is_able = self.device.matrix is not None and is_elementwise(eqn) and is_short(eqn.result.type)
        is_known = all(self.known.issuperset(self.memory.seen(value)) for value in eqn.operands)
        if is_able and is_known and not is_held(self.memory, eqn, self.device):
            yield self.widened(eqn.result)

    def widened(self, value: Value) -> Moved:
        """As it is held."""
        return Moved(
            (Array(least_bytes(value.type.with_dtype(HELD), self.device), self.naming.names[value]),)
        )

    def tiled(self, value: Value) -> Array:
        """As it lies in memory."""
        return Array(least_bytes(value.type, self.device), self.naming.names[value])

    def _haloed(self, value: Value) -> Pairs:
        """Where halos may be added to a value, those of all that it is folded of in turn."""
        maker = self.memory.makers.get(value)
        bridge = bridge_of(maker) if maker else None
        if maker is None or bridge is None:
            return frozenset()
        own: Pairs = frozenset() if bridge.is_local else pairs_of(bridge)
        return own | self._haloed(maker.operands[0])


def _needed(eqn: Equation, value: Value, naming: Naming) -> Dims:
    """What may split an operand, as the equation needs it."""
    rule = rule_of(eqn)
    if rule.reduced:
        return iteration(eqn, rule, value)
    if rule is BY_NAME and len(eqn.results) == 1:
        return naming.names[eqn.result]
    return naming.names[value].union(*(naming.names[result] for result in eqn.results))


def is_ordered(eqn: Equation) -> bool:
    """Products of several operands are taken in an order that depends on the layout."""
    return not has_trait(eqn, "dot") or len(eqn.operands) == 2


def _split(eqn: Equation, naming: Naming) -> Dims:
    """The dimensions of the iteration space that can be computed in parts, under whatever name."""
    rule = rule_of(eqn)
    if rule.reduced:
        return own_dims(eqn, rule)
    whole = {called(eqn, name) for name in rule.whole}
    return frozenset().union(*(naming.names[value] for value in eqn.results)) - whole
