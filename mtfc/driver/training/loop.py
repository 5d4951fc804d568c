"""The loop of training, and evaluation.

Evaluation: the means of a model's outputs over all rows of some data, while a run trains and for `mtfc eval`.

The rows after the last whole batch take a second compilation. Each batch weighs by its number of rows; an output that is a mean
over a count of the data, such as the tokens of a mask, weighs by that count.

The loop of training: steps, and after some of them an evaluation or a checkpoint.

The next batch is placed while a step runs, and a loss is read while the next step runs, so devices never wait for the host. The
position in the data is taken before the next batch is read ahead, so that a checkpoint continues with the right batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from math import isfinite
from threading import Event
from time import perf_counter
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from mtfc.backends.common.devices import Unavailable, import_jax, jax
from mtfc.compiler.activity import doing
from mtfc.compiler.analysis.output_weights import with_weights
from mtfc.compiler.diagnostics import CompileError
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.training import LOSS_SCALE
from mtfc.compiler.passes.autodiff.update_equations import GOOD_STEPS
from mtfc.driver.data.inputs import data_inputs, given_parameters
from mtfc.driver.errors import UsageError, say
from mtfc.driver.loading.selection import Case, LayoutOnMesh, Resizing, select
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import EvalOptions
from mtfc.driver.running.execution import jax_program
from mtfc.driver.running.run import weighted_mean
from mtfc.driver.training.checkpoints import NotFinite, Saving, are_finite
from mtfc.driver.training.data_interface import UserSource
from mtfc.driver.training.data_sources import DataSource, FileSource, check_documents, open_source
from mtfc.driver.training.hosts import Hosts, watched_peers
from mtfc.driver.training.metrics import Sink, Throughput
from mtfc.driver.training.same_run import check_same, facts_of, program_fingerprint
from mtfc.driver.training.signals import Stop, Stopped
from mtfc.reports.array_summary import Figure, is_figure
from mtfc.reports.training_report import EvaluationSummary, Prediction, TrainingStep

if TYPE_CHECKING:
    from mtfc.backends.jax.jax_program import JaxProgram, TrainState
    from mtfc.driver.training.data_interface import BatchIterator
    from mtfc.driver.training.metrics import Evaluations


Means = dict[str, float]
"""The means of the outputs by name."""


def check_hosts(case: Case, hosts: Hosts) -> None:
    """Raise `UsageError` for a placement or a layout of several meshes in several processes."""
    if hosts.are_several and not isinstance(case, LayoutOnMesh):
        case.refuse({"--coordinator or --distributed": True}, ", which runs in one process")


@attrs.frozen(eq=False)
class Forward:
    """The forward pass on devices.

    rows: the number of rows of a batch. counts: output that is a mean -> output with its count.
    """

    on_devices: JaxProgram
    rows: int
    counts: Mapping[str, str]

    @classmethod
    def of(cls, program: Program, case: Case, rows: int) -> Forward:
        counted, counts = with_weights(program)
        return cls(jax_program(case.forward_source(counted, "jax")), rows, counts)

    def batch(self, params: Mapping[str, Any], batch: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
        """Return the mean and the weight of each output with at most one dimension. params: as `placed` returns them."""
        jax = import_jax()
        jnp = jax.numpy
        outputs = self.on_devices.forward(params, batch)
        found = {name: jnp.mean(x.astype(jnp.float32)) for name, x in outputs.items() if x.ndim < 2}
        numbers = {name: float(x) for name, x in jax.device_get(found).items()}
        weights = {name: numbers[count] for name, count in self.counts.items()}
        names = [name for name in numbers if name not in self.counts.values()]
        return {name: (numbers[name], weights.get(name, float(self.rows))) for name in names}

    def placed(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return whole parameters as this program places them: the layout of fewer rows may lack rules."""
        shardings = {name: each.sharding for name, each in self.on_devices.abstract("params").items()}
        moved = import_jax().device_put(dict(params), shardings)
        return self.on_devices.place(moved, "params")


