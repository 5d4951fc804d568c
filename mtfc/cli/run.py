"""`mtfc run`: execute or train a model on a backend, and print the results."""

from __future__ import annotations

import argparse
import json
import math

from mtfc.backends.registry import BACKENDS
from mtfc.cli.errors import show_diagnostics
from mtfc.cli.options import (
    add_format,
    add_memory,
    add_parameters,
    add_passes,
    add_selection,
    add_source,
    chosen,
    count,
    seed,
)
from mtfc.driver.data.files import report_to
from mtfc.driver.errors import UsageError
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import RunOptions
from mtfc.driver.running.generation import Generation
from mtfc.driver.running.run import run as run_model
from mtfc.reports.run_report import StepRecord, step_text

EXAMPLES = """\
examples:
  mtfc run model.mtf --data batch.npz --save outputs.npz
  mtfc run model.mtf --train --steps 100 --data train.npz --save params.npz --backend jax
  mtfc run model.mtf --params params.npz --data test.npz --layout "batch:rows" --mesh "rows:4"
  mtfc run lm.mtf --model generate --params params.npz --prompt "def " --temperature 0.5 --seed 3

An NPZ file of data holds an array for each input. If the first dimension of an array is k times that of the
input, the array holds k batches. For fewer rows at the end the model is compiled a second time.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument(
        "--backend", choices=BACKENDS, help="the backend that executes (default: numpy; jax for a placement)"
    )
    parser.add_argument("--train", action="store_true", help="train by the file's `train` block")
    parser.add_argument(
        "--steps",
        metavar="N",
        type=count,
        help="number of batches or training steps (default: one pass over the data)",
    )
    parser.add_argument("--data", metavar="FILE.npz", help="inputs by name (default: one batch, drawn)")
    parser.add_argument(
        "--eval", metavar="FILE.npz", help="during training, also run the model on these inputs"
    )
    add_parameters(parser)
    parser.add_argument(
        "--averages",
        action="store_true",
        help="start from the averages that --params has of trained parameters",
    )
    parser.add_argument(
        "--save",
        metavar="FILE",
        help="write the outputs, or the trained parameters and losses: .npz, or .safetensors",
    )
    parser.add_argument(
        "--seed",
        metavar="N",
        type=seed,
        default=0,
        help="seed of drawn inputs, parameters and texts (default: 0)",
    )
    parser.add_argument(
        "--debug-nans",
        action="store_true",
        help="in training, show the line that makes the first number that is not finite",
    )
    parser.add_argument(
        "--without-collectives",
        action="store_true",
        help="send nothing, to measure how long steps take without communication: ALL NUMBERS ARE WRONG; with --backend jax",
    )
    _add_prompts(parser)
    add_selection(parser, "the first", or_placement=True)
    add_memory(parser)
    add_passes(parser)
    add_format(parser)


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    """Add the options of a model that writes text."""
    group = parser.add_argument_group("text, of a model that continues prompts")
    group.add_argument(
        "--prompt",
        metavar="TEXT",
        action="append",
        dest="prompts",
        help="print this text and how the model continues it; repeatable",
    )
    group.add_argument(
        "--temperature",
        metavar="T",
        type=_temperature,
        help="0 takes the most probable token, 1 draws as the model says (default: 0.8)",
    )
    group.add_argument(
        "--tokenizer", metavar="FILE", help="a tokenizer.json, for a model of its tokens rather than of bytes"
    )
    group.add_argument("--tokens", metavar="N", type=count, help="print at most N new tokens of each text")


def _temperature(text: str) -> float:
    """Return a temperature, as an option's type."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number from 0 on, not `{text}`")
    return found


def run(options: argparse.Namespace, sources: Sources) -> int:
    to = report_to(options.save)

    def show(step: StepRecord) -> None:
        if options.format == "text":
            print(step_text(step), file=to, flush=True)

    done = run_model(_options(options), sources, show)
    print(done.report() if options.format == "text" else json.dumps(done.record(), indent=2), file=to)
    if done.cause:
        show_diagnostics([done.cause], sources, options.format)
    return done.status


def _options(options: argparse.Namespace) -> RunOptions:
    return RunOptions(
        options.file,
        chosen(options),
        options.backend,
        options.train,
        options.steps,
        options.data,
        options.eval,
        options.params,
        options.params_partial,
        options.save,
        options.seed,
        _generation(options),
        options.debug_nans,
        options.averages,
        options.without_collectives,
    )


def _generation(options: argparse.Namespace) -> Generation | None:
    given = {name: getattr(options, name) for name in ("temperature", "tokens", "tokenizer")}
    chosen = {name: value for name, value in given.items() if value is not None}
    if options.prompts is None and chosen:
        raise UsageError(f"--{next(iter(chosen))} goes with --prompt, the text to continue")
    return None if options.prompts is None else Generation(tuple(options.prompts), **chosen)
