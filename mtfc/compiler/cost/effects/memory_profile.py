"""The live memory of one processor while each equation runs: the curve whose highest point is `MemoryUse.activations_peak`.

`memory.py` counts all gradients as alive at once, and arguments live as long as the function. So only the other buffers have a
curve. A loop has a moment for each equation of one iteration, added to what lives around the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs

from mtfc.compiler.analysis.liveness import Buffer, buffers, iteration_buffers
from mtfc.compiler.cost.effects.memory import by_gradients
from mtfc.compiler.cost.sizes import Amount, Scale, bytes_of
from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.loops import region_of, unroll_of
from mtfc.compiler.ir.types import Mesh

KINDS = ("gradients", "activations", "temporaries")
"""Gradients, values that the forward pass makes, and all other values."""

Live = Mapping[str, Amount]
"""Bytes by kind."""


@attrs.frozen
class MemoryMoment:
    """The live bytes while an equation runs, without arguments of the function."""

    eqn: Equation
    live: Live

    @property
    def peak(self) -> Amount:
        """The bytes that count for the peak of activations: all but gradients."""
        return self.live["activations"] + self.live["temporaries"]


def memory_moments(function: Function, mesh: Mesh, scale: Scale) -> list[MemoryMoment]:
    """Return a moment for each equation of a placed function; a loop has those of its body."""
    of_gradients, _ = by_gradients(function, mesh)
    gradients = {value for buffer in of_gradients for value in buffer.values}

    def kind(buffer: Buffer, stage: str) -> str:
        if not gradients.isdisjoint(buffer.values):
            return "gradients"
        return "activations" if stage == "forward" else "temporaries"

    return list(_moments(function, buffers(function, mesh), mesh, scale, kind))


def _moments(
    function: Function,
    found: Sequence[Buffer],
    mesh: Mesh,
    scale: Scale,
    kind: Callable[[Buffer, str], str],
    around: str = "forward",
) -> Iterator[MemoryMoment]:
    """Yield the moments of a function with these buffers. around: the stage of its arguments."""
    stages: dict[Value, str] = {argument.value: around for argument in function.arguments}
    stages |= {value: eqn.stage for eqn in function.body for value in eqn.results}
    born: dict[int, list[tuple[str, Amount]]] = {}
    dead: dict[int, list[tuple[str, Amount]]] = {}
    for buffer in found:
        if buffer.values[0] in stages:  # buffers inside a loop have moments of their own
            size = kind(buffer, stages[buffer.values[0]]), bytes_of(buffer.values[0].type, scale)
            born.setdefault(buffer.birth, []).append(size)
            dead.setdefault(buffer.death + 1, []).append(size)
    live: dict[str, Amount] = dict.fromkeys(KINDS, 0)
    for i, eqn in enumerate(function.body):
        for name, amount in born.get(i, ()):
            live[name] = live[name] + amount
        for name, amount in dead.get(i, ()):
            live[name] = live[name] + amount * -1
        if not eqn.regions:
            yield MemoryMoment(eqn, dict(live))
            continue
        region = region_of(eqn)
        for inside in _moments(region, iteration_buffers(region, mesh), mesh, scale, kind, eqn.stage):
            several = {name: live[name] + inside.live[name] * unroll_of(eqn) for name in KINDS}
            yield MemoryMoment(inside.eqn, several)
