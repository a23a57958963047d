"""The values of one feature: protobuf lists to numpy and back, never repaired in silence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.readers.records.errors import FeatureError

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
Values = np.ndarray | list[bytes]
# protobuf's map of features by name; its messages are made at run time and have no types.
FeatureMap = Mapping[str, Any]


def resolve_dtype(dtype: npt.DTypeLike) -> np.dtype | None:
    """Return the numpy dtype, `None` for bytes (`"bytes"`, `"string"`, `bytes`, `str`).

    Raises:
      ValueError: numpy does not know it, or it is not numeric.
    """
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
    return resolved


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
    found = find_list(features, key)
    return None if found is None else convert_list(*found)


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


def cast_exactly(values: Values, dtype: np.dtype | None, key: str, shape: tuple[int, ...]) -> Any:
    """Return values as an array of the shape and dtype; bytes of shape `()` as bytes.

    Floats may become other floats and integers other numbers; floats never become integers, and
    an integer out of range is an error.

    Raises:
      FeatureError: the values are of another kind, or do not fit.
    """
    if (dtype is None) != (not isinstance(values, np.ndarray)) and len(values):
        raise _build_kind_error(key, values, "bytes" if dtype is None else str(dtype))
    if dtype is None:
        return _build_bytes_array(values, shape)
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


def _build_bytes_array(values: Values, shape: tuple[int, ...]) -> np.ndarray | bytes:
    if shape == ():
        return values[0]
    array = np.empty(len(values), object)
    array[:] = values
    return array.reshape(shape)


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

    Raises:
      FeatureError: a value of another kind, or an integer beyond int64.
    """
    if isinstance(value, (bytes, str)):
        value = [value]
    is_sequence = isinstance(value, Sequence)
    if is_sequence and not value:
        # A list of no kind: readers take it for whatever they declare.
        return
    if is_sequence and all(isinstance(item, (bytes, str)) for item in value):
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


def _choose_list(array: np.ndarray, has_narrow_types: bool) -> str:
    if array.dtype.kind == "f":
        is_double = has_narrow_types and array.dtype == np.float64
        return "double_list" if is_double else "float_list"
    is_narrow = has_narrow_types and (array.dtype.itemsize < 8 and array.dtype != np.uint32)
    return "int32_list" if is_narrow else "int64_list"
