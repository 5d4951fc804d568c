"""Elaborate `train` blocks: the loss, the updates of parameters, the precision, the reports and the other entries."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import attrs

from mtfc.compiler.diagnostics import Label, Span
from mtfc.compiler.ir.core import Equation, Function, LossScale, Training, Update, Value, walk
from mtfc.compiler.ir.loops import pairs, region_of
from mtfc.compiler.ir.opdef import no_gradient
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.training import BUILT_IN, LEARNING_RATE, LOSS_SCALE, bound, of_role
from mtfc.compiler.ir.types import FLOATS, WRITTEN_BYTES
from mtfc.compiler.records import frozen
from mtfc.frontend.semantics.models import Model
from mtfc.frontend.semantics.names.constants import number
from mtfc.frontend.semantics.names.scope import Scope
from mtfc.frontend.semantics.training.optimizers import (
    Optimizer,
    declaration_of,
    elaborate_hyperparameter,
    elaborate_updates,
    find_optimizer,
    given_hypers,
)
from mtfc.frontend.semantics.training.parameter_groups import (
    IN_THE_FILE,
    MOST_LABELS,
    ParameterGroups,
    groups_of,
    optimizers_of,
)
from mtfc.frontend.semantics.training.rounded_updates import warn_of_rounding
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.ast import is_override

MOST_LISTED = 20
"""Names that the help of an error lists."""

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
    """Return a model with the training of a block.

    All parts of the block are checked, so that all errors are reported at once.
    """
    groups = groups_of(model, decl, scope)
    precision = elaborate_precision(decl.precision, scope) if decl.precision else TrainPrecision()
    clip, accumulate, average = (_setting(key, getattr(decl, key), scope) for key in SETTINGS)
    minimized = loss_to_minimize(model, decl, scope, groups, int(accumulate or 1))
    block = _TrainBlock(model, decl, groups, scope, std)
    updates = block.updates(precision.params if decl.precision else None)
    reports, rate = block.reports(is_scaled=precision.loss_scale is not None)
    if minimized is None or updates is None:
        return model
    training = Training(
        minimized.name,
        updates,
        (precision.params, precision.compute) if decl.precision else None,
        clip,
        int(accumulate or 1),
        decl.span,
        tuple(name for name in dict.fromkeys((*reports, *model.watched)) if name != minimized.name),
        rate,
        precision.reduce,
        precision.loss_scale,
        average,
        minimized.weigh_by,
    )
    return attrs.evolve(model, program=attrs.evolve(model.program, training=training))


@frozen(slots=False)
class _TrainBlock:
    """The optimizers and the `report` lines of a `train` block. std: the library's optimizers."""

    model: Model
    decl: ast.TrainDecl
    groups: ParameterGroups
    scope: Scope
    std: Scope

    @cached_property
    def optimizers(self) -> list[tuple[Optimizer | None, tuple[str, ...]]]:
        """Each optimizer with its parameters, first the optimizer of the parameters without a group."""
        own = [(self.decl.optimizer, self.groups.rest)] if self.decl.optimizer is not None else []
        nodes = (*own, *self.groups.optimized)
        return [(find_optimizer(node, self.scope, self.std), names) for node, names in nodes]

    def updates(self, dtype: str | None) -> tuple[Update, ...] | None:
        """Return the updates of all parameters that are not frozen; None if an update is wrong.

        dtype: the dtype of the parameters as stored, None for their own.
        """
        stored = {name: type.with_dtype(dtype or type.dtype) for name, type in self.model.slices.items()}
        optimizers = self.optimizers
        found: list[tuple[Update, ...] | None] = []
        if self.decl.optimizer is None and (self.groups.rest or not self.decl.groups):
            self._report_missing()
            found.append(None)
        for each, names in optimizers:
            types = {name: stored[name] for name in names if name in stored}
            updates = elaborate_updates(each, types, self.scope) if each else None
            if each is not None and updates is not None:
                warn_of_rounding(each, updates, self.model.program.parameters, self.scope, self.std)
            found.append(updates)
        if None not in found:
            self._check_override()
        right = [updates for updates in found if updates is not None]
        return tuple(update for updates in right for update in updates) if len(right) == len(found) else None

    def _check_override(self) -> None:
        """Report an option that changes `optimizer = ...` where every parameter has an entry of its own."""
        decl, call = self.decl, self.decl.optimizer
        if call is None or self.groups.rest or not self.groups.members:
            return
        nodes = (call, *(call.keywords if isinstance(call, ast.Call) else ()))
        for node in filter(is_override, nodes):
            message = f"no parameter of `{decl.model.text}` is left for `optimizer = ...`: the option changes nothing"
            self.scope.error("E417", message, node.span, optimizers_of(decl.groups), IN_THE_FILE)
            return

    def _report_missing(self) -> None:
        """Report (E409) that no optimizer updates the parameters that are left."""
        what = f" for parameter `{self.groups.rest[0]}`" if self.decl.groups else ""
        help = "add `optimizer = sgd(learning_rate = 0.1)`"
        message = f"this `train` block has no optimizer{what}"
        self.scope.error("E409", message, self.decl.model.span, help=help)

    def reports(self, is_scaled: bool) -> tuple[tuple[str, ...], Function | None]:
        """Return the outputs to report besides the loss, in order, and the function of the learning rate if it is reported.

        Errors are reported for wrong names. is_scaled: there is a loss scale to report.
        """
        built_in = [name for name in BUILT_IN if is_scaled or name != LOSS_SCALE]
        outputs = [output.name for output in self.model.program.function("forward").handed_out]
        found: dict[str, ast.Name] = {}
        places: dict[str, Span] = {}
        for name in self.decl.report or ():
            message = f"`{name.text}` is reported twice"
            is_first = self.scope.is_first(name, places, "E410", message, "first named here")
            if is_first and name.text in (*outputs, *built_in):
                found[name.text] = name
            elif is_first:
                self._unknown(name, (*outputs, *built_in))
        rate = None
        if LEARNING_RATE in found and LEARNING_RATE not in outputs:
            rate = self._learning_rate(found[LEARNING_RATE])
            found = found if rate else {text: name for text, name in found.items() if text != LEARNING_RATE}
        minimized = self.decl.minimize.text if self.decl.minimize else None
        return tuple(text for text in found if text != minimized), rate

    def _unknown(self, name: ast.Name, known: Sequence[str]) -> None:
        """Report a name that the step cannot report."""
        model, scope = self.model, self.scope
        if not model.lacks(name.text) or name.text in scope.doubtful:
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

    def _entries(self) -> list[Optimizer | None]:
        """Return the optimizers whose learning rate `report` may mean: the one of `optimizer = ...`, or those of the groups.

        Optimizers that update no parameter are left out, unless there is no other.
        """
        own = self.optimizers[: self.decl.optimizer is not None]
        of_groups = [each for each in self.optimizers[len(own) :] if each[1]]
        chosen = own if own and (self.groups.rest or not of_groups) else of_groups
        return [optimizer for optimizer, _ in chosen]

    def _learning_rate(self, name: ast.Name) -> Function | None:
        """Return the function of the learning rate that all optimizers share; None, and an error, if there is none."""
        optimizers, scope = self._entries(), self.scope
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
    return scope.refuse("E410", f"{expected}, found {value}", node.span)


