"""`make mutants`: plant faults in the examples, in random programs and in training steps; `verify` must find each that matters.

A mutant that changes no result needs a reason, or it counts as missed. MUTANTS_MINUTES bounds the time. Half of it goes to the
examples, half to the random programs, with equal shares for all of them: as many mutants as fit, in random order. All faults
of training steps are tried before, within two minutes.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf
from random import Random
from typing import Any, Protocol, TypeVar

import numpy as np
from hypothesis import given, seed

from mtfc.backends.exact.check import ExactReference
from mtfc.compiler.passes.pipelines import lower
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import choose
from tests.generators.programs import programs
from tests.generators.scope import Options
from tests.harness import load
from tests.mutants.gradients import GradientBench
from tests.mutants.modules import Module
from tests.mutants.reasons import CAUGHT, MISSED
from tests.mutants.steps import TrainBlocks
from tests.properties.campaign import ONE_CASE
from tests.test_examples import EXAMPLES, Example, path

MINUTES = float(os.environ.get("MUTANTS_MINUTES", "10"))
RANDOM_PROGRAMS = 500
BOTH = "step+gradients"

T = TypeVar("T")


class Subject(Protocol):
    """A program in which faults can be planted. The outcome of a fault is `CAUGHT`, `MISSED`, or a reason."""

    def mutants(self, random: Random) -> Iterator[tuple[str, Callable[[], str]]]: ...


Named = tuple[str, Callable[[], Subject]]


def of_example(example: Example) -> list[Named]:
    """Return the gradients of an example, and its layouts."""
    file, choice = path(example), Choice(None, None, example.mesh, example.dims)
    selection = choose(file.read_text("utf-8"), str(file), choice, every_layout=True)
    program, reference = selection.program, ExactReference(selection.program)
    found: list[Named] = [(f"{example.file} gradients", partial(GradientBench.of, reference))]
    for case in selection.cases:
        lowered = partial(case.lower, program, of=BOTH)
        found.append(
            (f"{example.file} {case.layout.name}", lambda lowered=lowered: Module(lowered(), reference))
        )
    return found


def of_random_program(number: int) -> list[Named]:
    """Return the gradients of a random program, and its layouts."""
    module = load(random_source(number))
    (program,) = module.programs
    reference = ExactReference(program)
    found: list[Named] = [(f"random {number} gradients", partial(GradientBench.of, reference))]
    for each in module.layouts:
        lowered = partial(lower, program, each.mesh, each.layout, BOTH)
        found.append((f"random {number} {each.name}", lambda lowered=lowered: Module(lowered(), reference)))
    return found


def random_source(number: int) -> str:
    """Return the text of a random program."""
    sources: list[str] = []
    drawn = given(programs(Options(statements=4)))(lambda program: sources.append(program.source))
    ONE_CASE(seed(number)(drawn))()
    return sources[-1]


def shares(items: Sequence[T], until: float) -> Iterator[tuple[T, float]]:
    """Yield each item with the end of its equal share of the time that is left."""
    for i, item in enumerate(items):
        now = time.monotonic()
        yield item, now + (until - now) / (len(items) - i)


def tried(name: str, subject: Subject, until: float) -> Counter[str]:
    """Plant faults in random order until the time is over, but at least one. Print those that are missed."""
    outcomes: Counter[str] = Counter()
    mutants = [*subject.mutants(Random(name))]
    Random(name).shuffle(mutants)
    for fault, outcome in mutants:
        found = outcome()
        outcomes[found] += 1
        if found == MISSED:
            print(f"missed: {name}: {fault}", flush=True)
        if time.monotonic() > until:
            break
    return outcomes


def campaign(start: float, minutes: float) -> Iterator[tuple[str, Counter[str]]]:
    """Yield the outcomes of each program: kind of mutant -> outcomes."""
    groups: tuple[tuple[Sequence[Any], Callable[[Any], list[Named]], float], ...] = (
        (EXAMPLES, of_example, 0.5),
        (range(RANDOM_PROGRAMS), of_random_program, 1),
    )
    for items, subjects_of, share in groups:
        for item, item_end in shares(items, start + 60 * minutes * share):
            for (name, make), end in shares(subjects_of(item), item_end):
                kind = "gradients" if name.endswith(" gradients") else "modules"
                yield kind, tried(name, make(), end)


def main() -> int:
    """Run until the time is over, and print the counts and each mutant that is missed. Return 1 if one is."""
    np.seterr(all="ignore")
    counts = {"steps": tried("train blocks", TrainBlocks(), inf)}
    counts |= {"modules": Counter[str](), "gradients": Counter[str]()}
    programs = Counter(steps=1)
    for kind, outcomes in campaign(time.monotonic(), MINUTES):
        counts[kind] += outcomes
        programs[kind] += 1
    for kind, outcomes in counts.items():
        print(f"{kind}: {outcomes.total()} mutants in {programs[kind]} programs, {outcomes[CAUGHT]} caught")
        for outcome, number in outcomes.most_common():
            if outcome != CAUGHT:
                print(f"{number:8} {'missed' if outcome == MISSED else f'change nothing: {outcome}'}")
    missed = sum(outcomes[MISSED] for outcomes in counts.values())
    return 1 if missed or not all(outcomes[CAUGHT] for outcomes in counts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
