"""`mtfc check`: diagnose a file under every declared layout.

examples:
  mtfc check model.mtf
  mtfc check model.mtf --format json
  mtfc check model.mtf --mesh "rows:2;cols:4" --layout "batch:rows;hidden:cols"
  mtfc check train:step --args train:example --mesh data:8 --layout batch:data     check a function of JAX
"""

from mtfc.cli.errors import show_diagnostics
from mtfc.cli.options import FORMAT, Options, program, selection
from mtfc.driver.errors import ERRORS, OK

OPTIONS = program() + FORMAT + selection("all")


def run(options: Options) -> int:
    """Report the diagnostics of a file; return the exit status."""
    from mtfc.driver.check import check_file, verdict
    from mtfc.driver.loading.sources import known_as
    from mtfc.reports.diagnostic_text import to_json

    diagnostics = check_file(options.file, options.choice, options.sources)
    if options.format == "text":
        show_diagnostics(diagnostics, options.sources)
    options.print(lambda: to_json(diagnostics), lambda: f"{known_as(options.file)}: {verdict(diagnostics)}")
    return ERRORS if any(each.severity == "error" for each in diagnostics) else OK
