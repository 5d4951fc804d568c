"""`mtfc diff`: print the difference in cost of two layouts, by line of the file."""

from __future__ import annotations

import argparse
import json

from mtfc.cli.options import add_format, add_memory, add_passes, add_program, add_selection, chosen
from mtfc.driver.errors import OK
from mtfc.driver.loading.sources import Sources

EXAMPLES = """\
examples:
  mtfc diff model.mtf                                               compare the first two declared layouts
  mtfc diff model.mtf --layout data_parallel --layout hybrid
  mtfc diff model.mtf --layout data_parallel --layout hybrid --target h100   also in seconds
  mtfc diff model.mtf --layout "batch:rows" --layout "batch:rows;hidden:cols" --mesh "rows:2;cols:4"
  mtfc diff train:step --args train:example --layout plan.json --layout batch:data --mesh data:8

All figures are of one device, or means of all devices if a layout has several meshes. The lines add up to the whole difference.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_program(parser)
    parser.add_argument(
        "--target",
        metavar="HW",
        help="a machine: also print the seconds of each line there, as `mtfc simulate` predicts them",
    )
    add_selection(parser, "the first two", several_layouts=True)
    add_memory(parser)
    add_passes(parser)
    add_format(parser)


def run(options: argparse.Namespace, sources: Sources) -> int:
    from mtfc.driver.diff import diff_record, diff_text

    asked = options.file, chosen(options), options.layout, options.target, sources
    if options.format == "json":
        print(json.dumps(diff_record(*asked), indent=2))
    else:
        print(diff_text(*asked), end="")
    return OK
