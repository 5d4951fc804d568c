"""The command line: the subcommands, the parser, and the frame around a subcommand."""

import argparse
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from keyword import iskeyword
from pathlib import Path
from typing import Any, NoReturn, Protocol, cast

from mtfc.cli.errors import choose_color, diagnosed, encode_anything, guarded
from mtfc.cli.option_text import add_options
from mtfc.cli.options import Options
from mtfc.driver.errors import OK, USAGE

DESCRIPTION = """\
mtfc shows what a step computes, sends and stores on a mesh of devices, and plans it. The step is a function of JAX, as in
`mtfc cost train:step --args train:example`, or a model over named dimensions, in a .mtf file.
`mtfc help daily` shows the use of every day."""

EPILOG = """\
`mtfc COMMAND --help` shows each command's options, with examples.
Exit status: 0 success, 1 the program has errors, 2 wrong usage, 3 the environment lacks something."""


GROUPS = {
    "every day": "cost explain search simulate inspect diff verify report check train",
    "models and arrays": "compile run eval export import draw fmt",
    "installation": "new doctor completion help lsp",
    "research": "calibrate solve",
}
"""Subcommands by purpose. Each is a module of this package, which is imported only for its own subcommand."""

SUBCOMMANDS = tuple(" ".join(GROUPS.values()).split())


HABITS = {
    "build": "compile", "fit": "train", "format": "fmt", "generate": "run", "init": "new", "lint": "check", "optimize": "search",
    "plan": "search", "plot": "draw", "predict": "run", "price": "cost", "profile": "simulate", "test": "verify",
    "typecheck": "check", "validate": "check", "version": "--version",
    **dict.fromkeys(("--lr", "--learning-rate"), "--set optimizer.learning_rate=0.1"),
    **dict.fromkeys(("--batch-size", "--batch"), "--dim batch=32"),
    **dict.fromkeys(("--gpu", "--cuda", "--device", "--cpu"), "JAX_PLATFORMS=cpu in the environment"), "--json": "--format json",
    **dict.fromkeys(("--gpus", "--num-devices", "--n-devices"), "--devices 8, or --mesh data:8"),
    "--compiled": "mtfc inspect FILE --target cpu:8, for plan.apply with --apply",
}  # fmt: skip
"""Commands and options of other programs, and our own for each."""


WITH_OWN_LINES = ("train", "lsp")
"""Subcommands that write to a terminal on their own: a bar of steps, and messages of a protocol."""


class Subcommand(Protocol):
    """The contents of a subcommand's module, whose docstring is its help: the summary after the name, and examples.

    OPTIONS: its arguments: see `option_text.py`. A module may also have `RECORDS`, `REQUIRED`, `DEFAULTS` and `CHOICES`, and in
    `MORE` a text that stands below the examples.
    """

    OPTIONS: str

    def run(self, options: Options) -> int | None: ...


def _module(name: str) -> str:
    """Return the name of a subcommand's module, which is no keyword of Python."""
    return f"{name}{'_' * iskeyword(name)}"


def _subcommand(name: str) -> Subcommand:
    """Return the module of a subcommand."""
    return cast(Subcommand, import_module(f"mtfc.cli.{_module(name)}"))


def _help(name: str) -> tuple[str, str]:
    """Return the summary and the further help of a subcommand from its docstring, without the import of its module."""
    text = Path(__file__).with_name(f"{_module(name)}.py").read_text("utf-8")
    head, _, more = text.split('"""')[1].partition("\n\n")
    return head.partition(": ")[2].strip().removesuffix("."), more


