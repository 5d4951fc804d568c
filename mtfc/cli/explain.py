"""`mtfc explain`: print the rules of a layout that cause its collectives, or what a diagnostic means."""

from __future__ import annotations

import argparse

from mtfc.cli.options import LOWERING, chosen, program, selection, show
from mtfc.driver.errors import OK
from mtfc.driver.loading.sources import Sources

EXAMPLES = """\
examples:
  mtfc explain model.mtf                                explain the collectives of the first layout
  mtfc explain model.mtf --layout hybrid
  mtfc explain model.mtf --layout "batch:rows;hidden:cols" --mesh "rows:2;cols:4" --format json
  mtfc explain E301                                     print what a diagnostic means, with an example
  mtfc explain train:step --args train:example --layout plan.json       explain a plan of a function of JAX
"""

OPTIONS = program(", the code of a diagnostic") + LOWERING + selection("the first")


def run(options: argparse.Namespace, sources: Sources) -> int:
    from mtfc.driver.help_pages import code_section, is_code

    if is_code(options.file):
        from mtfc.cli.help import print_paged

        print_paged(code_section(options.file))
        return OK
    from mtfc.driver.explain import explain

    return show(explain(options.file, chosen(options), sources), options, sources)
