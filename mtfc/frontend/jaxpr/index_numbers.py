"""The axes of gathers and scatters: JAX's dimension numbers of both, under the same names."""

from __future__ import annotations

import attrs

from mtfc.frontend.jaxpr.flat import AppliedPrimitive, Operand

Axes = tuple[int, ...]


@attrs.frozen
class IndexNumbers:
    """The dimension numbers of a gather or scatter. Its data are the result of the gather, or the updates of the scatter.

    The fields are those of JAX, in JAX's order. windows: axes of the data that run along axes of the table. gone: axes of the
    table that the data lack. axes: axes of the table that the indices point into. table_batch, ids_batch: the axes of the table
    and of the indices that run along each other.
    """

    windows: Axes
    gone: Axes
    axes: Axes
    table_batch: Axes
    ids_batch: Axes

    @property
    def batch(self) -> dict[int, int]:
        """Axis of the table -> the axis of the indices that runs along it."""
        return dict(zip(self.table_batch, self.ids_batch, strict=True))

    def rows(self, data: Operand) -> list[int]:
        """Return the axes of the data that run along axes of the indices."""
        return [k for k in range(len(data.shape)) if k not in self.windows]

    def window(self, table: Operand) -> list[int]:
        """Return the axes of the table that `windows` run along."""
        return [k for k in range(len(table.shape)) if k not in (*self.gone, *self.table_batch)]


def is_indexing(step: AppliedPrimitive) -> bool:
    """Return True for a gather or scatter whose arrays have no random keys."""
    is_named = step.primitive == "gather" or step.primitive.startswith("scatter")
    return is_named and "dimension_numbers" in step.params and not step.has_keys


def index_numbers(step: AppliedPrimitive) -> IndexNumbers:
    """Return the dimension numbers of a gather or scatter."""
    return IndexNumbers(*step.params["dimension_numbers"])


def data_of(step: AppliedPrimitive) -> Operand:
    """Return the result of a gather, or the updates of a scatter."""
    return step.results[0] if step.primitive == "gather" else step.operands[2]
