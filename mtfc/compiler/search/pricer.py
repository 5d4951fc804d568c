"""The prices of a model under many layouts. The model is differentiated once, and compiled for each layout."""

from __future__ import annotations

from functools import cached_property
from hashlib import blake2b
from math import inf
from time import process_time

import attrs

from mtfc.compiler.cost.device_models import expected_memory, may_be_short
from mtfc.compiler.cost.effects.memory import memory_of
from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.cost.sizes import Numbers, whole
from mtfc.compiler.cost.step_time import seconds_of, step_time
from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.cost.volumes import charges, total
from mtfc.compiler.ir.core import Function, Program
from mtfc.compiler.ir.printer import print_program
from mtfc.compiler.ir.types import RECOMPUTED, Layout, Mesh
from mtfc.compiler.passes.pipelines import (
    differentiation,
    layout_assignment,
    layout_independent,
    spmd_lowering,
    within_memory,
)
from mtfc.compiler.passes.recompute import Recompute, limit_on
from mtfc.compiler.search.found import Objective, Plan, Price, Pricing, value_of
from mtfc.compiler.search.global_layouts.step_facts import StepFacts
from mtfc.compiler.search.repeated_layers import SHORT, RepeatedLayers, shortened_program


@attrs.frozen(slots=False)
class LayoutPricer:
    """Prices one function of a differentiated program on one machine: a training step, or a forward pass.

    model: the program before it was differentiated, for layouts with pipelines; None if there are none. recomputes: True if the
    backward pass computes values again where the memory does not suffice. known: prices by layout; these layouts
    are not compiled again. alike: prices by the text of the program whose equations have layouts. Many layouts lead to the same
    program, as elementwise equations follow their uses. spent: the seconds that each price took.
    """

    program: Program
    hardware: Hardware
    recomputes: bool = False
    model: Program | None = None
    known: dict[Plan, Price] = attrs.field(factory=dict)
    alike: dict[tuple[object, ...], Price] = attrs.field(factory=dict)
    spent: list[float] = attrs.field(factory=list)

    @classmethod
    def of(cls, program: Program, hardware: Hardware, recomputes: bool = False) -> LayoutPricer:
        """Return the pricer of an elaborated model."""
        return cls(_differentiated(program), hardware, recomputes, program)

    def undistributed(self) -> Function:
        """Return the function before any layout is applied."""
        program = self.program
        for each in layout_independent():
            program = each.run(program)
        (function,) = program.functions
        return function

    @cached_property
    def facts(self) -> StepFacts:
        """The facts of the step. Values may be computed again in pipelines, and where the memory does not suffice."""
        step, device = self.undistributed(), self.hardware.device
        recomputes = any(eqn.regions for eqn in step.body) or (self.recomputes and may_be_short(step, device))
        return StepFacts.of(step, device, recomputes)

    def least_seconds(self, devices: int) -> float:
        """Return a bound of the step of all plans. Values may also be computed again because a priced layout says so."""
        recomputes = self.facts.recomputes or any(layout.forms.recompute for _, layout in self.known)
        return attrs.evolve(self.facts, recomputes=recomputes).least_seconds(devices)

    @cached_property
    def layers(self) -> tuple[LayersPricer | None, tuple[tuple[Function, ...], int] | None]:
        """A pricer and steps for bounds, for a long program whose repeated layers are more than half of it; else None, None.

        The steps are undistributed functions with the first layers, and stand beside the number of all layers: see
        `RepeatedFacts`.
        """
        (function,) = self.program.functions
        layers = RepeatedLayers.of(function) if len(function.body) >= MANY_EQUATIONS else None
        if layers is None:
            return None, None
        programs = [shortened_program(self.program, layers, kept) for kept in (0, *SHORT)]
        found = [None if each is None else LayoutPricer(each, self.hardware) for each in programs]
        shorter, longer, *_ = found
        pricing = None
        if shorter is not None and longer is not None:
            pricing = LayersPricer(shorter, longer, layers.number, self if self.recomputes else None)
            if pricing.share >= 1:
                return None, None
        steps = tuple(each.undistributed() for each in found[1:] if each is not None)
        return pricing, (steps, layers.number) if len(steps) == len(SHORT) else None

    def lowered(self, mesh: Mesh, layout: Layout) -> Function:
        """Return one processor's program."""
        return self._lowered(self._placed(mesh, layout))

    def _placed(self, mesh: Mesh, layout: Layout) -> Program:
        """Return the program with a layout, after the passes that assign layouts."""
        program = attrs.evolve(self.program, mesh=mesh, layout=layout)
        if layout.pipelines:
            assert self.model is not None, "pipelines are made before differentiation"
            program = _differentiated(attrs.evolve(self.model, mesh=mesh, layout=layout))
        for each in layout_assignment():
            program = each.run(program)
        return program

    def __call__(self, mesh: Mesh, layout: Layout) -> Price:
        """Return the price of a layout; the seconds are those that `mtfc simulate` predicts."""
        if (mesh, layout) not in self.known:
            started = process_time()
            placed = self._placed(mesh, layout)
            named = Layout("", values=layout.values)
            text = print_program(attrs.evolve(placed, layout=named))
            late = layout.forms.unroll, layout.forms.sums, layout.forms.recompute
            key = blake2b(text.encode()).digest(), *late
            if key not in self.alike:
                self.alike[key] = self._price(self._lowered(placed), mesh)
                self.spent.append(process_time() - started)
            self.known[mesh, layout] = self.alike[key]
        return self.known[mesh, layout]

    def recomputed(self, mesh: Mesh, layout: Layout, limit: str | int) -> Layout:
        """Return a layout that names the limit, if the layout fits only where the backward pass computes values again."""
        if not self.recomputes or layout.forms.recompute:
            return layout
        keeping = attrs.evolve(self, recomputes=False, known={}, alike={})
        if keeping(mesh, layout).tiled <= self.hardware.device.memory:
            return layout
        named = attrs.evolve(layout, forms=attrs.evolve(layout.forms, recompute=limit))
        self.known[mesh, named] = self(mesh, layout)
        return named

    def _lowered(self, placed: Program) -> Function:
        """Return the function of a placed program with collectives, recomputing as much as the layout or the memory asks for."""
        passes, written = spmd_lowering(), placed.layout.forms.recompute if placed.layout else ""
        limited = limit_on(self.hardware, must_fit=False)
        if isinstance(written, int) and written != limited.memory:
            limited = Recompute(written, must_fit=False)
        if written not in RECOMPUTED and (self.recomputes or written):
            passes = within_memory(passes, limited)
        for each in passes:
            placed = each.run(placed)
        (function,) = placed.functions
        return function

    def _price(self, function: Function, mesh: Mesh) -> Price:
        """Return the price of a lowered function: its seconds with and without overlap, its memory, and the bytes it sends."""
        serial = seconds_of(function, Topology.of(mesh, self.hardware), self.hardware.device)
        device = self.hardware.device
        memory = memory_of(function, mesh, Numbers(mesh)).total
        tiled = memory if device.stores_plainly else expected_memory(function, mesh, device).total
        assert isinstance(memory, int) and isinstance(tiled, int), "sizes are numbers"
        sent = whole(total(charges(function, Numbers(mesh))).sent.wire_bytes)
        return Price(*serial, memory, tiled, sent, step_time(function, mesh, self.hardware).seconds)


