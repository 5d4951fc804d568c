"""Answers to `mtfc search --why-not` as text and as JSON: the difference between the best result and the best one with given
rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import attrs

from mtfc.compiler.ir.core import source_file
from mtfc.compiler.ir.printer import bytes_text
from mtfc.compiler.ir.types import Layout
from mtfc.compiler.passes.pipelines import lower
from mtfc.compiler.search.found import Found, value_of
from mtfc.frontend.layouts.layout_text import rules_text
from mtfc.placements.declarations import entry_text, placement_text
from mtfc.reports.difference import (
    ComparedFigure,
    ComparedLayout,
    ComparedLine,
    difference_json,
    difference_report,
    line_record,
    line_table,
    total_rows,
)
from mtfc.reports.search_report import LayoutSearchResult, PlacementSearchResult, over
from mtfc.reports.source_lines import Line, line_of
from mtfc.reports.step_report import seconds_text
from mtfc.reports.table import aligned, wrapped

if TYPE_CHECKING:
    from mtfc.placements.mcmc import PlacementResult
    from mtfc.placements.operators.operator_graph import Operator
    from mtfc.placements.operators.strategy import Configuration
    from mtfc.placements.simulator.evaluation import EvaluatedStrategy

# Layouts


@attrs.frozen
class UnfitRules:
    """The rules of `--why-not`, and the reason why no layout with them can be compared.

    least: bytes of memory of the layout with the rules that needs the least, if known.
    """

    rules: Layout
    reason: str
    least: int | None = None

    def record(self) -> dict[str, Any]:
        """Return the JSON record."""
        nothing = dict.fromkeys(("mesh", "layout", "optimal", "objective_seconds"))
        memory = {"memory_per_device": self.least, "difference": None}
        return {"rules": rules_text(self.rules), **nothing, **memory, "reason": self.reason}

    def report(self, texts: Mapping[str, str]) -> str:
        """Return the reason."""
        text = f"Why not {{ {rules_text(self.rules)} }}: {self.reason}"
        return "\n".join(wrapped(text.split(), 2)) + "\n"


@attrs.frozen(slots=False, eq=False)
class LayoutDifference:
    """The best layout with the rules of `--why-not`, and the best layout of all."""

    rules: Layout
    found: Found
    best: LayoutSearchResult

    @cached_property
    def priced(self) -> tuple[ComparedLayout, ComparedLayout]:
        """The costs of both layouts; lines have the seconds by which layouts were compared."""
        program, hardware = self.best.program, self.best.pricer.hardware
        overlaps = self.best.objective != "serial"
        one, other = (
            ComparedLayout.of(lower(program, found.mesh, found.layout), hardware, overlaps)
            for found in (self.best.found, self.found)
        )
        return one, other

    def record(self) -> dict[str, Any]:
        """Return the price of the best layout with the rules, and the difference in the form of `mtfc diff`."""
        price = self.best.pricer(self.found.mesh, self.found.layout)
        return {
            "rules": rules_text(self.rules),
            "mesh": self.found.mesh.sizes,
            "layout": rules_text(self.found.layout),
            "optimal": self.found.is_optimal,
            "objective_seconds": self.best.seconds_of(price),
            "memory_per_device": price.memory,
            "difference": difference_json(*self.priced),
            "reason": None,
        }

    def report(self, texts: Mapping[str, str]) -> str:
        """Return the cost of the rules, and the lines whose costs differ; `texts` holds each file's text by name."""
        best, found = self.best, self.found
        price = best.pricer(found.mesh, found.layout)
        more = over(value_of(price, best.objective), value_of(best.price, best.objective)) - 1
        known = "the best layout with it" if found.is_optimal else "the best layout with it that was found"
        if found.mesh != best.found.mesh:
            known = f"{known}, on another mesh, [{found.mesh.axes_text}],"
        takes = f"{seconds_text(best.seconds_of(price))} and {bytes_text(price.memory)}"
        title = f"Why not {{ {rules_text(self.rules)} }}: {known} takes {takes}, which is {more:+.1%}."
        return f"{title}\n" + difference_report(*self.priced, texts)


# Placements

MOST_SHOWN = 3
"""Most operators of a line whose configurations are shown."""
LEGEND = "Time is that of tasks on the longest path, memory that of the device with the most in use."
Change = tuple["Operator", "Configuration", "Configuration"]
"""An operator, and its configurations under both placements."""
NAMES = ("found", "forced")
FIGURES: Mapping[str, ComparedFigure] = {
    "time": ComparedFigure("seconds", seconds_text),
    "sent": ComparedFigure("bytes_sent", bytes_text),
    "memory": ComparedFigure("memory_per_device", bytes_text),
}


