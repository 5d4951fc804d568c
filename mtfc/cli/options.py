"""Options that several subcommands have, and their values for the driver."""

from __future__ import annotations

import argparse
import math
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtfc.driver.loading.choice import Choice, ProgramSource


class _Sizes(argparse.Action):
    """Collect `--dim NAME=SIZE` into a mapping; the last size of a name counts."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        options: argparse.Namespace,
        value: object,
        option: str | None = None,
    ) -> None:
        match = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*=\s*(-?\d{1,19})\s*", str(value))
        if match is None:
            parser.error(f"--dim takes NAME=SIZE, for example --dim batch=64, and not `{value}`")
        setattr(options, self.dest, {**getattr(options, self.dest), match[1]: int(match[2])})


def count(text: str) -> int:
    """Return a whole number from 1 on, as an option's type."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1 on, not `{text}`")
    return int(text)


def seconds(text: str) -> float:
    """Return a number of seconds, as an option's type."""
    return positive(text, "a number of seconds")


def positive(text: str, what: str = "a number") -> float:
    """Return a number above 0, as an option's type."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"expected {what} above 0, not `{text}`")
    return found


def seed(text: str) -> int:
    """Return a whole number of 32 bits, as an option's type."""
    if not text.isdigit() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 2**32 - 1, not `{text}`")
    return int(text)


def setting(text: str) -> str:
    """Return `KEY=VALUE` on one line, as an option's type; the compiler checks the value."""
    if re.fullmatch(r"\s*[A-Za-z_][^=]*=.*", text, re.DOTALL) is None:
        example = "for example accumulate=4 or optimizer.learning_rate=1e-3"
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, {example}, not `{text}`")
    return " ".join(text.splitlines())


def numbers(text: str) -> tuple[int, ...]:
    """Return whole numbers with commas between them, as an option's type."""
    if re.fullmatch(r"\s*\d{1,9}\s*(,\s*\d{1,9}\s*)*", text) is None:
        raise argparse.ArgumentTypeError(f"expected numbers such as 0,1, not `{text}`")
    return tuple(map(int, text.split(",")))


def chosen(options: argparse.Namespace) -> Choice:
    """Return the options of `add_model` and `add_selection` as a record; `--layout` may be missing or a list."""
    from mtfc.driver.loading.choice import Choice

    layout = getattr(options, "layout", None)
    layout = layout if isinstance(layout, str) else None
    passes = getattr(options, "pipeline", None)
    given = options.model, layout, options.mesh, options.dims, tuple(options.settings), passes
    return Choice(*given, _source(options), getattr(options, "memory", None))


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


def add_source(parser: argparse.ArgumentParser) -> None:
    """Add the file."""
    parser.add_argument("file", metavar="FILE", help="a .mtf file; - is standard input")


def add_program(parser: argparse.ArgumentParser, instead: str = "", is_required: bool = True) -> None:
    """Add a file or a function of JAX. instead: what else the argument may be."""
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs=None if is_required else "?",
        help=f"a .mtf file{instead}, or MODULE:FUNCTION with --args; - is standard input",
    )
    group = parser.add_argument_group("functions of JAX")
    group.add_argument(
        "--args",
        metavar="MODULE:VALUE",
        help="import FILE as MODULE:FUNCTION; the value is the tuple of its example arguments, or (args, kwargs),"
        " or a function that returns them",
    )
    group.add_argument(
        "--names",
        metavar="FILE.json|MODULE:VALUE",
        help='names of dimensions by argument: {"ids": "batch length", "**/up/kernel": "embed hidden"}',
    )
    group.add_argument(
        "--parameters",
        metavar="N,N",
        type=numbers,
        help="the arguments that hold the model, from 0 (default: the first, and all that are returned anew)",
    )
    group.add_argument(
        "--no-merge", action="store_true", help="let copies of a layer have layouts of their own"
    )


def add_format(parser: argparse.ArgumentParser) -> None:
    """Add the choice of text or JSON."""
    parser.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        help="text for people, JSON for programs (default: text)",
    )


def add_model(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the options that choose a model and its sizes."""
    group = parser.add_argument_group("choice of the program")
    group.add_argument("--model", metavar="NAME", help="the model to compile (default: the first)")
    group.add_argument(
        "--dim",
        metavar="NAME=SIZE",
        action=_Sizes,
        default={},
        dest="dims",
        help="change a dimension's size; repeatable",
    )
    group.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        type=setting,
        default=[],
        dest="settings",
        help="change an entry of the `train` block: accumulate=4, optimizer.learning_rate=1e-3; repeatable",
    )
    return group


def add_selection(
    parser: argparse.ArgumentParser,
    default_layout: str,
    several_layouts: bool = False,
    or_placement: bool = False,
) -> None:
    """Add the options that choose a model, its layouts and its mesh.

    several_layouts: `--layout` can be repeated. or_placement: `--layout` may name a placement.
    """
    group = add_model(parser)
    collected: dict[str, Any] = {"action": "append", "default": []} if several_layouts else {}
    group.add_argument(
        "--layout",
        metavar="NAME|RULES",
        help=f"a declared layout{' or placement' if or_placement else ''}, or rules (default: {default_layout})",
        **collected,
    )
    group.add_argument(
        "--mesh",
        metavar="NAME|SHAPE",
        help="a declared mesh, or a shape; `one` is a single device (default: the mesh of the layout)",
    )


def add_memory(parser: argparse.ArgumentParser) -> None:
    """Add the memory limit."""
    parser.add_argument(
        "--memory",
        metavar="SIZE|HW|SIZE@HW",
        help="the memory of a device, such as 80GiB, or a machine: the backward pass computes values again that would not fit",
    )


def add_passes(parser: argparse.ArgumentParser) -> None:
    """Add the passes that lower a program."""
    parser.add_argument(
        "--passes",
        dest="pipeline",
        metavar="PIPELINE",
        help='passes in place of the default ones, such as "differentiation,mine,partitioning"',
    )


def add_whole_documents(parser: argparse._ActionsContainer) -> None:
    """Add the option about the packing of documents."""
    parser.add_argument(
        "--whole-documents",
        action="store_true",
        help="cut a document only if it is longer than a row, and leave the ends of rows empty",
    )


def add_parameters(parser: argparse.ArgumentParser, is_required: bool = False) -> None:
    """Add the options that name parameters to start from."""
    parser.add_argument(
        "--params",
        metavar="FILE",
        required=is_required,
        help="initial values of parameters: .npz, .safetensors, a folder of shards, or a --dir of `mtfc train`"
        f"{'' if is_required else ' (default: drawn)'}",
    )
    parser.add_argument(
        "--params-partial",
        action="store_true",
        help="draw the parameters that --params lacks from --seed, and leave out those of a run that the model lacks",
    )
