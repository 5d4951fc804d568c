"""Arguments of subcommands, written as their help shows them.

A text has a line for each argument, and a line for each group of options, which ends with a colon:

      FILE               a .mtf file
    length and data:
      --steps N          train until step N (default: one epoch)
      --backend numpy|jax    the backend that executes
      --fresh            start over

`[FILE]` may be left out, and `FILE...` are several. The group `options:` is that of all options without another group.
The word after an option says what it takes. A word in small letters is one choice or several; `TYPES` and `TYPES_OF` convert the
others; without a word the option is a flag. A help that ends with `; repeatable` makes a list. An option's default is that of the
field with its name in the record of the subcommand's options (`driver/options.py`), so it stands once.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import attrs

ARGUMENT = re.compile(r"  (\[?)([A-Z]+)(\.\.\.)?\]?  +(\S.*)")
OPTION = re.compile(r"  ((?:-\w, )?--?[\w-]+)(?: (\S+))?  +(\S.*)")


def number(what: str, least: float, most: float = math.inf, of: type[float] = int) -> Callable[[str], float]:
    """Return an option's type: a whole number or a float, at least `least` and below `most`, which messages call `what`."""

    def converted(text: str) -> float:
        with suppress(ValueError):
            if (of is float or text.isdecimal()) and least <= of(text) < most:
                return of(text)
        raise argparse.ArgumentTypeError(f"expected {what}, not `{text}`")

    return converted


def _numbers(text: str) -> tuple[int, ...]:
    """Return numbers such as `0,1`. Raises `ArgumentTypeError`."""
    if re.fullmatch(r"\s*\d{1,9}\s*(,\s*\d{1,9}\s*)*", text) is None:
        raise argparse.ArgumentTypeError(f"expected numbers such as 0,1, not `{text}`")
    return tuple(map(int, text.split(",")))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _size(text: str) -> tuple[str, int]:
    """Return the name and the size of `NAME=SIZE`. Raises `ArgumentTypeError`."""
    match = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*=\s*(-?\d{1,19})\s*", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected NAME=SIZE, for example batch=64, and not `{text}`")
    return match[1], int(match[2])


def _setting(text: str) -> str:
    """Return `KEY=VALUE` on one line; the compiler checks the value."""
    if re.fullmatch(r"\s*[A-Za-z_][^=]*=.*", text, re.DOTALL) is None:
        example = "for example accumulate=4 or optimizer.learning_rate=1e-3"
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, {example}, not `{text}`")
    return " ".join(text.splitlines())


def _ranges(text: str) -> tuple[range, ...]:
    """Return ranges of steps from `7,20-23`."""
    found = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise argparse.ArgumentTypeError(f"expected steps such as 7 or 20-23, not `{part.strip()}`")
        found.append(range(int(first), int(last or first) + 1))
        if not found[-1]:
            raise argparse.ArgumentTypeError(f"`{part.strip()}` has no steps: the smaller number comes first")
    return tuple(found)


def _metric(text: str) -> object:
    """Return a metric such as `accuracy:max`."""
    from mtfc.driver.options import Metric

    name, colon, direction = text.partition(":")
    if not name or (colon and direction not in ("max", "min")):
        raise argparse.ArgumentTypeError(f"expected a mean such as loss or accuracy:max, not `{text}`")
    return Metric(name, direction == "max" if colon else None)


COUNT = number("a number from 1 on", 1)
SECONDS = number("a number of seconds above 0", math.ulp(0.0), of=float)

TYPES: Mapping[str, Callable[[str], object]] = {
    "A,B": _names,
    "B": number("a number above 0", math.ulp(0.0), of=float),
    "I": number("a number from 0 on", 0),
    "KEY=VALUE": _setting,
    "M": SECONDS,
    "METRIC": _metric,
    "N": COUNT,
    "N,N": _numbers,
    "N-M,...": _ranges,
    "NAME=SIZE": _size,
    "S": SECONDS,
    "S,O,A,P": _names,
    "SECONDS": SECONDS,
    "T": number("a number from 0 on", 0, of=float),
}
"""The type of a value by the word that stands for it; other words are texts."""

TYPES_OF: Mapping[str, Callable[[str], object]] = {
    "seed": number("a number from 0 to 2**32 - 1", 0, 2**32),
    "join_seconds": COUNT,
}
"""Types of options whose word says another type."""

FIELDS = {
    "dim": "dims",
    "dir": "folder",
    "distributed": "detect",
    "from": "source",
    "join_seconds": "seconds",
    "prompt": "prompts",
    "set": "settings",
    "skip_steps": "skipped",
}
"""The fields of options that have another name in the driver."""


def add_options(
    parser: argparse.ArgumentParser,
    text: str,
    *records: type[attrs.AttrsInstance],
    required: str = "",
    choices: Mapping[str, Sequence[str]] | None = None,
    **defaults: object,
) -> None:
    """Add the arguments of a text to a parser.

    records: classes of attrs with the defaults of their fields. required: names of options that must be given, separated by
    blanks. choices: the possible values of an argument, by name. defaults: further ones by field.
    """
    defaults.setdefault("format", "text")
    for record in records:
        for field in record.__attrs_attrs__:
            if not field.default or isinstance(field.default, str | int | float | tuple):
                defaults.setdefault(field.name, field.default)
    group: argparse._ActionsContainer = parser
    for line in _joined(text):
        if line.endswith(":") and not line.startswith(" "):
            group = parser if line == "options:" else parser.add_argument_group(line[:-1])
        else:
            _add(group, line, required.split(), choices or {}, defaults)


def _joined(text: str) -> list[str]:
    """Return the lines of options, each joined with the lines that go on with its help."""
    found: list[str] = []
    for line in filter(None, text.splitlines()):
        if line.startswith("      "):
            found[-1] += f" {line.strip()}"
        else:
            found.append(line)
    return found


def _add(
    group: argparse._ActionsContainer,
    line: str,
    required: list[str],
    choices: Mapping[str, Sequence[str]],
    defaults: dict[str, object],
) -> None:
    """Add the argument or option that a line of help text describes to a group of a parser.

    required: the names of required options. choices, defaults: by name of the option, and by field.
    """
    if match := ARGUMENT.fullmatch(line):
        bracket, value, several, about = match.groups()
        name, number = value.lower() + "s" * bool(several), "?" if bracket else "+" if several else None
        group.add_argument(
            FIELDS.get(name, name), metavar=value, nargs=number, help=about, choices=choices.get(name)
        )
        return
    match = OPTION.fullmatch(line)
    if match is None:
        raise ValueError(f"no option: {line}")
    names, value, about = match[1].split(", "), match[2], match[3]
    name = names[-1].lstrip("-").replace("-", "_")
    field = FIELDS.get(name, name)
    given: dict[str, Any] = {"help": about, "dest": field}
    if value is None:
        group.add_argument(*names, action="store_true", **given)
        return
    if name in choices:
        given |= {"metavar": value, "choices": choices[name]}
    elif value.islower():
        given["choices"] = tuple(value.split("|"))
    else:
        given |= {"metavar": value, "type": TYPES_OF.get(name) or TYPES.get(value)}
    default = defaults.get(field)
    if "; repeatable" in about:
        given["action"], default = "append", defaults.get(field, [])
    group.add_argument(*names, default=default, required=name in required, **given)
