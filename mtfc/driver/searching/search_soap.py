"""`mtfc search --space soap`: a placement of each operator, and what a step takes under it and under those that are known."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import partial
from math import inf
from time import monotonic
from typing import Any

import attrs

from mtfc.backends.common import allocator
from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.diagnostics import Diagnostics
from mtfc.compiler.ir.printer import bytes_text
from mtfc.compiler.passes.pipelines import run, simplification
from mtfc.compiler.search.found import Progress, silent
from mtfc.compiler.search.placement.mcmc import SearchBudget
from mtfc.compiler.search.placement.placement_search import (
    PlacementResult,
    PlacementSpace,
    operators_of,
    placement_search,
    placement_space,
    proven,
)
from mtfc.driver.data.summary import finite
from mtfc.driver.searching.compilation_time import compiling
from mtfc.driver.searching.search_result import devices_of, free_name, over
from mtfc.driver.selection import Selection
from mtfc.frontend.layouts.placements import (
    DeclaredPlacement,
    asked_configurations,
    placement_text,
    strategy_of,
)
from mtfc.reports.step_report import seconds_text
from mtfc.reports.table import aligned, wrapped

BEFORE_PROOF = 0.1
"""Of the time, before an exhaustive search begins."""
FEW = 10_000
"""Strategies that are all looked at, unasked."""
LARGEST = 10**300
"""A number that a float can still hold, as readers of JSON need it."""
MOST_SHOWN = 20
"""Placements of more operators are written to a file, and not shown."""


@attrs.frozen(eq=False)
class Placed:
    """What was found in which space, and the seconds that it took."""

    selection: Selection
    space: PlacementSpace
    result: PlacementResult
    seconds: float

    @property
    def name(self) -> str:
        """Of what was found, as no placement of the file is called."""
        return free_name("found", {each.name for each in self.selection.placements})

    def text(self) -> str:
        return placement_text(self.name, self.space.devices, self.space.graph, self.result.best.strategy)


def search(
    selection: Selection,
    hardware: Hardware,
    devices: int,
    until: float,
    exhaustive: bool = False,
    progress: Progress = silent,
    why_not: str | None = None,
) -> Placed:
    """Search placements until a time of `monotonic`. An exhaustive search, also done if strategies are few, gets most of the
    time.

    Raises `NothingFits`, and `CompileError` if a declared placement or the placement of `--why-not` is wrong.
    """
    started = monotonic()
    allocator.keep_memory()  # a task graph is some large arrays
    program = run(selection.program, simplification())
    if why_not is not None:
        asked_configurations(why_not, devices, operators_of(program), selection.scope)
    space, spent = compiling(lambda: placement_space(program, hardware, devices), "--budget")
    until += spent
    declared = [each for each in selection.placements if _fits(each, devices)]
    given = {each.name: strategy_of(each, space.graph, Diagnostics()) for each in declared}
    find = partial(placement_search, space, progress=progress, given=given)
    result = searched(find, space, until, exhaustive, progress)
    return Placed(selection, space, result, monotonic() - started)


def searched(
    find: Callable[[SearchBudget], PlacementResult],
    space: PlacementSpace,
    until: float,
    exhaustive: bool,
    progress: Progress = silent,
) -> PlacementResult:
    """What is found in a space; where all strategies are to be looked at, or are few, proven."""
    few = int(space.strategies) if space.strategies <= FEW else None
    exhaustive |= few is not None
    seconds = (until - monotonic()) * (BEFORE_PROOF if exhaustive else 1.0)
    result = find(SearchBudget(seconds, proposals=few, descent=few))
    if exhaustive and not result.is_interrupted and not result.is_optimal:
        result = proven(space, result, until - monotonic(), progress)
    return result


def _fits(placement: DeclaredPlacement, devices: int) -> bool:
    """Whether it is for so many devices; a search has no more parts of an operator than devices."""
    return placement.devices == devices and all(len(each.devices) <= devices for each in placement.operators)


def record(placed: Placed) -> dict[str, Any]:
    """The record that language.md has; the layout is a placement."""
    best = placed.result.best
    return {
        "space": "soap",
        "target": placed.space.hardware.name,
        "devices": placed.space.devices,
        "peak_figures": placed.space.hardware.has_peak_figures,
        "objective_seconds": best.seconds,
        "lower_bound_seconds": placed.result.lower_bound,
        "optimal": placed.result.is_optimal,
        "locally_optimal": placed.result.locally_optimal,
        "strategies": placed.space.strategies if placed.space.strategies < LARGEST else None,
        "evaluated": placed.result.evaluated,
        "search_seconds": round(placed.seconds, 3),
        "mesh": {},
        "layout": placed.text(),
        "bytes_sent": best.sent,
        "memory_per_device": int(best.held.max()),
        "baselines": {name: finite(each.seconds) for name, each in placed.result.baselines.items()},
    }


def report(placed: Placed) -> str:
    best, space = placed.result.best, placed.space
    heading = f"{placed.selection.program.name}, on {devices_of(space.hardware, space.devices)}"
    rows = [["placement", "a step", "sends", "memory", "of the best"]]
    for name, each in {placed.name: best, **placed.result.baselines}.items():
        size = f"{bytes_text(each.sent)}", bytes_text(int(each.held.max()))
        fits = each.seconds < inf
        step, share = seconds_text(each.seconds), f"{over(each.seconds, best.seconds):.2f}"
        rows.append([name, step if fits else "does not fit", *size, share if fits else ""])
    shown = placed.text() if len(space.graph.operators) <= MOST_SHOWN else ""
    lines = [f"  {line}" for line in shown.splitlines()]
    found = wrapped(_proof(placed).split(), 2)
    table = aligned(rows, right=range(1, 5))
    note = ["", *space.hardware.caveat] if space.hardware.caveat else []
    return "\n".join([heading, *lines, "", *found, "", *table, *note])


def _proof(placed: Placed) -> str:
    """How good it is known to be."""
    result, operators = placed.result, len(placed.space.graph.operators)
    tried = f"{result.evaluated} {'was' if result.evaluated == 1 else 'were'} simulated."
    if result.is_optimal:
        return f"Proven the best of {about(placed.space.strategies)} strategies of {operators} operators: {tried}"
    ended = "No other configuration of a single operator is better."
    at_most = f"{over(result.best.seconds, result.lower_bound):.2f} times the best of all"
    bound = f"No strategy takes less than {seconds_text(result.lower_bound)}, so this is at most {at_most}"
    if not result.locally_optimal:
        why = "Interrupted" if result.is_interrupted else "The time was up"
        ended = f"{why} before that was a local optimum."
    return f"{ended} {bound}. Of {about(placed.space.strategies)} strategies of {operators} operators {tried}"


def about(number: int) -> str:
    """A number to three digits, that may be too large for a float, as the strategies of a deep network on many devices are."""
    return f"{number:.3g}" if number < LARGEST else f"{Decimal(number):.2e}"


def inserted(text: str, placed: Placed) -> str:
    """The file's text with the placement that was found at its end."""
    return f"{text}{'' if text.endswith(chr(10)) else chr(10)}\n{placed.text()}"
