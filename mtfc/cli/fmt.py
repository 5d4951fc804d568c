"""`mtfc fmt`: rewrite files in canonical form.

examples:
  mtfc fmt model.mtf                 rewrite the file
  mtfc fmt --check *.mtf             print the files that are not in canonical form; status 1 if there are any
  mtfc fmt - < model.mtf             print the canonical form
"""

from mtfc.cli.options import Options
from mtfc.driver.data.files import STANDARD, write_text
from mtfc.driver.errors import ERRORS, OK, say

OPTIONS = """
  FILE...                a .mtf file; - reads standard input and prints
  --check                change no file, and fail if a file is not in canonical form
"""


def run(options: Options) -> int:
    """Write files in canonical form; with `--check` name those that are not, and return the exit status."""
    changed = [path for path in options.files if _format(path, options)]
    if not options.check:
        return OK
    for path in changed:
        say(f"{path} is not in canonical form")
    return ERRORS if changed else OK


def _format(path: str, options: Options) -> bool:
    """Rewrite a file in canonical form unless `--check` is given, and return True if the canonical form differs from the file.

    Standard input is printed in canonical form. Raises `CompileError` and `UsageError`.
    """
    from mtfc.frontend.syntax.format import format_source

    file = options.sources.read(path)
    text = options.sources.texts[file]
    formatted = format_source(text, file)
    if not options.check and (formatted != text or path == STANDARD):
        write_text(path, formatted)
    return formatted != text
