"""Names for everything that a layout can place: every equation, argument, and what loops take and yield.

A `value` rule refers to a value of the user's by its path. A search chooses a layout for each equation of the step, those of the
backward pass and the updates too, which no line of the file names. They get names that follow from the program alone:

    parameter.layers.w                       an argument of a function, by its role
    forward.layers.h                         the equation that makes the user's `layers.h`
    backward.layers.einsum, ...einsum_2      those without a path, by loop and op
    forward.layers.carried.x                 what a loop carries, or takes whole (`invariant`), or yields (`yielded`)

Where several would have one name, or it is the user's, the second in order of the program is `_2`. The names are those of the
program as `assign-layouts` finds it: the same for every layout that splits nothing otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from mtfc.compiler.ir.builder import Names
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, walk
from mtfc.compiler.ir.loops import dim_of, region_of

LayoutTarget = Equation | Argument | Output

WORDS = frozenset({"and", "or", "not"})
"""Ops whose names are operators of the language."""


def layout_target_names(function: Function) -> Mapping[LayoutTarget, str]:
    """The name of each thing in a function that has a layout of its own."""
    names = Names(eqn.path for eqn in walk(function.body) if eqn.path)
    arguments = ((argument, f"{argument.role}.{argument.value.name}") for argument in function.arguments)
    return {each: names.fresh(wanted) for each, wanted in chain(arguments, _wanted(function, ()))}


Place = tuple[tuple[int, ...], str]
"""Where a thing stands in any stage of a function: the loops around it, each by its number among those beside it, and the name of
its value. Passes keep both.
"""

YIELDED = -1
"""Stands for one more loop around what a loop yields, whose names are not those of values."""


def names_by_place(function: Function) -> Mapping[Place, str]:
    """The same names for a function that later passes have changed: results of an equation and arguments by loops and value."""
    names = layout_target_names(function)
    return {place: names[thing] for thing, place in _places(function, ()) if thing in names}


def _places(function: Function, loops: tuple[int, ...]) -> Iterator[tuple[LayoutTarget, Place]]:
    yield from ((argument, (loops, argument.value.name)) for argument in function.arguments)
    yield from ((eqn, (loops, value.name)) for eqn in function.body for value in eqn.results)
    for eqn, number in numbered(function).items():
        yield from _places(region_of(eqn), (*loops, number))
        yield from ((each, ((*loops, number, YIELDED), each.name)) for each in region_of(eqn).outputs)


def numbered(function: Function) -> dict[Equation, int]:
    """The loops of a body."""
    return {eqn: number for number, eqn in enumerate(eqn for eqn in function.body if eqn.regions)}


def _wanted(function: Function, loops: tuple[str, ...]) -> Iterator[tuple[LayoutTarget, str]]:
    for eqn in function.body:
        if eqn.regions:
            yield from _of_loop(eqn, (*loops, dim_of(eqn).name))
        else:
            op = f"{eqn.op}_op" if eqn.op in WORDS else eqn.op
            yield eqn, ".".join((eqn.stage, eqn.path or ".".join((*loops, op))))


def _of_loop(eqn: Equation, loops: tuple[str, ...]) -> Iterator[tuple[LayoutTarget, str]]:
    """A slice stays as the whole is placed, and what is carried leaves as it enters: they have no names."""
    region = region_of(eqn)
    for argument in region.arguments:
        if argument.role != "sliced":
            yield argument, ".".join((eqn.stage, *loops, argument.role, argument.value.name))
    yield from _wanted(region, loops)
    for output in region.outputs:
        if output.updates is None:
            yield output, ".".join((eqn.stage, *loops, "yielded", output.name))
