"""`mtfc report`: write a page about layouts or a training run, to open in a browser.

examples:
  mtfc report model.mtf -o report.html                      show all layouts of the model side by side
  mtfc report model.mtf --target tpu_v2 -o report.html      predict times on another machine
  mtfc report model.mtf --layout hybrid --dim batch=4096 -o report.html
  mtfc report model.mtf --search 30 -o report.html          also search for the best layout for 30 seconds, and show it
  mtfc report found.mtf --layout found -o placed.html       show a placement on its devices
  mtfc report two.mtf --layout two -o meshes.html           show a layout of several meshes
  mtfc report train:step --args train:example --mesh data:8 --layout batch:data -o report.html     show a function of JAX
  mtfc report runs/lm -o run.html                           show the training run in this folder, which may be at gs://

A page needs no network: open it in a browser, mail it, or keep it beside the results.
"""

from pathlib import Path

from mtfc.cli.options import MEMORY, PASSES, Options, program, selection
from mtfc.cli.progress import figures_line
from mtfc.driver.data.files import write_text
from mtfc.driver.errors import UsageError
from mtfc.driver.report import ReportPage, is_run, layouts_page, run_page

OPTIONS = f"""{program(", or the --dir of a training run")}
  -o, --output OUT.html  write the page to this file
  --target HW            the machine of predicted times (default: the first that FILE declares, else h100)
  --search SECONDS       also search for the best layout for so long, on as many devices as the first layout has
{MEMORY}{PASSES}{selection("all", or_placement=True)}"""
REQUIRED = "output"


def run(options: Options) -> None:
    """Write the report of a model as a page."""
    if Path(options.output).suffix not in ("", ".html", ".htm"):
        raise UsageError(f"-o {options.output}: a report is a page, such as -o report.html")
    to = options.check_outputs("-o")
    page = _page(options)
    write_text(options.output, page.html)
    print(f"{options.output}: {page.title}, {len(page.html.encode()) >> 10} KiB", file=to)


def _page(options: Options) -> ReportPage:
    """Return the page of a training run, or of the layouts of a file."""
    if options.args is None and is_run(options.file):
        return run_page(options.file)
    asked = options.file, options.choice, options.sources, options.target, options.search
    with figures_line(".4g", options.search or 0.0):
        return layouts_page(*asked)
