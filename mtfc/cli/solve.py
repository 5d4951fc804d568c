"""`mtfc solve`: print the cheapest choice of strategies for an instance in the contest's format."""

from __future__ import annotations

import argparse
import json

from mtfc.cli.progress import figures_line
from mtfc.driver.data.files import STANDARD, check_apart, check_writable, write_text
from mtfc.driver.errors import OK
from mtfc.driver.loading.sources import Sources

EXAMPLES = """\
examples:
  mtfc solve instance.json
  mtfc solve instance.json.gz --time-limit 240 -o solution.json
"""


OPTIONS = """
  FILE                   an instance in the format of google/iopddl, .json or .json.gz; - is standard input
  --time-limit S         time limit in seconds, with reading (default: 60)
  --format json          the only format
  -o, --output OUT       write to a file instead of standard output
"""
DEFAULTS = {"time_limit": 60.0, "format": "json", "output": STANDARD}


def run(options: argparse.Namespace, sources: Sources) -> int:
    from mtfc.driver.solve import solve_file

    check_apart({"-o": options.output}, {"FILE": options.file})
    check_writable(options.output)
    with figures_line(",", options.time_limit):
        record = solve_file(options.file, options.time_limit)
    write_text(options.output, f"{json.dumps(record)}\n")
    return OK
