"""The protobuf messages inside records: tf's examples and OFRecord, declared in code.

protobuf's own runtime parses them (upb, in C: bounds, recursion and UTF-8 are checked there),
from descriptors built here, so that neither TensorFlow nor generated code is needed. The two
formats number their fields differently (field 3 of a feature is int64 here and double there):
never parse one as the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from penstock.readers._errors import FeatureError

_Field = descriptor_pb2.FieldDescriptorProto
Values = np.ndarray | list[bytes]
# protobuf's map of features by name; its messages are made at run time and have no types.
FeatureMap = Mapping[str, Any]


def _add_field(
    message: Any, name: str, number: int, kind: int | str, *, is_repeated: bool = False
) -> Any:
    """Add a field of a scalar kind, or of the message type of a name."""
    label = _Field.LABEL_REPEATED if is_repeated else _Field.LABEL_OPTIONAL
    field = message.field.add(name=name, number=number, label=label)
    if isinstance(kind, str):
        field.type, field.type_name = _Field.TYPE_MESSAGE, kind
    else:
        field.type = kind
    return field


def _declare_lists(package: str, *kinds: str) -> Any:
    """Return a file with a list of each kind, and `Feature`: one of them, numbered in order."""
    file: Any = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto3"
    )
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, kind in enumerate(kinds, 1):
        message = file.message_type.add(name=f"{kind.title()}List")
        scalar = _Field.Type.Value(f"TYPE_{kind.upper()}")
        values = _add_field(message, "value", 1, scalar, is_repeated=True)
        # As TensorFlow's own declaration has it: one tag for the whole list, not for each number.
        values.options.packed = kind != "bytes"
        field = _add_field(feature, f"{kind}_list", number, f".{package}.{message.name}")
        field.oneof_index = 0
    return file


def _declare_map(file: Any, message_name: str, of: str, name: str = "feature") -> None:
    """Add a message with `map<string, of> name = 1`."""
    message = file.message_type.add(name=message_name)
    entry = message.nested_type.add(name=f"{of}Entry")
    entry.options.map_entry = True
    _add_field(entry, "key", 1, _Field.TYPE_STRING)
    _add_field(entry, "value", 2, f".{file.package}.{of}")
    _add_field(message, name, 1, f".{file.package}.{message_name}.{of}Entry", is_repeated=True)


def _build_class(file: Any, name: str) -> Any:
    # A pool of our own: TensorFlow may have these names in the default pool.
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}"))


_file = _declare_lists("penstock.example", "bytes", "float", "int64")
_declare_map(_file, "Features", "Feature")
_steps = _file.message_type.add(name="FeatureList")
_add_field(_steps, "feature", 1, ".penstock.example.Feature", is_repeated=True)
_declare_map(_file, "FeatureLists", "FeatureList", "feature_list")
_sequence = _file.message_type.add(name="SequenceExample")
_add_field(_sequence, "context", 1, ".penstock.example.Features")
_add_field(_sequence, "feature_lists", 2, ".penstock.example.FeatureLists")
# A `tf.Example` is one without lists: its features have the number of the context.
SequenceExample = _build_class(_file, "SequenceExample")

_file = _declare_lists("penstock.ofrecord", "bytes", "float", "double", "int32", "int64")
_declare_map(_file, "OFRecord", "Feature")
OFRecord = _build_class(_file, "OFRecord")


def parse_ofrecord_features(payload: bytes) -> FeatureMap:
    """Return the features of an OFRecord by name."""
    return _parse(payload, OFRecord, "OFRecord").feature


def parse_sequence(payload: bytes) -> tuple[FeatureMap, FeatureMap]:
    """Return the features and the feature lists of a `tf.Example` or `tf.SequenceExample`."""
    parsed = _parse(payload, SequenceExample, "Example")
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


_LISTS = {
    "float_list": np.dtype(np.float32),
    "double_list": np.dtype(np.float64),
    "int32_list": np.dtype(np.int32),
    "int64_list": np.dtype(np.int64),
}
_RANGES = {np.dtype(bool).str: (0, 1)} | {
    dtype.str: (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    for dtype in (np.dtype(kind) for kind in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"))
}


def resolve_dtype(dtype: npt.DTypeLike) -> np.dtype | None:
    """Return the numpy dtype, `None` for bytes (`"bytes"`, `"string"`, `bytes`, `str`)."""
    if dtype is None or dtype in ("bytes", "string", bytes, str):
        return None
    try:
        resolved = np.dtype(dtype)
    except TypeError:
        resolved = None
    if resolved is None or resolved.kind not in "biuf":
        raise ValueError(
            f"dtype got {dtype!r}, expected a bool, int, uint or float dtype, or 'bytes'. Records "
            "hold floats, integers and bytes. Declare e.g. 'float32', 'int32' or 'bytes'."
        )
    # What is stored in the other order of bytes is read as numbers all the same.
    return resolved.newbyteorder("=")


def find_list(features: FeatureMap, key: str) -> tuple[str, Any] | None:
    """Return the kind of a feature's list and the list as protobuf has it.

    `None` where the record does not have it (or has it empty).
    """
    # The length of protobuf's list costs nothing. As an array a list of 60 MB of one-byte numbers,
    # which are 480 MB in protobuf already, would take as much again before it is refused.
    # Asked first, as indexing a map of protobuf adds the key.
    if key not in features:
        return None
    feature = features[key]
    kind = feature.WhichOneof("kind")
    return None if kind is None else (kind, getattr(feature, kind).value)


def list_values(features: FeatureMap, key: str) -> Values | None:
    """Return a feature's values, `None` where the record does not have it (or has it empty)."""
    entry = find_list(features, key)
    return None if entry is None else convert_list(*entry)


