"""Terms for costs that hold as lower bounds under every layout of a program.

An undistributed program says how large each amount is in all and which named dimensions it has; a layout splits dimensions over
mesh axes. Under every layout a processor has at least its shard of an amount: the amount over the number of processors along all
axes that split one of its dimensions. An effect states its bound as a term of such shards, and a search evaluates the term for
many layouts together (`search/global_layouts/layout_bound.py`). Where a dimension is not decided yet, shards are taken to be as
small as any choice makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from mtfc.compiler.analysis.dimension_names import SINGLE, DimensionNames, Dims, IsCommon, Pairs
from mtfc.compiler.cost.hardware import Device
from mtfc.compiler.ir.builder import Builder
from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.opdef import BlockRewriter
from mtfc.compiler.ir.types import Axes, Dim
from mtfc.compiler.records import frozen


@frozen(cache_hash=True)
class ShardedAmount:
    """An amount that is split over `dims`, and over each pair of `alike` if both of its dimensions are split alike."""

    amount: float
    dims: Dims = frozenset()
    alike: Pairs = frozenset()


@frozen(cache_hash=True)
class Least:
    """The smallest of one or several terms."""

    terms: tuple[Term, ...]


@frozen(cache_hash=True)
class Most:
    """The largest of one or several terms."""

    terms: tuple[Term, ...]


@frozen(cache_hash=True)
class Total:
    """`times` times the sum of any number of terms."""

    terms: tuple[Term, ...]
    times: float = 1.0


@frozen(cache_hash=True)
class Unless:
    """A term that counts only where no pair of dimensions may be split alike."""

    term: Term
    pairs: Pairs


@frozen(cache_hash=True)
class Unmoved:
    """A term that counts only where an array is surely used as it is stored.

    names: the name of each dimension of the array in storage and at the use. Neither name may have rules that split the dimension
    further than the rules of the other name. beside: dimensions of the equation that uses the array. No axis may be able to split
    two of them, because one of the two would lose the axis.
    """

    term: Term
    names: tuple[tuple[str, str], ...]
    beside: Dims


Term = ShardedAmount | Least | Most | Total | Unless | Unmoved


def divided(term: Term, number: int) -> float:
    """Return the value of a term where each amount that has dimensions is split over all of a number of processors."""
    match term:
        case ShardedAmount(amount, dims, alike):
            return amount / number if dims or alike else amount
        case Least(terms):
            return min(divided(each, number) for each in terms)
        case Most(terms):
            return max(divided(each, number) for each in terms)
        case Total(terms, times):
            return times * sum(divided(each, number) for each in terms)
        case Unless() | Unmoved():
            return 0.0


MakeBlocks = Callable[
    [Builder, Callable[[Equation, Dim], Axes], int, Callable[[Value], Equation | None]], BlockRewriter
]
"""Makes the block dimensions with which the `distribute` rule of an op partitions an equation into a number of shards.

Its arguments: a builder, the axes that split a dimension of an equation, the number of shards, and the equation of a value.
"""


@frozen
class CommonProgram:
    """An undistributed function on a device, and which of its equations all layouts in question have.

    replaced: equations that some layout replaces by others, with the dimensions that are split then; None for dots of several
    operands, which every layout replaces. new_blocks: begins the new dimensions of one function. has_short_routes: True if sums
    are followed on the routes of the fewest stops.
    """

    function: Function
    names: DimensionNames
    device: Device
    is_common: IsCommon
    replaced: Mapping[Equation, Dims | None]
    new_blocks: Callable[[], MakeBlocks]
    has_short_routes: bool = False


@frozen
class WholeArray:
    """An array of `bytes` in all, which may be split over `dims`; `trips` times in a step."""

    bytes: int
    dims: Dims
    trips: int = 1

    @classmethod
    def of(cls, value: Value, names: DimensionNames, trips: int = 1) -> WholeArray:
        return cls(value.type.local_bytes(SINGLE), names.names[value], trips)

    def part(self, share: float) -> WholeArray:
        return attrs.evolve(self, bytes=int(self.bytes * share))
