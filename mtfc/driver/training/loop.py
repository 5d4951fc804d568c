"""The loop of training: steps, and after some of them an evaluation or a checkpoint.

The next batch is placed while a step runs, and a loss is read while the next step runs, so devices never wait for the host. The
position in the data is taken before the next batch is read ahead, so that a checkpoint continues with the right batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from mtfc.compiler.diagnostics import CompileError
from mtfc.driver.errors import UsageError
from mtfc.driver.training.checkpoints import NotFinite, are_finite
from mtfc.driver.training.metrics import Sink, Throughput
from mtfc.reports.training_report import TrainingStep

if TYPE_CHECKING:
    from mtfc.backends.jax.jax_program import JaxProgram, TrainState
    from mtfc.driver.training.batch_iterators import BatchIterator
    from mtfc.driver.training.signals import Stop


class Saver(Protocol):
    """Writes checkpoints when they are due."""

    def is_due(self, step: int) -> bool: ...

    def save(self, step: int, state: TrainState, position: Any) -> None:
        """Write a checkpoint while training goes on. position: of the data after the step."""

    def check(self) -> None:
        """Raise the error of a save that has failed: `NotFinite` or `Unavailable`. Called after each step."""


class EvaluationStopped(Exception):
    """A signal came during an evaluation."""


@attrs.frozen
class Schedule:
    """The steps after which something happens, by number from 1.

    total: the last step. evaluate: every so many steps. skipped: steps that read their batch and change nothing. overflows: the
    most steps in a row whose loss is not finite; a dynamic loss scale leaves the parameters alone there.
    """

    total: int
    evaluate: int | None = None
    skipped: Sequence[range] = ()
    overflows: int = 0

    def skips(self, step: int) -> bool:
        return any(step in each for each in self.skipped)

    def evaluates(self, step: int) -> bool:
        return self.evaluate is not None and (step % self.evaluate == 0 or step == self.total)


@attrs.define
class TrainLoop:
    """A training run under way.

    loss: the name of the minimized output. evaluate: state -> means over the evaluation data. before: the state before the
    last step, and its batch, kept to find the cause of a loss that is not finite.
    """

    program: JaxProgram
    state: TrainState
    batches: BatchIterator
    schedule: Schedule
    loss: str
    throughput: Throughput
    predicted: float | None
    evaluate: Callable[[TrainState], dict[str, float]]
    saver: Saver
    sinks: Sequence[Sink]
    keep_before: bool = False
    before: tuple[TrainState, Mapping[str, Any]] | None = None
    steps: list[TrainingStep] = attrs.field(factory=list)
    ended: float = 0.0
    overflowed: int = 0
    position: Any = None

    def run(self, stop: Stop) -> bool:
        """Train until the last step; return False if `stop` ended the run before.

        Raises `NotFinite`, and the errors of data and of checkpoints.
        """
        self.ended = perf_counter()
        step, pending = int(self.state.step), None
        batch = self._next() if step < self.schedule.total else {}
        error: Exception | None = None
        while step < self.schedule.total:
            self._keep(batch)
            metrics: Mapping[str, Any] | None = None
            if self.schedule.skips(step + 1):
                self.state = attrs.evolve(self.state, step=self.state.step + 1)
            else:
                self.state, metrics = self.program.train_step(self.state, batch)
            step, self.position = step + 1, self.batches.state()
            try:
                batch = self._next() if step < self.schedule.total else {}
            except (UsageError, CompileError) as failed:  # raised after the running step has been finished
                error = failed
            if pending is not None:
                self._finish(*pending)
            pending = (step, metrics) if metrics is not None else None
            self.saver.check()
            stopped = stop.after(step)
            if stopped or error or self._pauses(step):
                if pending is not None:
                    self._finish(*pending)
                pending = None
                self._check_state(step)
                stopped = not self._pause(step, ran=metrics is not None) or stopped
            if error is not None:
                raise error
            if stopped:
                return step == self.schedule.total
        return True

    def _next(self) -> Mapping[str, Any]:
        return self.program.place(next(self.batches), self.program.step_inputs)

    def _keep(self, batch: Mapping[str, Any]) -> None:
        """Copy the state before a step, if asked: the step donates it."""
        if self.keep_before:
            import jax

            self.before = (jax.tree.map(jax.numpy.copy, self.state), batch)

    def _check_state(self, step: int) -> None:
        """Raise `NotFinite` if the step has made numbers that are not finite, where the state before it is kept."""
        if self.keep_before and not are_finite(self.state):
            raise NotFinite(f"the parameters after step {step} are not finite")

    def _pauses(self, step: int) -> bool:
        """Return True if the loss of this step is read before the next step."""
        at_once = step == self.schedule.total or not self.program.overlaps
        return at_once or self.keep_before or self.schedule.evaluates(step) or self.saver.is_due(step)

    def _finish(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Read the figures of a step, which waits for it. Raises `NotFinite`."""
        scalars = {name: float(value) for name, value in metrics.items() if not value.ndim}
        now = perf_counter()
        seconds, self.ended = max(now - self.ended, 1e-9), now
        rate = self.throughput.per_step / seconds
        loss = scalars.pop(self.loss)
        record = TrainingStep(step, loss, seconds, self.throughput.unit, rate, scalars, {}, self.predicted)
        self.steps.append(record)
        self.overflowed = 0 if isfinite(loss) else self.overflowed + 1
        if self.overflowed > self.schedule.overflows:
            self._show(record)
            before = f", after {self.overflowed - 1} more in a row" if self.overflowed > 1 else ""
            raise NotFinite(f"the loss of step {step} is {loss}{before}")
        if not self.schedule.evaluates(step):
            self._show(record)

    def _pause(self, step: int, ran: bool) -> bool:
        """Evaluate and save after a step, as far as they are due; the time does not count as a step's.

        ran: the step has figures. Return False if a signal has ended the evaluation.
        """
        is_whole = True
        if self.schedule.evaluates(step) and ran:
            try:
                self.steps[-1] = attrs.evolve(self.steps[-1], evaluation=self.evaluate(self.state))
            except EvaluationStopped:
                is_whole = False
            self._show(self.steps[-1])
        if self.saver.is_due(step):
            self.saver.save(step, self.state, self.position)
        self.ended = perf_counter()
        return is_whole

    def _show(self, step: TrainingStep) -> None:
        for sink in self.sinks:
            sink.step(step)
