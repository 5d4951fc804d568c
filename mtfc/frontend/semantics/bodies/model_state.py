"""Elaborate `state` and `update` in models and functions.

A state is an argument of `forward`, stored and named like a parameter. No gradient reaches it: a training step replaces it by the
value of its `update`. The name of a state means the value before the step, also after the update. So the update is an output
of `forward`, which `bind-training` drops there. Equations of an update have the stage `update`: `mixed-precision` computes them
in the dtype of the state, and `assign-layouts` where the state is stored.

A state that is declared in a `repeat` has a slice for each iteration, and so has its new value: the loop yields it.
"""

from __future__ import annotations

from collections.abc import Iterator

from mtfc.compiler.diagnostics import Diagnostic, Label, Span
from mtfc.compiler.ir.core import Initializer, Value
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
        expressions.scope.error("E413", message, node.value.span, help=help)
        return None
    if value is None:
        return None
    number = expressions.number_as(Operand(value, node.value.span), type.dtype)
    return None if number is None else Initializer("constant", (("value", float(number)),))


def typed(node: ast.State, expressions: Expressions) -> bool:
    """Return True for a state with a type, outside of a `scan` and of loops with `while`; report an error otherwise."""
    name, scope = node.name.text, expressions.scope
    if node.type is None:
        help = f"write its dtype and dimensions: `state {name}: [dims] = 0`"
        scope.error("E420", f"state `{name}` has no type", node.name.span, help=help)
        return False
    wrong = [loop for loop in expressions.block.loops() if loop.ends or not loop.stacked]
    if not wrong:
        return True
    kind = "loop with `while`" if wrong[0].ends else "`scan`"
    help = "carry a variable from one iteration to the next, and update the state after the loop"
    scope.error("E424", f"state `{name}` would be declared in a {kind}", node.name.span, help=help)
    return False


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
