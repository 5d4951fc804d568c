"""Files of data: arrays, tokens, text and records, as examples or as documents of any length.

Examples are in one file, or in the shards of a directory. Files of arrays and tokens are memory-mapped, so a read touches only
the rows that it asks for. An array of an .npz file is mapped too, if it is stored without compression, as `numpy.savez` does;
`numpy.savez_compressed` makes files that are read whole.

Records are Parquet, ArrayRecord and JSON lines. A record is read by its number, so that documents can be shuffled. ArrayRecord
and JSON lines are read from the disk. A Parquet file has no single rows to read, so its columns stay in memory as a whole.

Records of ArrayRecord may be a `tf.train.Example`, as TensorFlow Datasets and many pipelines write them: features by name,
without shapes. The message is described here, so that TensorFlow is not needed:
https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/feature.proto
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from mtfc.compiler.diagnostics import failure
from mtfc.compiler.ir.types import Dim
from mtfc.driver.data.array_files import (
    PARSING,
    Array,
    Arrays,
    StoredArray,
    file_size,
    stored_arrays,
    unreadable,
    whole,
)
from mtfc.driver.data.inputs import DataInput, Fitting, shape_text
from mtfc.driver.data.packages import import_package
from mtfc.driver.data.tokenizers import Tokenizer
from mtfc.driver.errors import UsageError, say
from mtfc.driver.training.data_interface import place_in

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


@attrs.frozen
class DataPart:
    """A source of a mixture.

    name: the name as given. dtype: the dtype of tokens. files: the file at the path, or those of a directory.
    """

    name: str
    weight: float
    path: str
    dtype: str | None
    files: tuple[str, ...]


def open_examples(part: DataPart, inputs: Sequence[DataInput], tokenizer: Tokenizer | None) -> Examples:
    """Open the files of a source. Raises `CompileError` (E501 to E504, E506) and `UsageError`.

    tokenizer: makes tokens of text. Every file is looked at; files of arrays are not read whole.
    """
    path, files = part.path, part.files
    if tokenizer is not None:
        opening = lru_cache(None)(partial(_read_text, tokenizer=tokenizer, input=_token_input(path, inputs)))
    else:
        opening = lru_cache(max(1, OPEN_ARRAYS // len(inputs)))(_opening(files[0], part.dtype, inputs))
    shapes = [_checked_shapes(each, opening(each), inputs) for each in files]
    dim, members = _columns(path, shapes, inputs)
    counts = [_rows(each, shape, members) for each, shape in zip(files, shapes, strict=True)]
    first = opening(files[0])
    constants = {
        each.name: each.converted(np.asarray(first[each.name]), lambda _: f"its array in {files[0]}")
        for each in inputs
        if each not in members
    }
    return Examples(path, dim, members, constants, files, np.cumsum([0, *counts]), opening)


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
    """Map the array of an NPY file. Raises `CompileError` (E501)."""
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
        help = "its first dimension is the number of examples" if each.shape else None
        fitting.takes(each, _has_examples, help)
    fitting.diagnostics.raise_if_errors()
    return {each.name: arrays[each.name].shape for each in inputs}


def _has_examples(input: DataInput, shape: tuple[int, ...]) -> bool:
    return len(shape) == len(input.shape) and shape[1:] == input.shape[1:]


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
        raise failure("E506", message, whole(path))
    dim = next(iter(counting), candidates[0].type.dims[0])
    return dim, tuple(each for each in candidates if each.type.dims[0] == dim)


def _rows(path: str, shapes: Shapes, members: Sequence[DataInput]) -> int:
    """Return the number of examples in a file. Raises `CompileError` (E506) if inputs have different numbers."""
    counts = {each.name: shapes[each.name][0] for each in members}
    if len(set(counts.values())) > 1:
        numbers = ", ".join(f"{count} of `{name}`" for name, count in counts.items())
        message = f"the inputs have different numbers of examples: {numbers}"
        raise failure("E506", message, whole(path))
    return next(iter(counts.values()))


# Records

PARQUET, JSON_LINES = (".parquet",), (".jsonl",)

ARRAY_RECORD = (".array_record", ".arrayrecord")

RECORDS = (*PARQUET, *JSON_LINES, *ARRAY_RECORD)
"""The endings of files of records."""

ZIP = b"PK"
"""The first bytes of an NPZ file."""

TEXT = "text"
"""The column of Parquet files, and the key of JSON lines, that holds the text of a document."""


@attrs.frozen(eq=False)
class Records:
    """The records of a file: bytes, documents of text or tokens, or examples. read: returns a record by its number."""

    path: str
    count: int
    read: Callable[[int], Any]

    def place(self, number: int) -> str:
        """Return the place of a document, for a message."""
        return f"document {number} of {self.path}"


def open_records(path: str, dtype: str | None, key: str) -> Records:
    """Open the documents of a file. Raises `CompileError` (E501), `UsageError` and `Unavailable`.

    dtype: the dtype of the numbers in records of bytes. key: the column or key of a document.
    """
    file_size(path)
    if path.endswith(JSON_LINES):
        return _json_lines(path, key)
    if path.endswith(PARQUET):
        column = _parquet_columns(path, [key])[key]
        return Records(path, len(column), lambda number: column[number].as_py())
    records = array_records(path)
    is_tf = dtype is None and first_tf_example(path) is not None
    read = partial(_feature, records, key) if is_tf else partial(_record, records, dtype)
    return attrs.evolve(records, read=read)


# JSON lines


def _json_lines(path: str, key: str) -> Records:
    """Open a file with an object a line; blank lines are no documents."""
    with Path(path).open("rb") as file:
        sizes = np.fromiter((-len(line) if line.isspace() else len(line) for line in file), np.int64)
    ends = np.cumsum(abs(sizes))
    spans = np.stack([ends - abs(sizes), ends], axis=1)[sizes > 0]
    mapped = np.memmap(path, np.uint8, "r") if len(spans) else np.empty(0, np.uint8)

    def read(number: int) -> Any:
        start, end = spans[number]
        try:
            return json.loads(mapped[start:end].tobytes())[key]
        except (ValueError, KeyError, TypeError, RecursionError):
            wanted = f"`{key}`" if key == TEXT else f"`{key}`, or with `{TEXT}` and --tokenizer"
            raise UsageError(
                f"line {_line(sizes, number)} of {path}: expected an object with {wanted}"
            ) from None

    return Records(path, len(spans), read)


def _line(sizes: Array, number: int) -> int:
    """Return the number of the line, from 1, that has a document. sizes: bytes by line, below 0 of blank lines."""
    return int(np.flatnonzero(sizes > 0)[number]) + 1


# Parquet


def _parquet_columns(path: str, names: Sequence[str] | None) -> Mapping[str, Any]:
    """Return columns as arrays of Arrow; None takes all. Raises `CompileError` (E501) and `UsageError`."""
    parquet = import_package("pyarrow.parquet", "pyarrow", "Parquet", "data")
    try:
        file = parquet.ParquetFile(path, memory_map=True, page_checksum_verification=True)
        found = file.schema_arrow.names
        lost = [name for name in names or () if name not in found]
        if lost:
            raise UsageError(f"{path} has no column `{lost[0]}`: its columns are {', '.join(found)}")
        table = file.read(names)
    except (OSError, ValueError) as error:  # Arrow's own errors are of these kinds
        raise unreadable(path, f"it is no Parquet file ({_line_of(error)})") from None
    return {name: table.column(name).combine_chunks() for name in table.column_names}


def map_parquet(path: str, inputs: Collection[str]) -> Arrays:
    """Return the numeric columns of a file; lists of one length have further dimensions.

    Raises `CompileError` (E501) if the column of an input holds something else.
    """
    file_size(path)
    arrays = dict[str, Array]()
    for name, column in _parquet_columns(path, None).items():
        if not len(column):
            raise unreadable(path, "it has no rows")
        found = _array_of(column)
        if isinstance(found, str) and name in inputs:
            raise unreadable(
                path, f"its column `{name}` has {found}, and an input takes numbers, or lists of one length"
            )
        if not isinstance(found, str):
            arrays[name] = found
    return arrays


def _array_of(column: Any) -> Array | str:
    """Return the array of a column, or what it has in the place of numbers."""
    types = import_package("pyarrow.types", "pyarrow", "Parquet", "data")
    shape = [len(column)]
    while not column.null_count and (_is_list(types, column.type)):
        lengths = np.unique(column.value_lengths().to_numpy(zero_copy_only=False))
        if len(lengths) != 1:
            return "lists of several lengths"
        shape.append(int(lengths[0]))
        column = column.flatten()
    is_number = (
        types.is_integer(column.type) or types.is_floating(column.type) or types.is_boolean(column.type)
    )
    if column.null_count:
        return "rows without a value (null)"
    if not is_number:
        return f"values of the type {column.type}"
    return column.to_numpy(zero_copy_only=False).reshape(shape)


def _is_list(types: Any, type: Any) -> bool:
    return bool(types.is_list(type) or types.is_large_list(type) or types.is_fixed_size_list(type))


# ArrayRecord


def array_records(path: str) -> Records:
    """Return the records of a file as bytes, which the package reads when they are asked for. Raises `CompileError` (E501)."""
    file_size(path)
    sources = import_package("grain.sources", "grain")
    try:
        records = sources.ArrayRecordDataSource(path)
        count = len(records)
    except Exception as error:  # of many kinds, by the package array_record
        raise unreadable(path, f"it is no ArrayRecord file ({_line_of(error)})") from None

    def read(number: int) -> bytes:
        try:
            return bytes(records[number])
        except Exception as error:
            raise unreadable(path, f"record {number} is damaged ({_line_of(error)})") from None

    return Records(path, count, read)


def _record(records: Records, dtype: str | None, number: int) -> Any:
    """Return a document: text, or tokens if their dtype is known."""
    record = records.read(number)
    if dtype is None:
        return record.decode("utf-8", "replace")
    stored = np.dtype(dtype).newbyteorder("<")
    if len(record) % stored.itemsize:
        raise UsageError(f"its {len(record)} bytes are no whole number of tokens of {dtype}")
    return np.frombuffer(record, stored)


def first_tf_example(path: str) -> dict[str, Array] | None:
    """Return the features of the first record of a file, if it is a `tf.train.Example`. Raises `CompileError` (E501)."""
    records = array_records(path)
    return parse_tf_example(records.read(0)) if records.count else None


def _feature(records: Records, key: str, number: int) -> Any:
    """Return a document from a feature of a `tf.train.Example`: text, or tokens."""
    features = parse_tf_example(records.read(number)) or {}
    if key not in features:
        found = f"it has {', '.join(features)}" if features else "it has none"
        raise UsageError(
            f"{records.place(number)}: expected a tf.train.Example with the feature `{key}`, and {found}"
        )
    feature = features[key]
    is_text = key == TEXT and feature.dtype.name == "uint8"
    return feature.tobytes().decode("utf-8", "replace") if is_text else feature


@attrs.frozen(eq=False)
class RecordColumn:
    """One array of the records of an ArrayRecord file, each with one example, with the interface of a NumPy array.

    records: their arrays by name. row: the first one's array.
    """

    name: str
    records: Records
    row: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.records.count, *self.row.shape)

    @property
    def dtype(self) -> Any:
        return self.row.dtype

    def __getitem__(self, numbers: Array) -> Array:
        rows = [self._row(number) for number in np.asarray(numbers).tolist()]
        return np.stack(rows) if rows else np.empty((0, *self.row.shape), self.dtype)

    def _row(self, number: int) -> Array:
        """Return the array of a record. Raises `CompileError` (E501) if it is not as that of the first."""
        found = self.records.read(number).get(self.name)
        if found is None or (found.shape, found.dtype) != (self.row.shape, self.row.dtype):
            raise unreadable(self.records.path, f"record {number} has other arrays than record 0")
        return found


def map_array_records(path: str, shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
    """Return the arrays of a file whose records are NPZ files or a `tf.train.Example`, by name.

    shapes: the shapes of the inputs, without the batch: a `tf.train.Example` has no shapes.
    """
    records = array_records(path)
    if not records.count:
        raise unreadable(path, "it has no records")
    examples = attrs.evolve(records, read=partial(_example, records, shapes))
    return {name: RecordColumn(name, examples, row) for name, row in examples.read(0).items()}


def _example(records: Records, shapes: Mapping[str, tuple[int, ...]], number: int) -> dict[str, Array]:
    """Return the arrays of a record."""
    record = records.read(number)
    if not record.startswith(ZIP) and (features := parse_tf_example(record)) is not None:
        return shaped(features, shapes)
    try:
        with PARSING, np.load(BytesIO(record), allow_pickle=False) as archive:
            return dict(archive)
    except Exception as error:  # a damaged record fails in many ways: in zip, struct, or NumPy's own header
        wanted = "no tf.train.Example, and no NPZ file with the arrays of one example"
        raise unreadable(
            records.path, f"record {number} is {wanted} ({_line_of(error)}); text needs --tokenizer"
        ) from None


def _line_of(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]


# tf.train.Example

EXAMPLE = """
name: "example.proto" package: "mtfc" syntax: "proto3"
message_type { name: "BytesList" field { name: "value" number: 1 type: TYPE_BYTES label: LABEL_REPEATED } }
message_type { name: "FloatList" field { name: "value" number: 1 type: TYPE_FLOAT label: LABEL_REPEATED } }
message_type { name: "Int64List" field { name: "value" number: 1 type: TYPE_INT64 label: LABEL_REPEATED } }
message_type { name: "Feature"
  field { name: "bytes_list" number: 1 type_name: ".mtfc.BytesList" label: LABEL_OPTIONAL }
  field { name: "float_list" number: 2 type_name: ".mtfc.FloatList" label: LABEL_OPTIONAL }
  field { name: "int64_list" number: 3 type_name: ".mtfc.Int64List" label: LABEL_OPTIONAL } }
