"""The data of a report about layouts: one JSON record, of the same figures as the other commands print.

`cost` is the record of `mtfc cost --format json`, and each layout's `step` is that of `mtfc simulate`, `explain` that of `mtfc
explain`. The other entries split these figures up: by line, by equation over the step, by kernel, by collective.

Lists stand for records wherever there are many of them. Their names and files are numbers of entries of `texts`:

- a bar of a timeline: lane, name, start, seconds, stage, file, line, op
- a moment of the memory: name, stage, file, line, and the bytes of each of `KINDS`
- a kernel: name, stage, file, line, flops, bytes, seconds, dtype
- an array: name, role, file, line, own_lines, dtype, dims, splits, pending, bytes, times

The page evaluates formulas exactly at the sizes that a user chooses. A formula is a list of terms `[numerator, denominator,
{symbol: power}]`, with numerators and denominators as text, since they may have more digits than a float. The activations have a
formula for each moment at which they may peak; the page takes the largest.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeVar

import attrs

from mtfc.compiler.analysis.provenance import SentArray
from mtfc.compiler.cost.effects.memory import ARGUMENTS, memory_moments
from mtfc.compiler.cost.effects.roofline import work
from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.cost.sizes import Formula, FormulaSizes, Monomial, Numbers, bytes_of, formula, whole
from mtfc.compiler.cost.step_time import Event, lanes_of
from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.cost.volumes import PlacedCost, grouped, layout_cost, total
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import Equation, Function, Program, walk
from mtfc.compiler.ir.loops import dim_of, region_of
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.ops.collectives import axes_of, kind_of
from mtfc.compiler.ir.printer import layout_summary
from mtfc.compiler.ir.types import Axes, Dim, Mesh, TensorType
from mtfc.compiler.passes.fuse_attention import Reason
from mtfc.reports.array_summary import finite
from mtfc.reports.cost_report import layout_json, line_costs, provenance_json, sent_by_kind, separate_json
from mtfc.reports.source_lines import Line, chain_of, line_of
from mtfc.reports.step_report import SimulatedLayout


class Texts:
    """Texts that many entries share, each with a number."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))


@attrs.frozen
class ReportedLayout:
    """A layout of a report: the program of one processor, what it sends, and its step on a machine if the mesh fits there.

    separate: softmaxes between two dots that are not one op. declared: the dimensions of the program before compilation. plan:
    the figures of the layout as a plan, pairs of a title and a text.
    """

    program: Program
    declared: Mapping[str, Dim]
    sent: Sequence[SentArray]
    separate: Sequence[Reason]
    step: SimulatedLayout | None
    plan: Sequence[tuple[str, str]] = ()

    @property
    def cost(self) -> PlacedCost:
        return layout_cost(self.program)

    @property
    def function(self) -> Function:
        """The function whose cost is reported: a training step, or a forward pass."""
        return self.program.function("step" if self.program.has_function("step") else "forward")


