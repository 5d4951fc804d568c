"""Check the `report` lines of `train` blocks: outputs of the model, and the built-in reports of `ir/training.py`."""

from __future__ import annotations

from collections.abc import Sequence

from mtfc.compiler.diagnostics import Label, Span
from mtfc.compiler.ir.core import Function
from mtfc.compiler.ir.training import BUILT_IN, LEARNING_RATE, LOSS_SCALE
from mtfc.compiler.records import frozen
from mtfc.frontend.semantics.models import Model
from mtfc.frontend.semantics.names.scope import Scope
from mtfc.frontend.semantics.training.loss import report_not_returned
from mtfc.frontend.semantics.training.optimizers import Optimizer, declaration_of, given_hypers
from mtfc.frontend.semantics.training.parameter_groups import MOST_LABELS
from mtfc.frontend.semantics.training.update_functions import elaborate_hyperparameter
from mtfc.frontend.syntax import ast

MOST_LISTED = 20
"""Names that the help of an error lists."""


@frozen
class TrainReports:
    """The outputs to report besides the loss, in order, and the function of the learning rate if the rate is reported."""

    names: tuple[str, ...] = ()
    learning_rate: Function | None = None


def step_reports(
    model: Model,
    decl: ast.TrainDecl,
    optimizers: Sequence[Optimizer | None],
    is_scaled: bool,
    scope: Scope,
) -> TrainReports:
    """Return the reports that are right, and report errors for the others.

    The learning rate is that of `optimizers`, where None stands for an optimizer with an error. is_scaled: there is a loss scale
    to report.
    """
    built_in = [name for name in BUILT_IN if is_scaled or name != LOSS_SCALE]
    outputs = [output.name for output in model.program.function("forward").handed_out]
    found: dict[str, ast.Name] = {}
    places: dict[str, Span] = {}
    for name in decl.report or ():
        message = f"`{name.text}` is reported twice"
        is_first = scope.is_first(name, places, "E410", message, "first named here")
        if is_first and (name.text in outputs or _is_built_in(name, model, outputs, built_in, scope)):
            found[name.text] = name
    rate = None
    if LEARNING_RATE in found and LEARNING_RATE not in outputs:
        rate = _learning_rate(found[LEARNING_RATE], optimizers, scope)
        found = found if rate else {text: name for text, name in found.items() if text != LEARNING_RATE}
    minimized = decl.minimize.text if decl.minimize else None
    return TrainReports(tuple(text for text in found if text != minimized), rate)


def _is_built_in(
    name: ast.Name, model: Model, outputs: Sequence[str], built_in: Sequence[str], scope: Scope
) -> bool:
    """True for a report that the step can make; report an error for an unknown name."""
    if name.text not in built_in:
        _unknown(name, model, (*outputs, *built_in), scope)
    return name.text in built_in


def _unknown(name: ast.Name, model: Model, known: Sequence[str], scope: Scope) -> None:
    if not model.complete or name.text in scope.doubtful:
        return
    if name.text in model.places:
        outputs = [output.name for output in model.program.function("forward").outputs]
        report_not_returned(name, model, outputs, scope)
        return
    near = scope.reports.nearest(name.text, known)
    meant = f"did you mean `{near}`? " if near else ""
    more = f" and {len(known) - MOST_LISTED} more" if len(known) > MOST_LISTED else ""
    help = f"{meant}a step can report {', '.join(f'`{each}`' for each in known[:MOST_LISTED])}{more}"
    scope.error("E401", f"model `{model.program.name}` returns no `{name.text}`", name.span, help=help)


def _learning_rate(name: ast.Name, optimizers: Sequence[Optimizer | None], scope: Scope) -> Function | None:
    """Return the function of the learning rate that all optimizers share; None, and an error, if there is none."""
    right = [each for each in optimizers if each is not None]
    if len(right) < len(optimizers) or not all(_has_rate(name, each, scope) for each in right):
        return None
    given = [_given_rate(each, scope) for each in right]
    if None in given:
        return None
    if all(rate == given[0] for rate in given) and given:
        return elaborate_hyperparameter(right[0], LEARNING_RATE, scope)
    if given:
        message = f"the optimizers of this block have different learning rates: `{LEARNING_RATE}` could be any of them"
        labels = [Label(each.call.span, "one of them is called here") for each in right[:MOST_LABELS]]
        help = "give `optimizer = ...` some parameters, whose learning rate is then reported, or leave it out"
        scope.error("E410", message, name.span, labels, help)
    return None


def _given_rate(optimizer: Optimizer, scope: Scope) -> tuple[Scope | None, ast.Argument] | None:
    """Return the expression of the learning rate, and the file with the optimizer if the expression is a default."""
    decl = declaration_of(optimizer, LEARNING_RATE)
    given = given_hypers(optimizer, decl, scope)
    if given is None:
        return None
    if LEARNING_RATE in given:
        return None, given[LEARNING_RATE]
    default = next(each.default for each in decl.hypers if each.name.text == LEARNING_RATE)
    assert default is not None, "hyperparameters without a default are given"
    return optimizer.scope, default


def _has_rate(name: ast.Name, optimizer: Optimizer, scope: Scope) -> bool:
    """True if the optimizer has a learning rate; report an error otherwise."""
    hypers = dict.fromkeys(hyper.name.text for decl in optimizer.decls for hyper in decl.hypers)
    if LEARNING_RATE in hypers:
        return True
    message = f"optimizer `{optimizer.name}` has no hyperparameter `{LEARNING_RATE}` to report"
    label = Label(optimizer.call.span, "it is called here")
    listed = ", ".join(f"`{hyper}`" for hyper in hypers)
    scope.error("E410", message, name.span, [label], f"it has {listed}" if hypers else None)
    return False