message_type { name: "Entry" field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "value" number: 2 type_name: ".mtfc.Feature" label: LABEL_OPTIONAL } }
message_type { name: "Features" field { name: "feature" number: 1 type_name: ".mtfc.Entry" label: LABEL_REPEATED } }
message_type { name: "Example" field { name: "features" number: 1 type_name: ".mtfc.Features" label: LABEL_OPTIONAL } }
"""
"""The messages, as protobuf writes a `FileDescriptorProto` in text."""


def parse_tf_example(record: bytes) -> dict[str, Array] | None:
    """Return the features of a record by name, each with one dimension; None if it is no `tf.train.Example`.

    A feature of bytes has the bytes of its first value; one without values is left out.
    """
    message = import_package("google.protobuf.message", "protobuf", "tf.train.Example", "data")
    example = _example_class()()
    try:
        example.ParseFromString(record)
    except message.DecodeError:
        return None
    entries = example.features.feature
    if not entries:
        return None
    arrays = {entry.key: _array(entry.value) for entry in entries}
    return {name: array for name, array in arrays.items() if array is not None}


def _array(feature: Any) -> Array | None:
    """Return the values of a feature of a `tf.train.Example`; None if it has no values."""
    if feature.float_list.value:
        return np.array(feature.float_list.value, np.float32)
    if feature.int64_list.value:
        return np.array(feature.int64_list.value, np.int64)
    values = feature.bytes_list.value
    return np.frombuffer(values[0], np.uint8) if values else None


def shaped(features: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Return features in the shapes of inputs by name, as far as they have as many numbers."""
    return {
        name: array.reshape(shapes[name])
        if name in shapes and array.size == int(np.prod(shapes[name]))
        else array
        for name, array in features.items()
    }


@lru_cache
def _example_class() -> Any:
    """Return the class of the message."""
    messages, pools, factory, texts = (
        import_package(f"google.protobuf.{name}", "protobuf", "tf.train.Example", "data")
        for name in ("descriptor_pb2", "descriptor_pool", "message_factory", "text_format")
    )
    pool = pools.DescriptorPool()
    pool.Add(texts.Parse(EXAMPLE, messages.FileDescriptorProto()))
    return factory.GetMessageClass(pool.FindMessageTypeByName("mtfc.Example"))
