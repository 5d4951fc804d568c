"""Declare the dimensions and meshes of a file.

Dimensions may be declared in any order. The command line may override a size; sizes that are computed from the size follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile

from mtfc.compiler.diagnostics import Label, Span
from mtfc.compiler.ir.types import Dim, Mesh
from mtfc.frontend.semantics.names.constants import LIMIT, integer
from mtfc.frontend.semantics.names.scope import Scope
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.ast import children

Sizes = Mapping[str, int]

MOST_SHOWN = 6


def declare_dims(decls: Iterable[ast.DimDecl], overrides: Sizes, scope: Scope) -> None:
    """Fill in `scope.dims`, in the order of declaration, with None for a dimension that has an error."""
    found = {decl.name.text: decl for decl in decls if scope.declare("dimension", decl.name, scope.places)}
    scope.dims.update(dict.fromkeys(found))
    _override(overrides, scope)
    evaluated = {name: decl for name, decl in found.items() if name not in overrides}
    for name in _in_order(evaluated, scope):
        scope.dims[name] = _dim(evaluated[name], scope)


def _override(overrides: Sizes, scope: Scope) -> None:
    """Set the sizes of options. Errors point into a file `<--dim>` with a line for each option."""
    for line, (name, size) in enumerate(overrides.items(), 1):
        span = Span("<--dim>", line, 1, line, 1 + len(name))
        if name not in scope.dims:
            scope.unknown("E103", f"unknown dimension `{name}`", ast.Name(span, name), scope.dims)
        elif valid_size(name, size, span, scope):
            scope.dims[name] = Dim(name, size)


def valid_size(name: str, size: int, span: Span, scope: Scope) -> bool:
    """Return True if a dimension may have this size; report an error otherwise."""
    if size < 1:
        return scope.error("E207", f"`{name}` has size {size}, and the least possible is 1", span)
    return size <= LIMIT or scope.error("E207", f"the size of `{name}` does not fit in 64 bits", span)


def _dim(decl: ast.DimDecl, scope: Scope) -> Dim | None:
    name = decl.name.text
    size = _size(name, decl.size, scope)
    return None if size is None else Dim(f"{scope.module}.{name}" if scope.module else name, size)


def _size(name: str, node: ast.Expr, scope: Scope) -> int | None:
    size = integer(node, scope)
    return size if size is not None and valid_size(name, size, node.span, scope) else None


def _in_order(decls: Mapping[str, ast.DimDecl], scope: Scope) -> list[str]:
    """Return the names of dimensions, each after the names in its size. Report cycles, and leave their names out."""
    uses = {name: [use for use in _names(decl.size) if use in decls] for name, decl in decls.items()}
    order, cycles = _sorted(uses)
    for cycle in cycles:
        _report_cycle([decls[name].name for name in cycle], scope)
    return order


def _sorted(uses: Mapping[str, Iterable[str]]) -> tuple[list[str], list[list[str]]]:
    """Return the names that are in no cycle, each after the names that it uses, and cycles without common names."""
    done: dict[str, None] = {}
    cycles: list[list[str]] = []
    cyclic: set[str] = set()
    for root in uses:
        path = {} if root in done else {root: iter(uses[root])}
        while path:
            name, rest = next(reversed(path.items()))
            use = next(rest, None)
            if use is None:
                del path[name]
                done[name] = None
            elif use in path and use not in cyclic:
                cycle = _cycle(use, path)
                cycles += [cycle] if cyclic.isdisjoint(cycle) else []
                cyclic.update(cycle)
            elif use not in path and use not in done:
                path[use] = iter(uses[use])
    return [name for name in done if name not in cyclic], cycles


def _cycle(use: str, path: dict[str, Iterator[str]]) -> list[str]:
    """Return the part of the path that begins at `use`."""
    after = list(takewhile(lambda name: name != use, reversed(path)))
    return [use, *reversed(after)]


def _report_cycle(cycle: list[ast.Name], scope: Scope) -> None:
    """Report E115 at the first dimension of a cycle, with labels at some of the others."""
    first = min(cycle, key=lambda name: name.span)
    at = cycle.index(first)
    rest = [*cycle[at + 1 :], *cycle[:at]]
    shown = [name.text for name in rest[:MOST_SHOWN]] + ["..."] * (len(rest) > MOST_SHOWN)
    path = " -> ".join((first.text, *shown, first.text))
    labels = [Label(name.span, "through this one") for name in rest[:MOST_SHOWN]]
    scope.error("E115", f"the size of `{first.text}` is computed from itself: {path}", first.span, labels)


def _names(node: ast.Node) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.text
    for child in children(node):
        yield from _names(child)


def declare_meshes(decls: Iterable[ast.MeshDecl], scope: Scope) -> dict[str, Mesh | None]:
    """Return the meshes by name, with None for a mesh that has an error."""
    places: dict[str, Span] = {}
    return {decl.name.text: mesh(decl, scope) for decl in decls if scope.declare("mesh", decl.name, places)}


def mesh(decl: ast.MeshDecl, scope: Scope) -> Mesh | None:
    places: dict[str, Span] = {}
    sizes = [
        (axis.name.text, _size(axis.name.text, axis.size, scope))
        for axis in decl.axes
        if scope.declare("mesh axis", axis.name, places)
    ]
    if not decl.axes:
        scope.error(
            "E310", f"mesh `{decl.name.text}` has no axes", decl.span, help="one processor is `[all: 1]`"
        )
    axes = tuple((name, size) for name, size in sizes if size is not None)
    return Mesh(decl.name.text, axes) if decl.axes and len(axes) == len(decl.axes) else None
