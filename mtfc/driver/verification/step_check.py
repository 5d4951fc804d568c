"""Comparison of the training step with the step that the `train` block declares, for `mtfc verify`.

The declared step is computed in NumPy by the definitions of `step_definitions.py`. It reads the block's syntax tree, not the
equations that the front end makes of it. From the compiler it takes the gradients of one micro-batch alone, which other checks
of `mtfc verify` cover. An optimizer that the file declares has no other definition than its equations, so these compute its
update; what stands around them is still checked.

The undistributed step runs three times in a row. Then it runs from states that three steps do not reach: with a gradient on the
other side of `clip`, with a dynamic loss scale that is about to change, with a gradient that is not finite, and with later
numbers of the step, at which schedules change. `verify` compares the step of each layout with the undistributed one.
"""

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from inspect import signature
from itertools import product
from typing import Any

import attrs
import numpy as np

from mtfc.backends.step_definitions import FUNCTIONS, OPTIMIZERS, SCHEDULES, Updated, real
from mtfc.compiler.activity import doing
from mtfc.compiler.analysis.output_weights import with_counts
from mtfc.compiler.diagnostics import Diagnostics
from mtfc.compiler.ir.core import Argument, Function
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.ops.creation import VALUE
from mtfc.compiler.ir.ops.elementwise import numpy_dtype
from mtfc.compiler.ir.training import bound, update_of, updated
from mtfc.compiler.passes.autodiff.differentiate import numbered
from mtfc.driver.data.array_files import Arrays
from mtfc.driver.data.inputs import stacked
from mtfc.driver.loading.choice import Choice
from mtfc.driver.verification.reference import (
    MORE_ROUNDINGS,
    ROUNDINGS,
    STEPS,
    Reference,
    ReferenceRuns,
    interpreted,
    reported,
)
from mtfc.driver.verification.results import Comparison, Part, StepCase
from mtfc.frontend.semantics.names.modules import declarations_of
from mtfc.frontend.semantics.names.scope import STEP, Scope
from mtfc.frontend.semantics.names.standard_library import file_of
from mtfc.frontend.semantics.training.option_overrides import with_overrides
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.parser import parse

FIRST_SCALE, LARGEST_SCALE, PATIENCE = 2.0**15, 2.0**24, 2000
"""A dynamic loss scale: the first and the largest one, and the good steps in a row after which the scale doubles."""

STATES = ("velocity", "m", "v", "squares", "by_row", "by_col")
"""The states of the library's optimizers."""

LARGEST = (2 - 2**-23) * 2.0**127

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "**": operator.pow, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


class NoDefinition(Exception):
    """An expression has no definition here."""


@attrs.frozen
class Expression:
    """Evaluates expressions of numbers in f64. names: the variables. whole: receives the whole numbers of the text."""

    scope: Scope
    names: Mapping[str, Any] = attrs.field(factory=dict)
    whole: set[int] = attrs.field(factory=set)

    def value(self, node: Any) -> Any:
        """Return the value of an expression. Raises `NoDefinition`."""
        if isinstance(node, ast.Int | ast.Float | ast.Bool):
            self.whole.update([node.value] if isinstance(node, ast.Int) else [])
            return real(node.value)
        if isinstance(node, ast.Name) and node.text in self.names:
            return self.names[node.text]
        if isinstance(node, ast.Name | ast.Path) and (dim := self.scope.find_dim(node)):
            return real(dim.size)
        if isinstance(node, ast.Unary) and node.op == "-":
            return -self.value(node.operand)
        if isinstance(node, ast.Binary) and node.op in OPERATORS:
            return OPERATORS[node.op](self.value(node.left), self.value(node.right))
        if isinstance(node, ast.Call) and not (node.bindings or node.scope):
            return self._called(node)
        raise NoDefinition

    def arguments(self, call: ast.Call) -> tuple[list[Any], dict[str, Any]]:
        """Return the values of a call's arguments, by position and by name."""
        named = {keyword.name.text: self.value(keyword.value) for keyword in call.keywords}
        return [self.value(argument) for argument in call.arguments], named

    def _called(self, call: ast.Call) -> Any:
        """Return the value of a call: a function of Python stands for a builtin, and a declared function is evaluated."""
        given, named = self.arguments(call)
        *module, name = call.function.text.split(".")
        scope = self.scope.modules.get(module[0]) if module else self.scope
        decl = scope.functions.get(name) if scope else None
        if decl is None or scope is None:
            if module or name not in FUNCTIONS:
                raise NoDefinition
            return FUNCTIONS[name](*given, **named)
        if decl.name.span.file == file_of("schedules") and name in SCHEDULES:
            return SCHEDULES[name](*given, **named)
        known = dict(zip((each.name.text for each in decl.args), given, strict=False)) | named
        defaults = (each for each in decl.args if each.name.text not in known)
        inside = Expression(scope, known, self.whole)
        known |= {each.name.text: inside.value(each.default) for each in defaults}
        return inside._returned(decl.body)

    def _returned(self, body: Sequence[ast.Statement]) -> Any:
        """Return what a function's statements return: assignments, and a number at the end."""
        inside = self
        for statement in body:
            if isinstance(statement, ast.Return) and len(statement.values) == 1:
                return inside.value(statement.values[0])
            if not isinstance(statement, ast.Assign) or len(statement.targets) > 1:
                break
            value = inside.value(statement.value)
            inside = attrs.evolve(inside, names={**inside.names, statement.targets[0].text: value})
        raise NoDefinition


