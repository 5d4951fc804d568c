"""`mtfc lsp`: serve editors."""

from __future__ import annotations

import argparse

from mtfc.driver.errors import OK
from mtfc.driver.loading.sources import Sources

EXAMPLES = """\
Editors start this command; see docs/editors.md. It needs the package pygls: pip install 'mtfc[lsp]'.

examples:
  mtfc lsp                 serve one editor on standard input and output
"""

OPTIONS = "  --stdio  the only way to connect, which is the default"


def run(options: argparse.Namespace, sources: Sources) -> int:
    from mtfc.driver.data.packages import import_package

    import_package("pygls", "pygls", "the language server", "lsp")
    from mtfc.editor.server import run as serve

    serve()
    return OK
