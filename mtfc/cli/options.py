"""Options that several subcommands have, and their values for the driver."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from mtfc.driver.loading.choice import Choice, ProgramSource
    from mtfc.driver.loading.sources import Reported, Sources

FORMAT = """
  --format text|json     text for people, JSON for programs (default: text)
"""

SOURCE = "\n  FILE  a .mtf file; - is standard input\n"

MEMORY = """
  --memory SIZE|HW|SIZE@HW    the memory of a device, such as 80GiB, or a machine: the backward pass computes values again that
                         would not fit; or what loops keep for it: full, minimal, selective or alternate
"""

PASSES = """
  --passes PIPELINE      passes in place of the default ones, such as "differentiation,mine,partitioning"
"""

LOWERING = MEMORY + PASSES + FORMAT
"""The options of commands that lower a program, and print text or JSON."""

WHOLE_DOCUMENTS = """
  --whole-documents      cut a document only if it is longer than a row, and leave the ends of rows empty
"""

OF_PARAMETERS = """
  --params FILE          initial values of parameters: .npz, .safetensors, a folder of shards, or a --dir of `mtfc train`
  --params-partial       draw the parameters that --params lacks from --seed, and leave out those of a run that the model lacks
"""

PARAMETERS = OF_PARAMETERS.replace("`mtfc train`", "`mtfc train` (default: drawn)")

MODEL = """
choice of the program:
  --model NAME           the model to compile (default: the first)
  --dim NAME=SIZE        change a dimension's size; repeatable
  --set KEY=VALUE        change an entry of the `train` block: accumulate=4, optimizer.learning_rate=1e-3; repeatable
"""

OF_FUNCTIONS = """
functions of JAX:
  --args MODULE:VALUE    import FILE as MODULE:FUNCTION; the value is the tuple of its example arguments, or (args, kwargs), or a
                         function that returns them
  --names FILE.json|MODULE:VALUE    names of dimensions by argument: {"ids": "batch length", "**/up/kernel": "embed hidden"}
  --parameters N,N       the arguments that hold the model, from 0 (default: the first, and all that are returned anew)
  --no-merge             let copies of a layer have layouts of their own
"""


def selection(default_layout: str, or_placement: bool = False, several: bool = False) -> str:
    """Return the options that choose a model, its layouts and its mesh.

    or_placement: `--layout` may name a placement. several: `--layout` is repeatable.
    """
    return f"""{MODEL}
  --layout NAME|RULES    a declared layout{" or placement" * or_placement}, or rules (default: {
        default_layout
    }){"; repeatable" * several}
  --mesh NAME|SHAPE      a declared mesh, or a shape; `one` is a single device (default: the mesh of the layout)
"""


def chosen(options: argparse.Namespace) -> Choice:
    """Return the options of `MODEL` and of a selection as a record; `--layout` may be missing or a list."""
    from mtfc.driver.loading.choice import Choice

    layout = getattr(options, "layout", None)
    layout = layout if isinstance(layout, str) else None
    mesh, passes, memory = (getattr(options, name, None) for name in ("mesh", "passes", "memory"))
    given = options.model, layout, mesh, dict(options.dims), tuple(options.settings), passes
    return Choice(*given, _source(options), memory)


def _source(options: argparse.Namespace) -> ProgramSource | None:
    """Return the function of JAX that the options name, or None for a file. Raises `UsageError`."""
    if not hasattr(options, "args") or options.file is None:
        return None
    if options.args is None and ":" not in options.file and not _has_function_options(options):
        return None
    from mtfc.driver.errors import UsageError
    from mtfc.driver.jax_functions.function_source import FunctionSource, is_function

    if options.args is None and is_function(options.file):
        raise UsageError(
            f"{options.file}: a function of JAX takes --args MODULE:EXAMPLE_ARGS, and a graph is a value that `mtfc.graph` makes"
        )
    if options.args is None and _has_function_options(options):
        raise UsageError("--names, --parameters and --no-merge go with --args, for a function of JAX")
    if options.args is None:
        return None
    if options.model or options.dims or options.settings:
        raise UsageError(f"{options.file} is one program at fixed sizes: no --model, --dim or --set")
    return FunctionSource(options.file, options.args, options.names, options.parameters, not options.no_merge)


def show(found: Reported, options: argparse.Namespace, sources: Sources, to: TextIO | None = None) -> int:
    """Print a result in the form of `--format`, and return the status of success."""
    if options.format == "json":
        import json

        print(json.dumps(found.record(), indent=2), file=to)
    else:
        print(found.report(sources.with_library()), end="", file=to)
    return 0


def read_files(options: argparse.Namespace) -> dict[str, str | None]:
    """Return the files that a program is read from, by option: no result may replace them."""
    found = {
        "FILE": _file_of(options.file),
        "--args": _file_of(options.args),
        "--names": _file_of(options.names),
    }
    return {**found, "--layout": getattr(options, "layout", None)}


def _file_of(text: str | None) -> str | None:
    """Return a file, or the file of the module in `MODULE:NAME`."""
    module = re.fullmatch(r"([^\W\d][\w.]*):[^\W\d][\w.]*", text or "")
    return f"{module[1].replace('.', '/')}.py" if module else text


def _has_function_options(options: argparse.Namespace) -> bool:
    return bool(options.names or options.parameters or options.no_merge)


def program(instead: str = "", is_required: bool = True) -> str:
    """Return the arguments for a file or a function of JAX. instead: what else the file may be."""
    name = "FILE" if is_required else "[FILE]"
    about = f"a .mtf file{instead}, or MODULE:FUNCTION with --args; - is standard input"
    return f"\n  {name}  {about}\n{OF_FUNCTIONS}options:\n"
