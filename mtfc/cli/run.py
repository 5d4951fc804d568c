"""`mtfc run`: execute a model, or train it, on either backend."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

import attrs

from mtfc.backends import allocator
from mtfc.cli.errors import OK, UsageError, say
from mtfc.cli.execution import BACKENDS, Session, load
from mtfc.cli.inputs import Batches, draw_batch, read_batches, read_parameters
from mtfc.cli.npz import Array, Arrays, write_npz
from mtfc.cli.options import add_format, add_selection, add_source, count, seed
from mtfc.cli.selection import Case, select
from mtfc.cli.sources import Sources
from mtfc.cli.summary import finite, summary, summary_text
from mtfc.compiler.ir.core import Program

EXAMPLES = """\
examples:
  mtfc run model.mtf --data batch.npz --save outputs.npz
  mtfc run model.mtf --train --steps 100 --data train.npz --save params.npz --backend jax
  mtfc run model.mtf --params params.npz --data test.npz --layout "batch:rows" --mesh "rows:4"

An NPZ file of data holds one array per input. An array whose first dimension is k times the input's
is k batches. Without --data, one batch is drawn from --seed.
"""

REPORTS = 20
"""Steps that the text of a training run shows, at most."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument("--backend", choices=BACKENDS, default="numpy", help="what executes (default: numpy)")
    parser.add_argument("--train", action="store_true", help="train, by the file's `train` block")
    parser.add_argument("--steps", metavar="N", type=count, help="how many batches (default: each once)")
    parser.add_argument("--data", metavar="FILE.npz", help="inputs by name")
    parser.add_argument(
        "--eval", metavar="FILE.npz", help="while training, also run the model on these inputs"
    )
    parser.add_argument("--params", metavar="FILE.npz", help="initial values of parameters, by full name")
    parser.add_argument(
        "--save", metavar="FILE.npz", help="write the outputs, or the trained parameters and losses"
    )
    parser.add_argument("--seed", metavar="N", type=seed, default=0, help="for what is drawn (default: 0)")
    add_selection(parser, "the first")
    add_format(parser)


def run(options: argparse.Namespace, sources: Sources) -> int:
    selection = select(options, sources)
    program, case = selection.program, selection.cases[0]
    if options.train and program.training is None:
        raise UsageError(
            f"model {program.name} cannot be trained: the file has no `train {program.name}` block"
        )
    if options.eval and not options.train:
        raise UsageError("--eval goes with --train; a model without training runs on --data")
    batches = _batches(options, program)
    lowered = case.lower(program)
    if not options.train:
        lowered = attrs.evolve(lowered, functions=(lowered.function("forward"),))
    given = read_parameters(options.params, program) if options.params else {}
    evaluation = read_batches(options.eval, program.function("forward")) if options.eval else None
    if options.train:
        allocator.keep_memory()
    session = Session.start(load(lowered, options.backend), options.seed, given)
    if options.train:
        steps, outputs = _train(session, program, batches, evaluation, options)
    else:
        steps, outputs = _evaluate(session, program, batches, options.steps or batches.count)
    if options.save is not None:
        losses = {"loss": _losses(steps)}
        write_npz(options.save, {**losses, **session.parameters()} if options.train else outputs)
    _report(options, case, steps, outputs)
    return OK


def _batches(options: argparse.Namespace, program: Program) -> Batches:
    forward = program.function("forward")
    if options.data is None:
        say(f"no --data: the inputs are drawn from seed {options.seed}")
        return draw_batch(forward, options.seed)
    batches = read_batches(options.data, forward)
    if not options.train and options.steps and options.steps > batches.count:
        plural = "" if batches.count == 1 else "es"
        raise UsageError(f"--steps {options.steps}: {options.data} holds {batches.count} batch{plural}")
    return batches


Step = dict[str, Any]
"""One entry of `steps` in the output: number from 1, loss, seconds, and in training what the step reports."""


