"""Drawings of layouts and placements as SVG, for `mtfc draw`.

A layout is drawn as in the Mesh-TensorFlow paper's illustrations: each array as a rectangle with the parts that processors hold.
A placement is drawn as in the FlexFlow paper's Figures 13 and 14: each operator as a grid of parts in the colours of devices.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import product

import attrs

from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.printer import layout_summary
from mtfc.compiler.ir.types import Axes, Layout, Mesh, TensorType

WIDTH, MARGIN, GAP = 1000, 20, 26
PANEL, LETTER = 210, 6.3
"""Widths in pixels: the drawing, the space around and between panels, a panel, and a letter."""

MOST_CELLS = 1024
"""Most parts that a panel draws; more are only counted."""

LABELLED = 14.0
"""Least pixels of a part with a label."""


@attrs.frozen
class DrawnOperator:
    """An operator of a placement: its degree along each split dimension, and the device of each part, the last dimension
    fastest.
    """

    name: str
    degrees: tuple[tuple[str, int], ...]
    devices: tuple[int, ...]


@attrs.frozen
class _Cell:
    """One part in a panel."""

    color: str
    label: str
    tip: str


@attrs.frozen
class _Panel:
    """A grid of parts under a title. cells: row by row. sides: what the rows and the columns stand for."""

    title: str
    note: str
    columns: int
    cells: Sequence[_Cell]
    sides: tuple[str, str] = ("", "")

    @property
    def rows(self) -> int:
        return -(-len(self.cells) // self.columns)


def layout_drawing(model: str, meshes: Sequence[tuple[Mesh, Layout, Iterable[Value]]], rest: int = 0) -> str:
    """Return the SVG of a layout: the devices of each mesh, then each array there. rest: the number of arrays left out."""
    on = "" if len(meshes) == 1 else " on {}"
    rules = ", ".join(f"{layout_summary(layout)}{on.format(mesh.name)}" for mesh, layout, _ in meshes)
    note = f"and {rest} more arrays" if rest else ""
    groups = [[_mesh_panel(mesh), *(_array_panel(x, mesh) for x in arrays)] for mesh, _, arrays in meshes]
    return _drawing(f"{model}, layout {meshes[0][1].name} {rules}", groups, note)


def placement_drawing(model: str, name: str, devices: int, operators: Iterable[DrawnOperator]) -> str:
    """Return the SVG of a placement: the colours of the devices, then each operator in order."""
    key = [_Cell(_device_color(i, devices), str(i), f"device {i}") for i in range(devices)]
    columns = min(devices, 16)
    legend = _Panel("devices", "", columns, key)
    panels = [legend, *(_operator_panel(each, devices) for each in operators)]
    return _drawing(f"{model}, placement {name} on {devices} devices", [panels])


# Panels


def _mesh_panel(mesh: Mesh) -> _Panel:
    """Return a panel with a cell for each device of a mesh, the last axis from left to right."""
    coordinates = product(*(range(size) for _, size in mesh.axes))
    cells = [
        _Cell(
            _color(mesh, dict(zip(mesh.names, at, strict=True))), ",".join(map(str, at)), f"device {i}: {at}"
        )
        for i, at in enumerate(coordinates)
    ]
    sides = ", ".join(mesh.names[:-1]), mesh.names[-1]
    return _Panel(f"mesh {mesh.name}", f"[{mesh.axes_text}]", mesh.axes[-1][1], cells, sides)


def _array_panel(array: Value, mesh: Mesh) -> _Panel:
    """Return the parts of an array: its split dimensions, or two of all. The last one stands across, the others down."""
    type = array.type
    degrees = [mesh.size(axes) for axes in type.splits]
    split = [i for i, degree in enumerate(degrees) if degree > 1]
    whole = [i for i in reversed(range(len(degrees))) if i not in split]
    *down, across = sorted([*split, *whole[: max(0, 2 - len(split))]]) or [-1]
    cells = []
    for part in product(*(range(degrees[i]) for i in (*down, across) if i >= 0)):
        at = _place(dict(zip((*down, across), part, strict=False)), type, mesh)
        where = ",".join(str(at[axis]) if axis in at else "*" for axis in mesh.names)
        cells.append(_Cell(_color(mesh, at), where, _held(part, (*down, across), type, degrees)))
    columns = degrees[across] if degrees else 1
    sides = (
        " × ".join(_side(type, i, degrees[i]) for i in down),
        _side(type, across, columns) if degrees else "",
    )
    return _Panel(array.name, str(type), columns, cells or [_Cell(_color(mesh, {}), "*", "")], sides)


def _side(type: TensorType, i: int, degree: int) -> str:
    dim = type.dims[i]
    return f"{dim.name} {dim.size}" + (f" in {degree}" if degree > 1 else "")


def _place(parts: Mapping[int, int], type: TensorType, mesh: Mesh) -> dict[str, int]:
    """Return the coordinates of the devices that hold a part, along the axes that split the array."""
    found: dict[str, int] = {}
    for i, part in parts.items():
        axes: Axes = type.splits[i] if type.splits else ()
        for axis in reversed(axes):
            part, found[axis] = divmod(part, mesh.sizes[axis])
    return found


def _held(part: Sequence[int], order: Sequence[int], type: TensorType, degrees: Sequence[int]) -> str:
    """Return the positions that a part of an array has along each split dimension: `io 0:64, cols 64:128`."""
    texts = []
    for i, number in zip(order, part, strict=False):
        step = type.dims[i].size // degrees[i]
        texts.append(f"{type.dims[i].name} {number * step}:{(number + 1) * step}")
    return ", ".join(texts)


def _operator_panel(operator: DrawnOperator, devices: int) -> _Panel:
    """Return a panel with a cell for each part of an operator, in the colour of its device."""
    degrees = [degree for _, degree in operator.degrees]
    columns = degrees[-1] if degrees else 1
    numbers = list(product(*map(range, degrees)))
    cells = [
        _Cell(_device_color(device, devices), str(device), _part_text(operator, number, device))
        for number, device in zip(numbers, operator.devices, strict=True)
    ]
    sides = [f"{name} in {degree}" for name, degree in operator.degrees]
    ends = " × ".join(sides[:-1]), "".join(sides[-1:])
    return _Panel(operator.name, "" if degrees else "whole", columns, cells, ends)


def _part_text(operator: DrawnOperator, number: Sequence[int], device: int) -> str:
    parts = [f"{dim} {i + 1} of {n}" for (dim, n), i in zip(operator.degrees, number, strict=True)]
    return ", ".join([*parts, f"on device {device}"])


# Colours


def _device_color(device: int, devices: int) -> str:
    """Return a hue for each device; neighbours of many devices differ in lightness, too."""
    return f"hsl({360 * device / devices:.0f} 58% {(50, 64, 40)[device % 3] if devices > 6 else 55}%)"


def _color(mesh: Mesh, at: Mapping[str, int]) -> str:
    """Return the colour of coordinates: the first axis decides the hue, the second the lightness, a third the saturation.

    A part that is on all devices along the first axis is grey.
    """
    shares = [at[name] / size if name in at and size > 1 else None for name, size in mesh.axes]
    first, second, third = (*shares, None, None)[:3]
    hue = 215 if first is None else 205 + 320 * first
    saturation = 8 if first is None and len(shares) > 1 else 58 - (0 if third is None else 38 * third)
    lightness = 62 if second is None else 44 + 36 * second
    return f"hsl({hue % 360:.0f} {saturation:.0f}% {lightness:.0f}%)"


# SVG


STYLE = (
    ".mtfc{background:#fff}.mtfc text{font:11px 'DejaVu Sans',Arial,sans-serif;fill:#1c2430}.mtfc rect{stroke:#fff}"
    ".mtfc .t{font-weight:bold;font-size:12px}.mtfc .n{fill:#5d6878;font-size:10px}.mtfc .h{font-weight:bold;font-size:14px}"
    ".mtfc .l{text-anchor:middle;font-size:9.5px}"
)
"""Rules for drawings alone, which may stand in a page of others."""


def _drawing(title: str, groups: Sequence[Sequence[_Panel]], note: str = "") -> str:
    """Return panels in rows as wide as the drawing, below a title. Each group starts a row."""
    per_row = max(1, (WIDTH - 2 * MARGIN + GAP) // (PANEL + GAP))
    body, y = [_text(MARGIN, 26, title, "h", WIDTH - 2 * MARGIN)], 46
    rows = [group[i : i + per_row] for group in groups for i in range(0, len(group), per_row)]
    for row in rows:
        for i, panel in enumerate(row):
            body += _panel(panel, MARGIN + i * (PANEL + GAP), y)
        y += max(_height(panel) for panel in row) + 52 + GAP
    if note:
        body.append(_text(MARGIN, y, note, "n", WIDTH))
        y += 20
    size = f'width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="mtfc" {size} role="img">'
    head += f"<title>{escape(title)}</title><style>{STYLE}</style>"
    return "\n".join([head, *body, "</svg>"]) + "\n"


def _height(panel: _Panel) -> int:
    """Return the pixels of a panel's grid: at least enough for the names of its sides, and never taller than wide."""
    return max(64, min(PANEL - 20, panel.rows * 22))


