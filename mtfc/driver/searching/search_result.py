"""What `mtfc search` shows and writes of what it found."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any

import attrs

from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.diagnostics import Diagnostics
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.printer import bytes_text
from mtfc.compiler.ir.types import Layout, Mesh
from mtfc.compiler.search.found import Found, Objective, Price, Pricing, value_of
from mtfc.compiler.search.global_layouts.layout_space import space_of
from mtfc.compiler.search.pricer import Pricer
from mtfc.frontend.layouts.layout_text import layout_text, mesh_text, rules_text
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.parser import parse
from mtfc.reports.step_report import seconds_text
from mtfc.reports.table import aligned, wrapped

if TYPE_CHECKING:
    from mtfc.driver.searching.why_not import Asked

MOST_SHOWN = 30
"""Equations of a tiling; all of them are written to a file."""

MOST_LISTED = 8
"""Dimensions that a reason lists."""


@attrs.frozen(slots=False)
class Result:
    """The result of a search, the layouts to compare with, the meshes of the file, and the seconds of the search.

    searched: the candidate meshes. storage: True if the search also chose how parameters and state are stored. asked: the rules
    of `--why-not`.
    """

    space: str
    found: Found
    program: Program
    pricer: Pricer
    others: Mapping[str, tuple[Mesh, Layout]]
    meshes: tuple[Mesh, ...]
    searched: tuple[Mesh, ...]
    objective: Objective
    storage: bool
    seconds: float
    asked: Asked | None

    @property
    def pricing(self) -> Pricing:
        """What layouts are compared by."""
        return self.pricer.pricing(self.objective)

    def seconds_of(self, price: Price) -> float:
        """What a step takes, with overlap only if that is the objective."""
        return value_of(price, "time" if self.objective == "memory" else self.objective)

    @cached_property
    def price(self) -> Price:
        """Of what was found, with overlap too, as all prices here."""
        return self.pricer.with_overlap(self.found.mesh, self.found.layout)

    @property
    def compared(self) -> dict[str, Price]:
        """The prices of the others."""
        return {name: self.pricer.with_overlap(*each) for name, each in self.others.items()}


def record(result: Result) -> dict[str, Any]:
    """The record that language.md has, and the parts of the price. With memory as the objective its bound is in bytes."""
    found, price = result.found, result.price
    in_seconds, seconds = result.objective != "memory", result.seconds_of(result.price)
    return {
        "space": result.space,
        "target": result.pricer.hardware.name,
        "devices": found.mesh.devices,
        "peak_figures": result.pricer.hardware.has_peak_figures,
        "objective": result.objective,
        "objective_seconds": seconds,
        "lower_bound_seconds": min(found.lower_bound, seconds) if in_seconds else None,
        "lower_bound_bytes": None if in_seconds else int(found.lower_bound),
        "optimal": found.is_optimal,
        "evaluated": found.evaluated,
        "search_seconds": round(result.seconds, 3),
        "mesh": found.mesh.sizes,
        "layout": rules_text(found.layout),
        "compute_seconds": price.compute,
        "communication_seconds": price.communication,
        "memory_per_device": price.memory,
        "baselines": {name: result.seconds_of(each) for name, each in result.compared.items()},
        "overlapping_seconds": price.overlapping,
        "nothing_split": why_whole(result),
        "overlapping_baselines": {name: each.overlapping for name, each in result.compared.items()},
    }


COMPARED: Mapping[Objective, str] = {
    "time": "Steps are compared with nothing overlapping",
    "overlap": "Steps are compared as they overlap",
    "memory": "Layouts are compared by their memory",
}


def report(result: Result) -> str:
    """The layout, how good it is proven to be, and a table of what others take."""
    found, hardware = result.found, result.pricer.hardware
    shape = "x".join(str(size) for _, size in found.mesh.axes)
    heading = f"{result.program.name}, on {devices_of(hardware, found.mesh.devices)}, mesh {shape}"
    name = free_name(found.layout.name, result.others)
    shown, left_out = _shown(attrs.evolve(found.layout, name=name))
    lines = [heading, *(f"  {line}" for line in _declarations(found.mesh, shown).splitlines()), *left_out]
    rows = [["layout", "mesh", "a step", "computes", "communicates", "memory", "of the best", "overlapping"]]
    rows.append(_row(name, found.mesh, result.price, result))
    for name, each in result.compared.items():
        rows.append(_row(name, result.others[name][0], each, result))
    room = bytes_text(int(hardware.device.memory))
    note = f"""\
