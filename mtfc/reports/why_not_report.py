"""Answers to `mtfc search --why-not` as text and as JSON: the difference between the best result and the best one with given
rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from math import isclose
from typing import TYPE_CHECKING, Any

import attrs

from mtfc.compiler.ir.core import source_file
from mtfc.compiler.ir.printer import bytes_text
from mtfc.compiler.ir.types import Layout
from mtfc.compiler.passes.pipelines import lower
from mtfc.compiler.search.found import Found, value_of
from mtfc.frontend.layouts.layout_text import rules_text
from mtfc.placements.declarations import entry_text, placement_text
from mtfc.reports.difference import ComparedLayout, difference_json, difference_report, signed
from mtfc.reports.search_report import LayoutSearchResult, PlacementSearchResult, over
from mtfc.reports.source_lines import Line, fitted, line_of, place_text, source_text
from mtfc.reports.step_report import seconds_text
from mtfc.reports.table import aligned, wrapped

if TYPE_CHECKING:
    from mtfc.placements.operators.operator_graph import Operator
    from mtfc.placements.operators.strategy import Configuration
    from mtfc.placements.placed_step import Attribution
    from mtfc.placements.placement_search import PlacementResult
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

    @property
    def files(self) -> set[str]:
        """No files: the report shows no lines."""
        return set()

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
        overlaps = self.best.objective == "overlap"
        one, other = (
            ComparedLayout.of(lower(program, found.mesh, found.layout), hardware, overlaps)
            for found in (self.best.found, self.found)
        )
        return one, other

    @property
    def files(self) -> set[str]:
        """The files whose lines the report shows."""
        return {charge.span.file for each in self.priced for charge in each.charges if charge.span}

    def record(self) -> dict[str, Any]:
        """Return the price of the best layout with the rules, and the difference in the form of `mtfc diff`."""
        price = self.best.pricer.with_overlap(self.found.mesh, self.found.layout)
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
        price = best.pricer.with_overlap(found.mesh, found.layout)
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
TEXTS: Mapping[str, Callable[[Any], str]] = {"time": seconds_text, "sent": bytes_text, "memory": bytes_text}
KEYS = {"time": "seconds", "sent": "bytes_sent", "memory": "memory_per_device"}


@attrs.frozen(eq=False)
class PlacementDifference:
    """The best placement with the configurations of `--why-not`, and the best placement of all."""

    rules: str
    best: PlacementSearchResult
    found: PlacementResult

    @property
    def both(self) -> tuple[PlacementResult, PlacementResult]:
        return self.best.found, self.found

    def lines(self) -> dict[Line, list[Attribution]]:
        """Return the figures under both placements by line of the file. An operator counts for the line of its last equation."""
        from mtfc.placements.placed_step import Attribution, attributions

        graph, tasks = self.best.space.graph, self.best.space.evaluator.tasks
        file = source_file([graph.function])
        at = [_line(operator, file) for operator in graph.operators]
        found: dict[Line, list[Attribution]] = {}
        for which, result in enumerate(self.both):
            for operator, blame in attributions(tasks, result.best).items():
                line = found.setdefault(
                    line_of(None) if operator is None else at[operator], [Attribution(), Attribution()]
                )
                line[which] += blame
        return dict(sorted(found.items()))

    def changed(self) -> dict[Line, list[Change]]:
        """Return the operators whose configurations differ, by line."""
        graph = self.best.space.graph
        file, found = source_file([graph.function]), dict[Line, list[Change]]()
        for operator, one, other in zip(
            graph.operators, *(each.best.strategy for each in self.both), strict=True
        ):
            if one != other:
                found.setdefault(_line(operator, file), []).append((operator, one, other))
        return found

    @property
    def files(self) -> set[str]:
        """The files whose lines the report shows."""
        return {file for file, _ in self.lines()} - {""}

    def record(self) -> dict[str, Any]:
        """Return the best placement with the configurations, and the difference: figures in pairs, by line of the file."""
        return _placement_record(self)

    def report(self, texts: Mapping[str, str]) -> str:
        """Return the cost of the configurations, and the lines whose costs differ."""
        return _placement_report(self, texts)


def _line(operator: Operator, file: str | None) -> Line:
    from mtfc.placements.placed_step import span_of

    span = span_of(operator)
    return line_of(span.inside(file) if span else None)


def _placement_report(each: PlacementDifference, texts: Mapping[str, str]) -> str:
    one, other = (result.best for result in each.both)
    known = (
        "the best placement with it" if each.found.is_optimal else "the best placement with it that was found"
    )
    takes = f"{seconds_text(other.seconds)}, sends {bytes_text(other.sent)} and holds {bytes_text(_memory(other))}"
    more = over(other.seconds, one.seconds) - 1
    lines = [f"Why not {{ {each.rules} }}: {known} takes {takes}, which is {more:+.1%}.", *_totals(each), ""]
    return "\n".join([*lines, *_rows(each, texts), "", f"  {LEGEND}"]) + "\n"


def _memory(found: EvaluatedStrategy) -> int:
    return int(found.memory.max())


def _totals(each: PlacementDifference) -> list[str]:
    space = each.best.space
    unit = "training step" if space.graph.loss is not None else "forward pass"
    where = f"one {unit} on {space.devices} devices: from placement {NAMES[0]} to placement {NAMES[1]}"
    rows = [["", *NAMES, "difference"]]
    for name, (one, other) in _figures(each).items():
        text = TEXTS[name]
        rows.append([name, text(one), text(other), signed(other - one, text)])
    return ["", f"{each.best.model}, {where}", *aligned(rows, right=range(1, 4))]


def _figures(each: PlacementDifference) -> dict[str, tuple[float, float]]:
    """Return the figures of the whole step under both placements."""
    one, other = (result.best for result in each.both)
    return {
        "time": (one.seconds, other.seconds),
        "sent": (one.sent, other.sent),
        "memory": (_memory(one), _memory(other)),
    }


def _rows(each: PlacementDifference, sources: Mapping[str, str]) -> list[str]:
    """Return the lines that differ, each with operators whose placement differs, and the sums."""
    lines, changed, own = each.lines(), each.changed(), source_file([each.best.space.graph.function])
    texts = {file: text.splitlines() for file, text in sources.items()}
    rows = [["line", "source", *TEXTS]]
    for line, (one, other) in lines.items():
        if one != other or line in changed:
            rows.append([place_text(line, own), source_text(line, texts), *_changes(one, other)])
            rows += [["", f"  {text}", "", "", ""] for text in _placements(changed.get(line, ()))]
    from mtfc.placements.placed_step import Attribution

    one, other = (sum(blames, Attribution()) for blames in zip(*lines.values(), strict=True))
    return fitted([*rows, ["all", "", *_changes(one, other)]])


def _changes(one: Attribution, other: Attribution) -> list[str]:
    pairs = ((text, getattr(one, name), getattr(other, name)) for name, text in TEXTS.items())
    return ["" if isclose(a, b) else signed(b - a, text) for text, a, b in pairs]


def _placements(changed: Sequence[Change]) -> Iterator[str]:
    """Yield the configurations of the first few operators under both placements."""
    for operator, one, other in changed[:MOST_SHOWN]:
        yield f"{NAMES[0]}: {entry_text(operator, one)}"
        yield f"{NAMES[1]}: {entry_text(operator, other)}"
    if len(changed) > MOST_SHOWN:
        yield f"and {len(changed) - MOST_SHOWN} more operators"


def _placement_record(each: PlacementDifference) -> dict[str, Any]:
    best, space = each.found.best, each.best.space
    changed = each.changed()
    return {
        "rules": each.rules,
        "layout": placement_text(NAMES[1], space.devices, space.graph, best.strategy),
        "optimal": each.found.is_optimal,
        "locally_optimal": each.found.locally_optimal,
        "objective_seconds": best.seconds,
        "bytes_sent": best.sent,
        "memory_per_device": _memory(best),
        "difference": {
            "model": each.best.model,
            "layouts": list(NAMES),
            **{KEYS[name]: list(pair) for name, pair in _figures(each).items()},
            "lines": [
                {
                    "file": line[0],
                    "line": line[1],
                    **{KEYS[name]: [getattr(blame, name) for blame in pair] for name in TEXTS},
                    "operators": [operator.name for operator, *_ in changed.get(line, ())],
                }
                for line, pair in each.lines().items()
            ],
        },
    }
