"""`mtfc doctor`: show what is installed, and what is missing."""

from __future__ import annotations

from mtfc.cli.options import FORMAT, Options
from mtfc.driver.errors import ENVIRONMENT, OK

EXAMPLES = """\
examples:
  mtfc doctor                        versions, devices, and a small model on each backend
  mtfc doctor --format json          the same for a report of a bug

Status 3 if mtfc itself cannot work; a missing extra is no failure.
"""

OPTIONS = FORMAT


def run(options: Options) -> int:
    from mtfc.driver.doctor import examine
    from mtfc.reports.doctor_report import doctor_text

    record = examine()
    options.print(lambda: record, lambda: doctor_text(record))
    return OK if record["ok"] else ENVIRONMENT
