"""Mutants of generated NumPy modules: one fault of a collective, slice or gather each."""

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from random import Random

import attrs
import numpy as np

from mtfc.backends.common.emitter import NAMES
from mtfc.backends.exact.check import ExactReference, call, called, compared, loaded
from mtfc.backends.numpy import backend
from mtfc.compiler.ir.core import Function, Program
from mtfc.compiler.ir.ops.elementwise import numpy_dtype
from mtfc.compiler.ir.types import FLOATS
from tests.mutants.faults import faults
from tests.mutants.reasons import CAUGHT, MISSED, reason
from tests.mutants.sites import Bench, Fault, Site, generate

DRAWS = 6
"""The draws in which a fault may be found. `mtfc verify` makes two; the others find faults that only decisions depend on."""

MORE_DRAWS = 40
"""The draws in which a fault is looked for, and the draws of floats, if a decision, a bound or a sign hides it."""


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
            field = self.reference.field(draw)
            self.benches[draw] = Bench.of(generate(self.lowered), partial(loaded, field=field))
        return self.benches[draw]

    @cached_property
    def in_floats(self) -> Bench:
        """The module that computes on floats."""
        return Bench.of(generate(self.lowered), backend.load)

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
        found = reason(self.bench(0), site, fault, visits, partial(self.survives, site, 0))
        return self._hidden(site, fault) if found == MISSED else found

    def _hidden(self, site: Site, fault: Fault) -> str:
        """Return why a fault that reaches no result may do so: few numbers show it, or none, in floats either."""
        if not all(self.survives(site, draw, fault) for draw in range(DRAWS, MORE_DRAWS)):
            return "a decision, a bound or a sign hides it in most draws"
        if all(self.survives_in_floats(site, draw, fault) for draw in range(MORE_DRAWS)):
            return "a decision, a bound or a sign hides it, in floats too"
        return MISSED

    def survives(self, site: Site, draw: int, fault: Fault) -> bool:
        """Return True if the results with a fault are the right ones."""
        bench = self.bench(draw)
        function = self._function(site)
        arguments, expected = self.reference.expected(function.name, draw)
        with bench.planted(site, fault):
            try:
                actual = called(bench.module, function, arguments, bench.module.np.field)
                return not any(compared(actual[name], right)[0] for name, right in expected.items())
            except Exception:  # a fault may make shapes that the module refuses
                return False

    def survives_in_floats(self, site: Site, draw: int, fault: Fault) -> bool:
        """Return True if a fault changes no result by more than rounding, for random floats."""
        bench, function, random = self.in_floats, self._function(site), np.random.default_rng(draw)
        arguments = {name: x.values for name, x in self.reference.expected(function.name, draw)[0].items()}
        for argument in function.arguments:
            name, type = argument.value.name, argument.value.type
            if type.dtype in FLOATS:
                drawn = random.standard_normal(arguments[name].shape).astype(numpy_dtype(np, type.dtype))
                arguments[name] = abs(drawn) if argument.role == "state" else drawn
        right = call(bench.module, function, arguments)
        with bench.planted(site, fault):
            try:
                wrong = call(bench.module, function, arguments)
            except Exception:  # a fault may make shapes that the module refuses
                return False
        return all(
            np.allclose(wrong[name], x, rtol=1e-4, atol=1e-5, equal_nan=True) for name, x in right.items()
        )

    def _function(self, site: Site) -> Function:
        return next(f for f in self.lowered.functions if NAMES[f.name] == site.function)
