"""Mesh axes that no rule of a layout uses: devices along them compute the same."""

from __future__ import annotations

from collections.abc import Collection

import attrs

from mtfc.compiler.ir.types import Axes, Layout, Mesh, Rules


def all_rules(layout: Layout) -> tuple[Rules, ...]:
    """Return the rules of all sections of a layout."""
    return (layout.rules, layout.params, layout.optimizer, *(rules for _, rules in layout.values))


def idle_axes(mesh: Mesh, layout: Layout) -> Axes:
    """Return the mesh axes that no rule of a layout uses."""
    used = {axis for rules in all_rules(layout) for _, axes in rules.axes for axis in axes}
    return tuple(name for name, size in mesh.axes if size > 1 and name not in used)


def without_axes(mesh: Mesh, gone: Collection[str]) -> Mesh:
    return attrs.evolve(mesh, axes=tuple(each for each in mesh.axes if each[0] not in gone))


def without_idle_axes(mesh: Mesh, layout: Layout) -> Mesh:
    """Return a mesh without the axes that no rule of a layout uses; the same mesh if no rule uses any."""
    used = without_axes(mesh, idle_axes(mesh, layout))
    return used if used.axes else mesh


def idle_note(axes: Axes) -> list[str]:
    """Return a sentence about mesh axes that no rule uses, if there are any."""
    if not axes:
        return []
    return [
        f"no rule uses {', '.join(axes)}: devices along it compute the same, and a mesh without it needs fewer devices"
    ]
