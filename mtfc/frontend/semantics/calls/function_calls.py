"""Inline calls of functions that files declare.

A call binds the generic dimensions of the signature, elaborates the body in a scope of its own, and checks the results against
the declaration. Errors in a body are reported in the body, with labels at the calls that led to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from typing import Literal

import attrs

from mtfc.compiler.diagnostics import Label, Span
from mtfc.compiler.ir.types import Dim, TensorType
from mtfc.compiler.records import define, frozen
from mtfc.frontend.semantics.bodies.expressions import Expressions, Operand, Result, Results, Variables
from mtfc.frontend.semantics.bodies.function_builder import LARGEST
from mtfc.frontend.semantics.bodies.parameters_and_states import may_share
from mtfc.frontend.semantics.bodies.statements import BodyKind, ElaboratedBody
from mtfc.frontend.semantics.calls import argument_kinds as kinds
from mtfc.frontend.semantics.names.scope import ANY, InlinedSize, Scope, count
from mtfc.frontend.syntax import ast, other_libraries
from mtfc.frontend.syntax.ast import walk

DEEPEST = 40
"""Most functions that are inlined in each other."""


@frozen
class DeclaredFunction:
    """The declaration of a function, and the scope of its file."""

    scope: Scope
    decl: ast.FnDecl

    @property
    def key(self) -> tuple[str, str]:
        return self.scope.module, self.decl.name.text


def find_function(scope: Scope, name: ast.Name | ast.Path) -> DeclaredFunction | None:
    """Return the function that a name refers to in a scope; None if there is none."""
    if isinstance(name, ast.Name):
        decl = scope.functions.get(name.text)
        return DeclaredFunction(scope.file, decl) if decl else None
    if len(name.parts) != 2:
        return None
    module = scope.modules.get(name.parts[0])
    decl = module.functions.get(name.parts[1]) if module else None
    return DeclaredFunction(module, decl) if module and decl else None


def call_function(
    expressions: Expressions, node: ast.Call, function: DeclaredFunction, variables: Variables
) -> Results:
    """Inline a call; a result with an error is None, or a placeholder of the type that the function declares."""
    call = _Call(expressions, node, function)
    results = call.run(variables) if expressions.stack else _shallow(call, variables)
    return results or tuple(call.declared(type) for type in function.decl.results)


def _shallow(call: _Call, variables: Variables) -> Results | None:
    """Inline a call that is outside of functions; report an error if the nesting overflows Python's stack."""
    block = call.caller.builder.block
    try:
        return call.run(variables)
    except RecursionError:
        call.caller.builder.block, block.call = block, None
        message = "this call leads to functions and expressions that are nested too deeply"
        return call.caller.scope.refuse("E122", message, call.node.span)


