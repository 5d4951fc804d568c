"""The text of a file with a declaration of the layout that a search found."""

from collections.abc import Collection, Mapping, Sequence

import attrs

from mtfc.compiler.diagnostics import Diagnostics, Span, text_lines
from mtfc.compiler.ir.types import Layout, Mesh
from mtfc.frontend.layouts.layout_text import layout_text, mesh_text
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.parser import parse
from mtfc.reports.source_lines import free_name


def resized(text: str, sizes: Mapping[str, int]) -> str:
    """Return the text of a file with the sizes of dimensions that `--dim` gave."""
    declared = [each for each in parse(text, "", Diagnostics()).declarations if isinstance(each, ast.DimDecl)]
    for each in reversed(declared):
        if each.name.text in sizes:
            name, whole = each.name.span, each.span
            behind = attrs.evolve(whole, line=name.end_line, column=name.end_column)
            text = _written(text, behind, f" = {sizes[each.name.text]}")
    return text


def _written(text: str, span: Span, new: str) -> str:
    """Return a text with a new one in the place of a span."""
    lines = text_lines(text)
    before = lines[span.line - 1][: span.column - 1]
    after = lines[span.end_line - 1][span.end_column - 1 :]
    return "".join([*lines[: span.line - 1], before, new, after, *lines[span.end_line :]])


def accumulated(text: str, model: str, number: int) -> str:
    """Return the text of a file in which the training of a model accumulates a number of micro-batches."""
    found = parse(text, "", Diagnostics()).declarations
    train = next(each for each in found if isinstance(each, ast.TrainDecl) and each.model.text == model)
    if train.accumulate is not None:
        return _written(text, train.accumulate.span, str(number))
    row, column = train.span.end_line, train.span.end_column - 1
    before = text_lines(text)[row - 1][: column - 1]
    added = f"; accumulate = {number} " if before.strip() else f"{before}  accumulate = {number}\n{before}"
    return _written(text, Span("", row, 1, row, column), f"{before.rstrip()}{added}")


def declared_name(text: str, name: str) -> str:
    """Return the name of the found layout in the file: `name`, with a number if the name is taken."""
    return free_name(name, _named(parse(text, "", Diagnostics())))


def _named(file: ast.File) -> set[str]:
    return {each.name.text for each in file.declarations if isinstance(each, (ast.MeshDecl, ast.LayoutDecl))}


def insert_layout(
    text: str, mesh: Mesh, layout: Layout, declared: Collection[Mesh], allowed: Sequence[str] = ()
) -> str:
    """Return the text of a file with a mesh and a layout before its first layout, under names that are free.

    declared: the meshes of the file's layouts; such a mesh is not inserted. allowed: the codes of warnings that the layout is
    to allow.
    """
    file = parse(text, "", Diagnostics())
    named = _named(file)
    meshes = [each.name.text for each in file.declarations if isinstance(each, ast.MeshDecl)]
    is_declared = mesh in declared and mesh.name in meshes
    mesh = mesh if is_declared else attrs.evolve(mesh, name=free_name(mesh.name, named))
    layout = attrs.evolve(layout, name=free_name(layout.name, named))
    layouts = [each for each in file.declarations if isinstance(each, ast.LayoutDecl)]
    if not is_declared and len(meshes) == 1:
        text = _on_mesh(text, layouts, meshes[0])
    lines = text_lines(text)
    at = layouts[0].span.line - 1 if layouts else len(lines)
    before = "".join(lines[:at])
    before += "" if before.endswith("\n") or not before else "\n"
    written = ("" if is_declared else mesh_text(mesh)) + layout_text(layout, mesh, allowed)
    return f"{before}{written}{''.join(lines[at:])}"


def _on_mesh(text: str, layouts: Sequence[ast.LayoutDecl], mesh: str) -> str:
    """Return a text with `on MESH` in the declarations that named no mesh, because the file had a single one."""
    for each in reversed([each for each in layouts if each.mesh is None]):
        end = attrs.evolve(each.name.span, column=each.name.span.end_column)
        text = _written(text, end, f" on {mesh}")
    return text