def describe_list(kind: str, value: Any) -> Values:
    """Return what has the length and the dtype of a list, and takes no memory: for errors."""
    if kind == "bytes_list":
        return list(value)
    return np.broadcast_to(np.zeros((), _LISTS[kind]), (len(value),))


def convert_list(kind: str, value: Any) -> Values:
    """Return the values of a list that `find_list` has found."""
    if kind == "bytes_list":
        return list(value)
    # A label: an array from a list is three times faster than from protobuf.
    if len(value) == 1:
        return np.array([value[0]], _LISTS[kind])
    return np.asarray(value, _LISTS[kind])


def dtype_name(values: Values) -> str:
    """Return `bytes` or the numpy dtype's name."""
    return str(values.dtype) if isinstance(values, np.ndarray) else "bytes"


def take_bytes(thing: str, values: Values, remedy: str) -> bytes:
    """Return the one value of bytes that is expected, such as an encoded image."""
    if isinstance(values, np.ndarray) or len(values) != 1:
        got = f"{len(values)} values of {dtype_name(values)}"
        raise FeatureError(f"{thing} got {got}, expected 1 of bytes. {remedy}")
    return values[0]


def cast_exactly(values: Values, dtype: np.dtype | None, key: str, shape: tuple[int, ...]) -> Any:
    """Return values as an array of the shape and dtype; bytes of shape `()` as bytes.

    Floats may become other floats and integers other numbers; floats never become integers, and
    an integer out of range is an error.
    """
    if (dtype is None) != (not isinstance(values, np.ndarray)) and len(values):
        raise _build_kind_error(key, values, "bytes" if dtype is None else str(dtype))
    if dtype is None and shape == ():
        return values[0]
    if dtype is None:
        texts = np.empty(len(values), object)
        texts[:] = values
        return texts.reshape(shape)
    array = np.asarray(values, dtype if not len(values) else None).reshape(shape)
    if array.dtype is dtype or array.dtype == dtype:
        return array
    if array.dtype.kind == "f" and dtype.kind != "f":
        raise _build_kind_error(key, values, str(dtype))
    if array.dtype.kind in "iu" and dtype.kind in "biu" and array.size:
        _check_range(array, dtype, key)
    return array.astype(dtype)


def _check_range(array: np.ndarray, dtype: np.dtype, key: str) -> None:
    low, high = _RANGES[dtype.str]
    if array.size == 1:
        least = most = array.item()
    else:
        least, most = array.min(), array.max()
    if least < low or most > high:
        raise FeatureError(
            f"feature {key!r} got values from {least} to {most}, expected {low} to {high}. They "
            f"are declared {dtype}. Declare a wider dtype."
        )


def _build_kind_error(key: str, values: Values, declared: str) -> FeatureError:
    return FeatureError(
        f"feature {key!r} got values of {dtype_name(values)}, expected {declared}. The record "
        f"holds another kind than declared. Declare {dtype_name(values)!r}."
    )


def fill_feature(feature: Any, name: str, value: object, *, has_narrow_types: bool) -> None:
    """Put a value into a protobuf feature, in the list that fits its kind.

    `has_narrow_types` is OFRecord's choice of lists: float64 to double, int32 and narrower
    integers to int32; tf.Example has only float and int64. An empty list is written without a
    kind, an empty array with that of its dtype.
    """
    if isinstance(value, (bytes, str)):
        value = [value]
    if isinstance(value, Sequence) and not value:
        # A list of no kind: readers take it for whatever they declare.
        return
    if is_list_of_texts(value):
        items = [item.encode() if isinstance(item, str) else item for item in value]
        feature.bytes_list.value.extend(items)
        return
    array = np.asarray(value)
    if array.dtype.kind == "O" and all(isinstance(item, bytes) for item in array.flat):
        feature.bytes_list.value.extend(array.ravel().tolist())
        return
    if array.dtype.kind not in "biuf" or (array.dtype.kind == "u" and array.dtype.itemsize == 8):
        raise FeatureError(
            f"feature {name!r} got {array.dtype} values, expected floats, integers up to int64, "
            "bool, bytes or str. Records hold nothing else. Convert it first."
        )
    kind = _choose_list(array, has_narrow_types)
    # An empty array keeps its kind; to add nothing would not set it.
    getattr(feature, kind).SetInParent()
    getattr(feature, kind).value.extend(array.astype(_LISTS[kind]).ravel())


def is_list_of_texts(value: object) -> TypeGuard[Sequence[bytes | str]]:
    """Say whether a value is a sequence of bytes and str, as an empty one is."""
    return isinstance(value, Sequence) and all(isinstance(item, (bytes, str)) for item in value)


def _choose_list(array: np.ndarray, has_narrow_types: bool) -> str:
    if array.dtype.kind == "f":
        is_double = has_narrow_types and array.dtype == np.float64
        return "double_list" if is_double else "float_list"
    is_narrow = has_narrow_types and (array.dtype.itemsize < 8 and array.dtype != np.uint32)
    return "int32_list" if is_narrow else "int64_list"
