"""Loops: the one equation with a region.

    %h_2: f32[batch, io], %hs: f32[layers, batch, io] = loop %h, %x, %w dim=layers reverse=false checkpoint=false region layers {
      carried %h: f32[batch, io]
      invariant %x: f32[batch, io]
      sliced %w: f32[io]
      ...
      output h = %h_2 updates h
      output hs = %h_2
    }

The region is executed once for each index of `dim`, from the last one down where `reverse` holds. Its arguments belong to the
operands one to one and stand in the order of their roles: what is *carried* starts as the operand and is replaced by the output
that updates it; what is *invariant* stays; of what is *sliced* each iteration sees one slice along `dim`. Results belong to the
region's outputs one to one: first the last values of what is carried, then what is yielded, stacked along `dim` in front.

A region sees nothing but its arguments, so that a pass treats it as it treats a function. `checkpoint` asks `differentiate` to
keep only what is carried for the backward pass, and to compute the rest again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs

from mtfc.compiler.ir.builder import Names
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Value, walk
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.types import Dim, TensorType

LOOP = "loop"
MICRO_BATCHES = "micro_batches"
"""The name of the region that runs once for each micro-batch."""

ROLES = ("carried", "invariant", "sliced")


def dim_of(eqn: Equation) -> Dim:
    """The dimension that a loop runs along; its size is the number of iterations."""
    dim = eqn.attrs["dim"]
    assert isinstance(dim, Dim)
    return dim


def looped_dims(function: Function) -> frozenset[Dim]:
    """Dimensions that loops run along, at any depth."""
    return frozenset(dim_of(eqn) for eqn in walk(function.body) if eqn.regions)


def region_of(eqn: Equation) -> Function:
    (region,) = eqn.regions
    return region


def is_over_micro_batches(eqn: Equation) -> bool:
    """True if an equation is the loop over micro-batches: any other loop names its region after its dimension."""
    return bool(eqn.regions) and region_of(eqn).name == MICRO_BATCHES != dim_of(eqn).name


def is_loop(function: Function) -> bool:
    """Whether it is the body of one."""
    return any(argument.role in ROLES for argument in function.arguments)


def carried(region: Function) -> tuple[Argument, ...]:
    return tuple(argument for argument in region.arguments if argument.role == "carried")


def sliced_type(type: TensorType, dim: Dim) -> TensorType:
    """The type of one slice along `dim`."""
    kept = [i for i, each in enumerate(type.dims) if each != dim]
    dims, splits = tuple(type.dims[i] for i in kept), tuple(type.splits[i] for i in kept)
    return TensorType(type.dtype, dims, splits, type.pending, type.reduction)


def stacked_type(type: TensorType, dim: Dim) -> TensorType:
    """The type of values of one type stacked along a new first dimension."""
    return TensorType(type.dtype, (dim, *type.dims), ((), *type.splits), type.pending, type.reduction)


def result_type(output: Output, dim: Dim) -> TensorType:
    return output.value.type if output.updates is not None else stacked_type(output.value.type, dim)


def make_loop(
    names: Names, region: Function, operands: Sequence[Value], like: Equation, results: Sequence[Value] = ()
) -> Equation:
    """A loop over `region` with the attributes, span and stage of `like`; `results` are those that exist already."""
    dim = dim_of(like)
    new = [Value(names.fresh(o.name), result_type(o, dim)) for o in region.outputs[len(results) :]]
    return attrs.evolve(like, operands=tuple(operands), results=(*results, *new), regions=(region,))


def within(eqn: Equation, change: Callable[[Function], Function]) -> Equation:
    """The equation with its regions changed, in ways that keep arguments and outputs what they are."""
    if not eqn.regions:
        return eqn
    return attrs.evolve(eqn, regions=tuple(change(region) for region in eqn.regions))


def pairs(eqn: Equation) -> Iterator[tuple[Value, Argument]]:
    """Each operand with the region's argument that it is for."""
    return zip(eqn.operands, region_of(eqn).arguments, strict=True)


def loop_error(eqn: Equation, fitting: bool = True) -> str | None:
    """Return the error of a loop, leaving its region's inside aside, or None.

    Unless `fitting`, only the global types of operands and arguments, and of outputs and results, must agree.
    """
    if eqn.op != LOOP or len(eqn.regions) != 1 or not isinstance(eqn.attrs.get("dim"), Dim):
        return f"op {eqn.op} with {len(eqn.regions)} regions: a loop has one, and a dimension"
    region = region_of(eqn)
    if len(eqn.operands) != len(region.arguments) or len(eqn.results) != len(region.outputs):
        return "operands and results of a loop belong to its region's arguments and outputs one to one"
    order = [ROLES.index(a.role) if a.role in ROLES else -1 for a in region.arguments]
    if order != sorted(order) or -1 in order:
        return "a loop's arguments are carried, then invariant, then sliced"
    if [o.updates for o in region.outputs if o.updates is not None] != [
        a.value.name for a in carried(region)
    ]:
        return "the first outputs of a loop update what it carries, in order"
    return _types_error(eqn, region, (lambda type: type) if fitting else TensorType.unsplit)


def _types_error(eqn: Equation, region: Function, shown: Callable[[TensorType], TensorType]) -> str | None:
    dim = dim_of(eqn)
    for value, argument in pairs(eqn):
        operand, type = shown(value.type), shown(argument.value.type)
        if argument.role == "sliced" and (dim not in operand.dims or operand.axes_of(dim.name)):
            return f"{value} is sliced along {dim.name}, which it must have whole"
        wanted = sliced_type(operand, dim) if argument.role == "sliced" else operand
        if type != wanted:
            return f"{argument.role} {argument.value} is {type}, and its operand gives {wanted}"
    number = len(carried(region))
    for i, (result, output) in enumerate(zip(eqn.results, region.outputs, strict=True)):
        if (output.updates is not None) != (i < number):
            return "a loop's carried outputs come first"
        found, given = shown(result.type), shown(result_type(output, dim))
        if found != given:
            return f"{result} is {found}, and output {output.name} gives {given}"
    return None


def maker(eqn: Equation, result: Value) -> Equation:
    """The equation whose line answers for a result: for a loop's that in its region which makes it, or each term of a sum."""
    if not eqn.regions:
        return eqn
    region = region_of(eqn)
    makers = {value: each for each in region.body for value in each.results}
    going = {argument.value for argument in carried(region)}
    value = region.outputs[eqn.results.index(result)].value
    while value in makers and has_trait(makers[value], "add"):
        terms = [term for term in makers[value].operands if term not in going]
        if len(terms) != 1:
            break
        (value,) = terms
    return maker(makers[value], value) if value in makers else eqn
