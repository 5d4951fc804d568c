"""`train` blocks: what to minimize and how to update."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from mtfc.compiler.diagnostics import Label, Span
from mtfc.compiler.ir.core import OptimizerCall, Training
from mtfc.compiler.ir.optimizers import OPTIMIZERS
from mtfc.compiler.ir.types import FLOATS
from mtfc.frontend import ast
from mtfc.frontend.constants import number
from mtfc.frontend.hyper import read_numbers
from mtfc.frontend.loss import minimized
from mtfc.frontend.models import Model
from mtfc.frontend.scope import Scope

NOT_YET = frozenset({"adam", "adamw", "adafactor"})

MOST_MICRO_BATCHES = 1024
"""Each is a copy of the model in the generated program."""


def train_models(
    models: Mapping[str, Model], decls: Iterable[ast.TrainDecl], scope: Scope, optimizers: frozenset[str]
) -> dict[str, Model]:
    """The models, with the training that the blocks ask for; `optimizers` are those that the file declares."""
    places: dict[str, Span] = {}
    trained = dict(models)
    for decl in decls:
        name = decl.model.text
        if name not in scope.models:
            scope.unknown("E106", f"unknown model `{name}`", decl.model, scope.models)
        elif name in places:
            label = Label(places[name], "first trained here")
            scope.error("E408", f"model `{name}` has two `train` blocks", decl.model.span, [label])
        else:
            places[name] = decl.model.span
            trained.update({name: _trained(models[name], decl, scope, optimizers)} if name in models else {})
    return trained


def _trained(model: Model, decl: ast.TrainDecl, scope: Scope, optimizers: frozenset[str]) -> Model:
    minimize = minimized(model, decl, scope)
    optimizer = _optimizer(decl, scope, optimizers)
    precision = _precision(decl.precision, scope) if decl.precision else None
    clip = _clip(decl.clip, scope) if decl.clip else None
    accumulate = _micro_batches(decl.accumulate, scope) if decl.accumulate else 1
    if minimize is None or optimizer is None:
        return model
    training = Training(minimize, optimizer, precision, clip, accumulate, decl.span)
    return attrs.evolve(model, program=attrs.evolve(model.program, training=training))


def _clip(node: ast.Expr, scope: Scope) -> float | None:
    value = number(node, scope)
    if value is None or value > 0:
        return value
    scope.error("E410", f"gradients are clipped to a norm above 0, found {value}", node.span)
    return None


def _micro_batches(node: ast.Expr, scope: Scope) -> int:
    value = number(node, scope)
    if isinstance(value, int) and 1 <= value <= MOST_MICRO_BATCHES:
        return value
    if value is not None:
        message = f"expected a number of micro-batches from 1 to {MOST_MICRO_BATCHES}, found {value}"
        scope.error("E410", message, node.span)
    return 1


def _precision(node: ast.Precision, scope: Scope) -> tuple[str, str] | None:
    """The dtypes of parameters and of computation; f32 where nothing is said."""
    dtypes = {"params": "f32", "compute": "f32"}
    places: dict[str, Span] = {}
    for rule in node.rules:
        dtype = scope.dtype(rule.dtype)
        if rule.use.text not in dtypes:
            message = f"`precision` has no entry `{rule.use.text}`"
            scope.unknown("E410", message, rule.use, dtypes)
        elif dtype is not None and dtype not in FLOATS:
            scope.error("E410", f"expected a floating-point dtype, found {dtype}", rule.dtype.span)
        elif rule.use.text in places:
            label = Label(places[rule.use.text], "first given here")
            scope.error("E410", f"`{rule.use.text}` is given twice", rule.use.span, [label])
        elif dtype is not None:
            places[rule.use.text] = rule.use.span
            dtypes[rule.use.text] = dtype
    return dtypes["params"], dtypes["compute"]


def _optimizer(decl: ast.TrainDecl, scope: Scope, declared: frozenset[str]) -> OptimizerCall | None:
    node = decl.optimizer
    if node is None:
        help = "add `optimizer = sgd(learning_rate = 0.1)`"
        scope.error("E409", "this `train` block has no optimizer", decl.model.span, help=help)
        return None
    function = node.function if isinstance(node, ast.Call) else None
    if function and function.text in declared:
        return None
    if function and function.text in NOT_YET:
        scope.error("E110", f"optimizer `{function.text}` is not supported yet", function.span)
        return None
    known = {name: optimizer.hyper for name, optimizer in OPTIMIZERS.items()}
    found = read_numbers(node, "optimizer", known, "E404", "E405", scope)
    return found and OptimizerCall(found[0], tuple(found[1].items()), node.span)
