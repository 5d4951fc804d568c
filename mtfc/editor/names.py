"""Every name in a file, and the symbol that it means.

The compiler resolves names while it elaborates, once for each call, and stops at errors. An editor wants the names of a file that
is being written, so the rules are applied to the syntax tree here: a name in an expression is a value if the body binds it
anywhere, and else a dimension; a name in brackets is a dimension of the function, or else of the file. Names that mean nothing
have no occurrence. Functions, optimizers and modules are found by the compiler's own rules: see `Project`.

`READERS` says by field of the syntax tree how a name is read; every other field holds expressions.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Literal, cast

import attrs

from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.types import WRITTEN_BYTES
from mtfc.editor.documents import KINDS, Declarations, DeclaredSymbol, Project, SymbolKind, Symbols
from mtfc.frontend.semantics.calls import argument_kinds as kinds
from mtfc.frontend.semantics.calls.builtin_calls import BUILTINS
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.ast import walk

Role = Literal["declared", "bound", "used"]

Body = ast.ModelDecl | ast.FnDecl | ast.OptimizerDecl

IN_BODIES: tuple[SymbolKind, ...] = ("dimension", "argument", "parameter", "state", "value")
"""The kinds of symbols that a body declares."""

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
class VisibleNames:
    """The names that are visible at a place.

    dims: dimensions of the file and of the body. values: variables, bound anywhere in the body. others: the other names by kind.
    models: the models whose values a layout names. body: the body around the place.
    """

    dims: Symbols
    values: Symbols = attrs.field(factory=dict)
    others: Mapping[str, Symbols] = attrs.field(factory=dict)
    models: Sequence[ast.ModelDecl] = ()
    body: Body | None = None

    def of_kind(self, kind: str) -> Symbols:
        """Return the visible symbols of a kind."""
        if kind in IN_BODIES:
            return self.dims if kind == "dimension" else self.values
        return self.others.get("device" if kind == "link" else kind, {})


@attrs.frozen
class BodyNames:
    """The names that a body declares: generic and other dimensions, and variables, bound anywhere in the body."""

    dims: dict[str, DeclaredSymbol] = attrs.field(factory=dict)
    values: dict[str, DeclaredSymbol] = attrs.field(factory=dict)


def names_of_body(decl: Body, file: Declarations | None = None) -> BodyNames:
    """Return the names of a body; those of hyperparameters belong to the first declaration of the optimizer in the file."""
    found = BodyNames()
    if isinstance(decl, ast.OptimizerDecl):
        found.values.update(hyperparameters(file.all_optimizers(decl.name.text) if file else [decl]))
        pattern = (dim for dim in (decl.pattern.dims if decl.pattern else ()) if isinstance(dim, ast.Name))
        found.dims.update(_first(DeclaredSymbol(dim.text, dim.span, "dimension", decl) for dim in pattern))
    bound = [each for node in walk(decl) for each in _bound(node) if each.kind in IN_BODIES]
    for each in sorted(bound, key=lambda each: each.place):
        if each.kind == "dimension":
            found.dims.setdefault(each.name, each)
        elif each.kind != "argument" or each.name not in found.dims:  # the argument may stand for a dimension
            found.values.setdefault(each.name, each)
    return found


def _bound(node: ast.Node) -> Iterator[DeclaredSymbol]:
    """Yield the symbols that a node declares or binds, but not the symbols inside of it."""
    for field, how in READERS.get(type(node), {}).items():
        if isinstance(how, _Named) and how.is_bound:
            names = (each for each in _nodes(node, field) if isinstance(each, ast.Name))
            yield from (DeclaredSymbol(x.text, x.span, cast(SymbolKind, how.kind), node) for x in names)


def _declared(decl: ast.OptimizerDecl) -> DeclaredSymbol:
    return DeclaredSymbol(decl.name.text, decl.name.span, "optimizer", decl)


def _nodes(node: ast.Node, field: str) -> Sequence[ast.Node]:
    """Return the nodes in a field."""
    value = getattr(node, field)
    return [each for each in (value if isinstance(value, tuple) else (value,)) if isinstance(each, ast.Node)]


def hyperparameters(decls: Iterable[ast.OptimizerDecl]) -> dict[str, DeclaredSymbol]:
    """Return the hyperparameters of an optimizer with several declarations; the first one with a name has the symbol."""
    return _first(each for decl in decls for hyper in decl.hypers for each in _bound(hyper))


def _first(symbols: Iterable[DeclaredSymbol]) -> dict[str, DeclaredSymbol]:
    """Return symbols by name, the first one of each name."""
    found: dict[str, DeclaredSymbol] = {}
    for each in symbols:
        found.setdefault(each.name, each)
    return found


def statements(body: Iterable[ast.Statement]) -> Iterator[ast.Statement]:
    """Yield all statements of a body, those in loops after the loop."""
    for each in body:
        yield each
        if isinstance(each, ast.Repeat | ast.Scan):
            yield from statements(each.body)


def occurrences(file: Declarations, project: Project) -> list[Occurrence]:
    """Return the names of a file that mean something, in source order."""
    resolver = _Resolver(file, project)
    all = (each for decl in file.tree.declarations for each in resolver.visit(decl, _of_file(file)))
    found = {each.span: each for each in all if each.span.file == file.file}
    return sorted(found.values(), key=lambda each: each.span)


# The names that are visible


def _of_file(file: Declarations) -> VisibleNames:
    """Return the names that are visible in all declarations of a file."""
    return VisibleNames(file.symbols["dimension"], others=file.symbols, models=_models(file))


def _models(file: Declarations, names: Iterable[ast.Name] = ()) -> list[ast.ModelDecl]:
    """Return the models of these names, or all models of the file."""
    chosen = [file.symbols["model"][name.text] for name in names if name.text in file.symbols["model"]]
    nodes = (symbol.node for symbol in chosen or file.symbols["model"].values())
    return [node for node in nodes if isinstance(node, ast.ModelDecl)]


def _inside(node: ast.Node, names: VisibleNames, file: Declarations) -> VisibleNames:
    """Return the names that are visible in the fields of a node."""
    match node:
        case ast.ModelDecl() | ast.FnDecl() | ast.OptimizerDecl():
            own = names_of_body(node, file)
            return attrs.evolve(
                names, dims={**file.symbols["dimension"], **own.dims}, values=own.values, body=node
            )
        case ast.MeshDecl():
            return _with(names, axis=file.axes.get(node.name.text, {}))
        case ast.LayoutDecl():
            mesh = node.mesh.text if node.mesh else next(iter(file.symbols["mesh"]), "")
            names = attrs.evolve(names, models=_models(file, node.models))
            return _with(names, axis=file.axes.get(mesh, {}))
        case ast.PartRules():
            return _with(names, axis=file.axes.get(node.mesh.text, {}))
        case ast.HardwareDecl():
            return _with(names, device=_devices_and_links(node))
        case ast.PlacementDecl() if isinstance(node.devices, ast.Name):
            machine = file.symbols["hardware"].get(node.devices.text)
            return _with(names, device=_devices_and_links(machine.node if machine else None))
        case ast.TrainDecl():
            models = _models(file, [node.model]) if node.model.text in file.symbols["model"] else []
            return _with(names, output=names_of_body(models[0]).values if models else {})
    return names


def _with(names: VisibleNames, **tables: Symbols) -> VisibleNames:
    return attrs.evolve(names, others={**names.others, **tables})


def _devices_and_links(decl: ast.Node | None) -> Symbols:
    """Return the devices and links of a machine, the first one of each name."""
    entries = (*decl.devices, *decl.links) if isinstance(decl, ast.HardwareDecl) else ()
    return _first(symbol for each in entries for symbol in _bound(each))


@attrs.frozen
class _Resolver:
    """Finds the symbols that names mean in one file. Each method yields the names in a node of its kind."""

    file: Declarations
    project: Project

    def visit(self, node: ast.Node, names: VisibleNames) -> Iterator[Occurrence]:
        """Yield the names in the fields of a node."""
        names = _inside(node, names, self.file)
        own = READERS.get(type(node), {})
        for field in node.fields[1:]:
            for child in _nodes(node, field):
                yield from own.get(field, _Resolver.expression)(self, child, names)

    def expression(self, node: ast.Node, names: VisibleNames) -> Iterator[Occurrence]:
        """Yield the names in an expression. A plain name is a value if one is visible, else a dimension."""
        if isinstance(node, ast.Name) and node.text in names.values:
            yield from _of(node, names.values)
        elif isinstance(node, ast.Name | ast.Path):
            yield from self.dim(node, names)
        elif isinstance(node, ast.Call):
            yield from self._call(node, names)
        else:
            yield from self.visit(node, names)

    def nothing(self, node: ast.Node, names: VisibleNames) -> Iterator[Occurrence]:
        """Yield nothing, for a field without names of symbols."""
        return iter(())

    # Dimensions

    def dim(self, name: ast.Node, names: VisibleNames) -> Iterator[Occurrence]:
        """Yield the dimension that a name, or a name of a module such as `nn.heads`, means."""
        if isinstance(name, ast.Name):
            yield from _of(name, names.dims)
        elif isinstance(name, ast.Path):
            module = self.project.modules(self.file).get(name.parts[0])
            place = module.places.get(name.parts[1]) if module and len(name.parts) == 2 else None
            symbol = DeclaredSymbol(name.parts[1], place, "dimension") if place else None
            yield from self._full_name(name, symbol)

    def _full_name(self, name: ast.Name | ast.Path, symbol: DeclaredSymbol | None) -> Iterator[Occurrence]:
        """Yield a name, or the two names of `module.name`, for a symbol that it means."""
        if symbol is not None and isinstance(name, ast.Path):
            dot = name.span.column + len(name.parts[0])
            module = self.file.symbols["module"][name.parts[0]]
            yield Occurrence(attrs.evolve(name.span, end_column=dot), module, "used")
            yield Occurrence(attrs.evolve(name.span, column=dot + 1), symbol, "used")
        elif symbol is not None:
            yield Occurrence(name.span, symbol, "used")

    def dims(self, node: ast.Node, names: VisibleNames) -> Iterator[Occurrence]:
        """Yield the dimensions anywhere in a list or an arrow."""
        for name in walk(node):
            yield from self.dim(name, names)

    def size(self, node: ast.Node, names: VisibleNames) -> Iterator[Occurrence]:
        """Yield the names in the size of a dimension: dimensions, and arguments of the body that are numbers."""
        for name in walk(node):
            if isinstance(name, ast.Name) and name.text in names.values and name.text not in names.dims:
                yield from _of(name, names.values)
            else:
                yield from self.dim(name, names)

    # Layouts, placements and training

    def layout_dim(self, name: ast.Node, names: VisibleNames) -> Iterator[Occurrence]:
        """Yield the name on the left of a layout's rule: a dimension, or else the path of a value."""
        found = list(self.dim(name, names))
        if not found and isinstance(name, ast.Path):
            found = list(self._value_path(name, _models(self.file)))
        yield from found

    def path(self, path: ast.Node, names: VisibleNames) -> Iterator[Occurrence]:
        if isinstance(path, ast.Name | ast.Path):
            yield from self._value_path(path, names.models)

    def machine(self, node: ast.Node, names: VisibleNames) -> Iterator[Occurrence]:
        """Yield a machine of the file, or the names in anything else."""
        if isinstance(node, ast.Name) and node.text in self.file.symbols["hardware"]:
            yield from _of(node, self.file.symbols["hardware"])
        else:
            yield from self.dims(node, names)

    def figure(self, value: ast.Node, names: VisibleNames) -> Iterator[Occurrence]:
        if isinstance(value, ast.DeviceList):
            yield from self.visit(value, names)

    def optimizer(self, node: ast.Node, names: VisibleNames) -> Iterator[Occurrence]:
        """Yield the names in the call of an optimizer: its own, those of its hyperparameters, and those in expressions."""
        if not isinstance(node, ast.Call):
            return
        found = self.project.optimizers(node.function, self.file)
        yield from self._full_name(node.function, next(map(_declared, found), None))
        hypers = hyperparameters(found)
        for each in node.arguments:
            yield from self.expression(each, names)
        for keyword in node.keywords:
            yield from _of(keyword.name, hypers)
            yield from self.expression(keyword.value, names)

    # Full names of values

    def _value_path(self, path: ast.Name | ast.Path, models: Sequence[ast.ModelDecl]) -> Iterator[Occurrence]:
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
            found = list(self._steps(names, span, model))
            if found:
                yield from found
                return

    def _steps(self, parts: tuple[str, ...], span: Span, decl: ast.Node | None) -> Iterator[Occurrence]:
        """Yield the names in the rest of a full name, which begins in a body of this resolver's file."""
        if not isinstance(decl, Body) or not parts:
            return
        names = _inside(decl, _of_file(self.file), self.file)
        part, column = parts[0], span.column
        own = attrs.evolve(span, end_column=column + len(part))
        rest = attrs.evolve(span, column=column + len(part) + 1)
        symbol = names.values.get(part) or names_of_body(decl, self.file).dims.get(part)
        if len(parts) == 1 and symbol:
            yield Occurrence(own, symbol, "used")
            return
        for each in statements(decl.body):
            if isinstance(each, ast.Repeat | ast.Scan) and each.dim.text.rpartition(".")[2] == part:
                dims = list(self.dim(each.dim, names))[-1:]
                yield from (attrs.evolve(found, span=own) for found in dims)
                yield from self._steps(parts[1:], rest, decl)
                return
        for call in (node for each in decl.body for node in walk(each) if isinstance(node, ast.Call)):
            symbol, length = self._scope_of(call, part, decl)
            function = self.project.function(call.function, self.file) if symbol else None
            file = self.project.declarations(function.place.file) if function else None
            if symbol and function and file:
                yield Occurrence(attrs.evolve(own, end_column=column + length), symbol, "used")
                yield from _Resolver(file, self.project)._steps(parts[1:], rest, function.node)
                return
        if part in OF_A_LOOP:
            yield from self._steps(parts[1:], rest, decl)

    def _scope_of(self, call: ast.Call, part: str, decl: Body) -> tuple[DeclaredSymbol | None, int]:
        """Return the symbol that a part of a full name means if it is the scope of a call, and the length of its name."""
        wanted = NUMBERED.sub("", part)
        if call.scope is not None:
            name = call.scope.text
            return (_scope(decl, name), len(name)) if name in (part, wanted) else (None, 0)
        name = call.function.text.rpartition(".")[2]
        found = self.project.function(call.function, self.file) if name in (part, wanted) else None
        return found, len(name)

    # Calls

    def _call(self, node: ast.Call, names: VisibleNames) -> Iterator[Occurrence]:
        """Yield the names in a call: the scope that `as` gives its parameters, the function, and the arguments."""
        for name in (node.scope, node.shared):
            scope = _scope(names.body, name.text) if name is not None else None
            if name is not None and scope is not None:
                first: Role = "declared" if scope.place == name.span else "bound"
                yield Occurrence(name.span, scope, first if name is node.scope else "used")
        found = self.project.function(node.function, self.file)
        yield from self._full_name(node.function, found)
        if found is not None and isinstance(found.node, ast.FnDecl):
            yield from self._declared_call(node, found.node, names)
        else:
            yield from self._builtin_call(node, names)

    def _declared_call(
        self, node: ast.Call, function: ast.FnDecl, names: VisibleNames
    ) -> Iterator[Occurrence]:
        """Yield the names in the arguments of a declared function: keywords are its arguments, bindings its dimensions."""
        known = names_of_body(function)
        for binding in node.bindings:
            yield from _of(binding.generic, known.dims)
            yield from self.dim(binding.dim, names)
        given = [each.name.text for each in function.args]
        pairs = [(value, given[i] if i < len(given) else "") for i, value in enumerate(node.arguments)]
        for keyword in node.keywords:
            if keyword.name.text in given:
                yield from _of(keyword.name, {**known.values, **known.dims})
            pairs.append((keyword.value, keyword.name.text))
        dims = {
            each.name.text for each in function.args if each.type is None and each.name.text in known.dims
        }
        for value, name in pairs:
            yield from self.dims(value, names) if name in dims else self.expression(value, names)

    def _builtin_call(self, node: ast.Call, names: VisibleNames) -> Iterator[Occurrence]:
        """Yield the names in the arguments of a builtin, which says of what kind each of them is."""
        builtin = BUILTINS.get(node.function.text)
        given = builtin.arguments if builtin else ()
        more = builtin.more if builtin else None
        for i, value in enumerate(node.arguments):
            yield from self._builtin_argument(value, given[i] if i < len(given) else more, names)
        for keyword in node.keywords:
            kind = builtin.keywords.get(keyword.name.text) if builtin else None
            yield from self._builtin_argument(keyword.value, kind, names)

    def _builtin_argument(self, value: ast.Node, kind: object, names: VisibleNames) -> Iterator[Occurrence]:
        """Yield the names in an argument of a kind: values, dimensions, or an expression; dtypes are no names."""
        is_pair = kind is kinds.tensor_or_mapping and isinstance(value, ast.Arrow)
        is_dtype = isinstance(value, ast.Name) and kind is kinds.dtype and value.text in WRITTEN_BYTES
        if kind is kinds.variables:
            for name in walk(value):
                yield from _of(name, names.values) if isinstance(name, ast.Name) else ()
        elif kind in DIM_KINDS or is_pair:
            yield from self.dims(value, names)
        elif not is_dtype:
            yield from self.expression(value, names)


