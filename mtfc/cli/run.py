"""`mtfc run`: execute a model, or train it, on either backend."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs

from mtfc.backends.common import allocator
from mtfc.cli.options import add_format, add_parameters, add_selection, add_source, count, seed
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.types import Dim
from mtfc.driver.data.files import check_apart, check_writable, report_to
from mtfc.driver.data.inputs import Batches, draw_batch, given_parameters, read_batches
from mtfc.driver.data.npz import Arrays, write_npz
from mtfc.driver.data.summary import finite, summary, summary_text
from mtfc.driver.errors import OK, UsageError, say
from mtfc.driver.running.execution import BACKENDS, Session, load
from mtfc.driver.running.remainder import Resizing
from mtfc.driver.running.steps import Results, Step, evaluate, finite_step, step_of
from mtfc.driver.running.training import Data, TrainingRun
from mtfc.driver.selection import Case, select
from mtfc.driver.sources import Sources

EXAMPLES = """\
examples:
  mtfc run model.mtf --data batch.npz --save outputs.npz
  mtfc run model.mtf --train --steps 100 --data train.npz --save params.npz --backend jax
  mtfc run model.mtf --params params.npz --data test.npz --layout "batch:rows" --mesh "rows:4"

An NPZ file of data holds one array per input. An array whose first dimension is k times the input's
is k batches; for fewer rows at the end the model is compiled a second time. Without --data, one batch
is drawn from --seed.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument("--backend", choices=BACKENDS, default="numpy", help="what executes (default: numpy)")
    parser.add_argument("--train", action="store_true", help="train, by the file's `train` block")
    parser.add_argument("--steps", metavar="N", type=count, help="how many batches (default: each once)")
    parser.add_argument("--data", metavar="FILE.npz", help="inputs by name")
    parser.add_argument(
        "--eval", metavar="FILE.npz", help="while training, also run the model on these inputs"
    )
    add_parameters(parser)
    parser.add_argument(
        "--save", metavar="FILE.npz", help="write the outputs, or the trained parameters and losses"
    )
    parser.add_argument("--seed", metavar="N", type=seed, default=0, help="for what is drawn (default: 0)")
    add_selection(parser, "the first")
    add_format(parser)


def run(options: argparse.Namespace, sources: Sources) -> int:
    _check_files(options)
    selection = select(options, sources)
    program, case = selection.program, selection.cases[0]
    if options.train and program.training is None:
        raise UsageError(
            f"model {program.name} cannot be trained: the file has no `train {program.name}` block"
        )
    if options.eval and not options.train:
        raise UsageError("--eval goes with --train; a model without training runs on --data")
    resizing = Resizing(options, sources, selection)
    data = _data(options, program, resizing)
    given = given_parameters(options, program)
    if options.train:
        allocator.keep_memory()
    session = Session.start(load(_lowered(case, program, options), options.backend), options.seed, given)
    session.smaller = _smaller(data, options, resizing)
    if options.train:
        training = TrainingRun.start(session, program, data, options)
        status, steps, results = training.run(), training.steps, training.results
    else:
        status = OK
        steps, results = _evaluate(session, program, data.batches, options.steps or data.batches.count)
    if options.save is not None and not options.train:
        write_npz(options.save, results.joined())
    _report(options, case, steps, results)
    return status


def _check_files(options: argparse.Namespace) -> None:
    """Raise `UsageError` if the result cannot be written, or would replace an input; training may replace its `--params`."""
    inputs = {"FILE": options.file, "--data": options.data, "--eval": options.eval}
    if not options.train:
        inputs["--params"] = options.params
    check_writable(options.save)
    check_apart({"--save": options.save}, inputs)


def _lowered(case: Case, program: Program, options: argparse.Namespace) -> Program:
    lowered = case.lower(program)
    return lowered if options.train else attrs.evolve(lowered, functions=(lowered.function("forward"),))


# Data


def _data(options: argparse.Namespace, program: Program, resizing: Resizing) -> Data:
    """Read or draw the data of the model. Raises `CompileError` and `UsageError`."""
    forward = program.function("forward")
    accumulate = program.training.accumulate if options.train and program.training else 1
    joining = partial(resizing.refusal, joined=True)
    evaluation = read_batches(options.eval, forward, joining) if options.eval else None
    if options.data is None:
        say(f"no --data: the inputs are drawn from seed {options.seed}")
        return Data(draw_batch(forward, options.seed), evaluation, accumulate)
    batches = read_batches(options.data, forward, resizing.refusal if options.train else joining)
    if accumulate > 1 and batches.rest:
        batches = _whole(options.data, batches, accumulate)
    if not options.train and options.steps and options.steps > batches.count:
        plural = "" if batches.count == 1 else "es"
        raise UsageError(f"--steps {options.steps}: {options.data} holds {batches.count} batch{plural}")
    return Data(batches, evaluation, accumulate)


def _whole(path: str, batches: Batches, accumulate: int) -> Batches:
    """Leave out a smaller last batch: the batches of a step must have equal sizes."""
    rows = f"{batches.rest} row{'s'[: batches.rest - 1]}"
    takes = f"with `accumulate` a step takes {accumulate} batches of {batches.size} rows"
    if batches.count == 1:
        raise UsageError(f"{path} holds {rows}, and {takes}")
    say(f"{path}: the last {rows} are left out: {takes}")
    return batches.whole()


def _smaller(data: Data, options: argparse.Namespace, resizing: Resizing) -> dict[Dim, Any]:
    """Return modules for the smaller last batches."""
    modules: dict[Dim, Any] = {}
    for path, batches in ((options.data, data.batches), (options.eval, data.evaluation)):
        dim = batches.smaller(batches.count - 1) if batches else None
        if dim is None or dim in modules:
            continue
        program = resizing.program(dim)
        case = resizing.case(program)
        given_up = case.layout != resizing.selection.cases[0].layout
        rest = f"{path}: the model is compiled a second time, for a last batch of {dim.size} row{'s'[: dim.size - 1]}"
        say(f"{rest}, and the layout's rules that do not divide it are left out" if given_up else rest)
        modules[dim] = load(_lowered(case, program, options), options.backend)
    return modules


def _evaluate(
    session: Session, program: Program, batches: Batches, number: int
) -> tuple[list[Step], Results]:
    """Run the model on the first batches."""
    steps: list[Step] = []

    def done(i: int, start: float, outputs: Arrays) -> None:
        steps.append(step_of(i + 1, start, outputs, program))

    results = evaluate(session, batches, number, done)
    return steps, results


# Output


def _report(options: argparse.Namespace, case: Case, steps: Sequence[Step], results: Results) -> None:
    summaries, to = _summaries(results), report_to(options.save)
    if options.format == "text":
        width = max(map(len, summaries), default=0)
        print(
            "\n".join(f"{name:<{width}}  {summary_text(about)}" for name, about in summaries.items()), file=to
        )
        return
    result = {
        "backend": options.backend,
        "layout": case.name,
        "mesh": dict(case.mesh.axes),
        "steps": [finite_step(step) for step in steps],
        "outputs": summaries,
    }
    print(json.dumps(result, indent=2), file=to)


def _summaries(results: Results) -> dict[str, dict[str, Any]]:
    """Summarize each output; the mean of a scalar output weighs each batch by its number of rows."""
    summaries = {name: summary(array) for name, array in results.joined().items()}
    means = {name: {"mean": finite(mean)} for name, mean in results.weighted().items()}
    return {name: {**about, **means.get(name, {})} for name, about in summaries.items()}
