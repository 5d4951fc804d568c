"""Mutants of generated NumPy modules: one fault of a collective, slice or gather each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from random import Random

import attrs

from mtfc.backends.common.forms import NAMES
from mtfc.backends.exact.check import ExactReference, called, compared, loaded
from mtfc.compiler.ir.core import Program
from tests.mutants.faults import faults
from tests.mutants.reasons import CAUGHT, reason
from tests.mutants.sites import Bench, Fault, Site, generate

DRAWS = 6
"""The draws in which a fault may be found. `mtfc verify` makes two; the others find faults that only decisions depend on."""


@attrs.frozen(slots=False)
class Module:
    """A program under one layout, and its modules for each draw."""

    lowered: Program
    reference: ExactReference

    @cached_property
    def benches(self) -> dict[int, Bench]:
        """Draw -> the module that computes on residues of the draw's field."""
        return {}

    def bench(self, draw: int) -> Bench:
        if draw not in self.benches:
            field = self.reference.field(draw, len(self.lowered.placed_on.axes))
            self.benches[draw] = Bench.of(generate(self.lowered), partial(loaded, field=field))
        return self.benches[draw]

    def mutants(self, random: Random) -> Iterator[tuple[str, Callable[[], str]]]:
        """Yield the faults with their outcomes."""
        bench = self.bench(0)
        for site in bench.sites:
            for name, fault in faults(bench.module, site):
                yield (
                    f"{site.function}, {site.kind} on line {site.line}, {name}",
                    partial(self.outcome, site, fault),
                )

    def outcome(self, site: Site, fault: Fault) -> str:
        """Return `CAUGHT`, `MISSED`, or the reason why no result changes."""
        if not self.survives(site, 0, fault):
            return CAUGHT
        visits = self.bench(0).visits
        is_changed = any(visit.is_changed for visit in visits)
        if is_changed and not all(self.survives(site, draw, fault) for draw in range(1, DRAWS)):
            return CAUGHT
        return reason(self.bench(0), site, fault, visits, partial(self.survives, site, 0))

    def survives(self, site: Site, draw: int, fault: Fault) -> bool:
        """Return True if the results with a fault are the right ones."""
        bench = self.bench(draw)
        function = next(f for f in self.lowered.functions if NAMES[f.name] == site.function)
        arguments, expected = self.reference.expected(function.name, draw)
        with bench.planted(site, fault):
            try:
                actual = called(bench.module, function, arguments, bench.module.np.field)
                return not any(compared(actual[name], right)[0] for name, right in expected.items())
            except Exception:  # a fault may make shapes that the module refuses
                return False
