"""`mtfc help`: print a page of the documentation.

examples:
  mtfc help                          list the topics
  mtfc help language                 print the reference of the language
  mtfc help E301                     print what a diagnostic means, as `mtfc explain E301` does
"""

import sys

from mtfc.cli.options import Options
from mtfc.driver.errors import OK

OPTIONS = "  [TOPIC]  a page, a diagnostic, a command, or a module of the library"


def run(options: Options) -> int:
    """Run `mtfc help`: list the topics, or print the page of one; a command without a page prints its own help."""
    from mtfc.cli.command import SUBCOMMANDS, main
    from mtfc.driver.help_pages import grouped, page, topics

    topic = options.topic
    if topic is None:
        found = topics()
        width = max(map(len, found))
        print("Topics of `mtfc help TOPIC`:")
        for title, names in grouped(found).items():
            print(f"  {title}:", *(f"    {name:{width}}  {found[name]}" for name in names), sep="\n")
    elif topic in SUBCOMMANDS and topic not in topics():
        return main([topic, "--help"])
    else:
        print_paged(page(topic))
    return OK


def print_paged(text: str) -> None:
    """Print a text, on a terminal through the user's pager."""
    if sys.stdout.isatty():
        from pydoc import pager

        pager(text)
    else:
        print(text, end="")
