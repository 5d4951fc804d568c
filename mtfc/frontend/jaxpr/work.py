"""The work of equations on one device: FLOPs, and the bytes that they read and write."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from mtfc.compiler.cost.sizes import Numbers, bytes_of, whole
from mtfc.compiler.ir.core import Equation
from mtfc.compiler.ir.loops import dim_of
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.types import Mesh

ALONE = Numbers(Mesh("one", ()))


@attrs.frozen
class Work:
    """FLOPs, and bytes that are read and written; or shares of both."""

    flops: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.bytes + other.bytes)

    def __truediv__(self, other: Work) -> Work:
        """Return shares; those of nothing are zero."""
        return Work(self.flops / (other.flops or 1.0), self.bytes / (other.bytes or 1.0))

    def __str__(self) -> str:
        return f"{100 * self.flops:.1f} % of all FLOPs, and {100 * self.bytes:.1f} % of all bytes that are read and written"


def work_of(body: tuple[Equation, ...], times: int = 1) -> Iterator[tuple[Equation, Work]]:
    """Yield equations with their work, those of loops with that of all iterations."""
    for eqn in body:
        for region in eqn.regions:
            yield from work_of(region.body, times * dim_of(eqn).size)
        if not eqn.regions:
            flops = OPS[eqn.op].flops(eqn, ALONE)
            moved = sum(whole(bytes_of(value.type, ALONE)) for value in (*eqn.operands, *eqn.results))
            yield eqn, Work(times * flops, times * moved)
