"""Feature specs: what a tf.Example holds, declared the way `tf.io.parse_example` declares it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast, get_args

import numpy as np
import numpy.typing as npt

from penstock._errors import check_int, check_known, listed, nearest
from penstock._image_resizing import Interpolation
from penstock.readers._batching import check_length, pad
from penstock.readers._errors import FeatureError
from penstock.readers.records import messages
from penstock.readers.records.image_decoding import decode_image, resize_image

Sample = dict[str, np.ndarray | bytes]
# What `resolve_dtype` makes of a declared dtype; None is bytes.
Dtype = np.dtype | None


@dataclass(frozen=True)
class FixedLenFeature:
    """A feature with the same shape in every record.

    Args:
      shape: shape without the batch axis; `()` is a single value.
      dtype: a numpy dtype, or `"bytes"`. A value out of the dtype's range is an error (int64 300
        declared `uint8` never becomes 44), and so are floats declared as integers.
      default_value: the value for records without the feature, broadcast to the shape. Without
        it, such a record is an error.
      key: the feature's name in the record, if it differs from the name in the sample.

    Yields an array of `shape` and `dtype`; for bytes of shape `()`, Python bytes.
    Follows `tf.io.FixedLenFeature`.

    >>> spec = {"label": FixedLenFeature((), "int32", key="image/class/label")}
    >>> parse_example(
    ...     bytes.fromhex("0a1c0a1a0a11696d6167652f636c6173732f6c6162656c12051a030a0107"), spec
    ... )
    {'label': array(7, dtype=int32)}
    """

    shape: Sequence[int] = ()
    dtype: npt.DTypeLike = "float32"
    default_value: Any = field(default=None, kw_only=True)
    key: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        object.__setattr__(self, "dtype", messages.resolve_dtype(self.dtype))
        for size in self.shape:
            why = "Declare a VarLenFeature where the length differs between records."
            check_int(f"FixedLenFeature got shape={self.shape} with a size of ", size, 0, why)
        if self.default_value is not None:
            # Broadcast once, to a view that cannot be written: every record without the feature
            # gets it.
            dtype = cast(Dtype, self.dtype)
            default = _cast_constant("default_value", self.default_value, dtype)
            default = np.broadcast_to(default, tuple(self.shape))
            # Bytes of shape () are Python's, as they are in records.
            default = default if dtype is not None or self.shape else default.item()
            object.__setattr__(self, "default_value", default)

    def extract(self, name: str, features: messages.FeatureMap) -> Sample:
        """Return `{name: array}`."""
        key = self.key or name
        entry = messages.find_list(features, key)
        if entry is None:
            if self.default_value is None:
                raise missing(key, features)
            return {name: self.default_value}
        # Before the values become an array: a list of another length may be huge.
        size = math.prod(self.shape)
        if len(entry[1]) != size:
            raise FeatureError(
                f"feature {key!r} got {len(entry[1])} values, expected {size}. Its declared shape "
                f"is {self.shape}. Declare the shape the file has, or a VarLenFeature."
            )
        values = messages.convert_list(*entry)
        return {
            name: messages.cast_exactly(values, cast(Dtype, self.dtype), key, tuple(self.shape))
        }


@dataclass(frozen=True)
class VarLenFeature:
    """A feature whose length varies between records.

    Args:
      dtype: a numpy dtype, or `"bytes"`.
      max_length: pad every record to this length, so that all batches have one shape and the
        program compiles once; a longer record is an error. Without it, each batch is padded to
        its longest record, and each new length is a new compilation.
      pad_value: the value to pad with; bytes are padded with `b""` by default.
      key: the feature's name in the record, if it differs from the name in the sample.

    Yields two entries: `name` `[L]`, batched `[B, L]`; and `<name>_length`, the length before
    padding, int32, batched `[B]`. A record without the feature has length 0, as in
    `tf.io.VarLenFeature`.

    >>> VarLenFeature("int64", max_length=3).extract(
    ...     "ids", messages.parse_sequence(build_example({"ids": [4, 5]}))[0]
    ... )
    {'ids': array([4, 5, 0]), 'ids_length': array(2, dtype=int32)}
    """

    dtype: npt.DTypeLike
    max_length: int | None = field(default=None, kw_only=True)
    pad_value: Any = field(default=0, kw_only=True)
    key: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", messages.resolve_dtype(self.dtype))
        pad_value = _resolve_pad_value(self.pad_value, cast(Dtype, self.dtype))
        object.__setattr__(self, "pad_value", pad_value)

    def extract(self, name: str, features: messages.FeatureMap) -> Sample:
        """Return `{name: [L], name_length: []}`."""
        key = self.key or name
        entry = messages.find_list(features, key)
        count = 0 if entry is None else len(entry[1])
        # Before the values become an array, as the list may be huge.
        if self.max_length is not None:
            check_length(f"feature {key!r}", count, self.max_length, "values", "record")
        values = [] if entry is None else messages.convert_list(*entry)
        array = messages.cast_exactly(values, cast(Dtype, self.dtype), key, (count,))
        if self.max_length is not None:
            array = pad(array, self.max_length, self.pad_value)
        return {name: array, f"{name}_length": np.asarray(count, np.int32)}


@dataclass(frozen=True)
class ImageFeature:
    """An encoded JPEG, PNG, WebP, BMP or TIFF, decoded to RGB (or grayscale) uint8.

    Args:
      shape: `(H, W, 3)` or `(H, W, 1)`. `(None, None, 3)` keeps each image's own size, for
        `augment=` or `decode=` to resize.
      resize: how to resize images of another size to `shape`: `"bilinear"`, or `"area"`, which is
        better for large reductions, and decodes large JPEGs at a fraction of their size. With
        `None` an image of another size is an error.
      key: the feature's name in the record; TF-Slim's by default.

    Yields a uint8 array of `shape`. Cast and normalise it in the program, on the device: that
    costs less than transferring four times the bytes.

    >>> ImageFeature((224, 224, 3), resize="bilinear").key
    'image/encoded'
    """

    shape: Sequence[int | None]
    resize: Interpolation | None = field(default=None, kw_only=True)
    key: str = field(default="image/encoded", kw_only=True)

    def __post_init__(self) -> None:
        shape = tuple(None if n is None else int(n) for n in self.shape)
        object.__setattr__(self, "shape", shape)
        if self.resize is not None:
            why = "Images are made larger or smaller in one of these ways."
            ways = get_args(Interpolation)
            check_known("ImageFeature(resize)", self.resize, ways, why, ValueError)
        has_size = shape[:2] != (None, None)
        is_right = all(n is not None and n >= 1 for n in shape) if has_size else not self.resize
        if len(shape) != 3 or shape[-1] not in (1, 3) or not is_right:
            resize = "" if has_size else f" and resize={self.resize!r}"
            raise ValueError(
                f"ImageFeature got shape={shape}{resize}, expected (height, width, 3) or (height, "
                "width, 1), or (None, None, 3) and no resize. Images are decoded to RGB or gray, "
                "channels last. Declare e.g. ImageFeature((224, 224, 3), resize='bilinear')."
            )

    def extract(self, name: str, features: messages.FeatureMap) -> Sample:
        """Return `{name: [H, W, C] uint8}`."""
        entry = messages.find_list(features, self.key)
        if entry is None:
            raise missing(self.key, features)
        # Not converted: of a list of numbers only length and dtype are needed, for the error.
        values = messages.describe_list(*entry)
        remedy = "Pass the key that holds the image."
        encoded = messages.take_bytes(f"feature {self.key!r}", values, remedy)
        height, width, channels = self.shape
        # What "bilinear" makes of a large image is that of all its pixels, as elsewhere.
        enough = max(height or 0, width or 0) if self.resize == "area" else None
        image = decode_image(
            encoded, channels=channels or 3, name=f"feature {self.key!r}", shorter_side=enough
        )
        if height is not None and width is not None:
            image = resize_image(image, height, width, self.resize, name=f"feature {self.key!r}")
        return {name: image}


@dataclass(frozen=True)
class SequenceFeature:
    """A feature list of a `tf.SequenceExample`: one feature per step, a varying number of steps.

    Args:
      step: what each step holds: a `FixedLenFeature`, or an `ImageFeature` with a fixed size (the
        frames of a video). Its own `key` is ignored.
      max_length: pad every record to this number of steps, so that all batches have one shape and
        the program compiles once; a longer record is an error. Without it, each batch is padded
        to its longest record.
      pad_value: the value to pad with; bytes are padded with `b""` by default.
      key: the list's name in the record, if it differs from the name in the sample.

    Yields two entries: `name` `[T, *shape]`, batched `[B, T, *shape]`; and `<name>_length`, the
    number of steps before padding, int32, batched `[B]`. Declare context features like those of a
    `tf.Example`. Follows `tf.io.FixedLenSequenceFeature`.

    >>> record = build_sequence_example({"label": 1}, {"x": [[1.0, 2.0], [3.0, 4.0]]})
    >>> sample = parse_example(record, {"x": SequenceFeature(FixedLenFeature((2,)), max_length=3)})
    >>> sample["x"].tolist(), int(sample["x_length"])
    ([[1.0, 2.0], [3.0, 4.0], [0.0, 0.0]], 2)
    """

    step: FixedLenFeature | ImageFeature
    max_length: int | None = field(default=None, kw_only=True)
    pad_value: Any = field(default=0, kw_only=True)
    key: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.step, (FixedLenFeature, ImageFeature)) or None in self.step.shape:
            raise TypeError(
                f"SequenceFeature got step={self.step!r}, expected a FixedLenFeature, or an "
                "ImageFeature with a size. Pass e.g. SequenceFeature(FixedLenFeature((), 'int32'))."
            )
        object.__setattr__(self, "pad_value", _resolve_pad_value(self.pad_value, self._dtype))

    @property
    def _dtype(self) -> Dtype:
        if isinstance(self.step, ImageFeature):
            return np.dtype(np.uint8)
        return cast(Dtype, self.step.dtype)

    def extract(self, name: str, features: messages.FeatureMap) -> Sample:
        """Return `{name: [T, *shape], name_length: []}` from the feature lists."""
        key = self.key or name
        if key not in features:
            raise missing(key, features)
        steps = features[key].feature
        # Before a step is decoded: each may be an image.
        if self.max_length is not None:
            check_length(f"feature list {key!r}", len(steps), self.max_length, "steps", "record")
        shape = tuple(size or 0 for size in self.step.shape)
        array = np.empty((len(steps), *shape), object if self._dtype is None else self._dtype)
        in_record = self.step.key or key
        for number, step in enumerate(steps):
            try:
                # A step has no name in the record: it gets the one that its feature looks for.
                array[number] = self.step.extract(name, {in_record: step})[name]
            except FeatureError as error:
                raise FeatureError(f"step {number} of the feature list {key!r}: {error}") from None
        if self.max_length is not None:
            array = pad(array, self.max_length, self.pad_value)
        return {name: array, f"{name}_length": np.asarray(len(steps), np.int32)}


def _cast_constant(name: str, value: Any, dtype: Dtype) -> np.ndarray:
    """Return what a feature is filled with, refused where a record's value would be."""
    if dtype is None:
        array = np.asarray(value, object)
        texts = [item.encode() if isinstance(item, str) else item for item in array.flat]
        values: Any = texts if messages.is_list_of_texts(texts) else np.asarray(value).ravel()
        return messages.cast_exactly(values, None, name, (array.size,)).reshape(array.shape)
    array = np.asarray(value)
    return messages.cast_exactly(array.ravel(), dtype, name, array.shape)


