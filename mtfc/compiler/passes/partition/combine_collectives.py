"""combine-collectives: merge all-reduces over the same axes, small reduce-scatters, and small all-gathers of parameters.

Each collective has a latency, which is most of the time of a small one.

All-reduces are collected in buckets, one for each set of axes, reduction and dtype. An all-reduce enters its bucket when its
operand exists. The bucket runs when one of its results is used, or when it holds at least `max_bytes` on a processor. So
gradients are sent in the order in which they are computed (Li et al., "PyTorch Distributed", VLDB 2020, section 3.2.2).
Equations between scalars wait together with the all-reduces that they use.

All-reduces that only the update or results of the function wait for have buckets of their own, and what rearranges their arrays,
such as a transpose, waits together with them. Otherwise the sum over the batch in a batch normalization
would wait for megabytes of gradients. If such a bucket holds at most `FEW_BYTES`, it joins the next one that runs.

Reduce-scatters of at most a quarter of `max_bytes` wait in buckets, too. Their operands are copied into one array, so those of a
bucket vary along the same axes; larger ones run alone, at their places.

All-gathers of stored parameters, and of parameters just updated, run together at the first use of one of them. A group takes
consecutive all-gathers while their results fill at most `max_bytes`. So no all-gather is delayed, and parameters gathered early
take little memory. All-gathers larger than a quarter of `max_bytes` run alone: a latency adds little to their time. All-gathers
of a group have one dtype and vary along the same axes, so that they can be sent as one array.

Input:   %a_2 = all_reduce %a axes={rows}; %b = exp %x; %b_2 = all_reduce %b axes={rows}; %c = add %a_2, %b_2
Output:  %b = exp %x; %a_2, %b_2 = all_reduce %a, %b axes={rows}; %c = add %a_2, %b_2
Collectives that are merged already stay as they are, and a collective that nothing joins stays where it is.

After this pass no two collectives of one bucket (within `max_bytes`), and no two small all-gathers in a row, could be merged.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, get_args

import attrs

from mtfc.compiler.analysis.liveness import storage
from mtfc.compiler.ir.core import Equation, Function, Program, Stage, Value, walk
from mtfc.compiler.ir.loops import is_loop_body, map_regions, pairs
from mtfc.compiler.ir.opdef import Trait
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.ops.collectives import axes_of, operand_dims
from mtfc.compiler.ir.types import Axes, Mesh
from mtfc.compiler.ir.verifier import Level
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.records import frozen

FEW_BYTES = 64 << 10
"""Bytes whose transfer takes about as long as a latency: tens of microseconds at some GB/s, or one at a hundred."""


MOST_ROUNDS = 8
"""Most repetitions of the pass. A merged collective may let others meet that another equation kept apart."""


@frozen
class CombineCollectives(Pass):
    """The pass. max_bytes: the bytes on a processor at which a bucket is full."""

    name: ClassVar[str] = "combine-collectives"
    takes: ClassVar[tuple[Level, ...]] = ("lowered",)
    max_bytes: int = 4 << 20

    def run(self, program: Program) -> Program:
        """Combine the collectives of each function until no order changes, at most `MOST_ROUNDS` times."""
        mesh = program.placed_on

        def settled(function: Function) -> Function:
            """Combine the collectives of a function until their order stays."""
            for _ in range(MOST_ROUNDS):
                before, function = function, combined(function, mesh, self.max_bytes)
                if _order(before) == _order(function):
                    break
            return function

        return program.map_functions(settled)


def _order(function: Function) -> list[tuple[Value, ...]]:
    """Return the results of all equations in order: they change when collectives are merged or moved."""
    return [eqn.results for eqn in walk(function.body)]


def combined(
    function: Function, mesh: Mesh, max_bytes: int, stored: frozenset[Value] = frozenset()
) -> Function:
    """Combine the collectives of a function, in each loop apart.

    `stored` are the arguments of a loop's region that are parameters outside, or slices of parameters.
    """
    roots = {argument.value for argument in function.arguments if argument.role == "parameter"}
    known = _with_copies(roots.union(stored), function.body)

    def with_combined_region(eqn: Equation) -> Equation:
        inner = frozenset(a.value for v, a in pairs(eqn) if v in known) if eqn.regions else frozenset()
        return map_regions(eqn, lambda region: combined(region, mesh, max_bytes, inner))

    body = [with_combined_region(eqn) for eqn in function.body]
    if not is_loop_body(function):
        known.update(output.value for output in function.outputs if output.updates)
    inside = attrs.evolve(function, body=tuple(GatherCombiner(mesh, max_bytes, known).run(body)))
    return attrs.evolve(function, body=tuple(ReductionCombiner(mesh, max_bytes).run(inside)))


def _with_copies(values: set[Value], body: Iterable[Equation]) -> set[Value]:
    """Return the values, and the results that depend on one of them alone, such as the cast of a parameter."""
    found = set(values)
    for eqn in body:
        if (
            len(eqn.operands) == 1
            and eqn.operands[0] in found
            and not has_trait(eqn, "sends")
            and not eqn.regions
        ):
            found.update(eqn.results)
    return found


GatherKey = tuple[Axes, Axes, str, Stage]
"""The properties that all-gathers need in common to be one: axes, varying axes of the operands, dtype and stage."""


class GatherCombiner:
    """Combines small all-gathers of a body whose operand or result is a parameter.

    waiting: the all-gathers that have not run.
    """

    def __init__(self, mesh: Mesh, max_bytes: int, parameters: set[Value]) -> None:
        """Start without all-gathers.

        taken: the all-gathers that have run with an earlier one.
        """
        self.mesh, self.max_bytes, self.parameters = mesh, max_bytes, parameters
        self.waiting: dict[GatherKey, deque[Equation]] = {}
        self.taken: set[Equation] = set()

    def run(self, body: Sequence[Equation]) -> Iterator[Equation]:
        """Yield the equations; at each small all-gather that has not run, later ones whose operands exist run with it."""
        late = {value for eqn in body for value in eqn.results}
        for eqn in filter(self._is_small, body):
            self.waiting.setdefault(self._key(eqn), deque()).append(eqn)
        for eqn in body:
            if eqn not in self.taken:
                yield merged([*self._together(eqn, late)]) if self._is_small(eqn) else eqn
            late.difference_update(eqn.results)

    def _is_small(self, eqn: Equation) -> bool:
        """Return True for a small all-gather of a parameter, or into one."""
        if not is_alone(eqn, "all_gather") or self.parameters.isdisjoint((*eqn.operands, *eqn.results)):
            return False
        return _is_small(eqn.result, self.mesh, self.max_bytes)

    def _key(self, eqn: Equation) -> GatherKey:
        type = eqn.operands[0].type
        return axes_of(eqn), type.varying(self.mesh), type.dtype, eqn.stage

    def _together(self, first: Equation, late: set[Value]) -> Iterator[Equation]:
        """Yield the first all-gather still to come, and the next ones whose operands exist and that fit into `max_bytes`."""
        waiting, room = self.waiting[self._key(first)], self.max_bytes
        while waiting and waiting[0].operands[0] not in late:
            room -= waiting[0].result.type.local_bytes(self.mesh)
            if room < 0:
                return
            self.taken.add(waiting[0])
            yield waiting.popleft()


def is_alone(eqn: Equation, trait: Trait) -> bool:
    """Return True for a collective with the trait that is not merged yet."""
    return len(eqn.operands) == 1 and has_trait(eqn, trait)


def _is_small(value: Value, mesh: Mesh, max_bytes: int) -> bool:
    """Return True for an array whose transfer is short enough that a latency counts, and that is cheap to copy."""
    return 4 * value.type.local_bytes(mesh) <= max_bytes


def completes(eqn: Equation) -> bool:
    return has_trait(eqn, "all_reduce", "reduce_scatter")


@frozen
class Bucket:
    """The properties that collectives share to be merged.

    varying: the axes along which the operands of reduce-scatters vary. is_patient: only the update waits for them.
    """

    op: str
    axes: Axes
    reduction: str
    dtype: str
    varying: Axes
    is_patient: bool


def patient(function: Function, mesh: Mesh) -> set[Equation]:
    """Return the collectives of sums that only the update or results of the function use, and equations that rearrange the
    sums.

    They may be used through scalars and through further such equations.
    """
    found: set[Equation] = set()
    needed: set[Value] = set()
    for eqn in reversed(function.body):
        is_scalar = not (eqn.regions or any(v.type.dims for v in (*eqn.operands, *eqn.results)))
        passes_on = completes(eqn) or is_scalar or _rearranges(eqn, mesh)
        is_patient = eqn.stage == "update" or (passes_on and needed.isdisjoint(eqn.results))
        if not is_patient:
            needed.update(eqn.operands)
        elif completes(eqn) or (_rearranges(eqn, mesh) and eqn.stage != "update"):
            found.add(eqn)
    return found


def _rearranges(eqn: Equation, mesh: Mesh) -> bool:
    """Return True for an equation of one array that another kernel can compute, and that saves no memory if it runs early."""
    if eqn.regions or has_trait(eqn, "sends") or (len(eqn.operands), len(eqn.results)) != (1, 1):
        return False
    before, after = eqn.operands[0].type.local_bytes(mesh), eqn.result.type.local_bytes(mesh)
    return storage(eqn) in ("view", "fused") and before <= after


STAGES = get_args(Stage)


def merged(eqns: list[Equation]) -> Equation:
    """Merge collectives into one with the span of the first. Its stage is the last of their stages."""
    if len(eqns) == 1:
        return eqns[0]
    attributes = eqns[0].attrs
    if not has_trait(eqns[0], "all_reduce"):
        attributes = {"dims": tuple(d for eqn in eqns for d in operand_dims(eqn)), "axes": axes_of(eqns[0])}
    operands = tuple(value for eqn in eqns for value in eqn.operands)
    results = tuple(value for eqn in eqns for value in eqn.results)
    stage = max((eqn.stage for eqn in eqns), key=STAGES.index)
    return attrs.evolve(eqns[0], operands=operands, results=results, stage=stage, attrs=attributes)


class ReductionCombiner:
    """Merges the all-reduces of one function, and its small reduce-scatters: the collectives of this class."""

    def __init__(self, mesh: Mesh, max_bytes: int) -> None:
        """Start with empty buckets.

        max_bytes: the size of a full one. body: the new equations. patient: equations that can wait for the end of the
        backward pass. waiting: the collectives in each bucket, and `bytes` their size on a processor. bucket_of: the bucket
        that will make a value. staying: collectives that run at their places in the body. deferred: scalar equations that
        wait for a collective, by result. reductions: the collectives of each value.
        """
        self.mesh, self.max_bytes = mesh, max_bytes
        self.body: list[Equation] = []
        self.patient: set[Equation] = set()
        self.staying: set[Equation] = set()
        self.waiting: dict[Bucket, list[Equation]] = {}
        self.bytes: dict[Bucket, int] = {}
        self.bucket_of: dict[Value, Bucket] = {}
        self.deferred: dict[Value, Equation] = {}
        self.reductions: dict[Value, list[Equation]] = {}

    def run(self, function: Function) -> list[Equation]:
        """Return the body with merged collectives. A collective enters its bucket as soon as its operand exists."""
        self.patient = patient(function, self.mesh)
        for eqn in function.body:
            if self._is_joinable(eqn):
                self.reductions.setdefault(eqn.operands[0], []).append(eqn)
        self._ready(tuple(argument.value for argument in function.arguments))
        for eqn in function.body:
            if not self._is_joinable(eqn) or eqn in self.staying:
                self._append(eqn)
                self._ready(eqn.results)
        self._settle()
        return self.body

    def _is_joinable(self, eqn: Equation) -> bool:
        """Return True for an all-reduce, and for a small reduce-scatter, of one operand."""
        if is_alone(eqn, "all_reduce"):
            return True
        return is_alone(eqn, "reduce_scatter") and _is_small(eqn.operands[0], self.mesh, self.max_bytes)

    def _append(self, eqn: Equation) -> None:
        """Append an equation after the buckets that make its operands, or defer it if it can wait with them."""
        if self._can_wait(eqn):
            self.deferred[eqn.result] = eqn
            return
        if any(value in self.deferred for value in eqn.operands):
            self._settle()
        for value in eqn.operands:
            self._flush(self.bucket_of.get(value))
        self.body.append(eqn)

    def _can_wait(self, eqn: Equation) -> bool:
        """Return True for an equation that computes a scalar, without an all-reduce, from a scalar that waits, or that rearranges
        an array which waits patiently.
        """
        if len(eqn.results) != 1 or eqn.result in self.reductions or not eqn.operands or eqn.regions:
            return False
        if completes(eqn):
            return False
        waits = any(value in self.bucket_of or value in self.deferred for value in eqn.operands)
        is_scalar = not any(value.type.dims for value in (*eqn.operands, eqn.result))
        return waits and (is_scalar or eqn in self.patient)

    def _settle(self) -> None:
        """Emit every waiting equation."""
        for bucket in sorted(self.waiting, key=lambda each: each.is_patient):
            self._flush(bucket)
        self.body += self.deferred.values()
        self.deferred.clear()

    def _ready(self, values: tuple[Value, ...]) -> None:
        """Put the collectives of the values, which now exist, into buckets, and then those of their results."""
        for value in values:
            for eqn in self.reductions.get(value, ()):
                self._flush(self.bucket_of.get(value))
                self._wait(eqn)
                self._ready(eqn.results)

    def _wait(self, eqn: Equation) -> None:
        """Put a collective into its bucket, and emit the bucket if it is full."""
        type = eqn.operands[0].type
        varying = () if has_trait(eqn, "all_reduce") else type.varying(self.mesh)
        bucket = Bucket(eqn.op, axes_of(eqn), type.reduction, type.dtype, varying, eqn in self.patient)
        size = sum(value.type.local_bytes(self.mesh) for value in eqn.operands)
        self.waiting.setdefault(bucket, []).append(eqn)
        self.bytes[bucket] = self.bytes.get(bucket, 0) + size
        self.bucket_of.update(dict.fromkeys(eqn.results, bucket))
        if self.bytes[bucket] >= self.max_bytes:
            self._send(bucket)

    def _send(self, bucket: Bucket) -> None:
        """Emit a full bucket. A collective that is alone stays at its place in the body."""
        eqns = self.waiting[bucket]
        if len(eqns) > 1:
            self._flush(bucket)
            return
        self.staying.add(eqns[0])
        del self.waiting[bucket], self.bytes[bucket], self.bucket_of[eqns[0].result]

    def _flush(self, bucket: Bucket | None) -> None:
        """Emit a bucket, and together with it the patient bucket if that holds few bytes."""
        if bucket is None or bucket not in self.waiting:
            return
        others = attrs.evolve(bucket, is_patient=True)
        along = [others] if others != bucket and 0 < self.bytes.get(others, 0) <= FEW_BYTES else []
        eqns = [eqn for each in (bucket, *along) for eqn in self.waiting.pop(each)]
        self.body.append(merged(eqns))
        for each in (bucket, *along):
            del self.bytes[each]
        for value in (value for eqn in eqns for value in eqn.results):
            del self.bucket_of[value]
