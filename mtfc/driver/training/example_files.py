"""Examples in files: arrays, tokens, text and records with one example each, alone or as the shards of a directory.

Files of arrays and tokens are memory-mapped, so a read touches only the rows that it asks for. An array of an .npz file is mapped
too, if it is stored without compression, as `numpy.savez` does; `numpy.savez_compressed` makes files that are read whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path

import attrs
import numpy as np

from mtfc.compiler.diagnostics import CompileError, Diagnostic
from mtfc.compiler.ir.types import Dim
from mtfc.driver.data.array_files import (
    Array,
    Arrays,
    StoredArray,
    file_size,
    stored_arrays,
    unreadable,
    whole,
)
from mtfc.driver.data.fitting import Fitting, shape_text
from mtfc.driver.data.tokenizers import Tokenizer
from mtfc.driver.errors import UsageError, say
from mtfc.driver.training.data_interface import DataInput, place_in
from mtfc.driver.training.record_files import ARRAY_RECORD, PARQUET, RECORDS, map_array_records, map_parquet

TOKEN_DTYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
"""The dtypes of token files; their numbers are little-endian."""

NAMED = re.compile(r"\w+=[^,=]+\.npy(,\w+=[^,=]+\.npy)*")
"""`NAME=FILE.npy,...`: a file for each input."""

OPEN_ARRAYS = 256
"""The number of arrays of a directory that are mapped at one time: each holds a file open."""

SHOWN_EXAMPLES, SHOWN_FILES = 32, 8
"""The most numbers of examples of a file, and the most files, that a message shows."""

Open = Callable[[str], Arrays]
"""Maps the arrays of a file, by input. Raises `CompileError`."""


@attrs.frozen(eq=False)
class Examples:
    """The examples of one or several files: one row of each input in `inputs`; `constants` are the same in all batches.

    starts: for each file the number of its first example, and at the end the number of all examples. `dim` is the dimension of
    the model that counts examples.
    """

    name: str
    dim: Dim
    inputs: tuple[DataInput, ...]
    constants: Arrays
    paths: tuple[str, ...]
    starts: Array
    open: Open

    @property
    def count(self) -> int:
        return int(self.starts[-1])

    def read(self, input: DataInput, numbers: Array) -> Array:
        """Return rows of an input by the numbers of their examples. Raises `CompileError` (E504)."""
        if len(self.paths) == 1:
            rows = self.open(self.paths[0])[input.name][numbers]
        else:
            files = np.searchsorted(self.starts, numbers, side="right") - 1
            rows = self._gathered(input, numbers, files)
        return input.converted(rows, lambda row: self._place(int(numbers[row])))

    def _gathered(self, input: DataInput, numbers: Array, files: Array) -> Array:
        """Return rows that are in several files; `files` has the position of each example's file."""
        parts = {file: self.open(self.paths[file])[input.name] for file in np.unique(files)}
        dtype = np.result_type(*(part.dtype for part in parts.values()))
        rows = np.empty((len(numbers), *input.shape[1:]), dtype)
        for file, part in parts.items():
            found = files == file
            rows[found] = part[numbers[found] - self.starts[file]]
        return rows

    def _place(self, number: int) -> str:
        """Return the place of an example, for a message."""
        file, row = place_in(self.starts, number)
        return f"example {row} of {self.paths[file]}"

    def places(self, numbers: Array) -> str:
        """Return the places of several examples, by file, for a message; of many only the first ones."""
        rows: dict[int, list[int]] = {}
        for file, row in (place_in(self.starts, number) for number in numbers.tolist()):
            rows.setdefault(file, []).append(row)
        shown = [
            f"example{'s' * (len(found) > 1)} {_first(found)} of {self.paths[file]}"
            for file, found in sorted(rows.items())
        ]
        return _first(shown, SHOWN_FILES)


def _first(found: Sequence[object], most: int = SHOWN_EXAMPLES) -> str:
    """Return a list as text; of a long one the first elements."""
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(map(str, found[:most])) + more