def report_json(
    layouts: Sequence[ReportedLayout],
    hardware: Hardware,
    sources: Mapping[str, str],
    size_expressions: Mapping[str, Any],
    search: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the record of a report. sources: each file's text by name.

    size_expressions: see `sizes_json`. search: the record of a search with its progress, if there was one.
    """
    costs = [each.cost for each in layouts]
    own, texts = costs[0].file, Texts()
    described = [_layout(each, cost, hardware, texts) for each, cost in zip(layouts, costs, strict=True)]
    used = {line_of(span)[0] for cost in costs for span in _spans(cost)} | {own or ""}
    return {
        "kind": "layouts",
        "cost": {"model": costs[0].model, "layouts": [layout_json(each) for each in costs]},
        "target": target_json(hardware),
        "own": own,
        "sources": {file: sources[file] for file in sorted(used, key=lambda f: (f != own, f)) if file in sources},
        "sizes": sizes_json(layouts[0].declared, size_expressions),
        "search": search,
        "layouts": described,
        "texts": list(texts.numbers),
    }  # fmt: skip


def _spans(cost: PlacedCost) -> Iterator[Span | None]:
    yield from (charge.span for charge in cost.step)
    yield from (span for span, _ in (*cost.memory.stored, *cost.memory.occupied))


def target_json(hardware: Hardware) -> dict[str, Any]:
    """Return the machine's figures."""
    device = hardware.device
    return {
        "name": hardware.name,
        "memory": device.memory,
        "flops": {dtype: rate.peak for dtype, rate in device.flops.items()},
        "bandwidth": finite(device.bandwidth.peak),
        "caveat": " ".join(hardware.caveat).strip(),
        "links": [
            {"name": link.name, "kind": link.kind, "sizes": list(link.sizes), "bandwidth": link.peak}
            for link in hardware.links
        ],
    }


def _layout(each: ReportedLayout, cost: PlacedCost, hardware: Hardware, texts: Texts) -> dict[str, Any]:
    """Return the data of a layout for the page."""
    mesh, own = cost.mesh, cost.file
    topology = Topology.of(mesh, hardware) if each.step else None
    return {
        "name": cost.layout.name,
        "rules": layout_summary(cost.layout),
        "mesh": mesh.name,
        "trains": cost.trains,
        "axes": [[name, size] for name, size in mesh.axes],
        "step": each.step.record() if each.step else None,
        "plan": list(each.plan),
        "lines": _by_line(each, cost, lambda span: line_of(span.inside(own) if span else None)),
        "places": _by_line(each, cost, line_of),
        "arrays": list(_arrays(each.function, mesh, own, texts)),
        "memory": _memory(each.function, mesh, own, texts),
        "timeline": _timeline(each.step, texts) if each.step else None,
        "collectives": _collectives(each.function, cost, topology),
        "lanes": _lanes(topology) if topology else {},
        "kernels": _kernels(each.function, mesh, hardware, texts),
        "explain": {
            "collectives": [
                record | {"own_lines": _own_lines(sent.span, own)[:1]}
                for record, sent in zip(provenance_json(each.sent), each.sent, strict=True)
            ],
            "separate_attention": separate_json(each.separate),
        },
        "formulas": formulas_json(each.program, each.declared),
    }


# Lines


def _by_line(
    each: ReportedLayout, cost: PlacedCost, key: Callable[[Span | None], Line]
) -> list[dict[str, Any]]:
    """Return the figures of each line, with the FLOPs of each stage; a line that costs nothing has no record.

    memory, stored: the bytes that count in the memory, and those that `mtfc cost` prints.
    """
    seconds = each.step.step.lines if each.step else {}
    return [
        {
            "file": file,
            "line": line,
            "flops": whole(total(found.charges).flops),
            "sent": whole(total(found.charges).sent.bytes),
            "memory": sum(map(whole, found.occupied)),
            "stored": sum(map(whole, found.stored)),
            "seconds": sum(seconds.compute + seconds.exposed for seconds in found.seconds),
            "stages": {
                stage: whole(total(charges).flops)
                for stage, charges in grouped(found.charges, lambda charge: charge.stage).items()
            },
        }
        for (file, line), found in sorted(line_costs(cost, lambda span: [key(span)], seconds).items())
    ]


# Arrays


def _arrays(function: Function, mesh: Mesh, own: str | None, texts: Texts) -> Iterator[list[Any]]:
    """Yield the arrays that a user can name: arguments, and named values of the forward pass.

    times: the iterations of the loops around the equation that makes the array.
    """
    for argument in function.arguments:
        value, span = argument.value, argument.span
        if span is not None:
            yield [*named_array(value.type, value.name, argument.role, span, mesh, own, texts), 1]
    for eqn, _, times in _executed(function, _body, 1):
        if eqn.path and eqn.span and eqn.stage == "forward" and not eqn.regions:
            type = eqn.results[0].type
            yield [*named_array(type, eqn.path, "value", eqn.span, mesh, own, texts), times]


def named_array(
    type: TensorType, name: str, role: str, span: Span, mesh: Mesh, own: str | None, texts: Texts
) -> list[Any]:
    """Return the entries of an array, but for the last."""
    dims = [[dim.name, dim.size] for dim in type.dims]
    splits, pending = [list(axes) for axes in type.splits], list(type.pending)
    place = [texts(span.file), span.line, _own_lines(span, own)]
    return [texts(name), role, *place, type.dtype, dims, splits, pending, type.local_bytes(mesh)]


def _own_lines(span: Span | None, own: str | None) -> list[int]:
    """Return the lines of the user's file that led to a place, the innermost call first."""
    return [each.line for each in chain_of(span) if each.file == own]


def _body(function: Function) -> Sequence[Equation]:
    return function.body


Each = TypeVar("Each")


def _executed(
    function: Function, of: Callable[[Function], Iterable[Each]], times: int
) -> Iterator[tuple[Equation, Each, int]]:
    """Yield each equation, what `of` says of it, and the iterations of the loops around it."""
    for eqn, each in zip(function.body, of(function), strict=True):
        yield eqn, each, times
        if eqn.regions:
            yield from _executed(region_of(eqn), of, times * dim_of(eqn).size)


# The step over time


def _memory(function: Function, mesh: Mesh, own: str | None, texts: Texts) -> dict[str, Any]:
    """Return the bytes of arguments, which live as long as the step, and a moment for each equation."""
    scale = Numbers(mesh)
    names = {"parameters": "parameters", "optimizer": "optimizer", "activations_peak": "inputs"}
    always = {
        names[part]: sum(a.value.type.local_bytes(mesh) for a in function.arguments if a.role in roles)
        for part, roles in ARGUMENTS.items()
    }
    moments = [
        [
            texts(_name(each.eqn)),
            each.eqn.stage,
            *place_of(each.eqn.span, own, texts),
            *map(whole, each.live.values()),
        ]
        for each in memory_moments(function, mesh, scale)
    ]
    return {"always": always, "moments": moments}


def _name(eqn: Equation) -> str:
    return eqn.path or eqn.op


def place_of(span: Span | None, own: str | None, texts: Texts) -> list[int]:
    """Return the file and the line of the user where there is one."""
    file, line = line_of(span.inside(own) if span else None)
    return [texts(file), line]


def _timeline(simulated: SimulatedLayout, texts: Texts) -> dict[str, Any]:
    """Return the rows of the timeline and its bars, in seconds."""
    lanes = simulated.lanes()
    events = bars(simulated.events(), lanes, simulated.file, texts, "op")
    return {"lanes": lanes, "seconds": simulated.step.seconds, "events": events}


def bars(
    events: Iterable[Event], lanes: Sequence[str], own: str | None, texts: Texts, *details: str
) -> list[list[Any]]:
    """Return the entries of the bars of a timeline: lane, name, start and length in seconds, stage, file, line and details."""
    numbers = {name: i for i, name in enumerate(lanes)}
    return [
        [
            numbers[each.device],
            texts(each.name),
            float(f"{each.start:.11g}"),
            short(each.end - each.start),
            each.stage,
            *place_of(each.span, own, texts),
            *(each.detail.get(name, "loop") for name in details),
        ]
        for each in events
    ]


def short(seconds: float) -> float:
    """Return a time with seven digits, which a screen cannot tell from all of them."""
    return float(f"{seconds:.7g}")


# Collectives and kernels


def _collectives(function: Function, cost: PlacedCost, topology: Topology | None) -> list[dict[str, Any]]:
    """Return the collectives of each kind and set of axes: their number, bytes, and seconds on each lane of the machine."""
    sums = sent_by_kind(cost.step)
    seconds: dict[Any, dict[str, float]] = {key: {} for key in sums}
    for eqn, _, times in _executed(function, _body, 1) if topology else ():
        if has_trait(eqn, "sends") and topology:
            lanes = seconds[kind_of(eqn), axes_of(eqn)]
            for lane, each in lanes_of(eqn, topology).items():
                lanes[lane] = lanes.get(lane, 0.0) + each * times
    return [
        {
            "kind": kind,
            "axes": list(axes),
            "count": sent.count,
            "bytes": whole(sent.bytes),
            "wire_bytes": whole(sent.wire_bytes),
            "lanes": seconds[kind, axes],
        }
        for (kind, axes), sent in sums.items()
    ]


def _lanes(topology: Topology) -> dict[str, list[list[Any]]]:
    """Return the links that each mesh axis uses: name, number of members, and distance between neighbouring members."""
    return {
        axis: [[part.lane.name, part.size, part.stride] for part in parts]
        for axis, parts in topology.axis_parts.items()
    }


def _kernels(function: Function, mesh: Mesh, hardware: Hardware, texts: Texts) -> list[list[Any]]:
    """Return FLOPs, bytes and seconds of the kernels of each equation in a step; equal places are one kernel."""
    found: dict[tuple[Any, ...], list[float]] = {}
    for eqn, kernel, times in _executed(function, lambda each: work(each, mesh, hardware.device), 1):
        if kernel.seconds:
            dtype = (eqn.operands or eqn.results)[0].type.dtype
            file, line = line_of(eqn.span)
            key = texts(_name(eqn)), eqn.stage, texts(file), line, hardware.device.rated(dtype)
            sums = found.setdefault(key, [0, 0, 0.0])
            for i, each in enumerate((kernel.flops, kernel.bytes, kernel.seconds)):
                sums[i] += each * times
    return [[*key[:4], flops, size, short(seconds), key[4]] for key, (flops, size, seconds) in found.items()]


# Formulas

MOST_MOMENTS, MOST_PEAKS = 256, 32
"""Most moments with a formula, those with the most bytes at the sizes of the file; and most formulas that a page evaluates."""


def sizes_json(dims: Mapping[str, Dim], expressions: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the declared dimensions in order of declaration: name, size, and how the size is computed from others, if it is.

    expressions: a number, a name, or `[operator, operand, ...]`, by name of the dimension.
    """
    return [
        {"name": dim.name, "size": dim.size, "expression": expressions.get(dim.name)} for dim in dims.values()
    ]


def formulas_json(program: Program, declared: Mapping[str, Dim]) -> dict[str, Any]:
    """Return the formulas of one processor's step, and the splits that sizes must allow.

    symbols: the names of mesh axes in formulas, by axis. divisible: dimensions, each with the axes that split it.
    positions: sizes of dimensions that the compiler has added, such as the blocks of a dimension whose positions are split.
    """
    mesh = program.placed_on
    scale = FormulaSizes(program.dims.values(), mesh)
    cost = layout_cost(program, scale)
    function = program.function("step" if cost.trains else "forward")
    sums, memory = total(cost.step), cost.memory
    inputs: Formula = sum(
        (formula(bytes_of(a.value.type, scale)) for a in function.arguments if a.role == "input"),
        start=Formula(),
    )
    peaks = _undominated(_largest_peaks(function, program, scale)) or [Formula()]
    parts = {name: formula(getattr(memory, name)) for name in ("parameters", "gradients", "optimizer")}
    return {
        "symbols": {axis: str(scale.group((axis,))) for axis in mesh.names},
        "positions": {name: dim.size for name, dim in program.dims.items() if name not in declared},
        "divisible": [[dim, list(axes)] for dim, axes in sorted(_splits(program))],
        "flops": _terms(formula(sums.flops)),
        "sent": _terms(formula(sums.sent.bytes)),
        "wire": _terms(formula(sums.sent.wire_bytes)),
        "memory": {name: _terms(each) for name, each in parts.items()},
        "activations": [_terms(each + inputs) for each in peaks],
    }


def _splits(program: Program) -> set[tuple[str, Axes]]:
    """Return each declared dimension with each set of axes that splits it somewhere: its size must be divisible by these."""
    return {
        (dim.name, axes)
        for function in program.functions
        for eqn in walk(function.body)
        for value in (*eqn.operands, *eqn.results)
        for dim, axes in zip(value.type.dims, value.type.splits, strict=True)
        if axes and dim.name in program.dims
    }


def _largest_peaks(function: Function, program: Program, scale: FormulaSizes) -> list[Formula]:
    """Return the bytes at the moments with the most bytes at the sizes of the file, the largest first."""
    mesh = program.placed_on
    sizes = [whole(each.peak) for each in memory_moments(function, mesh, Numbers(mesh))]
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])[:MOST_MOMENTS]
    moments = memory_moments(function, mesh, scale)
    return [formula(moments[i].peak) for i in order]


def _undominated(peaks: Iterable[Formula]) -> Sequence[Formula]:
    """Return the formulas that may be the largest at some sizes, in order.

    A formula whose terms all have coefficients at most those of another one is never larger.
    """
    kept: list[Formula] = []
    for each in peaks:
        if not any(_covers(other.terms, each.terms) for other in kept):
            kept.append(each)
    return kept[:MOST_PEAKS]


def _covers(larger: Mapping[Monomial, Fraction], smaller: Mapping[Monomial, Fraction]) -> bool:
    return all(larger.get(monomial, 0) >= coefficient for monomial, coefficient in smaller.items())


def _terms(amount: Formula) -> list[list[Any]]:
    """Return a formula for the page: see the top of the file."""
    return [
        [str(a.numerator), str(a.denominator), {symbol.name: power for symbol, power in monomial}]
        for monomial, a in amount.sorted_terms()
    ]
