"""Records that are a `tf.train.Example`, as TensorFlow Datasets and many pipelines write them: features by name, without shapes.

The message is described here, so that TensorFlow is not needed:
https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/feature.proto
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from mtfc.driver.data.array_files import Array
from mtfc.driver.data.packages import import_package

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
    import numpy as np

    if feature.float_list.value:
        return np.array(feature.float_list.value, np.float32)
    if feature.int64_list.value:
        return np.array(feature.int64_list.value, np.int64)
    values = feature.bytes_list.value
    return np.frombuffer(values[0], np.uint8) if values else None


def shaped(features: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Return features in the shapes of inputs by name, as far as they have as many numbers."""
    import numpy as np

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
