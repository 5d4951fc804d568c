"""Drawings of a model's layout or placement, for `mtfc draw`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from mtfc.compiler.diagnostics import nearest
from mtfc.driver.data.files import write_text
from mtfc.driver.errors import UsageError
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import Selection, select
from mtfc.driver.loading.sources import Sources
from mtfc.driver.values import PathOption, file_option

if TYPE_CHECKING:
    from mtfc.compiler.ir.core import Program
    from mtfc.placements.declarations import DeclaredPlacement
    from mtfc.reports.drawing import DrawnArray

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
    selection = select(file, choice, sources, or_placement=True)
    if selection.cases:
        return program_drawing(selection.cases[0].lower(selection.program), arrays)
    (placement,) = selection.placements
    if arrays:
        raise UsageError(f"`{placement.name}` is a placement, whose operators are drawn: no --array")
    return _placement(selection, placement)


def program_drawing(program: Program, names: Sequence[str] = ()) -> Drawing:
    """Draw the arrays of the program of one processor. Raises `UsageError` for unknown names."""
    from mtfc.reports.drawing import layout_drawing

    layout = program.layout
    assert layout is not None, "only a placed program has parts"
    known = dict(_arrays(program))
    for name in names:
        if name not in known:
            guess = nearest(name, known)
            raise UsageError(
                f"the model has no array `{name}`" + (f": did you mean `{guess}`?" if guess else "")
            )
    own = [array for array, is_own in known.values() if is_own]
    chosen = [known[name][0] for name in names] or own[:MOST_ARRAYS]
    rest = 0 if names else max(0, len(own) - MOST_ARRAYS)
    return Drawing(layout_drawing(program.name, program.placed_on, layout, chosen, rest))


def _arrays(program: Program) -> Iterator[tuple[str, tuple[DrawnArray, bool]]]:
    """Yield the arrays of the forward pass by name, and whether a drawing has them by default."""
    from mtfc.compiler.ir.core import source_file, walk
    from mtfc.reports.drawing import DrawnArray

    function = program.function("step" if program.has_function("step") else "forward")
    own = source_file(program.functions)
    for argument in function.arguments:
        if argument.role in ("input", "parameter"):
            yield argument.value.name, (DrawnArray(argument.value.name, argument.value.type), True)
    for eqn in walk(function.body):
        if eqn.path and eqn.stage == "forward" and not eqn.regions:
            is_own = eqn.span is not None and eqn.span.file == own
            yield eqn.path, (DrawnArray(eqn.path, eqn.results[0].type), is_own)


def _placement(selection: Selection, placement: DeclaredPlacement) -> Drawing:
    """Draw a placement. Raises `CompileError` if operators differ from those of the placement."""
    from mtfc.compiler.diagnostics import Diagnostics
    from mtfc.compiler.passes.pipelines import run, simplification
    from mtfc.placements.declarations import strategy_of
    from mtfc.placements.operators.operator_graph import operators_of
    from mtfc.reports.drawing import DrawnOperator, placement_drawing

    graph = operators_of(run(selection.program, simplification()))
    strategy = strategy_of(placement, graph, Diagnostics())
    operators = [
        DrawnOperator(operator.name, each.degrees, each.devices)
        for operator, each in zip(graph.operators, strategy, strict=True)
    ]
    return Drawing(placement_drawing(selection.program.name, placement.name, placement.devices, operators))
