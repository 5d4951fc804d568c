"""Drawings of a model's layout or placement, for `mtfc draw`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from mtfc.compiler.diagnostics import Diagnostics, did_you_mean
from mtfc.compiler.ir.core import Function, Program, Value, source_file, walk
from mtfc.compiler.passes.pipelines import run, simplification
from mtfc.driver.data.files import write_text
from mtfc.driver.errors import UsageError
from mtfc.driver.loading.cases import MultiMeshCase
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import Case, LayoutOnMesh, select
from mtfc.driver.loading.sources import Sources
from mtfc.driver.values import PathOption, file_option
from mtfc.placements.operators.operator_graph import Operator, operators_of
from mtfc.reports.drawing import DrawnOperator, layout_drawing, placement_drawing

if TYPE_CHECKING:
    from mtfc.placements.declarations import DeclaredPlacement
    from mtfc.placements.operators.strategy import Strategy

MOST_ARRAYS = 40
"""Most arrays of a drawing unless they are asked for by name."""


@attrs.frozen
class Drawing:
    """A drawing as the text of an SVG file, which a notebook shows."""

    svg: str

    def __repr__(self) -> str:
        return f"<Drawing of {len(self.svg):,} characters>"

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: PathOption) -> None:
        """Write the drawing to a file, whole or not at all. Raises `OSError`."""
        write_text(file_option(path), self.svg)


def drawing(file: str, choice: Choice, sources: Sources, arrays: Sequence[str] = ()) -> Drawing:
    """Draw the first chosen layout, or a placement. Raises `CompileError` and `UsageError`.

    arrays: names of arrays to draw; by default the parameters, and the values that the user's file names.
    """
    selection = select(file, choice, sources, or_placement=True, or_multi_mesh=True)
    return case_drawing(selection.case, selection.program, arrays)


def case_drawing(case: Case, program: Program, arrays: Sequence[str] = ()) -> Drawing:
    """Draw a global program under a layout or a placement. Raises `CompileError` and `UsageError`."""
    if isinstance(case, MultiMeshCase):
        return _multi_mesh(case, program, arrays)
    if isinstance(case, LayoutOnMesh):
        return program_drawing(case.lower(program), arrays)
    case.refuse({"--array": bool(arrays)}, ", whose operators are drawn")
    return _placement(program, case.placement)


def program_drawing(program: Program, names: Sequence[str] = ()) -> Drawing:
    """Draw the arrays of the program of one processor. Raises `UsageError` for unknown names."""
    layout = program.layout
    assert layout is not None, "only a placed program has parts"
    chosen, rest = _chosen(dict(_arrays(program)), names)
    return Drawing(layout_drawing(program.name, [(program.placed_on, layout, chosen)], rest))


def _chosen(known: Mapping[str, tuple[Value, bool]], names: Sequence[str]) -> tuple[list[Value], int]:
    """Return the arrays to draw, and the number of those that are left out. Raises `UsageError` for unknown names."""
    if unknown := [name for name in names if name not in known]:
        help = did_you_mean(unknown[0], known)
        raise UsageError(f"the model has no array `{unknown[0]}`{f': {help}' if help else ''}")
    own = [array for array, is_own in known.values() if is_own]
    chosen = [known[name][0] for name in names] or own[:MOST_ARRAYS]
    return chosen, 0 if names else max(0, len(own) - MOST_ARRAYS)


def _arrays(program: Program) -> Iterator[tuple[str, tuple[Value, bool]]]:
    """Yield the arrays of the forward pass by name, and whether a drawing has them by default."""
    function = program.function("step" if program.has_function("step") else "forward")
    for argument in function.arguments:
        if argument.role in ("input", "parameter"):
            yield argument.value.name, (argument.value, True)
    yield from _named_values(function, source_file(program.functions))


def _named_values(function: Function, own: str | None) -> Iterator[tuple[str, tuple[Value, bool]]]:
    """Yield the values that a function computes in the forward pass. own: the file whose values a drawing has by default."""
    for eqn in walk(function.body):
        if eqn.path and eqn.stage == "forward" and not eqn.regions:
            is_own = eqn.span is not None and eqn.span.file == own
            yield eqn.path, (Value(eqn.path, eqn.results[0].type), is_own)


def _multi_mesh(case: MultiMeshCase, program: Program, names: Sequence[str]) -> Drawing:
    """Draw the arrays on each mesh: those that are stored or computed there. Raises `UsageError` for unknown names."""
    multi_mesh = case.program(program)
    trains = any(each.name == "step" for each in multi_mesh.functions)
    function = multi_mesh.function("step" if trains else "forward")
    own = source_file([function.whole])
    known: dict[str, tuple[int, tuple[Value, bool]]] = {}
    for argument in function.whole.arguments:
        if argument.role in ("input", "parameter"):
            place = multi_mesh.places[argument.value.name]
            known[argument.value.name] = place.part, (Value(argument.value.name, place.type), True)
    for segment in function.segments:
        for name, array in _named_values(segment.function, own):
            known.setdefault(name, (segment.part, array))
    chosen, rest = _chosen({name: array for name, (_, array) in known.items()}, names)
    groups = [
        (part.mesh, part.layout, [each for each in chosen if known[each.name][0] == number])
        for number, part in enumerate(multi_mesh.parts)
    ]
    return Drawing(layout_drawing(program.name, groups, rest))


def drawn(operators: Sequence[Operator], strategy: Strategy) -> list[DrawnOperator]:
    """Return the operators of a graph under a strategy, as drawings have them."""
    pairs = zip(operators, strategy, strict=True)
    return [DrawnOperator(operator.name, each.degrees, each.devices) for operator, each in pairs]


def _placement(program: Program, placement: DeclaredPlacement) -> Drawing:
    """Draw a placement. Raises `CompileError` if operators differ from those of the placement."""
    from mtfc.placements.declarations import strategy_of

    graph = operators_of(run(program, simplification()))
    strategy = strategy_of(placement, graph, Diagnostics())
    operators = drawn(graph.operators, strategy)
    return Drawing(placement_drawing(program.name, placement.name, placement.devices, operators))
