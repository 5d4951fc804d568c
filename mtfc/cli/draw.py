"""`mtfc draw`: draw the parts of a layout or a placement.

examples:
  mtfc draw model.mtf -o model.svg                           draw the first layout
  mtfc draw model.mtf --layout hybrid --array w --array h -o model.svg
  mtfc draw found.mtf --layout found -o placed.svg           draw a placement of mtfc search --space soap
  mtfc draw train:step --args train:example --layout plan.json -o plan.svg     draw a plan of a function of JAX
"""

from mtfc.cli.options import Options, program, selection
from mtfc.driver.data.files import write_text

OPTIONS = f"""{program()}
  -o, --output OUT.svg   write the drawing to this file
  --array NAME           draw this array (default: parameters, and the values that FILE names); repeatable
{selection("the first", or_placement=True)}"""
REQUIRED = "output"


def run(options: Options) -> None:
    """Write a drawing of the parts of arrays that devices hold."""
    from mtfc.driver.report import drawing

    options.check_outputs("-o")
    found = drawing(options.file, options.choice, options.sources, options.array)
    write_text(options.output, found.svg)
