"""combine-collectives: all-reduces over the same axes that can run together become one.

Each collective costs a latency of its own; small ones cost little else. An all-reduce can run as soon as its operand is there;
from then on it waits for others of its kind until one of the waiting results is used, or until together they would hold
more than `max_bytes` on a processor.

Input:   %a_2 = all_reduce %a axes={rows}; %b = exp %x; %b_2 = all_reduce %b axes={rows}; %c = add %a_2, %b_2
Output:  %b = exp %x; %a_2, %b_2 = all_reduce %a, %b axes={rows}; %c = add %a_2, %b_2
After this pass no two all-reduces that could be one are apart (within `max_bytes`).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

import attrs

from mtfc.compiler.ir.core import Equation, Function, Program, Value
from mtfc.compiler.ir.transform import Pass
from mtfc.compiler.ir.types import Mesh


@attrs.frozen
class CombineCollectives(Pass):
    name: ClassVar[str] = "combine-collectives"
    max_bytes: int = 4 << 20

    def run(self, program: Program) -> Program:
        mesh = program.mesh
        assert mesh is not None, "only a placed program has collectives"
        return program.map_functions(
            lambda f: attrs.evolve(f, body=tuple(Combiner(mesh, self.max_bytes).run(f)))
        )


def merged(eqns: list[Equation]) -> Equation:
    """One equation for all; it carries the span of the first."""
    if len(eqns) == 1:
        return eqns[0]
    operands = tuple(value for eqn in eqns for value in eqn.operands)
    results = tuple(value for eqn in eqns for value in eqn.results)
    return attrs.evolve(eqns[0], operands=operands, results=results)


class Combiner:
    def __init__(self, mesh: Mesh, max_bytes: int) -> None:
        self.mesh, self.max_bytes = mesh, max_bytes
        self.body: list[Equation] = []
        self.waiting: dict[Hashable, list[Equation]] = {}
        self.bytes: dict[Hashable, int] = {}
        self.bucket_of: dict[Value, Hashable] = {}

    def run(self, function: Function) -> list[Equation]:
        reductions: dict[Value, list[Equation]] = {}
        for eqn in function.body:
            if eqn.op == "all_reduce":
                reductions.setdefault(eqn.operands[0], []).append(eqn)
        for eqn in function.body:
            if eqn.op == "all_reduce":
                continue
            self._append(eqn)
            self._ready(eqn.results, reductions)
        for key in list(self.waiting):
            self._flush(key)
        return self.body

    def _append(self, eqn: Equation) -> None:
        for value in eqn.operands:
            self._flush(self.bucket_of.get(value))
        self.body.append(eqn)

    def _ready(self, values: tuple[Value, ...], reductions: dict[Value, list[Equation]]) -> None:
        """All-reduces of the values may run from here on, and so those of their results."""
        for value in values:
            for eqn in reductions.get(value, ()):
                self._flush(self.bucket_of.get(value))
                self._wait(eqn)
                self._ready(eqn.results, reductions)

    def _wait(self, eqn: Equation) -> None:
        type = eqn.operands[0].type
        key = (eqn.attrs["axes"], type.reduction, type.dtype)
        size = sum(value.type.local_bytes(self.mesh) for value in eqn.operands)
        if self.bytes.get(key, 0) + size > self.max_bytes:
            self._flush(key)
        self.waiting.setdefault(key, []).append(eqn)
        self.bytes[key] = self.bytes.get(key, 0) + size
        self.bucket_of.update(dict.fromkeys(eqn.results, key))

    def _flush(self, key: Hashable) -> None:
        """Emit what waits under `key`, if anything does."""
        eqns = self.waiting.pop(key, [])
        if eqns:
            self.body.append(merged(eqns))
            del self.bytes[key]
        for eqn in eqns:
            for value in eqn.results:
                del self.bucket_of[value]
