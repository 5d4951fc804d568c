"""`mtfc eval`: the means of a model's outputs over data, with the parameters of a file or of a run."""

from __future__ import annotations

import argparse
import json

from mtfc.cli.hosts import add_hosts, chosen_hosts, run_joined
from mtfc.cli.options import (
    add_format,
    add_parameters,
    add_selection,
    add_source,
    add_whole_documents,
    chosen,
    count,
    seed,
)
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import EvalOptions
from mtfc.driver.training.evaluation import evaluate

EXAMPLES = """\
examples:
  mtfc eval model.mtf --params runs/first --data test.npz
  mtfc eval lm.mtf --params runs/lm/checkpoints/8000 --data valid.bin:uint16 --batches 100 --layout fsdp
  mtfc eval lm.mtf --params runs/lm --data valid.bin:uint16 --coordinator host0:1234 --processes 4 --process-id 0
  mtfc eval model.mtf --params runs/first --averages --data test.npz --format json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument(
        "--data",
        metavar="DATA",
        required=True,
        help="FILE.npz, FILE.npy, FILE:DTYPE for tokens, a directory of these, or MODULE:FUNCTION",
    )
    parser.add_argument(
        "--tokenizer", metavar="FILE", help="a tokenizer.json, which makes tokens of the text in --data"
    )
    add_whole_documents(parser)
    parser.add_argument("--batches", metavar="N", type=count, help="end after N batches (default: all)")
    add_parameters(parser, is_required=True)
    parser.add_argument(
        "--averages", action="store_true", help="take the averages that --params has of trained parameters"
    )
    parser.add_argument(
        "--seed",
        metavar="N",
        type=seed,
        default=0,
        help="seed of parameters that --params lacks (default: 0)",
    )
    add_selection(parser, "the first", or_placement=True)
    add_hosts(parser)
    add_format(parser)


def run(options: argparse.Namespace, sources: Sources) -> int:
    given = EvalOptions(
        options.file,
        options.data,
        options.params,
        chosen(options),
        options.params_partial,
        options.averages,
        options.batches,
        options.seed,
        options.tokenizer,
        options.whole_documents,
        chosen_hosts(options),
    )
    return run_joined(given.hosts, lambda: _run(given, options.format, sources), sources, options.format)


def _run(given: EvalOptions, format: str, sources: Sources) -> int:
    found = evaluate(given, sources)
    if found is not None:
        print(found.table() if format == "text" else json.dumps(found.record(), indent=2))
    return 0