def _step(number: int, start: float, outputs: Arrays, program: Program) -> Step:
    """What is known of a step that began at `start` and has just ended."""
    minimized = program.training.minimize if program.training else None
    loss = float(outputs[minimized]) if minimized is not None and minimized in outputs else None
    return {"step": number, "loss": loss, "seconds": time.perf_counter() - start}


def _reported(outputs: Arrays, program: Program) -> Step:
    """The scalars that the step reports, if it reports any."""
    names = program.training.report if program.training else ()
    scalars = {name: outputs[name].item() for name in names if not outputs[name].ndim}
    return {"report": scalars} if scalars else {}


def _evaluate(session: Session, program: Program, batches: Batches, number: int) -> tuple[list[Step], Arrays]:
    """Run the model on the first batches."""
    steps, results = [], []
    for i in range(number):
        start = time.perf_counter()
        results.append(session.evaluate("forward", batches[i]))
        steps.append(_step(i + 1, start, results[-1], program))
    return steps, joined(results)


def joined(parts: Sequence[Arrays]) -> Arrays:
    """The outputs of several batches as one array each: along the first dimension, scalars in a row."""
    import numpy as np

    if len(parts) == 1:
        return dict(parts[0])
    columns = {name: [np.asarray(part[name]) for part in parts] for name in parts[0]}
    return {name: np.concatenate([np.atleast_1d(x) for x in column]) for name, column in columns.items()}


def _train(
    session: Session,
    program: Program,
    batches: Batches,
    evaluation: Batches | None,
    options: argparse.Namespace,
) -> tuple[list[Step], Arrays]:
    """Train, showing some of the steps; the last step's outputs, or those of the last evaluation."""
    accumulate = program.training.accumulate if program.training else 1
    number, steps = options.steps or -(-batches.count // accumulate), []
    outputs: Arrays = {}
    for i in range(number):
        start = time.perf_counter()
        outputs = session.train(batches.step(i, accumulate), i)
        steps.append({**_step(i + 1, start, outputs, program), **_reported(outputs, program)})
        if (i + 1) % max(1, number // REPORTS) and i + 1 < number:
            continue
        if evaluation:
            outputs = _evaluate(session, program, evaluation, evaluation.count)[1]
            steps[-1]["eval"] = {name: _mean(array) for name, array in outputs.items() if array.ndim < 2}
        if options.format == "text":
            print(_step_text(steps[-1]), flush=True)
    return steps, outputs


def _mean(array: Array) -> float:
    import numpy as np

    return float(np.mean(array, dtype=np.float64))


def _step_text(step: Step) -> str:
    reported = "".join(f"  {name} {_number_text(value)}" for name, value in step.get("report", {}).items())
    scores = "".join(f"  {name} {value:.4f}" for name, value in step.get("eval", {}).items())
    evaluated = f"   eval:{scores}" if scores else ""
    loss, seconds = f"loss {step['loss']:.6f}", f"{1000 * step['seconds']:9.2f} ms"
    return f"step {step['step']:>5}  {loss}{reported}  {seconds}{evaluated}"


def _number_text(value: float) -> str:
    """A truth value or whole number as it is, any other with at most six digits that count."""
    return str(value).lower() if isinstance(value, int) else f"{value:.6g}"


def _losses(steps: Sequence[Step]) -> Array:
    import numpy as np

    return np.array([step["loss"] for step in steps], np.float32)


def _report(options: argparse.Namespace, case: Case, steps: Sequence[Step], outputs: Arrays) -> None:
    summaries = {name: summary(array) for name, array in outputs.items()}
    if options.format == "text":
        width = max(map(len, summaries), default=0)
        print("\n".join(f"{name:<{width}}  {summary_text(about)}" for name, about in summaries.items()))
        return
    result = {
        "backend": options.backend,
        "layout": case.name,
        "mesh": dict(case.mesh.axes),
        "steps": [_finite_step(step) for step in steps],
        "outputs": summaries,
    }
    print(json.dumps(result, indent=2))


def _finite_step(step: Step) -> Step:
    named: Step = {
        part: {k: finite(v) for k, v in step[part].items()} for part in ("report", "eval") if part in step
    }
    return {**step, "loss": finite(step["loss"]), **named}
