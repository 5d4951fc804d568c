"""Write layouts and meshes as declarations of the language, as a search does."""

from collections.abc import Iterator, Sequence

import attrs

from mtfc.compiler.ir.printer import layout_entries
from mtfc.compiler.ir.types import Forms, Layout, Mesh
from mtfc.frontend.syntax.format import format_source


@attrs.frozen
class PartText:
    """A part of a layout of several meshes: the names of its calls, variables and loops, its mesh and its rules."""

    names: tuple[str, ...]
    mesh: Mesh
    layout: Layout


def mesh_text(mesh: Mesh) -> str:
    """Return a declaration such as `mesh grid = [rows: 2, cols: 4]`."""
    return f"mesh {mesh.name} = [{mesh.axes_text}]\n"


def layout_text(layout: Layout, mesh: Mesh, allowed: Sequence[str] = ()) -> str:
    """Return a layout's declaration, with the warnings that it allows, in canonical form."""
    entries = ", ".join([*_entries(layout), *(f"allow {code}" for code in allowed)])
    return format_source(f"layout {layout.name} on {mesh.name} = {{ {entries} }}\n")


def multi_mesh_text(name: str, models: Sequence[str], parts: Sequence[PartText]) -> str:
    """Return the declaration of a layout of several meshes, in canonical form. parts: first the one without names."""
    rest, *others = parts
    own = attrs.evolve(rest.layout, forms=Forms())
    forms = _entries(attrs.evolve(Layout(""), forms=rest.layout.forms))
    entries = [*_entries(own), *forms]
    for each in others:
        names = each.names[0] if len(each.names) == 1 else f"({', '.join(each.names)})"
        rules = ", ".join(_entries(attrs.evolve(each.layout, forms=Forms())))
        entries.append(f"part {names} on {each.mesh.name}: {{ {rules} }}")
    to = f" for {', '.join(models)}" if models else ""
    return format_source(f"layout {name}{to} on {rest.mesh.name} = {{ {', '.join(entries)} }}\n")


def rules_text(layout: Layout) -> str:
    """Return the rules of a layout on one line, without braces."""
    return ", ".join(_entries(layout))


def _entries(layout: Layout) -> Iterator[str]:
    return layout_entries(layout, " ", str)