class _Call:
    """A call being inlined. Names of the caller are looked up in `caller`, names of the signature in `scope`."""

    def __init__(self, caller: Expressions, node: ast.Call, function: DeclaredFunction) -> None:
        """Look at a call before anything is matched.

        key: file and name of the function. bindings: its generics and their dims.
        """
        self.caller, self.node, self.decl, self.key = caller, node, function.decl, function.key
        self.name = node.function.text
        self.function = function
        label = Label(node.span, f"in this call of `{self.name}`")
        self.scope = function.scope.inside((label, *caller.scope.calls))
        self.bindings = Bindings(frozenset(name.text for name in self.decl.generics), self.scope)

    @cached_property
    def size(self) -> InlinedSize:
        return inlined_size(self.function, self.scope.reports.sizes)

    def run(self, variables: Variables) -> Results | None:
        """Inline the call, and return its results; None, with a diagnostic, if the call is wrong.

        variables: the names of the results.
        """
        given = self._arguments()
        if given is None or not self._bind_generics() or not check_signature(self.decl, self.scope):
            return None
        if not may_share(self.node, self.caller, self.size.owns):
            return None
        if not self._may_be_inlined() or not self._match(given) or not self._all_bound():
            return None
        self.scope.reports.called.add(self.decl.name.span)
        body = self._body(variables)
        for each in self.decl.args:
            if not self._is_dim(each):
                body.bind(each.name, self._value(each, given.get(each.name.text), body.expressions))
        block = self.caller.builder.block
        outer, block.call = block.call, attrs.evolve(self.node.span, call=block.call)
        body.run()
        block.call = outer
        return tuple(body.results)

    def declared(self, type: ast.Type) -> Result:
        """Return a placeholder of a declared result, if the type says all, without generic dimensions."""
        generics = {name.text for name in self.decl.generics}
        is_open = has_rest(type) or any(name.text in generics for name in names(type))
        if is_open or (type.dtype is not None and type.dtype.text == ANY):
            return None
        return self.caller.placeholder(self.function.scope.type(type), self.node.span)

    def _error(self, code: str, message: str, span: Span, help: str | None = None) -> Literal[False]:
        label = Label(self.decl.name.span, f"`{self.decl.name.text}` is declared here")
        return self.caller.scope.error(code, message, span, [label], help)

    # Arguments

    def _is_dim(self, argument: ast.FnArg) -> bool:
        """Return True if an argument stands for a generic dimension."""
        return argument.type is None and argument.name.text in self.bindings.generics

    def _arguments(self) -> dict[str, Operand] | None:
        """Return the given arguments by name, and bind dimensions among them. Returns None if an argument is wrong."""
        known = {each.name.text: each for each in self.decl.args}
        pairs: list[tuple[ast.FnArg, ast.Node]] = list(zip(self.decl.args, self.node.arguments, strict=False))
        right = self._few_enough(len(known))
        for keyword in self.node.keywords:
            argument = known.get(keyword.name.text)
            if argument is None:
                self._unknown_keyword(keyword, known)
                right = False
            else:
                pairs.append((argument, keyword.value))
        found: dict[str, Operand] = {}
        for argument, node in pairs:
            right = self._give(argument, node, found) and right
        return found if self._complete({each.name.text for each, _ in pairs}) and right else None

    def _unknown_keyword(self, keyword: ast.Keyword, known: Collection[str]) -> None:
        """Report an unknown argument; if it chooses a dimension, the help shows the notation."""
        message = f"`{self.name}` has no argument `{keyword.name.text}`"
        help = keyword_help(self.decl, self.node, keyword, self.caller.scope)
        self.caller.scope.unknown("E111", message, keyword.name, known, meant=help)
        if not help:
            self.caller.value(keyword.value)

    def _few_enough(self, most: int) -> bool:
        """Return True if the call has at most `most` positional arguments; else report it (E203)."""
        number = len(self.node.arguments)
        if number <= most:
            return True
        message = f"`{self.name}` takes {count(most, 'argument')}, found {number}"
        help = binding_help(self.decl, self.node, self.caller.scope)
        return self._error("E203", message, self.node.span, help)

    def _give(self, argument: ast.FnArg, node: ast.Node, found: dict[str, Operand]) -> bool:
        """Elaborate one argument in the caller, and add it to `found`; return False if it has an error."""
        name = argument.name.text
        if name in found or (self._is_dim(argument) and name in self.bindings.dims):
            return self._error("E203", f"`{name}` is given twice", node.span)
        if self._is_dim(argument):
            dim = kinds.dim(self.caller, node)
            if dim is not None:
                self.bindings.dims[name] = dim, node.span
            return dim is not None
        operand = kinds.tensor(self.caller, node)
        if operand is None or not self._is_meant(argument, node):
            return False
        found[name] = operand
        return True

    def _is_meant(self, argument: ast.FnArg, node: ast.Node) -> bool:
        """Return False, and report an error, for a dimension by its place where a number with a default is expected."""
        by_place = any(each is node for each in self.node.arguments)
        if argument.type or argument.default is None or not by_place or not isinstance(node, ast.DimName):
            return True
        if node.text in self.caller.values or self.caller.scope.find_dim(node) is None:
            return True
        name = argument.name.text
        help = f"for its size write `{name} = {node.text}`; "
        help += (
            binding_help(self.decl, self.node, self.caller.scope, node)
            or "its dimensions follow from the other arguments"
        )
        return self._error(
            "E204", f"`{name}` of `{self.name}` is a number, found dimension `{node.text}`", node.span, help
        )

    def _complete(self, given: Collection[str]) -> bool:
        """Return True if all arguments without a default are given; otherwise report it (E203)."""
        missing = [
            each.name.text
            for each in self.decl.args
            if each.name.text not in given and each.default is None and not self._is_dim(each)
        ]
        names = " and ".join(f"`{name}`" for name in missing)
        return not missing or self._error("E203", f"`{self.name}` needs {names}", self.node.span)

    def _bind_generics(self) -> bool:
        """Bind `[d_out = d_ff]`: names of the function are on the left, names of the caller on the right."""
        right = True
        for binding in self.node.bindings:
            name, dim = binding.generic, self.caller.scope.dim(binding.dim)
            if name.text not in self.bindings.generics:
                message = f"`{self.name}` has no generic dimension `{name.text}`"
                self.caller.scope.unknown("E116", message, name, self.bindings.generics)
            elif name.text in self.bindings.dims:
                label = Label(self.bindings.dims[name.text][1], "first given here")
                self.caller.scope.error("E220", f"`{name.text}` is given twice", binding.span, [label])
            elif dim is not None:
                self.bindings.dims[name.text] = dim, binding.span
                continue
            right = False
        return right

    # The signature

    def _may_be_inlined(self) -> bool:
        """Return True unless the function calls itself, calls are too deep, or the program would grow too large; then report
        it.
        """
        stack, builder, size = self.caller.stack, self.caller.builder, self.size
        if self.key in stack:
            names = [name for _, name in (*stack[stack.index(self.key) :], self.key)]
            message = f"`{self.name}` calls itself: {' -> '.join(names)}"
            help = "calls are inlined: write repeated work with `repeat` or `scan`"
            return self._error("E118", message, self.node.function.span, help)
        if len(stack) >= DEEPEST:
            message = f"more than {DEEPEST} functions are inlined in each other"
            return self._error("E122", message, self.node.span)
        if builder.grown.size + size.total > LARGEST:
            message = f"the program has more than {LARGEST:,} equations and calls"
            help = "write repeated parts once, with `repeat` or `scan`"
            return self._error("E122", message, self.node.span, help)
        builder.grown.size += size.own
        return True

    def _match(self, given: Mapping[str, Operand]) -> bool:
        """Bind dimensions by the types of the arguments; return False, and report an error, if a type does not match.

        given: the operand of each argument, by name.
        """
        pairs = [
            GivenArgument(each, given[each.name.text])
            for each in self.decl.args
            if each.type and each.name.text in given
        ]
        mismatch = self.bindings.match(pairs)
        return mismatch is None or self._refuse(*mismatch)

    def _refuse(self, given: GivenArgument, reason: str) -> Literal[False]:
        """Report an argument that does not match its declared type."""
        argument, operand = given.argument, given.operand
        type = type_of(given)
        message = f"`{argument.name.text}` of `{self.name}` is {shown(type)}, found {operand.found}: {reason}"
        labels = [
            *bound_labels(self.bindings, type, operand.span),
            Label(argument.name.span, f"`{argument.name.text}` is declared here"),
        ]
        return self.caller.scope.error("E219", message, operand.span, labels)

    def _all_bound(self) -> bool:
        """Put the bound dimensions into the scope; return False, and report an error, if one is undetermined."""
        bindings, scope = self.bindings, self.scope
        missing = [name.text for name in self.decl.generics if name.text not in bindings.dims]
        if missing:
            names = " and ".join(f"`{name}`" for name in missing)
            example = ", ".join(f"{name} = ..." for name in missing)
            message = f"no argument determines dimension{'s'[: len(missing) - 1]} {names} of `{self.name}`"
            return self._error("E220", message, self.node.span, f"give it: `{self.name}[{example}](...)`")
        for name in self.decl.generics:
            scope.dims[name.text], scope.places[name.text] = bindings.dims[name.text][0], name.span
        scope.rest = bindings.rest[0] if bindings.rest else ()
        scope.any = bindings.any[0] if bindings.any else "f32"
        return True

    # The body

    def _body(self, variables: Variables) -> FunctionBody:
        """Return the body, with names in a scope of its own under the scope of the caller."""
        caller, builder = self.caller, self.caller.builder
        owner = self.size.owns
        wanted = self.node.scope or self.decl.name
        own = builder.scope(caller.prefix, wanted.text, owner)
        if self.node.scope and own != wanted.text:
            help = f"to use its parameters again, write `{self.name}(...) sharing {wanted.text}`"
            message = f"scope `{wanted.text}` has another call in it"
            self._error("E102", message, wanted.span, help if owner else None)
        caller.note_section(caller.prefix + own, self.node.span)
        prefix = f"{caller.prefix}{own}."
        pair = ((prefix, f"{caller.prefix}{self.node.shared.text}."),) if self.node.shared else ()
        return FunctionBody(self, variables, prefix, (*pair, *caller.shared))

    def _value(self, argument: ast.FnArg, operand: Operand | None, inside: Expressions) -> Result:
        """Return the value of an argument, given or default, with its dimensions in the declared order.

        inside: elaborates default values.
        """
        if operand is None:
            assert argument.default is not None, "arguments without a default are given"
            operand = inside.operand(argument.default)
        if operand is None or argument.type is None:
            return operand.result if operand else None
        type = self.scope.type(argument.type)
        if type is None or operand.fits(type):
            return inside.as_type(operand, type) if type else None
        return inside.scope.refuse("E219", f"expected {type}, found {operand.found}", operand.span)


