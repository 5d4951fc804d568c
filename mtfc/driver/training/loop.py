"""The loop of training: steps, and after some of them an evaluation or a checkpoint.

The next batch is placed while a step runs, and a loss is read while the next step runs, so devices never wait for the host. The
position in the data is taken before the next batch is read ahead, so that a checkpoint continues with the right batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from time import perf_counter
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from mtfc.backends.common.devices import Unavailable, jax
from mtfc.compiler.diagnostics import CompileError
from mtfc.compiler.ir.training import LOSS_SCALE
from mtfc.compiler.passes.autodiff.update_equations import GOOD_STEPS
from mtfc.driver.errors import UsageError
from mtfc.driver.training.checkpoints import NotFinite, Saving, are_finite
from mtfc.driver.training.metrics import Sink, Throughput
from mtfc.driver.training.signals import Stop, Stopped
from mtfc.reports.array_summary import Figure, is_figure
from mtfc.reports.training_report import Prediction, TrainingStep

if TYPE_CHECKING:
    from mtfc.backends.jax.jax_program import JaxProgram, TrainState
    from mtfc.driver.training.data_interface import BatchIterator
    from mtfc.driver.training.metrics import Evaluations


class OthersFailed(Unavailable):
    """Another process has no batch for the next step, or cannot write its figures."""


MOST_KEPT = 2000
"""The most steps whose figures are kept in memory for the table at the end: the first one, and the last ones."""

END = "its data has ended"

BATCHLESS, FAILED = "has no batch: ", "has failed: "


def next_of_all(batches: BatchIterator, stop: Stop, failure: Exception | None = None) -> Mapping[str, Any]:
    """Return the next batch once every process has its own: so all end at the same step, whatever the reason.

    failure: the reason why this process does not go on. Raises `Stopped`, `StopIteration`, `failure`, the error of this process's
    data, and `OthersFailed`.
    """
    batch, error = None, failure
    try:
        batch = stop.wait(lambda: next(batches)) if failure is None else None
    except (Stopped, StopIteration, UsageError, CompileError) as ended:
        error = ended
    peers = stop.peers
    is_end = isinstance(error, Stopped | StopIteration | None)
    own = END if isinstance(error, StopIteration) else ""
    if not is_end:
        own = f"{BATCHLESS if failure is None else FAILED}{error}"
    votes = peers.gather([stop.is_requested or isinstance(error, Stopped), own, batches.checksum()])
    if error is not None and not is_end:
        raise error
    failed = next((i for i, (_, word, _) in enumerate(votes) if word not in ("", END)), None)
    if failed is not None:
        raise OthersFailed(f"{peers.name_of(failed)} {votes[failed][1]}")
    if any(stops for stops, _, _ in votes):
        raise Stopped
    if batch is None or any(word for _, word, _ in votes):
        raise StopIteration
    check_items([each for _, _, each in votes])
    return batch


def check_items(checksums: Sequence[int]) -> None:
    """Raise `UsageError` unless the data of all processes have the same checksum."""
    others = [str(i) for i, each in enumerate(checksums) if each != checksums[0]]
    if others:
        raise UsageError(
            f"the function that gives the data has other items on process{'es' * (len(others) > 1)} {', '.join(others)} than on"
            " process 0: all calls must give the same items, or name shard_index and shard_count"
        )


def iter_batches(batches: BatchIterator, stop: Stop) -> Iterator[Mapping[str, Any]]:
    """Yield the batches of one pass. Raises `Stopped`."""
    while True:
        try:
            yield next_of_all(batches, stop)
        except StopIteration:
            return


def figures_of(metrics: Mapping[str, Any]) -> dict[str, Figure]:
    """Return the scalars and short vectors among the results of a step, without vectors that are split over processes."""
    return {
        name: np.asarray(value, np.float64).tolist()
        for name, value in metrics.items()
        if is_figure(value) and (value.is_fully_addressable or value.is_fully_replicated)
    }


SCALE_AFTER, GOOD_AFTER = "loss_scale after", "good_steps after"
"""The names of two figures that no file has: the state of a dynamic loss scale after a step."""


def scale_after(state: TrainState) -> dict[str, Any]:
    """Return copies of the state of a dynamic loss scale, which the next step donates; nothing under a placement."""
    found = {SCALE_AFTER: state.optimizer.get(LOSS_SCALE), GOOD_AFTER: state.optimizer.get(GOOD_STEPS)}
    is_whole = all(isinstance(each, jax.Array) for each in found.values())
    return jax.tree.map(jax.numpy.copy, found) if is_whole else {}


@attrs.frozen
class Schedule:
    """The steps after which something happens, by number from 1.

    total: the last step. evaluate: every so many steps. skipped: steps that read their batch and change nothing. overflows: the
    most steps in a row whose loss or gradients are not finite; a dynamic loss scale leaves the parameters alone there.
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

    loss: the name of the minimized output. evaluate: state -> means over the evaluation data. evaluations: those so far, if the
    best of them counts. before: the state before the last step, and its batch, kept to find the cause of a loss that is not
    finite. overflowed: steps in a row whose gradients or loss are not finite. scale: the loss scale after the last step.
    unevaluated: the figures of the last step while its evaluation has not ended. read: the position after the step whose loss was
    read last. failure: why the figures of a step cannot be written.
    """

    program: JaxProgram
    state: TrainState
    batches: BatchIterator
    schedule: Schedule
    loss: str
    throughput: Throughput
    predicted: Prediction | None
    evaluate: Callable[[TrainState], dict[str, float]]
    saving: Saving
    sinks: Sequence[Sink]
    evaluations: Evaluations | None = None
    keep_before: bool = False
    before: tuple[TrainState, Mapping[str, Any]] | None = None
    steps: list[TrainingStep] = attrs.field(factory=list)
    ended: float = 0.0
    overflowed: int = 0
    scale: float = math.inf
    position: Any = None
    unevaluated: TrainingStep | None = None
    read: Any = None
    failure: Exception | None = None

    @property
    def last(self) -> TrainingStep | None:
        """The figures that were read last."""
        return self.steps[-1] if self.steps else None

    def run(self, stop: Stop) -> bool:
        """Train until the last step; return False if `stop` ended the run before.

        Raises `NotFinite`, the errors of data and of checkpoints, and `failure`.
        """
        is_done = self._run(stop)
        if self.failure is not None:
            raise self.failure
        return is_done

    def _run(self, stop: Stop) -> bool:
        """Run steps until the schedule ends or a stop; return True if all steps are done.

        The next step is started before the figures of the last one are read, so that the device never waits.
        """
        self.ended = perf_counter()
        step, pending = int(self.state.step), None
        try:
            if self.unevaluated is not None:
                self._evaluate(self.unevaluated)
            batch = self._next(stop) if step < self.schedule.total else {}
        except Stopped:
            return False
        error: Exception | None = None
        while step < self.schedule.total and not self.ends_early:
            metrics = self._step(step + 1, batch)
            step, self.position = step + 1, self.batches.state()
            stopped = False
            try:
                batch = self._next(stop) if step < self.schedule.total else {}
            except Stopped:
                stopped = True
            except Exception as failed:  # raised after the running step has ended
                if not self.is_expected(failed):
                    raise
                error = failed
            if pending is not None:
                self._finish(*pending)
            pending = (step, metrics, self.position) if metrics is not None else None
            self.saving.check()
            if stopped or error or self._pauses(step):
                if pending is not None:
                    self._finish(*pending)
                pending = None
                self._check_state(step)
                stopped = self._pause(step, metrics is not None, stopped) or stopped
            if error is not None:
                raise error
            if stopped:
                return step == self.schedule.total
        return True

    def save_at_end(self) -> None:
        """Write the last checkpoint, unless it has been, and wait for it. Raises what `Checkpoints.wait` raises."""
        state = self.program.stored(self.state)
        self.saving.at_end(state, self.position, self.last, self.unevaluated is not None)

    @property
    def ends_early(self) -> bool:
        """True if the evaluations have not become better for some time."""
        return self.evaluations is not None and self.evaluations.is_over

    def is_expected(self, error: Exception) -> bool:
        """Return True for an error of the data, of another process or of writing figures: the state is worth saving."""
        return error is self.failure or isinstance(error, UsageError | CompileError | OthersFailed)

    def _step(self, number: int, batch: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Start a step, and return its results; None if it is skipped."""
        self._keep(batch)
        if self.schedule.skips(number):
            self.state = attrs.evolve(self.state, step=self.state.step + 1)
            return None
        self.state, metrics = self.program.train_step(self.state, batch)
        return {**metrics, **scale_after(self.state)} if self.schedule.overflows else metrics

    def _next(self, stop: Stop) -> Mapping[str, Any]:
        batch = next_of_all(self.batches, stop, self.failure)
        return self.program.place(batch, self.program.step_inputs)

    def _keep(self, batch: Mapping[str, Any]) -> None:
        """Copy the state before a step, if asked: the step donates it."""
        if self.keep_before:
            self.before = (jax.tree.map(jax.numpy.copy, self.state), batch)

    def _check_state(self, step: int) -> None:
        """Raise `NotFinite` if the step has made numbers that are not finite, where the state before it is kept."""
        if self.keep_before and not are_finite(self.program.stored(self.state)):
            raise NotFinite(f"the parameters after step {step} are not finite")

    def _pauses(self, step: int) -> bool:
        """Return True if the loss of this step is read before the next step."""
        at_once = step == self.schedule.total or not self.program.overlaps
        return at_once or self.keep_before or self.schedule.evaluates(step) or self.saving.is_due(step)

    def _finish(self, step: int, metrics: Mapping[str, Any], position: Any) -> None:
        """Read the figures of a step, which waits for it. Raises `NotFinite`."""
        figures = figures_of(metrics)
        has_overflown = self._overflows(figures)
        now = perf_counter()
        seconds, self.ended = max(now - self.ended, 1e-9), now
        rate = self.throughput.per_step / seconds
        loss = figures.pop(self.loss)
        assert isinstance(loss, float), "the loss is a scalar"
        record = TrainingStep(step, loss, seconds, self.throughput.unit, rate, figures, {}, self.predicted)
        self._append(record)
        self.read = position
        self.overflowed = self.overflowed + 1 if has_overflown or not isfinite(loss) else 0
        if self.overflowed > self.schedule.overflows:
            self._show(record)
            before = f", after {self.overflowed - 1} more in a row" if self.overflowed > 1 else ""
            of_loss = f"the loss of step {step} is {loss}"
            what = f"the gradients of step {step} are not finite" if isfinite(loss) else of_loss
            raise NotFinite(f"{what}{before}")
        if not self.schedule.evaluates(step):
            self._show(record)

    def _overflows(self, figures: dict[str, Figure]) -> bool:
        """Take the state of a dynamic loss scale out of figures; return True if gradients were not finite."""
        scale, good = figures.pop(SCALE_AFTER, 0.0), figures.pop(GOOD_AFTER, 1.0)
        assert isinstance(scale, float), "a scale is a scalar"
        before, self.scale = self.scale, scale
        return good == 0 and scale <= before  # good steps count anew after a scale doubles, too

    def _append(self, record: TrainingStep) -> None:
        """Keep the figures of a step; of many steps those of the first one, of the last evaluation before the others, and of the
        last ones.
        """
        self.steps.append(record)
        if len(self.steps) > MOST_KEPT:
            middle = slice(1, MOST_KEPT // 2)
            self.steps[middle] = [each for each in self.steps[middle] if each.evaluation][-1:]

    def _pause(self, step: int, ran: bool, stopped: bool) -> bool:
        """Save and evaluate after a step, as far as they are due; the time does not count as a step's.

        ran: the step has figures. Return True if a signal has ended the evaluation. A save comes first, so that no evaluation
        delays it. The run that goes on from there evaluates again.
        """
        self.unevaluated = self.steps[-1] if ran and self.schedule.evaluates(step) else None
        if self.saving.is_due(step) and not stopped:
            state = self.program.stored(self.state)
            self.saving.save(step, state, self.position, self.last, self.unevaluated is not None)
        if self.unevaluated is not None:
            try:
                if stopped:
                    raise Stopped
                self.steps[-1] = self._evaluate(self.unevaluated)
            except Stopped:
                self._show(self.unevaluated)
                return True
        self.ended = perf_counter()
        return False

    def _evaluate(self, step: TrainingStep) -> TrainingStep:
        """Evaluate the state, keep it if it is the best, and show the figures of its step. Raises `Stopped`."""
        means = self.evaluate(self.state)
        step = attrs.evolve(step, evaluation=means)
        self.unevaluated = None
        if self.evaluations and self.evaluations.add(step.number, means) and self.evaluations.keeps:
            self.saving.save_best(step.number, self.program.stored(self.state), self.position, step)
        if self.evaluations:
            with self._noting_failure():
                self.evaluations.write()
        self._show(step)
        return step

    def _show(self, step: TrainingStep) -> None:
        """Give the figures of a step to all receivers; one that fails ends the run after the step under way."""
        for sink in self.sinks:
            with self._noting_failure(sink):
                sink.step(step)

    @contextmanager
    def _noting_failure(self, sink: Sink | None = None) -> Iterator[None]:
        """Note an error of process 0, of which the others learn before the next step. sink: gets no more figures."""
        try:
            yield
        except (UsageError, Unavailable, OSError) as error:
            self.failure = self.failure or error
            self.sinks = [each for each in self.sinks if each is not sink]
