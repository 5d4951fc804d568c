"""Write hardware as a declaration of the language, as `mtfc calibrate` does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from mtfc.compiler.cost.hardware import DotShares, Hardware, Rate, Scratchpad
from mtfc.frontend.hardware.declarations import DEVICE, DOTS, FIELDS, LINK, SCRATCHPAD
from mtfc.frontend.syntax.format import format_source

USUAL = {"loop": 0.0, "overlap": 1.0, "shared": 1}
"""Figures that are left out if they have these values."""


def hardware_text(hardware: Hardware, comment: str) -> str:
    """Return a file in canonical form that declares the hardware, with figures rounded to four digits."""
    links = ((f"link {link.name}", link, LINK) for link in hardware.links)
    lines = [
        *(f"# {line}".rstrip() for line in comment.splitlines()),
        f"hardware {hardware.name} = {{",
        *(
            f"{name}: {_braces(_entries(of, keys))}"
            for name, of, keys in (("device", hardware.device, DEVICE), *links)
        ),
        "}",
    ]
    return format_source("\n".join(lines) + "\n")


def _entries(record: object, known: Iterable[str]) -> Iterator[str]:
    """Yield the entries of a record that say something."""
    for key in known:
        value = getattr(record, FIELDS.get(key, key))
        if value not in (None, (), {}) and value != USUAL.get(key):
            yield f"{key}: {_text(value)}"


def _text(value: object) -> str:
    """Return the text of a figure. Tables of rates by name have a line for each."""
    if isinstance(value, Rate) and len(value.points) > 1:
        return _on_one_line(f"{_text(size)}: {_text(rate)}" for size, rate in value.points)
    if isinstance(value, Rate):
        return _text(value.points[0][1])
    if isinstance(value, Scratchpad):
        return _on_one_line(_entries(value, SCRATCHPAD))
    if isinstance(value, DotShares):
        return _braces(_entries(value, DOTS))
    if isinstance(value, Mapping):
        return _braces(f"{key}: {_text(each)}" for key, each in value.items())
    if isinstance(value, tuple):
        return str(value[0] if len(value) == 1 else value)
    return _number(value) if isinstance(value, float) else str(value)


def _braces(entries: Iterable[str]) -> str:
    return "{\n" + "".join(f"{entry}\n" for entry in entries) + "}"


def _on_one_line(entries: Iterable[str]) -> str:
    return "{ " + ", ".join(entries) + " }"


def _number(value: float) -> str:
    """Return a figure such as `1.234e9` or `16`."""
    text = f"{value:.4g}"
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else text