class FunctionBody(ElaboratedBody):
    """The body of a function at one call. `results` are its results, None for a result with an error."""

    def __init__(
        self, call: _Call, variables: Variables, prefix: str, shared: tuple[tuple[str, str], ...]
    ) -> None:
        """Start the body of a called function. variables: the caller's names of the results.

        prefix: the path of the values' names.
        """
        decl, scope, caller = call.decl, call.scope, call.caller
        generics = {name.text for name in decl.generics}
        given = [each.name for each in decl.args if each.type or each.name.text not in generics]
        kind = BodyKind("function", decl.name, local_dims=True, unused=scope.reports.unused(decl))
        rule, stack = caller.call_rule, (*caller.stack, call.key)
        super().__init__(kind, decl.body, scope, caller.builder, rule, given, prefix, stack, shared)
        self.decl, self.variables = decl, variables
        self.dim_places = {name.text: name.span for name in decl.generics}
        self.types = [scope.type(type) for type in decl.results]
        self.results: list[Result] = [None] * len(decl.results)

    def return_(self, node: ast.Return) -> None:
        """Keep the returned values as the results, if their number is the declared one."""
        expected, found = len(self.decl.results), len(node.values)
        self.returned = found
        if found != expected:
            message = f"`{self.decl.name.text}` declares {count(expected, 'result')}, and returns {found}"
            label = Label(self.decl.name.span, f"`{self.decl.name.text}` is declared here")
            self.scope.error("E221", message, node.span, [label])
            return
        variables = [*self.variables, *(None,) * (expected - len(self.variables))]
        rows = zip(node.values, self.types, self.decl.results, variables[:expected], strict=True)
        self.results = [self._result(value, type, declared, name) for value, type, declared, name in rows]

    def _result(
        self, node: ast.Expr, type: TensorType | None, declared: ast.Type, variable: str | None
    ) -> Result:
        """Return a result as its declared type; after a mismatch (E221), a placeholder of that type."""
        result = self.expressions.value(node, variable)
        if result is None or type is None:
            return self.expressions.placeholder(type, node.span)
        operand = self.expressions.as_operand(result, node.span)
        if operand.fits(type):
            return self.expressions.as_type(operand, type, variable)
        message = f"`{self.decl.name.text}` returns {shown(declared)}, found {operand.found}"
        labels = [Label(declared.span, f"declared here, and {type} in this call")]
        self.scope.error("E221", message, node.span, labels, _result_help(operand, type))
        return self.expressions.placeholder(type, node.span)