@attrs.frozen
class _Named:
    """Reads a field with names of a kind of symbols, which are declared or bound there, or used."""

    kind: SymbolKind | Literal["output"]
    is_bound: bool = False

    def __call__(self, resolver: _Resolver, node: ast.Node, names: VisibleNames) -> Iterator[Occurrence]:
        """Yield the name in a field, or the names in its parts, with its role: declared, bound or used."""
        if isinstance(node, ast.Name):
            table = names.of_kind(self.kind)
            if self.kind == "argument" and node.text in names.dims and node.text not in table:
                table = names.dims
            role: Role = "bound" if self.kind == "value" else "declared"
            yield from _of(node, table, role if self.is_bound else "used")
        elif isinstance(node, ast.DevicesOfKind):
            yield from resolver.visit(node, names)


def _bind(kind: SymbolKind) -> _Named:
    return _Named(kind, is_bound=True)


Reader = _Named | Callable[[_Resolver, ast.Node, VisibleNames], Iterator[Occurrence]]

READERS: Mapping[type[ast.Node], Mapping[str, Reader]] = {
    **{node: {"name": _bind(each.symbol)} for node, each in KINDS.items()},
    ast.Type: {"dims": _Resolver.dims, "dtype": _Resolver.nothing},
    ast.DimList: {"dims": _Resolver.dims},
    ast.Arrow: {"target": _Resolver.dims},
    ast.DimDecl: {"name": _bind("dimension"), "size": _Resolver.size},
    # bodies
    ast.FnDecl: {"name": _bind("function"), "generics": _bind("dimension")},
    ast.FnArg: {"name": _bind("argument")},
    ast.Input: {"name": _bind("argument")},
    ast.OptimizerDecl: {
        "name": _bind("optimizer"),
        "parameter": _bind("argument"),
        "gradient": _bind("argument"),
    },
    ast.Param: {"name": _bind("parameter")},
    ast.State: {"name": _bind("state")},
    ast.StateUpdate: {"name": _Named("value")},
    ast.Assign: {"targets": _bind("value")},
    ast.Yield: {"name": _bind("value")},
    ast.SliceBinding: {"name": _bind("value")},
    ast.Repeat: {"dim": _Resolver.dims},
    ast.Scan: {"dim": _Resolver.dims},
    # layouts
    ast.MeshAxis: {"name": _bind("axis"), "size": _Resolver.dims},
    ast.LayoutDecl: {
        "name": _bind("layout"),
        "models": _Named("model"),
        "mesh": _Named("mesh"),
        **dict.fromkeys(("forms", "allows"), _Resolver.nothing),
    },
    ast.PartRules: {"mesh": _Named("mesh"), "misplaced": _Resolver.nothing, "paths": _Resolver.path},
    ast.SplitRule: {"axes": _Named("axis"), "dim": _Resolver.layout_dim},
    ast.PipelineRule: {"loop": _Resolver.layout_dim},
    ast.ValueRules: {"path": _Resolver.path},
    # placements and hardware
    ast.PlacementDecl: {"name": _bind("placement"), "devices": _Resolver.machine},
    ast.OperatorPlacement: {
        "path": _Resolver.path,
        "devices": _Named("device"),
        "indices": _Resolver.nothing,
    },
    ast.Degree: {"dim": _Resolver.layout_dim, "parts": _Resolver.nothing},
    ast.DeviceList: {"devices": _Named("device")},
    ast.DevicesOfKind: {"kind": _Named("device"), "numbers": _Resolver.nothing},
    ast.HardwareDecl: {"name": _bind("hardware"), "figures": _Resolver.nothing},
    ast.HardwareFigure: {"key": _Resolver.nothing, "value": _Resolver.figure},
    ast.DeviceDecl: {"name": _bind("device")},
    ast.LinkDecl: {"name": _bind("link")},
    # training
    ast.TrainDecl: {
        "model": _Named("model"),
        "optimizer": _Resolver.optimizer,
        "precision": _Resolver.nothing,
        **dict.fromkeys(("minimize", "report", "weigh_by"), _Named("output")),
    },
    ast.OptimizerFor: {"optimizer": _Resolver.optimizer},
}
"""The reader of each field that has names, by class of the syntax tree; every other field holds expressions."""


def _of(name: ast.Name, table: Symbols, role: Role = "used") -> Iterator[Occurrence]:
    """Yield a name that a table has, with its role."""
    symbol = table.get(name.text)
    if symbol is not None:
        yield Occurrence(name.span, symbol, role)


def _scope(decl: Body | None, name: str) -> DeclaredSymbol | None:
    """Return the symbol of `as NAME` in a body: the first one has it."""
    calls = (
        node for each in (decl.body if decl else ()) for node in walk(each) if isinstance(node, ast.Call)
    )
    places = [call.scope.span for call in calls if call.scope and call.scope.text == name]
    return DeclaredSymbol(name, min(places), "scope") if places else None
