"""Collect the equations of a program during elaboration.

Functions are inlined, so all bodies of a model write into one `FunctionBuilder`. The body of a loop is a region that sees only
its own arguments. `BlockBuilder.here` makes a value of a surrounding block available in a loop: at the first use, the value
becomes an argument of every region in between. So code that makes equations need not know if it is in a loop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import attrs

from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import (
    Argument,
    Equation,
    Function,
    Initializer,
    Output,
    Parameter,
    Role,
    Stage,
    Value,
)
from mtfc.compiler.ir.loops import sliced_type, stacked_type
from mtfc.compiler.ir.training import BUILT_IN
from mtfc.compiler.ir.types import Dim, TensorType
from mtfc.compiler.records import define
from mtfc.frontend.semantics.names.scope import FileSize

LARGEST = 50_000
"""Most equations and inlined calls of one file: few functions that call each other can make any number."""


class VariableNames:
    """Names of values. The first value of a variable has the variable's name, and no other value ever has it."""

    def __init__(self, variables: Collection[str], seen: set[str]) -> None:
        """Start with no name in use.

        variables: all variables of the function. seen: the variables that have had values, shared by all blocks of the
        function. others: makes the names of further values.
        """
        self.variables, self.seen = variables, seen
        self.others = Names(variables)
        self._unused = set(variables)

    def of_variable(self, variable: str) -> str:
        """Return the name for the next value of a variable: `h`, then `h_2`."""
        self.seen.add(variable)
        if variable in self._unused:
            self._unused.remove(variable)
            return variable
        return self.others.fresh(variable)


class BlockBuilder(Builder):
    """Collects the equations of `forward` or of a loop's body.

    updates: the new values of states, by full name. watched: the values that `watch` hands out, by full name.
    """

    def __init__(self, variables: Collection[str], parent: BlockBuilder | None = None) -> None:
        """Start an empty block. variables: the names that variables of the block may have. parent: the block around it."""
        seen: set[str] = parent.variables.seen if parent else set()
        self.variables: VariableNames = VariableNames(variables, seen)
        super().__init__(self.variables.others, stage=parent.stage if parent else "forward")
        self.parent = parent
        self.updates: dict[str, Value] = {}
        self.watched: dict[str, Value] = {}
        self._constants_of: dict[Stage, dict[tuple[str, str], Value]] = {}
        self.call: Span | None = parent.call if parent else None
        self._own: set[Value] = set()

    def append(self, eqn: Equation) -> None:
        """Append an equation, with the call that led there in its source place."""
        self._own.update(eqn.results)
        span = self.located(eqn.span)
        super().append(eqn if span is eqn.span else attrs.evolve(eqn, span=span))

    def constant(self, value: float | int | bool, dtype: str) -> Value:
        """Return the scalar `value`. The update of a state shares no constants with other equations."""
        self._constants = self._constants_of.setdefault(self.stage, {})
        return super().constant(value, dtype)

    def located(self, span: Span | None) -> Span | None:
        """Return a place in a function with the call that is being inlined."""
        if self.call is None or span is None or span.call is not None:
            return span
        return Span(span.file, span.line, span.column, span.end_line, span.end_column, self.call)

    def own(self, name: str, type: TensorType) -> Value:
        """Make an argument of this block, named after a variable."""
        value = Value(self.variables.of_variable(name), type)
        self._own.add(value)
        return value

    def here(self, value: Value) -> Value:
        """Return the value of this block that stands for a value of this block or of a block around it."""
        return value

    def parameter(self, value: Value) -> Value:
        """Return the value of this block for a parameter that is declared here."""
        return value

    def loops(self) -> Iterator[LoopBuilder]:
        """Yield the loops that this block is in, the outermost first."""
        return iter(())