# `precision = { ... }`: dtypes, and the scale of the loss


DTYPES = ("params", "compute", "reduce")
PRECISION_KEYS = (*DTYPES, LOSS_SCALE)
DYNAMIC = "dynamic"

FIRST_SCALE = 2.0**15
"""The first scale of a dynamic loss scale. The next power of 2 is infinite in f16."""


@frozen
class TrainPrecision:
    """The precision of a training. reduce: the dtype of sums of gradients, None for the dtype of the computation."""

    params: str = "f32"
    compute: str = "f32"
    reduce: str | None = None
    loss_scale: LossScale | None = None


def elaborate_precision(node: ast.Precision, scope: Scope) -> TrainPrecision:
    """Return the precision; dtypes are f32 by default. Entries with an error count as left out."""
    rules = _by_key(node, scope)
    given = {key: _dtype(rules[key].value, scope) for key in DTYPES if key in rules}
    found = TrainPrecision(given.get("params") or "f32", given.get("compute") or "f32")
    if reduce := given.get("reduce"):
        found = attrs.evolve(found, reduce=_reduced(reduce, found, rules["reduce"], scope))
    if LOSS_SCALE in rules:
        found = attrs.evolve(found, loss_scale=_loss_scale(rules[LOSS_SCALE].value, found, scope))
    return found


