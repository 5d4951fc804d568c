"""Resolve layout declarations into `Layout`s that know the place of every rule.

Parts of a model may run on meshes of their own, and everything else runs on the layout's own mesh.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.types import (
    EVERY,
    FORMS,
    MOST_FLOPS_PER_BYTE,
    Axes,
    Forms,
    Layout,
    Mesh,
    Rules,
    is_form,
)
from mtfc.compiler.records import frozen
from mtfc.frontend.layouts.allowed_warnings import in_layout
from mtfc.frontend.layouts.pipelines import DeclaredPipeline, resolve_pipelines
from mtfc.frontend.semantics.names.scope import NamedSection, Scope
from mtfc.frontend.semantics.names.standard_library import library_machines
from mtfc.frontend.syntax import ast


@frozen
class DeclaredRule:
    """A rule of a layout, resolved: dimension `dim` is split over `axes`.

    span: the place of the rule. declared: the place of the dimension's declaration; for `EVERY`, the place of `*`.
    """

    dim: str
    axes: Axes
    span: Span
    declared: Span


NOTHING_SPLIT = "it is one device, on which nothing is split: leave the layout out"
"""Help for a layout on a mesh without axes."""

Section = Mapping[str, DeclaredRule]
"""Rules by dimension."""


@frozen
class DeclaredLayout:
    """A layout on a mesh, with the place of each rule.

    `compute` are the rules for values, `params` the rules for storing parameters, `optimizer` the rules for storing optimizer
    state, each with the rules that it overrides. `values` are the rules of single
    values, `paths` the places of their names. `models` are the models of the layout, empty for all models. `allowed` are the
    warnings that the layout allows. `pipelines` are its pipelines.
    """

    mesh: Mesh
    decl: ast.LayoutDecl
    layout: Layout
    compute: Section
    params: Section
    optimizer: Section
    values: Mapping[str, Section]
    paths: Mapping[str, ast.Name | ast.Path]
    models: tuple[str, ...]
    allowed: frozenset[str]
    pipelines: tuple[DeclaredPipeline, ...] = ()

    def is_for(self, model: str) -> bool:
        return not self.models or model in self.models

    def with_rule(self, dim: str, axes: Axes) -> DeclaredLayout:
        """Return the layout with one other rule for values."""
        rule = DeclaredRule(dim, axes, self.span, self.span)
        rules = self.layout.rules.override(Rules(((dim, axes),)))
        return attrs.evolve(
            self,
            layout=attrs.evolve(self.layout, rules=rules),
            compute={**self.compute, dim: rule},
            params={**self.compute, dim: rule, **_own(self.params, self.compute)},
            optimizer={**self.compute, dim: rule, **_own(self.optimizer, self.compute)},
        )

    @property
    def name(self) -> str:
        return self.layout.name

    @property
    def span(self) -> Span:
        return self.decl.name.span


def _own(section: Section, compute: Section) -> Section:
    """Return the rules of a section that do not come from the rules for values."""
    return {dim: rule for dim, rule in section.items() if compute.get(dim) is not rule}


def resolve(decl: ast.LayoutDecl, mesh: Mesh, scope: Scope) -> DeclaredLayout:
    """Resolve a declaration on a mesh. Rules with unknown names are reported and left out."""
    compute = _section(decl.rules, mesh, scope)
    params = _section(decl.params.rules if decl.params else (), mesh, scope, is_of_storage=True)
    optimizer = _section(decl.optimizer.rules if decl.optimizer else (), mesh, scope, is_of_storage=True)
    places: dict[str, Span] = {}
    paths = {each.path.text: each for each in decl.values if _first(each.path, places, scope)}
    values = {path: _section(each.rules, mesh, scope) for path, each in paths.items()}
    split = {rule.dim: rule.axes for rule in compute.values()}
    pipelines = resolve_pipelines(decl.pipelines, split, mesh, scope)
    return DeclaredLayout(
        mesh,
        decl,
        Layout(
            decl.name.text,
            _rules(compute),
            _rules(params),
            _rules(optimizer),
            tuple((path, _rules(section)) for path, section in values.items()),
            pipelines=tuple(each.pipeline for each in pipelines),
            forms=resolve_forms(decl.forms, scope),
        ),
        compute,
        {**compute, **params},
        {**compute, **params, **optimizer},
        values,
        {path: each.path for path, each in paths.items()},
        tuple(name.text for name in decl.models),
        in_layout(decl.allows, scope),
        pipelines,
    )


def _rules(section: Section) -> Rules:
    return Rules(tuple((rule.dim, rule.axes) for rule in section.values()))


def _first(name: ast.DimName | ast.Every, places: dict[str, Span], scope: Scope) -> bool:
    """Note the place of a rule's name; return False, and report an error, if the name has a rule already."""
    return scope.is_first(name, places, "E309", f"`{name.text}` has two rules", "first rule")


