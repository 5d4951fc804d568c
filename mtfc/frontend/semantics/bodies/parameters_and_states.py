"""Elaborate parameters and states: their initial values, `update`, and parameters that two calls share.

Initial values of parameters are calls of distributions with numbers. `f(y) sharing tower` uses the parameters of `f(x) as
tower`. A call that shares parameters has a scope of its own for its values, random numbers and watched values. Names of
parameters in this scope stand for the parameters of the same names in the scope of the other call. Scopes inside of both have
equal names, because the same statements make them.

A state is an argument of `forward`, stored and named like a parameter. No gradient reaches it: a training step replaces it by
the value of its `update`. The name of a state means the value before the step, also after the update. So the update is an
output of `forward`, which `bind-training` drops there. Equations of an update have the stage `update`: `mixed-precision`
computes them in the dtype of the state, and `assign-layouts` where the state is stored.

A state that is declared in a `repeat` has a slice for each iteration, and so has its new value: the loop yields it.
"""

from collections.abc import Iterator, Mapping

from mtfc.compiler.diagnostics import Diagnostic, Label, Span
from mtfc.compiler.ir.core import Initializer, Value
from mtfc.compiler.ir.initializers import DISTRIBUTIONS
from mtfc.compiler.ir.types import TensorType
from mtfc.compiler.records import define
from mtfc.frontend.semantics.bodies.expressions import Expressions, Operand
from mtfc.frontend.semantics.bodies.function_builder import BlockBuilder
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.ast import walk

NEVER_UPDATED = "W604"


@define
class DeclaredState:
    """A state of a body: its full name, type and place, the block that declares it, and the place of its update."""

    name: str
    type: TensorType
    span: Span
    block: BlockBuilder
    updated: Span | None = None


States = dict[str, DeclaredState | None]
"""The states of a body by name, None for a state with an error."""


def initial_value(node: ast.State, type: TensorType, expressions: Expressions) -> Initializer | None:
    """Return the start of a state, a number of its dtype; None, and an error, for anything else."""
    value = expressions.value(node.value)
    if isinstance(value, Value):
        message = f"state `{node.name.text}` does not start with equal elements"
        help = "begin with a number: all elements start with it"
        return expressions.scope.refuse("E413", message, node.value.span, help=help)
    if value is None:
        return None
    number = expressions.number_as(Operand(value, node.value.span), type.dtype)
    return None if number is None else Initializer("constant", (("value", float(number)),))


def typed(node: ast.State, expressions: Expressions) -> bool:
    """Return True for a state with a type, outside of a `scan` and of loops with `while`; report an error otherwise."""
    name, scope = node.name.text, expressions.scope
    if node.type is None:
        help = f"write its dtype and dimensions: `state {name}: [dims] = 0`"
        return scope.error("E420", f"state `{name}` has no type", node.name.span, help=help)
    wrong = [loop for loop in expressions.block.loops() if loop.ends or not loop.stacked]
    if not wrong:
        return True
    kind = "loop with `while`" if wrong[0].ends else "`scan`"
    help = "carry a variable from one iteration to the next, and update the state after the loop"
    return scope.error("E424", f"state `{name}` would be declared in a {kind}", node.name.span, help=help)


def update(node: ast.StateUpdate, states: States, expressions: Expressions) -> None:
    """Elaborate the new value of a state, and note it in the current block."""
    block, name, before = expressions.block, node.name, expressions.block.stage
    state = _state_of(name, states, expressions)
    block.stage = "update"
    path = state.name if state else None
    result = expressions.value(node.value, path)
    operand = None if result is None else expressions.as_operand(result, node.value.span)
    if state is not None:
        state.updated = state.updated or name.span
        value = _as_state(operand, state, name, expressions) if operand else None
        if value is not None:
            block.updates[state.name] = value
    block.stage = before


def _state_of(name: ast.Name, states: States, expressions: Expressions) -> DeclaredState | None:
    """Return the state that may be updated here; None, and an error, if there is none."""
    state, scope = states.get(name.text), expressions.scope
    if state is None:
        if name.text not in states and name.text not in scope.doubtful:
            help = f"declare it in the same body: `state {name.text}: [dims] = 0`"
            scope.error("E421", f"`{name.text}` is no state that is declared here", name.span, help=help)
    elif state.block is not expressions.block:
        label = Label(state.span, "it is declared here")
        help = "update it where it is declared, after the loop"
        message = f"state `{name.text}` is declared outside of this loop"
        scope.error("E421", message, name.span, [label], help)
    elif state.updated is not None:
        label = Label(state.updated, "first updated here")
        scope.error("E422", f"state `{name.text}` is updated twice", name.span, [label])
    else:
        return state
    return None


def _as_state(
    operand: Operand, state: DeclaredState, name: ast.Name, expressions: Expressions
) -> Value | None:
    """Return a new value with the type of its state; None, and an error, if it has another type."""
    if operand.fits(state.type):
        return expressions.as_type(operand, state.type)
    expressions.report_change(name, operand, state.type, state.span)
    return None


