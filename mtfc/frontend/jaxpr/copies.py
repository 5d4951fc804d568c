"""Copies of a layer, such as `layers/0` and `layers/1`: their arrays get the same dimensions.

A layout then treats all copies alike, and a search has the dimensions of one layer. Copies are arguments whose places differ in
one number, and that have arrays of the same shapes. Each copy has at least two arrays of several axes: the layers of a plain
perceptron are no copies, because the output dimension of one is the input dimension of the next.
"""

from __future__ import annotations

import re
from collections import defaultdict

from mtfc.frontend.jaxpr.factors import unite
from mtfc.frontend.jaxpr.flat import Flat, Var

NUMBER = re.compile(r"^(.*?)(\d+)$")


def merge_copies(flat: Flat) -> None:
    """Unite the axes of arrays at the same place in copies."""
    for copies in _groups(flat).values():
        shapes = {
            tuple((place, var.shape) for place, var in sorted(copy.items())) for copy in copies.values()
        }
        first, *others = copies.values()
        if len(shapes) != 1 or sum(len(var.shape) > 1 for var in first.values()) < 2:
            continue
        for other in others:
            for place, var in first.items():
                for a, b in zip(var.axes, other[place].axes, strict=True):
                    unite(a, b)


def _groups(flat: Flat) -> dict[tuple[str, ...], dict[str, dict[tuple[str, ...], Var]]]:
    """Return places before a number -> number -> place after the number -> array."""
    from jax.tree_util import keystr

    found: dict[tuple[str, ...], dict[str, dict[tuple[str, ...], Var]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for path, var in zip(flat.inputs, flat.body.arguments, strict=False):
        parts = (*(keystr((key,), simple=True) for key in path[:2]), *flat.parts(path))
        for i, part in enumerate(parts):
            match = NUMBER.match(part)
            if match and 1 < i < len(parts) - 1:
                found[(*parts[:i], match[1])][match[2]][parts[i + 1 :]] = var
    return found
