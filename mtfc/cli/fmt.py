"""`mtfc fmt`: rewrite files in canonical form."""

from __future__ import annotations

import argparse

from mtfc.driver.data.files import STANDARD, write_text
from mtfc.driver.errors import ERRORS, OK, say
from mtfc.driver.sources import Sources

EXAMPLES = """\
examples:
  mtfc fmt model.mtf                 rewrite the file
  mtfc fmt --check *.mtf             name the files that are not in canonical form; status 1 if there are any
  mtfc fmt - < model.mtf             print the canonical form
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="a .mtf file; - reads standard input and prints"
    )
    parser.add_argument(
        "--check", action="store_true", help="change nothing, and fail if something would change"
    )


def run(options: argparse.Namespace, sources: Sources) -> int:
    changed = [path for path in options.files if _format(path, options.check, sources)]
    if options.check:
        for path in changed:
            say(f"{path} is not in canonical form")
    return ERRORS if options.check and changed else OK


def _format(path: str, check: bool, sources: Sources) -> bool:
    """Rewrite one file unless it is only checked; whether that changes it. Raises `CompileError`."""
    from mtfc.frontend.syntax.format import format_source

    file = sources.read(path)
    text = sources.texts[file]
    formatted = format_source(text, file)
    if not check and (formatted != text or path == STANDARD):
        write_text(path, formatted)
    return formatted != text
