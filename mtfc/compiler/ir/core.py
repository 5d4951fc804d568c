"""The IR: immutable equations in A-normal form, inside functions, inside a program.

A pass builds new equations and never changes old ones. No object knows its users. A value is identified by its object, printed by
its name, and defined once. Every equation keeps the span of its source line through differentiation and partitioning, so costs
and errors can always point at the line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Literal

import attrs

from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.types import Axes, Dim, Layout, Mesh, TensorType
from mtfc.compiler.records import frozen

Attr = int | float | bool | str | Dim | tuple[Dim, ...] | tuple[str, ...] | tuple[tuple[Dim, Dim], ...]
"""The value of an attribute. A dimension is a `Dim`, a mesh axis a string, and `length -> memory` a pair of `Dim`s."""

Stage = Literal["forward", "backward", "update"]
Role = Literal["input", "parameter", "state", "step", "carried", "invariant", "sliced"]
"""The role of an argument. Arguments of a loop's region have one of the last three: see `loops.py`."""


@frozen(eq=False)
class Value:
    """A result or an argument. Values are compared by identity; `name` is unique within the function."""

    name: str
    type: TensorType

    def __str__(self) -> str:
        return f"%{self.name}"


@frozen(eq=False)
class Equation:
    """`results = op operands {attrs}`, with the layout of its iteration space once one is assigned.

    `layout` maps iteration dimensions to mesh axes; None means that no layout is assigned yet (global level). `path` is the
    user's dotted name for the result, if any; `value` rules of a layout refer to it. `regions` are the bodies that the equation
    executes, such as a loop's: functions that see their own arguments and nothing around them.
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


@frozen(eq=False)
class Argument:
    """A function's argument, its role, and (once assigned) its layout at the start of the function.

    `initial` is the value of every element of a state before the first step. `inner` are the dimensions inside of an axis of the
    caller's array, which no sharding of the array splits.
    """

    value: Value
    role: Role
    span: Span | None = None
    layout: Mapping[str, Axes] | None = None
    initial: float = 0.0
    inner: frozenset[Dim] = frozenset()


@frozen(eq=False)
class Output:
    """A named result, and (once assigned) its layout at the end of the function.

    `updates` is the name of the argument that the output replaces in the next step or iteration, if any.
    """

    name: str
    value: Value
    updates: str | None = None
    layout: Mapping[str, Axes] | None = None


@frozen(eq=False)
class Function:
    """Arguments, equations in order of definition, and named outputs.

    Names of values are unique within a function; each region has names of its own.
    """

    name: str
    arguments: tuple[Argument, ...]
    body: tuple[Equation, ...]
    outputs: tuple[Output, ...]

    @property
    def handed_out(self) -> tuple[Output, ...]:
        """The outputs that replace no argument."""
        return tuple(output for output in self.outputs if output.updates is None)


def source_file(functions: Sequence[Function]) -> str | None:
    """Return the user's file, not an imported one: the file of the first input with a span, or else of anything with a span."""
    arguments = [argument for function in functions for argument in function.arguments]
    inputs = [argument.span for argument in arguments if argument.role == "input"]
    spans = chain(inputs, (a.span for a in arguments), (eqn.span for f in functions for eqn in f.body))
    return next((span.file for span in spans if span), None)


@frozen
class Initializer:
    """The initial value of a parameter: the name of a distribution and its numbers, e.g. `normal`, {stddev: 0.05}."""

    name: str
    args: tuple[tuple[str, float], ...] = ()


@frozen
class Parameter:
    """A model's parameter: its full name, global type, initial value, and the place of its declaration.

    is_state: True for the state of a model. It has no gradient; a training step replaces it by an output of the model.
    """

    name: str
    type: TensorType
    init: Initializer
    span: Span | None = None
    is_state: bool = False


@frozen(eq=False)
class Update:
    """The function that an optimizer applies to each of some parameters.

    Its arguments are the parameter (role `parameter`), the gradient (`input`), and the states that are kept between steps
    (`state`). Its outputs update the parameter and each state. A parameter that is declared in loops has their dimensions in
    front of the function's. Each slice along them is updated by itself.
    """

    parameters: tuple[str, ...]
    function: Function


@frozen
class LossScale:
    """The factor of the loss in the backward pass. `is_dynamic` means that steps change the factor; `start` is the first one."""

    start: float
    is_dynamic: bool = False


@frozen
class Training:
    """The contents of a `train` block: the output of `forward` to minimize, and the way to do it.

    A parameter without an update is frozen. `reduce` is the dtype of sums of gradients, if it is not that of the computation.
    `report` names further outputs of the step (see `training.py`). `learning_rate` computes the learning rate of a step, if it is
    reported. `average` is the share of the parameters' averages that a step keeps, if it keeps averages. `weigh_by` names the
    output that micro-batches are weighed by.
    """

    minimize: str
    updates: tuple[Update, ...] = ()
    precision: tuple[str, str] | None = None  # (parameters' dtype, computation's dtype)
    clip: float | None = None
    accumulate: int = 1  # micro-batches per step
    span: Span | None = None
    report: tuple[str, ...] = ()
    learning_rate: Function | None = None
    reduce: str | None = None
    loss_scale: LossScale | None = None
    average: float | None = None
    weigh_by: str | None = None


@frozen(eq=False)
class Program:
    """One model, compiled for one mesh and layout (or for none yet).

    `dims` are the declared dimensions by name. `functions` has `forward`, and after `differentiate` also `step` or `gradients`.
    """

    name: str
    dims: Mapping[str, Dim]
    parameters: tuple[Parameter, ...]
    functions: tuple[Function, ...]
    training: Training | None = None
    mesh: Mesh | None = None
    layout: Layout | None = None

    @property
    def states(self) -> frozenset[str]:
        """The names of the model's states."""
        return frozenset(parameter.name for parameter in self.parameters if parameter.is_state)

    @property
    def named_values(self) -> set[str]:
        """The values that `value` rules of the layout name."""
        return set(self.layout.value_rules) if self.layout else set()

    @property
    def placed_on(self) -> Mesh:
        """The mesh; every program has one from `assign-layouts` on."""
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