@attrs.frozen(slots=False, eq=False)
class DeclaredStep:
    """The step of a `train` block. reference: the undistributed program, in f64. scope: the file's names."""

    reference: Reference
    decl: ast.TrainDecl
    scope: Scope

    def start(self) -> dict[str, Any]:
        """Return parameters and states before the first step."""
        zeros = {
            a.value.name: np.zeros([d.size for d in a.value.type.dims], numpy_dtype(np, a.value.type.dtype))
            for a in self._states
        }
        found = {**self.reference.parameters, **zeros}
        for name in self.trained:
            if self._library_call(name, 0) is None:
                begin = {a.value.name: a.initial for a in self._update(name).arguments if a.role == "state"}
                found |= {
                    key: found[key] + x
                    for s, x in begin.items()
                    if (key := self._named(f"{name}.{s}")) in found
                }
        return found | ({self._named("loss_scale"): FIRST_SCALE} if self.loss_scale == "dynamic" else {})

    def stepped(
        self, known: Arrays, number: int, batches: Sequence[Arrays]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return parameters and states after a step, and the values that the step returns. batches: the micro-batches."""
        outputs, g, states = self.passes(known, number, batches)
        dynamic = self.loss_scale == "dynamic"
        norm = np.sqrt(sum(np.sum(np.square(x)) for x in g.values()))
        factor = 1.0 if self.clip is None else np.minimum(1.0, self.clip / norm)
        new = {**known, **states}
        for name, gradient in g.items():
            new |= self._updated(name, known, factor * gradient, number)
        if self.decl.average is not None:
            new |= self._averaged(known, {name: new[name] for name in g})
        scale = known[self._named("loss_scale")] if dynamic else self.loss_scale
        if dynamic:
            is_good = norm <= LARGEST
            new = {**(new if is_good else known), **self._next_scale(scale, known, is_good)}
        built_in = {"grad_norm": norm, "loss_scale": scale, "learning_rate": self._rate(number)}
        wanted = [output.name for output in self._step.handed_out]
        return new, {
            name: outputs.get(name, built_in.get(name)) for name in dict.fromkeys([*wanted, *self._reports])
        }

    def passes(self, known: Arrays, number: int, batches: Sequence[Arrays]) -> tuple[Any, Any, Any]:
        """Return outputs and gradients, the means over the micro-batches, and the model's states after them.

        With `weigh_by`, means are weighed, and the weight itself is added up.
        """
        parts: dict[str, list[Any]] = {}
        counts: dict[str, list[float]] = {}
        states = {name: known[name] for name in self.reference.program.states}
        for i, batch in enumerate(batches):
            arguments = {**known, **states, **batch, "the number": number * len(batches) + i}
            found = _called(self._gradients, self.reference, arguments)
            if states or self._counts:
                after = _called(self._forward, self.reference, arguments)
                for name, by in self._counts.items():
                    counts.setdefault(name, []).append(float(after[by]))
                states |= {o.updates: after[o.name] for o in self._forward.outputs if o.updates is not None}
            for name, x in found.items():
                parts.setdefault(name, []).append(x)
        gradients = {f"d_{name}" for name in self.trained}
        totals = dict[str, Any]()
        for name, values in parts.items():
            weights = counts.get(self._reports[0] if name in gradients else name)
            totals[name] = values[0] if len(values) == 1 else _mean(values, weights)
        if self._counts and len(batches) > 1:
            weight = self._counts[self._reports[0]]
            totals[weight] = sum(parts[weight])
        return totals, {name: totals[f"d_{name}"] for name in self.trained}, states

    def unchecked(self) -> Iterator[str]:
        """Yield the optimizers without a definition."""
        for name in self.trained:
            if self._library_call(name, 0) is None:
                yield f"the formula of optimizer `{self._call(name).function.text}`"

    def numbers(self) -> list[int]:
        """Return numbers of later steps at which schedules change, by the whole numbers in the text."""
        whole: set[int] = set()
        for name in self.trained:
            if any(isinstance(each, ast.Name) and each.text == STEP for each in ast.walk(self._call(name))):
                self._library_call(name, 0, whole)
        found = sorted(n for n in whole if 1 < n < 2**30)
        return sorted({found[0] - 1, found[0], sum(found[-2:]) // 2, found[-1] + 1}) if found else []

    # The declaration

    @cached_property
    def micro_batches(self) -> int:
        return int(self._number(self.decl.accumulate)) if self.decl.accumulate else 1

    @cached_property
    def clip(self) -> Any:
        return self._number(self.decl.clip) if self.decl.clip else None

    @cached_property
    def loss_scale(self) -> Any:
        """The loss scale: a number, `dynamic`, or None."""
        rules = self.decl.precision.rules if self.decl.precision else ()
        node = next((rule.value for rule in rules if rule.use.text == "loss_scale"), None)
        return "dynamic" if isinstance(node, ast.Name) else None if node is None else self._number(node)

    @cached_property
    def _reports(self) -> list[str]:
        return [name.text for name in (self.decl.minimize, *(self.decl.report or ())) if name]

    def _number(self, node: Any, number: int = 0) -> Any:
        return Expression(self.scope, {STEP: real(number)}).value(node)

    def _call(self, parameter: str) -> Any:
        """Return the call of the optimizer that updates a parameter; None if the parameter is frozen."""
        found = self.decl.optimizer
        for group in self.decl.groups:
            if any(fnmatchcase(parameter, pattern.text) for pattern in group.patterns):
                found = group.optimizer if isinstance(group, ast.OptimizerFor) else None
        return found

    def _library_call(
        self, parameter: str, number: int, whole: set[int] | None = None
    ) -> Callable[..., Updated] | None:
        """Return the update of the library's optimizer with its hyperparameters; None without a definition."""
        call = self._call(parameter)
        *module, name = call.function.text.split(".")
        scope = self.scope.modules.get(module[0]) if module else self.scope
        own = scope.optimizers.get(name) if scope else None
        if name not in OPTIMIZERS or (own and own[0].name.span.file != file_of("optimizers")):
            return None
        expression = Expression(self.scope, {STEP: real(number)}, set() if whole is None else whole)
        try:
            given, named = expression.arguments(call)
        except NoDefinition:
            return None
        _, _, _, _, *names = signature(OPTIMIZERS[name]).parameters
        hypers = {**dict(zip(names, given, strict=False)), **named}  # `--set` gives some a second time
        return lambda p, g, states: OPTIMIZERS[name](p, g, states, real(number + 1), **hypers)

    def _rate(self, number: int) -> Any:
        """Return the learning rate of `optimizer = ...`, or of the first group, as far as the step reports one."""
        training = self.reference.program.training
        if training is None or training.learning_rate is None:
            return None
        calls = dict.fromkeys(self._call(name) for name in self.trained)
        call: Any = self.decl.optimizer if self.decl.optimizer in calls else next(iter(calls))
        named = {keyword.name.text: keyword.value for keyword in call.keywords}
        try:
            return self._number(named.get("learning_rate", next(iter(call.arguments), None)), number)
        except NoDefinition:
            found = _called(numbered(training.learning_rate), self.reference, {"the number": number})
            return next(iter(found.values()))

    # The update of a parameter

    def _update(self, parameter: str) -> Function:
        assert self.reference.program.training is not None
        return update_of(self.reference.program.training, parameter)

    def _updated(self, name: str, known: Arrays, gradient: Any, number: int) -> dict[str, Any]:
        """Return the new parameter and its new states, by their names."""
        update = numbered(self._update(name))
        (like,) = (a.value for a in update.arguments if a.role == "parameter")
        names = (*STATES, *(a.value.name for a in update.arguments if a.role == "state"))
        states = {s: known[key] for s in names if (key := self._named(f"{name}.{s}")) in known}
        rule = self._library_call(name, number)
        if rule is None:
            rule = self._own_rule(update, number)
        p = np.asarray(known[name])
        new, after = _each_slice(rule, p, gradient, states, p.ndim - len(like.type.dims))
        return {name: new, **{self._named(f"{name}.{s}"): x for s, x in after.items()}}

    def _own_rule(self, update: Function, number: int) -> Callable[..., Updated]:
        """Return the update by the equations of the file's own optimizer."""
        (p_name,) = (a.value.name for a in update.arguments if a.role == "parameter")
        (g_name,) = (a.value.name for a in update.arguments if a.role == "input")

        def rule(p: Any, g: Any, states: Arrays) -> Updated:
            """Return a parameter and its states after the update that the file declares."""
            found = _called(update, self.reference, {**states, p_name: p, g_name: g, "the number": number})
            new = {str(o.updates): found[o.name] for o in update.outputs}
            return new.pop(p_name), new

        return rule

    def _averaged(self, known: Arrays, new: Arrays) -> dict[str, Any]:
        """Return the averages d^k p + d^(k-1) p' + ..., divided by the sum of the weights d^k + d^(k-1) + ..."""
        share, steps = self._number(self.decl.average), self._named("averaged_steps")
        total = share * known[steps] + 1
        before = {name: self._named(f"{name}.average") for name in new}
        found = {
            key: (share * known[steps] * known.get(key, 0.0) + new[name]) / total
            for name, key in before.items()
        }
        return {**found, steps: total}

    def _next_scale(self, scale: Any, known: Arrays, is_good: Any) -> dict[str, Any]:
        """Return the dynamic scale and the number of good steps in a row after a step."""
        steps = int(known[self._named("good_steps")]) + 1 if is_good else 0
        if not is_good:
            scale = max(scale / 2, 1.0)
        elif steps == PATIENCE:
            scale, steps = min(2 * scale, LARGEST_SCALE), 0
        return self.scale_states(scale, steps)

    # The compiled functions

    @cached_property
    def _step(self) -> Function:
        return self.reference.differentiated.function("step")

    @cached_property
    def _states(self) -> list[Argument]:
        return [argument for argument in self._step.arguments if argument.role == "state"]

    def _named(self, state: str) -> str:
        """Return the name of a state in the step, which may end with a number beside an equal name of the model."""
        names = [argument.value.name for argument in self._states]
        like = re.compile(re.escape(state) + r"(_\d+)?")
        return state if state in names else next(filter(like.fullmatch, names), state)

    def scale_states(self, scale: float, good_steps: int) -> dict[str, Any]:
        """Return the states of a dynamic loss scale."""
        return {self._named("loss_scale"): scale, self._named("good_steps"): good_steps}

    @cached_property
    def _forward(self) -> Function:
        return with_counts(numbered(bound(self.reference.differentiated.function("forward"), training=True)))[
            0
        ]

    @cached_property
    def _counts(self) -> dict[str, str]:
        """Output -> the output that weighs it, such as a number of tokens."""
        weight = self.decl.weigh_by
        if not isinstance(weight, ast.Name):
            return {}
        return {**with_counts(self._forward)[1], self._reports[0]: weight.text}

    @cached_property
    def _gradients(self) -> Function:
        return numbered(self.reference.differentiated.function("gradients"))

    @cached_property
    def optimized(self) -> list[str]:
        """The parameters with an optimizer."""
        parameters = (p.name for p in self.reference.program.parameters if not p.is_state)
        return [name for name in parameters if self._call(name) is not None]

    @cached_property
    def trained(self) -> list[str]:
        """The parameters that the step changes: those with an optimizer that the loss depends on."""
        made = {value: eqn for eqn in self._gradients.body for value in eqn.results}
        values = {output.name: output.value for output in self._gradients.outputs}
        return [name for name in self.optimized if not _is_zero(made.get(values[f"d_{name}"]))]


def _mean(values: Sequence[Any], weights: Sequence[float] | None) -> Any:
    """Return the weighed mean of the values of micro-batches. Those of weight 0 count as 0."""
    weights = weights or [1.0] * len(values)
    return sum(w * x for w, x in zip(weights, values, strict=True) if w) / (sum(weights) or 1.0)


def _is_zero(eqn: Any) -> bool:
    """Return True for the zeros that stand for the gradient of a value on which nothing depends."""
    return eqn is not None and has_trait(eqn, "filled") and VALUE.of(eqn.attrs) == 0


def _called(function: Function, reference: Reference, arguments: Arrays) -> Arrays:
    """Return the outputs of a function that is not distributed, by name."""
    return interpreted(function, reference.differentiated, arguments, arguments["the number"])


def _each_slice(rule: Callable[..., Updated], p: Any, g: Any, states: Arrays, stacked: int) -> Updated:
    """Update each iteration's slice of a parameter by itself. stacked: the number of loop dimensions in front."""
    if not stacked:
        return rule(p, g, states)
    slices = [
        _each_slice(rule, p[i], g[i], {s: x[i] for s, x in states.items()}, stacked - 1)
        for i in range(len(p))
    ]
    names = slices[0][1]
    return np.stack([new for new, _ in slices]), {
        s: np.stack([after[s] for _, after in slices]) for s in names
    }


# The comparison

FACTORS = (1e-3, 1e3, 1e-6, 1e6)
"""Factors of the parameters that may bring the norm of the gradients to the other side of `clip`."""


def checked_step(reference: Reference, file: str, text: str, choice: Choice, scope: Scope) -> StepCase:
    """Compare the step of a program, in f64, with the `train` block in the text of its file."""
    name = reference.program.name
    decl = declaration(text, file, choice, name)
    check = StepCheck(DeclaredStep(reference, decl, scope))
    training = reference.program.training
    others = updated(training) ^ frozenset(check.step.optimized) if training else ()
    if others:
        fault = Comparison(math.inf, 0.0, 0.0, "is not updated by the optimizer that is declared for it")
        return StepCase(name, dict.fromkeys(sorted(others), fault))
    with doing("the definitions of the training step"), np.errstate(all="ignore"):
        compared = dict(check.three_steps())
        for situation in check.situations():
            compared |= {f"{each} {situation.what}": x for each, x in check.compared(situation).items()}
    return StepCase(name, compared, tuple(dict.fromkeys((*check.step.unchecked(), *check.unchecked))))


def declaration(text: str, file: str, choice: Choice, model: str) -> ast.TrainDecl:
    """Return the `train` block of a model with the overrides of `--set`; the file has no error."""
    tree = with_overrides(parse(text, file, Diagnostics()), choice.settings, choice.model, Diagnostics())
    return next(each for each in declarations_of(tree, ast.TrainDecl) if each.model.text == model)


@attrs.frozen
class Situation:
    """A step from some parameters and states. batches: the micro-batches. what: the situation in words.

    known: parameters and states. number: the number of the step.
    """

    what: str
    known: Arrays
    batches: Sequence[Arrays]
    number: int = 0


@attrs.define(slots=False, eq=False)
class StepCheck:
    """The comparison of one program.

    known: parameters and states after three steps. unchecked: the parts that no tried situation shows.
    """

    step: DeclaredStep
    known: Arrays = attrs.field(factory=dict)
    unchecked: list[str] = attrs.field(factory=list)

    @property
    def reference(self) -> Reference:
        return self.step.reference

    def three_steps(self) -> Mapping[str, Comparison]:
        """Compare three steps in a row from the initial values."""
        known, steps = self.step.start(), []
        for number in range(STEPS):
            known, outputs = self.step.stepped(known, number, self._batches(number))
            steps.append({**known, **reported(outputs)})
        self.known = known
        return judged(self.reference.runs, stacked(steps))

    def compared(self, situation: Situation) -> Mapping[str, Comparison]:
        """Compare one step; the results that agree are left out."""
        known, number = situation.known, situation.number
        batch = stacked(situation.batches)

        def run(evaluate: Any) -> Any:
            after, outputs = self.reference.stepped(known, number, batch, evaluate)
            return {"training": {**after, **reported(outputs)}}

        runs = ReferenceRuns(run, self.reference.limits, (ROUNDINGS[:1], ROUNDINGS[1:], MORE_ROUNDINGS))
        after, outputs = self.step.stepped(known, number, situation.batches)
        return {name: x for name, x in judged(runs, {**after, **reported(outputs)}).items() if x.fault}

    def situations(self) -> Iterator[Situation]:
        """Yield the steps that three steps do not show."""
        batches = self._batches(0)
        if self.step.clip is not None:
            yield from self._of_clip(batches)
        if self.step.loss_scale == "dynamic":
            states = self.step.scale_states
            for scale, steps in product((FIRST_SCALE, LARGEST_SCALE), (PATIENCE - 2, PATIENCE - 1)):
                known = {**self.known, **states(scale, steps)}
                yield Situation(f"after {steps:,} good steps with scale {scale:g}", known, batches)
            yield from self._of_overflow(batches)
        for number in self.step.numbers():
            yield Situation(f"in step {number:,}", self.known, batches, number)

    def _batches(self, number: int) -> list[Arrays]:
        count = self.step.micro_batches
        return [self.reference.batches[number * count + i] for i in range(count)]

    def _norm(self, known: Arrays, batches: Sequence[Arrays]) -> float:
        gradients = self.step.passes(known, 0, batches)[1]
        return math.sqrt(sum(np.sum(np.square(x)) for x in gradients.values()))

    def _of_clip(self, batches: Sequence[Arrays]) -> Iterator[Situation]:
        """Yield a step whose gradient is clipped if that of the first step is not, or the other way round."""
        clip = self.step.clip
        is_clipped = bool(self._norm(self.reference.parameters, batches) > clip)
        for factor in FACTORS:
            scaled = {name: factor * self.known[name] for name in self.step.trained}
            norm = self._norm({**self.known, **scaled}, batches)
            if 0 < norm < math.inf and (norm > clip) != is_clipped:
                what = f"with parameters times {factor:g}, whose gradient is {'not ' if is_clipped else ''}clipped"
                yield Situation(what, {**self.known, **scaled}, batches)
                return
        self.unchecked.append(f"a gradient that `clip` {'leaves' if is_clipped else 'changes'}")

    def _of_overflow(self, batches: Sequence[Arrays]) -> Iterator[Situation]:
        """Yield steps with a gradient that is not finite: with NaN in the inputs, or else in one parameter."""
        poisoned = [{name: _poisoned(x) for name, x in batch.items()} for batch in batches]
        candidates: list[tuple[Arrays, Sequence[Arrays]]] = [(self.known, poisoned)]
        candidates += [({**self.known, n: _poisoned(self.known[n])}, batches) for n in self.step.trained]
        for known, given in candidates:
            if not math.isfinite(self._norm(known, given)):
                for scale in (FIRST_SCALE, 1.0):
                    states = self.step.scale_states(scale, 7)
                    yield Situation(
                        f"where a gradient is NaN and the scale {scale:g}", {**known, **states}, given
                    )
                return
        self.unchecked.append("a step whose gradient is not finite")


def judged(runs: ReferenceRuns, arrays: Mapping[str, Any]) -> Mapping[str, Comparison]:
    """Compare arrays with those of the step; a name that only one side has is a fault."""
    expected = runs.expected["training"]
    both = [name for name in arrays if name in expected and arrays[name] is not None]
    typed: list[tuple[Part, str, Any]] = [
        ("training", n, np.asarray(arrays[n]).astype(np.asarray(expected[n].plain).dtype)) for n in both
    ]
    alone = {name: "is missing in the step" for name in arrays if name not in expected}
    alone |= {name: "is not declared" for name in expected if name not in both}
    found = runs.judged(typed).get("training", {})
    return {**found, **{name: Comparison(math.inf, 0.0, 0.0, fault) for name, fault in alone.items()}}


def _poisoned(array: Any) -> Any:
    numbers = np.asarray(array)
    return numbers if numbers.dtype.kind in "biu" else np.full_like(numbers, np.nan)
