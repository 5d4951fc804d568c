"""Run or train a model on a backend, batch after batch, for `mtfc run`.

Ctrl-C ends a training after the running step, which donates its parameters and returns new ones: an interrupt in between would
lose both. A loss that is not finite ends the run, too. Then the last good parameters are those that gave the last finite loss:
the update of that step led to the loss that is not finite.

On JAX the step has donated these parameters, so that both need memory once. Keeping the arrays of every step would take their
memory twice more. So the host keeps a copy from time to time, and to recover, the steps since that copy run again: the same
computation on the same data.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from math import fsum, isfinite
from threading import current_thread, main_thread
from time import monotonic
from typing import Any

import attrs
import numpy as np

from mtfc.backends.common import allocator
from mtfc.backends.registry import default_backend
from mtfc.compiler.activity import doing, each_of
from mtfc.compiler.analysis.output_weights import with_weights
from mtfc.compiler.diagnostics import Diagnostic
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.types import Dim
from mtfc.driver.data.array_files import Array, Arrays, save_arrays
from mtfc.driver.data.files import check_apart, check_writable
from mtfc.driver.data.inputs import Batches, draw_batch, given_parameters, joined_axis, read_batches
from mtfc.driver.errors import ERRORS, INTERRUPTED, OK, UsageError, say
from mtfc.driver.loading.selection import Case, Resizing, select
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import RunOptions
from mtfc.driver.running.execution import Session, loaded
from mtfc.driver.running.nan_search import StepInputs, cause_in_step
from mtfc.reports.array_summary import StepRecord, finite, is_figure, summaries_of, summaries_text


@attrs.frozen
class FinishedRun:
    """The results of a run, and the exit status of the command.

    texts: the texts that the model wrote, if there were prompts. cause: the equation that made numbers which are not finite.
    is_wrong: True if collectives were left out.
    """

    status: int
    backend: str
    case: Case
    steps: Sequence[StepRecord]
    results: BatchResults
    texts: Sequence[str] = ()
    cause: Diagnostic | None = None
    is_wrong: bool = False

    def record(self) -> dict[str, Any]:
        """Return the JSON record."""
        return {
            "backend": self.backend,
            "layout": self.case.name,
            "mesh": dict(self.case.mesh.axes),
            "steps": finite(self.steps),
            "outputs": self._summaries(),
            **({"texts": list(self.texts)} if self.texts else {}),
            **({"without_collectives": True} if self.is_wrong else {}),
        }

    def report(self) -> str:
        """Return the texts, or a line for each output."""
        if self.is_wrong:
            return f"{WRONG}\n{summaries_text(self._summaries())}"
        return BETWEEN.join(self.texts) if self.texts else summaries_text(self._summaries())

    def _summaries(self) -> dict[str, dict[str, Any]]:
        """Summarize each output; the mean of a scalar output weighs each batch by its number of rows."""
        return summaries_of(self.results.joined(), self.results.weighted())


BETWEEN = f"\n{'-' * 80}\n"
"""The line between two texts."""


def run(options: RunOptions, sources: Sources, show: Callable[[StepRecord], None]) -> FinishedRun:
    """Run or train the chosen model, and save the results if asked. Raises `CompileError`, `UsageError` and `Unavailable`.

    show: receives some of the training steps as they end.
    """
    _check_prompts(options)
    _check_files(options)
    selection = select(options.file, options.choice, sources, or_placement=True, or_multi_mesh=True)
    program, case = selection.program, selection.case
    backend = options.backend or default_backend()
    options = attrs.evolve(options, backend=backend)
    _check_training(options, program)
    _check_collectives(options, has_mesh=bool(selection.cases))
    resizing = Resizing(options.file, options.choice, sources, selection)
    accumulate = program.training.accumulate if options.train and program.training else 1
    batches, evaluation = _data(options, program, resizing, accumulate)
    given = given_parameters(options.params, options.params_partial, options.seed, program, options.averages)
    if options.train:
        allocator.keep_memory()
    module = _module(case, program, options)
    with doing("drawing parameters"):
        session = Session.start(module, options.seed, given)
    session.smaller = _smaller({options.data: batches, options.eval: evaluation}, options, resizing)
    if options.train:
        kept = resizing if options.debug_nans else None
        training = TrainingRun(session, program, batches, evaluation, accumulate, options.save, show, kept)
        status = training.run(options.steps or -(-batches.count // accumulate))
        found, wrong = training.results, options.without_collectives
        return FinishedRun(status, backend, case, training.steps, found, cause=training.cause, is_wrong=wrong)
    steps, results = evaluate(session, program, batches, options.steps or batches.count)
    texts = options.generation.texts(results.joined(), program) if options.generation else ()
    if options.save is not None:
        save_arrays(options.save, results.joined())
    wrong = options.without_collectives
    return FinishedRun(OK, backend, case, steps, results, texts, is_wrong=wrong)


def _check_training(options: RunOptions, program: Program) -> None:
    """Raise `UsageError` for a model that cannot be trained, and for options of training without it."""
    if options.train and program.training is None:
        raise UsageError(
            f"model {program.name} cannot be trained: the file has no `train {program.name}` block"
        )
    if options.eval and not options.train:
        raise UsageError("--eval goes with --train; a model without training runs on --data")
    if options.debug_nans and not options.train:
        raise UsageError(
            "--debug-nans goes with --train: it looks for the cause of a loss that is not finite"
        )


def _check_prompts(options: RunOptions) -> None:
    """Raise `UsageError` for options that exclude prompts."""
    if options.generation is None:
        return
    if options.train or options.data or options.steps:
        others = "--train" if options.train else "--data" if options.data else "--steps"
        raise UsageError(f"--prompt and {others}: a prompt is the input of one batch, without training")


def _check_collectives(options: RunOptions, has_mesh: bool) -> None:
    """Say that numbers without collectives are wrong. Raises `UsageError` where they would be kept, or cannot be had."""
    if not options.without_collectives:
        return
    if options.backend != "jax" or not has_mesh:
        raise UsageError(
            "--without-collectives takes --backend jax and a layout of one mesh: it measures what devices of a mesh send"
        )
    kept = "--save" if options.save is not None else "--eval" if options.eval is not None else None
    if options.generation is not None or kept is not None:
        raise UsageError(f"--without-collectives and {kept or '--prompt'}: the numbers are wrong")
    say(WRONG)


WRONG = "the collectives are left out: ALL NUMBERS ARE WRONG, only times are of use"


def _check_files(options: RunOptions) -> None:
    """Raise `UsageError` if the result cannot be written, or would replace an input; training may replace its `--params`."""
    inputs = {"FILE": options.file, "--data": options.data, "--eval": options.eval}
    if not options.train:
        inputs["--params"] = options.params
    check_apart({"--save": options.save}, inputs)
    check_writable(options.save)


def _module(case: Case, program: Program, options: RunOptions) -> Any:
    """Return the module, ready to run."""
    text, backend = _source(case, program, options), str(options.backend)
    if options.without_collectives:
        from mtfc.backends.jax.local_collectives import local

        text = local(text)
    return loaded(text, backend)


def _source(case: Case, program: Program, options: RunOptions) -> str:
    """Return the text of the module, for an evaluation with the counts that outputs are means over."""
    backend = str(options.backend)
    if not options.train:
        return case.forward_source(with_weights(program)[0], backend)
    if options.eval is not None:
        return case.as_near().source(with_weights(program)[0], backend)
    return case.source(program, backend)


def _data(
    options: RunOptions, program: Program, resizing: Resizing, accumulate: int
) -> tuple[Batches, Batches | None]:
    """Read or draw the data of the model, and read those of an evaluation. Raises `CompileError` and `UsageError`."""
    forward = program.function("forward")
    joining = partial(resizing.refusal, joined=True)
    evaluation = read_batches(options.eval, forward, joining) if options.eval else None
    if options.generation is not None:
        prompts = options.generation.batch(program, options.seed)
        if options.params is None:
            say(f"no --params: the text is that of parameters drawn from seed {options.seed}")
        return prompts, None
    if options.data is None:
        say(f"no --data: the inputs are drawn from seed {options.seed}")
        return draw_batch(forward, options.seed), evaluation
    batches = read_batches(options.data, forward, resizing.refusal if options.train else joining)
    if accumulate > 1 and batches.rest:
        batches = _whole(options.data, batches, accumulate)
    if not options.train and options.steps and options.steps > batches.count:
        plural = "" if batches.count == 1 else "es"
        raise UsageError(f"--steps {options.steps}: {options.data} holds {batches.count} batch{plural}")
    return batches, evaluation


def _whole(path: str, batches: Batches, accumulate: int) -> Batches:
    """Leave out a smaller last batch: the batches of a step must have equal sizes."""
    rows = f"{batches.rest} row{'s'[: batches.rest - 1]}"
    takes = f"with `accumulate` a step takes {accumulate} batches of {batches.size} rows"
    if batches.count == 1:
        raise UsageError(f"{path} holds {rows}, and {takes}")
    say(f"{path}: the last {rows} are left out: {takes}")
    return batches.whole()


def _smaller(
    data: Mapping[str | None, Batches | None], options: RunOptions, resizing: Resizing
) -> dict[Dim, Any]:
    """Return modules for the smaller last batches. data: batches by their file."""
    modules: dict[Dim, Any] = {}
    for path, batches in data.items():
        dim = batches.smaller(batches.count - 1) if batches else None
        if dim is None or dim in modules:
            continue
        program = resizing.program(dim)
        case = resizing.case(program)
        given_up = case.layout != resizing.selection.case.layout
        rest = f"{path}: the model is compiled a second time, for a last batch of {dim.size} row{'s'[: dim.size - 1]}"
        say(f"{rest}, and the layout's rules that do not divide it are left out" if given_up else rest)
        modules[dim] = _module(case, program, options)
    return modules


REPORTS = 20
"""Maximum number of steps that the text of a training run shows."""

SHARE = 0.03
"""Copying takes at most this share of the time."""


@attrs.define
class TrainingRun:
    """A training run under way: the finished steps, and the last outputs.

    accumulate: the number of batches of a step; of several ones none is smaller. save: the path of the results, if any. show:
    receives some of the steps. resizing: compiles the model for the search for the cause of numbers that are not finite, if
    there is one. proven, new: copies of the parameters and the optimizer state before a step, on the host, without its batch. The
    loss after `proven` was finite. due: the time of the next copy.
    """

    session: Session
    program: Program
    batches: Batches
    evaluation: Batches | None
    accumulate: int
    save: str | None
    show: Callable[[StepRecord], None]
    resizing: Resizing | None = None
    steps: list[StepRecord] = attrs.field(factory=list)
    results: BatchResults = attrs.field(factory=lambda: BatchResults(({},)))
    cause: Diagnostic | None = None
    proven: StepInputs | None = None
    new: StepInputs | None = None
    due: float = 0.0

    def _train(self, number: int) -> dict[str, Array]:
        """Run training step `number`, counted from 0, and return its outputs."""
        batch = self.batches.step(number, self.accumulate)
        return self.session.train(batch, number, self.batches.smaller(number))

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
            self._keep(i)
            start = time.perf_counter()
            outputs = self._train(i)
            self.steps.append(
                {**step_of(i + 1, start, outputs, self.program), **reported(outputs, self.program)}
            )
            self.results = BatchResults((outputs,))
            if self.is_finite:
                self.proven, self.new = self.new or self.proven, None

    def _show(self) -> None:
        """Evaluate after a step if there are data for it and the loss is finite, and show the step."""
        evaluation = self.evaluation
        if evaluation and self.is_finite:
            self.results = evaluate(self.session, self.program, evaluation, evaluation.count)[1]
            self.steps[-1]["eval"] = self.results.means()
        self.show(self.steps[-1])

    def _ended(self, status: int) -> int:
        """Save the results and return the exit status, which changes if the last loss or parameters are not finite."""
        number = len(self.steps)
        if not self.is_finite:
            self._search(number - 1)
            return self._failed(f"the loss of step {number} is {self.steps[-1]['loss']}", number - 1)
        if not self._is_kept:
            return status
        parameters = self.session.parameters()
        if not _all_finite(parameters):
            self._search(number)
            if _all_finite(self._last_finite(number - 1).parameters):
                return self._failed(f"the parameters after step {number} are not finite", number)
        if self.save is not None:
            self._save(parameters, self.steps)
        if status == INTERRUPTED:
            say(f"interrupted: {self.save} has the parameters after step {number}")
        return status

    def _failed(self, why: str, last: int) -> int:
        """Save the parameters that gave the loss of step `last`; 0 means that no loss was finite."""
        if self.save is None:
            say(f"{why}; with --save the last good parameters are kept")
        elif not last:
            say(f"{why}: nothing is saved")
        else:
            self._save(self._last_finite(last - 1).parameters, self.steps[:last])
            say(
                f"{why}: {self.save} has the parameters that gave the loss of step {last}, the last good ones"
            )
        return ERRORS

    def _search(self, step: int) -> None:
        """Find the cause of numbers that are not finite in a step, or in the parameters that it starts from."""
        if self.resizing is None:
            return
        start = self._last_finite(step)
        dim = self.batches.smaller(start.number)
        program = self.program if dim is None else self.resizing.program(dim)
        start = attrs.evolve(start, batch=self.batches.step(start.number, self.accumulate))
        self.cause = cause_in_step(program, self.resizing.case(program), start, say)

    @property
    def _is_kept(self) -> bool:
        """True if earlier parameters may be needed."""
        return bool(self.save or self.resizing)

    def _keep(self, step: int) -> None:
        """Copy parameters and state before the step, if enough time has passed since the last copy."""
        started = monotonic()
        if self._is_kept and started >= self.due:
            self.new = self._copy(step)
            self.due = monotonic() + (monotonic() - started) / SHARE

    def _last_finite(self, step: int) -> StepInputs:
        """Go back to the start of `step`, or of the first step since the last copy that makes numbers which are not finite.

        On some GPUs a repeated step gives other numbers.
        """
        copy = self.proven or self.new
        assert copy is not None, "a copy is taken before the first step"
        self.session.restore(copy.parameters, copy.state)
        for number in range(copy.number, step):
            loss = step_of(number, 0.0, self._train(number), self.program)["loss"]
            after = self._copy(number + 1)
            if not (isfinite(loss) and _all_finite(after.parameters)):
                self.session.restore(copy.parameters, copy.state)
                break
            copy = after
        return copy

    def _copy(self, step: int) -> StepInputs:
        """Copy the arrays: JAX arrays on CPUs are views of a buffer that the next step may overwrite."""
        kinds = (self.session.parameters(), self.session.optimizer_state())
        parameters, state = ({name: np.array(array) for name, array in arrays.items()} for arrays in kinds)
        return StepInputs(parameters, state, {}, step)

    def _save(self, parameters: Arrays, steps: Sequence[StepRecord]) -> None:
        """Write parameters, their averages, and the losses of the steps."""
        assert self.save is not None
        if "loss" in parameters:
            say(f"{self.save} has no losses: a parameter is called `loss`")
        losses = np.array([step["loss"] for step in steps], np.float32)
        save_arrays(self.save, {"loss": losses, **self.session.averages(), **parameters})


def _all_finite(arrays: Arrays) -> bool:
    return all(bool(np.isfinite(array).all()) for array in arrays.values())


def step_of(number: int, start: float, outputs: Arrays, program: Program) -> StepRecord:
    """Return number, loss and seconds of a step that began at `start` and has just ended."""
    minimized = program.training.minimize if program.training else None
    loss = float(outputs[minimized]) if minimized is not None and minimized in outputs else None
    return {"step": number, "loss": loss, "seconds": time.perf_counter() - start}


def reported(outputs: Arrays, program: Program) -> StepRecord:
    """Return the scalars and short vectors that a training step reports, if it reports any."""
    names = program.training.report if program.training else ()
    figures = {name: outputs[name].tolist() for name in names if is_figure(outputs[name])}
    return {"report": figures} if figures else {}


@attrs.frozen
class BatchResults:
    """The outputs of several batches.

    rows: the number of rows of each batch; None if all batches have the same number. axes: the axis along which each output is
    joined, if that is not the first. counts: for each output that is a mean over a count of the data, the count of each batch.
    """

    parts: Sequence[Arrays]
    rows: tuple[int, ...] | None = None
    axes: Mapping[str, int] = attrs.field(factory=dict)
    counts: Mapping[str, tuple[float, ...]] = attrs.field(factory=dict)

    def joined(self) -> Arrays:
        """Join each output of all batches along the rows; scalars become a row."""
        if len(self.parts) == 1:
            return dict(self.parts[0])
        columns = {name: [np.atleast_1d(part[name]) for part in self.parts] for name in self.parts[0]}
        return {name: np.concatenate(column, self.axes.get(name, 0)) for name, column in columns.items()}

    def mean(self, name: str) -> float:
        """Return the mean of an output over all batches: each weighs by its count, or else by its number of rows."""
        means = [float(np.mean(part[name], dtype=np.float64)) for part in self.parts]
        weights = self.counts.get(name, self.rows or (1,) * len(means))
        return weighted_mean(list(zip(means, weights, strict=True)))

    def means(self) -> dict[str, float]:
        """Return the means of the outputs with at most one dimension."""
        return {name: self.mean(name) for name, array in self.parts[0].items() if array.ndim < 2}

    def weighted(self) -> dict[str, float]:
        """Return the means of the scalar outputs for which batches have different weights."""
        scalars = [name for name, array in self.parts[0].items() if array.ndim == 0]
        return {name: self.mean(name) for name in scalars if self.rows is not None or name in self.counts}


def weighted_mean(parts: Sequence[tuple[float, float]]) -> float:
    """Return the mean of (mean, weight); a part of weight 0 may have a mean that is not a number."""
    total = fsum(weight for _, weight in parts)
    if not total:
        return fsum(mean for mean, _ in parts) / len(parts)
    return fsum(mean * weight for mean, weight in parts if weight) / total


def evaluate(
    session: Session, program: Program, batches: Batches, number: int
) -> tuple[list[StepRecord], BatchResults]:
    """Run the model on the first batches. The session's `forward` has the counts of `with_weights`."""
    counts = with_weights(program)[1]
    steps, parts, weights = list[StepRecord](), list[Arrays](), list[dict[str, float]]()
    for i in each_of(range(number), "evaluating batch"):
        start = time.perf_counter()
        outputs = session.evaluate("forward", batches[i], batches.smaller(i))
        weights.append({name: float(outputs[count]) for name, count in counts.items()})
        parts.append({name: array for name, array in outputs.items() if name not in counts.values()})
        steps.append(step_of(i + 1, start, parts[-1], program))
    is_uneven = batches.rest and number == batches.count and number > 1
    rows = tuple(map(batches.rows, range(number))) if is_uneven else None
    types = {output.name: output.value.type for output in program.function("forward").handed_out}
    axes = {name: joined_axis(type, batches.dims) for name, type in types.items()}
    by_output = {name: tuple(each[name] for each in weights) for name in counts} if number > 1 else {}
    return steps, BatchResults(parts, rows, axes, by_output)


@contextmanager
def delayed_interrupt(message: str) -> Iterator[None]:
    """Raise `KeyboardInterrupt` at the end of the block if Ctrl-C comes during the block; a second Ctrl-C ends the process at
    once.

    The first Ctrl-C shows the message. A handler other than Python's own stays in place. Only the main thread can have a
    handler: other threads delay nothing.
    """
    if current_thread() is not main_thread() or signal.getsignal(signal.SIGINT) is not DEFAULT:
        yield
        return
    came = False

    def note(*_: object) -> None:
        """Remember the first signal, and leave a second one to the system."""
        nonlocal came
        came = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        with suppress(RuntimeError):  # a line was being written when the signal came
            say(message)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, DEFAULT)
    if came:
        raise KeyboardInterrupt


DEFAULT = signal.default_int_handler
