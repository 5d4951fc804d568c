"""What the parts of a step have and need in any legal degrees, from what they do where one dimension alone is split.

For what a part needs along a dimension of a value depends on one dimension's degree at most (`operators/regions.py`). And which
degrees are legal is found out by splitting one dimension at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mtfc.compiler.ir.types import ITEM_BYTES, Dim
from mtfc.compiler.search.placement.operators.operator_graph import Step
from mtfc.compiler.search.placement.operators.operator_parts import Need
from mtfc.compiler.search.placement.operators.regions import Span
from mtfc.compiler.search.placement.parts.block_arrays import Array
from mtfc.compiler.search.placement.parts.size_evaluator import Shape

Degree = tuple[str, int]


def shape_of(step: Step, dims: Sequence[Dim], alone: Mapping[Degree, Need]) -> Shape:
    """Of a step's outputs, inputs and arguments."""
    names, most = [dim.name for dim in dims], max((degree for _, degree in alone), default=1)
    spans = _Spans(names, most)
    tables, axes = [], list[list[int]]()
    values = (*step.outputs, *step.inputs, *step.arguments)
    follows = np.zeros((len(values), len(dims)), np.bool_)
    for i, value in enumerate(values):
        is_output = i < len(step.outputs)
        known = {
            key: need.owned(value) if is_output else need.values.get(value, {}) for key, need in alone.items()
        }
        tables.append(
            [len(axes), len(axes) + len(value.type.dims), value.type.size * ITEM_BYTES[value.type.dtype]]
        )
        for dim in value.type.dims:
            own = {key: region[dim.name] for key, region in known.items() if dim.name in region}
            axes.append([spans.add(dim, own) if own else -1, dim.size])
            follows[i, [names.index(name) for name, _ in own]] = True
    divides = np.array([[name in value.type.names for name in names] for value in values], np.bool_)
    divides = divides.reshape(len(values), len(dims))
    return Shape(rows(tables, 3), follows, divides, rows(axes, 2), *spans.arrays())


class _Spans:
    """Positions along dimensions, by the degree of one dimension of the operator."""

    def __init__(self, names: Sequence[str], most: int) -> None:
        self.names, self.most = names, most
        self.by: list[int] = []
        self.at: list[list[int]] = []
        self.ends: list[int] = []

    def add(self, dim: Dim, spans: Mapping[Degree, Span]) -> int:
        """Its number."""
        at = [0, len(self.ends), *([0] * (self.most - 1))]
        self.ends += [0, dim.size]
        for (_, degree), span in spans.items():
            at[degree] = len(self.ends)
            self.ends += np.stack([span.low, span.high], axis=1).ravel().tolist()
        self.by.append(self.names.index(next(iter(spans))[0]))
        self.at.append(at)
        return len(self.by) - 1

    def arrays(self) -> tuple[Array, Array, Array]:
        return np.array(self.by, np.int64), rows(self.at, self.most + 1), np.array(self.ends, np.int64)


def rows(found: Sequence[Sequence[int]], width: int) -> Array:
    return np.array(found, np.int64).reshape(-1, width)
