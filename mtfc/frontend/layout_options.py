"""Read the options `--layout` and `--mesh`: the name of a declaration, or its rules spelt out.

Rules may also be in Mesh-TensorFlow's notation: `batch:rows;hidden:cols`. `parse_option` parses rules that are spelt out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mtfc.compiler.diagnostics import CompileError, Label, Span, failure
from mtfc.compiler.ir.types import Mesh
from mtfc.frontend.layouts.declared_layouts import DeclaredLayout, resolve
from mtfc.frontend.semantics.names.constants import mesh as declared_mesh
from mtfc.frontend.semantics.names.scope import listing
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.ast import walk
from mtfc.frontend.syntax.parser import parse_option

if TYPE_CHECKING:
    from mtfc.frontend.elaborate import Module
    from mtfc.frontend.layouts.declared_layouts import MultiMeshLayout
    from mtfc.placements.declarations import DeclaredPlacement

GIVEN = "given"
"""The name of a layout or mesh that an option spells out."""

PLACEMENTS = (
    "`mtfc run`, `train`, `eval`, `verify`, `compile --emit jax`, `simulate`, `report` and `draw` take it,"
    " and `search --space soap` compares it"
)

MULTI_MESH = (
    "`mtfc check`, `run`, `train`, `eval`, `verify`, `compile`, `cost`, `explain`, `simulate`, `diff`, `report` and `draw`"
    " take it, without --mesh"
)

RULES = "write rules: those of FSDP are `batch: data; params: { *: data }; optimizer: { *: data }`"

SEVERAL_MESHES = "a layout of several meshes, and this takes a layout of one"

ONE = "one"
"""The word of `--mesh` for one device, with nothing split; a declared mesh of that name comes first."""

ONE_DEVICE = Mesh("single", (("all", 1),))
"""The mesh of an undistributed program."""


def is_one_device(mesh: str | None, module: Module) -> bool:
    """True if `--mesh` asks for one device, with nothing split."""
    return mesh is not None and mesh.strip() == ONE and ONE not in module.meshes


def parse_mesh(text: str, module: Module) -> Mesh:
    """Return the mesh that `--mesh` names or spells out: `grid`, `[rows: 2, cols: 4]`, `rows:2;cols:4` or `one`.

    Raises `CompileError`; its spans are in a file `<--mesh>` that holds `text`.
    """
    if text.strip() in module.meshes:
        return module.meshes[text.strip()]
    if is_one_device(text, module):
        return ONE_DEVICE
    scope = module.scope.for_text()
    if text.strip().isidentifier():
        name = _whole(text, "<--mesh>")
        scope.unknown("E307", f"unknown mesh `{name.text}`", name, (*module.meshes, ONE))
        raise CompileError(scope.diagnostics)
    body = text.replace(";", ",").replace("=", ":")
    decl = parse_option(f"mesh {GIVEN} = ", body, "[]", "<--mesh>", ast.MeshDecl, scope.diagnostics)
    found = declared_mesh(decl, scope)
    if found is None:
        raise CompileError(scope.diagnostics)
    return found


def parse_layout(
    text: str, module: Module, mesh: Mesh | None = None, source: str = "<--layout>"
) -> DeclaredLayout:
    """Return the layout that `--layout` names or spells out: `hybrid`, `{ batch: rows }` or `batch:rows;hidden:cols`.

    The layout is on `mesh` if given, else on the mesh that it declares, else on the only mesh of the file. Raises
    `CompileError`; its spans are in the file, or in a file `source` that holds `text`.
    """
    for declared in module.layouts:
        if declared.name == text.strip():
            return declared if mesh is None else on_mesh(declared, mesh, module)
    scope = module.scope.for_text()
    if text.strip().isidentifier():
        name = _whole(text, source)
        for other, kind, help in (
            (placement_named(text, module), "a placement, and not a layout", PLACEMENTS),
            (multi_mesh_named(text, module), SEVERAL_MESHES, MULTI_MESH),
        ):
            if other is not None:
                place = [Label(other.span, "declared here")]
                raise failure("E311", f"`{other.name}` is {kind}", name.span, help, place)
        groups = (module.layouts, module.multi_mesh, module.placements)
        known = [each.name for group in groups for each in group]
        help = f"{listing(known) or 'no layout has a name here'}; or {RULES}"
        scope.unknown("E311", f"unknown layout `{name.text}`", name, known, help)
        raise CompileError(scope.diagnostics)
    decl = parse_option(f"layout {GIVEN} = ", text, "{}", source, ast.LayoutDecl, scope.diagnostics)
    for part in decl.parts:
        help = "declare the layout in the file, and choose it by its name"
        scope.error("E311", "only a layout that a .mtf file declares has parts", part.span, help=help)
    scope.diagnostics.raise_if_errors()
    found = resolve(decl, mesh or _only_mesh(text, decl, module), scope)
    scope.diagnostics.raise_if_errors()
    return found


def multi_mesh_named(name: str | None, module: Module) -> MultiMeshLayout | None:
    """Return the layout of several meshes that `--layout` names; None if there is none."""
    return next((each for each in module.multi_mesh if name is not None and each.name == name.strip()), None)


def placement_named(name: str | None, module: Module) -> DeclaredPlacement | None:
    """Return the placement that `--layout` names; None if there is none, or a layout has the name."""
    if name is None or any(each.name == name.strip() for each in module.layouts):
        return None
    return next((each for each in module.placements if each.name == name.strip()), None)


def _only_mesh(text: str, decl: ast.LayoutDecl, module: Module) -> Mesh:
    """Return the only mesh of the file. Raises `CompileError` if the file declares none or several, with one that fits."""
    if len(module.meshes) == 1:
        return next(iter(module.meshes.values()))
    declared = f"the file declares {'several' if module.meshes else 'none'}"
    axes = dict.fromkeys(
        axis.text for node in walk(decl) if isinstance(node, ast.SplitRule) for axis in node.axes
    )
    fitting = (name for name, mesh in module.meshes.items() if {*axes} <= {*mesh.names})
    example = next(fitting, f'"{";".join(f"{axis}:2" for axis in axes) or "rows:2;cols:4"}"')
    message = f"these rules need a mesh, and {declared}"
    raise failure("E307", message, _whole(text, "<--layout>").span, f"add the mesh: `--mesh {example}`")


def on_mesh(declared: DeclaredLayout, mesh: Mesh, module: Module) -> DeclaredLayout:
    """Return a layout with the same rules on another mesh. Raises `CompileError` if the mesh lacks an axis of a rule."""
    scope = module.scope.for_text()
    found = resolve(declared.decl, mesh, scope)
    scope.diagnostics.raise_if_errors()
    return found


def chosen_layouts(
    module: Module, layout: str | None, mesh: str | None, model: str | None = None
) -> tuple[DeclaredLayout, ...]:
    """Return the layouts that `--layout` and `--mesh` select among the layouts for a model.

    A mesh alone selects the layouts that fit it; `one` selects none. Raises `CompileError`, also for a layout that splits
    something on one device.
    """
    if is_one_device(mesh, module):
        if layout is not None:
            parse_layout(layout, module, Mesh(ONE, ()))
        return ()
    given = parse_mesh(mesh, module) if mesh is not None else None
    if layout is not None:
        found = parse_layout(layout, module, given)
        if model is not None and not found.is_for(model):
            raise _not_for(found, model, layout, module)
        return (found,)
    if given is None or mesh is None:
        return layouts_for(model, module)
    fit = layouts_fitting(given, module, model)
    if module.layouts and not fit:
        span = Span.of_line("<--mesh>", mesh)
        raise failure("E311", "no declared layout fits this mesh", span, "give one with `--layout`")
    return fit


def _not_for(declared: DeclaredLayout, model: str, text: str, module: Module) -> CompileError:
    """Return the error (E311) for a layout of other models."""
    others = " and ".join(f"`{name}`" for name in declared.models)
    message = f"layout `{declared.name}` is for model {others}, and not for `{model}`"
    own = [f"`{each.name}`" for each in layouts_for(model, module)]
    help = f"choose the model with `--model {declared.models[0]}`"
    help += f", or a layout for `{model}`: {', '.join(own)}" if own else ""
    labels = [Label(name.span, "it says so here") for name in declared.decl.models[:1]]
    return failure("E311", message, _whole(text, "<--layout>").span, help, labels)


def layouts_for(model: str | None, module: Module) -> tuple[DeclaredLayout, ...]:
    """Return the declared layouts for a model."""
    return tuple(each for each in module.layouts if model is None or each.is_for(model))


def layouts_fitting(mesh: Mesh, module: Module, model: str | None = None) -> tuple[DeclaredLayout, ...]:
    """Return the layouts that fit a mesh.

    For a mesh that the file declares, these are the layouts on the mesh; for another mesh, all layouts whose axes it has.
    """
    layouts = layouts_for(model, module)
    if mesh in module.meshes.values():
        return tuple(declared for declared in layouts if declared.mesh == mesh)
    fit = (declared for declared in layouts if _axes_of(declared) <= set(mesh.names))
    return tuple(on_mesh(declared, mesh, module) for declared in fit)


def _axes_of(declared: DeclaredLayout) -> set[str]:
    sections = (declared.compute, declared.params, declared.optimizer, *declared.values.values())
    return {axis for section in sections for rule in section.values() for axis in rule.axes}


def _whole(text: str, file: str) -> ast.Name:
    return ast.Name(Span.of_line(file, text), text.strip())