class LoopBuilder(BlockBuilder):
    """Collects the body of a loop along `dim`."""

    def __init__(self, parent: BlockBuilder, dim: Dim, stacked: bool, ends: bool = False) -> None:
        """Start an empty body.

        carried: outer value -> its argument. _invariant, _sliced: the same for arguments of other roles. stacked: a parameter
        declared inside has a slice for each iteration. ends: data may end the loop before its last iteration.
        """
        super().__init__(parent.variables.variables, parent)
        self.dim, self.stacked, self.ends = dim, stacked, ends
        self.outside = parent
        self.carried: list[tuple[Value, Argument]] = []
        self._invariant: dict[Value, Argument] = {}
        self._sliced: dict[Value, Argument] = {}
        self._index: Value | None = None

    def carry(self, value: Value, name: str | None, span: Span | None) -> Value:
        """Make the argument for a carry that starts as `value`, of the block outside.

        name: the variable that it is; None for the condition, the first carry.
        """
        own = Value(self.names.fresh("goes_on"), value.type) if name is None else self.own(name, value.type)
        self._own.add(own)
        self.carried.append((value, Argument(own, "carried", span)))
        return own

    def slice(self, value: Value, name: str, span: Span | None = None) -> Value:
        """Return the argument for the slices along `dim` of `value`, of the block outside."""
        if value not in self._sliced:
            own = self.own(name, sliced_type(value.type, self.dim))
            self._sliced[value] = Argument(own, "sliced", span)
        return self._sliced[value].value

    def here(self, value: Value) -> Value:
        """Return a value as the loop's body sees it: its own values as they are, others as an invariant argument."""
        if value in self._own:
            return value
        outer = self.outside.here(value)
        if outer not in self._invariant:
            self._invariant[outer] = Argument(self.own(outer.name, outer.type), "invariant")
        return self._invariant[outer].value

    def parameter(self, value: Value) -> Value:
        outer = self.outside.parameter(value)
        return self.slice(outer, outer.name) if self.stacked else self.here(outer)

    def index(self, span: Span | None) -> Value:
        """Return the number of the iteration, i32[]; `span` is the place that asks for it."""
        if self._index is None:
            self.outside.span = span
            self._index = self.slice(self.outside("range", dim=self.dim), "index", span)
        return self._index

    def loops(self) -> Iterator[LoopBuilder]:
        yield from self.outside.loops()
        yield self

    def operands(self) -> Iterator[tuple[Value, Argument]]:
        """Yield each outer value with its argument, in the order of a loop's operands."""
        yield from self.carried
        yield from self._invariant.items()
        yield from self._sliced.items()


