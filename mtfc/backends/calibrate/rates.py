"""Rates and links from measured times: rates by size, and links on which collectives take the measured times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from mtfc.compiler.cost.hardware import Device, DotShares, Hardware, Kind, Link, Rate
from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.ir.ops.collectives import SENDINGS
from mtfc.compiler.ir.types import Mesh

Point = tuple[float, float]
"""The size of a kernel or message, and the seconds that it takes."""

NOTABLY = 1.25
"""Times count as equal if their ratio is below this."""


LARGEST_SIDE = 2048
"""The largest side of matrices whose dots are measured in several shapes."""

NARROWED = (64, 16, 4)
"""The parts of that side which the narrow sides of these dots have."""

LEAST_SHARE = 1e-3


def rising(points: Iterable[Point]) -> Rate:
    """Return a rate from (work, seconds). More work never takes less time, whatever the clock says."""
    found, slowest = [], 0.0
    for size, seconds in points:
        slowest = max(slowest, seconds)
        found.append((float(size), size / slowest))
    return Rate(tuple(found))


def beyond(overhead: float, points: Sequence[Point]) -> list[Point]:
    """Return the times less the overhead of a kernel. Points that are not notably longer are left out, but for the last."""
    longer = [(size, seconds - overhead) for size, seconds in points if seconds > NOTABLY * overhead]
    return longer or [points[-1]]


def side_of(rate: Rate) -> int:
    """Return the side of the largest dot of square matrices that was measured, up to a limit."""
    side: float = (rate.points[-1][0] / 2) ** (1 / 3)
    return min(round(side), LARGEST_SIDE)


def narrow_sides(side: int) -> tuple[int, ...]:
    """Return the narrow sides for which dots are measured beside long sides of this size."""
    return tuple(dict.fromkeys(max(side // part, 1) for part in NARROWED))


def dot_shares(side: int, rate: Rate, short: Mapping[int, float], summed: Mapping[int, float]) -> DotShares:
    """Return the shares of a rate that dots reach, from the seconds of dots with few rows or few summed elements.

    Both have sides of `side` otherwise. Shares are those of dots with as many FLOPs. A share that is not notably below 1 is 1.
    """

    def shares(seconds: Mapping[int, float]) -> Rate:
        found = [(float(few), _share(2.0 * few * side**2, each, rate)) for few, each in seconds.items()]
        return Rate((*found, (float(side), 1.0))) if found[-1][0] < side else Rate(tuple(found))

    return DotShares(short=shares(short), summed=shares(summed))


def _share(flops: float, seconds: float, rate: Rate) -> float:
    share = flops / rate.at(flops) / seconds if seconds > 0 else 1.0
    return max(share, LEAST_SHARE) if share * NOTABLY < 1 else 1.0


def link_of(name: str, kind: Kind, members: int, times: Mapping[str, Sequence[Point]]) -> Link:
    """Return a link of a kind on which collectives take the given times.

    times: kind of collective -> (bytes of the whole array, seconds); for a permute, the bytes of one device. The latency and the
    bandwidth of the link are those of all-reduces, the smallest of which is all latency. Other collectives get a bandwidth of
    their own if they take notably more or less time than this link says.
    """
    unit = _LinkFormula.of("all_reduce", kind, members, latency=1.0)
    latency = min(seconds for _, seconds in times["all_reduce"]) / unit.fixed
    formulas = {each: _LinkFormula.of(each, kind, members, latency) for each in times}
    usual = formulas.pop("all_reduce").bandwidth(times["all_reduce"])
    own = {
        each: formula.bandwidth(times[each])
        for each, formula in formulas.items()
        if formula.is_off(times[each], usual)
    }
    return Link(name, kind, (members,), usual, latency, collectives=own)


@attrs.frozen
class _LinkFormula:
    """The time of a collective over all members of a link: `fixed` + `share` S / bandwidth seconds for an array of S bytes."""

    fixed: float
    share: float

    @classmethod
    def of(cls, collective: str, kind: Kind, members: int, latency: float) -> _LinkFormula:
        """Return the formula that `cost/topology.py` has."""
        local = 1.0 / SENDINGS[collective].whole_bytes(1.0, members)
        return cls(
            _seconds(collective, kind, members, latency, 0.0), _seconds(collective, kind, members, 0.0, local)
        )

    def bandwidth(self, times: Sequence[Point]) -> Rate:
        """Return the bandwidth that explains the times. Sizes that take no longer than the smallest do not count."""
        longer = [(size, seconds - self.fixed) for size, seconds in times]
        points = [(size, seconds) for size, seconds in longer if seconds > 1e-9]
        points = points or [(times[-1][0], self.fixed)]
        return rising([(size, seconds / self.share) for size, seconds in points])

    def is_off(self, times: Sequence[Point], bandwidth: Rate) -> bool:
        """Return True if a time differs notably from the formula's with this bandwidth."""
        ratios = [seconds / (self.fixed + self.share * size / bandwidth.at(size)) for size, seconds in times]
        return max(ratios) > NOTABLY or min(ratios) < 1 / NOTABLY


def _seconds(collective: str, kind: Kind, members: int, latency: float, local_bytes: float) -> float:
    """Return the seconds over all members of a link of one byte per second, for a permute from neighbour to neighbour."""
    one = Rate.constant(1.0)
    link = Link("link", kind, (members,), one, latency)
    topology = Topology.of(
        Mesh("all", (("all", members),)), Hardware("unit", Device({"f32": one}, 1.0, one), (link,))
    )
    return topology.seconds(collective, ("all",), local_bytes, hops=1)["link"]
