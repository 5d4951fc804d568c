"""Write hardware as a declaration of the language, as `mtfc calibrate` does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from mtfc.compiler.cost.hardware import Hardware, Link, Rate, Scratchpad
from mtfc.frontend.hardware.declarations import FIELDS
from mtfc.frontend.syntax.format import format_source


def hardware_text(hardware: Hardware, comment: str) -> str:
    """Return a file in canonical form that declares the hardware, with figures rounded to four digits."""
    device = hardware.device
    ops = "".join(f"{name}: {_number(rate)}\n" for name, rate in device.ops.items())
    lines = [
        *(f"# {line}".rstrip() for line in comment.splitlines()),
        f"hardware {hardware.name} = {{",
        f"device: {{\n{_rates('flops', device.flops)}\nmemory: {_number(device.memory)}",
        f"bandwidth: {_rate(device.bandwidth)}\noverhead: {_number(device.overhead)}",
        *([f"loop: {_number(device.loop)}"] if device.loop else []),
        *([f"overlap: {_number(device.overlap)}"] if device.overlap < 1 else []),
        *([_rates("dots", attrs.asdict(device.dots, recurse=False))] if device.dots else []),
        *([_rates("attention", device.attention)] if device.attention else []),
        *([f"matrix: {device.mxu_size}"] if device.mxu_size else []),
        *([_scratchpad(device.scratchpad)] if device.scratchpad else []),
        f"ops: {{\n{ops}}}\n}}" if ops else "}",
        *map(_link, hardware.links),
        "}",
    ]
    return format_source("\n".join(lines) + "\n")


def _rates(entry: str, rates: Mapping[str, Rate | None]) -> str:
    given = (f"{key}: {_rate(rate)}\n" for key, rate in rates.items() if rate is not None)
    return f"{entry}: {{\n{''.join(given)}}}"


def _scratchpad(scratchpad: Scratchpad) -> str:
    figures = attrs.asdict(scratchpad, filter=lambda _, figure: figure is not None)
    keys = {field: key for key, field in FIELDS.items()}
    entries = (f"{keys.get(field, field)}: {_number(figure)}" for field, figure in figures.items())
    return "scratchpad: { " + ", ".join(entries) + " }"


def _link(link: Link) -> str:
    return f"link {link.name}: {{\n" + "".join(f"{line}\n" for line in _figures(link)) + "}"


def _figures(link: Link) -> Iterator[str]:
    yield f"kind: {link.kind}"
    if link.sizes:
        yield f"size: {link.sizes[0] if len(link.sizes) == 1 else link.sizes}"
    yield f"bandwidth: {_rate(link.bandwidth)}"
    yield f"latency: {_number(link.latency)}"
    if link.shared > 1:
        yield f"shared: {link.shared}"
    if link.wraps is not None:
        yield f"wraps: {link.wraps}"
    if link.collectives:
        yield _rates("collectives", link.collectives)


def _rate(rate: Rate) -> str:
    if len(rate.points) == 1:
        return _number(rate.points[0][1])
    return "{ " + ", ".join(f"{_number(size)}: {_number(each)}" for size, each in rate.points) + " }"


def _number(value: float) -> str:
    """Return a figure such as `1.234e9` or `16`."""
    text = f"{value:.4g}"
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else text