def open_examples(
    path: str,
    paths: tuple[str, ...],
    dtype: str | None,
    inputs: Sequence[DataInput],
    tokenizer: Tokenizer | None = None,
) -> Examples:
    """Open the files of `path`. Raises `CompileError` (E501 to E504, E506) and `UsageError`.

    dtype: that of token files. tokenizer: makes tokens of text. Every file is looked at; files of arrays are not read whole.
    """
    if tokenizer is not None:
        opening = lru_cache(None)(partial(_read_text, tokenizer=tokenizer, input=_token_input(path, inputs)))
    else:
        opening = lru_cache(max(1, OPEN_ARRAYS // len(inputs)))(_opening(paths[0], dtype, inputs))
    shapes = [_checked_shapes(each, opening(each), inputs) for each in paths]
    dim, members = _columns(path, shapes, inputs)
    counts = [_rows(each, shape, members) for each, shape in zip(paths, shapes, strict=True)]
    first = opening(paths[0])
    constants = {
        each.name: each.converted(np.asarray(first[each.name]), lambda _: f"its array in {paths[0]}")
        for each in inputs
        if each not in members
    }
    return Examples(path, dim, members, constants, paths, np.cumsum([0, *counts]), opening)


def shards(path: str, dtype: str | None, has_tokenizer: bool = False) -> tuple[str, ...]:
    """Return the file, or the files of a directory by name. Raises `UsageError` unless these are of one kind."""
    if not Path(path).is_dir():
        return (path,)
    files = sorted(each for each in Path(path).iterdir() if each.is_file() and not each.name.startswith("."))
    arrays = (".bin", *ARRAY_RECORD) if dtype else (".npz", ".npy", ".bin", *RECORDS)
    wanted = (".txt", *RECORDS) if has_tokenizer else arrays
    found = [each for each in files if each.suffix in wanted]
    kinds = sorted({each.suffix for each in found})
    if not kinds:
        raise UsageError(f"the directory {path} has no file {' or '.join(wanted)}")
    if len(kinds) > 1:
        raise UsageError(f"the directory {path} has files {' and '.join(kinds)}: expected one kind")
    if dtype is None and kinds == [".bin"]:
        raise UsageError(f"the directory {path} has tokens: give their dtype, as in {path}:uint16")
    return tuple(map(str, found))


def _opening(path: str, dtype: str | None, inputs: Sequence[DataInput]) -> Open:
    """Return the function that maps a file like `path`. Raises `UsageError` if the model has other inputs."""
    if dtype is not None:
        return partial(_map_tokens, dtype=dtype, input=_token_input(path, inputs))
    if NAMED.fullmatch(path):
        return _map_named
    if path.endswith(".npy"):
        if len(inputs) > 1:
            names = ",".join(f"{each.name}=FILE.npy" for each in inputs)
            raise UsageError(
                f"{path} holds one array, and the model has {len(inputs)} inputs: give one for each, as in {names}"
            )
        return partial(_map_npy, name=inputs[0].name)
    if path.endswith(PARQUET):
        return partial(map_parquet, inputs=[each.name for each in inputs])
    shapes = {each.name: each.shape[1:] for each in inputs}
    return partial(map_array_records, shapes=shapes) if path.endswith(ARRAY_RECORD) else _map_npz


def _token_input(path: str, inputs: Sequence[DataInput]) -> DataInput:
    """Return the input that takes tokens. Raises `UsageError` if the model has other inputs."""
    input = inputs[0]
    if len(inputs) == 1 and len(input.shape) == 2 and input.type.dtype in ("i32", "u32"):
        return input
    found = ", ".join(f"{each.name}: {shape_text(each.type)}" for each in inputs)
    raise UsageError(
        f"{path} holds tokens, for a model with one input i32[batch, length], and this model has {found}"
    )


def _map_tokens(path: str, dtype: str, input: DataInput) -> Arrays:
    """Map a file of tokens as examples of the input's length; what is left at the end is no example."""
    stored, length = np.dtype(dtype).newbyteorder("<"), input.shape[1]
    size = file_size(path)
    if size % stored.itemsize:
        raise unreadable(path, f"its {size} bytes are no whole number of tokens of {dtype}")
    count = size // stored.itemsize // length
    if not count:
        return {input.name: np.empty((0, length), stored)}
    return {input.name: np.memmap(path, stored, "r", shape=(count, length))}


def _read_text(path: str, tokenizer: Tokenizer, input: DataInput) -> Arrays:
    """Return the tokens of a text as examples of the input's length; what is left at the end is no example."""
    file_size(path)
    content = Path(path).read_bytes()
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        text = content.decode("utf-8", "replace")
        say(f"{path}: byte {error.start} is no UTF-8: such bytes are read as \ufffd")
    tokens = tokenizer.encode(text)
    length = input.shape[1]
    count = len(tokens) // length
    return {input.name: tokens[: count * length].reshape(count, length)}


def _map_named(paths: str) -> Arrays:
    """Map the arrays of `NAME=FILE.npy,...`."""
    pairs = [each.split("=", 1) for each in paths.split(",")]
    return {name: array for name, path in pairs for array in _map_npy(path, name).values()}


def _map_npy(path: str, name: str) -> Arrays:
    file_size(path)
    try:
        return {name: np.load(path, mmap_mode="r", allow_pickle=False)}
    except ValueError as error:
        reason = "it holds Python objects" if "objects" in str(error) else "it is no NPY file"
        raise unreadable(path, reason) from None


def _map_npz(path: str) -> Arrays:
    """Map the arrays of a file that are stored without compression, and read the others."""
    return {name: (array.map or array.read)() for name, array in stored_arrays(path).items()}


Shapes = Mapping[str, tuple[int, ...]]


def _checked_shapes(path: str, arrays: Arrays, inputs: Sequence[DataInput]) -> Shapes:
    """Return the shapes of a file's arrays. Raises `CompileError` for names, shapes and kinds that do not fit (E502 to E504)."""
    stored = {name: StoredArray(x.shape, x.dtype.name, partial(np.asarray, x)) for name, x in arrays.items()}
    fitting = Fitting(path, stored)
    for each in inputs:
        if each.name not in arrays:
            fitting.missing("input", each.name, each.span)
        elif len(arrays[each.name].shape) != len(each.shape) or arrays[each.name].shape[1:] != each.shape[1:]:
            help = "its first dimension is the number of examples" if each.shape else None
            fitting.misshaped("input", each.name, each.type, each.span, help)
        else:
            fitting.accepts("input", each.name, each.type, each.span)
    fitting.diagnostics.raise_if_errors()
    return {each.name: arrays[each.name].shape for each in inputs}


def joined(parts: Sequence[Examples], name: str) -> Examples:
    """Return the examples of several sources, one source after the other. Raises `UsageError` if they do not go together."""
    first = parts[0]
    for other in parts[1:]:
        if (other.dim, other.inputs) != (first.dim, first.inputs) or any(
            not np.array_equal(value, other.constants[name]) for name, value in first.constants.items()
        ):
            raise UsageError(
                f"{first.name} and {other.name} cannot be mixed: other inputs have a row for each example, or differ"
            )
    openings = {path: part.open for part in parts for path in part.paths}
    paths = tuple(path for part in parts for path in part.paths)
    starts = np.cumsum([0, *(size for part in parts for size in np.diff(part.starts))])
    return attrs.evolve(first, name=name, paths=paths, starts=starts, open=lambda path: openings[path](path))


def _columns(
    path: str, shapes: Sequence[Shapes], inputs: Sequence[DataInput]
) -> tuple[Dim, tuple[DataInput, ...]]:
    """Return the dimension that counts examples, and the inputs with one row an example. Raises `CompileError` (E506).

    The dimension is that of inputs with other sizes than a batch, or else that of the first input. Inputs with another first
    dimension are the same in all batches.
    """
    candidates = [each for each in inputs if each.shape]
    if not candidates:
        raise UsageError("the model has no input with dimensions, so there are no examples to read")
    counting: dict[Dim, str] = {}
    for each in candidates:
        if any(shape[each.name][0] != each.rows for shape in shapes):
            counting.setdefault(each.type.dims[0], each.name)
    if len(counting) > 1:
        found = ", ".join(f"`{dim.name}` of `{name}`" for dim, name in counting.items())
        message = f"the inputs have examples along different dimensions: {found}"
        raise CompileError([Diagnostic("E506", message, whole(path))])
    dim = next(iter(counting), candidates[0].type.dims[0])
    return dim, tuple(each for each in candidates if each.type.dims[0] == dim)


def _rows(path: str, shapes: Shapes, members: Sequence[DataInput]) -> int:
    """Return the number of examples in a file. Raises `CompileError` (E506) if inputs have different numbers."""
    counts = {each.name: shapes[each.name][0] for each in members}
    if len(set(counts.values())) > 1:
        numbers = ", ".join(f"{count} of `{name}`" for name, count in counts.items())
        message = f"the inputs have different numbers of examples: {numbers}"
        raise CompileError([Diagnostic("E506", message, whole(path))])
    return next(iter(counts.values()))
