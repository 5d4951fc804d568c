"""`mtfc simulate`: predict the time of a step on a machine.

examples:
  mtfc simulate model.mtf --target h100                 predict a step of the first layout, on an H100 for each processor
  mtfc simulate model.mtf --target tpu_v4 --layout hybrid --trace step.json
  mtfc simulate found.mtf --target p100_cluster --layout found          take a placement of mtfc search --space soap
  mtfc simulate model.mtf --target mine.mtf             take your own machine, for example from mtfc calibrate
  mtfc simulate --target list                           print all machines
  mtfc simulate train:step --args train:example --layout plan.json --target h100    predict a step of a function of JAX
"""

import json

from mtfc.cli.options import LOWERING, Options, program, selection
from mtfc.driver.data.files import write_text
from mtfc.driver.errors import UsageError

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


def run(options: Options) -> None:
    """Simulate a step on a machine, or list the machines."""
    from mtfc.driver.simulate import simulate

    to = options.check_outputs("--trace")
    if options.target == LIST:
        _show_machines(options)
        return
    if options.file is None:
        raise UsageError("simulate takes a FILE; only --target list goes without one")
    more = options.place, options.measured, options.parameter_servers
    found = simulate(options.file, options.choice, options.target, options.sources, *more)
    if options.trace is not None:
        write_text(options.trace, json.dumps(found.trace()) + "\n")
    options.show(found, to)


def _show_machines(options: Options) -> None:
    """Print the machines that `--target` can name."""
    from mtfc.driver.simulate import machines
    from mtfc.reports.step_report import machines_json, machines_text

    found = machines(options.file, options.choice, options.sources)
    options.print(lambda: machines_json(found), lambda: machines_text(found))
