"""Files of records: Parquet, ArrayRecord and JSON lines, as arrays of examples or as documents of any length.

A record is read by its number, so that documents can be shuffled. ArrayRecord and JSON lines are read from the disk; a Parquet
file has no single rows to read, so its columns are read whole and stay in memory.

Records of ArrayRecord may be a `tf.train.Example`, as TensorFlow Datasets and many pipelines write them: features by name,
without shapes. The message is described here, so that TensorFlow is not needed:
https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/feature.proto
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from mtfc.driver.data.array_files import PARSING, Array, Arrays, file_size, unreadable
from mtfc.driver.data.packages import import_package
from mtfc.driver.errors import UsageError

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
    """The documents of a file: text, or tokens. read: returns a document by its number."""

    path: str
    count: int
    read: Callable[[int], Any]

    def place(self, number: int) -> str:
        """Return the place of a document, for a message."""
        return f"document {number} of {self.path}"


def open_records(path: str, dtype: str | None, key: str) -> Records:
    """Open the documents of a file. Raises `CompileError` (E501), `UsageError` and `Unavailable`.

    dtype: that of the numbers in records of bytes. key: the column or key of a document.
    """
    file_size(path)
    if path.endswith(JSON_LINES):
        return _json_lines(path, key)
    if path.endswith(PARQUET):
        column = _parquet_columns(path, [key])[key]
        return Records(path, len(column), lambda number: column[number].as_py())
    records = array_records(path)
    if dtype is None and first_tf_example(path) is not None:
        return Records(path, len(records), partial(_feature, path, records, key))
    return Records(path, len(records), partial(_record, records, dtype))


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


@attrs.frozen(eq=False)
class ByteRecords:
    """The records of an ArrayRecord file, which the package reads when they are asked for."""

    path: str
    source: Any

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, number: int) -> bytes:
        """Return a record. Raises `CompileError` (E501) if it is damaged."""
        try:
            return bytes(self.source[number])
        except Exception as error:  # of many kinds, by the package array_record
            raise unreadable(self.path, f"record {number} is damaged ({_line_of(error)})") from None


def array_records(path: str) -> ByteRecords:
    """Return the records of a file. Raises `CompileError` (E501)."""
    sources = import_package("grain.sources", "grain")
    try:
        records = sources.ArrayRecordDataSource(path)
        _ = len(records)
    except Exception as error:  # of many kinds, by the package array_record
        raise unreadable(path, f"it is no ArrayRecord file ({_line_of(error)})") from None
    return ByteRecords(path, records)


def _record(records: ByteRecords, dtype: str | None, number: int) -> Any:
    """Return a document: text, or tokens if their dtype is known."""
    record = records[number]
    if dtype is None:
        return record.decode("utf-8", "replace")
    stored = np.dtype(dtype).newbyteorder("<")
    if len(record) % stored.itemsize:
        raise UsageError(f"its {len(record)} bytes are no whole number of tokens of {dtype}")
    return np.frombuffer(record, stored)


def first_tf_example(path: str) -> dict[str, Array] | None:
    """Return the features of the first record of a file, if it is a `tf.train.Example`. Raises `CompileError` (E501)."""
    file_size(path)
    records = array_records(path)
    return parse_tf_example(records[0]) if len(records) else None


def _feature(path: str, records: ByteRecords, key: str, number: int) -> Any:
    """Return a document from a feature of a `tf.train.Example`: text, or tokens."""
    features = parse_tf_example(records[number]) or {}
    if key not in features:
        found = f"it has {', '.join(features)}" if features else "it has none"
        raise UsageError(
            f"document {number} of {path}: expected a tf.train.Example with the feature `{key}`, and {found}"
        )
    feature = features[key]
    is_text = key == TEXT and feature.dtype.name == "uint8"
    return feature.tobytes().decode("utf-8", "replace") if is_text else feature


@attrs.frozen(eq=False)
class RecordColumn:
    """One array of the records of an ArrayRecord file, each with one example, with the interface of a NumPy array.

    records: number -> the arrays of a record.
    """

    path: str
    name: str
    count: int
    records: Callable[[int], Mapping[str, Array]]
    row: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.count, *self.row.shape)

    @property
    def dtype(self) -> Any:
        return self.row.dtype

    def __getitem__(self, numbers: Array) -> Array:
        rows = [self._row(number) for number in np.asarray(numbers).tolist()]
        return np.stack(rows) if rows else np.empty((0, *self.row.shape), self.dtype)

    def _row(self, number: int) -> Array:
        found = self.records(number).get(self.name)
        if found is None or (found.shape, found.dtype) != (self.row.shape, self.row.dtype):
            raise unreadable(self.path, f"record {number} has other arrays than record 0")
        return found


def map_array_records(path: str, shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
    """Return the arrays of a file whose records are NPZ files or a `tf.train.Example`, by name.

    shapes: of the inputs, without the batch: a `tf.train.Example` has none.
    """
    file_size(path)
    records = array_records(path)
    if not len(records):
        raise unreadable(path, "it has no records")
    read = partial(_example, path, records, shapes)
    return {name: RecordColumn(path, name, len(records), read, row) for name, row in read(0).items()}


def _example(
    path: str, records: ByteRecords, shapes: Mapping[str, tuple[int, ...]], number: int
) -> dict[str, Array]:
    """Return the arrays of a record."""
    if not records[number].startswith(ZIP) and (features := parse_tf_example(records[number])) is not None:
        return shaped(features, shapes)
    try:
        record = BytesIO(records[number])
        with PARSING, np.load(record, allow_pickle=False) as archive:
            return dict(archive)
    except Exception as error:  # a damaged record fails in many ways: in zip, struct, or NumPy's own header
        wanted = "no tf.train.Example, and no NPZ file with the arrays of one example"
        raise unreadable(
            path, f"record {number} is {wanted} ({_line_of(error)}); text needs --tokenizer"
        ) from None


def _line_of(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]


# tf.train.Example

MESSAGES: Mapping[str, Sequence[tuple[str, int, str, bool, str | None]]] = {
    "BytesList": [("value", 1, "BYTES", True, None)],
    "FloatList": [("value", 1, "FLOAT", True, None)],
    "Int64List": [("value", 1, "INT64", True, None)],
    "Feature": [
        ("bytes_list", 1, "MESSAGE", False, "BytesList"),
        ("float_list", 2, "MESSAGE", False, "FloatList"),
        ("int64_list", 3, "MESSAGE", False, "Int64List"),
    ],
    "Entry": [("key", 1, "STRING", False, None), ("value", 2, "MESSAGE", False, "Feature")],
    "Features": [("feature", 1, "MESSAGE", True, "Entry")],
    "Example": [("features", 1, "MESSAGE", False, "Features")],
}
"""The fields of each message: name, number, type, True if it is repeated, and the message that it holds."""


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
    messages = import_package("google.protobuf.descriptor_pb2", "protobuf", "tf.train.Example", "data")
    pools = import_package("google.protobuf.descriptor_pool", "protobuf", "tf.train.Example", "data")
    factory = import_package("google.protobuf.message_factory", "protobuf", "tf.train.Example", "data")
    file = messages.FileDescriptorProto(name="example.proto", package="mtfc", syntax="proto3")
    kinds = messages.FieldDescriptorProto
    for name, fields in MESSAGES.items():
        added = file.message_type.add(name=name)
        for field, number, type, is_repeated, held in fields:
            label = kinds.LABEL_REPEATED if is_repeated else kinds.LABEL_OPTIONAL
            described = added.field.add(
                name=field, number=number, type=getattr(kinds, f"TYPE_{type}"), label=label
            )
            if held is not None:
                described.type_name = f".mtfc.{held}"
    pool = pools.DescriptorPool()
    pool.Add(file)
    return factory.GetMessageClass(pool.FindMessageTypeByName("mtfc.Example"))