def _resolve_pad_value(value: Any, dtype: Dtype) -> Any:
    array = _cast_constant("pad_value", b"" if dtype is None and value == 0 else value, dtype)
    return array.item() if dtype is None else value


Feature = FixedLenFeature | VarLenFeature | ImageFeature | SequenceFeature


def parse_example(payload: bytes, spec: Mapping[str, Feature]) -> Sample:
    """Parse one serialised `tf.Example` or `tf.SequenceExample` into the declared features.

    Raises:
      FeatureError: the payload is not an example, or does not hold what the spec declares.
    """
    features, lists = messages.parse_sequence(payload)
    sample: Sample = {}
    for name, feature in spec.items():
        is_list = isinstance(feature, SequenceFeature)
        # Else a list that was declared as a feature would be read as absent, or as its default.
        if lists and not is_list:
            _check_context(feature.key or name, features, lists)
        extracted = feature.extract(name, lists if is_list else features)
        if sample.keys() & extracted.keys():
            raise FeatureError(
                f"features got {listed(spec)}, expected another name beside {name!r}. A feature of "
                "any length adds its own, <name>_length, before padding."
            )
        sample |= extracted
    return sample


def _check_context(key: str, features: messages.FeatureMap, lists: messages.FeatureMap) -> None:
    if key in lists and key not in features:
        raise FeatureError(
            f"feature {key!r} got a feature list of {len(lists[key].feature)} steps, expected a "
            "feature of the context. The record is a tf.SequenceExample. Declare "
            "SequenceFeature(FixedLenFeature(...)) to read the list."
        )


