"""The forms of the best layouts: whether equations between two sums run on parts, whether sums of dots are joined, what travels
for dots of groups, where sums of loops are completed, and how many iterations of a loop run in one.

A search finds layouts without forms. Then the forms of the best of them are priced on the machine, with those of layouts that do
not fit into the memory: on parts they may. So the bound of a search is for layouts without forms, and the bound of those with
forms is that of all plans (`StepFacts.least_seconds`).

Unrolled loops, and sums after loops, change only what is sent beside what. So they are tried last.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from math import inf
from time import process_time

import attrs

from mtfc.compiler.analysis.dimension_names import SINGLE
from mtfc.compiler.cost.hardware import Device, Hardware
from mtfc.compiler.cost.sizes import Numbers
from mtfc.compiler.ir.core import Function, walk
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.types import GROUPS, MOST_FLOPS_PER_BYTE, REGIONS, Forms, Layout, Mesh
from mtfc.compiler.search.found import (
    FindPlan,
    Found,
    NothingFits,
    Objective,
    Plan,
    Price,
    PricedLayouts,
    Pricing,
    room_on,
    value_of,
)

CANDIDATES = 3
"""Most layouts whose forms are priced."""

LEAST = 1e-3
"""The part of the price that forms must save, so that a layout has none where they make little difference."""

LEAST_MEMORY = 1
"""The limit of `recompute` that no program keeps: the pass comes as near as it can."""

SHARE = 0.2
"""The part of the time of a search in which the forms of the best layouts are priced."""

UNROLLED = (2, 4)
"""The numbers of iterations in one that are tried."""

LEAST_OVERLAP = 1e-2
"""The part of the step with overlap that sums after loops must save, and unrolled loops each time that the program doubles."""


def with_loop_forms(found: Found, pricing: Pricing, objective: Objective, memory: float) -> Found:
    """Return the found layout with the forms of loops that shorten the step, if they fit in memory."""
    plain, best = found, pricing(found.mesh, found.layout).seconds
    try:
        for steps in ([{"sums": "after"}], [{"unroll": number} for number in UNROLLED]):
            for step in steps:
                layout = attrs.evolve(found.layout, forms=attrs.evolve(found.layout.forms, **step))
                price = pricing(found.mesh, layout)
                if price.tiled > memory or price.seconds >= (1 - LEAST_OVERLAP) * best:
                    break
                best, value = price.seconds, value_of(price, objective)
                bound = min(found.lower_bound, value)
                found = attrs.evolve(found, layout=layout, objective=value, lower_bound=bound)
    except KeyboardInterrupt:
        found = attrs.evolve(found, is_interrupted=True)
    if objective == "time" and found.layout != plain.layout:
        return attrs.evolve(found, lower_bound=0.0, without_forms=plain.without_forms or plain)
    return found


def flops_per_byte(device: Device, function: Function) -> int:
    """Return the FLOPs that a device computes while it moves a byte in its memory, in the dtype of most of the FLOPs in dots."""
    flops: Counter[str] = Counter()
    for eqn in walk(function.body):
        if has_trait(eqn, "dot"):
            flops[eqn.operands[0].type.dtype] += int(OPS[eqn.op].flops(eqn, Numbers(SINGLE)))
    dtype = max(flops, key=flops.__getitem__, default="f32")
    return min(MOST_FLOPS_PER_BYTE, max(1, round(device.rate(dtype).peak / device.bandwidth.peak)))


def forms_of(device: Device, function: Function, recomputes: bool = False) -> tuple[Forms, ...]:
    """Return the forms to try for a function on a device. The forms of groups are tried only where there are dots of groups.

    recomputes: True to try also the least memory that computing values again brings.
    """
    has_groups = any(has_trait(eqn, "groups") for eqn in walk(function.body))
    dots, groups = (0, flops_per_byte(device, function)), GROUPS if has_groups else GROUPS[:1]
    limits: tuple[str | int, ...] = (LEAST_MEMORY, "") if recomputes else ("",)
    every = (Forms(a, b, c, recompute=limit) for a, b, c, limit in product(REGIONS, dots, groups, limits))
    return tuple(forms for forms in every if forms.entries)


@attrs.frozen
class FormsSearch:
    """A search for the forms of layouts. forms: the forms that are tried. until: the end of the search, a time of
    `process_time`.

    given: layouts with forms that are tried, too. prices: those of layouts without forms.
    """

    pricing: Pricing
    objective: Objective
    hardware: Hardware
    forms: Sequence[Forms]
    until: float
    given: Sequence[Plan] = ()
    prices: dict[Plan, Price] = attrs.field(factory=dict)

    def best(self, find: FindPlan) -> Found:
        """Find the best layout, whose forms are priced in a part of the time. Raises `NothingFits`."""
        try:
            found = find(self._recorded, self.until - SHARE * (self.until - process_time()))
        except NothingFits:
            if (fitting := self.fitting()) is not None:
                return fitting
            raise
        return self.improved(found)

    def _recorded(self, mesh: Mesh, layout: Layout) -> Price:
        price = self.prices[mesh, layout] = self.pricing(mesh, layout)
        return price

    def improved(self, found: Found) -> Found:
        """Return the best layout with forms, or what was found without forms if no forms save anything.

        The forms of the found layout are priced first, while there is time.
        """
        if found.is_interrupted:
            return found
        own = (found.mesh, found.layout)
        ranked = sorted(self.prices, key=lambda each: value_of(self.prices[each], self.objective))
        others = [each for each in ranked if _is_other(*each, found)]
        tried = self._tried([own, *others[: CANDIDATES - 1]], (1 - LEAST) * found.objective, found.evaluated)
        tried.is_late |= found.is_late
        if tried.best is None:
            evaluated, is_interrupted, is_late = tried.evaluated, tried.is_interrupted, tried.is_late
            return attrs.evolve(found, evaluated=evaluated, is_interrupted=is_interrupted, is_late=is_late)
        return tried.found(without_forms=found)

    def fitting(self) -> Found | None:
        """Return the best layout that fits into the memory with forms, where none was found that fits without."""
        ranked = sorted(self.prices, key=lambda each: self.prices[each].tiled)
        tried = self._tried(ranked[:CANDIDATES], inf, len(self.prices))
        return None if tried.best is None else tried.found()

    def _tried(self, candidates: Sequence[Plan], limit: float, evaluated: int) -> PricedLayouts:
        """Price the given layouts, and layouts without forms with each of their forms while there is time. Keep the best one.

        limit: the value that the best one is below. If it is infinite, nothing fits without forms, and those of the first layout
        are priced in any case. evaluated: layouts that were priced before.
        """
        room = room_on(self.hardware, self.objective)
        tried = PricedLayouts(self.pricing, self.objective, room, limit=limit, evaluated=evaluated)

        def each() -> Iterator[Plan]:
            """Yield the given layouts, then each candidate with each of the forms, until the time is over."""
            yield from self.given
            for i, (mesh, layout) in enumerate(candidates):
                for forms in self.forms:
                    is_due = bool(forms.recompute) and tried.evaluated == evaluated
                    if process_time() > self.until and (i or limit < inf) and not is_due:
                        tried.is_late = True
                        return
                    recompute = forms.recompute or layout.forms.recompute
                    yield mesh, attrs.evolve(layout, forms=attrs.evolve(forms, recompute=recompute))

        tried.offer_all(each())
        return tried


def _is_other(mesh: Mesh, layout: Layout, found: Found) -> bool:
    return (mesh, attrs.evolve(layout, name=found.layout.name)) != (found.mesh, found.layout)