Memory is that of one device, which has {room}. {COMPARED[result.objective]}; the last column has what a step takes where
communication overlaps with what does not need it."""
    return "\n".join(
        [
            *lines,
            "",
            *wrapped(_proof(result).split(), 2),
            "",
            *aligned(rows, right=range(2, 8)),
            "",
            *wrapped(note.split(), 2),
            *_whole_note(result),
            *hardware.caveat,
        ]
    )


def _whole_note(result: Result) -> list[str]:
    reason = why_whole(result)
    return [] if reason is None else wrapped(f"note: nothing is split: {reason}".split(), 2)


def why_whole(result: Result) -> str | None:
    """Return the reason why several devices split nothing, or None if something is split."""
    if result.found.mesh.devices == 1 or not is_whole(result.found.layout):
        return None
    return _indivisible(result) or _communicates(result) or _no_better(result)


def is_whole(layout: Layout) -> bool:
    """True if a layout splits nothing."""
    sections = (layout.rules, layout.params, layout.optimizer, *(rules for _, rules in layout.values))
    return not any(axes for rules in sections for _, axes in rules.axes)


def _indivisible(result: Result) -> str | None:
    """Return that no axis of any mesh divides a dimension, if so."""
    dims = [column.dim for column in space_of(result.program.function("forward")).columns]
    sizes = sorted({size for mesh in result.searched for _, size in mesh.axes if size > 1})
    if any(dim.size % size == 0 for dim in dims for size in sizes):
        return None
    *most, last = map(str, sizes)
    number = f"{', '.join(most)} or {last}" if most else last
    listed = ", ".join(f"{dim.name}: {dim.size}" for dim in dims[:MOST_LISTED])
    rest = ", ..." if len(dims) > MOST_LISTED else ""
    return f"the size of no dimension that can be split is a multiple of {number} ({listed}{rest})"


def _no_better(result: Result) -> str:
    less = "needs less memory" if result.objective == "memory" else "takes less time"
    if result.found.is_optimal:
        return f"no layout that splits something {less}"
    return f"no layout that splits something and {less} was found"


def _communicates(result: Result) -> str | None:
    """Return what the best split layout saves in computation, and its communication, where a faster one computes less."""
    compute = result.price.compute
    split = [
        (name, each)
        for name, each in result.compared.items()
        if each.communication and each.compute < compute
    ]
    if result.objective == "memory" or not split:
        return None
    name, other = min(split, key=lambda each: value_of(each[1], result.objective))
    saved, sent = seconds_text(compute - other.compute), seconds_text(other.communication)
    return f"{name} computes for {saved} less, and communicates for {sent}"


def devices_of(hardware: Hardware, number: int) -> str:
    return f"{number} device{'s'[: number - 1]} of {hardware.name}"


def _shown(layout: Layout) -> tuple[Layout, list[str]]:
    """Of a tiling the first rules that split something, and a note about the others."""
    split = [(path, rules) for path, rules in layout.values if rules.axes]
    kept, count = split[:MOST_SHOWN], len(layout.values)
    if len(kept) == count:
        return layout, []
    rest = (
        f"These are {len(kept)} of {count} equations; -o OUT.mtf writes the other {count - len(kept)}, too."
    )
    return attrs.evolve(layout, values=tuple(kept)), ["", f"  {rest if split else 'No equation is split.'}"]


def _proof(result: Result) -> str:
    found, unit = result.found, _bytes if result.objective == "memory" else seconds_text
    tried = f"{found.evaluated} layouts were compiled." if found.evaluated != 1 else "1 layout was compiled."
    if found.is_optimal:
        return f"Proven to be the best of all in the space `{result.space}`: {tried}"
    if found.refuted:
        layout = "a tiling" if found.refuted.values else f"the layout {{ {rules_text(found.refuted)} }}"
        wrong = f"{layout} is below its bound"
        return f"Nothing is proven: {wrong}, which is a fault in mtfc; please report it. {tried}"
    if not found.lower_bound:
        if found.is_interrupted:
            return f"Interrupted before anything was proven. {tried}"
        return f"The time was over before anything was proven, and a larger --budget proves more. {tried}"
    ended = "Interrupted. " if found.is_interrupted else ""
    bound = f"{ended}No layout in the space `{result.space}` is below {unit(found.lower_bound)}"
    return f"{bound}, so this is at most {at_most(over(found.objective, found.lower_bound))}. {tried}"


def at_most(ratio: float) -> str:
    """How far from the best something is that takes so many times a bound: to two digits where that is little."""
    if ratio > 2:
        return f"{ratio:.3g} times the best"
    gap = 100 * (ratio - 1)
    return f"{gap:.1f}% above the best" if gap >= 1 else f"{gap:.2g}% above the best"


def over(value: float, least: float) -> float:
    """How many times the least it is; a program that does nothing takes no time."""
    if value == least:
        return 1.0
    return value / least if least else inf


def _bytes(size: float) -> str:
    return bytes_text(int(size))


def _row(name: str, mesh: Mesh, price: Price, result: Result) -> list[str]:
    shape = "x".join(str(size) for _, size in mesh.axes)
    times = (price.seconds, price.compute, price.communication)
    memory = bytes_text(price.memory)
    if price.tiled > result.pricer.hardware.device.memory:
        memory = f"{bytes_text(price.tiled)}, too much"
    ratio = over(value_of(price, result.objective), value_of(result.price, result.objective))
    return [name, shape, *map(seconds_text, times), memory, f"{ratio:.2f}", seconds_text(price.overlapping)]


def resized(text: str, sizes: Mapping[str, int]) -> str:
    """The file's text with the sizes of dimensions that it was searched with, as `--dim` has them."""
    declared = [each for each in parse(text, "", Diagnostics()).declarations if isinstance(each, ast.DimDecl)]
    lines = text.splitlines(keepends=True)
    for each in reversed(declared):
        if each.name.text in sizes:
            first, last = each.name.span, each.span
            before = lines[first.line - 1][: first.end_column - 1]
            after = lines[last.end_line - 1][last.end_column - 1 :]
            lines[first.line - 1 : last.end_line] = [f"{before} = {sizes[each.name.text]}{after}"]
    return "".join(lines)