@attrs.frozen(eq=False)
class DataEvaluation:
    """Data to evaluate on, and the forward pass for its batches.

    rest: the forward pass of the rows after the last whole batch, and these rows. most: the most batches to evaluate. smaller:
    the forward passes of smaller batches that a function has given, by their number of rows. compiled: set once `forward` and
    `rest` are.
    """

    source: DataSource
    forward: Forward
    rest: tuple[Forward, Mapping[str, Any]] | None
    most: int | None
    resizing: Resizing
    smaller: dict[int, Forward] = attrs.field(factory=dict)
    compiled: Event = attrs.field(factory=Event)

    @classmethod
    def of(cls, source: DataSource, most: int | None, resizing: Resizing, leads: bool) -> DataEvaluation:
        """Return the evaluation on some data. Raises `CompileError`, `UsageError` and `Unavailable`."""
        program, case = resizing.selection.program, resizing.selection.case
        rows = 1
        if isinstance(source, FileSource):
            rows = source.examples.dim.size
        elif isinstance(source, UserSource) and source.examples:
            rows = source.examples[0].rows
        forward = Forward.of(program, case, rows)
        rest = _rest(source, resizing, most, leads) if isinstance(source, FileSource) else None
        if leads:
            say(f"evaluation: {_described(source, rest is not None)}")
        return cls(source, forward, rest, most, resizing)

    def means(self, params: Mapping[str, Any], stop: Stop) -> Means:
        """Return the means over the data, or over its first batches. params: whole arrays. Raises `Stopped`."""
        if stop.peers.count > 1 and not self.compiled.is_set():
            self._compile(stop)
        placed, parts = dict[Forward, dict[str, Any]](), []
        for forward, batch in self._batches(stop):
            placed[forward] = placed.get(forward) or forward.placed(params)
            parts.append(forward.batch(placed[forward], batch))
        if not parts:
            raise UsageError(f"these data do not fill one batch ({self.source.description()}): give more")
        return {name: weighted_mean([part[name] for part in parts]) for name in parts[0]}

    def _compile(self, stop: Stop) -> None:
        """Compile before the first batch, which all processes take or none. Raises `Stopped`."""

        def compile_all() -> None:
            for each in (self.forward, *(self.rest or ())[:1]):
                each.on_devices.compile_forward()

        stopped = False
        try:
            stop.wait(compile_all)
        except Stopped:
            stopped = True
        if any(stop.peers.gather(stopped or stop.is_requested)):
            raise Stopped
        self.compiled.set()

    def _batches(self, stop: Stop) -> Iterator[tuple[Forward, Mapping[str, Any]]]:
        """Yield each batch with the forward pass for its size; last the rows after the last whole batch."""
        number = 0
        with closing(self.source.batches(self.forward.on_devices.share, None)) as batches:
            for batch in islice(iter_batches(batches, stop), self.most):
                number += 1
                with doing(f"batch {number}"):
                    yield self._forward_of(batch, number), batch
        if self.rest is not None and (self.most is None or number < self.most):
            yield self.rest

    def _forward_of(self, batch: Mapping[str, Any], number: int) -> Forward:
        """Return the forward pass of a batch, which may have few rows if a function makes it. Raises `UsageError`."""
        source = self.source
        rows = source.rows_of(batch) if isinstance(source, UserSource) and not source.is_sharded else None
        if rows is None or rows == self.forward.rows:
            return self.forward
        assert isinstance(source, UserSource)
        if rows not in self.smaller:
            dim = attrs.evolve(source.examples[0].type.dims[0], size=rows)
            reason = self.resizing.refusal(dim, [each.name for each in source.examples])
            if reason is not None:
                raise UsageError(
                    f"item {number} of {source.name} has {rows} row{'s' * (rows != 1)}, and {reason}"
                )
            program = self.resizing.program(dim)
            self.smaller[rows] = Forward.of(program, self.resizing.case(program), rows)
        return self.smaller[rows]


def _rest(
    source: FileSource, resizing: Resizing, most: int | None, leads: bool
) -> tuple[Forward, Mapping[str, Any]] | None:
    """Return the forward pass of the rows after the last whole batch, and these rows. Raises `UsageError`."""
    if not source.rest or (most is not None and most <= source.whole_steps):
        return None
    dim = attrs.evolve(source.examples.dim, size=source.rest)
    reason = resizing.refusal(dim, [each.name for each in source.examples.inputs])
    if reason is not None:
        if not source.whole_steps:
            raise UsageError(f"{source.examples.name} has fewer rows than a batch, and {reason}")
        if leads:
            say(f"{source.examples.name}: the last {dim.size} rows are left out: {reason}")
        return None
    program = resizing.program(dim)
    forward = Forward.of(program, resizing.case(program), dim.size)
    return forward, source.rest_batch(forward.on_devices.share, data_inputs(program.function("forward")))


def _described(source: DataSource, has_rest: bool) -> str:
    """Return the data of an evaluation in words: the numbers of examples, whole batches, and rows after them."""
    if not isinstance(source, FileSource):
        return source.description()
    steps = source.whole_steps
    rest = f"{' and ' if steps else ''}one of {source.rest} row{'s' * (source.rest != 1)}" if has_rest else ""
    batches = f"{steps} batch{'es' * (steps != 1)}" if steps else ""
    return f"{source.examples.name}: {source.examples.count} examples, {batches}{rest}"


def evaluate(options: EvalOptions, sources: Sources) -> EvaluationSummary | None:
    """Evaluate the parameters of a file or of a run; return the means in process 0, None in others.

    Raises `CompileError`, `UsageError`, `Unavailable` and `FailedRequest`.
    """
    options.hosts.check()
    selection = select(options.file, options.choice, sources, or_placement=True, or_multi_mesh=True)
    check_hosts(selection.case, options.hosts)
    if options.hosts.are_several:
        options.hosts.join(selection.case.mesh.devices)
    program, case = selection.program, selection.case
    with watched_peers() as peers:
        given = given_parameters(
            options.params, options.params_partial, options.seed, program, options.averages
        )
        resizing = Resizing(options.file, options.choice, sources, selection)
        source = open_source(options.data, program, 1, options.tokenizer, True, options.whole_documents)
        check_documents("--data", source, options.whole_documents)
        if peers.count > 1:  # before the devices are used: they wait for all processes
            text = case.forward_source(program, "jax")
            facts = facts_of(options, program_fingerprint(program), text, case, {"--data": source})
            check_same(peers.gather(facts))
        evaluation = DataEvaluation.of(source, options.batches, resizing, peers.index == 0)
        on_devices = evaluation.forward.on_devices
        params = on_devices.whole_params(on_devices.placed_params(options.seed, given))
        means = evaluation.means(params, Stop(peers=peers))
        if not means:
            raise UsageError(f"model {program.name} has no output with at most one dimension")
    summary = EvaluationSummary(means, case.name, dict(case.mesh.axes))
    return summary if peers.index == 0 else None


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