def _section(
    rules: Iterable[ast.SplitRule], mesh: Mesh, scope: Scope, is_of_storage: bool = False
) -> Section:
    """Return the rules of a section by dimension. Wrong ones, and a second one of a dimension, are reported and left out."""
    places: dict[str, Span] = {}
    first = (rule for rule in rules if _first(rule.dim, places, scope))
    found = [_rule(rule, mesh, scope) for rule in first if is_of_storage or not _is_of_every(rule, scope)]
    return {rule.dim: rule for rule in found if rule is not None}


def _is_of_every(rule: ast.SplitRule, scope: Scope) -> bool:
    """True if a rule is for `*`; report an error, since only storage rules may be."""
    if not isinstance(rule.dim, ast.Every):
        return False
    message = "`*` stands for a dimension of each parameter as it is stored, and cannot be split here"
    scope.error("E320", message, rule.dim.span, help="write it in `params: { ... }` or `optimizer: { ... }`")
    return True


def _rule(rule: ast.SplitRule, mesh: Mesh, scope: Scope) -> DeclaredRule | None:
    """Return a rule of a layout; None, with a diagnostic, if its dimension or one of its axes is wrong."""
    if _is_reversed(rule, mesh, scope):
        return None
    name, declared = _dim(rule, scope)
    places: dict[str, Span] = {}
    good = [_axis(rule, axis, places, mesh, scope) for axis in rule.axes]
    if name is None or not all(good):
        return None
    return DeclaredRule(name, tuple(axis.text for axis in rule.axes), rule.span, declared)


def _dim(rule: ast.SplitRule, scope: Scope) -> tuple[str | None, Span]:
    """Return the dimension of a rule, None if unknown, and the place of its declaration."""
    if isinstance(rule.dim, ast.Every):
        return EVERY, rule.dim.span
    dim = scope.dim(rule.dim, "E303")
    return (dim.name, scope.place(rule.dim)) if dim else (None, rule.dim.span)


def _axis(rule: ast.SplitRule, axis: ast.Name, places: dict[str, Span], mesh: Mesh, scope: Scope) -> bool:
    """Return True for an axis of the mesh that the rule has once; report any other (E304, E308).

    places: the places of the axes so far.
    """
    if axis.text not in mesh.sizes:
        help = None if mesh.names else NOTHING_SPLIT
        return scope.unknown("E304", f"mesh `{mesh.name}` has no axis `{axis.text}`", axis, mesh.names, help)
    message = f"`{rule.dim.text}` is split over axis `{axis.text}` twice"
    return scope.is_first(axis, places, "E308", message, "it is already here")


def _is_reversed(rule: ast.SplitRule, mesh: Mesh, scope: Scope) -> bool:
    """Return True, and report an error, if a rule is written `axis: dim`."""
    if len(rule.axes) != 1:
        return False
    (axis,), dim = rule.axes, rule.dim
    is_axis = dim.text in mesh.sizes and dim.text not in scope.dims
    if not is_axis or axis.text not in scope.dims or axis.text in mesh.sizes:
        return False
    message = f"`{dim.text}` is a mesh axis, and a rule begins with a dimension"
    scope.error("E303", message, rule.span, help=f"write `{axis.text}: {dim.text}`")
    return True


def declare_layouts(
    decls: Iterable[ast.LayoutDecl], meshes: Mapping[str, Mesh | None], scope: Scope
) -> tuple[DeclaredLayout, ...]:
    """Return the declared layouts of one mesh; report an error for each whose mesh is unknown, and leave it out."""
    pairs = [(decl, mesh_of(decl, meshes, scope)) for decl in decls if not decl.parts]
    return tuple(resolve(decl, mesh, scope) for decl, mesh in pairs if mesh is not None)


def named_once(decls: Iterable[ast.LayoutDecl], scope: Scope) -> list[ast.LayoutDecl]:
    """Return the declarations with names of their own; report the others, and unknown models."""
    places: dict[str, Span] = {}
    found = [decl for decl in decls if scope.declare("layout", decl.name, places)]
    for name in (name for decl in found for name in decl.models):
        if name.text not in scope.models:
            scope.unknown("E106", f"unknown model `{name.text}`", name, scope.models)
    return found


