"""Every name in a file, and the symbol that it means.

The compiler resolves names while it elaborates, once for each call, and stops at errors. An editor wants the names of a file that
is being written, so the rules are applied to the syntax tree here: a name in an expression is a value if the body binds it
anywhere, and else a dimension; a name in brackets is a dimension of the function, or else of the file. Names that mean nothing
have no occurrence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Literal

import attrs

from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.types import WRITTEN_BYTES
from mtfc.editor.declarations import Declarations, DeclaredSymbol, Project, SymbolKind
from mtfc.frontend.semantics.calls import argument_kinds as kinds
from mtfc.frontend.semantics.calls.builtin_calls import BUILTINS
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.ast import children, walk

Role = Literal["declared", "bound", "used"]

Body = ast.ModelDecl | ast.FnDecl | ast.OptimizerDecl

DIM_KINDS = (kinds.dim, kinds.dims, kinds.mapping, kinds.windows)
"""The kinds of arguments that are dimensions."""

OF_THE_STEP = ("forward", "backward", "update", "parameter", "state", "input")
"""Words before the full names of equations and of arguments that a step stores."""

OF_A_LOOP = ("carried", "invariant", "yielded")
"""Words in full names for the values that a loop takes and gives."""

NUMBERED = re.compile(r"_[0-9]+$")
"""The end of the name of a further scope: `layer_norm_2`."""


@attrs.frozen
class Occurrence:
    """A name at a place, and the symbol that it means there."""

    span: Span
    symbol: DeclaredSymbol
    role: Role


@attrs.frozen
class BodyNames:
    """The names that a body sees beside those of the file.

    dims: generic dimensions, and dimensions that the body declares. values: variables, bound anywhere in the body.
    """

    dims: Mapping[str, DeclaredSymbol] = attrs.field(factory=dict)
    values: Mapping[str, DeclaredSymbol] = attrs.field(factory=dict)


NO_BODY = BodyNames()


def names_of_body(decl: Body, file: Declarations | None = None) -> BodyNames:
    """Return the names of a body; those of hyperparameters belong to the first declaration of the optimizer in the file."""
    dims: dict[str, DeclaredSymbol] = {}
    values: dict[str, DeclaredSymbol] = {}

    def add(table: dict[str, DeclaredSymbol], name: ast.Name, kind: SymbolKind, node: ast.Node) -> None:
        table.setdefault(name.text, DeclaredSymbol(name.text, name.span, kind, node))

    if isinstance(decl, ast.FnDecl):
        for name in decl.generics:
            add(dims, name, "dimension", decl)
        for each in decl.args:
            if each.name.text not in dims:
                add(values, each.name, "argument", each)
    elif isinstance(decl, ast.ModelDecl):
        for given in decl.inputs:
            add(values, given.name, "argument", given)
    else:
        values |= hyperparameters(file.all_optimizers(decl.name.text) if file else [decl])
        for name in (decl.parameter, decl.gradient):
            add(values, name, "argument", decl)
        for dim in decl.pattern.dims if decl.pattern else ():
            if isinstance(dim, ast.Name):
                add(dims, dim, "dimension", decl)
    for statement in statements(decl.body):
        if isinstance(statement, ast.DimDecl):
            add(dims, statement.name, "dimension", statement)
        for name, kind in _bound(statement):
            add(values, name, kind, statement)
    return BodyNames(dims, values)


def hyperparameters(decls: Iterable[ast.OptimizerDecl]) -> dict[str, DeclaredSymbol]:
    """Return the hyperparameters of an optimizer with several declarations; the first one with a name has the symbol."""
    found: dict[str, DeclaredSymbol] = {}
    for decl in decls:
        for each in decl.hypers:
            found.setdefault(each.name.text, DeclaredSymbol(each.name.text, each.name.span, "argument", each))
    return found


def argument(decl: ast.FnDecl, name: str) -> DeclaredSymbol | None:
    """Return the argument of a function with this name, which may stand for a generic dimension."""
    names = names_of_body(decl)
    given = any(each.name.text == name for each in decl.args)
    return (names.dims.get(name) or names.values.get(name)) if given else None


def statements(body: Iterable[ast.Statement]) -> Iterator[ast.Statement]:
    """Yield all statements of a body, those in loops after the loop."""
    for each in body:
        yield each
        if isinstance(each, ast.Repeat | ast.Scan):
            yield from statements(each.body)


def _bound(statement: ast.Statement) -> Iterator[tuple[ast.Name, SymbolKind]]:
    """Yield the names that a statement binds, without those inside of a loop."""
    match statement:
        case ast.Assign():
            yield from ((name, "value") for name in statement.targets)
        case ast.Param():
            yield statement.name, "parameter"
        case ast.State():
            yield statement.name, "state"
        case ast.Yield():
            yield statement.name, "value"
        case ast.Repeat() | ast.Scan():
            yield from ((each.name, "value") for each in statement.slices)


def occurrences(file: Declarations, project: Project) -> list[Occurrence]:
    """Return the names of a file that mean something, in source order."""
    found = {each.span: each for each in _Resolver(file, project).run() if each.span.file == file.file}
    return sorted(found.values(), key=lambda each: each.span)


@attrs.frozen
class _Resolver:
    file: Declarations
    project: Project

    def run(self) -> Iterator[Occurrence]:
        for decl in self.file.tree.declarations:
            yield from self._declaration(decl)

    def _declaration(self, decl: ast.Declaration) -> Iterator[Occurrence]:
        match decl:
            case ast.ImportDecl():
                yield from self._of(decl.name, self.file.modules, "declared")
            case ast.DimDecl():
                yield from self._of(decl.name, self.file.dims, "declared")
                yield from self._dims_in(decl.size, NO_BODY)
            case ast.MeshDecl():
                yield from self._of(decl.name, self.file.meshes, "declared")
                for axis in decl.axes:
                    yield from self._of(axis.name, self.file.axes.get(decl.name.text, {}), "declared")
                    yield from self._dims_in(axis.size, NO_BODY)
            case ast.LayoutDecl():
                yield from self._layout(decl)
            case ast.PlacementDecl():
                yield from self._placement(decl)
            case ast.HardwareDecl():
                yield from self._of(decl.name, self.file.hardware, "declared")
                yield from self._hardware(decl)
            case ast.TrainDecl():
                yield from self._train(decl)
            case ast.ModelDecl():
                yield from self._of(decl.name, self.file.models, "declared")
                yield from self._body(decl)
            case ast.FnDecl():
                yield from self._of(decl.name, self.file.functions, "declared")
                yield from self._body(decl)
            case ast.OptimizerDecl():
                yield from self._of(decl.name, self.file.optimizers, "declared")
                yield from self._body(decl)

    def _of(
        self, name: ast.Name, table: Mapping[str, DeclaredSymbol], role: Role = "used"
    ) -> Iterator[Occurrence]:
        symbol = table.get(name.text)
        if symbol is not None:
            yield Occurrence(name.span, symbol, role)

    # Layouts, placements and training

    def _layout(self, decl: ast.LayoutDecl) -> Iterator[Occurrence]:
        yield from self._of(decl.name, self.file.layouts, "declared")
        for model in decl.models:
            yield from self._of(model, self.file.models)
        if decl.mesh is not None:
            yield from self._of(decl.mesh, self.file.meshes)
        axes = self.axes_of(decl)
        yield from self._rules(decl, decl, axes)
        for part in decl.parts:
            for path in part.paths:
                yield from self._value_path(path, self._models(decl.models))
            yield from self._of(part.mesh, self.file.meshes)
            yield from self._rules(part, decl, self.file.axes.get(part.mesh.text, {}))

    def _rules(
        self,
        node: ast.LayoutDecl | ast.PartRules,
        decl: ast.LayoutDecl,
        axes: Mapping[str, DeclaredSymbol],
    ) -> Iterator[Occurrence]:
        """Yield the names in the rules of a layout or of one of its parts."""
        sections = [each.rules for each in (node.params, node.optimizer, *node.values) if each]
        for rule in (rule for rules in (node.rules, *sections) for rule in rules):
            yield from self._rule(rule, axes)
        for each in node.values:
            yield from self._value_path(each.path, self._models(decl.models))
        for pipeline in node.pipelines:
            for dim in (pipeline.loop, *(cut.dim for cut in pipeline.cuts)):
                yield from self._layout_dim(dim)

    def _rule(self, rule: ast.SplitRule, axes: Mapping[str, DeclaredSymbol]) -> Iterator[Occurrence]:
        if not isinstance(rule.dim, ast.Every):
            yield from self._layout_dim(rule.dim)
        for axis in rule.axes:
            yield from self._of(axis, axes)

    def axes_of(self, decl: ast.LayoutDecl) -> Mapping[str, DeclaredSymbol]:
        """Return the axes of a layout's mesh, which may be the only mesh of the file."""
        name = decl.mesh.text if decl.mesh else next(iter(self.file.meshes), "")
        return self.file.axes.get(name, {})

    def _models(self, names: Iterable[ast.Name] = ()) -> list[ast.ModelDecl]:
        chosen = [self.file.models[name.text] for name in names if name.text in self.file.models]
        nodes = (symbol.node for symbol in chosen or self.file.models.values())
        return [node for node in nodes if isinstance(node, ast.ModelDecl)]

    def _layout_dim(self, name: ast.DimName) -> Iterator[Occurrence]:
        found = list(self._dim(name, NO_BODY))
        if not found and isinstance(name, ast.Path):
            found = list(self._value_path(name, self._models()))
        yield from found

    def _hardware(self, decl: ast.HardwareDecl) -> Iterator[Occurrence]:
        names = _devices_and_links(decl)
        entries: tuple[ast.DeviceDecl | ast.LinkDecl, ...] = (*decl.devices, *decl.links)
        for each in entries:
            yield from self._of(each.name, names, "declared")
            for figure in each.figures:
                if isinstance(figure.value, ast.DeviceList):
                    yield from self._device_names(figure.value.devices, names)

    def _device_names(
        self, nodes: Iterable[ast.Node], names: Mapping[str, DeclaredSymbol]
    ) -> Iterator[Occurrence]:
        for node in nodes:
            name = node.kind if isinstance(node, ast.DevicesOfKind) else node
            if isinstance(name, ast.Name):
                yield from self._of(name, names)

    def _placement(self, decl: ast.PlacementDecl) -> Iterator[Occurrence]:
        yield from self._of(decl.name, self.file.placements, "declared")
        machine = self.file.hardware.get(decl.devices.text) if isinstance(decl.devices, ast.Name) else None
        if machine is not None and isinstance(decl.devices, ast.Name):
            yield from self._of(decl.devices, self.file.hardware)
            names = _devices_and_links(machine.node) if isinstance(machine.node, ast.HardwareDecl) else {}
            for each in decl.operators:
                yield from self._device_names(each.devices, names)
        else:
            yield from self._dims_in(decl.devices, NO_BODY)
        for each in decl.operators:
            yield from self._value_path(each.path, self._models())
            for degree in each.degrees:
                yield from self._layout_dim(degree.dim)

    def _train(self, decl: ast.TrainDecl) -> Iterator[Occurrence]:
        yield from self._of(decl.model, self.file.models)
        model = self.file.models.get(decl.model.text)
        values = names_of_body(model.node).values if model and isinstance(model.node, ast.ModelDecl) else {}
        for name in (decl.minimize, decl.weigh_by, *(decl.report or ())):
            yield from self._of(name, values) if isinstance(name, ast.Name) else ()
        given = [each.optimizer for each in decl.groups if isinstance(each, ast.OptimizerFor)]
        for node in (decl.optimizer, *given):
            if isinstance(node, ast.Call):
                yield from self._optimizer_call(node)
        for other in (decl.accumulate, decl.clip, decl.average):
            if other is not None:
                yield from self._expression(other, NO_BODY)

    def _optimizer_call(self, node: ast.Call) -> Iterator[Occurrence]:
        found = self.project.optimizer(node.function, self.file)
        yield from self._function_name(node.function, found[0] if found else None)
        hypers = hyperparameters(found[1].all_optimizers(found[0].name)) if found else {}
        for each in node.arguments:
            yield from self._expression(each, NO_BODY)
        for keyword in node.keywords:
            yield from self._of(keyword.name, hypers)
            yield from self._expression(keyword.value, NO_BODY)

    def _value_path(self, path: ast.Name | ast.Path, models: list[ast.ModelDecl]) -> Iterator[Occurrence]:
        """Yield the names in the full name of a value, such as `layers.ffn.h`: loops, calls, and the value itself.

        The name of a part of a layout may end with a loop or a call. Equations and stored arguments have a word before the
        name, and an optimizer's state has another one behind it.
        """
        parts = (path.text,) if isinstance(path, ast.Name) else path.parts
        forms = [(parts, path.span)]
        if len(parts) > 1 and parts[0] in OF_THE_STEP:
            span = attrs.evolve(path.span, column=path.span.column + len(parts[0]) + 1)
            forms += [(parts[1:], span), (parts[1:-1], span)]
        for model, (names, span) in product(models, forms):
            found = list(self._steps(names, span, model, self.file))
            if found:
                yield from found
                return

    def _steps(
        self, parts: tuple[str, ...], span: Span, decl: ast.Node, file: Declarations
    ) -> Iterator[Occurrence]:
        if not isinstance(decl, Body) or not parts:
            return
        names = names_of_body(decl, file)
        part, column = parts[0], span.column
        own = attrs.evolve(span, end_column=column + len(part))
        rest = attrs.evolve(span, column=column + len(part) + 1)
        if len(parts) == 1:
            symbol = names.values.get(part) or names.dims.get(part)
            if symbol:
                yield Occurrence(own, symbol, "used")
                return
        for each in statements(decl.body):
            if isinstance(each, ast.Repeat | ast.Scan) and each.dim.text.rpartition(".")[2] == part:
                yield from (
                    attrs.evolve(found, span=own) for found in _last(self._dim_of(each.dim, names, file))
                )
                yield from self._steps(parts[1:], rest, decl, file)
                return
        for call in (node for each in decl.body for node in walk(each) if isinstance(node, ast.Call)):
            symbol, length = self._scope_of(call, part, decl, file)
            function = self.project.function(call.function, file) if symbol else None
            if symbol and function and function[0].node is not None:
                yield Occurrence(attrs.evolve(own, end_column=column + length), symbol, "used")
                yield from self._steps(parts[1:], rest, function[0].node, function[1])
                return
        if part in OF_A_LOOP:
            yield from self._steps(parts[1:], rest, decl, file)

    def _dim_of(self, name: ast.DimName, body: BodyNames, file: Declarations) -> Iterator[Occurrence]:
        return _Resolver(file, self.project)._dim(name, body)

    def _scope_of(
        self, call: ast.Call, part: str, decl: Body, file: Declarations
    ) -> tuple[DeclaredSymbol | None, int]:
        """Return the symbol that a part of a full name means if it is the scope of a call, and the length of its name."""
        wanted = NUMBERED.sub("", part)
        if call.scope is not None:
            name = call.scope.text
            return (_scope(decl, name), len(name)) if name in (part, wanted) else (None, 0)
        name = call.function.text.rpartition(".")[2]
        found = self.project.function(call.function, file) if name in (part, wanted) else None
        return (found[0] if found else None), len(name)

    # Bodies

    def _body(self, decl: Body) -> Iterator[Occurrence]:
        names = names_of_body(decl, self.file)
        if isinstance(decl, ast.FnDecl):
            for name in decl.generics:
                yield from self._of(name, names.dims, "declared")
            for each in decl.args:
                yield from self._given(each, names)
            for type in decl.results:
                yield from self._type(type, names)
        elif isinstance(decl, ast.ModelDecl):
            for given in decl.inputs:
                yield from self._of(given.name, names.values, "declared")
                yield from self._type(given.type, names)
        else:
            for each in decl.hypers:
                yield from self._given(each, names)
            for name in (decl.parameter, decl.gradient):
                yield from self._of(name, names.values, "declared")
            if decl.pattern is not None:
                yield from self._type(decl.pattern, names)
        for statement in decl.body:
            yield from self._statement(statement, names, decl)

    def _given(self, each: ast.FnArg, names: BodyNames) -> Iterator[Occurrence]:
        yield from self._of(
            each.name, names.dims if each.name.text in names.dims else names.values, "declared"
        )
        if each.type is not None:
            yield from self._type(each.type, names)
        if each.default is not None:
            yield from self._expression(each.default, names)

    def _statement(self, node: ast.Statement, names: BodyNames, decl: Body) -> Iterator[Occurrence]:
        for name, kind in _bound(node):
            yield from self._of(name, names.values, "bound" if kind == "value" else "declared")
        match node:
            case ast.DimDecl():
                yield from self._of(node.name, names.dims, "declared")
                yield from self._size(node.size, names)
            case ast.Assign() | ast.Yield():
                yield from self._expression(node.value, names, decl)
            case ast.StateUpdate():
                yield from self._of(node.name, names.values)
                yield from self._expression(node.value, names, decl)
            case ast.Param() | ast.State():
                if node.type is not None:
                    yield from self._type(node.type, names)
                yield from self._expression(
                    node.init if isinstance(node, ast.Param) else node.value, names, decl
                )
            case ast.Watch() | ast.Return():
                for value in node.values:
                    yield from self._expression(value, names, decl)
            case ast.Repeat() | ast.Scan():
                yield from self._dim(node.dim, names)
                for each in node.slices:
                    yield from self._expression(each.source, names, decl)
                if node.condition is not None:
                    yield from self._expression(node.condition, names, decl)
                for inner in node.body:
                    yield from self._statement(inner, names, decl)

    # Dimensions

    def _dim(self, name: ast.DimName | ast.Ellipsis, names: BodyNames) -> Iterator[Occurrence]:
        if isinstance(name, ast.Name):
            yield from self._of(name, names.dims if name.text in names.dims else self.file.dims)
        elif isinstance(name, ast.Path):
            module = self.project.module(name.parts[0], self.file)
            symbol = module.dims.get(name.parts[1]) if module and len(name.parts) == 2 else None
            if symbol is not None:
                yield from self._path(name, symbol)

    def _path(self, name: ast.Path, symbol: DeclaredSymbol) -> Iterator[Occurrence]:
        """Yield the two names of `module.name`."""
        dot = name.span.column + len(name.parts[0])
        yield Occurrence(attrs.evolve(name.span, end_column=dot), self.file.modules[name.parts[0]], "used")
        yield Occurrence(attrs.evolve(name.span, column=dot + 1), symbol, "used")

    def _dims_in(self, node: ast.Node, names: BodyNames) -> Iterator[Occurrence]:
        """Yield the dimensions anywhere in a size, a list or an arrow."""
        if isinstance(node, ast.Name | ast.Path):
            yield from self._dim(node, names)
        else:
            for child in children(node):
                yield from self._dims_in(child, names)

    def _size(self, node: ast.Node, names: BodyNames) -> Iterator[Occurrence]:
        """Yield the names in the size of a body's dimension: dimensions, and arguments that are numbers."""
        for name in ast.walk(node):
            if isinstance(name, ast.Name | ast.Path):
                is_dim = (
                    name.text in names.dims or name.text in self.file.dims or name.text not in names.values
                )
                yield from self._dim(name, names) if is_dim else self._expression(name, names)

    def _type(self, type: ast.Type, names: BodyNames) -> Iterator[Occurrence]:
        for dim in type.dims:
            yield from self._dim(dim, names)

    # Expressions

    def _expression(self, node: ast.Node, names: BodyNames, decl: Body | None = None) -> Iterator[Occurrence]:
        match node:
            case ast.Name():
                yield from (
                    self._of(node, names.values) if node.text in names.values else self._dim(node, names)
                )
            case ast.Path():
                yield from self._dim(node, names)
            case ast.Call():
                yield from self._call(node, names, decl)
            case ast.Arrow():
                yield from self._expression(node.source, names, decl)
                yield from self._dims_in(node.target, names)
            case ast.DimList():
                yield from self._dims_in(node, names)
            case ast.Unary() | ast.Binary() | ast.Tuple():
                for child in children(node):
                    yield from self._expression(child, names, decl)

    def _call(self, node: ast.Call, names: BodyNames, decl: Body | None) -> Iterator[Occurrence]:
        found = self.project.function(node.function, self.file)
        if node.scope is not None and decl is not None and (scope := _scope(decl, node.scope.text)):
            yield Occurrence(
                node.scope.span, scope, "declared" if scope.place == node.scope.span else "bound"
            )
        shared = _scope(decl, node.shared.text) if node.shared is not None and decl is not None else None
        if shared is not None and node.shared is not None:
            yield Occurrence(node.shared.span, shared, "used")
        yield from self._function_name(node.function, found[0] if found else None)
        if found is not None and isinstance(found[0].node, ast.FnDecl):
            yield from self._declared_call(node, found[0].node, names, decl)
        else:
            yield from self._builtin_call(node, names, decl)

    def _function_name(
        self, name: ast.Name | ast.Path, symbol: DeclaredSymbol | None
    ) -> Iterator[Occurrence]:
        if symbol is None:
            return
        if isinstance(name, ast.Path):
            yield from self._path(name, symbol)
        else:
            yield Occurrence(name.span, symbol, "used")

    def _declared_call(
        self, node: ast.Call, function: ast.FnDecl, names: BodyNames, decl: Body | None
    ) -> Iterator[Occurrence]:
        generics = {
            name.text: DeclaredSymbol(name.text, name.span, "dimension", function)
            for name in function.generics
        }
        for binding in node.bindings:
            yield from self._of(binding.generic, generics)
            yield from self._dim(binding.dim, names)
        dims = {each.name.text for each in function.args if each.type is None and each.name.text in generics}
        pairs = [(value, each.name.text) for value, each in zip(node.arguments, function.args, strict=False)]
        for keyword in node.keywords:
            symbol = argument(function, keyword.name.text)
            if symbol is not None:
                yield Occurrence(keyword.name.span, symbol, "used")
            pairs.append((keyword.value, keyword.name.text))
        pairs += [(value, "") for value in node.arguments[len(function.args) :]]
        for value, name in pairs:
            yield from self._dims_in(value, names) if name in dims else self._expression(value, names, decl)

    def _builtin_call(self, node: ast.Call, names: BodyNames, decl: Body | None) -> Iterator[Occurrence]:
        builtin = BUILTINS.get(node.function.text)
        given = builtin.arguments if builtin else ()
        more = builtin.more if builtin else None
        for i, value in enumerate(node.arguments):
            kind = given[i] if i < len(given) else more
            yield from self._builtin_argument(value, kind, names, decl)
        for keyword in node.keywords:
            kind = builtin.keywords.get(keyword.name.text) if builtin else None
            yield from self._builtin_argument(keyword.value, kind, names, decl)

    def _builtin_argument(
        self, value: ast.Node, kind: object, names: BodyNames, decl: Body | None
    ) -> Iterator[Occurrence]:
        is_pair = kind is kinds.tensor_or_mapping and isinstance(value, ast.Arrow)
        is_dtype = isinstance(value, ast.Name) and kind is kinds.dtype and value.text in WRITTEN_BYTES
        if kind is kinds.variables:
            for name in ast.walk(value):
                yield from self._of(name, names.values) if isinstance(name, ast.Name) else ()
        elif kind in DIM_KINDS or is_pair:
            yield from self._dims_in(value, names)
        elif not is_dtype:
            yield from self._expression(value, names, decl)


def _scope(decl: Body, name: str) -> DeclaredSymbol | None:
    """Return the symbol of `as NAME` in a body: the first one has it."""
    for statement in decl.body:
        calls = sorted(
            (node.scope for node in walk(statement) if isinstance(node, ast.Call) and node.scope),
            key=lambda scope: scope.span,
        )
        found = next((scope for scope in calls if scope.text == name), None)
        if found is not None:
            return DeclaredSymbol(name, found.span, "scope")
    return None


def _last(found: Iterable[Occurrence]) -> list[Occurrence]:
    return list(found)[-1:]


def _devices_and_links(decl: ast.HardwareDecl) -> dict[str, DeclaredSymbol]:
    """Return the devices and links of a machine, the first one of each name."""
    found: dict[str, DeclaredSymbol] = {}
    entries: tuple[ast.DeviceDecl | ast.LinkDecl, ...] = (*decl.devices, *decl.links)
    for each in entries:
        kind: SymbolKind = "link" if isinstance(each, ast.LinkDecl) else "device"
        found.setdefault(each.name.text, DeclaredSymbol(each.name.text, each.name.span, kind, each))
    return found