def _differentiated(program: Program) -> Program:
    """Return a program with the training step, or else the forward pass, as its only function."""
    for each in differentiation():
        program = each.run(program)
    step = program.function("step" if program.has_function("step") else "forward")
    return attrs.evolve(program, functions=(step,))


MANY_EQUATIONS = 2000
"""Shorter programs are priced as a whole."""


@attrs.frozen
class LayersPricer:
    """Prices a model with repeated layers by two programs with fewer: see `repeated_layers.py`.

    shorter, longer: the pricers of programs without these layers, and with one of them. number: the number of the layers.
    recomputing: the pricer of the whole program if it computes values again, None if it does not. What is computed again is
    chosen for the whole program.
    """

    shorter: LayoutPricer
    longer: LayoutPricer
    number: int
    recomputing: LayoutPricer | None = None

    @property
    def share(self) -> float:
        """The equations of both programs, as a share of the equations of the model."""
        sizes = [len(each.program.functions[0].body) for each in (self.shorter, self.longer)]
        layer = sizes[1] - sizes[0]
        return sum(sizes) / (sizes[0] + self.number * layer)

    @property
    def seconds(self) -> float:
        """The expected seconds of pricing the whole model exactly.

        These are the slowest prices of both short programs, in proportion to the number of equations.
        """
        return sum(max(each.spent, default=0.0) for each in (self.shorter, self.longer)) / self.share

    def pricing(self, objective: Objective) -> Pricing:
        """Return the pricing for an objective."""

        def plain(mesh: Mesh, layout: Layout) -> Price:
            return _extrapolated(self.shorter(mesh, layout), self.longer(mesh, layout), self.number)

        whole = self.recomputing
        if whole is None:
            return plain
        if objective == "memory":
            return whole
        best = inf

        def recomputing(mesh: Mesh, layout: Layout) -> Price:
            """Price the whole program where values must be computed again, and where that may be better than all before."""
            nonlocal best
            price = plain(mesh, layout)
            room = self.shorter.hardware.device.memory
            if price.tiled > room and value_of(price, objective) < best:
                price = whole(mesh, layout)
            if price.tiled <= room:
                best = min(best, value_of(price, objective))
            return price

        return recomputing


def _extrapolated(a: Price, b: Price, number: int) -> Price:
    """Return the price of a model with some layers, from the prices without layers and with one layer."""
    pairs = zip(attrs.astuple(a), attrs.astuple(b), strict=True)
    return Price(*(x if x == y else x + number * (y - x) for x, y in pairs))
