"""The operator graph: the units that get configurations (FlexFlow, section 4), made from the equations of an unrolled program.

An operator is a heavy equation (a dot, a convolution, a reduction, a lookup) with the elementwise equations that follow it, as
libraries fuse them. It includes their backward pass and the update of their parameters. The rules are:

- Equations that only view data, or make it from nothing, are copied to each user. So are elementwise equations of model inputs
  and parameters alone. So transfers send the array that is viewed, not its windows.
- An elementwise equation belongs to the last operator that it depends on. Operators with one step and the same dimensions,
  whose results only this equation uses, join that operator: the input and state dots of an LSTM are one operator.
- A sum over a dimension in which its operator may be split does not begin a new operator. The operator continues in a new
  *step* after the terms of all parts are added up: a convolution and its batch normalization are one operator of three steps.

An operator may be split in the dimensions that all its results have, except those that it reduces inside a step.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import attrs

from mtfc.compiler.analysis.liveness import readers_of, storage
from mtfc.compiler.ir.core import Equation, Function, Output, Program, Value
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.ops.structure import renaming
from mtfc.compiler.ir.training import updated
from mtfc.compiler.ir.types import FLOATS, Dim
from mtfc.compiler.passes.autodiff.backward import active_values
from mtfc.placements.operators.unroll_loops import Slices, Unrolled, unroll


@attrs.frozen(eq=False)
class OperatorStep:
    """Equations that each part of an operator evaluates without communication.

    inputs: values of other steps. arguments: inputs and parameters of the model. outputs: values that other steps use or the
    model returns. pending: outputs of which each part has only a term; the terms are added up before use. number: its place
    in the graph. operator: the number of its operator.
    """

    number: int
    operator: int
    equations: tuple[Equation, ...]
    inputs: tuple[Value, ...]
    arguments: tuple[Value, ...]
    outputs: tuple[Value, ...]
    pending: frozenset[Value]


@attrs.frozen(eq=False)
class Operator:
    """A unit with a configuration. `dims` are the dimensions in which it may be split, the sample dimension first."""

    name: str
    dims: tuple[Dim, ...]
    steps: tuple[OperatorStep, ...]


@attrs.frozen(eq=False)
class OperatorGraph:
    """A model without loops as operators, in an order in which they can run.

    samples: names of the dimensions that number the samples. loss: the value that the training step minimizes, or None.
    slices: see `Unrolled`. frozen: names of parameters that are not trained.
    """

    function: Function
    slices: Mapping[str, tuple[str, Slices]]
    operators: tuple[Operator, ...]
    samples: frozenset[str]
    loss: Value | None
    frozen: frozenset[str] = frozenset()

    @cached_property
    def steps(self) -> tuple[OperatorStep, ...]:
        found = [step for operator in self.operators for step in operator.steps]
        return tuple(sorted(found, key=lambda step: step.number))

    @cached_property
    def operator_of(self) -> dict[OperatorStep, Operator]:
        return {step: operator for operator in self.operators for step in operator.steps}

    @cached_property
    def makers(self) -> dict[Value, OperatorStep]:
        """Map each value that another step uses to the step that computes it."""
        return {value: step for step in self.steps for value in step.outputs}

    @cached_property
    def parameters(self) -> tuple[Value, ...]:
        return tuple(a.value for a in self.function.arguments if a.role == "parameter")

    @cached_property
    def parameter_users(self) -> dict[Value, list[OperatorStep]]:
        """Map each parameter to the steps that use it."""
        found: dict[Value, list[OperatorStep]] = {value: [] for value in self.parameters}
        for step in self.steps:
            for value in step.arguments:
                if value in found:
                    found[value].append(step)
        return found

    @cached_property
    def active(self) -> frozenset[Value]:
        """Values that depend on a trained parameter through differentiable ops."""
        trained = (value for value in self.parameters if value.name not in self.frozen)
        wanted = [value for value in trained if value.type.dtype in FLOATS]
        return frozenset(active_values(self.function.body, wanted))


def operators_of(program: Program) -> OperatorGraph:
    """Return the operator graph of a model's forward pass, after precision and local rewrites.

    Without updates no parameter is frozen.
    """
    training, unrolled = program.training, unroll(program.function("forward"))
    graph = operator_graph(unrolled, training.minimize if training is not None else None)
    declared = {parameter.name for parameter in program.parameters} - program.states
    trained = (updated(training) if training is not None else ()) or declared
    own = ((value.name, unrolled.slices.get(value.name, (value.name,))[0]) for value in graph.parameters)
    return attrs.evolve(graph, frozen=frozenset(name for name, whole in own if whole not in trained))


def operator_graph(unrolled: Unrolled, loss: str | None) -> OperatorGraph:
    """Group the equations of an unrolled function into operators. `loss` names the output that is minimized."""
    function = unrolled.function
    groups = _Groups(function)
    minimized = next((o.value for o in function.outputs if o.name == loss), None)
    steps = list(_steps(groups, function.outputs))
    names = _names(groups, steps)
    samples = sample_dims(function, unrolled.looped)
    operators = []
    for group, name in names.items():
        own = tuple(step for step in steps if step.operator == group)
        dims = sorted(groups.dims[group], key=lambda dim: dim.name not in samples)
        operators.append(Operator(name, tuple(dims), own))
    return OperatorGraph(function, unrolled.slices, tuple(operators), samples, minimized)


def sample_dims(function: Function, looped: frozenset[Dim]) -> frozenset[str]:
    """Return the names of sample dimensions: the first dimension of each input that no loop runs along, and its renamings."""
    inputs = (a.value.type.dims for a in function.arguments if a.role == "input")
    left = ([dim.name for dim in dims if dim not in looped] for dims in inputs)
    found = {names[0] for names in left if names}
    for eqn in function.body:
        if has_trait(eqn, "rename"):
            found |= {new.name for old, new in renaming(eqn.attrs).items() if old.name in found}
    return frozenset(found)


class _Groups:
    """Assign each equation to an operator and to one of its steps.

    Equations without an operator are copied to their users.
    """

    def __init__(self, function: Function) -> None:
        """Group the equations of a function, in order.

        users: value -> the equations that read it. order: equation -> its number. dims: dimensions in which each operator may
        be split. Operator numbers grow along data flow. members: the equations of each operator. copied: for each equation
        without an operator, the equations in operators that its operands come from. complete: values that follow from
        completed sums alone, so each part has the elements that it needs. constant: values that depend on no argument of the
        model.
        """
        self.body = function.body
        self.makers = {value: eqn for eqn in function.body for value in eqn.results}
        self.users = readers_of(function.body)
        self.outputs = {output.value for output in function.outputs}
        self.group: dict[Equation, int] = {}
        self.step: dict[Equation, int] = {}
        self.members: dict[int, list[Equation]] = {}
        self.copied: dict[Equation, list[Equation]] = {}
        self.order = {eqn: number for number, eqn in enumerate(function.body)}
        self.dims: dict[int, tuple[Dim, ...]] = {}
        self.pending: set[Value] = set()
        self.complete: set[Value] = set()
        self.constant: set[Value] = set()
        for number, eqn in enumerate(function.body):
            self._place(number, eqn)

    def _place(self, number: int, eqn: Equation) -> None:
        """Put an equation into an operator: copy it into its users, reduce, join the operator of a source, or begin an
        operator.

        Views, constants and cheap equations without sources are copied, unless the function returns them.
        """
        is_constant = all(value in self.constant for value in eqn.operands)
        self.constant.update(eqn.results if is_constant else ())
        sources = self.sources(eqn.operands)
        given = any(value in self.outputs for value in eqn.results)
        copied = storage(eqn) in ("view", "made") or (
            not sources and (is_constant or storage(eqn) == "fused")
        )
        if copied and not given:
            self.copied[eqn] = sources
        elif storage(eqn) == "reduced":
            self._reduce(number, eqn, sources)
        elif storage(eqn) in ("fused", "view") and sources:
            self._join(number, eqn, sources)
        else:
            self._begin(number, eqn)

    def sources(self, values: Iterable[Value]) -> list[Equation]:
        """Return the equations in operators that values come from, through views and copied equations."""
        found: dict[Equation, None] = {}
        for value in values:
            eqn = self.makers.get(value)
            if eqn in self.group:
                found[eqn] = None
            elif eqn is not None:
                found.update(dict.fromkeys(self.copied[eqn]))
        return list(found)

    def _add(self, eqn: Equation, group: int, step: int) -> None:
        self.group[eqn], self.step[eqn] = group, step
        self.members.setdefault(group, []).append(eqn)

    def _begin(self, number: int, eqn: Equation) -> None:
        """Begin a new operator."""
        self._add(eqn, number, 0)
        self.dims[number] = eqn.results[0].type.dims

    def _reduce(self, number: int, eqn: Equation, sources: Sequence[Equation]) -> None:
        """Place a reduction. It may join the operator of its operand, but not the operator of a view of the operand.

        number: the number of the equation.
        """
        maker = self.makers.get(eqn.operands[0])
        if maker is None or maker not in self.group:
            self._begin(number, eqn)
            return
        group = max(self.group[source] for source in sources)
        operand, kept = eqn.operands[0].type.dims, eqn.result.type.dims
        if not (set(operand) - set(kept)) & set(self.dims[group]):
            self._join(number, eqn, sources)
        elif has_trait(eqn, "sum") and self.group[maker] == group and set(self.dims[group]) <= set(operand):
            self._add(eqn, group, self._next_step(group, sources))
            self.pending.add(eqn.result)
            self.complete.add(eqn.result)
        else:
            self._begin(number, eqn)

    def _join(self, number: int, eqn: Equation, sources: Sequence[Equation]) -> None:
        """Add an equation to the last of its sources' operators, unless no dimension to split would be left.

        number: the number of the equation.
        """
        group = max(self.group[source] for source in sources)
        is_complete = all(source.results[0] in self.complete for source in sources)
        names = tuple(dim for dim in self.dims[group] if all(dim in v.type.dims for v in eqn.results))
        if self.dims[group] and not names and not is_complete:
            self._begin(number, eqn)
            return
        for other in {self.group[source] for source in sources} - {group}:
            if self._is_part_of(other, group, eqn):
                self._merge(other, group)
        self._add(eqn, group, self._next_step(group, sources))
        if is_complete:
            self.complete.update(eqn.results)
        else:
            self.dims[group] = names

    def _next_step(self, group: int, sources: Sequence[Equation]) -> int:
        """Return the last step of the sources, or the step after it if their results are pending there."""
        own = [source for source in sources if self.group[source] == group]
        return max(self.step[s] + any(v in self.pending for v in s.results) for s in own)

    def _is_part_of(self, other: int, group: int, eqn: Equation) -> bool:
        """Return whether an operator has one step, the dimensions of `group`, and results that only this equation uses."""
        members = self.members[other]
        if set(self.dims[other]) != set(self.dims[group]) or any(self.step[each] for each in members):
            return False
        users = {user for each in members for value in each.results for user in self.users.get(value, ())}
        results = {value for each in members for value in each.results}
        return users <= {*members, eqn} and not results & self.outputs

    def _merge(self, other: int, group: int) -> None:
        """Put the equations of an operator into another one."""
        for each in self.members.pop(other):
            self._add(each, group, self.step[each])
        del self.dims[other]


def _steps(groups: _Groups, outputs: Sequence[Output]) -> Iterator[OperatorStep]:
    """Yield the steps of all operators, numbered in an order in which they can run."""
    members: dict[tuple[int, int], list[Equation]] = {}
    for eqn in groups.body:
        if eqn in groups.group:
            members.setdefault((groups.group[eqn], groups.step[eqn]), []).append(eqn)
    used = {output.value for output in outputs}
    parts = []
    for key in sorted(members):
        equations, outside = _closure(groups, members[key])
        used.update(outside)
        parts.append((key, equations, outside))
    for number, (key, equations, outside) in enumerate(parts):
        made = [value for eqn in members[key] for value in eqn.results if value in used]
        inputs = tuple(value for value in outside if value in groups.makers)
        given = tuple(value for value in outside if value not in groups.makers)
        yield OperatorStep(
            number, key[0], equations, inputs, given, tuple(made), frozenset(groups.pending & set(made))
        )


def _closure(groups: _Groups, own: Sequence[Equation]) -> tuple[tuple[Equation, ...], tuple[Value, ...]]:
    """Return a step's equations with the copied ones they need, in order, and the values that come from outside."""
    inside = set(own)
    outside: dict[Value, None] = {}
    todo = list(own)
    while todo:
        for value in todo.pop().operands:
            eqn = groups.makers.get(value)
            if eqn is None or (eqn in groups.group and eqn not in inside):
                outside[value] = None
            elif eqn not in inside:
                inside.add(eqn)
                todo.append(eqn)
    return tuple(sorted(inside, key=groups.order.__getitem__)), tuple(outside)


def _names(groups: _Groups, steps: Sequence[OperatorStep]) -> dict[int, str]:
    """Name each operator by the path of its last named equation, with a number if the name is taken: `h_2[3]`."""
    names: dict[int, str] = {}
    for group in sorted(groups.dims):
        equations = [eqn for step in steps if step.operator == group for eqn in step.equations]
        own = [eqn for eqn in equations if groups.group.get(eqn) == group]
        paths = [eqn.path for eqn in own if eqn.path]
        base, *indices = (paths[-1] if paths else own[-1].results[0].name).replace("]", "").split("[")
        at = f"[{', '.join(indices)}]" if indices else ""
        number, names_in_use = 1, names.values()
        while (name := base + (f"_{number}" if number > 1 else "") + at) in names_in_use:
            number += 1
        names[group] = name
    return names
