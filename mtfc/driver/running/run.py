"""Execution of a model, or training, on a backend, for `mtfc run`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs

from mtfc.backends.common import allocator
from mtfc.compiler.activity import doing
from mtfc.compiler.analysis.output_weights import with_weights
from mtfc.compiler.diagnostics import Diagnostic
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.types import Dim
from mtfc.driver.data.array_files import save_arrays
from mtfc.driver.data.files import check_apart, check_writable
from mtfc.driver.data.inputs import Batches, draw_batch, given_parameters, read_batches
from mtfc.driver.errors import OK, UsageError, say
from mtfc.driver.loading.placement_case import PlacementCase
from mtfc.driver.loading.selection import Case, LayoutOnMesh, select
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import RunOptions
from mtfc.driver.running.execution import Session, loaded
from mtfc.driver.running.nan_search import StepInputs, find_not_finite
from mtfc.driver.running.remainder import Resizing
from mtfc.driver.running.training import BatchResults, TrainingData, TrainingRun, evaluate
from mtfc.reports.run_report import StepRecord, run_json, summaries_of, summaries_text


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
        written = {"texts": list(self.texts)} if self.texts else {}
        case, summaries = self.case, self._summaries()
        wrong = {"without_collectives": True} if self.is_wrong else {}
        return {**run_json(self.backend, case.name, case.mesh, self.steps, summaries), **written, **wrong}

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
    backend = options.backend or ("jax" if isinstance(case, PlacementCase) else "numpy")
    options = attrs.evolve(options, backend=backend)
    _check_training(options, program)
    _check_collectives(options, has_mesh=bool(selection.cases))
    resizing = Resizing(options.file, options.choice, sources, selection)
    data = _data(options, program, resizing)
    given = given_parameters(options.params, options.params_partial, options.seed, program, options.averages)
    if options.train:
        allocator.keep_memory()
    module = _module(case, program, options)
    with doing("drawing parameters"):
        session = Session.start(module, options.seed, given)
    session.smaller = _smaller(data, options, resizing)
    if options.train:
        search = _search(data, resizing) if options.debug_nans else None
        training = TrainingRun(session, program, data, options.save, show, search)
        status = training.run(options.steps or data.steps)
        found, wrong = training.results, options.without_collectives
        return FinishedRun(status, backend, case, training.steps, found, cause=training.cause, is_wrong=wrong)
    steps, results = evaluate(session, program, data.batches, options.steps or data.batches.count)
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


def _data(options: RunOptions, program: Program, resizing: Resizing) -> TrainingData:
    """Read or draw the data of the model. Raises `CompileError` and `UsageError`."""
    forward = program.function("forward")
    accumulate = program.training.accumulate if options.train and program.training else 1
    joining = partial(resizing.refusal, joined=True)
    evaluation = read_batches(options.eval, forward, joining) if options.eval else None
    if options.generation is not None:
        prompts = TrainingData(options.generation.batch(program, options.seed), None, 1)
        if options.params is None:
            say(f"no --params: the text is that of parameters drawn from seed {options.seed}")
        return prompts
    if options.data is None:
        say(f"no --data: the inputs are drawn from seed {options.seed}")
        return TrainingData(draw_batch(forward, options.seed), evaluation, accumulate)
    batches = read_batches(options.data, forward, resizing.refusal if options.train else joining)
    if accumulate > 1 and batches.rest:
        batches = _whole(options.data, batches, accumulate)
    if not options.train and options.steps and options.steps > batches.count:
        plural = "" if batches.count == 1 else "es"
        raise UsageError(f"--steps {options.steps}: {options.data} holds {batches.count} batch{plural}")
    return TrainingData(batches, evaluation, accumulate)


def _whole(path: str, batches: Batches, accumulate: int) -> Batches:
    """Leave out a smaller last batch: the batches of a step must have equal sizes."""
    rows = f"{batches.rest} row{'s'[: batches.rest - 1]}"
    takes = f"with `accumulate` a step takes {accumulate} batches of {batches.size} rows"
    if batches.count == 1:
        raise UsageError(f"{path} holds {rows}, and {takes}")
    say(f"{path}: the last {rows} are left out: {takes}")
    return batches.whole()


def _smaller(data: TrainingData, options: RunOptions, resizing: Resizing) -> dict[Dim, Any]:
    """Return modules for the smaller last batches."""
    modules: dict[Dim, Any] = {}
    for path, batches in ((options.data, data.batches), (options.eval, data.evaluation)):
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


def _search(data: TrainingData, resizing: Resizing) -> Callable[[StepInputs], Diagnostic | None]:
    """Return the search for the cause of numbers that are not finite, given the start of the step."""

    def search(start: StepInputs) -> Diagnostic | None:
        dim = data.batches.smaller(start.number) if data.accumulate == 1 else None
        program = resizing.selection.program if dim is None else resizing.program(dim)
        inputs = attrs.evolve(start, batch=data.batches.step(start.number, data.accumulate))
        case = resizing.case(program)
        lowered = case.lower(program) if isinstance(case, LayoutOnMesh) else None
        return find_not_finite(program, inputs, lowered)

    return search
