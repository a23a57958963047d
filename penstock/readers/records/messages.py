"""The protobuf messages inside records: tf's examples and OFRecord, declared in code.

protobuf's own runtime parses them (upb, in C: bounds, recursion and UTF-8 are checked there),
from descriptors built here, so that neither TensorFlow nor generated code is needed. The two
formats number their fields differently (field 3 of a feature is int64 here and double there):
never parse one as the other.
"""

from __future__ import annotations

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
            # As TensorFlow's own declaration has it: one tag for the whole list, not for each
            # number.
            values.options.packed = True
        feature.field.add(
            name=name,
            number=number,
            type=_Field.TYPE_MESSAGE,
            type_name=f".{file.package}.{message_name}",
            label=_Field.LABEL_OPTIONAL,
            oneof_index=0,
        )


def _declare_map(
    file: descriptor_pb2.FileDescriptorProto, message_name: str, of: str, name: str = "feature"
) -> None:
    """Add a message with `map<string, of> name = 1`."""
    message = file.message_type.add(name=message_name)
    entry = message.nested_type.add(name=f"{of}Entry")
    entry.options.map_entry = True
    optional = _Field.LABEL_OPTIONAL
    entry.field.add(name="key", number=1, type=_Field.TYPE_STRING, label=optional)
    feature_type = f".{file.package}.{of}"
    entry.field.add(
        name="value", number=2, type=_Field.TYPE_MESSAGE, type_name=feature_type, label=optional
    )
    message.field.add(
        name=name,
        number=1,
        type=_Field.TYPE_MESSAGE,
        type_name=f".{file.package}.{message_name}.{of}Entry",
        label=_Field.LABEL_REPEATED,
    )


def _build_file(package: str) -> descriptor_pb2.FileDescriptorProto:
    return descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto3"
    )


def _build_class(file: descriptor_pb2.FileDescriptorProto, name: str) -> Any:
    # A pool of our own: TensorFlow may have these names in the default pool.
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}"))


def _build_example_classes() -> tuple[Any, Any]:
    """Return the classes of tf.Example and tf.SequenceExample."""
    file = _build_file("penstock.example")
    _declare_lists(
        file,
        {
            "bytes_list": (1, _Field.TYPE_BYTES),
            "float_list": (2, _Field.TYPE_FLOAT),
            "int64_list": (3, _Field.TYPE_INT64),
        },
    )
    _declare_map(file, "Features", "Feature")
    file.message_type.add(name="Example").field.add(
        name="features",
        number=1,
        type=_Field.TYPE_MESSAGE,
        type_name=f".{file.package}.Features",
        label=_Field.LABEL_OPTIONAL,
    )
    file.message_type.add(name="FeatureList").field.add(
        name="feature",
        number=1,
        type=_Field.TYPE_MESSAGE,
        type_name=f".{file.package}.Feature",
        label=_Field.LABEL_REPEATED,
    )
    _declare_map(file, "FeatureLists", "FeatureList", "feature_list")
    sequence = file.message_type.add(name="SequenceExample")
    for number, (name, of) in enumerate(
        {"context": "Features", "feature_lists": "FeatureLists"}.items(), 1
    ):
        sequence.field.add(
            name=name,
            number=number,
            type=_Field.TYPE_MESSAGE,
            type_name=f".{file.package}.{of}",
            label=_Field.LABEL_OPTIONAL,
        )
    return _build_class(file, "Example"), _build_class(file, "SequenceExample")


def _build_ofrecord_class() -> Any:
    file = _build_file("penstock.ofrecord")
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
    _declare_map(file, "OFRecord", "Feature")
    return _build_class(file, "OFRecord")


Example, SequenceExample = _build_example_classes()
OFRecord = _build_ofrecord_class()


def parse_features(payload: bytes, message_class: type[Message]) -> Mapping[str, Message]:
    """Return the features of a payload by name.

    Raises:
      FeatureError: the payload is not such a message.
    """
    parsed = _parse(payload, message_class, message_class.DESCRIPTOR.name)
    return parsed.features.feature if message_class is Example else parsed.feature


def parse_sequence(payload: bytes) -> tuple[Mapping[str, Message], Mapping[str, Any]]:
    """Return the features and the feature lists of a `tf.SequenceExample`, by name.

    A `tf.Example` is one without lists: its features have the number of the context.

    Raises:
      FeatureError: the payload is neither.
    """
    parsed = _parse(payload, SequenceExample, Example.DESCRIPTOR.name)
    return parsed.context.feature, parsed.feature_lists.feature_list


def _parse(payload: bytes, message_class: type[Message], name: str) -> Any:
    try:
        return message_class.FromString(payload)
    except DecodeError as error:
        raise FeatureError(
            f"{name} payload got {len(payload)} bytes that do not parse ({error}), expected a "
            f"serialised {name}. The record is damaged or holds something else. Check what wrote "
            "the file, or pass on_error='skip' to leave the record out."
        ) from None
