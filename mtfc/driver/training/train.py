"""Training for hours on JAX's devices, for `mtfc train`: data, checkpoints, metrics, one process or several."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import attrs

from mtfc.backends.common import allocator
from mtfc.backends.common.devices import Unavailable, import_jax
from mtfc.compiler.diagnostics import Diagnostic
from mtfc.compiler.ir.core import Program
from mtfc.driver.data.array_files import CHECKPOINTS, About
from mtfc.driver.data.files import RemoteFolder, cache, is_remote
from mtfc.driver.data.inputs import data_inputs, draw_batch, given_parameters
from mtfc.driver.errors import ERRORS, INTERRUPTED, OK, UsageError, raised_as, say
from mtfc.driver.loading.selection import Case, Resizing, Selection, select
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import TrainOptions
from mtfc.driver.running.execution import jax_program
from mtfc.driver.running.nan_search import StepInputs, cause_in_step
from mtfc.driver.training.checkpoints import Checkpoints, NotFinite, Saving, kinds, warm_start
from mtfc.driver.training.data_interface import UserSource, changes
from mtfc.driver.training.data_sources import DataSource, check_documents, open_source
from mtfc.driver.training.hosts import Peers, watched_peers
from mtfc.driver.training.loop import DataEvaluation, Schedule, TrainLoop, check_hosts
from mtfc.driver.training.metrics import (
    EVALUATIONS_FILE,
    LINES,
    METRICS,
    Evaluations,
    FiguresOfStep,
    JsonLines,
    Lines,
    ProgressBar,
    Sink,
    TensorBoard,
    Throughput,
    UserSink,
    figures_in,
    metric_of,
)
from mtfc.driver.training.run_folder import PARTS, Mirror, RunLock
from mtfc.driver.training.same_run import check_same, facts_of, program_fingerprint, train_entries
from mtfc.driver.training.signals import Stop, Stopped, stop_by_signal
from mtfc.reports.training_report import Prediction, TrainingStep, TrainingSummary

if TYPE_CHECKING:
    from mtfc.backends.jax.jax_program import JaxProgram, TrainState

EVALUATIONS = 10
"""The number of evaluations in a run that names no other."""

MINUTES = 10.0
"""Minutes between checkpoints if no option names another time."""

PATIENCE = 10.0
"""Seconds for the batch under way when an evaluation is stopped."""

PROFILED = (3, 5)
"""The steps before a profile begins, and the steps in it."""


@attrs.frozen
class FinishedTraining:
    """The summary of a training run, and the exit status of the command.

    leads: True in process 0, which prints. cause: the equation that made numbers which are not finite. leaves_thread: a call
    still runs, such as a function that gives data.
    """

    status: int
    summary: TrainingSummary
    leads: bool
    cause: Diagnostic | None = None
    leaves_thread: bool = False


def train(options: TrainOptions, sources: Sources, to: TextIO | None) -> FinishedTraining:
    """Train the chosen model. Raises `CompileError`, `UsageError`, `Unavailable` and `FailedRequest`.

    to: the stream for lines about steps; None prints none. A terminal on standard error shows a progress bar instead.
    """
    options.check()
    selection = select(options.file, options.choice, sources, or_placement=True, or_multi_mesh=True)
    program, case = selection.program, selection.case
    check_hosts(case, options.hosts)
    if program.training is None:
        raise UsageError(
            f"model {program.name} cannot be trained: the file has no `train {program.name}` block"
        )
    if options.keep_best is not None or options.stop_early is not None:
        metric_of(options.keep_best, program)
    predicted = _predicted(options, selection, sources)
    options.hosts.join(case.mesh.devices)
    allocator.use_one_heap()
    use_compilation_cache()
    remote = RemoteFolder.open(options.folder) if options.folder and is_remote(options.folder) else None
    with watched_peers() as peers, Mirror.open(remote, peers.meet) if remote else nullcontext() as mirror:
        leads = peers.index == 0
        source = _source(options, program, program.training.accumulate, leads)
        evaluated = None
        if options.eval:
            evaluated = open_source(
                options.eval, program, 1, options.tokenizer, True, options.whole_documents
            )
        total, text = _total(options, source), case.source(program, "jax")
        if peers.count > 1:  # before the devices are used: they wait for all processes
            data = {"--data": source, "--eval": evaluated}
            check_same(peers.gather(facts_of(options, program_fingerprint(program), text, case, data)))
        evaluation = None
        if evaluated is not None:
            resizing = Resizing(options.file, options.choice, sources, selection)
            evaluation = DataEvaluation.of(evaluated, options.eval_batches, resizing, leads)
        on_devices = jax_program(text)
        trainer = Trainer(
            options, program, case, predicted, to, on_devices, source, evaluation, total, peers, mirror
        )
        return trainer.run()


def use_compilation_cache() -> None:
    """Let JAX keep compiled programs between runs, unless the user has chosen a folder or none."""
    config = import_jax().config
    if config.jax_compilation_cache_dir is None and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        config.update("jax_compilation_cache_dir", str(cache() / "jax"))
        config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def _predicted(options: TrainOptions, selection: Selection, sources: Sources) -> Prediction | None:
    """Return the predicted time of a step on the target, if one is named."""
    if options.target is None:
        return None
    from mtfc.driver.simulate import simulate_case

    found = simulate_case(selection.case, selection.program, selection.hardware, options.target, sources)
    return Prediction(found.step.seconds, found.step.ideal)


@attrs.frozen
class Trainer:
    """A training run: the program on its devices, the data, and where results go."""

    options: TrainOptions
    program: Program
    case: Case
    predicted: Prediction | None
    to: TextIO | None
    on_devices: JaxProgram
    source: DataSource
    evaluation: DataEvaluation | None
    total: int
    peers: Peers
    mirror: Mirror | None = None

    @property
    def folder(self) -> Path | None:
        """The folder of the run on this machine."""
        if self.mirror is not None:
            return self.mirror.path
        return Path(self.options.folder) if self.options.folder else None

    @property
    def leads(self) -> bool:
        """Return True in the process that prints."""
        return self.peers.index == 0

    def run(self) -> FinishedTraining:
        """Train, from the last checkpoint if there is one, and save at the end."""
        options, program, training = self.options, self.on_devices, self.program.training
        assert training is not None
        adapts, every = training.loss_scale is not None and training.loss_scale.is_dynamic, None
        if self.evaluation is not None:
            every = options.eval_every or max(1, self.total // EVALUATIONS)
        schedule = Schedule(self.total, every, options.skipped, options.bad_steps if adapts else 0)
        throughput = Throughput.of(program.abstract("inputs"), training.accumulate)
        with ExitStack() as stack:
            checkpoints = stack.enter_context(self._checkpoints()) if options.folder else None
            state, start, about = self._state(checkpoints)
            unevaluated = self._unevaluated(about) if about is not None else None
            allocator.keep_memory()  # not before: opening a checkpoint gives back what it takes beside the arrays
            first = int(state.step)
            saving = self._saving(checkpoints, first)
            batches = stack.enter_context(closing(self.source.batches(program.share, options.seed, start)))
            stop = stack.enter_context(stop_by_signal(Stop(options.grace, self.peers, saving.standing)))
            after = first - (unevaluated is not None)
            sinks = [stack.enter_context(closing(each)) for each in self._sinks(about, after)]
            loop = TrainLoop(
                program,
                state,
                batches,
                schedule,
                training.minimize,
                throughput,
                self.predicted,
                partial(self._evaluate, stop),
                saving,
                sinks,
                self._evaluations(first),
                options.debug_nans,
                unevaluated=unevaluated,
            )
            if checkpoints is not None and loop.evaluations is not None and loop.evaluations.keeps:
                checkpoints.best = loop.evaluations.best
            status = self._train(loop, stop, saving, first)
            cause = self._cause(loop) if status == ERRORS and loop.before is not None else None
            is_evaluated = loop.last is not None and loop.last.number == int(loop.state.step)
            ended = self._evaluated_at_once(loop, stop) if status == OK and not is_evaluated else {}
        mesh = dict(self.case.mesh.axes)
        summary = TrainingSummary(loop.steps, first, self.case.name, mesh, saving.last, ended, saving.best)
        return FinishedTraining(status, summary, self.leads, cause, stop.leaves_thread)

    def _train(self, loop: TrainLoop, stop: Stop, saving: Saving, first: int) -> int:
        """Run the loop and return the exit status."""
        options = self.options
        try:
            try:
                is_done = loop.run(stop)
            finally:
                stop.answered.set()
            if int(loop.state.step) > first:
                loop.save_at_end()
        except NotFinite as error:
            self._say(f"{error}: {saving.where()}")
            if loop.read is not None:
                self._say(f"its batch: {self.source.places(loop.read, options.seed)}")
            self._say(remedy(int(loop.state.step) if not loop.steps else loop.steps[-1].number, self.options))
            return ERRORS
        except Exception as error:
            if loop.is_expected(error) and loop.steps:  # all processes know of it
                loop.save_at_end()
                self._say(f"after step {int(loop.state.step)}: {saving.where()}")
            raise
        if not is_done:
            self._say(f"stopped after step {int(loop.state.step)}: {saving.where()}")
        elif int(loop.state.step) < self.total:
            assert loop.evaluations is not None
            name, best = loop.evaluations.metric.name, loop.evaluations.best
            since = (
                f"the best {name} is that of step {best}" if best else f"no evaluation has a finite {name}"
            )
            self._say(f"ended early after step {int(loop.state.step)}: {since}")
        elif int(loop.state.step) == first:
            self._say(
                f"step {self.total} is reached already: train longer with --steps, or start over with --fresh"
            )
        return OK if is_done else INTERRUPTED

    def _cause(self, loop: TrainLoop) -> Diagnostic | None:
        """Return the place in the source that made the first number which is not finite, in the last step."""
        assert loop.before is not None
        state, batch = loop.before
        kinds = {"params": state.params, "state": state.optimizer, self.on_devices.step_inputs: batch}
        parameters, optimizer, inputs = (self.on_devices.on_host(x, kind) for kind, x in kinds.items())
        step = StepInputs(parameters, optimizer, inputs, int(state.step))
        return cause_in_step(self.program, self.case, step, self._say)

    @contextmanager
    def _checkpoints(self) -> Iterator[Checkpoints]:
        """Open the folder; with `--fresh` earlier results are moved aside."""
        folder, mirror = self.folder, self.mirror
        assert folder is not None
        with ExitStack() as stack:
            lock = None
            if self.leads:
                lock = stack.enter_context(mirror.leased() if mirror else RunLock.hold(folder))
                if self.options.fresh:
                    mirror.move_aside() if mirror else _move_aside(folder)
                if mirror is not None:
                    mirror.clean()
            # process 0 may wait a minute for the lock, longer than a collective of JAX does
            self.peers.gather(None)
            if mirror is not None:
                lock = None
                mirror.fetch()
            place = folder / CHECKPOINTS
            yield stack.enter_context(Checkpoints.open(place, self.options.keep, lock, mirror))

    def _saving(self, checkpoints: Checkpoints | None, first: int) -> Saving:
        """Return the schedule of the checkpoints, with the record that all of them share."""
        options = self.options
        arrays = kinds(self.on_devices.abstract_state)
        about = About(
            self.program.name,
            program_fingerprint(self.program),
            first,
            options.seed,
            arrays,
            sums={},
            entries=train_entries(self.program, options.choice.settings),
        )
        minutes = options.save_minutes or (None if options.save_every else MINUTES)
        return Saving(checkpoints, about, options.save_every, minutes)

    def _state(self, checkpoints: Checkpoints | None) -> tuple[TrainState, Any, About | None]:
        """Return the state to start from, the position in the data, and the record of a checkpoint that goes on."""
        options, on_devices = self.options, self.on_devices
        if checkpoints is not None and checkpoints.steps:
            step, abstract = checkpoints.steps[-1], on_devices.abstract_state
            if options.warm_start is not None and not checkpoints.fits(step, abstract):
                started = warm_start(options.warm_start, on_devices, options.seed, self._say)
                self._check_is_newer(int(started[0].step), checkpoints)
                return *started, None
            if options.params is not None:
                self._say(
                    f"--params {options.params} is not read: the checkpoint in --dir comes first;"
                    " --fresh starts over from --params"
                )
            stored, about = checkpoints.restore(step, abstract)
            state = on_devices.restored(stored)
            self._say(f"going on from step {step}, {checkpoints.name(step)}")
            if about.fingerprint != program_fingerprint(self.program):
                entries = train_entries(self.program, options.choice.settings)
                found = changes(about.entries or entries, entries)
                self._say(
                    f"the model or its `train` block has changed since this checkpoint{found and f': {found}'}"
                )
            if about.seed != options.seed:
                self._say(f"the seed was {about.seed} before this checkpoint, and is {options.seed} now")
            return state, about.data, about
        if options.warm_start is not None:
            return *warm_start(options.warm_start, on_devices, options.seed, self._say), None
        given = given_parameters(options.params, options.params_partial, options.seed, self.program)
        return on_devices.state_of(on_devices.placed_params(options.seed, given)), None, None

    def _check_is_newer(self, step: int, checkpoints: Checkpoints) -> None:
        """Raise `UsageError` if a warm start begins before the newest checkpoint in the folder, which would stay the newest."""
        newest = checkpoints.steps[-1]
        if step < newest:
            raise UsageError(
                f"--warm-start {self.options.warm_start} begins at step {step}, and --dir has {checkpoints.name(newest)}: give"
                " another --dir, or start over with --fresh, which moves its results aside"
            )

    def _unevaluated(self, about: About) -> TrainingStep | None:
        """Return the figures of the last step if its evaluation was cut off: then the figures of its evaluation are not there."""
        if about.unevaluated is None or self.evaluation is None:
            return None
        log = self._log()
        figures = figures_in(Path(log), about.step) if self.leads and log is not None else ()
        done = any(name.startswith("eval/") for name in figures)
        return None if any(self.peers.gather(done)) else TrainingStep(**about.unevaluated)

    def _is_own(self, about: About | None, figures: FiguresOfStep) -> bool:
        """Return True if a file has figures of the run that goes on from a checkpoint: then the loss of its step is the same."""
        if self.options.log is None or about is None:
            return self.options.log is None
        line = figures.get(about.step)
        if line is None or about.loss is None:
            return about.unevaluated is not None or about.loss is None
        return bool(line.get("loss") == about.loss)

    def _log(self) -> str | None:
        """Return the path of the figures."""
        return self.options.log or (str(self.folder / METRICS) if self.folder else None)

    def _evaluated_at_once(self, loop: TrainLoop, stop: Stop) -> dict[str, float]:
        """Return the evaluation of a run that has ended before, or whose last step was skipped."""
        try:
            return self._evaluate(stop, loop.state) if self.evaluation is not None else {}
        except Stopped:
            return {}

    def _evaluate(self, stop: Stop, state: TrainState) -> dict[str, float]:
        """Return the means of the outputs; with `average` in the `train` block also those of the averaged parameters.

        Raises `Stopped`. One process leaves an evaluation that takes long behind; several ones agree after each batch.
        """
        if self.peers.count > 1:
            return self._figures_of(state, stop)
        return stop.wait(lambda: self._figures_of(state, stop), PATIENCE)

    def _figures_of(self, state: TrainState, stop: Stop) -> dict[str, float]:
        """Return the means of the outputs for the parameters, and for their averages if the file asks for these."""
        assert self.evaluation is not None and self.program.training is not None
        whole = self.on_devices.whole_params
        means = self.evaluation.means(whole(state.params), stop)
        if self.program.training.average is None:
            return means
        averaged = self.evaluation.means(whole(self.on_devices.averaged(state)), stop)
        return {**means, **{f"averaged_{name}": value for name, value in averaged.items()}}

    def _evaluations(self, first: int) -> Evaluations | None:
        """Return the evaluations before this run, if the best of them counts. Raises `UsageError`."""
        keep, early = self.options.keep_best, self.options.stop_early
        if keep is None and early is None:
            return None
        metric = metric_of(keep, self.program)
        return Evaluations.read(metric, early, keep is not None, self.folder, first, self.leads)

    def _sinks(self, about: About | None, after: int) -> Iterator[Sink]:
        """Open the receivers of figures: a profiler in each process, the others in process 0 alone.

        about: the checkpoint from which the run goes on. after: the last step whose figures stay.
        """
        options = self.options
        if options.profile:
            yield ProfiledSteps(options.profile, *PROFILED)
        if not self.leads:
            return
        log = self._log()
        if log is not None:
            remote = f"{self.mirror.remote.url}/{PARTS}" if self.mirror and not options.log else None
            yield JsonLines.open(Path(log), after, partial(self._is_own, about), remote)
            if self.mirror is not None:
                self.mirror.send_figures()  # without those that were dropped
        if options.tensorboard is not None:
            here = str(self.folder.resolve()) if self.folder else None
            run = self.mirror.remote.url if self.mirror else here
            yield TensorBoard.open(Path(options.tensorboard), after, run)
        if options.metrics is not None:
            yield UserSink.open(options.metrics)
        every = options.show_every or max(1, self.total // LINES)
        if sys.stderr.isatty():
            yield ProgressBar.of(self.total, after, every)
        elif self.to is not None:
            yield Lines(self.to, self.total, every)

    def _say(self, message: str) -> None:
        if self.leads:
            say(message)


def _source(options: TrainOptions, program: Program, accumulate: int, leads: bool) -> DataSource:
    """Open the data of training, or draw one batch."""
    if options.data is None:
        if options.whole_documents:
            raise UsageError("--whole-documents goes with --data, which has documents")
        if leads:
            say(f"no --data: one batch of inputs is drawn from seed {options.seed}")
        forward = program.function("forward")
        batch = draw_batch(forward, options.seed)[0]
        return UserSource("the drawn batch", lambda: repeat(batch), data_inputs(forward), accumulate)
    source = open_source(
        options.data, program, accumulate, options.tokenizer, whole_documents=options.whole_documents
    )
    check_documents("--data", source, options.whole_documents)
    if leads:
        say(source.description())
    return source


def _total(options: TrainOptions, source: DataSource) -> int:
    """Return the number of the last step: `--steps`, or so many passes over the data, by default one."""
    if options.steps is not None:
        return options.steps
    if source.steps_per_epoch is None:
        raise UsageError("the length of the data is unknown: say with --steps how long to train")
    return source.steps_per_epoch * (options.epochs or 1)


def remedy(step: int, options: TrainOptions) -> str:
    """Return what a user can do about a loss that is not finite: a rerun comes to the same batch."""
    ways = [] if options.debug_nans else ["--debug-nans shows the line that makes it"]
    ways += [f"--skip-steps {step} leaves out the batch of step {step}"] if options.data else []
    return f"a rerun comes to the same step: {'; '.join(ways) or 'lower the learning rate'}"


def _move_aside(folder: Path) -> None:
    """Rename the results of an earlier run in the folder, so that nothing is lost."""
    for name in (CHECKPOINTS, METRICS, EVALUATIONS_FILE):
        place = folder / name
        if place.exists():
            number = next(i for i in range(1, 10**6) if not (folder / f"{name}.{i}").exists())
            place.rename(folder / f"{name}.{number}")
            say(f"--fresh: {place} is now {folder / f'{name}.{number}'}")


@attrs.define
class ProfiledSteps(Sink):
    """Starts JAX's profiler after some steps, and stops it after some more. Raises `Unavailable` if it cannot write.

    before, during: the numbers of these steps.
    """

    folder: str
    before: int
    during: int
    seen: int = 0
    is_running: bool = False

    def step(self, _: object) -> None:
        """Count a step, and start or stop the profiler after it."""
        self.seen += 1
        if self.seen == self.before:
            with self._named():
                import_jax().profiler.start_trace(self.folder)
            self.is_running = True
        elif self.is_running and self.seen == self.before + self.during:
            self._stop()

    def close(self) -> None:
        """Stop the profiler if the run ends within the steps."""
        if self.is_running:
            self._stop()
        elif self.seen < self.before:
            say(f"--profile begins after step {self.before}, and the run was shorter")

    def _stop(self) -> None:
        """Stop the profiler, and say where the profile is."""
        self.is_running = False
        with self._named(), _forgotten_on_failure():
            import_jax().profiler.stop_trace()
        say(f"the profile of {self.seen - self.before} steps is in {self.folder}")

    def _named(self) -> AbstractContextManager[None]:
        """Report faults of writing the profile as a lack of the environment."""
        what = f"cannot write a profile to {self.folder}"
        return raised_as(
            Unavailable, what, RuntimeError, ValueError, OSError
        )  # RESOURCE_EXHAUSTED: a full disk


@contextmanager
def _forgotten_on_failure() -> Iterator[None]:
    """Let JAX forget a profile that it cannot write: JAX keeps the profile, has no function for this, and starts no other."""
    from jax._src import profiler

    try:
        yield
    except Exception:
        profiler._profile_state.reset()  # type: ignore[no-untyped-call]
        raise
