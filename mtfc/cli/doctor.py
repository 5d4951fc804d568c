"""`mtfc doctor`: show what is installed, and what is missing."""

from __future__ import annotations

import argparse

from mtfc.cli.options import FORMAT
from mtfc.driver.errors import ENVIRONMENT, OK
from mtfc.driver.loading.sources import Sources

EXAMPLES = """\
examples:
  mtfc doctor                        versions, devices, and a small model on each backend
  mtfc doctor --format json          the same for a report of a bug

Status 3 if mtfc itself cannot work; a missing extra is no failure.
"""

OPTIONS = FORMAT


def run(options: argparse.Namespace, sources: Sources) -> int:
    from mtfc.driver.doctor import examine
    from mtfc.reports.doctor_report import doctor_text

    record = examine()
    if options.format == "json":
        import json

        print(json.dumps(record, indent=2))
    else:
        print(doctor_text(record), end="")
    return OK if record["ok"] else ENVIRONMENT
