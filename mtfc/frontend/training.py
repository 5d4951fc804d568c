"""`train` blocks: what to minimize and how to update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import attrs

from mtfc.compiler.diagnostics import Label, Span
from mtfc.compiler.ir.core import Training
from mtfc.compiler.ir.types import FLOATS
from mtfc.frontend import ast
from mtfc.frontend.constants import number
from mtfc.frontend.loss import minimized
from mtfc.frontend.models import Model
from mtfc.frontend.optimizers import Optimizer, find_optimizer
from mtfc.frontend.reporting import reported
from mtfc.frontend.scope import Scope
from mtfc.frontend.updates import elaborate_updates

MOST_MICRO_BATCHES = 1024
"""More would be a mistake: one step would read that many batches."""


def train_models(
    models: Mapping[str, Model], decls: Iterable[ast.TrainDecl], scope: Scope, std: Callable[[], Scope]
) -> dict[str, Model]:
    """The models, with the training that the blocks ask for; `std` gives the library's optimizers."""
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
            trained.update({name: _trained(models[name], decl, scope, std())} if name in models else {})
    return trained


def _trained(model: Model, decl: ast.TrainDecl, scope: Scope, std: Scope) -> Model:
    minimize = minimized(model, decl, scope)
    optimizer = _optimizer(decl, scope, std)
    precision = _precision(decl.precision, scope) if decl.precision else None
    clip = _clip(decl.clip, scope) if decl.clip else None
    accumulate = _micro_batches(decl.accumulate, scope) if decl.accumulate else 1
    stored = {
        name: type.with_dtype(precision[0] if precision else type.dtype)
        for name, type in model.slices.items()
    }
    updates = elaborate_updates(optimizer, stored, scope) if optimizer else None
    report = reported(model, decl, optimizer, accumulate, scope)
    if minimize is None or updates is None:
        return model
    training = Training(
        minimize, updates, precision, clip, accumulate, decl.span, report.names, report.learning_rate
    )
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


def _optimizer(decl: ast.TrainDecl, scope: Scope, std: Scope) -> Optimizer | None:
    if decl.optimizer is None:
        help = "add `optimizer = sgd(learning_rate = 0.1)`"
        scope.error("E409", "this `train` block has no optimizer", decl.model.span, help=help)
        return None
    return find_optimizer(decl.optimizer, scope, std)
