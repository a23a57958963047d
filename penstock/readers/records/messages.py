"""The protobuf messages inside records: tf.Example and OFRecord, declared in code.

protobuf's own runtime parses them (upb, in C: bounds, recursion and UTF-8 are checked there),
from descriptors built here, so that neither TensorFlow nor generated code is needed. The two
formats number their fields differently (field 3 of a feature is int64 here and double there):
never parse one as the other.
"""

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from penstock.readers.records.errors import FeatureError

_Field = descriptor_pb2.FieldDescriptorProto


def _declare_lists(
    file: descriptor_pb2.FileDescriptorProto, lists: Mapping[str, tuple[int, int]]
) -> None:
    """Add one message a list, and `Feature`, the oneof over them."""
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for name, (number, scalar) in lists.items():
        message_name = "".join(part.title() for part in name.split("_"))
        values = file.message_type.add(name=message_name).field.add(
            name="value", number=1, type=scalar, label=_Field.LABEL_REPEATED
        )
        if scalar != _Field.TYPE_BYTES:
            values.options.packed = True
        feature.field.add(
            name=name,
            number=number,
            type=_Field.TYPE_MESSAGE,
            type_name=f".{file.package}.{message_name}",
            label=_Field.LABEL_OPTIONAL,
            oneof_index=0,
        )


def _declare_map(file: descriptor_pb2.FileDescriptorProto, message_name: str) -> None:
    """Add a message with `map<string, Feature> feature = 1`."""
    message = file.message_type.add(name=message_name)
    entry = message.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    optional = _Field.LABEL_OPTIONAL
    entry.field.add(name="key", number=1, type=_Field.TYPE_STRING, label=optional)
    feature_type = f".{file.package}.Feature"
    entry.field.add(
        name="value", number=2, type=_Field.TYPE_MESSAGE, type_name=feature_type, label=optional
    )
    message.field.add(
        name="feature",
        number=1,
        type=_Field.TYPE_MESSAGE,
        type_name=f".{file.package}.{message_name}.FeatureEntry",
        label=_Field.LABEL_REPEATED,
    )


def _file(package: str) -> descriptor_pb2.FileDescriptorProto:
    return descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto3"
    )


def _message_class(file: descriptor_pb2.FileDescriptorProto, name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()  # our own: TensorFlow may own the default pool's names
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}"))


def _example_class() -> Any:
    file = _file("penstock.example")
    _declare_lists(
        file,
        {
            "bytes_list": (1, _Field.TYPE_BYTES),
            "float_list": (2, _Field.TYPE_FLOAT),
            "int64_list": (3, _Field.TYPE_INT64),
        },
    )
    _declare_map(file, "Features")
    file.message_type.add(name="Example").field.add(
        name="features",
        number=1,
        type=_Field.TYPE_MESSAGE,
        type_name=f".{file.package}.Features",
        label=_Field.LABEL_OPTIONAL,
    )
    return _message_class(file, "Example")


def _ofrecord_class() -> Any:
    file = _file("penstock.ofrecord")
    _declare_lists(
        file,
        {
            "bytes_list": (1, _Field.TYPE_BYTES),
            "float_list": (2, _Field.TYPE_FLOAT),
            "double_list": (3, _Field.TYPE_DOUBLE),
            "int32_list": (4, _Field.TYPE_INT32),
            "int64_list": (5, _Field.TYPE_INT64),
        },
    )
    _declare_map(file, "OFRecord")
    return _message_class(file, "OFRecord")


Example = _example_class()
OFRecord = _ofrecord_class()


def parse_features(payload: bytes, message_class: Any) -> Mapping[str, Message]:
    """Return the features of a payload by name.

    Raises:
      FeatureError: the payload is not such a message.
    """
    try:
        parsed = message_class.FromString(payload)
    except DecodeError as error:
        name = message_class.DESCRIPTOR.name
        raise FeatureError(
            f"{name} payload",
            f"{len(payload)} bytes that do not parse ({error})",
            f"a serialised {name}",
            "The record is damaged or holds something else",
            "Check what wrote the file, or pass on_error='skip' to leave the record out",
        ) from None
    return parsed.features.feature if message_class is Example else parsed.feature
