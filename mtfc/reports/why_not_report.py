"""Answers to `mtfc search --why-not` as text and as JSON: the difference between the best result and the best one with given
rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    StepDifference,
    difference_of,
)
from mtfc.reports.search_report import LayoutSearchResult, PlacementSearchResult, over
from mtfc.reports.source_lines import Line, line_of, wrapped
from mtfc.reports.step_report import seconds_text

if TYPE_CHECKING:
    from mtfc.placements.mcmc import PlacementResult
    from mtfc.placements.operators.operator_graph import Operator
    from mtfc.placements.operators.strategy import Configuration


@attrs.frozen(eq=False)
class WhyNot:
    """The answer to `--why-not`: a sentence, the keys of its JSON record, and the difference by line, if there is one."""

    sentence: str
    keys: Mapping[str, Any]
    difference: StepDifference | None = None

    def record(self) -> dict[str, Any]:
        """Return the JSON record, with the difference in the form of `mtfc diff`."""
        return {**self.keys, "difference": self.difference.record() if self.difference else None}

    def report(self, texts: Mapping[str, str]) -> str:
        """Return the answer, and the lines whose costs differ; `texts` holds each file's text by name."""
        return f"{self.sentence}\n{self.difference.report(texts) if self.difference else ''}"


def unfit(rules: Layout, reason: str, least: int | None = None) -> WhyNot:
    """Return the answer that no layout with the rules can be compared.

    least: bytes of memory of the layout with the rules that needs the least, if known.
    """
    nothing = dict.fromkeys(("mesh", "layout", "optimal", "objective_seconds"))
    keys = {"rules": rules_text(rules), **nothing, "memory_per_device": least, "reason": reason}
    return WhyNot("\n".join(wrapped(f"Why not {{ {rules_text(rules)} }}: {reason}".split(), 2)), keys)


def layout_answer(rules: Layout, found: Found, best: LayoutSearchResult) -> WhyNot:
    """Return the difference between the best layout with the rules and the best layout of all.

    Lines have the seconds by which layouts were compared.
    """
    hardware, overlaps = best.pricer.hardware, best.objective != "serial"
    best_layout, asked_layout = (
        ComparedLayout.of(lower(best.program, each.mesh, each.layout), hardware, overlaps)
        for each in (best.found, found)
    )
    price = best.pricer(found.mesh, found.layout)
    seconds = best.seconds_of(price)
    slowdown = over(value_of(price, best.objective), value_of(best.price, best.objective)) - 1
    subject = "the best layout with it" + ("" if found.is_optimal else " that was found")
    if found.mesh != best.found.mesh:
        subject = f"{subject}, on another mesh, [{found.mesh.axes_text}],"
    takes = f"{seconds_text(seconds)} and {bytes_text(price.memory)}"
    return WhyNot(
        f"Why not {{ {rules_text(rules)} }}: {subject} takes {takes}, which is {slowdown:+.1%}.",
        {
            "rules": rules_text(rules),
            "mesh": found.mesh.sizes,
            "layout": rules_text(found.layout),
            "optimal": found.is_optimal,
            "objective_seconds": seconds,
            "memory_per_device": price.memory,
            "reason": None,
        },
        difference_of(best_layout, asked_layout),
    )


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


def placement_answer(rules: str, best: PlacementSearchResult, found: PlacementResult) -> WhyNot:
    """Return the difference between the best placement with the configurations of `--why-not` and the best of all."""
    space, one, other = best.space, best.found.best, found.best
    memory = int(one.memory.max()), int(other.memory.max())
    subject = "the best placement with it" + ("" if found.is_optimal else " that was found")
    takes = f"{seconds_text(other.seconds)}, sends {bytes_text(other.sent)} and holds {bytes_text(memory[1])}"
    slowdown = over(other.seconds, one.seconds) - 1
    unit = "training step" if space.graph.loss is not None else "forward pass"
    where = f"one {unit} on {space.devices} devices: from placement {NAMES[0]} to placement {NAMES[1]}"
    return WhyNot(
        f"Why not {{ {rules} }}: {subject} takes {takes}, which is {slowdown:+.1%}.\n",
        {
            "rules": rules,
            "layout": placement_text(NAMES[1], space.devices, space.graph, other.strategy),
            "optimal": found.is_optimal,
            "locally_optimal": found.locally_optimal,
            "objective_seconds": other.seconds,
            "bytes_sent": other.sent,
            "memory_per_device": memory[1],
        },
        StepDifference(
            best.model,
            f"{best.model}, {where}",
            NAMES,
            FIGURES,
            {"time": (one.seconds, other.seconds), "sent": (one.sent, other.sent), "memory": memory},
            _placed_lines(best, found),
            source_file([space.graph.function]),
            notes=["", f"  {LEGEND}"],
        ),
    )


def _placed_lines(best: PlacementSearchResult, asked: PlacementResult) -> list[ComparedLine]:
    """Return the figures under both placements by line of the file. An operator counts for the line of its last equation."""
    from mtfc.placements.placed_step import Attribution, attributions

    space, file = best.space, source_file([best.space.graph.function])
    operators, strategies = space.graph.operators, (best.found.best, asked.best)
    changed, blamed = dict[Line, list[Change]](), dict[Line, list[Attribution]]()
    for operator, before, after in zip(operators, *(each.strategy for each in strategies), strict=True):
        if before != after:
            changed.setdefault(_line(operator, file), []).append((operator, before, after))
    for index, strategy in enumerate(strategies):
        for number, blame in attributions(space.evaluator.tasks, strategy).items():
            line = line_of(None) if number is None else _line(operators[number], file)
            blamed.setdefault(line, [Attribution(), Attribution()])[index] += blame
    return [
        ComparedLine(
            line,
            {name: (getattr(before, name), getattr(after, name)) for name in FIGURES},
            before != after or line in changed,
            [*_placements(changed.get(line, ()))],
            {"operators": [operator.name for operator, *_ in changed.get(line, ())]},
        )
        for line, (before, after) in sorted(blamed.items())
    ]


def _line(operator: Operator, file: str | None) -> Line:
    """Return the user's line of an operator."""
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
