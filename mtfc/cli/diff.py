"""`mtfc diff`: print the difference in cost of two layouts, by line.

examples:
  mtfc diff model.mtf                                               compare the first two declared layouts
  mtfc diff model.mtf --layout data_parallel --layout hybrid
  mtfc diff model.mtf --layout data_parallel --layout hybrid --target h100   also in seconds
  mtfc diff model.mtf --layout "batch:rows" --layout "batch:rows;hidden:cols" --mesh "rows:2;cols:4"
  mtfc diff train:step --args train:example --layout plan.json --layout batch:data --mesh data:8

All figures are of one device, or means of all devices if a layout has several meshes. The lines add up to the whole difference.
"""

from mtfc.cli.options import LOWERING, Options, program, selection

OPTIONS = f"""{program()}
  --target HW            a machine: also print the seconds of each line there, as `mtfc simulate` predicts them
{LOWERING}{selection("the first two", several=True)}"""


def run(options: Options) -> None:
    """Show how two layouts differ."""
    from mtfc.driver.simulate import diff

    options.show(diff(options.file, options.choice, options.layout, options.target, options.sources))
