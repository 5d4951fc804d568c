"""`mtfc cost`: print the computation, communication and memory of a device under each layout."""

from __future__ import annotations

import argparse
import json

from mtfc.cli.options import LOWERING, chosen, program, selection, show
from mtfc.driver.errors import OK
from mtfc.driver.loading.sources import Sources

EXAMPLES = """\
examples:
  mtfc cost model.mtf                        print costs by source line, then all layouts side by side
  mtfc cost model.mtf --symbolic             print formulas in the file's own names
  mtfc cost model.mtf --layout hybrid --dim batch=4096
  mtfc cost train:step --args train:example --mesh data:8 --layout batch:data      print the costs of a function of JAX
  mtfc cost train:step --args train:example --layout plan.json --compiled          print what XLA sends, by line
"""


OPTIONS = f"""{program()}
  --symbolic             print formulas instead of numbers; JSON has both
  --compiled             compile a function of JAX, and print the bytes that XLA's programs send beside the predicted ones
{LOWERING}{selection("all")}"""


def run(options: argparse.Namespace, sources: Sources) -> int:
    from mtfc.driver.cost import compiled_bytes, model_costs

    if options.compiled:
        found = compiled_bytes(options.file, chosen(options), sources)
        print(json.dumps(found.record(), indent=2) if options.format == "json" else found)
        return OK
    return show(model_costs(options.file, chosen(options), sources, options.symbolic), options, sources)
