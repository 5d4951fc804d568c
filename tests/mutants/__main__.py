"""`make mutants`: plant every fault in the modules of the examples and of random programs; the exact check must find it.

A mutant that changes no result is listed with the reason. MUTANTS_MINUTES bounds the time; the programs take turns.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from random import Random

import attrs
import numpy as np
from hypothesis import given, seed

from mtfc.backends.common.forms import NAMES
from mtfc.backends.exact.check import ExactReference, called, compared, loaded
from mtfc.compiler.ir.core import Function, Program
from mtfc.compiler.passes.pipelines import lower
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import choose
from mtfc.frontend.layouts.declared_layouts import DeclaredLayout
from tests.generators.programs import programs
from tests.generators.scope import Options
from tests.harness import load
from tests.mutants.faults import faults
from tests.mutants.sites import Bench, Fault, Site, generate
from tests.properties.campaign import ONE_CASE
from tests.test_examples import EXAMPLES, path

MINUTES = float(os.environ.get("MUTANTS_MINUTES", "10"))
RANDOM_PROGRAMS = 500
BOTH = "step+gradients"


@attrs.frozen
class Subject:
    """A program under one layout."""

    name: str
    lowered: Program
    reference: ExactReference


def subjects() -> Iterator[Subject]:
    """Yield every example under every layout, and then random programs."""
    for example in EXAMPLES:
        file, choice = path(example), Choice(None, None, example.mesh, example.dims)
        selection = choose(file.read_text("utf-8"), str(file), choice, every_layout=True)
        reference = ExactReference(selection.program, draws=(0,))
        for case in selection.cases:
            lowered = case.lower(selection.program, of=BOTH)
            yield Subject(f"{example.file} {case.layout.name}", lowered, reference)
    for number in range(RANDOM_PROGRAMS):
        yield from _random_subjects(number)


def _random_subjects(number: int) -> Iterator[Subject]:
    sources: list[str] = []
    drawn = given(programs(Options(statements=4)))(lambda program: sources.append(program.source))
    ONE_CASE(seed(number)(drawn))()
    module = load(sources[-1])
    (program,) = module.programs
    reference = ExactReference(program, draws=(0,))
    for layout in module.layouts:
        yield Subject(f"random {number} {layout.name}", _lowered(program, layout), reference)


def _lowered(program: Program, layout: DeclaredLayout) -> Program:
    return lower(program, layout.mesh, layout.layout, BOTH)


def outcomes(subject: Subject, until: float) -> Iterator[tuple[Site, str, str]]:
    """Plant each fault, in random order, and yield what came of it: caught, unreached, no other value, or no other result."""
    rank = len(subject.lowered.placed_on.axes)
    field = subject.reference.field(0, rank)
    bench = Bench.of(generate(subject.lowered), partial(loaded, field=field))
    functions = {NAMES[f.name]: f for f in subject.lowered.functions}
    trials = [(site, *each) for site in bench.sites for each in faults(bench.module, site)]
    Random(subject.name).shuffle(trials)
    for site, name, fault in trials:
        if time.monotonic() > until:
            return
        yield site, name, _outcome(subject, bench, functions[site.function], site, fault)


def _outcome(subject: Subject, bench: Bench, function: Function, site: Site, fault: Fault) -> str:
    arguments, expected = subject.reference.expected(function.name, 0)
    bench.active, bench.changed, bench.reached = (site.number, fault), False, False
    try:
        actual = called(bench.module, function, arguments, subject.reference.field(0, 0))
        is_caught = any(compared(actual[name], right)[0] for name, right in expected.items())
    except Exception:  # a fault may make shapes that the module refuses
        return "caught"
    finally:
        bench.active = None
    if is_caught:
        return "caught"
    if not bench.reached:
        return "unreached"
    return "no other result" if bench.changed else "no other value"


def main() -> int:
    """Run until the time is over, and print the counts and each mutant that changes a value but no result."""
    np.seterr(all="ignore")
    end = time.monotonic() + 60 * MINUTES
    counts: Counter[str] = Counter()
    for subject in subjects():
        until = min(end, time.monotonic() + 60 * MINUTES / (len(EXAMPLES) * 4))
        for site, fault, outcome in outcomes(subject, until):
            counts[outcome] += 1
            if outcome == "no other result":
                print(f"{subject.name}: {site.function}, {site.kind} on line {site.line}, {fault}")
        if time.monotonic() > end:
            break
    print(", ".join(f"{what}: {n}" for what, n in counts.most_common()))
    return 0 if counts["caught"] else 1


if __name__ == "__main__":
    sys.exit(main())
