"""Check the loss of a `train` block: an output that is a floating-point scalar, and whose gradient reaches a parameter.

With micro-batches, a loss that is divided by a number of its own batch needs weights: `weigh_by`, or W609.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from mtfc.compiler.diagnostics import Label, Span
from mtfc.compiler.ir.core import Equation, Function, Value, walk
from mtfc.compiler.ir.loops import pairs, region_of
from mtfc.compiler.ir.opdef import no_gradient
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.training import of_role
from mtfc.compiler.ir.training_flag import bound
from mtfc.compiler.ir.types import FLOATS
from mtfc.compiler.records import frozen
from mtfc.frontend.semantics.models import Model
from mtfc.frontend.semantics.names.scope import Scope
from mtfc.frontend.semantics.training.parameter_groups import ParameterGroups
from mtfc.frontend.syntax import ast


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
        scope.error("E409", "this `train` block minimizes nothing", decl.model.span, help=help)
        return None
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
    if model.complete:
        _report_missing(name, model, outputs, scope)
    return None


def _report_missing(name: ast.Name, model: Model, outputs: Iterable[str], scope: Scope) -> None:
    if name.text in model.places:
        report_not_returned(name, model, outputs, scope)
        return
    message = f"model `{model.program.name}` returns no `{name.text}`"
    scope.unknown("E401", message, name, tuple(outputs))


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
        type = self.value.type
        help = "reduce it to one number, for example with `mean`"
        message = f"is {type}, and only a scalar can be minimized"
        return not type.dims or self._error("E402", message, self._place(), f"it is {type}", help)

    def _is_floating(self) -> bool:
        type = self.value.type
        message = f"is {type}, and only a floating-point value can be minimized"
        return type.dtype in FLOATS or self._error("E403", message, self._place(), f"it is {type}")

    def _is_influenced(self) -> bool:
        help = None if self.parameters else "the model has none: declare what is trained with `param`"
        influences = self._reached(_operands)
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
            self.scope.error("E410", "expected the name of an output to weigh by", node.span, help=help)
            return None
        value = outputs.get(node.text)
        if value is None:
            if self.model.complete:
                _report_missing(node, self.model, outputs, self.scope)
            return None
        is_trained = not self._reached(_operands, [value]).isdisjoint(self.parameters)
        if value.type.dims or value.type.dtype == "bool" or is_trained:
            what = "depends on parameters" if is_trained else f"is {value.type}"
            message = f"micro-batches are weighed by one number of their data, and `{node.text}` {what}"
            self.scope.error("E410", message, node.span)
            return None
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
        """Return the values found by going from results to the values that `operands` returns, into and out of loops."""
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