def _panel(panel: _Panel, x: int, y: int) -> Iterator[str]:
    """Yield the SVG of a panel with its left upper corner at a place. Cells have labels where there is room."""
    yield _text(x, y + 10, panel.title, "t", PANEL)
    yield _text(x, y + 23, panel.note, "n", PANEL)
    top, left = y + 42, x + 14
    yield _text(left, top - 4, panel.sides[1], "n", PANEL - 14)
    if panel.sides[0]:
        yield f'<g transform="rotate(90 {x} {top})">{_text(x, top, panel.sides[0], "n", _height(panel) + 40)}</g>'
    width, height = (PANEL - 14) / panel.columns, _height(panel) / panel.rows
    if panel.rows * panel.columns > MOST_CELLS:
        yield _text(left, top + 20, f"{panel.rows * panel.columns:,} parts", "n", PANEL)
        return
    for i, cell in enumerate(panel.cells):
        at_x, at_y = left + width * (i % panel.columns), top + height * (i // panel.columns)
        box = f'x="{at_x:.1f}" y="{at_y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{cell.color}"'
        yield f"<rect {box}><title>{escape(cell.tip)}</title></rect>"
        if height >= LABELLED and width >= LABELLED and len(cell.label) * 5.6 <= width:
            yield f'<text class="l" x="{at_x + width / 2:.1f}" y="{at_y + height / 2 + 3.5:.1f}">{escape(cell.label)}</text>'


def _text(x: float, y: float, text: str, style: str, room: float) -> str:
    """Return a line of text, cut to its room."""
    letters = max(4, int(room / {"h": 8.6, "t": 7.6}.get(style, LETTER)))
    cut = (
        f"…{text[1 - letters :]}" if style == "t" else f"{text[: letters - 1]}…"
    )  # paths differ at their ends
    shown = text if len(text) <= letters else cut
    tip = "" if shown == text else f"<title>{escape(text)}</title>"
    return f'<text class="{style}" x="{x}" y="{y}">{escape(shown)}{tip}</text>'
