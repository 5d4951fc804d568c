"""`mtfc lsp`: serve editors: diagnostics, costs by line, completion, renaming.

Editors start this command; see docs/editors.md. It needs the package pygls, which is part of the extra `lsp`.

examples:
  mtfc lsp                 serve one editor on standard input and output
"""

from mtfc.cli.options import Options

OPTIONS = "  --stdio  the only way to connect, which is the default"


def run(options: Options) -> None:
    """Serve an editor until it ends the connection."""
    from mtfc.driver.data.packages import import_package

    import_package("pygls", "pygls", "the language server", "lsp")
    from mtfc.editor.server import run as serve

    serve()
