"""`mtfc new`: start a project."""

from __future__ import annotations

import shlex
from pathlib import PurePath

from mtfc.cli.options import Options

EXAMPLES = """\
examples:
  mtfc new spirals                   make a folder `spirals` with a model, data and a test
"""

OPTIONS = "  DIR  the new folder"


def run(options: Options) -> None:
    from mtfc.driver.new_project import new_project

    files = new_project(options.folder)
    model = PurePath(options.folder, "model.mtf")
    shown = f"./{model}" if str(model).startswith("-") else str(model)
    print(
        f"{options.folder}: {', '.join(files)}",
        f"Start with `mtfc check {shlex.quote(shown)}`; README.md has the rest.",
        sep="\n",
    )
