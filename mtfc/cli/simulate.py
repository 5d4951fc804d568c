"""`mtfc simulate`: print the predicted time of a step on a machine, by line of the file."""

from __future__ import annotations

import argparse
import json

from mtfc.cli.options import LOWERING, chosen, program, read_files, selection, show
from mtfc.driver.data.files import check_apart, check_writable, report_to, write_text
from mtfc.driver.errors import OK, UsageError
from mtfc.driver.loading.sources import Sources
from mtfc.driver.loading.target import file_of

EXAMPLES = """\
examples:
  mtfc simulate model.mtf --target h100                 predict a step of the first layout, on an H100 for each processor
  mtfc simulate model.mtf --target tpu_v4 --layout hybrid --trace step.json
  mtfc simulate found.mtf --target p100_cluster --layout found          take a placement of mtfc search --space soap
  mtfc simulate model.mtf --target mine.mtf             take your own machine, for example from mtfc calibrate
  mtfc simulate --target list                           print all machines
  mtfc simulate train:step --args train:example --layout plan.json --target h100    predict a step of a function of JAX
"""

LIST = "list"


OPTIONS = f"""{program(is_required=False)}
  --target HW            hardware of FILE, of the library, or of a .mtf file; `list` prints the names
  --trace OUT.json       write a timeline for Perfetto or Chrome
  --place AXES           the mesh axes from the innermost link outwards, for example cols,rows (default: the last axis first)
  --measured             of a placement: take the times of parts and transfers that calibrate --operators has measured here
  --parameter-servers N  let N parameter servers add up gradients, in place of all-reduces; for comparison
{LOWERING}{selection("the first", or_placement=True)}"""
REQUIRED = "target"
DEFAULTS = {"parameter_servers": 0}


def run(options: argparse.Namespace, sources: Sources) -> int:
    from mtfc.driver.simulate import simulate

    check_apart({"--trace": options.trace}, {**read_files(options), "--target": file_of(options.target)})
    check_writable(options.trace)
    if options.target == LIST:
        _show_machines(options, sources)
        return OK
    if options.file is None:
        raise UsageError("simulate takes a FILE; only --target list goes without one")
    found = simulate(
        options.file,
        chosen(options),
        options.target,
        sources,
        options.place,
        options.measured,
        options.parameter_servers,
    )
    to = report_to(options.trace)
    if options.trace is not None:
        write_text(options.trace, json.dumps(found.trace()) + "\n")
    return show(found, options, sources, to)


def _show_machines(options: argparse.Namespace, sources: Sources) -> None:
    """Print the machines that `--target` can name."""
    from mtfc.driver.simulate import machines
    from mtfc.reports.machines_report import machines_json, machines_text

    found = machines(options.file, chosen(options), sources)
    if options.format == "json":
        print(json.dumps(machines_json(found), indent=2))
    else:
        print(machines_text(found), end="")
