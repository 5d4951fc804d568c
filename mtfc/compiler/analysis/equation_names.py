"""Names of layout targets: every equation, argument, loop argument and loop output that has a layout of its own.

A `value` rule in a file names a value by its path. A search also chooses layouts for equations that no line of the file names,
such as those of the backward pass. These equations get names that follow from the program alone:

    parameter.layers.w                       an argument of a function, by its role
    forward.layers.h                         the equation that makes the user's `layers.h`
    backward.layers.einsum, ...einsum_2      equations without a path, by loop and op
    forward.layers.carried.x                 a loop's carry, `invariant` argument, or `yielded` output

If a name is taken, the next target in program order gets the suffix `_2`. The names belong to the program as `assign-layouts`
finds it. They do not depend on the layout, unless `partition-spatial` has rewritten equations.
"""

from collections.abc import Iterator, Mapping
from itertools import chain

from mtfc.compiler.ir.builder import Names
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, walk
from mtfc.compiler.ir.loops import dim_of, region_of

LayoutTarget = Equation | Argument | Output

WORDS = frozenset({"and", "or", "not"})
"""Ops whose names are operators of the language."""


def layout_target_names(function: Function) -> Mapping[LayoutTarget, str]:
    """Return the name of each layout target in a function."""
    names = Names(eqn.path for eqn in walk(function.body) if eqn.path)
    arguments = ((argument, f"{argument.role}.{argument.value.name}") for argument in function.arguments)
    return {each: names.fresh(wanted) for each, wanted in chain(arguments, _wanted(function, ()))}


Place = tuple[tuple[int, ...], str]
"""Identifies a layout target in every stage of a function: the numbers of the loops around it, and the name of its value.

Passes keep both.
"""

YIELDED = -1
"""Marks the outputs of a loop in a place, where it stands for one more loop: their names are not names of values."""


def names_by_place(function: Function) -> Mapping[Place, str]:
    """Return the names of layout targets by place, for looking them up in a later stage of the function."""
    names = layout_target_names(function)
    return {place: names[thing] for thing, place in _places(function, ()) if thing in names}


def _places(function: Function, loops: tuple[int, ...]) -> Iterator[tuple[LayoutTarget, Place]]:
    """Yield each target of a layout with a key of its place, which passes keep."""
    yield from ((argument, (loops, argument.value.name)) for argument in function.arguments)
    yield from ((eqn, (loops, value.name)) for eqn in function.body for value in eqn.results)
    for eqn, number in numbered(function).items():
        yield from _places(region_of(eqn), (*loops, number))
        yield from ((each, ((*loops, number, YIELDED), each.name)) for each in region_of(eqn).outputs)


def numbered(function: Function) -> dict[Equation, int]:
    """Return the number of each loop in a body."""
    return {eqn: number for number, eqn in enumerate(eqn for eqn in function.body if eqn.regions)}


def _wanted(function: Function, loops: tuple[str, ...]) -> Iterator[tuple[LayoutTarget, str]]:
    """Yield each target with the full name that it would have if the name were free."""
    for eqn in function.body:
        if eqn.regions:
            yield from _of_loop(eqn, (*loops, dim_of(eqn).name))
        else:
            op = f"{eqn.op}_op" if eqn.op in WORDS else eqn.op
            yield eqn, ".".join((eqn.stage, eqn.path or ".".join((*loops, op))))


def _of_loop(eqn: Equation, loops: tuple[str, ...]) -> Iterator[tuple[LayoutTarget, str]]:
    """Yield the wanted names inside a loop. Slices and updated carries have no names: their layouts follow from others."""
    region = region_of(eqn)
    for argument in region.arguments:
        if argument.role != "sliced":
            yield argument, ".".join((eqn.stage, *loops, argument.role, argument.value.name))
    yield from _wanted(region, loops)
    for output in region.outputs:
        if output.updates is None:
            yield output, ".".join((eqn.stage, *loops, "yielded", output.name))