@attrs.frozen(slots=False, eq=False)
class PlacementDifference:
    """The best placement with the configurations of `--why-not`, and the best placement of all."""

    rules: str
    best: PlacementSearchResult
    found: PlacementResult

    @property
    def both(self) -> tuple[EvaluatedStrategy, EvaluatedStrategy]:
        return self.best.found.best, self.found.best

    @property
    def own(self) -> str | None:
        """The user's file."""
        return source_file([self.best.space.graph.function])

    @cached_property
    def changed(self) -> dict[Line, list[Change]]:
        """The operators whose configurations differ, by line."""
        found = dict[Line, list[Change]]()
        strategies = (each.strategy for each in self.both)
        for operator, one, other in zip(self.best.space.graph.operators, *strategies, strict=True):
            if one != other:
                found.setdefault(_line(operator, self.own), []).append((operator, one, other))
        return found

    @cached_property
    def lines(self) -> list[ComparedLine]:
        """The figures under both placements by line of the file. An operator counts for the line of its last equation."""
        from mtfc.placements.placed_step import Attribution, attributions

        space, blamed = self.best.space, dict[Line, list[Attribution]]()
        for which, strategy in enumerate(self.both):
            for number, blame in attributions(space.evaluator.tasks, strategy).items():
                line = line_of(None) if number is None else _line(space.graph.operators[number], self.own)
                blamed.setdefault(line, [Attribution(), Attribution()])[which] += blame
        return [
            ComparedLine(
                line,
                {name: (getattr(one, name), getattr(other, name)) for name in FIGURES},
                one != other or line in self.changed,
                [*_placements(self.changed.get(line, ()))],
            )
            for line, (one, other) in sorted(blamed.items())
        ]

    @property
    def figures(self) -> dict[str, tuple[float, float]]:
        """The figures of the whole step under both placements."""
        one, other = self.both
        memory = int(one.memory.max()), int(other.memory.max())
        return {"time": (one.seconds, other.seconds), "sent": (one.sent, other.sent), "memory": memory}

    def record(self) -> dict[str, Any]:
        """Return the best placement with the configurations, and the difference: figures in pairs, by line of the file."""
        best, space = self.found.best, self.best.space
        keys = {name: each.key for name, each in FIGURES.items()}
        operators = {line: [each.name for each, *_ in changed] for line, changed in self.changed.items()}
        return {
            "rules": self.rules,
            "layout": placement_text(NAMES[1], space.devices, space.graph, best.strategy),
            "optimal": self.found.is_optimal,
            "locally_optimal": self.found.locally_optimal,
            "objective_seconds": best.seconds,
            "bytes_sent": best.sent,
            "memory_per_device": self.figures["memory"][1],
            "difference": {
                "model": self.best.model,
                "layouts": list(NAMES),
                **{keys[name]: list(pair) for name, pair in self.figures.items()},
                "lines": [
                    {**line_record(each, keys), "operators": operators.get(each.line, [])}
                    for each in self.lines
                ],
            },
        }

    def report(self, texts: Mapping[str, str]) -> str:
        """Return the cost of the configurations, and the lines whose costs differ."""
        (one, other), space = self.both, self.best.space
        known = "the best placement with it" + ("" if self.found.is_optimal else " that was found")
        held = bytes_text(int(other.memory.max()))
        takes = f"{seconds_text(other.seconds)}, sends {bytes_text(other.sent)} and holds {held}"
        more = over(other.seconds, one.seconds) - 1
        unit = "training step" if space.graph.loss is not None else "forward pass"
        where = f"one {unit} on {space.devices} devices: from placement {NAMES[0]} to placement {NAMES[1]}"
        return "\n".join(
            [
                f"Why not {{ {self.rules} }}: {known} takes {takes}, which is {more:+.1%}.",
                "",
                f"{self.best.model}, {where}",
                *aligned([["", *NAMES, "difference"], *total_rows(self.figures, FIGURES)], right=range(1, 4)),
                "",
                *line_table(self.lines, FIGURES, self.own, texts),
                "",
                f"  {LEGEND}\n",
            ]
        )


def _line(operator: Operator, file: str | None) -> Line:
    from mtfc.placements.placed_step import span_of

    span = span_of(operator)
    return line_of(span.inside(file) if span else None)


def _placements(changed: Sequence[Change]) -> Iterator[str]:
    """Yield the configurations of the first few operators under both placements."""
    for operator, one, other in changed[:MOST_SHOWN]:
        yield f"{NAMES[0]}: {entry_text(operator, one)}"
        yield f"{NAMES[1]}: {entry_text(operator, other)}"
    if len(changed) > MOST_SHOWN:
        yield f"and {len(changed) - MOST_SHOWN} more operators"
