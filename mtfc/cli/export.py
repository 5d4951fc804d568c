"""`mtfc export`: write the parameters of a model to a safetensors file, under our names or those of another library."""

from __future__ import annotations

import argparse

import attrs

from mtfc.cli.import_ import add_exchange, exchange_options, show_written
from mtfc.driver.errors import OK
from mtfc.driver.exchange.exchange import export_weights
from mtfc.driver.loading.sources import Sources

EXAMPLES = """\
examples:
  mtfc export model.mtf --params params.npz -o model.safetensors
  mtfc export model.mtf --params runs/first -o model.safetensors
  mtfc export llama.mtf --params params.npz --map maps/llama_hf.toml -o model.safetensors

A map of weights has the names and shapes of another library: see docs/weights.md.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_exchange(
        parser,
        "--params",
        "the parameters: .npz, .safetensors, a folder of shards, or a --dir of `mtfc train`",
    )
    parser.add_argument("--averages", action="store_true", help="write the averages of parameters instead")


def run(options: argparse.Namespace, sources: Sources) -> int:
    given = attrs.evolve(exchange_options(options), averages=options.averages)
    show_written(export_weights(given, sources), options)
    return OK
