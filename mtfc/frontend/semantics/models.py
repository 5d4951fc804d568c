"""Elaborate a model into a program: its inputs, parameters, statements and outputs.

A model with errors gives a program of the parts without errors, so that layouts are checked in the same run.
"""

from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import Output, Program
from mtfc.compiler.ir.types import Dim, TensorType
from mtfc.compiler.records import frozen
from mtfc.frontend.semantics.bodies.function_builder import BlockBuilder, FunctionBuilder
from mtfc.frontend.semantics.bodies.statements import BodyKind, ElaboratedBody
from mtfc.frontend.semantics.calls.builtin_calls import elaborate_call
from mtfc.frontend.semantics.names.scope import Scope
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.ast import variables


@frozen
class Model:
    """An elaborated model.

    complete: True if no part has an error. places: the definitions of its variables. dims: dimensions that functions declare in
    their bodies, with their places. slices: the types of parameters without the dimensions of the loops around them. watched: the
    names of outputs that `watch` hands out.
    """

    program: Program
    complete: bool
    decl: ast.ModelDecl
    places: dict[str, Span]
    dims: dict[str, tuple[Dim, Span]]
    slices: dict[str, TensorType]
    watched: tuple[str, ...]

    def lacks(self, name: str) -> bool:
        """Return True if an unknown output is a mistake of its own: no part with an error can have the name."""
        return self.complete or name not in self.places


def elaborate_model(decl: ast.ModelDecl, scope: Scope) -> Model:
    """Return the program of a model, with what layouts and training need to know about it."""
    body = ModelBody(decl, scope)
    for each in decl.inputs:
        body.input(each)
    body.run()
    forward = body.builder.function("forward")
    known = scope.known_dims
    own = {name: dim for name, dim in body.builder.all_dims().items() if known.get(name) != dim}
    dims = {**known, **own} if own else known
    program = Program(decl.name.text, dims, tuple(body.builder.parameters), (forward,))
    failed = len(body.builder.outputs) < body.returned or None in body.expressions.values.values()
    complete = bool(body.returned) and not failed
    return Model(
        program,
        complete,
        decl,
        body.later,
        body.builder.dims,
        body.builder.slices,
        tuple(body.builder.watched()),
    )


class ModelBody(ElaboratedBody):
    """The statements of a model."""

    def __init__(self, decl: ast.ModelDecl, scope: Scope) -> None:
        """Start the body of a model, without values that no output needs."""
        given = [each.name for each in decl.inputs]
        unused = scope.reports.unused(decl)
        builder = FunctionBuilder(BlockBuilder(variables(given, decl.body, unused.dead)), scope.reports.grown)
        kind = BodyKind("model", decl.name, unused=unused)
        super().__init__(kind, decl.body, scope, builder, elaborate_call, given)

    def input(self, node: ast.Input) -> None:
        """Elaborate an input, and bind its name."""
        type = self.scope.type(node.type)
        if self.bind(node.name, None) and type is not None:
            value = self.builder.argument(node.name.text, type, "input", node.name.span)
            self.expressions.values[node.name.text] = value

    def return_(self, node: ast.Return) -> None:
        """Make the returned variables the outputs of the model."""
        places: dict[str, Span] = {}
        self.returned = len(node.values)
        for value in node.values:
            if not isinstance(value, ast.Name):
                help = "an output has the name of a variable: assign it to one, and return that"
                self.scope.error("E109", "only variables can be returned", value.span, help=help)
            elif self.scope.is_first(
                value, places, "E112", f"`{value.text}` is returned twice", "first returned here"
            ):
                found = self.expressions.output(value)
                self.builder.outputs += [] if found is None else [Output(value.text, found)]
