"""The inputs of a model as data must give them: names, shapes, and the numbers that they accept."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from mtfc.compiler.diagnostics import CompileError, Diagnostic, Span
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.ops.elementwise import numpy_dtype
from mtfc.compiler.ir.types import FLOATS, TensorType
from mtfc.driver.data.array_files import Array, whole
from mtfc.driver.data.inputs import index_bound, inputs_of


@attrs.frozen
class DataInput:
    """An input of the model. bound: the size of the smallest dimension that its numbers are indices into, if there is one."""

    name: str
    type: TensorType
    span: Span | None
    bound: int | None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in the global batch."""
        return tuple(dim.size for dim in self.type.dims)

    @property
    def rows(self) -> int:
        """Number of rows in the global batch; 1 for a scalar."""
        return self.shape[0] if self.shape else 1

    def converted(self, array: Array, place: Callable[[int], str]) -> Array:
        """Return an array in the dtype of the input. Raises `CompileError` (E504) for integers that the input cannot take.

        place: names the row with a given position in the array, for the message.
        """
        import numpy as np

        if self.type.dtype not in FLOATS and array.dtype.kind in "iu" and array.size:
            self._check_range(array, place)
        with np.errstate(over="ignore"):
            return np.asarray(array, numpy_dtype(np, self.type.dtype), order="C")

    def _check_range(self, array: Array, place: Callable[[int], str]) -> None:
        """Raise `CompileError` if an integer is out of range. Dtypes whose integers are all in range cost nothing."""
        import numpy as np

        limits, held = np.iinfo(numpy_dtype(np, self.type.dtype)), np.iinfo(array.dtype)
        least, most = (limits.min, limits.max) if self.bound is None else (0, self.bound - 1)
        if (held.min >= least or array.min() >= least) and (held.max <= most or array.max() <= most):
            return
        outside = (array < least) | (array > most)
        row = int(np.argwhere(outside)[0][0]) if array.ndim else 0
        takes = f"takes numbers from {least} to {most}"
        found = f"{place(row)} has {array[outside].flat[0]}"
        raise CompileError(
            [Diagnostic("E504", f"input `{self.name}` {takes}, and {found}", self.span or whole(self.name))]
        )


def data_inputs(program: Program) -> tuple[DataInput, ...]:
    """Return the inputs of the undistributed model, in the order of the file."""
    forward = program.function("forward")
    return tuple(
        DataInput(
            each.value.name,
            each.value.type.unsplit(),
            each.span,
            index_bound(each.value.name, forward.body),
        )
        for each in inputs_of(forward)
    )
