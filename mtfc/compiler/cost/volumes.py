"""Costs of a placed program for one processor: FLOPs, communication and memory.

Each equation is charged once (`Charge`), with its source line and stage; an equation in a loop is charged for all iterations.
All figures (of a function, a stage, a line, a set of mesh axes) are sums of charges. The `Scale` makes them numbers or formulas.
FLOPs follow the rule of the op. A collective sends one processor's operand.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product
from typing import TypeVar

import attrs

from mtfc.compiler.cost.device_models import expected_memory
from mtfc.compiler.cost.effects.memory import MemoryUse, memory_of
from mtfc.compiler.cost.hardware import Device
from mtfc.compiler.cost.sizes import Amount, Numbers, Scale, bytes_of
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import Equation, Function, Program, Stage, Value, source_file, walk
from mtfc.compiler.ir.loops import dim_of, is_unbounded, operand_owner, region_of
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.ops.collectives import SENDINGS, axes_of, collective_of, kind_of
from mtfc.compiler.ir.types import Axes, Dim, Layout, Mesh, Pipeline
from mtfc.compiler.records import Summed, sums

Item = TypeVar("Item")
Key = TypeVar("Key")


@attrs.frozen
class SentVolume(Summed):
    """Collectives of one kind: their number, the elements and bytes of their operands, and the bytes that leave a processor."""

    count: int = 0
    elements: Amount = 0
    bytes: Amount = 0
    wire_bytes: Amount = 0


@attrs.frozen
class Charge:
    """The cost of one equation for one processor in one execution of its function. `kind` is None unless it communicates."""

    span: Span | None
    stage: Stage
    flops: Amount = 0
    kind: str | None = None
    axes: Axes = ()
    sent: SentVolume = SentVolume()


@attrs.frozen
class CostTotals:
    """A sum of charges; `collectives` has the kinds that occur."""

    flops: Amount
    collectives: Mapping[str, SentVolume]

    @property
    def sent(self) -> SentVolume:
        """The sum over all kinds."""
        return sum(self.collectives.values(), start=SentVolume())


@attrs.frozen
class PipelineCost:
    """A loop along the dimension `loop` that runs as a pipeline, with `chunks` chunks of layers on each stage.

    idle: the number of ticks in which a stage computes nothing. kept: the bytes on one processor that the loop's forward pass
    keeps for the backward pass.
    """

    span: Span | None
    loop: str
    stages: int
    micro_batches: int
    chunks: int
    ticks: int
    kept: Amount

    @property
    def idle(self) -> int:
        return self.ticks - self.micro_batches * self.chunks


@attrs.frozen
class PlacedCost:
    """The cost of one model under one layout. `memory` is that of `step`; if the model does not train, `step` is `forward`.

    `file` is the user's file, as lines of library files have charges too. `pipelines` are the loops of the forward pass that
    run as pipelines. `counted_iterations`: lines of loops that only data ends -> the number of iterations that the cost counts.
    """

    model: str
    file: str | None
    trains: bool
    layout: Layout
    mesh: Mesh
    forward: tuple[Charge, ...]
    step: tuple[Charge, ...]
    memory: MemoryUse
    pipelines: tuple[PipelineCost, ...]
    counted_iterations: Mapping[Span | None, int] = attrs.field(factory=dict)


def layout_cost(program: Program, scale: Scale | None = None, device: Device | None = None) -> PlacedCost:
    """Return the cost of a program in which every value is placed and every collective is explicit.

    device: the one whose memory counts; without a device, or in formulas, each value has an array of its own size.
    """
    assert program.mesh is not None and program.layout is not None, "only a placed program has a cost"
    scale = scale or Numbers(program.mesh)
    trains = program.has_function("step")
    forward, step = program.function("forward"), program.function("step" if trains else "forward")
    memory = memory_of(step, program.mesh, scale)
    if device is not None and isinstance(scale, Numbers):
        memory = expected_memory(step, program.mesh, device)
    return PlacedCost(
        model=program.name,
        file=source_file(program.functions),
        trains=trains,
        layout=program.layout,
        mesh=program.mesh,
        forward=charges(forward, scale),
        step=charges(step, scale),
        memory=memory,
        pipelines=tuple(pipeline_costs(step, program.mesh, program.layout, scale)),
        counted_iterations={eqn.span: dim_of(eqn).size for eqn in walk(step.body) if is_unbounded(eqn)},
    )


def pipeline_costs(function: Function, mesh: Mesh, layout: Layout, scale: Scale) -> Iterator[PipelineCost]:
    """Yield the costs of the loops of a function's forward pass that run as pipelines."""
    trains = any(eqn.stage == "backward" for eqn in function.body)
    loops = [eqn for eqn in function.body if eqn.regions and eqn.stage == "forward"]
    for eqn, pipeline in product(loops, layout.pipelines):
        if dim_of(eqn).name.startswith(pipeline.ticks):
            stages = mesh.size(layout.rules.get(pipeline.loop))
            steps, is_alone = pipeline.micro_batches * pipeline.chunks, dim_of(eqn).name == pipeline.ticks
            kept = (each for each in eqn.results if trains and _is_kept(each.type.names, pipeline))
            yield PipelineCost(
                eqn.span,
                pipeline.loop,
                stages,
                pipeline.micro_batches,
                pipeline.chunks,
                dim_of(eqn).size if is_alone else steps + stages - 1,
                sum((bytes_of(each.type, scale) for each in kept), start=0),
            )


