"""Share the parameters of an earlier call: `f(y) sharing tower` uses those of `f(x) as tower`.

A call that shares parameters has a scope of its own for its values, random numbers and watched values. Names of parameters in
this scope stand for the parameters of the same names in the scope of the other call. Scopes inside of both have equal names,
because the same statements make them.
"""

from __future__ import annotations

from mtfc.compiler.diagnostics import Label
from mtfc.compiler.ir.core import Initializer, Value
from mtfc.compiler.ir.types import TensorType
from mtfc.frontend.semantics.bodies.expressions import Expressions
from mtfc.frontend.syntax import ast

CANNOT_SHARE = "E123"


def shared_parameter(
    node: ast.Param | ast.State, name: str, type: TensorType, init: Initializer, expressions: Expressions
) -> Value | None:
    """Return the parameter of another call, in this block; None, and an error, if it is not the same."""
    builder, scope = expressions.builder, expressions.scope
    parameter = builder.known_parameter(name)
    if isinstance(node, ast.State):
        message = f"`{node.name.text}` is a state, which two calls would both update"
        help = "state is not shared: call the function once, with both inputs joined"
        scope.error(CANNOT_SHARE, message, node.name.span, help=help)
        return None
    if parameter is None:
        message = f"the other call has no parameter `{name}`"
        scope.error(CANNOT_SHARE, message, node.name.span, help="share the parameters of the same function")
        return None
    if (parameter.type, parameter.init) != (builder.stacked(type), init):
        labels = [Label(parameter.span, f"there it is {parameter.type}")] if parameter.span else []
        message = f"`{name}` has another type or initial value in the other call"
        scope.error(CANNOT_SHARE, message, node.name.span, labels, "give both calls the same dimensions")
        return None
    return builder.shared_parameter(parameter)


def may_share(node: ast.Call, expressions: Expressions, owns: bool) -> bool:
    """Return True if the call shares nothing, or an earlier call of that name owns parameters; report an error otherwise."""
    if node.shared is None:
        return True
    prefix, name = expressions.parameter_name(""), node.shared
    known = expressions.builder.scopes_with_parameters(prefix)
    if name.text in known and owns:
        return True
    message = f"`{node.function.text}` has no parameters to share"
    if owns:
        message = f"no call before this one has parameters under the name `{name.text}` here"
    help = "name the first call, `f(x) as tower`, in the same function and loop; a call that nothing uses is left out"
    expressions.scope.unknown(CANNOT_SHARE, message, name, known, help)
    return False