def build_example(values: Mapping[str, object]) -> bytes:
    """Serialise values as a `tf.Example`: floats as float, ints and bools as int64, bytes, str.

    Arrays are flattened. Names are written in sorted order: equal values give equal bytes.

    Raises:
      FeatureError: a value of another type, or an integer out of int64's range.

    >>> build_example({"image/class/label": 7}).hex()
    '0a1c0a1a0a11696d6167652f636c6173732f6c6162656c12051a030a0107'
    """
    return build_sequence_example(values, {})


def build_sequence_example(
    context: Mapping[str, object], feature_lists: Mapping[str, Sequence[object]]
) -> bytes:
    """Serialise values as a `tf.SequenceExample`: a context and feature lists.

    Args:
      context: name to value, as for `build_example`.
      feature_lists: name to a list with one value per step, each as for `build_example`.

    Raises:
      FeatureError: a value of another type, or an integer out of int64's range.

    >>> len(build_sequence_example({}, {"words": ["two", "steps"]}))
    33
    """
    example = messages.SequenceExample()
    # Sorted here, as protobuf's deterministic order of a map is not promised between releases.
    for name in sorted(context):
        feature = example.context.feature[name]
        messages.fill_feature(feature, name, context[name], has_narrow_types=False)
    for name in sorted(feature_lists):
        steps = example.feature_lists.feature_list[name].feature
        for value in feature_lists[name]:
            messages.fill_feature(steps.add(), name, value, has_narrow_types=False)
    return example.SerializeToString(deterministic=True)


def missing(key: str, features: messages.FeatureMap) -> FeatureError:
    """Return the error of a record without a feature it must have."""
    names = sorted(features)
    expected = f"one of {listed(names[:20])}" if names else "a record with features"
    return FeatureError(
        f"feature {key!r} got nothing, expected {expected}. The record does not hold it and it has "
        f"no default. Declare a default_value or another key.{nearest(key, names)}"
    )
