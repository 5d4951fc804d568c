"""The data of a report about a training run: its figures over the steps, and its checkpoints, as one JSON record.

A long run has more steps than a screen has columns. Of each stretch of steps a curve keeps the first, the least, the largest and
the last value, so that it is drawn as all of its values would be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

MOST_STEPS, STRETCHES = 4000, 1000
"""Steps from which curves are thinned out, and the stretches of a thinned curve."""

Points = list[tuple[int, float | None]]
"""Steps with their values, in order; None for a value that is not finite."""


def run_json(name: str, lines: Sequence[Mapping[str, Any]], checkpoints: Sequence[int]) -> dict[str, Any]:
    """Return the record of a run. lines: the objects of `metrics.jsonl`, by rising steps. checkpoints: their steps.

    An element of a vector is a curve `NAME/INDEX`; `predicted_seconds` is a curve if a machine was named.
    """
    curves: dict[str, Points] = {}
    for line in lines:
        for figure, value in _scalars(line).items():
            curves.setdefault(figure, []).append((int(line["step"]), value))
    seconds = [line["seconds"] for line in lines[1:] or lines if line.get("seconds") is not None]
    return {
        "kind": "run",
        "name": name,
        "steps": len(lines),
        "first": lines[0]["step"],
        "last": {figure: value for figure, value in lines[-1].items() if not isinstance(value, list)},
        "median_seconds": median(seconds) if seconds else None,
        "checkpoints": list(checkpoints),
        "curves": {figure: _columns(thinned(points)) for figure, points in curves.items()},
    }


def _scalars(line: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the numbers in a line of a run's log; entries of lists are `name/0`, `name/1`, and so on."""
    found: dict[str, float | None] = {}
    for name, value in line.items():
        if name == "step":
            continue
        if isinstance(value, list):
            found |= {f"{name}/{i}": each for i, each in enumerate(value)}
        elif value is None or isinstance(value, int | float):
            found[name] = value
    share, seconds = found.get("predicted_share"), found.get("seconds")
    if share is not None and seconds is not None:
        found["predicted_seconds"] = share * seconds
    return found


def thinned(points: Points) -> Points:
    """Return the points, or of a long curve the first, least, largest and last point of each stretch."""
    if len(points) <= MOST_STEPS:
        return points
    kept: Points = []
    for i in range(STRETCHES):
        part = points[i * len(points) // STRETCHES : (i + 1) * len(points) // STRETCHES]
        finite = [point for point in part if point[1] is not None]
        ends = [min(finite, key=_value), max(finite, key=_value)] if finite else []
        kept += sorted({part[0], *ends, part[-1]}, key=lambda point: point[0])
    return kept


def _value(point: tuple[int, float | None]) -> float:
    return point[1] or 0.0


def _columns(points: Points) -> list[list[Any]]:
    return [[step for step, _ in points], [value for _, value in points]]
