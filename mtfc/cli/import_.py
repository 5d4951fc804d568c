"""`mtfc import`: read parameters that another library wrote, and write them under the names of the model."""

from __future__ import annotations

import argparse
import json

from mtfc.cli.options import add_format, add_model, add_source, chosen
from mtfc.driver.errors import OK
from mtfc.driver.exchange.exchange import WrittenFile, import_weights
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import ExchangeOptions

EXAMPLES = """\
examples:
  mtfc import model.mtf --from model.safetensors -o params.npz
  mtfc import llama.mtf --from Llama-3-8B --map maps/llama_hf.toml -o llama.safetensors
  mtfc run llama.mtf --params llama.safetensors --data batch.npz

--from takes a .safetensors or .npz file, or a folder with model.safetensors.index.json and its shards.
A map of weights has the names and shapes of another library: see docs/weights.md.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_exchange(parser, "--from", "the file or folder to read")


def run(options: argparse.Namespace, sources: Sources) -> int:
    show_written(import_weights(exchange_options(options), sources), options)
    return OK


def add_exchange(parser: argparse.ArgumentParser, source: str, about: str) -> None:
    """Add the options of an export or import; `source` is the option that names the file to read."""
    add_source(parser)
    parser.add_argument(source, metavar="IN", dest="source", required=True, help=about)
    parser.add_argument("--map", metavar="MAP.toml", help="the names and shapes of another library")
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        required=True,
        help="the file to write, which ends in .safetensors or .npz",
    )
    add_model(parser)
    parser.set_defaults(mesh=None)
    add_format(parser)


def exchange_options(options: argparse.Namespace) -> ExchangeOptions:
    return ExchangeOptions(options.file, options.source, options.output, chosen(options), options.map)


def show_written(written: WrittenFile, options: argparse.Namespace) -> None:
    """Print a line or a JSON record about a file."""
    print(json.dumps(written.record(), indent=2) if options.format == "json" else written.report())
