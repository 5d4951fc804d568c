"""The kinds of expressions, and the weight with which each is drawn."""

from collections.abc import Callable
from typing import Any

import attrs
from hypothesis import strategies as st

from tests.generators import contractions, elementwise, functions, indexing, structure, windows
from tests.generators.scope import MAX_ELEMENTS, Draw, Scope
from tests.generators.terms import Term, tame

Feature = Callable[[Draw[Any], Scope], Term]
Table = tuple[tuple[int, Feature], ...]

# Each family lists ops that jump last, so that the other features have the same numbers with and without them.
SMOOTH: Table = (
    (3, elementwise.linear),
    (3, elementwise.smooth),
    (5, elementwise.arithmetic),
    (2, elementwise.square),
    (1, elementwise.quotient),
    (1, elementwise.power),
    (10, contractions.einsum),
    (2, contractions.outer_product_summed_away),
    (5, contractions.sums_combined),
    (5, contractions.total),
    (1, contractions.product),
    (1, structure.broadcast),
    (1, structure.transpose),
    (3, structure.rename),
    (4, structure.reduced_and_renamed),
    (2, structure.rename_there_and_back),
    (3, structure.reshape),
    (2, structure.cut),
    (2, structure.pad),
    (3, structure.concat),
    (2, structure.shift),
    (2, structure.creation),
    (2, windows.window),
    (4, windows.convolution),
    (2, windows.average_pooling),
    (2, windows.strided),
    (2, indexing.gather),
    (2, indexing.cumsum),
    (1, indexing.drawn),
    (4, functions.call),
    (1, elementwise.conversion),
    (1, elementwise.by_training),
)
KINKED: Table = (
    (6, elementwise.kinked),
    (5, elementwise.extremum),
    (2, elementwise.comparison),
    (2, elementwise.logical),
    (4, elementwise.choice),
    (4, contractions.extreme),
    (2, contractions.quantifier),
    (2, contractions.argmax),
    (2, windows.extreme_pooling),
    (2, indexing.top_k),
)

# Mostly sums, and ops on sums: programs in which many sums are pending at once.
SUMS: Table = (
    (8, contractions.sums_combined),
    (5, elementwise.arithmetic),
    (4, contractions.total),
    (4, contractions.einsum),
    (3, elementwise.linear),
    (3, structure.reduced_and_renamed),
    (1, elementwise.quotient),
    (1, elementwise.smooth),
    (1, structure.pad),
    (1, structure.concat),
    (1, structure.broadcast),
    (2, functions.call),
)
SUMS_KINKED: Table = (
    (2, elementwise.kinked),
    (2, elementwise.extremum),
    (2, elementwise.choice),
)

SPATIAL: Table = (
    (3, elementwise.arithmetic),
    (3, contractions.total),
    (2, structure.shift),
    (3, windows.window),
    (4, windows.convolution),
    (2, windows.average_pooling),
    (1, windows.strided),
    (1, structure.pad),
    (1, structure.cut),
    (1, structure.concat),
)

# Features for tensors with dims that have no names, those of `...`.
REST: Table = (
    (3, elementwise.linear),
    (3, elementwise.smooth),
    (5, elementwise.arithmetic),
    (2, elementwise.square),
    (1, elementwise.quotient),
    (1, elementwise.power),
    (6, contractions.einsum),
    (4, contractions.total),
    (2, structure.broadcast),
    (2, structure.transpose),
)
REST_KINKED: Table = (
    (6, elementwise.kinked),
    (5, elementwise.extremum),
    (4, elementwise.choice),
    (4, contractions.extreme),
)


def _repeated(table: Table) -> list[Feature]:
    return [feature for weight, feature in table for _ in range(weight)]


def _family(smooth: Table, kinked: Table) -> dict[bool, list[Feature]]:
    return {False: _repeated(smooth), True: _repeated(smooth + kinked)}


FAMILIES = (_family(SMOOTH, KINKED), _family(SUMS, SUMS_KINKED))
"""Return the features for a kind of program, with or without ops that jump."""
SPATIAL_FAMILY, REST_FAMILY = _family(SPATIAL, ()), _family(REST, REST_KINKED)


def _features(scope: Scope) -> list[Feature]:
    if scope.has_rest:
        return REST_FAMILY[scope.kinks]
    family = SPATIAL_FAMILY if scope.options.spatial else FAMILIES[scope.family]
    return family[scope.kinks]


@st.composite
def expression(draw: Any, scope: Scope) -> Term:
    """Draw one expression of any kind. Dims of a result that is too large are summed away."""
    feature = draw(st.sampled_from(_features(scope)))
    term = scope.seen(feature(draw, scope))
    if term.size <= MAX_ELEMENTS or term.dtype == "bool":
        return term
    small = attrs.evolve(term, text=f"sum({term.text})", dims=(), bound=term.bound * term.size)
    return scope.seen(tame(small, 64.0))
