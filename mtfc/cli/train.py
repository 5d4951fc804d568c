"""`mtfc train`: train a model for hours, with checkpoints and metrics, on one process or many."""

from __future__ import annotations

import argparse
import json
import sys

from mtfc.cli.errors import leave, show_diagnostics
from mtfc.cli.hosts import add_hosts, chosen_hosts, run_joined
from mtfc.cli.options import (
    add_format,
    add_memory,
    add_parameters,
    add_passes,
    add_selection,
    add_source,
    add_whole_documents,
    chosen,
    count,
    seconds,
    seed,
)
from mtfc.driver.data.files import check_writable, write_text
from mtfc.driver.errors import UsageError, say
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import Metric, TrainOptions
from mtfc.driver.report import run_page
from mtfc.driver.training.train import train as train_model

EXAMPLES = """\
examples:
  mtfc train model.mtf --data train.npz --eval test.npz --epochs 10 --dir runs/first
  mtfc train lm.mtf --data tokens.bin:uint16 --steps 100000 --dir runs/lm --save-minutes 10 --tensorboard runs/tb
  mtfc train lm.mtf --data shards:uint16 --steps 1000 --layout fsdp --target h100 --profile /tmp/trace
  mtfc train lm.mtf --data mydata:batches --steps 1000 --coordinator host0:1234 --processes 4 --process-id 0

The same command again goes on from the last checkpoint in --dir, also with another --layout, --mesh or number of
processes. Ctrl-C stops after the running step and saves a checkpoint.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    length = parser.add_argument_group("length and data")
    length.add_argument("--steps", metavar="N", type=count, help="train until step N (default: one epoch)")
    length.add_argument("--epochs", metavar="N", type=count, help="train for N passes over the data")
    length.add_argument(
        "--data",
        metavar="DATA",
        help="FILE.npz, .npy, .parquet, .jsonl or .array_record, FILE:DTYPE for tokens, a directory of these, DATA@WEIGHT,... for"
        " a mixture, or MODULE:FUNCTION (default: one batch, drawn)",
    )
    length.add_argument(
        "--tokenizer",
        metavar="FILE",
        help="a tokenizer.json, which makes tokens of the text in --data and --eval",
    )
    add_whole_documents(length)
    length.add_argument("--eval", metavar="DATA", help="also run the model on these data, in the same forms")
    length.add_argument(
        "--eval-every",
        metavar="N",
        type=count,
        help="steps between evaluations (default: a tenth of the run)",
    )
    length.add_argument(
        "--eval-batches", metavar="N", type=count, help="batches of an evaluation (default: all)"
    )
    length.add_argument(
        "--stop-early",
        metavar="N",
        type=count,
        help="end after N evaluations in a row without a better mean: of the metric of --keep-best, or of the loss",
    )
    length.add_argument(
        "--seed",
        metavar="N",
        type=seed,
        default=0,
        help="seed of parameters and of the order of data (default: 0)",
    )
    add_parameters(parser)
    _add_results(parser)
    add_selection(parser, "the first", or_placement=True)
    add_memory(parser)
    add_passes(parser)
    add_format(parser)


def _add_results(parser: argparse.ArgumentParser) -> None:
    """Add the options about checkpoints, figures and processes."""
    kept = parser.add_argument_group("checkpoints")
    kept.add_argument(
        "--dir",
        metavar="DIR",
        dest="folder",
        help="the folder for checkpoints and metrics.jsonl, which may be remote",
    )
    kept.add_argument(
        "--report",
        metavar="OUT.html",
        help="at the end, write the page of `mtfc report DIR`; with a local --dir",
    )
    kept.add_argument("--save-every", metavar="N", type=count, help="steps between checkpoints")
    kept.add_argument(
        "--save-minutes", metavar="M", type=seconds, help="minutes between checkpoints (default: 10)"
    )
    kept.add_argument(
        "--keep", metavar="N", type=count, default=3, help="keep the newest N checkpoints (default: 3)"
    )
    kept.add_argument(
        "--keep-best",
        metavar="METRIC",
        type=_metric,
        help="also keep the checkpoint of the best evaluation, by `loss`, `NAME:max` or `NAME:min`",
    )
    kept.add_argument(
        "--warm-start",
        metavar="RUN",
        help="after a change of the program: take what fits from the last checkpoint of a run, and draw the rest",
    )
    kept.add_argument("--fresh", action="store_true", help="start over; earlier results in --dir are renamed")
    shown = parser.add_argument_group("figures")
    shown.add_argument(
        "--show-every",
        metavar="N",
        type=count,
        help="steps between lines on standard output (default: a twentieth of the run)",
    )
    shown.add_argument(
        "--log", metavar="FILE", help="write a JSON line for each step (default: DIR/metrics.jsonl)"
    )
    shown.add_argument("--tensorboard", metavar="DIR", help="write curves for TensorBoard")
    shown.add_argument(
        "--metrics",
        metavar="MODULE:FUNCTION",
        help="call a function with the figures of each step, as a dict",
    )
    shown.add_argument("--profile", metavar="DIR", help="write a trace of a few steps, by JAX's profiler")
    shown.add_argument(
        "--target", metavar="MACHINE", help="compare each step with its predicted time on a machine"
    )
    shown.add_argument(
        "--debug-nans",
        action="store_true",
        help="show the line that makes the first number that is not finite",
    )
    _add_faults(parser)
    add_hosts(parser)


def _add_faults(parser: argparse.ArgumentParser) -> None:
    """Add the options about steps that fail, and about the end that a cluster makes."""
    bad = parser.add_argument_group("steps that fail, and ends")
    bad.add_argument(
        "--skip-steps",
        metavar="N-M,...",
        dest="skipped",
        type=_ranges,
        default=(),
        help="read the batches of these steps, and leave the parameters alone",
    )
    bad.add_argument(
        "--bad-steps",
        metavar="N",
        type=count,
        default=50,
        help="end after N steps in a row that overflow with a dynamic loss scale (default: 50)",
    )
    bad.add_argument(
        "--grace",
        metavar="S",
        type=seconds,
        default=30.0,
        help="seconds from SIGTERM until the cluster ends the process (default: 30)",
    )


def _metric(text: str) -> Metric:
    """Return a metric such as `accuracy:max`, as an option's type."""
    name, colon, direction = text.partition(":")
    if not name or (colon and direction not in ("max", "min")):
        raise argparse.ArgumentTypeError(f"expected a mean such as loss or accuracy:max, not `{text}`")
    return Metric(name, direction == "max" if colon else None)


