"""Unroll loops to straight-line code: FlexFlow unrolls recurrent networks, so that each iteration has operators of its own.

A slice of a loop's input along the loop dimension is computed slice by slice, if every equation on the way acts on each slice
alone. So the dot of all inputs of a layer with its weights becomes one dot for each iteration, and an iteration of a layer can
follow the same iteration of the layer before. For this, values are `LazyValue`s: they make equations only for the whole, or for
the slices, that are asked for. Data that is stacked and sliced again is never put together.

Equations of straight-line bodies are made in their order; equations around loops are made when something needs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs

from mtfc.compiler.diagnostics import CompileError, Diagnostic, Span
from mtfc.compiler.ir.builder import Builder, Names, needed_for
from mtfc.compiler.ir.core import Argument, Attr, Equation, Function, Value, walk
from mtfc.compiler.ir.loops import (
    carried,
    dim_of,
    has_condition,
    is_unbounded,
    looped_dims,
    pairs,
    region_of,
    sliced_type,
    stacked_type,
)
from mtfc.compiler.ir.opdef import OpError
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.types import Dim, TensorType

MOST = 20_000
"""Most equations of a function without loops."""

ONE = Dim("one", 1)
"""The dimension of a slice before it is dropped."""


Slices = tuple[tuple[int, int], ...]
"""Axis and index of consecutive slices, each taken from the result of the one before."""


@attrs.frozen(eq=False)
class Unrolled:
    """A function without loops.

    slices: parameters that are slices of one, as each iteration has its own: name -> name of the whole, and its slices.
    looped: the dimensions along which loops ran.
    """

    function: Function
    slices: Mapping[str, tuple[str, Slices]]
    looped: frozenset[Dim]


def unroll(function: Function) -> Unrolled:
    """Return the same function without loops. Equations and parameters of an iteration have its index in their path:
    `layer.h[3]`. Raises `CompileError` (E122) before any work if the function would have more than `MOST` equations.
    """
    _check_size(function.body)
    names = Names(argument.value.name for argument in function.arguments)
    builder = Builder(names)
    known: dict[Value, LazyValue] = {a.value: _given(builder, a) for a in function.arguments}
    _execute(builder, function.body, known, ())
    outputs = tuple(attrs.evolve(o, value=known[o.value].whole()) for o in function.outputs)
    arguments, slices = [], {}
    for argument in function.arguments:
        handle = known[argument.value]
        own = list(handle.slices()) if isinstance(handle, LazyParameter) else [(argument.value, ())]
        arguments += [attrs.evolve(argument, value=value) for value, _ in own]
        slices.update({value.name: (argument.value.name, at) for value, at in own if at})
    body = needed_for((output.value for output in outputs), builder.body)
    alone = attrs.evolve(function, arguments=tuple(arguments), body=body, outputs=outputs)
    return Unrolled(alone, slices, looped_dims(function))


def _check_size(body: Sequence[Equation]) -> None:
    """Raise E122 at the first outermost loop with which the iterations have too many equations, or no largest number."""
    total = 0
    for eqn in body:
        if any(map(is_unbounded, walk((eqn,)))):
            message = "a placement unrolls all loops, and this loop may have any number of iterations"
            raise _too_large(eqn, message, "use a layout")
        total += _iterations(eqn)
        if total > MOST:
            message = f"a placement unrolls all loops, and this model would have more than {MOST:,} equations"
            help = "place a smaller model with `--dim NAME=SIZE`, or use a layout"
            raise _too_large(eqn, message, help)


def _too_large(eqn: Equation, message: str, help: str) -> CompileError:
    return CompileError([Diagnostic("E122", message, eqn.span or Span("<model>", 1, 1, 1, 1), help=help)])


def _iterations(eqn: Equation) -> int:
    """Return the number of equations that an equation becomes."""
    inside = sum(_iterations(each) for region in eqn.regions for each in region.body)
    return 1 + dim_of(eqn).size * inside if eqn.regions else 1


def _given(builder: Builder, argument: Argument) -> LazyValue:
    """Return an argument as a value that is made when it is read."""
    if argument.role == "parameter":
        return LazyParameter(builder, argument.value)
    return LazyValue(builder, argument.value.type, argument.value)


class LazyValue:
    """A value that is made when it is asked for. `type` is the type of the whole."""

    def __init__(self, builder: Builder, type: TensorType, whole: Value | None = None) -> None:
        """Wrap a value, or one that is yet to be made.

        _slices: its slices so far, by dimension and index.
        """
        self.builder, self.type = builder, type
        self._slices: dict[tuple[Dim, int], LazyValue] = {}
        self._whole = whole

    def whole(self) -> Value:
        """Return the value, made by equations on the first call."""
        if self._whole is None:
            self._whole = self._make()
        return self._whole

    def at(self, dim: Dim, index: int) -> LazyValue:
        """Return one slice along a dimension, without this dimension."""
        key = (dim, index)
        if key not in self._slices:
            self._slices[key] = self._slice(dim, index)
        return self._slices[key]

    def _make(self) -> Value:
        raise NotImplementedError

    def _slice(self, dim: Dim, index: int) -> LazyValue:
        return LazySlice(self, dim, index)


class LazyParameter(LazyValue):
    """A parameter. If loops slice it, each iteration has a parameter of its own."""

    def __init__(self, builder: Builder, value: Value, at: Slices = ()) -> None:
        super().__init__(builder, value.type)
        self.value, self.index = value, at

    def slices(self) -> Iterator[tuple[Value, Slices]]:
        """Yield the parameters that it is split into, and their slices."""
        own = [handle for handle in self._slices.values() if isinstance(handle, LazyParameter)]
        if not own:
            yield self.value, self.index
        for handle in own:
            yield from handle.slices()

    def _make(self) -> Value:
        """Return the parameter; if an update has made its slices, stack these."""
        if not self._slices:
            return self.value
        dim = next(iter(self._slices))[0]
        type = stacked_type(sliced_type(self.type, dim), dim)
        stacked = LazyStack(self.builder, type, dim, [self.at(dim, i) for i in range(dim.size)])
        return self.builder.ordered(stacked.whole(), self.type.dims)

    def _slice(self, dim: Dim, index: int) -> LazyValue:
        """Return a slice: a parameter of its own, unless the whole is used too, or slices along another dimension are."""
        if self._whole is not None or any(each != dim for each, _ in self._slices):
            return LazySlice(self, dim, index)
        value = Value(f"{self.value.name}[{index}]", sliced_type(self.type, dim))
        return LazyParameter(self.builder, value, (*self.index, (self.type.dims.index(dim), index)))


class LazySlice(LazyValue):
    """A slice of a value that is made as a whole."""

    def __init__(self, source: LazyValue, dim: Dim, index: int) -> None:
        super().__init__(source.builder, sliced_type(source.type, dim))
        self.source, self.dim, self.index = source, dim, index

    def _make(self) -> Value:
        """Append the slice of the source, and return it without the dimension."""
        x = self.source.whole()
        name = x.name
        part = self.builder("slice", x, name=name, source=self.dim, target=ONE, start=self.index, stride=1)
        return self.builder("reshape", part, name=name, dims=self.type.dims)


class LazyStack(LazyValue):
    """The values that the iterations of a loop yielded, along a new first dimension."""

    def __init__(self, builder: Builder, type: TensorType, dim: Dim, items: Sequence[LazyValue]) -> None:
        super().__init__(builder, type)
        self.dim, self.items = dim, items

    def _make(self) -> Value:
        """Append the concatenation of the items."""
        dims = (ONE, *self.type.dims[1:])
        parts = [self.builder("reshape", item.whole(), name="part", dims=dims) for item in self.items]
        return self.builder("concat", *parts, name="stack", sources=(ONE,) * len(parts), target=self.dim)

    def _slice(self, dim: Dim, index: int) -> LazyValue:
        return self.items[index] if dim == self.dim else super()._slice(dim, index)


class LazyResult(LazyValue):
    """A result of an equation."""

    def __init__(self, made: LazyEquation, number: int) -> None:
        super().__init__(made.builder, made.eqn.results[number].type)
        self.made, self.number = made, number

    def _make(self) -> Value:
        return self.made.results()[self.number]

    def _slice(self, dim: Dim, index: int) -> LazyValue:
        made = self.made.at(dim, index)
        return super()._slice(dim, index) if made is None else LazyResult(made, self.number)


class LazyEquation:
    """An equation that is made when one of its results is asked for."""

    def __init__(self, builder: Builder, eqn: Equation, operands: Sequence[LazyValue]) -> None:
        """Wrap an equation that is not made.

        _slices: its slices so far, by dimension and index; None if it has none.
        """
        self.builder, self.eqn, self.operands = builder, eqn, operands
        self._results: tuple[Value, ...] | None = None
        self._slices: dict[tuple[Dim, int], LazyEquation | None] = {}

    def results(self) -> tuple[Value, ...]:
        """Return the results; make the equation at the first call."""
        if self._results is None:
            operands = tuple(operand.whole() for operand in self.operands)
            results = tuple(Value(self.builder.names.fresh(v.name), v.type) for v in self.eqn.results)
            self.builder.append(attrs.evolve(self.eqn, operands=operands, results=results))
            self._results = results
        return self._results

    def at(self, dim: Dim, index: int) -> LazyEquation | None:
        """Return the equation on one slice; None if it does not act on each slice alone."""
        key = (dim, index)
        if key not in self._slices:
            found = sliced_equation(self.eqn, dim)
            if found is not None:
                eqn, along = found
                eqn = attrs.evolve(eqn, path=_indexed(eqn.path, (index,)))
                operands = [x.at(d, index) if d else x for x, d in zip(self.operands, along, strict=True)]
                self._slices[key] = LazyEquation(self.builder, eqn, operands)
            else:
                self._slices[key] = None
        return self._slices[key]


def sliced_equation(eqn: Equation, dim: Dim) -> tuple[Equation, tuple[Dim | None, ...]] | None:
    """Return the equation on one slice of its results along `dim`, and the dimension along which to slice each operand.

    Return None if a slice of the results needs more than a slice of the operands, or depends on its index.
    """
    rule = OPS[eqn.op].layout_rule(eqn)
    depends = "stream" in eqn.attrs or dim.name in rule.whole | rule.single or dim in eqn.attrs.values()
    if depends or any(dim not in value.type.dims for value in eqn.results):
        return None
    along = tuple(_running_along(value.type, rule.index, dim) for value in eqn.operands)
    new = {key: _without(value, dim) for key, value in eqn.attrs.items()}
    types = [sliced_type(v.type, d) if d else v.type for v, d in zip(eqn.operands, along, strict=True)]
    wanted = tuple(sliced_type(value.type, dim) for value in eqn.results)
    try:
        if OPS[eqn.op].infer(types, new) != wanted:
            return None
    except OpError:
        return None
    operands = tuple(Value(v.name, type) for v, type in zip(eqn.operands, types, strict=True))
    results = tuple(Value(v.name, type) for v, type in zip(eqn.results, wanted, strict=True))
    return attrs.evolve(eqn, operands=operands, results=results, attrs=new), along


def _running_along(type: TensorType, index: Mapping[str, str | None], dim: Dim) -> Dim | None:
    """Return the dimension of an operand that runs along dimension `dim` of the iteration space."""
    found = (each for each in type.dims if index.get(each.name, each.name) == dim.name)
    return next((each for each in found if each.size == dim.size), None)


def _without(value: Attr, dim: Dim) -> Attr:
    """Return an attribute without a dimension."""
    if not isinstance(value, tuple):
        return value
    return tuple(each for each in value if each != dim and not (isinstance(each, tuple) and dim in each))  # type: ignore[return-value]


def _execute(
    builder: Builder, body: Sequence[Equation], known: dict[Value, LazyValue], at: tuple[int, ...]
) -> None:
    """Add lazy results of equations to the known values, which include all operands."""
    straight = not any(eqn.regions for eqn in body)
    for eqn in body:
        if eqn.regions:
            known.update(zip(eqn.results, _iterate(builder, eqn, known, at), strict=True))
            continue
        eqn = attrs.evolve(eqn, path=_indexed(eqn.path, at))
        made = LazyEquation(builder, eqn, [known[value] for value in eqn.operands])
        known.update((value, LazyResult(made, i)) for i, value in enumerate(eqn.results))
        if straight:
            made.results()


def _iterate(
    builder: Builder, eqn: Equation, known: Mapping[Value, LazyValue], at: tuple[int, ...]
) -> list[LazyValue]:
    """Return the results of a loop, with all its iterations unrolled."""
    region, dim = region_of(eqn), dim_of(eqn)
    state = {argument.value: known[operand] for operand, argument in pairs(eqn)}
    going = {argument.value.name: argument.value for argument in carried(region)}
    yielded: dict[str, dict[int, LazyValue]] = {output.name: {} for output in region.outputs}
    for index in range(dim.size)[::-1] if eqn.attrs["reverse"] else range(dim.size):
        inside = {
            a.value: state[a.value].at(dim, index) if a.role == "sliced" else state[a.value]
            for a in region.arguments
        }
        _execute(builder, region.body, inside, (*at, index))
        left = {output.name: inside[output.value] for output in region.outputs}
        if has_condition(eqn):
            left = _if_it_runs(builder, eqn, state, left)
        state |= {going[o.updates]: left[o.name] for o in region.outputs if o.updates is not None}
        for output in region.outputs:
            yielded[output.name][index] = left[output.name]
    return [
        state[going[output.updates]]
        if output.updates is not None
        else LazyStack(builder, result.type, dim, [item for _, item in sorted(yielded[output.name].items())])
        for output, result in zip(region.outputs, eqn.results, strict=True)
    ]


def _if_it_runs(
    builder: Builder, eqn: Equation, before: Mapping[Value, LazyValue], after: Mapping[str, LazyValue]
) -> dict[str, LazyValue]:
    """Return the outputs of an iteration of a loop with `while`. If it does not run, carries stay and other outputs are 0."""
    region = region_of(eqn)
    going = {argument.value.name: argument.value for argument in carried(region)}
    runs, chosen_outputs = before[region.arguments[0].value], dict[str, LazyValue]()
    for output in region.outputs:
        type = output.value.type
        if output.updates is not None:
            otherwise = before[going[output.updates]]
        else:
            value = False if type.dtype == "bool" else 0
            attributes: dict[str, Attr] = {"dims": type.dims, "value": value, "dtype": type.dtype}
            zeros = Equation("full", (), (Value("zeros", type),), attributes, span=eqn.span, stage=eqn.stage)
            otherwise = LazyResult(LazyEquation(builder, zeros, ()), 0)
        operands = (runs, after[output.name], otherwise)
        names, result = tuple(Value("x", each.type) for each in operands), Value(output.value.name, type)
        chosen = Equation("where", names, (result,), span=eqn.span, stage=eqn.stage)
        chosen_outputs[output.name] = LazyResult(LazyEquation(builder, chosen, operands), 0)
    return chosen_outputs


def _indexed(path: str | None, at: tuple[int, ...]) -> str | None:
    """Append loop indices to a path: `h` and (3,) give `h[3]`."""
    return path and path + "".join(f"[{index}]" for index in at)
