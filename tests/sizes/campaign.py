"""`make sizes`: random programs under random layouts, checked at small sizes and at their own.

Where the small check passes, the check at the program's own sizes must pass. A fault planted in the module of one processor
that the own check catches must be caught at small sizes, in the first way to make sizes small in which the program without the
fault agrees: `verify --all-sizes` takes this way. SIZES_MINUTES bounds the time, SIZES_FIRST is the number of the first program.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from random import Random

import attrs
import numpy as np

from mtfc.backends.exact.check import ExactReference
from mtfc.compiler.ir.core import Program
from mtfc.driver.loading.selection import LayoutOnMesh
from mtfc.driver.verification.exact_cases import NO_SIZES, WAYS, checked_sizes, references, small_programs
from tests.harness import load
from tests.mutants.__main__ import random_source
from tests.mutants.faults import faults
from tests.mutants.modules import Module
from tests.mutants.sites import Fault

MINUTES = float(os.environ.get("SIZES_MINUTES", "10"))
FIRST = int(os.environ.get("SIZES_FIRST", "0"))
FAULTS = int(os.environ.get("SIZES_FAULTS", "20"))
"""The number of faults that are planted under each layout."""

BOTH = "step+gradients"


@attrs.frozen
class Pair:
    """A program under a layout: at its own sizes, and at small sizes in the first way in which it agrees."""

    own: Module
    small: tuple[Module, ...]

    @classmethod
    def of(cls, program: Program, case: LayoutOnMesh) -> "Pair":
        own = Module(case.lower(program, of=BOTH), ExactReference(program))
        for how in WAYS:
            try:
                found = small_programs(program, case, how)
                modules = tuple(map(Module, found.lowered, references(found, 0)))
                if all(each.reference.compare(each.lowered).ok for each in modules):
                    return cls(own, modules)
            except NO_SIZES:
                continue
        return cls(own, (own,))

    def outcomes(self, random: Random) -> Iterator[str]:
        """Yield what becomes of random faults."""
        bench = self.own.bench(0)
        chosen = [(site, name, fault) for site in bench.sites for name, fault in faults(bench.module, site)]
        for site, name, fault in random.sample(chosen, min(FAULTS, len(chosen))):
            if all(self.own.survives(site, draw, fault) for draw in (0, 1)):
                yield "changes nothing"
                continue
            is_caught = self._is_caught(site.number, fault)
            yield "caught" if is_caught else f"missed: {name} of {site.kind}, {site.function}"

    def _is_caught(self, number: int, fault: Fault) -> bool:
        """Return True if the check of one of the small programs finds a fault."""
        for module in self.small:
            for draw in module.reference.draws:
                if not module.survives(module.bench(draw).sites[number], draw, fault):
                    return True
        return False


def checked(number: int) -> Iterator[str]:
    """Yield what becomes of a random program under each of its layouts, and of faults."""
    module = load(random_source(number))
    (program,) = module.programs
    for each in module.layouts:
        case = LayoutOnMesh(each.mesh, each.layout)
        small = checked_sizes(program, case, 0)
        own = ExactReference(program).compare(case.lower(program, of=BOTH))
        if small.wrong or small.skipped:
            yield f"false alarm: {each.name}" if own.ok else "wrong"
        else:
            yield "agrees" if own.ok else f"missed: {each.name}"
            if FAULTS:
                yield from Pair.of(program, case).outcomes(Random(number))


def main() -> int:
    """Run until the time is over, and print the counts and each miss and false alarm. Return 1 if there is one."""
    np.seterr(all="ignore")
    found, number, end = Counter[str](), FIRST, time.monotonic() + 60 * MINUTES
    while time.monotonic() < end:
        for outcome in checked(number):
            found[outcome.partition(":")[0]] += 1
            if ":" in outcome:
                print(f"program {number}: {outcome}", flush=True)
        number += 1
    print(f"programs {FIRST} to {number - 1}: {', '.join(f'{n} {what}' for what, n in found.most_common())}")
    return 1 if found["missed"] or found["false alarm"] else 0


if __name__ == "__main__":
    sys.exit(main())
