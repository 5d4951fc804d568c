"""Layouts with parts: parts of a model run on meshes of their own, and everything else on the layout's own mesh."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.types import Mesh
from mtfc.compiler.records import frozen
from mtfc.frontend.layouts.declared_layouts import DeclaredLayout, mesh_of, resolve
from mtfc.frontend.semantics.names.scope import Scope, Section
from mtfc.frontend.syntax import ast


@frozen
class DeclaredPart:
    """A part of a layout: the rules on its mesh, and the places of the calls, variables and loops that run there.

    names: the names of these calls, variables and loops; the layout's own rules have no names and no places.
    """

    rules: DeclaredLayout
    names: tuple[ast.Name | ast.Path, ...]
    places: tuple[Span, ...]

    @property
    def mesh(self) -> Mesh:
        return self.rules.mesh


@frozen
class MultiMeshLayout:
    """A layout of several meshes. parts: in the order in which the file declares their meshes, one part for each mesh.

    rest: the layout's own rules, for everything that no other part has. unused: names of values that the models lack because
    nothing uses them; rules may name these.
    """

    decl: ast.LayoutDecl
    parts: tuple[DeclaredPart, ...]
    rest: DeclaredPart
    unused: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return self.decl.name.text

    @property
    def span(self) -> Span:
        return self.decl.name.span

    @property
    def models(self) -> tuple[str, ...]:
        return self.rest.rules.models

    def is_for(self, model: str) -> bool:
        return self.rest.rules.is_for(model)


def declare_multi_mesh(
    decls: Iterable[ast.LayoutDecl],
    meshes: Mapping[str, Mesh | None],
    models: Mapping[str, Span],
    scope: Scope,
) -> tuple[MultiMeshLayout, ...]:
    """Return the layouts with parts among the declarations of a file; wrong ones are reported and left out.

    models: the places of the file's models.
    """
    found = (_resolved(decl, meshes, models, scope) for decl in decls if decl.parts)
    return tuple(each for each in found if each is not None)


def _resolved(
    decl: ast.LayoutDecl, meshes: Mapping[str, Mesh | None], models: Mapping[str, Span], scope: Scope
) -> MultiMeshLayout | None:
    errors = len(scope.diagnostics.errors)
    mesh = mesh_of(decl, meshes, scope)
    _check_entries(decl.parts, scope)
    if mesh is None:
        return None
    used = {mesh.name: decl.mesh.span if decl.mesh else decl.name.span}
    named: dict[str, Span] = {}
    whole = resolve(decl, mesh, scope)
    _check_forms(whole, scope)
    rest = DeclaredPart(whole, (), ())
    parts = {mesh.name: rest}
    known = _sections(decl, models, scope)
    for each in decl.parts:
        places = list(_places(each, known, named, scope))
        part_mesh = _mesh(each, meshes, used, scope)
        if part_mesh is not None:
            rules = resolve(_as_layout(each, decl), part_mesh, scope)
            layout = attrs.evolve(rules.layout, forms=whole.layout.forms)
            parts[part_mesh.name] = DeclaredPart(
                attrs.evolve(rules, layout=layout), each.paths, tuple(places)
            )
    if len(scope.diagnostics.errors) > errors:
        return None
    own = tuple(parts[name] for name in meshes if name in parts)
    return MultiMeshLayout(decl, own, rest, frozenset(scope.reports.dropped_dims))


def _as_layout(part: ast.PartRules, decl: ast.LayoutDecl) -> ast.LayoutDecl:
    """Return the rules of a part as a layout of their own."""
    rules = part.rules, part.params, part.optimizer, part.values, part.pipelines
    return ast.LayoutDecl(decl.span, decl.name, decl.models, part.mesh, *rules, (), None, decl.allows)


MOST_NAMES = 12
"""Names that an error lists."""

MISPLACED: Mapping[type[ast.Node], tuple[str, str]] = {
    ast.FormSet: ("`forms`", "they hold on all meshes: write `forms` beside the part"),
    ast.Allow: ("`allow`", "it holds on all meshes: write `allow` beside the part"),
    ast.PartRules: (
        "`part`",
        "of calls inside of each other the innermost with a part decides: write the parts side by side",
    ),
}
"""Entries that a part cannot have: their name, and help."""


def _check_entries(parts: Iterable[ast.PartRules], scope: Scope) -> None:
    """Report entries of a layout that a part cannot have."""
    for entry in (entry for part in parts for entry in part.misplaced):
        what, help = MISPLACED[type(entry)]
        scope.error("E332", f"a part has no {what}", entry.span, help=help)


def _check_forms(whole: DeclaredLayout, scope: Scope) -> None:
    """Report recomputation, which needs the forward and the backward pass in one program."""
    if whole.layout.forms.recompute and whole.decl.forms is not None:
        help = "leave it out; `pipeline LOOP checkpoint` computes the layers of a pipeline again"
        message = "a layout of several meshes has no entry `recompute`"
        scope.error("E332", message, whole.decl.forms.span, help=help)


def _mesh(
    part: ast.PartRules, meshes: Mapping[str, Mesh | None], used: dict[str, Span], scope: Scope
) -> Mesh | None:
    """Return the mesh of a part; None, and an error, if it is unknown or has another part already."""
    name = part.mesh.text
    if name not in meshes:
        scope.unknown("E307", f"unknown mesh `{name}`", part.mesh, meshes)
        return None
    help = "name all calls of one mesh in one part, such as `part (embed, head) on front: { ... }`"
    message = f"mesh `{name}` has two sets of rules"
    is_first = scope.is_first(part.mesh, used, "E331", message, "it is used here", help)
    return meshes[name] if is_first else None


def _sections(
    decl: ast.LayoutDecl, models: Mapping[str, Span], scope: Scope
) -> Mapping[str, Sequence[Section]]:
    """Return the calls, variables and loops of the models that a layout is for."""
    if not decl.models:
        return scope.reports.sections
    own = [models[name.text] for name in decl.models if name.text in models]
    found = {
        name: [each for each in sections if any(each.is_in(model) for model in own)]
        for name, sections in scope.reports.sections.items()
    }
    return {name: sections for name, sections in found.items() if sections}


def _places(
    part: ast.PartRules, known: Mapping[str, Sequence[Section]], named: dict[str, Span], scope: Scope
) -> Iterator[Span]:
    """Yield the places of the names of a part; report names that are unknown, in a loop, or in two parts."""
    if not part.paths:
        scope.error("E330", "a part names a call, a variable or a loop, and this names none", part.span)
    for path in part.paths:
        if not scope.is_first(path, named, "E331", f"`{path.text}` is in two parts", "first part"):
            continue
        found = known.get(path.text)
        if found is None:
            names = [name for name, places in known.items() if not any(each.is_looped for each in places)]
            message = f"no model of this layout has a call, a variable or a loop `{path.text}`"
            scope.unknown("E330", message, path, names, _loop_help(path.text, known) or _names_help(names))
        elif any(each.is_looped for each in found):
            message = f"`{path.text}` is in a loop, which runs on one mesh"
            scope.error("E330", message, path.span, help=_loop_help(path.text, known))
        else:
            yield from (each.place for each in found)


def _names_help(names: Sequence[str]) -> str:
    """Return help that lists the names that a part may have."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    shown = ", ".join(f"`{name}`" for name in names[:MOST_NAMES])
    return f"a part has names of calls, variables or loops: {shown}{more}"


def _loop_help(name: str, known: Mapping[str, Sequence[Section]]) -> str | None:
    """Return help that names the call or the loop around a name."""
    around = _around(name, known)
    return f"name the loop, or what is around it: `{around}`" if around else None


def _around(name: str, known: Mapping[str, Sequence[Section]]) -> str | None:
    while "." in name:
        name = name.rpartition(".")[0]
        if name in known and not any(each.is_looped for each in known[name]):
            return name
    return None
