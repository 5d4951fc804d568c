"""A model to a program: inputs, parameters, statements, and what is returned.

A model that has errors still gives a program of what could be elaborated, so that layouts are checked against it in the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from mtfc.compiler.diagnostics import Label, Span
from mtfc.compiler.ir.core import Argument, Function, Initializer, Output, Parameter, Program, Role, Value
from mtfc.compiler.ir.initializers import DISTRIBUTIONS
from mtfc.compiler.ir.types import FLOATS, TensorType
from mtfc.frontend import ast
from mtfc.frontend.calls import elaborate_call
from mtfc.frontend.expressions import Expressions
from mtfc.frontend.hyper import Signature, read_numbers
from mtfc.frontend.scope import Scope, count

INITIALIZERS: dict[str, Signature] = {name: each.args for name, each in DISTRIBUTIONS.items()}
"""Distributions of initial values, with the defaults of their numbers; None where one must be given."""


@attrs.frozen
class Model:
    """An elaborated model; `complete` says whether all of it could be elaborated, `places` where its variables are defined."""

    program: Program
    complete: bool
    decl: ast.ModelDecl
    places: dict[str, Span]


def elaborate_model(decl: ast.ModelDecl, scope: Scope) -> Model:
    body = Body(decl, scope)
    for each in decl.inputs:
        body.argument(each.name, scope.type(each.type), "input")
    for statement in body.statements():
        STATEMENTS[type(statement)](body, statement)
    dims = {name: dim for name, dim in scope.dims.items() if dim is not None}
    arguments = tuple(sorted(body.arguments, key=lambda argument: argument.role != "input"))
    forward = Function("forward", arguments, tuple(body.expressions.builder.body), tuple(body.outputs))
    program = Program(decl.name.text, dims, tuple(body.parameters), (forward,))
    failed = len(body.outputs) < body.returned or None in body.expressions.values.values()
    return Model(program, bool(body.returned) and not failed, decl, body.later)


def variables(decl: ast.ModelDecl) -> Iterator[ast.Name]:
    """The names that a model binds, in order, repeated where they are rebound."""
    yield from (each.name for each in decl.inputs)
    for statement in decl.body:
        yield from _bound(statement)


def _bound(statement: ast.Statement) -> Sequence[ast.Name]:
    """The names that a statement binds for those that follow."""
    if isinstance(statement, ast.Assign):
        return statement.targets
    if isinstance(statement, ast.Param | ast.State | ast.Yield):
        return (statement.name,)
    if isinstance(statement, ast.Repeat | ast.Scan):
        return [name for inner in statement.body for name in _bound(inner)]
    return ()


class Body:
    """What has been elaborated of one model."""

    def __init__(self, decl: ast.ModelDecl, scope: Scope) -> None:
        self.decl, self.scope = decl, scope
        self.later: dict[str, Span] = {}
        for name in variables(decl):
            self.later.setdefault(name.text, name.span)
        self.expressions = Expressions(scope, self.later, elaborate_call)
        self.places: dict[str, Span] = {}
        self.arguments: list[Argument] = []
        self.parameters: list[Parameter] = []
        self.outputs: list[Output] = []
        self.returned = 0

    def statements(self) -> Iterator[ast.Statement]:
        """The statements up to the first `return`; errors where there is none, or where more follow."""
        for i, statement in enumerate(self.decl.body):
            yield statement
            if isinstance(statement, ast.Return):
                self._nothing_after(statement, self.decl.body[i + 1 :])
                return
        if not any(isinstance(statement, ast.Broken) for statement in self.decl.body):
            name = self.decl.name
            help = "end it with `return` and the values that it computes"
            self.scope.error("E108", f"model `{name.text}` returns nothing", name.span, help=help)

    def _nothing_after(self, end: ast.Return, rest: Sequence[ast.Statement]) -> None:
        if rest and not isinstance(rest[0], ast.Broken):
            label = Label(end.span, "the model ends here")
            self.scope.error("E107", "this comes after `return`", rest[0].span, [label])

    def argument(self, name: ast.Name, type: TensorType | None, role: Role) -> bool:
        """Bind an input or parameter; False where the name is taken, or the type wrong."""
        if not self.scope.declare("value", name, self.places):
            return False
        if type is None:
            self.expressions.values[name.text] = None
            return False
        value = Value(self.expressions.names.of_variable(name.text), type)
        self.arguments.append(Argument(value, role, name.span))
        self.expressions.values[name.text] = value
        return True

    # Statements

    def assign(self, node: ast.Assign) -> None:
        first, *more = node.targets
        result = self.expressions.value(node.value, None if more else first.text)
        if more and result is not None:
            message = f"{count(len(node.targets), 'name')} for one value"
            last = node.targets[-1].span
            span = attrs.evolve(first.span, end_line=last.end_line, end_column=last.end_column)
            self.scope.error("E218", message, span)
        for target in node.targets:
            self.places.setdefault(target.text, target.span)
            self.expressions.values[target.text] = None if more else result

    def param(self, node: ast.Param) -> None:
        type = self.scope.type(node.type)
        if type is not None and type.dtype not in FLOATS:
            message = f"a parameter is trained and so must be floating-point, found {type.dtype}"
            self.scope.error(
                "E216", message, node.type.span, help="what is given and not trained is an input"
            )
            type = None
        init = self._initializer(node.init)
        if self.argument(node.name, type, "parameter") and type and init:
            self.parameters.append(Parameter(node.name.text, type, init, node.span))

    def _initializer(self, node: ast.Expr) -> Initializer | None:
        found = read_numbers(node, "initializer", INITIALIZERS, "E117", "E217", self.scope)
        if found is None:
            return None
        name, numbers = found
        problem = None
        if numbers.get("stddev", 0.0) < 0:
            problem = "a standard deviation is not negative"
        if name == "uniform" and numbers["low"] > numbers["high"]:
            problem = "`low` is above `high`"
        if problem:
            self.scope.error("E217", problem, node.span)
            return None
        return Initializer(name, tuple(numbers.items()))

    def return_(self, node: ast.Return) -> None:
        places: dict[str, Span] = {}
        self.returned = len(node.values)
        for value in node.values:
            if not isinstance(value, ast.Name):
                help = "an output has the name of a variable: assign it to one, and return that"
                self.scope.error("E109", "only variables can be returned", value.span, help=help)
            elif value.text in places:
                label = Label(places[value.text], "first returned here")
                self.scope.error("E112", f"`{value.text}` is returned twice", value.span, [label])
            else:
                places[value.text] = value.span
                self._output(value)

    def _output(self, name: ast.Name) -> None:
        if self.expressions.value(name) is None:
            return
        value = self.expressions.output(name.text, name.span)
        if value is not None:
            self.outputs.append(Output(name.text, value))

    def not_yet(self, node: ast.Repeat | ast.Scan) -> None:
        keyword = type(node).__name__.lower()
        start = attrs.evolve(node.span, end_line=node.span.line, end_column=node.span.column + len(keyword))
        self.scope.error("E110", f"`{keyword}` is not supported yet", start)
        for name in _bound(node):
            self.expressions.values[name.text] = None

    def misplaced(self, node: ast.State | ast.Yield) -> None:
        keyword, where = ("state", "an optimizer") if isinstance(node, ast.State) else ("yield", "a `scan`")
        self.scope.error("E114", f"`{keyword}` belongs in {where}", node.span)
        self.expressions.values[node.name.text] = None

    def broken(self, node: ast.Broken) -> None:
        """Has been reported; the names in it are doubtful."""


STATEMENTS: dict[type[ast.Node], Callable[[Body, Any], None]] = {
    ast.Assign: Body.assign,
    ast.Param: Body.param,
    ast.Return: Body.return_,
    ast.Repeat: Body.not_yet,
    ast.Scan: Body.not_yet,
    ast.State: Body.misplaced,
    ast.Yield: Body.misplaced,
    ast.Broken: Body.broken,
}
