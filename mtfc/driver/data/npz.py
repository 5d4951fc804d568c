"""Arrays in NPZ files, and the check that they fit a program's types.

Arrays of Python objects are refused, so reading a file executes no code of the file.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Mapping
from io import BytesIO
from pathlib import Path
from typing import IO, Any
from zipfile import is_zipfile

from mtfc.compiler.diagnostics import CompileError, Diagnostic, Diagnostics, Span, nearest
from mtfc.compiler.ir.ops.elementwise import numpy_dtype
from mtfc.compiler.ir.types import FLOATS, TensorType
from mtfc.driver.data.files import OUTPUTS, write_atomically
from mtfc.reports.table import listed

Array = Any
Arrays = Mapping[str, Array]


def read_npz(path: str) -> dict[str, Array]:
    """Return the arrays of an NPZ file by name. Raises `CompileError` (E501)."""
    try:
        with Path(path).open("rb") as file:
            return _arrays(file)
    except (OSError, ValueError) as error:
        reason = error.strerror.lower() if isinstance(error, OSError) and error.strerror else str(error)
    raise CompileError([Diagnostic("E501", f"cannot read arrays: {reason}", whole(path))])


def _arrays(file: IO[bytes]) -> dict[str, Array]:
    """Return the arrays. Raises `ValueError` with the fault of the file."""
    import numpy as np

    if not is_zipfile(file):
        file.seek(0)
        single = file.read(6) == b"\x93NUMPY"
        raise ValueError(
            "it holds one array without a name; write it with numpy.savez" if single else "it is no NPZ file"
        )
    file.seek(0)
    try:
        with np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except MemoryError:
        raise
    except (
        Exception
    ) as error:  # a damaged file fails in many ways: in zip, zlib, struct, or NumPy's own header
        reason = "it holds Python objects" if "allow_pickle" in str(error) else "it is damaged"
        raise ValueError(reason) from None


def write_npz(path: str, arrays: Arrays) -> None:
    """Write arrays under their names to a file or to standard output. The format lacks bf16: such arrays are written as f32."""
    import numpy as np

    plain = {name: storable(array) for name, array in arrays.items()}
    if path in OUTPUTS:
        np.savez(written := BytesIO(), **plain)
        sys.stdout.buffer.write(written.getvalue())
        return
    write_atomically(path, lambda file: np.savez(file, **plain))


def storable(array: Array) -> Array:
    """Return the array in a dtype that the format has."""
    import numpy as np

    array = np.asarray(array)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def whole(path: str) -> Span:
    """Return the place of a fault of a whole file."""
    return Span(path, 1, 1, 1, 1)


def shape_text(type: TensorType) -> str:
    """Return `f32[batch: 64, io: 128]`."""
    return f"{type.dtype}[{', '.join(f'{dim.name}: {dim.size}' for dim in type.dims)}]"


class Fitting:
    """The arrays of one file, and diagnostics about arrays that do not fit their types."""

    def __init__(self, path: str, arrays: Arrays | None = None) -> None:
        """Check `arrays`, or those that the NPZ file at `path` holds. Raises `CompileError` (E501)."""
        self.path = path
        self.arrays = read_npz(path) if arrays is None else arrays
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

    def converted(self, what: str, name: str, type: TensorType, span: Span | None) -> Array:
        """Return the array in the type's dtype; report (E504) numbers of another kind, and integers that are too large."""
        import numpy as np

        array, dtype = self.arrays[name], numpy_dtype(np, type.dtype)
        if not self.check_kind(what, name, type, span):
            return array
        if type.dtype in ("i32", "u32") and _exceeds(array, np.iinfo(dtype)):
            self.error(
                "E504",
                f"{what} `{name}` is {type.dtype}, and its array in {self.path} has larger numbers",
                span,
            )
            return array
        with np.errstate(over="ignore"):
            return array.astype(dtype)

    def check_kind(self, what: str, name: str, type: TensorType, span: Span | None) -> bool:
        """Return True if the array has numbers of the type's kind; report (E504) another kind."""
        array = self.arrays[name]
        accepted = "fiu" if type.dtype in FLOATS else "b" if type.dtype == "bool" else "iu"
        if array.dtype.kind not in accepted:
            self.error(
                "E504",
                f"{what} `{name}` is {type.dtype}, and its array in {self.path} is {array.dtype}",
                span,
            )
        return array.dtype.kind in accepted


def _exceeds(array: Array, limits: Any) -> bool:
    return bool(array.size and (array.min() < limits.min or array.max() > limits.max))
