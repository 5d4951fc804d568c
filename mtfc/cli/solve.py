"""`mtfc solve`: print the cheapest choice of strategies for an instance in the contest's format."""

from __future__ import annotations

import json

from mtfc.cli.options import Options
from mtfc.cli.progress import figures_line
from mtfc.driver.data.files import STANDARD, write_text

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


def run(options: Options) -> None:
    from mtfc.driver.solve import solve_file

    options.check_outputs("-o")
    with figures_line(",", options.time_limit):
        record = solve_file(options.file, options.time_limit)
    write_text(options.output, f"{json.dumps(record)}\n")