def _is_kept(names: Sequence[str], pipeline: Pipeline) -> bool:
    """Return True for what stages keep of several micro-batches, by the names of its dimensions."""
    return any(name.startswith(f"{pipeline.loop}.kept") for name in names)


def charges(function: Function, scale: Scale) -> tuple[Charge, ...]:
    """Return the charges of the equations of a function; equations without cost have none."""
    producers = {value: eqn for eqn in function.body for value in eqn.results}
    return tuple(charge for eqn in function.body for charge in _charges(eqn, producers, scale))


def _repeated(charge: Charge, dim: Dim, scale: Scale) -> Charge:
    """Return the charge of one iteration of a loop for all iterations."""
    times, sent = scale.dim(dim, ()), charge.sent
    return attrs.evolve(
        charge,
        flops=charge.flops * times,
        sent=SentVolume(
            sent.count * dim.size, sent.elements * times, sent.bytes * times, sent.wire_bytes * times
        ),
    )


def _charges(eqn: Equation, producers: Mapping[Value, Equation], scale: Scale) -> Iterator[Charge]:
    """Yield what an equation computes and sends. A loop's charges count for each of its iterations."""
    if eqn.regions:
        yield from (_repeated(charge, dim_of(eqn), scale) for charge in charges(region_of(eqn), scale))
    elif has_trait(eqn, "sends"):
        yield from _transfers(eqn, producers, scale)
    elif flops := OPS[eqn.op].flops(eqn, scale):
        yield Charge(eqn.span, eqn.stage, flops)


def _transfers(eqn: Equation, producers: Mapping[Value, Equation], scale: Scale) -> Iterator[Charge]:
    """Yield one charge per operand, so that bytes count for the operand's source line. Only the first charge counts the
    collectives.

    An operand of a combined collective belongs to the equation that made it.
    """
    kind, (number, parts) = kind_of(eqn), collective_of(eqn).messages(eqn)
    share = 1 if number == parts else Fraction(number, parts)
    factor = SENDINGS[kind].ring_bytes(scale.group(axes_of(eqn)))
    for i, value in enumerate(eqn.operands):
        owner = operand_owner(eqn, value, producers)
        elements, size = scale.elements(value.type), bytes_of(value.type, scale)
        sent = SentVolume(0 if i else number, elements * share, size * share, size * share * factor)
        yield Charge(owner.span, owner.stage, kind=kind, axes=axes_of(eqn), sent=sent)


def total(charges: Iterable[Charge]) -> CostTotals:
    """Return the FLOPs of charges, and their collectives by kind."""
    found = list(charges)
    collectives = sums((charge.kind, charge.sent) for charge in found if charge.kind is not None)
    return CostTotals(sum((charge.flops for charge in found), start=0), collectives)


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return charges or others by a key, such as stage, line or axes, in order of first occurrence."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