def _result_help(operand: Operand, type: TensorType) -> str | None:
    """Return how to give a result its declared type: other dimensions, or another dtype."""
    if set(operand.dims) < set(type.dims):
        return "add the missing dimensions: `broadcast(x -> [dims])`"
    return "convert it with `cast(x, dtype)`" if set(operand.dims) == set(type.dims) else None


def check_signature(decl: ast.FnDecl, scope: Scope) -> bool:
    """Return True if all names in a signature are known and declared once; report errors otherwise."""
    places: dict[str, Span] = {}
    generic = [scope.declare("dimension", name, places) for name in decl.generics]
    places = {}
    arguments = [scope.declare("argument", each.name, places) for each in decl.args]
    types = [*(each.type for each in decl.args if each.type), *decl.results]
    known = [_known(type, decl, scope) for type in types]
    return all((*generic, *arguments, *known))


def _known(type: ast.Type, decl: ast.FnDecl, scope: Scope) -> bool:
    """Return True if the dtype and the dimensions of a type in a signature are known; report errors otherwise."""
    generics = {name.text for name in decl.generics}
    right = type.dtype is None or type.dtype.text == ANY or scope.dtype(type.dtype) is not None
    for name in names(type):
        right = (name.text in generics or scope.dim(name) is not None) and right
    return right


