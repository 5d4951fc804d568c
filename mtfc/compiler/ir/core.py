"""The IR: immutable equations in A-normal form, inside functions, inside a program.

Nothing here is mutated and nothing knows who uses it: a pass builds new equations and leaves the old ones be. A value is
identified by its object, printed by its name, and defined once. Every equation carries the span of the user's line that it
comes from, through differentiation and partitioning, so that a cost or an error can always point at it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Literal

import attrs

from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.types import Axes, Dim, Layout, Mesh, TensorType

Attr = int | float | bool | str | Dim | tuple[Dim, ...] | tuple[str, ...] | tuple[tuple[Dim, Dim], ...]
"""Dimensions stand as `Dim`s, mesh axes as strings, `length -> memory` as a pair of `Dim`s."""

Stage = Literal["forward", "backward", "update"]
Role = Literal["input", "parameter", "state", "step", "carried", "invariant", "sliced"]
"""What an argument is for. The last three are those of a loop's body: see `loops.py`."""


@attrs.frozen(eq=False)
class Value:
    """One result or argument. Compared by identity; `name` is unique within its function."""

    name: str
    type: TensorType

    def __str__(self) -> str:
        return f"%{self.name}"


@attrs.frozen(eq=False)
class Equation:
    """`results = op operands {attrs}`, with the layout of its iteration space once one is assigned.

    `layout` maps iteration dimensions to mesh axes; None means that no layout is assigned yet (global level).
    `path` is the user's dotted name for the result, where it has one: what a `value` rule refers to. `regions` are bodies that it
    executes, a loop's for example: functions that see their own arguments and nothing around them.
    """

    op: str
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    attrs: Mapping[str, Attr] = attrs.field(factory=dict)
    regions: tuple[Function, ...] = ()
    span: Span | None = None
    stage: Stage = "forward"
    path: str | None = None
    layout: Mapping[str, Axes] | None = None

    @property
    def result(self) -> Value:
        """The only result."""
        (value,) = self.results
        return value


@attrs.frozen(eq=False)
class Argument:
    """A function's argument, what it is for, and (once assigned) the layout it arrives in.

    `initial` is what every element of a state is before the first step.
    """

    value: Value
    role: Role
    span: Span | None = None
    layout: Mapping[str, Axes] | None = None
    initial: float = 0.0


@attrs.frozen(eq=False)
class Output:
    """A named result, and (once assigned) the layout it leaves in.

    `updates` is the name of the argument that it replaces in the next step, or the next iteration, if any.
    """

    name: str
    value: Value
    updates: str | None = None
    layout: Mapping[str, Axes] | None = None


@attrs.frozen(eq=False)
class Function:
    """Arguments, equations in order of definition, and named outputs. Names of values are unique within it, regions aside."""

    name: str
    arguments: tuple[Argument, ...]
    body: tuple[Equation, ...]
    outputs: tuple[Output, ...]


def source_file(functions: Sequence[Function]) -> str | None:
    """The file of the functions' inputs, or where they have none of anything: the user's own, whatever it imports."""
    arguments = [argument for function in functions for argument in function.arguments]
    inputs = [argument.span for argument in arguments if argument.role == "input"]
    spans = chain(inputs, (a.span for a in arguments), (eqn.span for f in functions for eqn in f.body))
    return next((span.file for span in spans if span), None)


@attrs.frozen
class Initializer:
    """How a parameter starts: the name of a distribution and its numbers, e.g. `normal`, {stddev: 0.05}."""

    name: str
    args: tuple[tuple[str, float], ...] = ()


@attrs.frozen
class Parameter:
    """A model's parameter: full name, global type, initial value, and where it is declared."""

    name: str
    type: TensorType
    init: Initializer
    span: Span | None = None


@attrs.frozen(eq=False)
class Update:
    """How an optimizer updates some of the parameters: a function of one of them.

    Its arguments are the parameter (role `parameter`), its gradient (`input`), and what is kept for it between steps (`state`);
    its outputs update the parameter and each state. A parameter may have more dimensions than the function's: those of the loops
    that it is declared in. Each slice along them is updated by itself.
    """

    parameters: tuple[str, ...]
    function: Function


@attrs.frozen
class Training:
    """The contents of a `train` block: the output of `forward` to minimize, and how.

    A parameter without an update is frozen. `report` names further outputs of the step (see `reports.py`); `learning_rate`
    computes the learning rate of a step, if that is reported.
    """

    minimize: str
    updates: tuple[Update, ...] = ()
    precision: tuple[str, str] | None = None  # (parameters' dtype, computation's dtype)
    clip: float | None = None
    accumulate: int = 1  # micro-batches per step
    span: Span | None = None
    report: tuple[str, ...] = ()
    learning_rate: Function | None = None


@attrs.frozen(eq=False)
class Program:
    """One model, compiled for one mesh and layout (or for none yet).

    `dims` are the declared dimensions by name. `functions` holds `forward` and, once differentiated, `step` or `gradients`.
    """

    name: str
    dims: Mapping[str, Dim]
    parameters: tuple[Parameter, ...]
    functions: tuple[Function, ...]
    training: Training | None = None
    mesh: Mesh | None = None
    layout: Layout | None = None

    @property
    def placed_on(self) -> Mesh:
        """The mesh, which every program has from `assign-layouts` on."""
        assert self.mesh is not None, "this pass comes after assign-layouts"
        return self.mesh

    def function(self, name: str) -> Function:
        return next(f for f in self.functions if f.name == name)

    def has_function(self, name: str) -> bool:
        return any(f.name == name for f in self.functions)

    def map_functions(self, change: Callable[[Function], Function]) -> Program:
        return attrs.evolve(self, functions=tuple(change(f) for f in self.functions))


def walk(body: tuple[Equation, ...]) -> Iterator[Equation]:
    """Every equation, nested ones after the equation that holds them."""
    for eqn in body:
        yield eqn
        for region in eqn.regions:
            yield from walk(region.body)
