"""Results of `mtfc search` as text and as JSON: layouts, placements, and layouts of several meshes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any

import attrs

from mtfc.compiler.cost.hardware import Hardware, Machine
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.printer import bytes_text
from mtfc.compiler.ir.types import RECOMPUTED, Layout, Mesh
from mtfc.compiler.search.found import IN_BYTES, Ending, Found, Objective, Plan, Price, value_of
from mtfc.compiler.search.global_layouts.layout_space import space_of
from mtfc.compiler.search.pricer import LayoutPricer
from mtfc.compiler.search.usual_layouts import all_rules, batch_dims, idle_axes, without_axes
from mtfc.frontend.layouts.layout_text import PartText, layout_text, mesh_text, rules_text
from mtfc.meshes.multi_mesh_step import MultiMeshStep
from mtfc.placements.declarations import placement_text
from mtfc.reports.array_summary import finite
from mtfc.reports.plan_figures import PlanFigures, comparison, others, plan_record, plan_text
from mtfc.reports.source_lines import aligned, devices_text, free_name, wrapped
from mtfc.reports.step_report import seconds_text

if TYPE_CHECKING:
    from mtfc.placements.mcmc import PlacementResult
    from mtfc.placements.placement_search import PlacementSpace

MOST_SHOWN = 30
"""Most equations that a report shows; a file gets all of them."""

MOST_LISTED = 8
"""Most dimensions that a reason lists."""

MOST_PLACED = 20
"""A placement of more operators is written to a file, and not shown."""

LARGEST = 10**300
"""A number that a float can hold, for readers of JSON."""


# Layouts


@attrs.frozen(slots=False)
class LayoutSearchResult:
    """The result of a search for layouts, the layouts to compare with, and the seconds of the search.

    searched: the candidate meshes.
    """

    space: str
    found: Found
    program: Program
    pricer: LayoutPricer
    others: Mapping[str, Plan]
    searched: tuple[Mesh, ...]
    objective: Objective
    seconds: float

    def seconds_of(self, price: Price) -> float:
        """Return the seconds of a step, without overlap if that is the objective."""
        return value_of(price, "time" if self.objective in IN_BYTES else self.objective)

    @cached_property
    def price(self) -> Price:
        """The price of the result."""
        return self.pricer(self.found.mesh, self.found.layout)

    @property
    def gap(self) -> float | None:
        """The part by which the result is at most above the best; None if nothing is proven."""
        found = self.found
        return None if found.refuted is not None else gap_over(found.objective, found.lower_bound)

    @property
    def compared(self) -> dict[str, Price]:
        """The prices of the layouts to compare with."""
        return {name: self.pricer(*each) for name, each in self.others.items()}

    @cached_property
    def fewer(self) -> tuple[int, Price] | None:
        """The number of devices that the result needs if some are idle, and its price on them."""
        mesh, layout = self.found.mesh, self.found.layout
        idle = idle_axes(mesh, layout)
        used = without_axes(mesh, idle) if len(idle) < len(mesh.axes) else Mesh(mesh.name, ((idle[0], 1),))
        return (used.devices, self.pricer(used, layout)) if idle else None

    @cached_property
    def figures(self) -> PlanFigures:
        """The figures of the result."""
        return PlanFigures.priced(self.program, self.pricer, self.found.mesh, self.found.layout)

    @property
    def alternatives(self) -> list[tuple[Mesh, Layout, Price]]:
        """The best plans of other kinds among those that were priced exactly, if time is the objective."""
        if self.objective in IN_BYTES:
            return []
        found, room = (self.found.mesh, self.found.layout), self.pricer.hardware.device.memory
        return [*others(self.program, self.pricer.known, found, room)]

    @property
    def kinds(self) -> list[str]:
        """The best plans of other kinds, and why they lost."""
        return [comparison(*each, self.price) for each in self.alternatives]

    def record(self) -> dict[str, Any]:
        """Return the JSON record. With memory or sent bytes as the objective, the bound is in bytes."""
        found, price = self.found, self.price
        in_seconds, seconds = self.objective not in IN_BYTES, self.seconds_of(self.price)
        more: dict[str, Any] = {}
        if found.without_forms is not None:
            more["without_forms"] = _without_forms_record(found.without_forms, in_seconds)
        if found.cuts:
            more["bytes_after_cuts"] = [round(each) for each in found.cuts]
        if self.fewer is not None:
            used, there = self.fewer
            more["fewer_devices"] = {"devices": used, "step_seconds": there.seconds}
        return {
            "space": self.space,
            "target": self.pricer.hardware.name,
            "devices": found.mesh.devices,
            "peak_figures": self.pricer.hardware.has_peak_figures,
            "objective": self.objective,
            "objective_seconds": seconds,
            "lower_bound_seconds": min(found.lower_bound, seconds) if in_seconds else None,
            "lower_bound_bytes": None if in_seconds else int(found.lower_bound),
            "optimal": found.is_optimal,
            "ending": found.ending,
            "gap": self.gap,
            "evaluated": found.evaluated,
            "search_seconds": round(self.seconds, 3),
            "mesh": found.mesh.sizes,
            "layout": rules_text(found.layout),
            "forms": found.layout.forms.entries,
            "compute_seconds": price.compute,
            "communication_seconds": price.communication,
            "bytes_sent": price.sent,
            "objective_bytes": None if in_seconds else round(found.objective),
            "memory_per_device": _memory(price, self),
            "recomputed": bool(found.layout.forms.recompute),
            "baselines": {name: self.seconds_of(each) for name, each in self.compared.items()},
            "overlapping_seconds": price.seconds,
            "nothing_split": why_whole(self),
            "overlapping_baselines": {name: each.seconds for name, each in self.compared.items()},
            **self.figures.record(),
            "alternatives": [plan_record(*each) for each in self.alternatives],
            **more,
        }

    def report(self) -> str:
        """Return the layout, the proof, and a table of the layouts to compare with."""
        found, hardware = self.found, self.pricer.hardware
        devices = devices_text(hardware.name, found.mesh.devices)
        heading = f"{self.program.name}, on {devices}, mesh {_shape(found.mesh)}"
        name = free_name(found.layout.name, self.others)
        shown, left_out = _shown(attrs.evolve(found.layout, name=name))
        declared = [
            f"  {line}" for line in (mesh_text(found.mesh) + layout_text(shown, found.mesh)).splitlines()
        ]
        columns = _columns(self)
        priced = {name: (found.mesh, self.price)}
        if (plain := found.without_forms) is not None:
            priced["without forms"] = plain.mesh, self.pricer(plain.mesh, plain.layout)
        *_, (_, plain_price) = priced.values()
        priced |= {name: (self.others[name][0], each) for name, each in self.compared.items()}
        rows = [["layout", "mesh", *columns]]
        rows += [
            [each, _shape(mesh), *(text(price) for text in columns.values())]
            for each, (mesh, price) in priced.items()
        ]
        notes = [
            f"Memory is that of one device, which has {bytes_text(int(hardware.device.memory))}. In a step, communication "
            f"overlaps with independent computation. {COMPARED[self.objective]}"
        ]
        if (limit := found.layout.forms.recompute) and limit not in RECOMPUTED:
            size = f" ({bytes_text(limit)})" if isinstance(limit, int) else ""
            notes.append(
                f"note: this layout fits with `recompute: {limit}`{size}, which computes values again"
            )
        training = self.program.training
        if training is not None and training.accumulate > 1:
            batch = [
                f"--dim {dim.name}={dim.size} " for dim in batch_dims(self.program.function("forward"))[:1]
            ]
            options = f"`{''.join(batch)}--set accumulate={training.accumulate}`"
            notes.append(f"note: a step has {training.accumulate} micro-batches: {options}")
        if known := [name for name, each in self.compared.items() if each == plain_price]:
            forms = "without forms, " * (plain is not None)
            notes.append(f"note: {forms}the plan found has the figures of {known[0]}: none better was found")
        if (reason := why_whole(self)) is not None:
            notes.append(f"note: nothing is split: {reason}")
        if self.fewer is not None:
            used, price = self.fewer
            axes, idle = ", ".join(idle_axes(found.mesh, found.layout)), found.mesh.devices - used
            text = f"{idle} of {found.mesh.devices} devices are idle, and on {used} the plan takes"
            notes.append(f"note: no rule uses {axes}: {text} {seconds_text(price.seconds)}")
        proof = _proven(self)
        kinds = self.kinds
        notes = [self.figures.text(), *["The best plans of other kinds:"] * bool(kinds), *kinds, *notes]
        wrapped_notes = [line for note in notes for line in wrapped(note.split(), 2)]
        first = ended(found.ending, self.seconds, self.gap)
        notes = ["", *wrapped_notes, *hardware.caveat]
        return _report([*first, heading], proof, [*declared, *left_out], rows, 2, notes)


def _without_forms_record(plain: Found, in_seconds: bool) -> dict[str, Any]:
    """Return the best layout without forms, and its bound."""
    return {
        "layout": rules_text(plain.layout),
        "mesh": plain.mesh.sizes,
        "objective_seconds": plain.objective if in_seconds else None,
        "objective_bytes": None if in_seconds else round(plain.objective),
        "lower_bound_seconds": plain.lower_bound if in_seconds else None,
        "lower_bound_bytes": None if in_seconds else int(plain.lower_bound),
        "optimal": plain.is_optimal,
    }


COMPARED: Mapping[Objective, str] = {
    "time": "",
    "serial": "Layouts are compared by the time without overlap.",
    "memory": "Layouts are compared by their memory.",
    "bytes": "The search divides all work that can be divided, and counts the bytes of each use of a tensor; compiled programs "
    "share copies. Layouts are compared by the bytes that a device then sends.",
}


def why_whole(result: LayoutSearchResult) -> str | None:
    """Return the reason why several devices split nothing, or None if something is split."""
    if result.found.mesh.devices == 1 or not is_whole(result.found.layout):
        return None
    return _indivisible(result) or _communicates(result) or _no_better(result)


def is_whole(layout: Layout) -> bool:
    """True if a layout splits nothing."""
    return not any(axes for rules in all_rules(layout) for _, axes in rules.axes)


def _indivisible(result: LayoutSearchResult) -> str | None:
    """Return the reason that no axis of any mesh divides a dimension, or None."""
    dims = [column.dim for column in space_of(result.program.function("forward")).columns]
    sizes = sorted({size for mesh in result.searched for _, size in mesh.axes if size > 1})
    if any(dim.size % size == 0 for dim in dims for size in sizes):
        return None
    *most, last = map(str, sizes)
    number = f"{', '.join(most)} or {last}" if most else last
    listed = ", ".join(f"{dim.name}: {dim.size}" for dim in dims[:MOST_LISTED])
    rest = ", ..." if len(dims) > MOST_LISTED else ""
    return f"the size of no dimension that can be split is a multiple of {number} ({listed}{rest})"


def _no_better(result: LayoutSearchResult) -> str:
    """Return that no layout which splits something is better, or that none was found."""
    less = "needs less memory" if result.objective == "memory" else "takes less time"
    if result.found.is_optimal:
        return f"no layout that splits something {less}"
    return f"no layout that splits something and {less} was found"


def _communicates(result: LayoutSearchResult) -> str | None:
    """Return the computation that the best split layout saves, and its communication; None if none computes less."""
    compute = result.price.compute
    split = [
        (name, each)
        for name, each in result.compared.items()
        if each.communication and each.compute < compute
    ]
    if result.objective == "memory" or not split:
        return None
    name, other = min(split, key=lambda each: value_of(each[1], result.objective))
    saved, sent = seconds_text(compute - other.compute), seconds_text(other.communication)
    return f"{name} computes for {saved} less, and communicates for {sent}"


def _shown(layout: Layout) -> tuple[Layout, list[str]]:
    """Return a layout with the first equations that it splits, and a note about the other equations."""
    split = [(path, rules) for path, rules in layout.values if rules.axes]
    kept, count = split[:MOST_SHOWN], len(layout.values)
    if len(kept) == count:
        return layout, []
    rest = (
        f"These are {len(kept)} of {count} equations; -o OUT.mtf writes the other {count - len(kept)}, too."
    )
    return attrs.evolve(layout, values=tuple(kept)), ["", f"  {rest if split else 'No equation is split.'}"]


def ended(ending: Ending, seconds: float, gap: float | None) -> list[str]:
    """Return the first line of a report whose search had no time for a proof. gap: as `gap_over`."""
    known = "nothing is proven" if gap is None else f"at most {at_most(1 + gap)}"
    return [f"The time ended after {seconds:.3g} s: {known}."] if ending == "time" else []


def gap_over(value: float, bound: float) -> float | None:
    """Return the part by which a value is at most above the least value; None if nothing is known, so that the bound is 0."""
    return over(value, bound) - 1 if bound or value == bound else None


def bounded(kind: str, value: float, bound: float, unit: Callable[[float], str]) -> str:
    """Return what a lower bound of everything of a kind says about a value; the bound is 0 if nothing is known."""
    if value <= bound:
        return f"Proven: no {kind} is better."
    if not bound:
        return f"Nothing is proven about any {kind}; a larger --budget proves more."
    return f"No {kind} is below {unit(bound)}, so this is at most {at_most(over(value, bound))}."


def _proven(result: LayoutSearchResult) -> str:
    """Return what is proven about the result, and how many layouts were tried."""
    number = result.found.evaluated
    tried = "1 layout was compiled." if number == 1 else f"{number} layouts were compiled."
    ended = "Interrupted. " if result.found.is_interrupted else ""
    return f"{ended}{_claim(result)} {tried}"


def _claim(result: LayoutSearchResult) -> str:
    """Return the sentence about what the search has proven about the found layout."""
    found, space = result.found, f"layout {_bounded_layouts(result)}"
    forms, unit = found.layout.forms.without_loop_forms.entries, _unit(result)
    if found.refuted is not None:
        layout = "a tiling" if found.refuted.values else f"the layout {{ {rules_text(found.refuted)} }}"
        return f"Nothing is proven: {layout} is below its bound, which is a bug in mtfc; please report it."
    if found.cuts:
        return _of_cuts(result)
    if found.without_pipelines is not None:
        if result.objective != "memory":
            return _with_pipelines(found, unit)
        known = bounded(space, found.objective, found.without_pipelines, unit)
        return f"{known} Nothing is proven about other plans."
    if found.without_forms is not None or forms:
        known = "Nothing is proven about layouts with forms."
        if found.lower_bound:
            known = bounded("layout with forms", found.objective, found.lower_bound, unit)
        return f"{known} {_without_forms(result)}"
    if result.space == "forms":
        return "No `forms` of this layout save a thousandth."
    return bounded(space, found.objective, found.lower_bound, unit)


def _bounded_layouts(result: LayoutSearchResult) -> str:
    """Return the layouts without forms that the bound is for: those of the space, or for the least memory a part of them."""
    training = result.program.training
    if result.objective != "memory" or not result.pricer.recomputes:
        return f"in the space `{result.space}`"
    number = 1 if training is None else training.accumulate
    return (
        f"with {number} micro-batch{'es' * (number > 1)} and without recomputation, other forms or a pipeline"
    )


def _with_pipelines(found: Found, unit: Callable[[float], str]) -> str:
    """Return what is proven about all plans, and about those without a pipeline."""
    known, without = bounded("plan", found.objective, found.lower_bound, unit), found.without_pipelines or 0.0
    if without <= found.lower_bound:
        return known
    if found.layout.pipelines:
        return f"{known} None without a pipeline is below {unit(without)}."
    return f"{known} {bounded('plan without a pipeline', found.objective, without, unit)}"


def _without_forms(result: LayoutSearchResult) -> str:
    """Return what is proven about layouts without forms, and what forms save."""
    plain, unit = result.found.without_forms, _unit(result)
    if plain is None:
        return "This layout fits into the memory with these `forms`, and not without."
    more = 100 * (over(plain.objective, result.found.objective) - 1)
    verb, known = "needs" if result.objective in IN_BYTES else "takes", ""
    if plain.lower_bound and plain.refuted is None:
        least = f"{verb} less" if plain.is_optimal else f"is below {unit(plain.lower_bound)}"
        known = f", and none {_bounded_layouts(result)} {least}"
    return f"Without `forms`, the best found {verb} {unit(plain.objective)}, {more:.2g}% more{known}."


def _of_cuts(result: LayoutSearchResult) -> str:
    """Return the bytes after each cut, and the distance to the fewest bytes of all tilings."""
    found = result.found
    sizes = ", ".join(map(_bytes, found.cuts))
    value, bound = (found.mesh.devices * each for each in (found.objective, found.lower_bound))
    known = bounded("tiling", value, bound, _bytes)
    return f"After each cut, all devices together send {sizes}. {known}"


def _unit(result: LayoutSearchResult) -> Callable[[float], str]:
    return _bytes if result.objective in IN_BYTES else seconds_text


def at_most(ratio: float) -> str:
    """Return the distance from the best as text, for a result that is `ratio` times a lower bound."""
    if ratio > 2:
        return f"{ratio:.3g} times the best"
    gap = 100 * (ratio - 1)
    return f"{gap:.1f}% above the best" if gap >= 1 else f"{gap:.2g}% above the best"


def over(value: float, least: float) -> float:
    """Return the ratio of a value to the least value; it is 1 if both are zero, as for a program that does nothing."""
    if value == least:
        return 1.0
    return value / least if least else inf


def _bytes(size: float) -> str:
    return bytes_text(int(size))


def _memory(price: Price, result: LayoutSearchResult) -> int:
    """Return the bytes that are reported: those on the machine, or those that are minimized."""
    return price.memory if result.objective == "memory" else price.tiled


def _shape(mesh: Mesh) -> str:
    return "x".join(str(size) for _, size in mesh.axes)


def _columns(result: LayoutSearchResult) -> dict[str, Callable[[Price], str]]:
    """Return the texts of a price, by the head of their column."""
    best, room = value_of(result.price, result.objective), result.pricer.hardware.device.memory

    def memory(price: Price) -> str:
        fits = price.tiled <= room
        return bytes_text(_memory(price, result)) if fits else f"{bytes_text(price.tiled)}, too much"

    found: dict[str, Callable[[Price], str]] = {
        "a step": lambda price: seconds_text(price.seconds),
        "computes": lambda price: seconds_text(price.compute),
        "communicates": lambda price: seconds_text(price.communication),
    }
    if result.objective == "serial":
        found["without overlap"] = lambda price: seconds_text(price.serial)
    if result.objective == "bytes":
        found["sends"] = lambda price: _bytes(price.sent)
    found["memory"] = memory
    found["of the best"] = lambda price: f"{over(value_of(price, result.objective), best):.2f}"
    return found


def _report(
    heading: Sequence[str],
    proof: str,
    shown: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: int,
    notes: Sequence[str],
) -> str:
    """Return the result as text, with its proof, a table whose first `left` columns are text, and notes."""
    table = aligned(rows, right=range(left, len(rows[0])))
    return "\n".join([*heading, *wrapped(proof.split(), 2), "", *shown, "", *table, *notes])


# Placements


@attrs.frozen
class LayoutAsPlacement:
    """A layout that is also a placement: its step as the tasks of operators, and as `mtfc simulate` shows the layout."""

    mesh: Mesh
    layout: Layout
    placed_seconds: float
    step_seconds: float

    def record(self) -> dict[str, Any]:
        """Return the JSON record."""
        seconds = {"placed_seconds": self.placed_seconds, "step_seconds": self.step_seconds}
        return {"mesh": self.mesh.sizes, "layout": rules_text(self.layout), **seconds}

    def text(self) -> str:
        """Return the layout with both figures."""
        plan = plan_text(self.mesh, self.layout)
        placed, step = map(seconds_text, (self.placed_seconds, self.step_seconds))
        return (
            f"The best placement that is also a layout is {plan}. It takes {placed} as a placement, whose operators are apart, "
            f"and {step} as a layout, whose kernels are fused across operators: the price of `mtfc simulate` and of the other "
            "spaces."
        )


@attrs.frozen(eq=False)
class PlacementSearchResult:
    """The result of a search for placements, and its seconds.

    name: of the found placement. machine: if the file has it. layout: the best placement that is also a layout. is_exhaustive:
    True if a proof was asked for.
    """

    model: str
    name: str
    space: PlacementSpace
    found: PlacementResult
    seconds: float
    machine: Machine | None = None
    layout: LayoutAsPlacement | None = None
    is_exhaustive: bool = False

    @property
    def gap(self) -> float | None:
        """The part by which the placement is at most above the best; None if nothing is proven."""
        return gap_over(self.found.best.seconds, self.found.lower_bound)

    @property
    def ending(self) -> Ending:
        """The reason why the search ended; a local optimum completes it, too, unless a proof was asked for."""
        if self.found.is_interrupted:
            return "interrupted"
        is_complete = self.found.is_optimal or (self.found.locally_optimal and not self.is_exhaustive)
        return "complete" if is_complete else "time"

    def text(self) -> str:
        """Return the declaration of the placement."""
        space = self.space
        return placement_text(self.name, space.devices, space.graph, self.found.best.strategy, self.machine)

    def record(self) -> dict[str, Any]:
        """Return the JSON record, whose layout is a placement."""
        best = self.found.best
        return {
            "space": "soap",
            "target": self.space.hardware.name,
            "devices": self.space.devices,
            "peak_figures": self.space.hardware.has_peak_figures,
            "objective_seconds": best.seconds,
            "lower_bound_seconds": self.found.lower_bound,
            "optimal": self.found.is_optimal,
            "ending": self.ending,
            "gap": self.gap,
            "locally_optimal": self.found.locally_optimal,
            "strategies": self.space.strategies if self.space.strategies < LARGEST else None,
            "restricted_to": self.space.kinds,
            "evaluated": self.found.evaluated,
            "search_seconds": round(self.seconds, 3),
            "mesh": {},
            "layout": self.text(),
            "bytes_sent": best.sent,
            "memory_per_device": int(best.memory.max()),
            "history": [
                {
                    "search_seconds": each.seconds,
                    "evaluated": each.evaluated,
                    "objective_seconds": finite(each.cost),
                }
                for each in self.found.history
            ],
            "baselines": {name: finite(each.seconds) for name, each in self.found.baselines.items()},
            **({} if self.layout is None else {"best_layout": self.layout.record()}),
        }

    def report(self) -> str:
        """Return the placement, the proof, and a table of the placements to compare with."""
        best, space = self.found.best, self.space
        kinds = f", restricted to {space.kinds}" if space.kinds else ""
        heading = f"{self.model}, on {devices_text(space.hardware.name, space.devices)}{kinds}"
        rows = [["placement", "a step", "sends", "memory", "of the best"]]
        for name, each in {self.name: best, **self.found.baselines}.items():
            size = f"{bytes_text(each.sent)}", bytes_text(int(each.memory.max()))
            fits = each.seconds < inf
            step, share = seconds_text(each.seconds), f"{over(each.seconds, best.seconds):.2f}"
            rows.append([name, step if fits else "does not fit", *size, share if fits else ""])
        shown = self.text() if len(space.graph.operators) <= MOST_PLACED else ""
        notes = [*wrapped(self.layout.text().split(), 2)] if self.layout is not None else []
        notes += space.hardware.caveat
        lines = [f"  {line}" for line in shown.splitlines()]
        first = ended(self.ending, self.seconds, self.gap)
        proof = _placement_proof(self)
        return _report([*first, heading], proof, lines, rows, 1, ["", *notes] if notes else [])


def _placement_proof(placed: PlacementSearchResult) -> str:
    """Return the proof of the result: optimal, locally optimal, or bounded."""
    result, operators = placed.found, len(placed.space.graph.operators)
    tried = f"{result.evaluated} {'was' if result.evaluated == 1 else 'were'} simulated."
    every = f"{about(placed.space.strategies)} strategies of {operators} operators"
    if result.is_optimal:
        return f"Proven the best of {every}: {tried}"
    ended = "No other configuration of a single operator is better."
    if not result.locally_optimal:
        why = "Interrupted" if result.is_interrupted else "The time was up"
        ended = f"{why} before that was a local optimum."
    known = bounded("strategy", result.best.seconds, result.lower_bound, seconds_text)
    return f"{ended} {known} Of {every} {tried}"


def about(number: int) -> str:
    """Return a number to three digits. The strategies of a deep network on many devices exceed the range of floats."""
    return f"{number:.3g}" if number < LARGEST else f"{Decimal(number):.2e}"


# Several meshes


ENDINGS: Mapping[Ending, str] = {
    "complete": "No change of a single rule and no move of a single name made the step shorter",
    "time": "The time ended",
    "interrupted": "The search was interrupted",
}


@attrs.frozen(eq=False)
class MultiMeshSearchResult:
    """The parts of a layout that a search found: meshes, their rules, and the names of what runs there.

    start, before: the layout from which the search started, and its step.
    """

    name: str
    parts: Sequence[PartText]
    step: MultiMeshStep
    start: str
    before: MultiMeshStep
    hardware: Hardware
    evaluated: int
    seconds: float
    ending: Ending

    def record(self) -> dict[str, Any]:
        """Return the record of the search; see `docs/command.md`."""
        return {
            "model": self.step.cost.model,
            "target": self.hardware.name,
            "space": "meshes",
            "layout": self.name,
            "by_mesh": [
                {
                    "name": part.mesh.name,
                    "mesh": part.mesh.sizes,
                    "part": list(part.names),
                    "rules": rules_text(part.layout),
                    "seconds": seconds,
                    "memory": held,
                }
                for part, (_, seconds, held) in zip(self.parts, self.step.by_mesh, strict=True)
            ],
            "step_seconds": self.step.seconds,
            "declared": self.start,
            "declared_seconds": self.before.seconds,
            "evaluated": self.evaluated,
            "seconds": self.seconds,
            "optimal": False,
            "ending": self.ending,
            "gap": None,
        }

    def report(self) -> str:
        """Return the rules of each mesh, and the step beside that of the declared layout."""
        rows = [["mesh", "part", "rules", "busy", "memory"]]
        for part, (_, seconds, held) in zip(self.parts, self.step.by_mesh, strict=True):
            names = ", ".join(part.names) or "everything else"
            rules = rules_text(part.layout) or "nothing is split"
            mesh = f"{part.mesh.name} = [{part.mesh.axes_text}]"
            rows.append([mesh, names, rules, seconds_text(seconds), bytes_text(held)])
        ratio = self.before.seconds / self.step.seconds if self.step.seconds else 1.0
        declared = [f"layout {self.start}, as declared", seconds_text(self.before.seconds), f"{ratio:.2f}"]
        steps = [[f"layout {self.name}", seconds_text(self.step.seconds), "1.00"], declared]
        proof = f"{ENDINGS[self.ending]} after {self.evaluated} layouts. Nothing is proven."
        heading = f"{self.step.cost.model}, a step on {self.hardware.name}"
        shown = [*aligned(steps, right={1, 2}), "", *aligned(rows, right={3, 4}), "", f"  {proof}"]
        return "\n".join([*ended(self.ending, self.seconds, None), heading, *shown])