def _by_key(node: ast.Precision, scope: Scope) -> dict[str, ast.PrecisionRule]:
    """Return the entries of `precision` by key; report unknown keys and repeated ones (E410)."""
    rules: dict[str, ast.PrecisionRule] = {}
    places: dict[str, Span] = {}
    for rule in node.rules:
        key = rule.use.text
        if key not in PRECISION_KEYS:
            scope.unknown("E410", f"`precision` has no entry `{key}`", rule.use, PRECISION_KEYS)
        elif scope.is_first(rule.use, places, "E410", f"`{key}` is given twice", "first given here"):
            rules[key] = rule
    return rules


def _dtype(node: ast.Expr, scope: Scope) -> str | None:
    """Return the dtype of an entry; None, with a diagnostic (E410), unless it is a floating-point one."""
    if not isinstance(node, ast.Name):
        return scope.refuse("E410", "expected a dtype such as `bf16`", node.span)
    dtype = scope.dtype(node)
    if dtype is None or dtype in FLOATS:
        return dtype
    return scope.refuse("E410", f"expected a floating-point dtype, found {dtype}", node.span)


def _reduced(dtype: str, precision: TrainPrecision, rule: ast.PrecisionRule, scope: Scope) -> str | None:
    """Return the dtype if it is wider than the computation's; None stands for the computation's own."""
    params, compute = precision.params, precision.compute
    if dtype not in (params, compute):
        message = (
            f"gradients are computed in {compute} and stored in {params}, and cannot be summed in {dtype}"
        )
        help = f"write `reduce: {params}`" if params != compute else None
        return scope.refuse("E410", message, rule.value.span, help=help)
    return dtype if WRITTEN_BYTES[dtype] > WRITTEN_BYTES[compute] else None


def _loss_scale(node: ast.Expr, precision: TrainPrecision, scope: Scope) -> LossScale | None:
    """Return the loss scale of an entry: a number or `dynamic`; None, with a diagnostic, if the entry is wrong."""
    if WRITTEN_BYTES[precision.params] < WRITTEN_BYTES["f32"]:
        message = f"the unscaled gradients would underflow in {precision.params} again"
        return scope.refuse("E410", message, node.span, help="store parameters as `params: f32`")
    if isinstance(node, ast.Name) and node.text == DYNAMIC:
        return LossScale(FIRST_SCALE, is_dynamic=True)
    value = f"`{node.text}`" if isinstance(node, ast.Name) else number(node, scope)
    if isinstance(value, int | float) and value > 0:
        return LossScale(float(value))
    if value is not None:
        scope.error("E410", f"expected a number above 0 or `{DYNAMIC}`, found {value}", node.span)
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
    return scope.error("E410", message, name.span, [label], f"it has {listed}" if hypers else None)


# The loss: an output that is a floating-point scalar, and whose gradient reaches a parameter
#
# With micro-batches, a loss that is divided by a number of its own batch needs weights: `weigh_by`, or W609.


@frozen
class Minimized:
    """The name of the output to minimize, and of the output that its micro-batches are weighed by."""

    name: str
    weigh_by: str | None = None


def loss_to_minimize(
    model: Model, decl: ast.TrainDecl, scope: Scope, groups: ParameterGroups, micro_batches: int
) -> Minimized | None:
    """Return what to minimize; None, and an error, if it cannot be minimized."""
    name = decl.minimize
    if name is None:
        help = "add `minimize` and the name of the loss"
        return scope.refuse("E409", "this `train` block minimizes nothing", decl.model.span, help=help)
    forward = bound(model.program.function("forward"), training=True)
    outputs = {output.name: output.value for output in forward.handed_out}
    if name.text in outputs:
        loss = _Loss(name, outputs[name.text], forward, model, groups, scope)
        if not loss.is_good():
            return None
        if decl.weigh_by is not None:
            return loss.weighed(decl.weigh_by, outputs)
        if micro_batches > 1:
            loss.warn_of_counts()
        return Minimized(name.text)
    _report_missing(name, model, outputs, scope)
    return None