def _ranges(text: str) -> tuple[range, ...]:
    """Return ranges of steps from `7,20-23`, as an option's type."""
    found = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise argparse.ArgumentTypeError(f"expected steps such as 7 or 20-23, not `{part.strip()}`")
        found.append(range(int(first), int(last or first) + 1))
        if not found[-1]:
            raise argparse.ArgumentTypeError(f"`{part.strip()}` has no steps: the smaller number comes first")
    return tuple(found)


def run(options: argparse.Namespace, sources: Sources) -> int:
    given = _options(options)
    if options.report is not None:
        _check_report(options)
    return run_joined(given.hosts, lambda: _run(given, options, sources), sources, options.format)


def _check_report(options: argparse.Namespace) -> None:
    """Raise `UsageError` unless the run has a folder with its figures, and the page can be written."""
    if options.folder is None:
        raise UsageError("--report shows the figures of --dir: add --dir FOLDER")
    if options.log is not None:
        raise UsageError("--report shows the figures that --dir holds: leave out --log")
    if not options.report.endswith(".html"):
        raise UsageError(f"--report writes a page: expected a name such as run.html, not `{options.report}`")
    check_writable(options.report)


def _write_report(options: argparse.Namespace) -> None:
    """Write the page of the run. A run that ended before its first step has none, and keeps its status."""
    try:
        page = run_page(options.folder)
    except UsageError as error:
        say(str(error))
        return
    write_text(options.report, page.html)
    say(f"{options.report}: {page.title}")


def _run(given: TrainOptions, options: argparse.Namespace, sources: Sources) -> int:
    done = train_model(given, sources, sys.stdout if options.format == "text" else None)
    if done.leads:
        print(
            done.summary.table() if options.format == "text" else json.dumps(done.summary.record(), indent=2)
        )
    if done.leads and options.report is not None:
        _write_report(options)
    if done.leads and done.cause:
        show_diagnostics([done.cause], sources, options.format)
    if done.leaves_thread:
        leave(done.status)
    return done.status


def _options(options: argparse.Namespace) -> TrainOptions:
    values = {name: getattr(options, name) for name in NAMES}
    return TrainOptions(choice=chosen(options), hosts=chosen_hosts(options), **values)


NAMES = (
    *("file", "steps", "epochs", "data", "eval", "tokenizer", "eval_every", "eval_batches", "params"),
    *("params_partial", "seed", "folder", "save_every", "save_minutes", "keep", "fresh", "show_every"),
    *("log", "tensorboard", "metrics", "profile", "target", "debug_nans", "skipped", "bad_steps", "grace"),
    *("warm_start", "keep_best", "stop_early", "whole_documents"),
)
"""The options that have the same name in the driver."""