@define
class FunctionBuilder:
    """A function of the program, while its equations are collected.

    block: the current block. grown: the size of the file's programs. dims: dimensions that functions declare in their bodies,
    with their places. places: the place of each parameter, by name. draws: names of random streams. watches: names of watched
    values. slices: the types of parameters without the dimensions of the loops around them. numbers: scalars for numbers that
    are known only when the program runs, such as the learning rate of a schedule; they have no dtype of their own. around: for
    equations of dead statements, the builder of the others.
    """

    block: BlockBuilder
    grown: FileSize
    arguments: list[Argument] = attrs.field(factory=list)
    parameters: list[Parameter] = attrs.field(factory=list)
    outputs: list[Output] = attrs.field(factory=list)
    dims: dict[str, tuple[Dim, Span]] = attrs.field(factory=dict)
    places: dict[str, Span] = attrs.field(factory=dict)
    draws: Names = attrs.field(factory=Names)
    watches: Names = attrs.field(factory=Names)
    slices: dict[str, TensorType] = attrs.field(factory=dict)
    numbers: set[Value] = attrs.field(factory=set)
    around: FunctionBuilder | None = None
    _scopes: dict[tuple[str, bool], Names] = attrs.field(factory=dict)
    _root: BlockBuilder = attrs.field(init=False)
    _step: Value | None = None

    @_root.default
    def _first_block(self) -> BlockBuilder:
        return self.block

    def aside(self) -> FunctionBuilder:
        """Return a builder within the same loops, for the equations of dead statements."""
        block = root = BlockBuilder(())
        for loop in self.block.loops():
            block = LoopBuilder(block, loop.dim, loop.stacked, loop.ends)
        block.call = self.block.call
        builder = FunctionBuilder(root, self.grown, numbers=self.numbers, around=self)
        builder.block = block
        return builder

    @property
    def seen(self) -> set[str]:
        """The variables that have had values, by their full names."""
        return self._root.variables.seen

    def argument(self, name: str, type: TensorType, role: Role, span: Span | None) -> Value:
        """Add an argument of the function, and return its value."""
        value = self._root.own(name, type)
        self.arguments.append(Argument(value, role, span))
        return value

    def parameter(
        self, name: str, type: TensorType, init: Initializer, span: Span, is_state: bool = False
    ) -> Value:
        """Declare a parameter or a state; in `repeat` loops it is stacked along their dimensions."""
        full = self.stacked(type)
        if not is_state:
            self.slices[name] = type
        place = self.block.located(span)
        value = self.argument(name, full, "parameter", place)
        self.parameters.append(Parameter(name, full, init, place, is_state))
        self.grown.size += 1
        return self.block.parameter(value)

    def known_parameter(self, name: str) -> Parameter | None:
        """Return the parameter of that name, if there is one before this place."""
        found = next((each for each in self.parameters if each.name == name), None)
        return found or (self.around.known_parameter(name) if self.around else None)

    def shared_parameter(self, parameter: Parameter) -> Value:
        """Return the value of a parameter that another call declares, in this block."""
        argument = next((each for each in self.arguments if each.value.name == parameter.name), None)
        value = argument.value if argument else self._root.own(parameter.name, parameter.type)
        return self.block.parameter(value)

    def scopes_with_parameters(self, prefix: str) -> list[str]:
        """Return the names of the scopes in a scope that have parameters, in order."""
        names = [each.name.removeprefix(prefix) for each in self.parameters if each.name.startswith(prefix)]
        own = [name.split(".")[0] for name in names if "." in name]
        return list(
            dict.fromkeys([*(self.around.scopes_with_parameters(prefix) if self.around else ()), *own])
        )

    def stacked(self, type: TensorType) -> TensorType:
        """Return the type of a parameter that is declared here, with the dimensions of the `repeat` loops around."""
        for loop in reversed(tuple(self.block.loops())):
            type = stacked_type(type, loop.dim) if loop.stacked else type
        return type

    def step(self, span: Span) -> Value:
        """Return the number of the training step, i32[], in this block; `span` is the place that asks for it."""
        if self._step is None:
            self._root.span = self.block.located(span)
            self._step = self._root("step_number")
        return self.block.here(self._step)

    def indices(self, span: Span) -> list[Value]:
        """Return the iteration numbers of all loops around, the outermost first; `span` is the place that asks for them."""
        place = self.block.located(span)
        return [self.block.here(loop.index(place)) for loop in self.block.loops()]

    def is_looped(self) -> bool:
        """True if the current block is the body of a loop."""
        return next(self.block.loops(), None) is not None

    def scope(self, prefix: str, name: str, owns_parameters: bool) -> str:
        """Return the name of a new scope in the scope `prefix`: `name`, or `name_2` and so on.

        Scopes without parameters are counted apart, so that they do not change the names of parameters.
        """
        return self._scopes.setdefault((prefix, owns_parameters), Names()).fresh(name)

    def local_dim(self, name: str, size: int, span: Span) -> Dim:
        """Return the dimension that a function declares, called `name_2` if `name` exists with another size."""
        number, full = 2, name
        while full in self.dims and self.dims[full][0].size != size:
            number, full = number + 1, f"{name}_{number}"
        return self.dims.setdefault(full, (Dim(full, size), span))[0]

    def function(self, name: str) -> Function:
        """Return the finished function: inputs come before parameters, watched values and new states after outputs."""
        arguments = sorted(self.arguments, key=lambda argument: argument.role != "input")
        outputs = (*self.outputs, *self._watched(), *self._replacing())
        return Function(name, tuple(arguments), tuple(self._root.body), outputs)

    def watch(self, name: str, value: Value) -> None:
        """Hand out a value of the current block beside the outputs."""
        self.block.watched[self.watches.fresh(name)] = self.block.here(value)
        self.grown.size += 1

    def watched(self) -> dict[str, Value]:
        """Return the watched values by the names of their outputs, which mean nothing else."""
        outputs = {output.name: output.value for output in self.outputs}
        taken = {*outputs, *BUILT_IN}
        names, found = Names((*taken, *self._root.watched)), dict[str, Value]()
        for name, value in self._root.watched.items():
            is_known = name in taken and outputs.get(name) is not value
            found[names.fresh(f"{name}.watched") if is_known else name] = value
        return found

    def _watched(self) -> Iterator[Output]:
        """Yield the outputs of the watched values that are no outputs already."""
        outputs = {output.name for output in self.outputs}
        for name, value in self.watched().items():
            if name not in outputs:
                yield Output(name, value)

    def _replacing(self) -> Iterator[Output]:
        """Yield the outputs that replace states, with names that no other output has."""
        taken = {output.name for output in (*self.outputs, *self._watched())}
        names = Names((*taken, *self._root.updates))
        for name, value in self._root.updates.items():
            yield Output(names.fresh(f"{name}.new") if name in taken else name, value, name)

    def all_dims(self) -> dict[str, Dim]:
        """Return every dimension of the program by name, in the order of appearance."""
        found: dict[str, Dim] = {}
        for argument in self.arguments:
            _note(argument.value.type.dims, found)
        waiting = [self._root.body]
        while waiting:
            for eqn in waiting.pop():
                _note((*(value.type.dims for value in eqn.results), *eqn.attrs.values()), found)
                waiting += [list(region.body) for region in eqn.regions]
        return found


def _note(value: Any, found: dict[str, Dim]) -> None:
    """Add the dimensions in an attribute."""
    if isinstance(value, Dim):
        found.setdefault(value.name, value)
    elif isinstance(value, tuple):
        for item in value:
            _note(item, found)
