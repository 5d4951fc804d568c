"""`mtfc search --why-not RULES`: the best layout that has these rules, and through which lines it costs more than the best."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from mtfc.cli.errors import UsageError
from mtfc.cli.search_result import Result, over
from mtfc.cli.selection import Choice, choose
from mtfc.cli.sources import Sources
from mtfc.compiler.analysis.difference import Priced, difference_json, difference_report
from mtfc.compiler.analysis.step_report import seconds_text
from mtfc.compiler.diagnostics import CompileError, Diagnostic, Span
from mtfc.compiler.ir.printer import bytes_text
from mtfc.compiler.ir.types import Layout
from mtfc.compiler.pipelines import lower
from mtfc.compiler.placeable import prepared
from mtfc.compiler.search.found import Found, value_of
from mtfc.frontend import library
from mtfc.frontend.layout_text import rules_text

ASKED = "<--why-not>"
"""The file that diagnostics about the rules are in."""


@attrs.frozen
class Forced:
    """The layout whose rules were asked for, and the best layout with them on the mesh of the best."""

    rules: Layout
    found: Found


def forced(text: str, file: str, choice: Choice, sources: Sources, best: Result, until: float) -> Forced:
    """Raises `CompileError` where no layout can have the rules, `NothingFits`, and `UsageError` where no layout of the space has
    rules of that kind.
    """
    shape = ";".join(f"{axis}:{size}" for axis, size in best.found.mesh.axes)
    sources.texts.update({ASKED: text, "<--mesh>": shape})
    choice = attrs.evolve(choice, layout=text, mesh=shape)
    try:
        asked = choose(sources.texts[file], file, choice, neighbour=sources.neighbour)
    except CompileError as error:  # what these few rules leave undone is not what was asked for
        errors = (each for each in error.diagnostics if each.severity == "error")
        raise CompileError(map(_asked, errors)) from None
    layout = attrs.evolve(asked.cases[0].layout, name="")
    found = WITH_RULES[best.space](layout, best, until)
    return Forced(layout, attrs.evolve(found, layout=attrs.evolve(found.layout, name="forced")))


def _asked(error: Diagnostic) -> Diagnostic:
    """The error, whose place is in the option that was given: the rules were read as those of `--layout` are."""
    labels = (attrs.evolve(each, span=_in_option(each.span)) for each in error.labels)
    return attrs.evolve(error, span=_in_option(error.span), labels=tuple(labels))


def _in_option(span: Span) -> Span:
    return attrs.evolve(span, file=ASKED) if span.file == "<--layout>" else span


def _with_rules(asked: Layout, best: Result, until: float) -> Found:
    from mtfc.compiler.search.rules.search import search

    if asked != Layout("", asked.rules):
        raise UsageError("in the space `rules`, --why-not takes rules for dimensions: `batch: rows`")
    pricer, program = best.pricer, best.program
    return search(
        pricer.undistributed(),
        program.function("forward"),
        [best.found.mesh],
        pricer.hardware,
        best.pricing,
        until,
        best.objective,
        fixed=asked.rules,
        storage=best.storage,
    )


def _with_equations(asked: Layout, best: Result, until: float) -> Found:
    from mtfc.compiler.search.tiling.search import search

    if asked != Layout("", values=asked.values):
        raise UsageError(
            "in the space `tiling`, --why-not takes rules for single equations: `value forward.h: { batch: rows }`"
        )
    program, pricer, mesh = best.program, best.pricer, best.found.mesh
    return search(
        prepared(program),
        set(program.dims),
        [mesh],
        pricer.hardware,
        best.pricing,
        until,
        best.objective,
        fixed=asked.value_rules,
    )


WITH_RULES: Mapping[str, Callable[[Layout, Result, float], Found]] = {
    "rules": _with_rules,
    "tiling": _with_equations,
}
"""By space, how the best layout with some rules is found."""


def why_not_report(each: Forced, best: Result, sources: Sources) -> str:
    """What the rules cost, and the lines that cost more or less with them than under the best layout."""
    price = best.pricer.with_overlap(each.found.mesh, each.found.layout)
    more = over(value_of(price, best.objective), value_of(best.price, best.objective)) - 1
    known = "the best layout with it" if each.found.is_optimal else "the best layout with it that was found"
    takes = f"{seconds_text(best.seconds_of(price))} and {bytes_text(price.memory)}"
    lines = [f"Why not {{ {rules_text(each.rules)} }}: {known} takes {takes}, which is {more:+.1%}.", ""]
    one, other = _priced(each, best)
    places = {charge.span.file for each in (one, other) for charge in each.cost.step if charge.span}
    return "\n".join(lines) + difference_report(one, other, sources.texts | library.texts(places))


def why_not_json(each: Forced, best: Result) -> dict[str, Any]:
    """The price of the best layout with the rules, and the difference as `mtfc diff` has it."""
    price = best.pricer.with_overlap(each.found.mesh, each.found.layout)
    return {
        "rules": rules_text(each.rules),
        "layout": rules_text(each.found.layout),
        "optimal": each.found.is_optimal,
        "objective_seconds": best.seconds_of(price),
        "memory_per_device": price.memory,
        "difference": difference_json(*_priced(each, best)),
    }


def _priced(each: Forced, best: Result) -> list[Priced]:
    """The best layout, and the best with the rules, with what lines take as they were compared."""
    programs = (lower(best.program, found.mesh, found.layout) for found in (best.found, each.found))
    return [
        Priced.of(program, best.pricer.hardware, overlaps=best.objective == "overlap") for program in programs
    ]