NODES = 8
"""The nodes of a function's syntax that take at most the time of an equation."""


def inlined_size(
    function: DeclaredFunction, known: dict[tuple[str, str], InlinedSize], depth: int = 0
) -> InlinedSize:
    """Return the size of a call of a function, at most one more than a program may have.

    known: the answers found before. Calls that lead back to the function, or too deep, are other errors.
    """
    if function.key not in known:
        known[function.key] = InlinedSize()
        nodes = tuple(walk(function.decl))
        own = total = 1 + len(nodes) // NODES
        owns = any(isinstance(node, ast.Param | ast.State) for node in nodes)
        for node in nodes if depth < DEEPEST else ():
            callee = find_function(function.scope, node.function) if isinstance(node, ast.Call) else None
            inner = inlined_size(callee, known, depth + 1) if callee else InlinedSize()
            total, owns = total + inner.total, owns or inner.owns
        known[function.key] = InlinedSize(own, min(total, LARGEST + 1), owns)
    return known[function.key]


# The names in a function's signature at a call: generic dimensions, `...` and `any`
#
# Known dimensions of an argument are found by name, in any order: dimensions of the file, and generic dimensions that are bound
# already. Of the other dimensions of the argument, the first ones bind the generic dimensions before `...`, the last ones those
# after `...`, and `...` takes the rest. Arguments whose types have no `...` are matched first, because they leave no choice.


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
        """Match an argument's type with a parameter's: its dtype, the dims that are known, and then the rest.

        Raises `Mismatch`.
        """
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
        """Return the dims without those that `...` stands for. Raises `Mismatch` if one of them is missing.

        left: the dims that no name has taken.
        """
        assert self.rest is not None
        missing = [dim for dim in self.rest[0] if dim not in left]
        if missing:
            raise Mismatch(f"it has no dimension `{missing[0].name}`, which `...` has")
        return [dim for dim in left if dim not in self.rest[0]]

    def _bind(self, type: ast.Type, left: Dims, span: Span) -> None:
        """Bind the unbound generic dimensions of a type, and its `...`, to the remaining dimensions of the operand.

        left: the dims that no name has taken.
        """
        ends = unbound_around_rest(type, self)
        names_before, names_after = ends
        named = len(names_before) + len(names_after)
        takes_more = has_rest(type) and self.rest is None
        if len(left) < named or (len(left) > named and not takes_more):
            raise Mismatch(_surplus(left, named))
        end = len(left) - len(names_after)
        for name, dim in (*zip(names_before, left, strict=False), *zip(names_after, left[end:], strict=True)):
            self.dims[name.text] = dim, span
        if takes_more:
            self.rest = left[len(names_before) : end], span