def name_in(text: str, result: Result) -> str:
    """Return the name of the found layout in the file: one that is free."""
    return free_name(result.found.layout.name, _named(parse(text, "", Diagnostics())))


def _named(file: ast.File) -> set[str]:
    return {each.name.text for each in file.declarations if isinstance(each, (ast.MeshDecl, ast.LayoutDecl))}


def inserted(text: str, result: Result, allowed: Sequence[str] = ()) -> str:
    """Return the file's text with the found mesh and layout before its first layout, under names that are free.

    allowed: the codes of warnings that the layout is to allow.
    """
    file = parse(text, "", Diagnostics())
    named, found = _named(file), result.found
    meshes = [each.name.text for each in file.declarations if isinstance(each, ast.MeshDecl)]
    is_declared = found.mesh in result.meshes and found.mesh.name in meshes
    mesh = found.mesh if is_declared else attrs.evolve(found.mesh, name=free_name(found.mesh.name, named))
    layout = attrs.evolve(found.layout, name=free_name(found.layout.name, named))
    layouts = [each for each in file.declarations if isinstance(each, ast.LayoutDecl)]
    lines = text.splitlines(keepends=True)
    if not is_declared and len(meshes) == 1:
        _say_which_mesh(lines, layouts, meshes[0])
    at = layouts[0].span.line - 1 if layouts else len(lines)
    before = "".join(lines[:at])
    before += "" if before.endswith("\n") or not before else "\n"
    written = ("" if is_declared else mesh_text(mesh)) + layout_text(layout, mesh, allowed)
    return f"{before}{written}{''.join(lines[at:])}"


def _say_which_mesh(lines: list[str], layouts: Iterable[ast.LayoutDecl], mesh: str) -> None:
    """Write `on MESH` into declarations that did without while there was one mesh only."""
    for each in layouts:
        if each.mesh is None:
            row, column = each.name.span.line - 1, each.name.span.end_column - 1
            lines[row] = f"{lines[row][:column]} on {mesh}{lines[row][column:]}"


def _declarations(mesh: Mesh, layout: Layout) -> str:
    return mesh_text(mesh) + layout_text(layout, mesh)


def free_name(name: str, taken: Container[str]) -> str:
    """The name, with a number where it is taken."""
    number, wanted = 2, name
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    return name
