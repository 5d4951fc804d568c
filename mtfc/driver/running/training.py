"""Train step by step, and save the parameters however the run ends.

Ctrl-C ends the run after the running step. A loss that is not finite ends the run, too. Then the last good parameters are those
that gave the last finite loss: the update of that step led to the loss that is not finite.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from math import isfinite

import attrs

from mtfc.compiler.activity import each_of
from mtfc.compiler.diagnostics import Diagnostic
from mtfc.compiler.ir.core import Program
from mtfc.driver.data.array_files import Array, Arrays, save_arrays
from mtfc.driver.data.inputs import Batches
from mtfc.driver.errors import ERRORS, INTERRUPTED, OK, say
from mtfc.driver.running.execution import Session
from mtfc.driver.running.interrupts import delayed_interrupt
from mtfc.driver.running.rewind import Copy, Rewind
from mtfc.driver.running.steps import BatchResults, evaluate, losses_of, reported, step_of
from mtfc.reports.run_report import StepRecord

REPORTS = 20
"""Maximum number of steps that the text of a training run shows."""


@attrs.frozen
class TrainingData:
    """The data for training and evaluation, and the number of batches per step."""

    batches: Batches
    evaluation: Batches | None
    accumulate: int

    @property
    def steps(self) -> int:
        """Number of steps of one pass over the data."""
        return -(-self.batches.count // self.accumulate)

    def train(self, session: Session, number: int) -> dict[str, Array]:
        """Run training step `number`, counted from 0, and return its outputs."""
        batch = self.batches.step(number, self.accumulate)
        return session.train(batch, number, self.batches.smaller(number) if self.accumulate == 1 else None)


Search = Callable[[Copy], Diagnostic | None]
"""Finds the equation of a step that makes the first number that is not finite, from the start of the step."""


@attrs.define
class TrainingRun:
    """A training run under way: the finished steps, and the last outputs."""

    session: Session
    program: Program
    data: TrainingData
    save: str | None
    show: Callable[[StepRecord], None]
    rewind: Rewind | None
    search: Search | None = None
    steps: list[StepRecord] = attrs.field(factory=list)
    results: BatchResults = attrs.field(factory=lambda: BatchResults(({},)))
    cause: Diagnostic | None = None

    @classmethod
    def start(
        cls,
        session: Session,
        program: Program,
        data: TrainingData,
        save: str | None,
        show: Callable[[StepRecord], None],
        search: Search | None = None,
    ) -> TrainingRun:
        """Start a training run.

        save: the path of the results, if any. show: receives some of the steps. search: finds the cause of numbers that are not
        finite.
        """

        def again(number: int) -> float:
            return float(step_of(number, 0.0, data.train(session, number), program)["loss"])

        rewind = Rewind(session, again) if save or search else None
        return cls(session, program, data, save, show, rewind, search)

    def run(self, number: int) -> int:
        """Train `number` steps, show some of them, and save; return the exit status."""
        try:
            for i in each_of(range(number), "step"):
                self._step(i)
                if i + 1 == number or not self.is_finite or (i + 1) % max(1, number // REPORTS) == 0:
                    self._show()
                if not self.is_finite:
                    break
        except KeyboardInterrupt:
            if self.save is None or not self.steps:
                raise
            return self._ended(INTERRUPTED)
        return self._ended(OK)

    @property
    def is_finite(self) -> bool:
        return isfinite(self.steps[-1]["loss"])

    def _step(self, i: int) -> None:
        """Run step `i`; if the run saves its results, Ctrl-C waits for the end of the step."""
        message = f"interrupted: results are saved after step {i + 1}; Ctrl-C again ends at once"
        with delayed_interrupt(message) if self.save else nullcontext():
            start = time.perf_counter()
            if self.rewind:
                self.rewind.before(i)
                start = time.perf_counter()
            outputs = self.data.train(self.session, i)
            self.steps.append(
                {**step_of(i + 1, start, outputs, self.program), **reported(outputs, self.program)}
            )
            self.results = BatchResults((outputs,))
            if self.rewind and self.is_finite:
                self.rewind.succeeded()

    def _show(self) -> None:
        evaluation = self.data.evaluation
        if evaluation and self.is_finite:
            self.results = evaluate(self.session, self.program, evaluation, evaluation.count, lambda *_: None)
            self.steps[-1]["eval"] = self.results.means()
        self.show(self.steps[-1])

    def _ended(self, status: int) -> int:
        """Save the results and return the exit status, which changes if the last loss or parameters are not finite."""
        number = len(self.steps)
        if not self.is_finite:
            self._search(number - 1)
            return self._failed(f"the loss of step {number} is {self.steps[-1]['loss']}", number - 1)
        if self.rewind is None:
            return status
        parameters = self.session.parameters()
        if not _all_finite(parameters):
            self._search(number)
            earlier = self.rewind.back(number - 1)
            if earlier is not None and _all_finite(earlier):
                return self._failed(f"the parameters after step {number} are not finite", number)
        if self.save is not None:
            self._save(parameters, self.steps)
        if status == INTERRUPTED:
            say(f"interrupted: {self.save} has the parameters after step {number}")
        return status

    def _failed(self, why: str, last: int) -> int:
        """Save the parameters that gave the loss of step `last`; 0 means that no loss was finite."""
        good = self.rewind.back(last - 1) if self.rewind and self.save and last else None
        if self.save is None:
            say(f"{why}; with --save the last good parameters are kept")
        elif good is None:
            say(f"{why}: nothing is saved")
        else:
            self._save(good, self.steps[:last])
            say(
                f"{why}: {self.save} has the parameters that gave the loss of step {last}, the last good ones"
            )
        return ERRORS

    def _search(self, step: int) -> None:
        """Find the cause of numbers that are not finite in a step, or in the parameters that it starts from."""
        if self.search is None or self.rewind is None:
            return
        start = self.rewind.start_of_failure(step, _all_finite)
        self.cause = self.search(start)
        if self.cause is None:
            say(f"step {start.step + 1} gives finite numbers when it is repeated on the interpreter")

    def _save(self, parameters: Arrays, steps: Sequence[StepRecord]) -> None:
        assert self.save is not None
        if "loss" in parameters:
            say(f"{self.save} has no losses: a parameter is called `loss`")
        arrays = {"loss": losses_of(steps), **self.session.averages(), **parameters}
        save_arrays(self.save, arrays)


def _all_finite(arrays: Arrays) -> bool:
    import numpy as np

    return all(bool(np.isfinite(array).all()) for array in arrays.values())
