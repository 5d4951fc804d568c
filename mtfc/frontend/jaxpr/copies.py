"""Copies of a layer, such as `layers/0` and `layers/1`: their arrays get the same dimensions.

A layout then treats all copies alike, and a search has the dimensions of one layer. Copies are arguments whose places differ in
one number, and that have arrays of the same shapes. Copies with two arrays of several axes are merged before arrays are linked.
Copies with one matrix are merged afterwards, if no array has a dimension of one copy and that of another: layers that add to
their input are copies. The layers of a plain perceptron are none, because the output dimension of one is the input dimension of
the next.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from mtfc.frontend.jaxpr.factors import may_unite, unite
from mtfc.frontend.jaxpr.flat import Flat, Var

NUMBER = re.compile(r"^(.*?)(\d+)$")


def merge_copies(flat: Flat) -> None:
    """Unite the axes of arrays at the same place in copies of at least two arrays of several axes."""
    for first, *others in _copies(flat):
        if _matrices(first) > 1:
            _unite(first, others)


def merge_linked_copies(flat: Flat) -> None:
    """Unite the axes of arrays at the same place in copies of one array of several axes, after arrays are linked."""
    for first, *others in _copies(flat):
        if _matrices(first) == 1 and all(_may_unite(first, other) for other in others):
            _unite(first, others)


Copy = dict[tuple[str, ...], Var]
"""A copy: place after its number -> array."""


def _copies(flat: Flat) -> Iterator[list[Copy]]:
    """Yield the copies of each layer."""
    for copies in _groups(flat).values():
        shapes = {
            tuple((place, var.shape) for place, var in sorted(copy.items())) for copy in copies.values()
        }
        if len(shapes) == 1:
            yield [*copies.values()]


def _matrices(copy: Copy) -> int:
    return sum(len(var.shape) > 1 for var in copy.values())


def _may_unite(first: Copy, other: Copy) -> bool:
    return all(
        may_unite(a, b)
        for place, var in first.items()
        for a, b in zip(var.axes, other[place].axes, strict=True)
    )


def _unite(first: Copy, others: list[Copy]) -> None:
    for other in others:
        for place, var in first.items():
            for a, b in zip(var.axes, other[place].axes, strict=True):
                unite(a, b)


def _groups(flat: Flat) -> dict[tuple[str | bool, ...], dict[str, Copy]]:
    """Return places before a number, and whether a place follows it -> number -> copy."""
    from jax.tree_util import keystr

    found: dict[tuple[str | bool, ...], dict[str, Copy]] = defaultdict(lambda: defaultdict(dict))
    for path, var in zip(flat.inputs, flat.body.arguments, strict=False):
        parts = (*(keystr((key,), simple=True) for key in path[:2]), *flat.parts(path))
        for i, part in enumerate(parts):
            match = NUMBER.match(part)
            if match and i > 1:
                after = parts[i + 1 :]
                found[(*parts[:i], match[1], bool(after))][match[2]][after] = var
    return found