def report_assigned(target: ast.Name, state: DeclaredState | None, expressions: Expressions) -> None:
    """Report (E423) a state that is assigned like a variable."""
    labels = [Label(state.span, "it is declared here")] if state else []
    help = f"a training step changes it by `update {target.text} = ...`"
    expressions.scope.error("E423", f"state `{target.text}` cannot be assigned", target.span, labels, help)


def never_updated(decl: ast.ModelDecl | ast.FnDecl) -> Iterator[Diagnostic]:
    """Yield a warning for each state of a body that no statement updates."""
    updates = {node.name.text for node in walk(decl) if isinstance(node, ast.StateUpdate)}
    for node in walk(decl):
        if isinstance(node, ast.State) and node.name.text not in updates and node.name.text[0] != "_":
            message = f"state `{node.name.text}` is never updated, and keeps its initial value"
            help = f"write `update {node.name.text} = ...`; a name that begins with `_` is kept so on purpose"
            yield Diagnostic(NEVER_UPDATED, message, node.name.span, (), help)


def initializer(node: ast.Expr, expressions: Expressions) -> Initializer | None:
    """Read an initializer such as `normal(stddev = 0.05)`; return None, and report an error, if it is wrong."""
    scope = expressions.scope
    if not isinstance(node, ast.Call):
        help = f"for example `{_usage('zeros')}`"
        if isinstance(node, ast.Int | ast.Float):
            help = f"write `constant({node.value})`"
        return scope.refuse("E217", "expected an initializer", node.span, help=help)
    name = node.function.text
    if name not in DISTRIBUTIONS:
        scope.unknown("E117", f"unknown initializer `{name}`", node.function, DISTRIBUTIONS)
        return None
    given = _given(node, DISTRIBUTIONS[name].args, expressions)
    numbers = _complete(node, given, expressions) if given is not None else None
    if numbers is None or not _is_possible(node, numbers, expressions):
        return None
    return Initializer(name, tuple(numbers.items()))


def _usage(name: str) -> str:
    """Return an example of a distribution for initial values, with all of its numbers."""
    numbers = DISTRIBUTIONS[name].args.items()
    return (
        f"{name}({', '.join(f'{key} = {0.1 if default is None else default}' for key, default in numbers)})"
    )


def _given(
    node: ast.Call, signature: Mapping[str, float | None], expressions: Expressions
) -> dict[str, float] | None:
    """Return the numbers of the call by name; positional ones are in the order of the signature."""
    name, scope = node.function.text, expressions.scope
    extra = (*node.arguments[len(signature) :], *node.bindings, *((node.scope,) if node.scope else ()))
    for each in extra:
        scope.error("E217", f"`{name}` takes no such argument", each.span, help=f"write `{_usage(name)}`")
    arguments = zip(signature, node.arguments, strict=False)
    values = {key: expressions.number(argument) for key, argument in arguments}
    for keyword in node.keywords:
        key = keyword.name.text
        if key not in signature:
            scope.unknown("E217", f"`{name}` has no number `{key}`", keyword.name, signature)
        elif key in values:
            scope.error("E217", f"`{key}` is given twice", keyword.span)
        values[key] = expressions.number(keyword.value)
    found = {key: float(value) for key, value in values.items() if value is not None}
    all_found = len(found) == len(node.arguments) + len(node.keywords)
    return found if all_found and not extra and found.keys() <= signature.keys() else None


def _complete(
    node: ast.Call, given: Mapping[str, float], expressions: Expressions
) -> dict[str, float] | None:
    """Add the defaults of the numbers that are not given."""
    name = node.function.text
    numbers = {**DISTRIBUTIONS[name].args, **given}
    complete = {key: value for key, value in numbers.items() if value is not None}
    for key in numbers.keys() - complete.keys():
        help = f"write `{_usage(name)}`"
        expressions.scope.error("E217", f"`{name}` needs `{key}`", node.span, help=help)
    return complete if len(complete) == len(numbers) else None


def _is_possible(node: ast.Call, numbers: Mapping[str, float], expressions: Expressions) -> bool:
    """Return True if the numbers of an initializer make sense; otherwise report why not (E217)."""
    problem = None
    if numbers.get("stddev", 0.0) < 0:
        problem = "a standard deviation is not negative"
    if node.function.text == "uniform" and numbers["low"] > numbers["high"]:
        problem = "`low` is above `high`"
    return problem is None or expressions.scope.error("E217", problem, node.span)


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
        return scope.refuse(CANNOT_SHARE, message, node.name.span, help=help)
    if parameter is None:
        message = f"the other call has no parameter `{name}`"
        return scope.refuse(
            CANNOT_SHARE, message, node.name.span, help="share the parameters of the same function"
        )
    if (parameter.type, parameter.init) != (builder.stacked(type), init):
        labels = [Label(parameter.span, f"there it is {parameter.type}")] if parameter.span else []
        message = f"`{name}` has another type or initial value in the other call"
        return scope.refuse(
            CANNOT_SHARE, message, node.name.span, labels, "give both calls the same dimensions"
        )
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
    return expressions.scope.unknown(CANNOT_SHARE, message, name, known, help)
