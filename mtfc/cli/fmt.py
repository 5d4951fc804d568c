"""`mtfc fmt`: rewrite files in canonical form."""

from __future__ import annotations

from mtfc.cli.options import Options
from mtfc.driver.errors import ERRORS, OK, say

EXAMPLES = """\
examples:
  mtfc fmt model.mtf                 rewrite the file
  mtfc fmt --check *.mtf             print the files that are not in canonical form; status 1 if there are any
  mtfc fmt - < model.mtf             print the canonical form
"""

OPTIONS = """
  FILE...                a .mtf file; - reads standard input and prints
  --check                change no file, and fail if a file is not in canonical form
"""


def run(options: Options) -> int:
    from mtfc.driver.format import format_file

    changed = [path for path in options.files if format_file(path, options.check, options.sources)]
    if not options.check:
        return OK
    for path in changed:
        say(f"{path} is not in canonical form")
    return ERRORS if changed else OK
