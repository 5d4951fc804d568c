"""Costs of a model under a layout, by source line and by value, in a form that can be sent between processes.

The server asks for one case at a time: a model and a layout. A line has the figures of all that it computes, those in the
functions that it calls included; so a line inside of a function has a part of what the calling line has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

import attrs

from mtfc.compiler.analysis.provenance import SentArray, sent_arrays
from mtfc.compiler.cost.sizes import whole
from mtfc.compiler.cost.step_time import Seconds
from mtfc.compiler.cost.volumes import PlacedCost, grouped, total
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import Equation, Function, Program, walk
from mtfc.compiler.ir.printer import bytes_text
from mtfc.compiler.ir.types import Mesh, TensorType
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import LayoutOnMesh, select
from mtfc.driver.loading.sources import Sources
from mtfc.driver.searching.search import DEFAULT_TARGET
from mtfc.frontend.layout_options import ONE
from mtfc.reports.cost_report import LineCost, line_costs, transfers
from mtfc.reports.source_lines import Line, chain_of, line_of
from mtfc.reports.step_report import seconds_text
from mtfc.reports.table import count_text, flops_text

MOST_CAUSES = 6
"""Most causes of collectives that are shown of a line, those for the largest arrays."""


@attrs.frozen
class ValueFigures:
    """A value under a layout.

    path: its full name. places: the place that defines it, then the calls that led there, each in its file. type: with the axes
    that split it.
    """

    path: str
    places: tuple[Span, ...]
    type: TensorType

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


@attrs.frozen
class CaseFigures:
    """A model under a layout, on one device.

    parameters: their number in the whole model. flops, sent, seconds: of a step; seconds are None if the mesh does not lie on the
    machine. peak: True if the machine has peak figures only. lines: phrases about what a line computes, sends and stores.
    """

    model: str
    layout: str
    is_declared: bool
    mesh: Mesh
    trains: bool
    target: str
    parameters: int
    flops: int
    sent: int
    memory: int
    fits: bool
    seconds: float | None
    peak: bool
    lines: Mapping[Line, tuple[str, ...]]
    values: tuple[ValueFigures, ...]


def case_figures(
    file: str, model: str, layout: str | None, target: str | None, sources: Sources
) -> CaseFigures:
    """Return the figures of a model under a layout, or without any.

    target: a machine; None for the first that the file declares, or else the default one. Raises `CompileError` and `UsageError`.
    """
    from mtfc.compiler.cost.hardware import Hardware
    from mtfc.driver.loading.target import has_room, target_of
    from mtfc.driver.simulate import simulate_layout

    choice = Choice(model=model, layout=layout, mesh=None if layout else ONE)
    selection = select(file, choice, sources)
    (case,) = selection.cases
    equal = (name for name, each in selection.hardware.items() if isinstance(each, Hardware))
    declared = next(equal, DEFAULT_TARGET)
    hardware = target_of(target or declared, selection.hardware, sources)
    program = case.lower(selection.program)
    simulated = simulate_layout(program, hardware)
    step, cost = simulated.step if has_room(hardware, case.mesh) else None, simulated.cost
    function = program.function("step" if cost.trains else "forward")
    totals = total(cost.step)
    return CaseFigures(
        model=selection.program.name,
        layout=case.name,
        is_declared=layout is not None,
        mesh=case.mesh,
        trains=cost.trains,
        target=hardware.name,
        parameters=sum(each.type.size for each in selection.program.parameters if not each.is_state),
        flops=whole(totals.flops),
        sent=whole(totals.sent.bytes),
        memory=simulated.memory,
        fits=simulated.fits,
        seconds=step.seconds if step else None,
        peak=bool(hardware.caveat),
        lines=_lines(cost, step.lines if step else {}, sent_arrays(function, case.mesh, case.layout)),
        values=tuple(_values(selection.program, function, case)),
    )


# Lines


def _at(span: Span | None) -> set[Line]:
    """Return the lines that a figure belongs to."""
    return {line_of(each) for each in chain_of(span)}


def _lines(
    cost: PlacedCost, seconds: Mapping[Span | None, Seconds], arrays: Sequence[SentArray]
) -> dict[Line, tuple[str, ...]]:
    sent: dict[Line, list[SentArray]] = {}
    for array in arrays:
        for line in _at(array.span):
            sent.setdefault(line, []).append(array)
    found = line_costs(cost, _at, seconds)
    return {line: tuple(_phrases(each, sent.get(line, ()), cost.file)) for line, each in found.items()}


def _phrases(found: LineCost, arrays: Sequence[SentArray], file: str | None) -> Iterator[str]:
    """Yield what a line computes, sends, stores and waits for, and the reasons for what it sends."""
    totals, by_stage = total(found.charges), grouped(found.charges, lambda charge: charge.stage)
    if whole(totals.flops):
        counts = {stage: whole(total(charges).flops) for stage, charges in by_stage.items()}
        stages = ", ".join(f"{stage} {count_text(count)}" for stage, count in counts.items() if count)
        yield f"computes {flops_text(whole(totals.flops))}: {stages}"
    if kinds := [f"{kind} {size}" for kind, size in transfers(found.charges)]:
        yield f"sends {bytes_text(whole(totals.sent.bytes))}: {', '.join(kinds)}"
    if stored := sum(map(whole, found.stored)):
        yield f"stores {bytes_text(stored)}"
    if found.seconds:
        seconds = sum(found.seconds, start=Seconds())
        wait = f", and waits {seconds_text(seconds.exposed)} for communication" if seconds.exposed else ""
        yield f"takes {seconds_text(seconds.compute)}{wait}"
    largest = sorted(arrays, key=lambda each: -each.bytes)
    causes = list(dict.fromkeys(chain.from_iterable(_causes(each, file) for each in largest)))
    yield from causes[:MOST_CAUSES]
    if len(causes) > MOST_CAUSES:
        yield f"and {len(causes) - MOST_CAUSES} more collectives: `mtfc explain` shows all"


def _causes(array: SentArray, file: str | None) -> Iterator[str]:
    """Yield a sentence for each rule that leads to a collective."""
    sent = f"{array.kind}{{{', '.join(array.axes)}}} of {bytes_text(array.bytes)}, {array.stage}"
    for cause in array.causes:
        place = cause.span.seen_from(file) if cause.span else "the result"
        yield f"{sent}: `{cause.rule}`, as {place} {cause.what}"
    if not array.causes:
        yield f"{sent}: neighbours along a dimension that is split"


# Values


def _values(program: Program, placed: Function, case: LayoutOnMesh) -> Iterator[ValueFigures]:
    """Yield the values that the user has named, with the types that they have in the placed function.

    A value that optimizations have removed has the type that the layout's rules give it.
    """
    kept = {(eqn.path, eqn.span): eqn.result.type for eqn in walk(placed.body) if _is_named(eqn)}
    by_path = {path: type for (path, _), type in reversed(kept.items())}
    forward = program.function("forward")
    for eqn in walk(forward.body):
        if _is_named(eqn):
            found = (
                kept.get((eqn.path, eqn.span)) or by_path.get(eqn.path) or _by_rules(eqn.result.type, case)
            )
            yield ValueFigures(str(eqn.path), tuple(chain_of(eqn.span)), found)
    arguments = {argument.value.name: argument for argument in placed.arguments}
    places = {each.name: each.span for each in program.parameters}
    for argument in forward.arguments:
        name = argument.value.name
        type = arguments[name].value.type if name in arguments else _by_rules(argument.value.type, case)
        yield ValueFigures(name, tuple(chain_of(places.get(name) or argument.span)), type)


def _is_named(eqn: Equation) -> bool:
    return eqn.path is not None and eqn.span is not None and len(eqn.results) == 1


def _by_rules(type: TensorType, case: LayoutOnMesh) -> TensorType:
    return type.split_by({dim: axes for dim, axes in case.layout.rules.axes if dim in type.names})


def defined_in(values: Iterable[ValueFigures], name: str, statement: Span) -> list[ValueFigures]:
    """Return the values that a statement defines under a name, one for each call that leads to the statement."""
    return [
        each
        for each in values
        if each.name == name and any(_inside(place, statement) for place in each.places)
    ]


def _inside(place: Span, whole: Span) -> bool:
    return (
        place.file == whole.file
        and (whole.line, whole.column) <= (place.line, place.column)
        and (place.end_line, place.end_column) <= (whole.end_line, whole.end_column)
    )
