"""Write out the loop over micro-batches, so that a mesh can compute one micro-batch while another mesh computes the next."""

from collections.abc import Mapping

import attrs

from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.builder import Builder, Names, Substitution, fresh_copy, names_of
from mtfc.compiler.ir.core import Equation, Function, Program, Value
from mtfc.compiler.ir.loops import dim_of, is_over_micro_batches, pairs, region_of
from mtfc.compiler.ir.types import Dim


@attrs.frozen(eq=False)
class WrittenOut:
    """A function without a loop over micro-batches, and the number of the micro-batch of each equation of one.

    slices: the inputs of a micro-batch -> the inputs of the step that they are parts of.
    """

    program: Program
    function: Function
    micro_batches: Mapping[Equation, int]
    slices: Mapping[Value, Value]


def written_out(program: Program, function: Function) -> WrittenOut:
    """Return a function of a program without its loop over micro-batches, if it has one, and the program with all dimensions."""
    if not any(map(is_over_micro_batches, function.body)):
        return WrittenOut(program, function, {}, {})
    one = Dim(Names(program.dims).fresh("one"), 1)
    builder, new, numbers = Builder(names_of(function)), Substitution(), dict[Equation, int]()
    slices = dict[Value, Value]()
    for eqn in function.body:
        if is_over_micro_batches(eqn):
            numbers |= _append(builder, new, new.equation(eqn), one, slices)
        else:
            builder.append(new.equation(eqn))
    wider = attrs.evolve(program, dims={**program.dims, one.name: one})
    return WrittenOut(wider, new.function(function, builder.body), numbers, slices)


def _append(
    builder: Builder, new: Substitution, loop: Equation, one: Dim, slices: dict[Value, Value]
) -> dict[Equation, int]:
    """Append the iterations of a loop, and add to `slices`; return the number of the iteration of each equation.

    new: receives the results. one: a dimension of size 1. slices: slice -> the whole.
    """
    iteration_of = dict[Equation, int]()
    carries: dict[str, Value] = {a.value.name: v for v, a in pairs(loop) if a.role == "carried"}
    for number in range(dim_of(loop).size):
        region = fresh_copy(region_of(loop))
        inside, start = Substitution(), len(builder.body)
        for (operand, _), argument in zip(pairs(loop), region.arguments, strict=True):
            if argument.role == "carried":
                inside[argument.value] = carries[argument.value.name]
            elif argument.role == "invariant":
                inside[argument.value] = operand
            else:
                builder.span = _first_reader(argument.value, region)
                slice_ = _slice(builder, operand, dim_of(loop), number, one)
                inside[argument.value] = slice_
                slices |= dict.fromkeys((slice_, *builder.body[-1].operands), operand)
        for eqn in region.body:
            for value in eqn.results:
                inside[value] = Value(builder.names.fresh(value.name), value.type)
            builder.append(inside.equation(eqn))
        carries = {str(o.updates): inside[o.value] for o in region.outputs}
        iteration_of |= dict.fromkeys(builder.body[start:], number)
    for result, output in zip(loop.results, region_of(loop).outputs, strict=True):
        new[result] = carries[str(output.updates)]
    return iteration_of


def _slice(builder: Builder, stack: Value, dim: Dim, number: int, one: Dim) -> Value:
    """Append the slice of a stack at a position; return it without the dimension."""
    part = builder("slice", stack, name=stack.name, source=dim, target=one, start=number, stride=1)
    dims = tuple(each for each in part.type.dims if each != one)
    return builder("reshape", part, name=stack.name, dims=dims)


def _first_reader(value: Value, region: Function) -> Span | None:
    """Return the place of the first equation that reads an argument."""
    return next((eqn.span for eqn in region.body if value in eqn.operands), None)
