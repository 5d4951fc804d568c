"""The figures of a plan: its rates, its memory by kind, the links that it uses, and the best plans of other kinds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from math import inf, prod
from typing import Any

import attrs

from mtfc.compiler.cost.device_models import expected_memory
from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.cost.sizes import whole
from mtfc.compiler.cost.step_time import StepTime, sent_on_lanes, step_time
from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.ir.core import Function, Program
from mtfc.compiler.ir.printer import bytes_text
from mtfc.compiler.ir.types import Layout, Mesh
from mtfc.compiler.search.found import Plan, Price
from mtfc.compiler.search.pricer import LayoutPricer
from mtfc.compiler.search.usual_layouts import batch_dims
from mtfc.frontend.layouts.layout_text import rules_text
from mtfc.reports.source_lines import count_text
from mtfc.reports.step_report import seconds_text

KINDS = 4
"""The most plans of other kinds that are shown."""

TITLES = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "activations_peak": "activations",
}
"""The parts of the memory by the names of reports."""


@attrs.frozen(slots=False, eq=False)
class PlanFigures:
    """The figures of one plan of a program on a machine. function: one processor's program. step: its simulated step."""

    program: Program
    function: Function
    mesh: Mesh
    layout: Layout
    hardware: Hardware
    step: StepTime

    @classmethod
    def priced(cls, program: Program, pricer: LayoutPricer, mesh: Mesh, layout: Layout) -> PlanFigures:
        """Return the figures of a plan that a search found."""
        function, hardware = pricer.lowered(mesh, layout), pricer.hardware
        return cls(program, function, mesh, layout, hardware, step_time(function, mesh, hardware))

    @cached_property
    def memory(self) -> dict[str, int]:
        """The bytes of a device by kind."""
        found = expected_memory(self.function, self.mesh, self.hardware.device)
        return {name: whole(amount) for name, amount in found.parts().items()}

    @cached_property
    def sent(self) -> dict[str, int]:
        """The bytes that a device sends on each link."""
        found = sent_on_lanes(self.function, Topology.of(self.mesh, self.hardware))
        return {lane: round(bytes) for lane, bytes in found.items()}

    @cached_property
    def batch(self) -> dict[str, int]:
        """The examples of a step, and its tokens if the first input has indices of two dimensions or more."""
        forward, training = self.program.function("forward"), self.program.training
        times = training.accumulate if training is not None else 1
        first = next((a.value.type for a in forward.arguments if a.role == "input"), None)
        found = {}
        if batch := batch_dims(forward):
            found["examples"] = times * batch[0].size
        if first is not None and first.dtype in ("i32", "u32") and len(first.dims) > 1:
            found["tokens"] = times * prod(dim.size for dim in first.dims)
        return found

    @property
    def bubbles(self) -> dict[str, float]:
        """The share of the time in which a device of each pipeline is idle: (S - 1) / (M C + S - 1)."""
        waits = {
            each.loop: self.mesh.size(self.layout.rules.get(each.loop)) - 1 for each in self.layout.pipelines
        }
        works = {each.loop: each.micro_batches * each.chunks for each in self.layout.pipelines}
        return {loop: wait / (works[loop] + wait) for loop, wait in waits.items()}

    def record(self) -> dict[str, Any]:
        """Return the JSON record."""
        seconds = self.step.seconds
        return {
            "utilisation": self.step.utilisation,
            **{f"{name}_per_second": number / seconds for name, number in self.batch.items() if seconds},
            "memory": self.memory,
            "links": dict(self.step.busy),
            "link_bytes": self.sent,
            "bubbles": self.bubbles,
        }

    def rows(self) -> list[tuple[str, str]]:
        """Return the figures as pairs of a title and a text, for reports and pages."""
        seconds, device = self.step.seconds, self.hardware.device
        rates = [f"{number / seconds:,.0f} {name}/s" for name, number in self.batch.items() if seconds]
        kinds = [
            f"{title} {bytes_text(self.memory[name])}" for name, title in TITLES.items() if self.memory[name]
        ]
        links = [
            f"{lane} {seconds_text(busy)} for {bytes_text(self.sent.get(lane, 0))}"
            for lane, busy in self.step.busy.items()
        ]
        peak = [f"{count_text(int(device.rate(each).peak))} in {each}" for each in sorted(self.step.dtypes)]
        peaks = f" ({', '.join(peak)})" if peak else ""
        found = {
            "Step": [seconds_text(seconds), f"{self.step.utilisation:.1%} of the peak FLOP/s{peaks}", *rates],
            f"Memory of {bytes_text(int(device.memory)) if device.memory < inf else 'a device'}": kinds,
            "Links in use": links,
            "Idle in a pipeline": [f"{share:.1%} along {loop}" for loop, share in self.bubbles.items()],
        }
        return [(title, ", ".join(texts)) for title, texts in found.items() if texts]

    def text(self) -> str:
        """Return the figures as sentences."""
        return " ".join(f"{title}: {text}." for title, text in self.rows())


def kind_of(program: Program, layout: Layout) -> tuple[bool, ...]:
    """Return whether a layout splits the batch, other dimensions, stored parameters, stored state, and layers in stages."""
    batch = {dim.name for dim in batch_dims(program.function("forward"))}
    split = {name for name, axes in layout.rules.axes if axes}
    stored = [any(axes for _, axes in rules.axes) for rules in (layout.params, layout.optimizer)]
    return not batch.isdisjoint(split), not split <= batch, stored[0], any(stored), bool(layout.pipelines)


def others(
    program: Program, prices: Mapping[Plan, Price], found: Plan, room: float
) -> Iterator[tuple[Mesh, Layout, Price]]:
    """Yield the best priced plans that fit and differ in kind from the found plan and from each other, the best first."""
    seen = {kind_of(program, found[1])}
    fitting = [(price, *plan) for plan, price in prices.items() if price.tiled <= room]
    for price, mesh, layout in sorted(fitting, key=lambda each: each[0].seconds):
        kind = kind_of(program, layout)
        if kind not in seen and len(seen) <= KINDS:
            seen.add(kind)
            yield mesh, layout, price


def comparison(mesh: Mesh, layout: Layout, price: Price, best: Price) -> str:
    """Return a plan of another kind, and why it lost."""
    waits = [each.seconds - each.compute for each in (price, best)]
    computes = _more("computes", price.compute - best.compute)
    return f"{seconds_text(price.seconds)}: {plan_text(mesh, layout)} {computes}, {_more('waits', waits[0] - waits[1])}"


def plan_record(mesh: Mesh, layout: Layout, price: Price) -> dict[str, Any]:
    """Return the JSON record of a plan of another kind, or with other resources."""
    return {
        "mesh": mesh.sizes,
        "layout": rules_text(layout),
        "step_seconds": price.seconds,
        "compute_seconds": price.compute,
        "memory_per_device": price.tiled,
    }


def plan_text(mesh: Mesh, layout: Layout) -> str:
    """Return a plan on one line."""
    rules = rules_text(layout)
    return f"{f'{{ {rules} }}' if rules else '{}'} on [{mesh.axes_text}]"


def _more(verb: str, seconds: float) -> str:
    return f"{verb} for {seconds_text(abs(seconds))} {'more' if seconds >= 0 else 'less'}"
