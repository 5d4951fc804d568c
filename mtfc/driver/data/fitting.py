"""Check that the arrays of a file fit the types of a program, and convert them."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

import attrs

from mtfc.compiler.diagnostics import Diagnostics, Span, nearest
from mtfc.compiler.ir.ops.elementwise import numpy_dtype
from mtfc.compiler.ir.types import FLOATS, TensorType
from mtfc.driver.data.array_files import Array, StoredArray, stored_arrays, whole
from mtfc.reports.table import listed


@attrs.frozen
class LazyArrays(Mapping[str, Array]):
    """Arrays that are read from a file each time they are asked for, so that they are not in memory together."""

    readers: Mapping[str, Callable[[], Array]] = attrs.field(factory=dict)

    def __getitem__(self, name: str) -> Array:
        return self.readers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self.readers)

    def __len__(self) -> int:
        return len(self.readers)


def shape_text(type: TensorType) -> str:
    """Return `f32[batch: 64, io: 128]`."""
    return f"{type.dtype}[{', '.join(f'{dim.name}: {dim.size}' for dim in type.dims)}]"


class Fitting:
    """The arrays of one file, and diagnostics about arrays that do not fit their types."""

    def __init__(self, path: str, arrays: Mapping[str, StoredArray] | None = None) -> None:
        """Check `arrays`, or those that the file at `path` holds. Raises `CompileError` (E501)."""
        self.path = path
        self.arrays = stored_arrays(path) if arrays is None else arrays
        self.diagnostics = Diagnostics()

    def error(self, code: str, message: str, span: Span | None = None, help: str | None = None) -> None:
        self.diagnostics.add(code, message, span or whole(self.path), help=help)

    def missing(
        self,
        what: str,
        name: str,
        span: Span | None,
        taken: Container[str] = (),
        otherwise: str | None = None,
    ) -> None:
        """Report a missing array. The help suggests a similar name that is not `taken`, or else `otherwise`."""
        near = nearest(name, [each for each in self.arrays if each not in taken])
        help = f"did you mean its array `{near}`?" if near else otherwise or f"it has {listed(self.arrays)}"
        self.error("E502", f"{self.path} has no array for {what} `{name}`", span, help)

    def misshaped(
        self, what: str, name: str, type: TensorType, span: Span | None, help: str | None = None
    ) -> None:
        shape = list(self.arrays[name].shape)
        self.error(
            "E503",
            f"{what} `{name}` is {shape_text(type)}, and its array in {self.path} has shape {shape}",
            span,
            help,
        )

    def accepts(self, what: str, name: str, type: TensorType, span: Span | None) -> bool:
        """Report (E504) numbers of another kind than the type's; return True if there is nothing to report."""
        dtype = self.arrays[name].dtype
        accepted = "fiu" if type.dtype in FLOATS else "b" if type.dtype == "bool" else "iu"
        if kind_of(dtype) in accepted:
            return True
        self.error("E504", f"{what} `{name}` is {type.dtype}, and its array in {self.path} is {dtype}", span)
        return False

    def converted(self, what: str, name: str, type: TensorType, span: Span | None) -> Array:
        """Read an array in the type's dtype; report (E504) numbers of another kind, and integers that are too large."""
        import numpy as np

        array = self.arrays[name].read()
        if not self.accepts(what, name, type, span):
            return array
        if type.dtype in ("i32", "u32") and _exceeds(array, np.iinfo(numpy_dtype(np, type.dtype))):
            self.error(
                "E504",
                f"{what} `{name}` is {type.dtype}, and its array in {self.path} has larger numbers",
                span,
            )
        return as_type(array, type)


def kind_of(dtype: str) -> str:
    """Return `f`, `i`, `u` or `b` for floats, integers, integers without sign and truth values, else `?`."""
    kinds = {"float": "f", "bfloat": "f", "int": "i", "uint": "u", "bool": "b"}
    return kinds.get(re.split(r"\d", dtype)[0], "?")


def as_type(array: Array, type: TensorType) -> Array:
    """Return numbers of a fitting kind in the dtype of a type."""
    import numpy as np

    with np.errstate(over="ignore"):
        return array.astype(numpy_dtype(np, type.dtype), copy=False)


def _exceeds(array: Array, limits: Any) -> bool:
    return bool(array.size and (array.min() < limits.min or array.max() > limits.max))
