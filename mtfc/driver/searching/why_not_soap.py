"""`mtfc search --space soap --why-not RULES`: the best placement with these configurations, and the lines that it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import isclose
from time import monotonic
from typing import Any

import attrs

from mtfc.compiler.ir.core import source_file
from mtfc.compiler.ir.printer import bytes_text
from mtfc.compiler.search.found import Progress, silent
from mtfc.compiler.search.placement.operators.operator_graph import Operator
from mtfc.compiler.search.placement.operators.strategy import Configuration
from mtfc.compiler.search.placement.placed_step import Attribution, attributions, span_of
from mtfc.compiler.search.placement.placement_search import PlacementResult, forced_search
from mtfc.compiler.search.placement.simulator.evaluation import EvaluatedStrategy
from mtfc.driver.searching.search_result import over
from mtfc.driver.searching.search_soap import Placed, searched
from mtfc.driver.sources import Sources
from mtfc.frontend.layouts.placements import asked_configurations, entry_text, placement_text
from mtfc.frontend.semantics.names import standard_library
from mtfc.reports.difference import signed
from mtfc.reports.source_lines import Line, fitted, line_of, place_text, source_text
from mtfc.reports.step_report import seconds_text
from mtfc.reports.table import aligned

MOST_SHOWN = 3
"""Operators of a line whose placements are shown."""
LEGEND = "Time is that of tasks on the longest path, memory that of the device that holds the most."
Change = tuple[Operator, Configuration, Configuration]
"""An operator, and how it is placed under both."""
NAMES = ("found", "forced")
TEXTS: Mapping[str, Callable[[Any], str]] = {"time": seconds_text, "sent": bytes_text, "memory": bytes_text}
KEYS = {"time": "seconds", "sent": "bytes_sent", "memory": "memory_per_device"}


@attrs.frozen(eq=False)
class Forced:
    """The configurations that were asked for, what they are an answer to, and the best placement with them."""

    rules: str
    best: Placed
    result: PlacementResult

    @property
    def both(self) -> tuple[PlacementResult, PlacementResult]:
        return self.best.result, self.result

    def lines(self) -> dict[Line, list[Attribution]]:
        """Under both placements, by line of the file; what an operator does counts for that of its last equation."""
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
        """The operators whose configurations differ, by line."""
        graph = self.best.space.graph
        file, found = source_file([graph.function]), dict[Line, list[Change]]()
        for operator, one, other in zip(
            graph.operators, *(each.best.strategy for each in self.both), strict=True
        ):
            if one != other:
                found.setdefault(_line(operator, file), []).append((operator, one, other))
        return found


def _line(operator: Operator, file: str | None) -> Line:
    span = span_of(operator)
    return line_of(span.inside(file) if span else None)


def forced(
    text: str, sources: Sources, best: Placed, seconds: float, exhaustive: bool, progress: Progress = silent
) -> Forced:
    """In so many seconds. Raises `CompileError` where no operator can be split so, and `NothingFits`."""
    sources.texts["<--why-not>"] = text
    graph = best.space.graph
    rules = asked_configurations(text, best.space.devices, graph, best.selection.scope)
    within, known = best.space.holding(rules), (best.result.best, *best.result.baselines.values())
    find = partial(forced_search, within, known, progress=progress)
    result = searched(find, within, monotonic() + seconds, exhaustive, progress)
    written = "; ".join(entry_text(graph.operators[i], each) for i, each in sorted(rules.items()))
    return Forced(written, best, result)


def why_not_report(each: Forced, sources: Sources) -> str:
    """What the configurations cost, and the lines that cost more or less with them than under the best placement."""
    one, other = (result.best for result in each.both)
    known = (
        "the best placement with it"
        if each.result.is_optimal
        else "the best placement with it that was found"
    )
    takes = f"{seconds_text(other.seconds)}, sends {bytes_text(other.sent)} and holds {bytes_text(_memory(other))}"
    more = over(other.seconds, one.seconds) - 1
    lines = [f"Why not {{ {each.rules} }}: {known} takes {takes}, which is {more:+.1%}.", *_totals(each), ""]
    return "\n".join([*lines, *_rows(each, sources), "", f"  {LEGEND}"]) + "\n"


def _memory(found: EvaluatedStrategy) -> int:
    return int(found.held.max())


def _totals(each: Forced) -> list[str]:
    space = each.best.space
    unit = "training step" if space.graph.loss is not None else "forward pass"
    where = f"one {unit} on {space.devices} devices: from placement {NAMES[0]} to placement {NAMES[1]}"
    rows = [["", *NAMES, "difference"]]
    for name, (one, other) in _figures(each).items():
        text = TEXTS[name]
        rows.append([name, text(one), text(other), signed(other - one, text)])
    return ["", f"{each.best.selection.program.name}, {where}", *aligned(rows, right=range(1, 4))]


def _figures(each: Forced) -> dict[str, tuple[float, float]]:
    """Of the whole, under both."""
    one, other = (result.best for result in each.both)
    return {
        "time": (one.seconds, other.seconds),
        "sent": (one.sent, other.sent),
        "memory": (_memory(one), _memory(other)),
    }


def _rows(each: Forced, sources: Sources) -> list[str]:
    """The lines that differ, each with operators that are placed otherwise, and the sums."""
    lines, changed, own = each.lines(), each.changed(), source_file([each.best.space.graph.function])
    files = standard_library.texts({file for file, _ in lines} - {""})
    texts = {file: text.splitlines() for file, text in (sources.texts | files).items()}
    rows = [["line", "source", *TEXTS]]
    for line, (one, other) in lines.items():
        if one != other or line in changed:
            rows.append([place_text(line, own), source_text(line, texts), *_changes(one, other)])
            rows += [["", f"  {text}", "", "", ""] for text in _placements(changed.get(line, ()))]
    one, other = (sum(blames, Attribution()) for blames in zip(*lines.values(), strict=True))
    return fitted([*rows, ["all", "", *_changes(one, other)]])


def _changes(one: Attribution, other: Attribution) -> list[str]:
    pairs = ((text, getattr(one, name), getattr(other, name)) for name, text in TEXTS.items())
    return ["" if isclose(a, b) else signed(b - a, text) for text, a, b in pairs]


def _placements(changed: Sequence[Change]) -> Iterator[str]:
    """Operators as they are placed under both, the first few."""
    for operator, one, other in changed[:MOST_SHOWN]:
        yield f"{NAMES[0]}: {entry_text(operator, one)}"
        yield f"{NAMES[1]}: {entry_text(operator, other)}"
    if len(changed) > MOST_SHOWN:
        yield f"and {len(changed) - MOST_SHOWN} more operators"


def why_not_json(each: Forced) -> dict[str, Any]:
    """The best placement with the configurations, and the difference: figures in pairs, by line of the file."""
    best, space = each.result.best, each.best.space
    changed = each.changed()
    return {
        "rules": each.rules,
        "layout": placement_text(NAMES[1], space.devices, space.graph, best.strategy),
        "optimal": each.result.is_optimal,
        "locally_optimal": each.result.locally_optimal,
        "objective_seconds": best.seconds,
        "bytes_sent": best.sent,
        "memory_per_device": _memory(best),
        "difference": {
            "model": each.best.selection.program.name,
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