def add_arguments(module: Subcommand, parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a subcommand to a parser."""
    records, defaults = getattr(module, "RECORDS", ()), getattr(module, "DEFAULTS", {})
    required, choices = getattr(module, "REQUIRED", ""), getattr(module, "CHOICES", None)
    add_options(parser, module.OPTIONS, *records, required=required, choices=choices, **defaults)


EXAMPLES = {"FILE": "model.mtf", "--target": "--target h100"}
"""Arguments that are required, with an example of each."""

MAY_BE_EMPTY = ("layout", "passes")
"""Options that may be empty: a layout without rules, and no passes."""


class _Strict(argparse.ArgumentParser):
    """A parser that reports unknown arguments and empty values in a line of its own subcommand, with the next step."""

    def error(self, message: str) -> NoReturn:
        required = message.partition("required: ")[2].split(", ")
        examples = " ".join(EXAMPLES[name] for name in required if name in EXAMPLES)
        such = f", such as `{examples}`" if examples else ""
        self.exit(USAGE, f"{self.prog}: error: {message}{such}\n`{self.prog} --help` shows what there is\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is none of the choices, with the nearest one as help."""
        if action.choices is not None and value not in action.choices:
            from mtfc.compiler.diagnostics import nearest

            what = "there is no command" if action.dest == "command" else "there is no value"
            near = HABITS.get(value) or nearest(str(value), map(str, action.choices))
            remedy = (
                f"did you mean `{near}`?" if near else f"choose from {', '.join(map(str, action.choices))}"
            )
            place = action if action.option_strings else None
            raise argparse.ArgumentError(place, f"{what} `{value}`: {remedy}")

    def parse_known_args(self, *arguments: Any, **named: Any) -> Any:
        """Parse arguments; refuse unknown ones, and empty texts where a value is expected."""
        options, unknown = super().parse_known_args(*arguments, **named)
        if unknown:
            self.error(self._unknown(unknown))
        for action in self._actions:
            value = getattr(options, action.dest, None)
            may_be_empty = not action.option_strings or action.dest in MAY_BE_EMPTY
            if isinstance(value, str) and not value.strip() and not may_be_empty:
                names = "/".join(action.option_strings)
                self.error(f"argument {names}: expected a value, and not an empty text")
        return options, unknown

    def _unknown(self, arguments: list[str]) -> str:
        """Return the message about arguments that the subcommand does not take."""
        from mtfc.compiler.diagnostics import nearest

        option = next((each.partition("=")[0] for each in arguments if each.startswith("-")), None)
        if option is None:
            message = f"unexpected {' '.join(arguments)}: the name of an option is missing before it"
            such = f", as in `--layout {arguments[0]}`" if "--layout" in self._option_string_actions else ""
            return f"{message}{such}, or quotes around blanks"
        message = f"there is no option {option}"
        if option in HABITS:
            return f"{message}: write {HABITS[option]}"
        pattern = rf"^  (-\w, )?{re.escape(option)}\b(?!-)"
        others = [name for name in SUBCOMMANDS if re.search(pattern, _subcommand(name).OPTIONS, re.MULTILINE)]
        if others:
            return f"{message}: it is one of {', '.join(f'`mtfc {name}`' for name in others)}"
        near = nearest(option.strip("-"), [name.strip("-") for name in self._option_string_actions])
        return f"{message}: did you mean --{near}?" if near else message


class _Version(argparse.Action):
    """Print the installed version. Other commands save the time to read it."""

    def __call__(self, parser: argparse.ArgumentParser, *rest: object) -> None:
        from mtfc.driver.version import installed_version

        version = installed_version()
        print(f"mtfc {version}" if version else "mtfc, not installed")
        parser.exit()


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help as Python 3.13 prints it: the column fits the names of all commands, and an option's value stands once."""

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        indent = self._current_indent + self._indent_increment
        if isinstance(action, argparse._SubParsersAction):
            self._action_max_length = max(
                self._action_max_length, *(indent + len(name) for name in action.choices)
            )

    def _format_action(self, action: argparse.Action) -> str:
        """Return the text of an action, below the title of its group if it is the first command there."""
        is_command = isinstance(action, argparse._SubParsersAction._ChoicesPseudoAction)
        titles = (title for title, names in GROUPS.items() if is_command and names.split()[0] == action.dest)
        return "".join(f"  {title}:\n" for title in titles) + super()._format_action(action)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Return `-o, --output FILE`: the value stands once, after all forms of an option."""
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


def make_parser(arguments: Sequence[str], with_all_options: bool = False) -> argparse.ArgumentParser:
    """Return the parser of the subcommand in `arguments`, or of all subcommands without their options.

    with_all_options: return the parser of all subcommands with their options, which imports the module of each.
    """
    parser = _Strict("mtfc", description=DESCRIPTION, epilog=EPILOG, formatter_class=_Help)
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    _add_color(parser, "auto")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    named = [name for name in arguments if name in SUBCOMMANDS][:1]
    detailed = SUBCOMMANDS if with_all_options else named
    for name in detailed or SUBCOMMANDS:
        summary, more = _help(name)
        title = f"{summary[0].upper()}{summary[1:]}."
        added = subparsers.add_parser(name, help=summary, description=title, formatter_class=_Help)
        if name in detailed:
            added.epilog = more + getattr(_subcommand(name), "MORE", "")
            add_arguments(_subcommand(name), added)
            _add_color(added, argparse.SUPPRESS)
    return parser


def _add_color(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the option `--color` to a parser."""
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default=default,
        metavar="WHEN",
        help="colours in diagnostics: always, never or auto, on a terminal unless NO_COLOR is set (default: auto)",
    )


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    encode_anything()
    try:
        options = make_parser(arguments).parse_args(arguments, Options())
    except SystemExit as end:
        return int(end.code or 0)
    choose_color(options.color)
    if options.command in WITH_OWN_LINES or not sys.stderr.isatty():
        return guarded(lambda: _run(options))
    from mtfc.cli.progress import progress_line

    with progress_line(options.command):
        return guarded(lambda: _run(options))


def _run(options: Options) -> int:
    """Import late what `--help` does not need."""
    from mtfc.driver.loading.sources import Sources

    options.sources = Sources()
    run = _subcommand(options.command).run

    def with_graph() -> int:
        """Run the command; a file `FILE.py:NAME` stands for a graph that is built in Python."""
        file = getattr(options, "file", None)
        if isinstance(file, str) and ":" in file and getattr(options, "args", None) is None:
            from mtfc.driver.loading.other_files import graph_file

            options.graph, options.file = graph_file(file)
        return run(options) or OK

    return diagnosed(with_graph, options)
