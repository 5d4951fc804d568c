"""combine-collectives: all-reduces over the same axes that can run together become one.

Each collective costs a latency of its own; small ones cost little else. An all-reduce can run as soon as its operand is there;
from then on it waits for others of its kind until one of the waiting results is used, or until together they would hold
more than `max_bytes` on a processor. Equations between scalars (what is left of a loss, say) wait along with what they use.

Input:   %a_2 = all_reduce %a axes={rows}; %b = exp %x; %b_2 = all_reduce %b axes={rows}; %c = add %a_2, %b_2
Output:  %b = exp %x; %a_2, %b_2 = all_reduce %a, %b axes={rows}; %c = add %a_2, %b_2
After this pass no two all-reduces that could be one are apart (within `max_bytes`).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar, get_args

import attrs

from mtfc.compiler.ir.core import Equation, Function, Program, Stage, Value
from mtfc.compiler.ir.loops import within
from mtfc.compiler.ir.transform import Pass
from mtfc.compiler.ir.types import Mesh


@attrs.frozen
class CombineCollectives(Pass):
    name: ClassVar[str] = "combine-collectives"
    max_bytes: int = 4 << 20

    def run(self, program: Program) -> Program:
        mesh = program.placed_on
        return program.map_functions(lambda function: combined(function, mesh, self.max_bytes))


def combined(function: Function, mesh: Mesh, max_bytes: int) -> Function:
    """The function with its collectives combined, in each loop among its own."""
    body = [within(eqn, lambda region: combined(region, mesh, max_bytes)) for eqn in function.body]
    inside = attrs.evolve(function, body=tuple(body))
    return attrs.evolve(function, body=tuple(Combiner(mesh, max_bytes).run(inside)))


STAGES = get_args(Stage)


def merged(eqns: list[Equation]) -> Equation:
    """One equation for all, with the span of the first; gradients among its results make it part of the backward pass."""
    if len(eqns) == 1:
        return eqns[0]
    operands = tuple(value for eqn in eqns for value in eqn.operands)
    results = tuple(value for eqn in eqns for value in eqn.results)
    stage = max((eqn.stage for eqn in eqns), key=STAGES.index)
    return attrs.evolve(eqns[0], operands=operands, results=results, stage=stage)


class Combiner:
    """Walks one function; `waiting` holds all-reduces, `deferred` the scalar equations that wait for them, by result."""

    def __init__(self, mesh: Mesh, max_bytes: int) -> None:
        self.mesh, self.max_bytes = mesh, max_bytes
        self.body: list[Equation] = []
        self.waiting: dict[Hashable, list[Equation]] = {}
        self.bytes: dict[Hashable, int] = {}
        self.bucket_of: dict[Value, Hashable] = {}
        self.deferred: dict[Value, Equation] = {}
        self.reductions: dict[Value, list[Equation]] = {}

    def run(self, function: Function) -> list[Equation]:
        for eqn in function.body:
            if eqn.op == "all_reduce":
                self.reductions.setdefault(eqn.operands[0], []).append(eqn)
        self._ready(tuple(argument.value for argument in function.arguments))
        for eqn in function.body:
            if eqn.op != "all_reduce":
                self._append(eqn)
                self._ready(eqn.results)
        self._settle()
        return self.body

    def _append(self, eqn: Equation) -> None:
        if self._can_wait(eqn):
            self.deferred[eqn.result] = eqn
            return
        if any(value in self.deferred for value in eqn.operands):
            self._settle()
        for value in eqn.operands:
            self._flush(self.bucket_of.get(value))
        self.body.append(eqn)

    def _can_wait(self, eqn: Equation) -> bool:
        """Whether it computes a scalar, which nothing reduces, from one that waits."""
        if len(eqn.results) != 1 or eqn.result in self.reductions or not eqn.operands or eqn.regions:
            return False
        waits = any(value in self.bucket_of or value in self.deferred for value in eqn.operands)
        return waits and not any(value.type.dims for value in (*eqn.operands, eqn.result))

    def _settle(self) -> None:
        """Emit all that waits."""
        for key in list(self.waiting):
            self._flush(key)
        self.body += self.deferred.values()
        self.deferred.clear()

    def _ready(self, values: tuple[Value, ...]) -> None:
        """All-reduces of the values may run from here on, and so those of their results."""
        for value in values:
            for eqn in self.reductions.get(value, ()):
                self._flush(self.bucket_of.get(value))
                self._wait(eqn)
                self._ready(eqn.results)

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
