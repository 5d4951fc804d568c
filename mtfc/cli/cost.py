"""`mtfc cost`: print computation, communication and memory per device.

examples:
  mtfc cost model.mtf                        print costs by source line, then all layouts side by side
  mtfc cost model.mtf --symbolic             print formulas in the file's own names
  mtfc cost model.mtf --layout hybrid --dim batch=4096
  mtfc cost train:step --args train:example --mesh data:8 --layout batch:data      print the costs of a function of JAX
"""

from mtfc.cli.options import LOWERING, Options, program, selection

OPTIONS = f"""{program()}
  --symbolic             print formulas instead of numbers; JSON has both
{LOWERING}{selection("all")}"""


def run(options: Options) -> None:
    """Show the cost of each layout of a model."""
    from mtfc.driver.simulate import model_costs

    options.show(model_costs(options.file, options.choice, options.sources, options.symbolic))
