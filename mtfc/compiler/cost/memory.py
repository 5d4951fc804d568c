"""Memory on one processor during one execution of a function, in bytes.

The model. There are four parts, and `total` is their sum:

- parameters: the arguments of that role, as they are stored.
- optimizer: the optimizer's state and step number, as they are stored.
- gradients: the buffers of the values that the update reads and the backward pass made. All of them are taken to be alive at
  once, as they are before the first update.
- activations_peak: the most that all other values hold at one time, by `liveness`: the inputs, which stay, and what lies between
  inputs, outputs, gradients and updates, the temporary values of the update included.

So `total` is a bound for a program run in this order, reached where the activations peak when the last gradient is there. XLA can
do better: it fuses chains of component-wise equations, whose intermediate values then take no memory; it reorders; it puts early
gradients where late activations were. It can also do worse: it pads arrays to its tiles, which `memory_on` counts for TPUs, keeps
weights in a second dtype or order, and sends through buffers of its own.

A formula for the peak is the sum at the equation where it is with the file's own sizes; with others it may be elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

import attrs

from mtfc.compiler.analysis.liveness import Buffer, buffers, peak, unstored
from mtfc.compiler.cost.hardware import Device
from mtfc.compiler.cost.sizes import Amount, Scale, bytes_of
from mtfc.compiler.cost.tpu.tiling import Tiles, pixels_of
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import Function, Role, Value, walk
from mtfc.compiler.ir.loops import maker
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.types import Mesh


@attrs.frozen
class Memory:
    """Bytes on one processor.

    peak: the line during which the activations peak. stored: (line, bytes) of everything that is kept: parameters and state as
    declared there, and values of the forward pass that the backward pass reads. occupied: (line, bytes) of each value that the
    four parts count, so that these add up to `total`.
    """

    parameters: Amount
    gradients: Amount
    optimizer: Amount
    activations_peak: Amount
    peak: Span | None
    stored: tuple[tuple[Span | None, Amount], ...]
    occupied: tuple[tuple[Span | None, Amount], ...]

    @property
    def total(self) -> Amount:
        return self.parameters + self.gradients + self.optimizer + self.activations_peak

    def parts(self) -> dict[str, Amount]:
        """The four parts and their sum, by the names they have in reports."""
        names = ("parameters", "gradients", "optimizer", "activations_peak", "total")
        return {name: getattr(self, name) for name in names}


ARGUMENTS: Mapping[str, tuple[Role, ...]] = {
    "parameters": ("parameter",),
    "optimizer": ("state", "step"),
    "activations_peak": ("input",),
}
"""Which arguments are part of what."""


def memory_of(function: Function, mesh: Mesh, scale: Scale) -> Memory:
    """What a placed function needs; where its activations peak is decided by numbers also when amounts are formulas."""
    of_gradients, alive, at = held(function, mesh)
    arguments = {role: _arguments(function, *roles) for role, roles in ARGUMENTS.items()}
    everything = [*chain.from_iterable(arguments.values()), *of_gradients, *alive]
    return Memory(
        parameters=_bytes(arguments["parameters"], scale),
        gradients=_bytes(of_gradients, scale),
        optimizer=_bytes(arguments["optimizer"], scale),
        activations_peak=_bytes([*arguments["activations_peak"], *alive], scale),
        peak=function.body[at].span if at < len(function.body) else None,
        stored=tuple(_stored(function, scale)),
        occupied=tuple(_occupied(function, everything, scale)),
    )


def memory_on(function: Function, mesh: Mesh, device: Device) -> Memory:
    """What a placed function needs on a device: of a TPU, arrays take whole tiles (`tiling.py`)."""
    return memory_of(function, mesh, Tiles(mesh, device, pixels_of(walk(function.body), mesh)))


def held(function: Function, mesh: Mesh) -> tuple[list[Value], list[Value], int]:
    """The gradients, what else is alive where most is, and the equation where that is; a value for each buffer, no arguments."""
    of_gradients, others = by_gradients(function, mesh)
    at = peak(others, mesh)
    alive = [buffer.values[0] for buffer in others if buffer.birth <= at <= buffer.death]
    return [buffer.values[0] for buffer in of_gradients], alive, at


def gradients(function: Function) -> list[Value]:
    """What the backward pass made and the update reads, constants aside.

    A combined all-reduce has results of several stages: each belongs to the stage of its operand.
    """
    made: set[Value] = set()
    for eqn in function.body:
        if has_trait(eqn, "all_reduce") and len(eqn.results) > 1:
            made.update(
                after for before, after in zip(eqn.operands, eqn.results, strict=True) if before in made
            )
        elif eqn.stage == "backward" and eqn.operands:
            made.update(eqn.results)
    read = (v for eqn in function.body if eqn.stage == "update" for v in eqn.operands)
    return list(dict.fromkeys(value for value in read if value in made))


def by_gradients(function: Function, mesh: Mesh) -> tuple[list[Buffer], list[Buffer]]:
    """The buffers that hold a gradient at some time, and the others."""
    values = set(gradients(function))
    inside: list[Buffer] = []
    outside: list[Buffer] = []
    for buffer in buffers(function, mesh):
        (outside if values.isdisjoint(buffer.values) else inside).append(buffer)
    return inside, outside


def _arguments(function: Function, *roles: Role) -> list[Value]:
    return [argument.value for argument in function.arguments if argument.role in roles]


def _bytes(values: Iterable[Value], scale: Scale) -> Amount:
    return sum((bytes_of(value.type, scale) for value in values), start=0)


def _occupied(function: Function, values: list[Value], scale: Scale) -> Iterator[tuple[Span | None, Amount]]:
    """(line, bytes) of each of the values; copies of slices that a loop makes stand at the loop."""
    lines: dict[Value, Span | None] = {each.value: each.span for each in function.arguments}
    wanted = set(values)
    for eqn in walk(function.body):
        for region in eqn.regions:
            lines |= {each.value: eqn.span for each in region.arguments}
        lines |= {value: maker(eqn, value).span for value in eqn.results if value in wanted}
    yield from ((lines[value], bytes_of(value.type, scale)) for value in values)


def _stored(function: Function, scale: Scale) -> Iterator[tuple[Span | None, Amount]]:
    """(line, bytes) of each value that is kept: see `Memory`."""
    needed = {value for eqn in function.body if eqn.stage == "backward" for value in eqn.operands}
    for value, read in reversed(unstored(function).items()):
        if value in needed:
            needed.remove(value)
            needed.update(read)
    for argument in function.arguments:
        if argument.role in ("parameter", "state") or argument.value in needed:
            yield argument.span, bytes_of(argument.value.type, scale)
    for eqn in function.body:
        if eqn.stage == "forward" and eqn.operands:
            yield from ((maker(eqn, v).span, bytes_of(v.type, scale)) for v in eqn.results if v in needed)
