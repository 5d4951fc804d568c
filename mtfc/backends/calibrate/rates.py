"""What measured times say: rates by size, and the links that collectives take such times on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from mtfc.compiler.cost.hardware import Kind, Link, Rate

Point = tuple[float, float]
"""The size of something, and the seconds that it takes."""

NOTABLY = 1.25
"""What is not so many times longer, or off, counts as the same."""


def rising(points: Iterable[Point]) -> Rate:
    """A rate from (work, seconds): more work never takes less time, whatever the clock says."""
    found, slowest = [], 0.0
    for size, seconds in points:
        slowest = max(slowest, seconds)
        found.append((float(size), size / slowest))
    return Rate(tuple(found))


def beyond(overhead: float, points: Sequence[Point]) -> list[Point]:
    """What takes longer than a kernel that has nothing to do, by that much longer; or else the last."""
    longer = [(size, seconds - overhead) for size, seconds in points if seconds > NOTABLY * overhead]
    return longer or [points[-1]]


def link_of(name: str, kind: Kind, members: int, times: Mapping[str, Sequence[Point]]) -> Link:
    """A link from the seconds that collectives take by the bytes of the whole array, a permute by those of one device.

    Its latency and bandwidth are those of all-reduces, the smallest of which is all latency. Others have a bandwidth of their
    own where they take notably more or less time than these say.
    """
    steps, _ = _steps_and_share("all_reduce", kind, members)
    latency = min(seconds for _, seconds in times["all_reduce"]) / steps
    formulas = {each: _Formula.of(each, kind, members, latency) for each in times}
    usual = formulas.pop("all_reduce").bandwidth(times["all_reduce"])
    own = {
        each: formula.bandwidth(times[each])
        for each, formula in formulas.items()
        if formula.is_off(times[each], usual)
    }
    return Link(name, kind, (members,), usual, latency, collectives=own)


@attrs.frozen
class _Formula:
    """A collective of an array of S bytes takes `fixed` + `share` S / bandwidth seconds (`cost/topology.py`)."""

    fixed: float
    share: float

    @classmethod
    def of(cls, collective: str, kind: Kind, members: int, latency: float) -> _Formula:
        steps, share = _steps_and_share(collective, kind, members)
        return cls(steps * latency, share)

    def bandwidth(self, times: Sequence[Point]) -> Rate:
        """That which explains the times. Sizes that take no longer than the smallest say nothing of it."""
        longer = [(size, seconds - self.fixed) for size, seconds in times]
        points = [(size, seconds) for size, seconds in longer if seconds > 1e-9]
        points = points or [(times[-1][0], self.fixed)]
        return rising([(size, seconds / self.share) for size, seconds in points])

    def is_off(self, times: Sequence[Point], bandwidth: Rate) -> bool:
        ratios = [seconds / (self.fixed + self.share * size / bandwidth.at(size)) for size, seconds in times]
        return max(ratios) > NOTABLY or min(ratios) < 1 / NOTABLY


def _steps_and_share(collective: str, kind: Kind, n: int) -> tuple[int, float]:
    """On a link of n members, a switch if it is no memory."""
    if kind == "memory":
        return n, {"all_reduce": 2.0, "all_to_all": 1 / n}.get(collective, 1.0)
    around = (n - 1) / n
    rings = {"all_reduce": (2 * (n - 1), 2 * around), "all_to_all": (n - 1, around / n), "permute": (1, 1.0)}
    return rings.get(collective, (n - 1, around))
