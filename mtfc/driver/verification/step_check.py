"""Comparison of the training step with the step that the `train` block declares, for `mtfc verify`.

The undistributed step runs three times in a row. Then it runs from states that three steps do not reach: with a gradient on the
other side of `clip`, with a dynamic loss scale that is about to change, with a gradient that is not finite, and with later
numbers of the step, at which schedules change. `verify` compares the step of each layout with the undistributed one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import attrs
import numpy as np

from mtfc.compiler.activity import doing
from mtfc.compiler.diagnostics import Diagnostics
from mtfc.compiler.ir.training import updated
from mtfc.driver.data.array_files import Arrays
from mtfc.driver.data.inputs import stacked
from mtfc.driver.loading.choice import Choice
from mtfc.driver.verification.declared_step import FIRST_SCALE, LARGEST_SCALE, PATIENCE, DeclaredStep
from mtfc.driver.verification.reference import (
    MORE_ROUNDINGS,
    ROUNDINGS,
    STEPS,
    Reference,
    ReferenceRuns,
    reported,
)
from mtfc.driver.verification.results import Comparison, Part, StepCase
from mtfc.frontend.semantics.names.modules import declarations_of
from mtfc.frontend.semantics.names.scope import Scope
from mtfc.frontend.semantics.training.option_overrides import with_overrides
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.parser import parse

FACTORS = (1e-3, 1e3, 1e-6, 1e6)
"""Factors of the parameters that may bring the norm of the gradients to the other side of `clip`."""


def checked_step(reference: Reference, file: str, text: str, choice: Choice, scope: Scope) -> StepCase:
    """Compare the step of a program, in f64, with the `train` block in the text of its file."""
    name = reference.program.name
    decl = declaration(text, file, choice, name)
    check = StepCheck(DeclaredStep(reference, decl, scope))
    training = reference.program.training
    others = updated(training) ^ frozenset(check.step.optimized) if training else ()
    if others:
        fault = Comparison(math.inf, 0.0, 0.0, "is not updated by the optimizer that is declared for it")
        return StepCase(name, dict.fromkeys(sorted(others), fault))
    with doing("the definitions of the training step"), np.errstate(all="ignore"):
        compared = dict(check.three_steps())
        for situation in check.situations():
            compared |= {f"{each} {situation.what}": x for each, x in check.compared(situation).items()}
    return StepCase(name, compared, tuple(dict.fromkeys((*check.step.unchecked(), *check.unchecked))))


def declaration(text: str, file: str, choice: Choice, model: str) -> ast.TrainDecl:
    """Return the `train` block of a model with the overrides of `--set`; the file has no error."""
    tree = with_overrides(parse(text, file, Diagnostics()), choice.settings, choice.model, Diagnostics())
    return next(each for each in declarations_of(tree, ast.TrainDecl) if each.model.text == model)


@attrs.frozen
class Situation:
    """A step from some parameters and states. batches: the micro-batches."""

    what: str
    known: Arrays
    batches: Sequence[Arrays]
    number: int = 0


@attrs.define(slots=False, eq=False)
class StepCheck:
    """The comparison of one program. known: parameters and states after three steps. unchecked: what no situation shows."""

    step: DeclaredStep
    known: Arrays = attrs.field(factory=dict)
    unchecked: list[str] = attrs.field(factory=list)

    @property
    def reference(self) -> Reference:
        return self.step.reference

    def three_steps(self) -> Mapping[str, Comparison]:
        """Compare three steps in a row from the initial values."""
        known, steps = self.step.start(), []
        for number in range(STEPS):
            known, outputs = self.step.stepped(known, number, self._batches(number))
            steps.append({**known, **reported(outputs)})
        self.known = known
        return judged(self.reference.runs, stacked(steps))

    def compared(self, situation: Situation) -> Mapping[str, Comparison]:
        """Compare one step; the results that agree are left out."""
        known, number = situation.known, situation.number
        batch = stacked(situation.batches)

        def run(evaluate: Any) -> Any:
            after, outputs = self.reference.stepped(known, number, batch, evaluate)
            return {"training": {**after, **reported(outputs)}}

        runs = ReferenceRuns(run, self.reference.limits, (ROUNDINGS[:1], ROUNDINGS[1:], MORE_ROUNDINGS))
        after, outputs = self.step.stepped(known, number, situation.batches)
        return {name: x for name, x in judged(runs, {**after, **reported(outputs)}).items() if x.fault}

    def situations(self) -> Iterator[Situation]:
        """Yield the steps that three steps do not show."""
        batches = self._batches(0)
        if self.step.clip is not None:
            yield from self._of_clip(batches)
        if self.step.loss_scale == "dynamic":
            states = self.step.scale_states
            for scale, steps in product((FIRST_SCALE, LARGEST_SCALE), (PATIENCE - 2, PATIENCE - 1)):
                known = {**self.known, **states(scale, steps)}
                yield Situation(f"after {steps:,} good steps with scale {scale:g}", known, batches)
            yield from self._of_overflow(batches)
        for number in self.step.numbers():
            yield Situation(f"in step {number:,}", self.known, batches, number)

    def _batches(self, number: int) -> list[Arrays]:
        count = self.step.micro_batches
        return [self.reference.batches[number * count + i] for i in range(count)]

    def _norm(self, known: Arrays, batches: Sequence[Arrays]) -> float:
        gradients = self.step.passes(known, 0, batches)[1]
        return math.sqrt(sum(np.sum(np.square(x)) for x in gradients.values()))

    def _of_clip(self, batches: Sequence[Arrays]) -> Iterator[Situation]:
        """Yield a step whose gradient is clipped if that of the first step is not, or the other way round."""
        clip = self.step.clip
        is_clipped = bool(self._norm(self.reference.parameters, batches) > clip)
        for factor in FACTORS:
            scaled = {name: factor * self.known[name] for name in self.step.trained}
            norm = self._norm({**self.known, **scaled}, batches)
            if 0 < norm < math.inf and (norm > clip) != is_clipped:
                what = f"with parameters times {factor:g}, whose gradient is {'not ' if is_clipped else ''}clipped"
                yield Situation(what, {**self.known, **scaled}, batches)
                return
        self.unchecked.append(f"a gradient that `clip` {'leaves' if is_clipped else 'changes'}")

    def _of_overflow(self, batches: Sequence[Arrays]) -> Iterator[Situation]:
        """Yield steps with a gradient that is not finite: with NaN in the inputs, or else in one parameter."""
        poisoned = [{name: _poisoned(x) for name, x in batch.items()} for batch in batches]
        candidates: list[tuple[Arrays, Sequence[Arrays]]] = [(self.known, poisoned)]
        candidates += [({**self.known, n: _poisoned(self.known[n])}, batches) for n in self.step.trained]
        for known, given in candidates:
            if not math.isfinite(self._norm(known, given)):
                for scale in (FIRST_SCALE, 1.0):
                    states = self.step.scale_states(scale, 7)
                    yield Situation(
                        f"where a gradient is NaN and the scale {scale:g}", {**known, **states}, given
                    )
                return
        self.unchecked.append("a step whose gradient is not finite")


def judged(runs: ReferenceRuns, arrays: Mapping[str, Any]) -> Mapping[str, Comparison]:
    """Compare arrays with those of the step; a name that only one side has is a fault."""
    expected = runs.expected["training"]
    both = [name for name in arrays if name in expected and arrays[name] is not None]
    typed: list[tuple[Part, str, Any]] = [
        ("training", n, np.asarray(arrays[n]).astype(np.asarray(expected[n].plain).dtype)) for n in both
    ]
    alone = {name: "is missing in the step" for name in arrays if name not in expected}
    alone |= {name: "is not declared" for name in expected if name not in both}
    found = runs.judged(typed).get("training", {})
    return {**found, **{name: Comparison(math.inf, 0.0, 0.0, fault) for name, fault in alone.items()}}


def _poisoned(array: Any) -> Any:
    numbers = np.asarray(array)
    return numbers if numbers.dtype.kind in "biu" else np.full_like(numbers, np.nan)
