"""`mtfc explain`: print the rules of a layout that cause its collectives.

examples:
  mtfc explain model.mtf                                explain the collectives of the first layout
  mtfc explain model.mtf --layout hybrid
  mtfc explain model.mtf --layout "batch:rows;hidden:cols" --mesh "rows:2;cols:4" --format json
  mtfc explain E301                                     print what a diagnostic means, with an example
  mtfc explain train:step --args train:example --layout plan.json       explain a plan of a function of JAX
"""

from mtfc.cli.options import LOWERING, Options, program, selection

OPTIONS = program(", the code of a diagnostic") + LOWERING + selection("the first")


def run(options: Options) -> None:
    """Show what a diagnostic's code means, or which rules of a layout cause its collectives."""
    from mtfc.driver.help_pages import code_section, is_code

    if is_code(options.file):
        from mtfc.cli.help import print_paged

        print_paged(code_section(options.file))
        return
    from mtfc.driver.simulate import explain

    options.show(explain(options.file, options.choice, options.sources))