def _report_missing(name: ast.Name, model: Model, outputs: Iterable[str], scope: Scope) -> None:
    """Report a name that is no output: a value of the model that it does not return, or (E401) an unknown one."""
    if not model.lacks(name.text):
        return
    if name.text in model.places:
        report_not_returned(name, model, outputs, scope)
        return
    known = tuple(outputs) if model.complete else (*outputs, *model.places)
    scope.unknown("E401", f"model `{model.program.name}` returns no `{name.text}`", name, known)


def report_not_returned(name: ast.Name, model: Model, outputs: Iterable[str], scope: Scope) -> None:
    """Report that the model has a variable of this name and does not return it."""
    label = Label(model.places[name.text], "it is defined here")
    help = f"return it too: `return {', '.join((*outputs, name.text))}`"
    message = f"`{name.text}` is not returned by model `{model.program.name}`"
    scope.error("E401", message, name.span, [label], help)


@frozen(slots=False)
class _Loss:
    """A value to minimize, and the equations of its model."""

    name: ast.Name
    value: Value
    forward: Function
    model: Model
    groups: ParameterGroups
    scope: Scope

    @cached_property
    def parameters(self) -> frozenset[Value]:
        states = self.model.program.states
        return frozenset(v for v in of_role(self.forward, "parameter") if v.name not in states)

    @cached_property
    def definitions(self) -> Mapping[Value, Equation]:
        """The equation of each value."""
        return {result: eqn for eqn in walk(self.forward.body) for result in eqn.results}

    @cached_property
    def links(self) -> Mapping[Value, Sequence[Value]]:
        """For results of loops and arguments of their regions, the values that these stand for."""
        links: dict[Value, Sequence[Value]] = {}
        for eqn in walk(self.forward.body):
            links |= _links(eqn) if eqn.regions else {}
        return links

    def is_good(self) -> bool:
        """Return True if the value can be minimized; report an error otherwise."""
        is_loss = self._is_scalar() and self._is_floating() and self._is_influenced()
        return is_loss and self._has_gradient() and self._is_trained()

    def _error(
        self, code: str, message: str, spans: Iterable[Span], label: str, help: str | None = None
    ) -> bool:
        labels = [Label(span, label) for span in spans]
        return self.scope.error(code, f"`{self.name.text}` {message}", self.name.span, labels, help)

    def _place(self) -> Iterator[Span]:
        """Yield the place where the value is computed."""
        eqn = self.definitions.get(self.value)
        if eqn and eqn.span:
            yield eqn.span

    def _is_scalar(self) -> bool:
        """Return True if the loss has no dimensions; report (E402) others."""
        type = self.value.type
        help = "reduce it to one number, for example with `mean`"
        message = f"is {type}, and only a scalar can be minimized"
        return not type.dims or self._error("E402", message, self._place(), f"it is {type}", help)

    def _is_floating(self) -> bool:
        """Return True if the loss has a floating-point dtype; report (E403) others."""
        type = self.value.type
        message = f"is {type}, and only a floating-point value can be minimized"
        return type.dtype in FLOATS or self._error("E403", message, self._place(), f"it is {type}")

    def _is_influenced(self) -> bool:
        """Return True if the loss depends on a parameter; otherwise report it (E406)."""
        help = None if self.parameters else "the model has none: declare what is trained with `param`"
        influences = self._reached(_operands)
        if self.scope.reports.placeholders & {self.value, *influences}:  # they depend on nothing
            return False
        return bool(influences & self.parameters) or self._error(
            "E406", "does not depend on any parameter", self._place(), "it is computed here", help
        )

    def _has_gradient(self) -> bool:
        """Return True if a gradient reaches a parameter; else report the equations where the gradient stops."""
        reached = self._reached(differentiable_operands)
        equations = (eqn for value, eqn in self.definitions.items() if value in reached and not eqn.regions)
        stops = [eqn.span for eqn in equations if eqn.span and not reached.issuperset(eqn.operands)]
        return bool(reached & self.parameters) or self._error(
            "E407",
            "depends on parameters, and its gradient reaches none",
            stops[:4],
            "the gradient stops here",
        )

    def _is_trained(self) -> bool:
        """Return True if the loss depends on a parameter that is not frozen; otherwise report it (E419)."""
        reached = self._reached(differentiable_operands) & self.parameters
        if any(value.name not in self.groups.frozen for value in reached):
            return True
        message = f"`{self.name.text}` depends on frozen parameters alone, and nothing would be trained"
        help = "leave a parameter that it depends on out of `frozen`"
        return self.scope.error("E419", message, self.name.span, self.groups.frozen_by, help)

    def weighed(self, node: ast.Expr, outputs: Mapping[str, Value]) -> Minimized | None:
        """Return the loss with its weight; None, and an error, for a weight that is no number of the data."""
        if not isinstance(node, ast.Name):
            help = "write `weigh_by = tokens`, and return `tokens` from the model"
            return self.scope.refuse(
                "E410", "expected the name of an output to weigh by", node.span, help=help
            )
        value = outputs.get(node.text)
        if value is None:
            _report_missing(node, self.model, outputs, self.scope)
            return None
        is_trained = not self._reached(_operands, [value]).isdisjoint(self.parameters)
        if value.type.dims or value.type.dtype == "bool" or is_trained:
            what = "depends on parameters" if is_trained else f"is {value.type}"
            message = f"micro-batches are weighed by one number of their data, and `{node.text}` {what}"
            return self.scope.refuse("E410", message, node.span)
        return Minimized(self.name.text, node.text)

    def warn_of_counts(self) -> None:
        """Warn if the loss is linear in a quotient whose divisor is one number of the micro-batch."""
        reached = self._reached(_linear_operands)
        inputs = {value for value in of_role(self.forward, "input") if value.type.dims}
        for eqn in self.forward.body:
            is_quotient = has_trait(eqn, "divide") and eqn.result in reached
            if not is_quotient or eqn.operands[1].type.dims:
                continue
            made_of = self._reached(_operands, eqn.operands[1:])
            if made_of.isdisjoint(inputs) or not made_of.isdisjoint(self.parameters):
                continue
            message = f"`{self.name.text}` is divided by a number of each micro-batch, and their mean is not the mean of all"
            labels = [Label(eqn.span, "it is divided here")] if eqn.span else []
            help = "return the divisor, such as a number of tokens, and write `weigh_by = tokens`"
            self.scope.error("W609", message, self.name.span, labels, help)
            return

    def _reached(
        self, operands: Callable[[Equation], Iterable[Value]], start: Iterable[Value] | None = None
    ) -> set[Value]:
        """Return the values found by going from results to the values that `operands` returns, into and out of loops.

        start: the values to begin with, by default the loss.
        """
        found = {self.value} if start is None else {*start}
        waiting = [*found]
        while waiting:
            value = waiting.pop()
            eqn = self.definitions.get(value)
            before = operands(eqn) if eqn and not eqn.regions else self.links.get(value, ())
            new = set(before) - found
            found |= new
            waiting += new
        return found


def _links(eqn: Equation) -> dict[Value, Sequence[Value]]:
    """Return the values that a loop's results and the arguments of its region stand for."""
    region = region_of(eqn)
    updates = {output.updates: output.value for output in region.outputs if output.updates is not None}
    found: dict[Value, Sequence[Value]] = {
        result: (output.value,) for result, output in zip(eqn.results, region.outputs, strict=True)
    }
    for value, argument in pairs(eqn):
        update = updates.get(argument.value.name)
        found[argument.value] = (value,) if update is None else (value, update)
    return found


def _operands(eqn: Equation) -> Sequence[Value]:
    return eqn.operands


def _linear_operands(eqn: Equation) -> list[Value]:
    """Return the operands that the results are linear in."""
    return [eqn.operands[i] for group in OPS[eqn.op].linear(eqn) for i in group]


def differentiable_operands(eqn: Equation) -> tuple[Value, ...]:
    """Return the operands that get a cotangent from the results."""
    if not any(result.type.dtype in FLOATS for result in eqn.results) or OPS[eqn.op].gradient is no_gradient:
        return ()
    return tuple(value for value in eqn.operands if value.type.dtype in FLOATS)
