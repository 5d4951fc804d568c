"""Where the equations of a program go while it is elaborated.

Functions are inlined, so all bodies of a model write into one `FunctionBuilder`. A loop's body is a region that sees nothing but its own
arguments: `BlockBuilder.here` finds a value of a surrounding block there, by making it an argument of every region in between when it is
first used. So nobody who makes an equation needs to know whether it stands in a loop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import attrs

from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Argument, Equation, Function, Initializer, Output, Parameter, Role, Value
from mtfc.compiler.ir.loops import sliced_type, stacked_type
from mtfc.compiler.ir.types import Dim, TensorType

LARGEST = 50_000
"""Equations and inlined calls of one program. A few functions that call each other can make any number of them."""


class VariableNames:
    """Names of values: a variable's first value has its name, and no other value ever has it.

    `seen` are the variables that had values, in the blocks around and inside too.
    """

    def __init__(self, variables: Collection[str], seen: set[str]) -> None:
        self.variables, self.seen = variables, seen
        self.others = Names(variables)
        self._unused = set(variables)

    def of_variable(self, variable: str) -> str:
        """`h`, then for the next value bound to the same name `h_2`."""
        self.seen.add(variable)
        if variable in self._unused:
            self._unused.remove(variable)
            return variable
        return self.others.fresh(variable)


class BlockBuilder(Builder):
    """The body of `forward`, or of a loop: where equations are appended."""

    def __init__(self, variables: Collection[str], parent: BlockBuilder | None = None) -> None:
        seen: set[str] = parent.variables.seen if parent else set()
        self.variables: VariableNames = VariableNames(variables, seen)
        super().__init__(self.variables.others)
        self.parent = parent
        self.call: Span | None = parent.call if parent else None
        self._own: set[Value] = set()

    def append(self, eqn: Equation) -> None:
        self._own.update(eqn.results)
        super().append(attrs.evolve(eqn, span=self.located(eqn.span)) if self.call else eqn)

    def located(self, span: Span | None) -> Span | None:
        """A place in a function, with the call of the function that is being inlined."""
        return attrs.evolve(span, call=self.call) if span and not span.call else span

    def own(self, name: str, type: TensorType) -> Value:
        """An argument of this block, under a name that is taken from the variables."""
        value = Value(self.variables.of_variable(name), type)
        self._own.add(value)
        return value

    def here(self, value: Value) -> Value:
        """What stands for `value`, of this block or one around it, in this block."""
        return value

    def parameter(self, value: Value) -> Value:
        """What stands for a parameter that is declared here."""
        return value

    def loops(self) -> Iterator[LoopBuilder]:
        """The loops that this block is in, the outermost first."""
        return iter(())


class LoopBuilder(BlockBuilder):
    """The body of a loop along `dim`; where it is `stacked`, parameters declared inside have a slice for each iteration."""

    def __init__(self, parent: BlockBuilder, dim: Dim, stacked: bool) -> None:
        super().__init__(parent.variables.variables, parent)
        self.dim, self.stacked = dim, stacked
        self.outside = parent
        self.carried: list[tuple[Value, Argument]] = []
        self._invariant: dict[Value, Argument] = {}
        self._sliced: dict[Value, Argument] = {}
        self._index: Value | None = None

    def carry(self, value: Value, name: str, span: Span | None) -> Value:
        """The argument that starts as `value`, of the block outside."""
        argument = Argument(self.own(name, value.type), "carried", span)
        self.carried.append((value, argument))
        return argument.value

    def slice(self, value: Value, name: str, span: Span | None = None) -> Value:
        """The argument for the slices along `dim` of `value`, of the block outside."""
        if value not in self._sliced:
            own = self.own(name, sliced_type(value.type, self.dim))
            self._sliced[value] = Argument(own, "sliced", span)
        return self._sliced[value].value

    def here(self, value: Value) -> Value:
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
        """The number of the iteration, i32[], for what stands at `span`."""
        if self._index is None:
            self.outside.span = span
            self._index = self.slice(self.outside("range", dim=self.dim), "index", span)
        return self._index

    def loops(self) -> Iterator[LoopBuilder]:
        yield from self.outside.loops()
        yield self

    def operands(self) -> Iterator[tuple[Value, Argument]]:
        """Each value outside with its argument, in the order that a loop has them."""
        yield from self.carried
        yield from self._invariant.items()
        yield from self._sliced.items()


@attrs.define
class FunctionBuilder:
    """A function of a program in the making.

    `block` is where equations go now. `dims` are those that functions declare in their bodies, with the place, `places` where
    each parameter is declared, by name. `draws` are the names of random numbers, `owners` says which functions declare
    parameters, by module and name. `size` counts equations and calls. `slices` are the types of parameters apart from the loops
    that they are declared in. `numbers` are scalars that stand for a number which is not known yet, and so have no dtype of
    their own.
    """

    block: BlockBuilder
    arguments: list[Argument] = attrs.field(factory=list)
    parameters: list[Parameter] = attrs.field(factory=list)
    outputs: list[Output] = attrs.field(factory=list)
    dims: dict[str, tuple[Dim, Span]] = attrs.field(factory=dict)
    places: dict[str, Span] = attrs.field(factory=dict)
    draws: Names = attrs.field(factory=Names)
    owners: dict[tuple[str, str], bool] = attrs.field(factory=dict)
    size: int = 0
    slices: dict[str, TensorType] = attrs.field(factory=dict)
    numbers: set[Value] = attrs.field(factory=set)
    _scopes: dict[tuple[str, bool], Names] = attrs.field(factory=dict)
    _root: BlockBuilder = attrs.field(init=False)
    _step: Value | None = None

    @_root.default
    def _first_block(self) -> BlockBuilder:
        return self.block

    def aside(self) -> FunctionBuilder:
        """Return an equal place, within the same loops, for equations of dead statements."""
        block = root = BlockBuilder(())
        for loop in self.block.loops():
            block = LoopBuilder(block, loop.dim, loop.stacked)
        block.call = self.block.call
        builder = FunctionBuilder(root, owners=self.owners, size=self.size, numbers=self.numbers)
        builder.block = block
        return builder

    @property
    def seen(self) -> set[str]:
        """The variables that have had values, by their full names."""
        return self._root.variables.seen

    def argument(self, name: str, type: TensorType, role: Role, span: Span | None) -> Value:
        value = self._root.own(name, type)
        self.arguments.append(Argument(value, role, span))
        return value

    def parameter(self, name: str, type: TensorType, init: Initializer, span: Span) -> Value:
        """Declare a parameter here; inside of loops it is stacked as these say."""
        full = self.stacked(type)
        self.slices[name] = type
        place = self.block.located(span)
        value = self.argument(name, full, "parameter", place)
        self.parameters.append(Parameter(name, full, init, place))
        return self.block.parameter(value)

    def stacked(self, type: TensorType) -> TensorType:
        """The type of all the slices of a parameter that is declared here."""
        for loop in reversed(tuple(self.block.loops())):
            type = stacked_type(type, loop.dim) if loop.stacked else type
        return type

    def step(self, span: Span) -> Value:
        """The number of the training step, i32[], in this block, for what stands at `span`."""
        if self._step is None:
            self._root.span = self.block.located(span)
            self._step = self._root("step_number")
        return self.block.here(self._step)

    def indices(self, span: Span) -> list[Value]:
        """The numbers of the iterations of all loops around, the outermost first, for what stands at `span`."""
        place = self.block.located(span)
        return [self.block.here(loop.index(place)) for loop in self.block.loops()]

    def scope(self, prefix: str, name: str, owns_parameters: bool) -> str:
        """The name of a new scope in the scope `prefix`: `name`, or `name_2` ...

        Scopes without parameters are counted apart, so that they do not renumber those with.
        """
        return self._scopes.setdefault((prefix, owns_parameters), Names()).fresh(name)

    def local_dim(self, name: str, size: int, span: Span) -> Dim:
        """The dimension that a function declares: one of this name, `_2` where there is one of another size."""
        number, full = 2, name
        while full in self.dims and self.dims[full][0].size != size:
            number, full = number + 1, f"{name}_{number}"
        return self.dims.setdefault(full, (Dim(full, size), span))[0]

    def function(self, name: str) -> Function:
        arguments = sorted(self.arguments, key=lambda argument: argument.role != "input")
        return Function(name, tuple(arguments), tuple(self._root.body), tuple(self.outputs))

    def all_dims(self) -> dict[str, Dim]:
        """Every dimension of the program by name, in the order of appearance."""
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