def type_of(given: GivenArgument) -> ast.Type:
    """Return the declared type of a matched argument."""
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


def binding_help(
    decl: ast.FnDecl, node: ast.Call, scope: Scope, misplaced: ast.DimName | None = None
) -> str | None:
    """Return help for sizes given as arguments: `nn.dense[d_out = classes](h)` for `nn.dense(h, 10)`.

    misplaced: the argument that is a dimension, None for those that are too many.
    """
    determined = {name.text for each in decl.args if each.type for name in names(each.type)}
    bound_names = {each.name.text for each in decl.args} | {each.generic.text for each in node.bindings}
    open_generics = [each.text for each in decl.generics if each.text not in determined | bound_names]
    given, extra = node.arguments[: len(decl.args)], node.arguments[len(decl.args) :]
    if misplaced is not None:
        given, extra = tuple(each for each in given if each is not misplaced), (misplaced,)
    generics = {each.text for each in decl.generics} - set(open_generics)
    same = [each for each in extra if isinstance(each, ast.DimName) and each.text in generics]
    sizes = [each for each in extra if each not in same]
    if len(sizes) > len(open_generics):
        return None
    pairs = [*((each.text, each) for each in same), *zip_longest(open_generics, sizes)]
    call, declared = _with_bindings(node, pairs, given, scope)
    return f"sizes are dimensions: write {call}{', with ' + declared if declared else ''}"


def _with_bindings(
    node: ast.Call, pairs: Sequence[tuple[str, ast.Node | None]], given: Sequence[ast.Node], scope: Scope
) -> tuple[str, str]:
    """Return a call that binds generic dimensions, and the declarations of dimensions that the file lacks.

    pairs: generic dimensions and their sizes. given: the arguments that stay.
    """
    sizes = scope.file.dims_by_size
    bindings = ", ".join(f"{name} = {_as_dim(name, each, sizes)}" for name, each in pairs)
    missing = [(n, each.value) for n, each in pairs if isinstance(each, ast.Int) and each.value not in sizes]
    declared = " and ".join(f"`dim {name} = {size}`" for name, size in missing)
    arguments = ", ".join(each.text if isinstance(each, ast.Name) else "..." for each in given)
    return f"`{node.function.text}[{bindings}]({arguments})`", declared


def _as_dim(name: str, node: ast.Node | None, sizes: Mapping[int, str]) -> str:
    """Return the name of the intended dimension: one of this size, or a new one called `name`; `...` without a size."""
    if isinstance(node, ast.DimName):
        return node.text
    return sizes.get(node.value, name) if isinstance(node, ast.Int) else "..."


def keyword_help(decl: ast.FnDecl, node: ast.Call, keyword: ast.Keyword, scope: Scope) -> str | None:
    """Return help for an unknown argument that chooses a dimension."""
    generics = {name.text for name in decl.generics}
    if keyword.name.text in generics:
        pairs = [(keyword.name.text, keyword.value)]
        call, declared = _with_bindings(node, pairs, node.arguments, scope)
        return f"write {call}{f', with {declared} in the file' if declared else ''}"
    dims = [each.name.text for each in decl.args if not each.type and each.name.text in generics]
    if keyword.name.text in other_libraries.DIMENSIONS and dims:
        return f"a dimension is given by its name: `{node.function.text}(x, {dims[0]} = io)`"
    return None
