"""Files in canonical form, for `mtfc fmt`."""

from __future__ import annotations

from mtfc.driver.data.files import STANDARD, write_text
from mtfc.driver.loading.sources import Sources


def format_file(path: str, check: bool, sources: Sources) -> bool:
    """Rewrite a file in canonical form unless `check`, and return True if the canonical form differs from the file.

    Standard input is printed in canonical form. Raises `CompileError` and `UsageError`.
    """
    from mtfc.frontend.syntax.format import format_source

    file = sources.read(path)
    text = sources.texts[file]
    formatted = format_source(text, file)
    if not check and (formatted != text or path == STANDARD):
        write_text(path, formatted)
    return formatted != text
