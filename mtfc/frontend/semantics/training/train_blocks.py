"""Elaborate `train` blocks: the loss, the updates of parameters, and the other entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs

from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import Training, Update
from mtfc.compiler.ir.types import TensorType
from mtfc.frontend.semantics.models import Model
from mtfc.frontend.semantics.names.constants import number
from mtfc.frontend.semantics.names.scope import Scope
from mtfc.frontend.semantics.training.loss import loss_to_minimize
from mtfc.frontend.semantics.training.optimizers import Optimizer, find_optimizer
from mtfc.frontend.semantics.training.parameter_groups import (
    IN_THE_FILE,
    ParameterGroups,
    groups_of,
    optimizers_of,
)
from mtfc.frontend.semantics.training.precision import elaborate_precision
from mtfc.frontend.semantics.training.rounded_updates import warn_of_rounding
from mtfc.frontend.semantics.training.step_reports import step_reports
from mtfc.frontend.semantics.training.update_functions import elaborate_updates
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.ast import is_override

MOST_MICRO_BATCHES = 1024
"""Most micro-batches of one step; a larger number is surely a mistake, as one step reads all of them."""


def train_models(
    models: Mapping[str, Model], decls: Iterable[ast.TrainDecl], scope: Scope, std: Callable[[], Scope]
) -> dict[str, Model]:
    """Return the models with the training of their `train` blocks; `std` returns the library's optimizers."""
    places: dict[str, Span] = {}
    trained = dict(models)
    for decl in decls:
        name = decl.model.text
        if name not in scope.models:
            scope.unknown("E106", f"unknown model `{name}`", decl.model, scope.models)
        elif scope.is_first(
            decl.model, places, "E408", f"model `{name}` has two `train` blocks", "first trained here"
        ):
            trained.update({name: _trained(models[name], decl, scope, std())} if name in models else {})
    return trained


def _trained(model: Model, decl: ast.TrainDecl, scope: Scope, std: Scope) -> Model:
    groups = groups_of(model, decl, scope)
    precision = elaborate_precision(decl.precision, scope) if decl.precision else None
    clip, accumulate, average = (_setting(key, getattr(decl, key), scope) for key in SETTINGS)
    minimized = loss_to_minimize(model, decl, scope, groups, int(accumulate or 1))
    stored = {
        name: type.with_dtype(precision.params if precision else type.dtype)
        for name, type in model.slices.items()
    }
    optimizer = find_optimizer(decl.optimizer, scope, std) if decl.optimizer is not None else None
    updates = _updates(decl, optimizer, groups, stored, model, scope, std)
    entries = _entries(decl, groups, scope, std)
    is_scaled = precision is not None and precision.loss_scale is not None
    report = step_reports(model, decl, entries, is_scaled, scope)
    if minimized is None or updates is None:
        return model
    training = Training(
        minimized.name,
        updates,
        precision.dtypes if precision else None,
        clip,
        int(accumulate or 1),
        decl.span,
        tuple(name for name in dict.fromkeys((*report.names, *model.watched)) if name != minimized.name),
        report.learning_rate,
        precision.reduce if precision else None,
        precision.loss_scale if precision else None,
        average,
        minimized.weigh_by,
    )
    return attrs.evolve(model, program=attrs.evolve(model.program, training=training))


def _updates(
    decl: ast.TrainDecl,
    optimizer: Optimizer | None,
    groups: ParameterGroups,
    stored: Mapping[str, TensorType],
    model: Model,
    scope: Scope,
    std: Scope,
) -> tuple[Update, ...] | None:
    """Return the updates of all parameters that are not frozen; None if an update is wrong.

    `optimizer` updates the parameters without a group.
    """
    optimizers = [(find_optimizer(node, scope, std), names) for node, names in groups.optimized]
    if decl.optimizer is not None:
        optimizers.insert(0, (optimizer, groups.rest))
    found: list[tuple[Update, ...] | None] = []
    if decl.optimizer is None and (groups.rest or not decl.groups):
        _report_missing(decl, groups, scope)
        found.append(None)
    for each, names in optimizers:
        types = {name: stored[name] for name in names if name in stored}
        updates = elaborate_updates(each, types, scope) if each else None
        if each is not None and updates is not None:
            warn_of_rounding(each, updates, model.program.parameters, scope, std)
        found.append(updates)
    if None not in found:
        _check_override(decl, groups, scope)
    right = [updates for updates in found if updates is not None]
    return tuple(update for updates in right for update in updates) if len(right) == len(found) else None


def _check_override(decl: ast.TrainDecl, groups: ParameterGroups, scope: Scope) -> None:
    """Report an option that changes `optimizer = ...` where every parameter has an entry of its own."""
    call = decl.optimizer
    if call is None or groups.rest or not groups.members:
        return
    nodes = (call, *(call.keywords if isinstance(call, ast.Call) else ()))
    for node in filter(is_override, nodes):
        message = (
            f"no parameter of `{decl.model.text}` is left for `optimizer = ...`: the option changes nothing"
        )
        scope.error("E417", message, node.span, optimizers_of(decl.groups), IN_THE_FILE)
        return


def _report_missing(decl: ast.TrainDecl, groups: ParameterGroups, scope: Scope) -> None:
    what = f" for parameter `{groups.rest[0]}`" if decl.groups else ""
    help = "add `optimizer = sgd(learning_rate = 0.1)`"
    scope.error("E409", f"this `train` block has no optimizer{what}", decl.model.span, help=help)


def _entries(
    decl: ast.TrainDecl, groups: ParameterGroups, scope: Scope, std: Scope
) -> Sequence[Optimizer | None]:
    """Return the optimizers whose learning rate `report` may mean: the one of `optimizer = ...`, or those of the groups.

    Optimizers that update no parameter are left out, unless there is no other.
    """
    own = [decl.optimizer] if decl.optimizer is not None else []
    of_groups = [node for node, names in groups.optimized if names]
    nodes = own if own and (groups.rest or not of_groups) else of_groups
    return [find_optimizer(node, scope, std) for node in nodes]


SETTINGS: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "clip": (lambda value: value > 0, "gradients are clipped to a norm above 0"),
    "accumulate": (
        lambda value: isinstance(value, int) and 1 <= value <= MOST_MICRO_BATCHES,
        f"expected a number of micro-batches from 1 to {MOST_MICRO_BATCHES}",
    ),
    "average": (
        lambda value: 0 < value < 1,
        "expected the share of an average that a step keeps, between 0 and 1",
    ),
}
"""Entry of a `train` block -> a test of its number, and what the number must be."""


def _setting(key: str, node: ast.Expr | None, scope: Scope) -> float | None:
    """Return the number of an entry; None if there is no entry, or a wrong one, which is reported."""
    if node is None:
        return None
    value, (is_possible, expected) = number(node, scope), SETTINGS[key]
    if value is None or is_possible(value):
        return value
    scope.error("E410", f"{expected}, found {value}", node.span)
    return None