def mesh_of(decl: ast.LayoutDecl, meshes: Mapping[str, Mesh | None], scope: Scope) -> Mesh | None:
    """Return the mesh of a layout: the named one, or the only one of the file; None, with a diagnostic, if there is none."""
    if decl.mesh is not None:
        if decl.mesh.text not in meshes:
            scope.unknown("E307", f"unknown mesh `{decl.mesh.text}`", decl.mesh, meshes)
        return meshes.get(decl.mesh.text)
    if len(meshes) == 1:
        return next(iter(meshes.values()))
    name = decl.name
    if meshes:
        help = f"write `layout {name.text} on {next(iter(meshes))} = ...`"
        scope.error("E307", f"layout `{name.text}` does not say which mesh it is on", name.span, help=help)
    elif not scope.doubtful:
        help = "declare one: `mesh line = [all: 8]`"
        scope.error(
            "E307", f"layout `{name.text}` needs a mesh, and the file declares none", name.span, help=help
        )
    return None


NUMBER = f"a whole number from 1 to {MOST_FLOPS_PER_BYTE}"


def resolve_forms(section: ast.FormSet | None, scope: Scope) -> Forms:
    """Return the forms of a layout. Wrong entries are reported (E324) and left out."""
    places: dict[str, Span] = {}
    found: dict[str, str | int] = {}
    for each in section.entries if section else ():
        name = each.key if isinstance(each, ast.FormFigure) else each.dim
        if not scope.is_first(name, places, "E309", f"`{name.text}` has two entries", "first entry"):
            continue
        if name.text not in FORMS:
            known = f"it has {', '.join(FORMS)}"
            scope.unknown("E324", f"`forms` has no entry `{name.text}`", name, FORMS, known)
        elif (value := _value(each, name.text)) is None:
            scope.error("E324", f"`{name.text}` is {_words(name.text)}", each.span)
        elif name.text == "recompute" and not _is_known(value, scope):
            near = scope.reports.nearest(str(value), (*FORMS["recompute"], *_machines(scope)))
            nearest = f"did you mean `{near}`?" if near else None
            scope.error("E324", f"`recompute` is {_words(name.text)}", each.span, help=nearest)
        else:
            found[name.text] = value
    if "flops_per_byte" in found and found.get("dots") != "joined":
        help = "add `dots: joined`, or leave this out"
        span = places["flops_per_byte"]
        scope.error("E324", "`flops_per_byte` says which dots are joined, and none are", span, help=help)
        del found["flops_per_byte"]
    return Forms.of(found)


def _words(key: str) -> str:
    """Return the values that an entry may have."""
    words = FORMS[key] or (NUMBER,)
    *most, last = (*words, "a machine such as h100", "a number of bytes") if key == "recompute" else words
    return f"{', '.join(most)} or {last}" if most else last


def _is_known(value: str | int, scope: Scope) -> bool:
    """Return True if an entry `recompute` is a word, a number of bytes, or a machine of the file or of the library."""
    return isinstance(value, int) or value in FORMS["recompute"] or value in _machines(scope)


def _machines(scope: Scope) -> tuple[str, ...]:
    return *scope.machines, *library_machines()


def _value(entry: ast.SplitRule | ast.FormFigure, key: str) -> str | int | None:
    """Return the value of an entry, or None if it is wrong."""
    value: str | int | None
    if isinstance(entry, ast.FormFigure):
        value = entry.number.value if isinstance(entry.number, ast.Int) else None
    else:
        value = entry.axes[0].text if len(entry.axes) == 1 else None
    return value if value is not None and is_form(key, value) else None


# Layouts of several meshes


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
    """Return a layout on several meshes, each part resolved on its own; None, with diagnostics, if something is wrong."""
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
    """Return the mesh of a part; None, and an error, if it is unknown or has another part already.

    used: mesh -> the place of the part that has it.
    """
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
) -> Mapping[str, Sequence[NamedSection]]:
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
    part: ast.PartRules, known: Mapping[str, Sequence[NamedSection]], named: dict[str, Span], scope: Scope
) -> Iterator[Span]:
    """Yield the places of the names of a part; report names that are unknown, in a loop, or in two parts.

    known: the names of each model. named: the names that parts have taken.
    """
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


def _loop_help(name: str, known: Mapping[str, Sequence[NamedSection]]) -> str | None:
    """Return help that names the call or the loop around a name."""
    around = _around(name, known)
    return f"name the loop, or what is around it: `{around}`" if around else None


def _around(name: str, known: Mapping[str, Sequence[NamedSection]]) -> str | None:
    """Return the innermost known section around a name that is in no loop: `block` may be that of `block.mlp.w`."""
    while "." in name:
        name = name.rpartition(".")[0]
        if name in known and not any(each.is_looped for each in known[name]):
            return name
    return None
