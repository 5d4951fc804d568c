"""Bind the names in a function's signature at a call: generic dimensions, `...` and `any`.

Known dimensions of an argument are found by name, in any order: dimensions of the file, and generic dimensions that are bound
already. Of the other dimensions of the argument, the first ones bind the generic dimensions before `...`, the last ones those
after `...`, and `...` takes the rest. Arguments whose types have no `...` are matched first, because they leave no choice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import attrs

from mtfc.compiler.diagnostics import Label, Span
from mtfc.compiler.ir.types import Dim
from mtfc.compiler.records import define, frozen
from mtfc.frontend.semantics.bodies.expressions import Operand
from mtfc.frontend.semantics.names.scope import ANY, Scope
from mtfc.frontend.syntax import ast, other_libraries

Dims = tuple[Dim, ...]


class Mismatch(Exception):
    """An argument does not match its declared type; the message says why."""


@frozen
class GivenArgument:
    """An argument of a call, and the declared argument that it is for."""

    argument: ast.FnArg
    operand: Operand


@define
class Bindings:
    """The bindings of the names in one signature.

    dims: the generic dimensions that are bound. rest: the dimensions of `...`. any: the dtype of `any`. Each is with the place
    that determines it.
    """

    generics: Collection[str]
    scope: Scope
    dims: dict[str, tuple[Dim, Span]] = attrs.field(factory=dict)
    rest: tuple[Dims, Span] | None = None
    any: tuple[str, Span] | None = None

    def match(self, given: Sequence[GivenArgument]) -> tuple[GivenArgument, str] | None:
        """Bind names by the types of arguments; return the first argument that does not match, and the reason."""
        for each in sorted(given, key=lambda each: has_rest(type_of(each))):
            try:
                self._match(type_of(each), each.operand)
            except Mismatch as error:
                return each, str(error)
        return None

    def dim(self, name: ast.DimName) -> Dim | None:
        """Return the dimension that a name in the signature stands for; None if it is not bound yet."""
        if name.text not in self.generics:
            return self.scope.dim(name)
        found = self.dims.get(name.text)
        return found[0] if found else None

    def _match(self, type: ast.Type, operand: Operand) -> None:
        self._match_dtype(type, operand)
        known = [dim for name in names(type) if (dim := self.dim(name)) is not None]
        left = list(operand.dims)
        for dim in known:
            if dim not in left:
                raise Mismatch(f"it has no dimension `{dim.name}`")
            left.remove(dim)
        if has_rest(type) and self.rest is not None:
            left = self._without_rest(left)
        self._bind(type, tuple(left), operand.span)

    def _match_dtype(self, type: ast.Type, operand: Operand) -> None:
        """Check the dtype of an operand, and bind `any`; a number takes any dtype."""
        wanted = type.dtype.text if type.dtype else "f32"
        if operand.dtype is None:
            return
        if wanted == ANY:
            self.any = self.any or (operand.dtype, operand.span)
            wanted = self.any[0]
        if operand.dtype != wanted:
            raise Mismatch(f"its dtype is {operand.dtype}")

    def _without_rest(self, left: list[Dim]) -> list[Dim]:
        assert self.rest is not None
        missing = [dim for dim in self.rest[0] if dim not in left]
        if missing:
            raise Mismatch(f"it has no dimension `{missing[0].name}`, which `...` has")
        return [dim for dim in left if dim not in self.rest[0]]

    def _bind(self, type: ast.Type, left: Dims, span: Span) -> None:
        """Bind the unbound generic dimensions of a type, and its `...`, to the remaining dimensions of the operand."""
        ends = unbound_around_rest(type, self)
        before, after = ends
        wanted = len(before) + len(after)
        takes_more = has_rest(type) and self.rest is None
        if len(left) < wanted or (len(left) > wanted and not takes_more):
            raise Mismatch(_surplus(left, wanted))
        end = len(left) - len(after)
        for name, dim in (*zip(before, left, strict=False), *zip(after, left[end:], strict=True)):
            self.dims[name.text] = dim, span
        if takes_more:
            self.rest = left[len(before) : end], span


def type_of(given: GivenArgument) -> ast.Type:
    type = given.argument.type
    assert type is not None, "only arguments with a type are matched"
    return type


def has_rest(type: ast.Type) -> bool:
    return any(isinstance(dim, ast.Ellipsis) for dim in type.dims)


def names(type: ast.Type) -> list[ast.DimName]:
    return [dim for dim in type.dims if not isinstance(dim, ast.Ellipsis)]


def unbound_around_rest(type: ast.Type, bindings: Bindings) -> tuple[list[ast.DimName], list[ast.DimName]]:
    """Return the unbound generic dimensions of a type: those before `...`, and those after it."""
    ends: tuple[list[ast.DimName], list[ast.DimName]] = ([], [])
    side = 0
    for dim in type.dims:
        if isinstance(dim, ast.Ellipsis):
            side = 1
        elif dim.text in bindings.generics and dim.text not in bindings.dims:
            ends[side].append(dim)
    return ends


def _surplus(left: Dims, wanted: int) -> str:
    """Return the reason why the remaining dimensions do not fit the unbound generic ones."""
    if len(left) < wanted:
        return "it has too few dimensions"
    listed = ", ".join(f"`{dim.name}`" for dim in left)
    return f"{listed} are too many dimensions" if wanted else f"it has {listed} as well"


def shown(type: ast.Type) -> str:
    """Return a type as it is written in the source."""
    dims = ", ".join("..." if isinstance(dim, ast.Ellipsis) else dim.text for dim in type.dims)
    return f"{type.dtype.text if type.dtype else 'f32'}[{dims}]"


def bound_labels(bindings: Bindings, type: ast.Type, apart_from: Span) -> list[Label]:
    """Return labels for the names of a type that another argument, or the call, has bound."""
    labels = []
    for name in names(type):
        if name.text in bindings.dims:
            dim, span = bindings.dims[name.text]
            labels += [Label(span, f"`{name.text}` is `{dim.name}` by this")] * (span != apart_from)
    if has_rest(type) and bindings.rest is not None and bindings.rest[1] != apart_from:
        dims = ", ".join(dim.name for dim in bindings.rest[0])
        labels.append(Label(bindings.rest[1], f"`...` is `[{dims}]` by this"))
    is_any = type.dtype is not None and type.dtype.text == ANY
    if is_any and bindings.any is not None and bindings.any[1] != apart_from:
        labels.append(Label(bindings.any[1], f"`any` is {bindings.any[0]} by this"))
    return labels


def binding_help(decl: ast.FnDecl, node: ast.Call, scope: Scope) -> str | None:
    """Return help for sizes given as arguments: `nn.dense[d_out = classes](h)` for `nn.dense(h, 10)`."""
    determined = {name.text for each in decl.args if each.type for name in names(each.type)}
    own = {each.name.text for each in decl.args} | {each.generic.text for each in node.bindings}
    wanted = [each.text for each in decl.generics if each.text not in determined | own]
    given, extra = node.arguments[: len(decl.args)], node.arguments[len(decl.args) :]
    if len(extra) > len(wanted):
        return None
    sizes = scope.file.dims_by_size
    pairs = list(zip(wanted, extra, strict=False))
    bindings = [f"{name} = {_as_dim(name, each, sizes)}" for name, each in pairs]
    missing = [(n, each.value) for n, each in pairs if isinstance(each, ast.Int) and each.value not in sizes]
    declared = " and ".join(f"`dim {name} = {size}`" for name, size in missing)
    arguments = ", ".join(each.text if isinstance(each, ast.Name) else "..." for each in given)
    call = f"`{node.function.text}[{', '.join(bindings)}]({arguments})`"
    return f"sizes are dimensions: write {call}{', with ' + declared if declared else ''}"


def _as_dim(name: str, node: ast.Node, sizes: Mapping[int, str]) -> str:
    """Return the name of the intended dimension: a dimension of this size, or a new dimension called `name`."""
    if isinstance(node, ast.DimName):
        return node.text
    return sizes.get(node.value, name) if isinstance(node, ast.Int) else "..."


def keyword_help(decl: ast.FnDecl, node: ast.Call, keyword: ast.Keyword, scope: Scope) -> str | None:
    """Return help for an unknown argument that chooses a dimension."""
    generics = {name.text for name in decl.generics}
    if keyword.name.text in generics:
        return _as_binding(node, keyword, scope)
    dims = [each.name.text for each in decl.args if not each.type and each.name.text in generics]
    if keyword.name.text in other_libraries.DIMENSIONS and dims:
        return f"a dimension is given by its name: `{node.function.text}(x, {dims[0]} = io)`"
    return None


def _as_binding(node: ast.Call, keyword: ast.Keyword, scope: Scope) -> str:
    """Return help for a generic dimension given as an argument: `nn.dense[d_out = classes](h)`."""
    name, value = keyword.name.text, keyword.value
    sizes = scope.file.dims_by_size
    dim = _as_dim(name, value, sizes)
    arguments = ", ".join(each.text if isinstance(each, ast.Name) else "..." for each in node.arguments)
    declared = (
        f", with `dim {dim} = {value.value}` in the file"
        if isinstance(value, ast.Int) and value.value not in sizes
        else ""
    )
    return f"write `{node.function.text}[{name} = {dim}]({arguments})`{declared}"
