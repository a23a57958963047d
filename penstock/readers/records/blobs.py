"""OneFlow's blobs: what an OFRecord holds, and the codec that turns it into an array."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock.readers._errors import FeatureError
from penstock.readers.records import messages
from penstock.readers.records.features import missing
from penstock.readers.records.image_decoding import ImageError, decode_bgr
from penstock.readers.records.preprocessors import (
    NormByChannelPreprocessor,
    Preprocessor,
    Random,
    run_preprocessors,
)

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ImageCodec:
    """Decode one JPEG or PNG to BGR, run the image preprocessors, then cast to the blob's dtype.

    The result must have exactly the blob's shape, `(H, W, 3)` or `(H, W, 1)`. The last size
    decides between colour and grayscale. Follows `oneflow.data.ImageCodec`.

    Args:
      image_preprocessors: run in order on the decoded image, e.g. `ImageResizePreprocessor`.

    >>> ImageCodec().is_random
    False
    """

    image_preprocessors: Sequence[Preprocessor] = ()

    @property
    def is_random(self) -> bool:
        """Return whether a preprocessor is random."""
        return any(step.is_random for step in self.image_preprocessors)

    def decode(
        self, values: messages.Values, name: str, shape: Shape, dtype: np.dtype, random: Random
    ) -> np.ndarray:
        """Return `[H, W, C]`."""
        if isinstance(values, np.ndarray) or len(values) != 1:
            raise FeatureError(
                f"blob {name!r} got {len(values)} values of {messages.dtype_name(values)}, "
                "expected 1 of bytes. Use RawCodec for pixels stored as numbers."
            )
        # Any other shape is refused below, by the shape that the image has.
        channels = shape[-1] if len(shape) == 3 and shape[-1] in (1, 3) else 3
        image = decode_bgr(values[0], channels=channels, name=f"blob {name!r}")
        image = run_preprocessors(self.image_preprocessors, image, random)
        if image.shape != shape:
            raise ImageError(
                f"blob {name!r} got an image of shape {image.shape}, expected {shape}. Add "
                "ImageResizePreprocessor(width, height) to the codec."
            )
        return image.astype(dtype)


@dataclass(frozen=True)
class RawCodec:
    """Read numbers that are stored as they are: a list of floats or integers, or one bytes value.

    Args:
      auto_zero_padding: pad a list shorter than the blob's shape with zeros.

    As in OneFlow, each byte is one signed element: byte 255 is -1 in a float blob, and 255 again
    in a `uint8` blob. Follows `oneflow.data.RawCodec`.

    >>> codec = RawCodec(auto_zero_padding=True)
    >>> codec.decode(np.asarray([1, 2]), "x", (3,), np.dtype("float32"), None).tolist()
    [1.0, 2.0, 0.0]
    """

    auto_zero_padding: bool = False
    is_random: bool = field(default=False, init=False)

    def decode(
        self, values: messages.Values, name: str, shape: Shape, dtype: np.dtype, random: Random
    ) -> np.ndarray:
        """Return the array."""
        if not isinstance(values, np.ndarray):
            if len(values) != 1:
                raise FeatureError(
                    f"blob {name!r} got {len(values)} values of bytes, expected 1. RawCodec reads "
                    "one bytes value, an element a byte. Use BytesListCodec for several."
                )
            values = np.frombuffer(values[0], np.int8)
        size = math.prod(shape)
        if len(values) != size and not (self.auto_zero_padding and len(values) < size):
            most = "at most " if self.auto_zero_padding else ""
            raise FeatureError(
                f"blob {name!r} got {len(values)} values, expected {most}{size}. Its shape is "
                f"{shape}. Declare the shape the records have, or RawCodec(auto_zero_padding=True)."
            )
        array = np.zeros(size, dtype)
        # OneFlow's cast is C's: a value that does not fit is no error.
        with np.errstate(invalid="ignore", over="ignore"):
            array[: len(values)] = values.astype(dtype)
        return array.reshape(shape)


@dataclass(frozen=True)
class BytesListCodec:
    """Read several bytes values as rows, each padded with zeros to the blob's width.

    The blob's shape is `(rows, width)` and its dtype `int8` or `uint8`. More values than rows, or
    a value longer than the width, is an error; missing rows are zeros. Follows OneFlow's
    `BytesListCodec`.

    >>> BytesListCodec().decode([b"ab", b"c"], "s", (3, 2), np.dtype("uint8"), None).tolist()
    [[97, 98], [99, 0], [0, 0]]
    """

    is_random: bool = field(default=False, init=False)

    def decode(
        self, values: messages.Values, name: str, shape: Shape, dtype: np.dtype, random: Random
    ) -> np.ndarray:
        """Return `[rows, width]`."""
        if isinstance(values, np.ndarray) or len(shape) != 2 or dtype.itemsize != 1:
            raise FeatureError(
                f"blob {name!r} got values of {messages.dtype_name(values)} for shape {shape} and "
                f"dtype {dtype}, expected bytes, a shape (rows, width) and dtype int8 or uint8. "
                "BytesListCodec gives a row a bytes value. Use RawCodec for numbers."
            )
        longest = max(map(len, values), default=0)
        if len(values) > shape[0] or longest > shape[1]:
            raise FeatureError(
                f"blob {name!r} got {len(values)} values of up to {longest} bytes, expected at "
                f"most {shape[0]} of {shape[1]}. Values are padded, never cut. Declare a larger "
                "shape."
            )
        array = np.zeros(shape, dtype)
        for row, value in zip(array, values, strict=False):
            row[: len(value)] = np.frombuffer(value, dtype)
        return array


Codec = ImageCodec | RawCodec | BytesListCodec


@dataclass(frozen=True)
class BlobConf:
    """One array of an OFRecord sample, declared as in `oneflow.data.BlobConf`.

    Args:
      name: the feature's name in the record.
      shape: shape without the batch axis; `()` is one value.
      dtype: a numpy dtype, or its name.
      codec: `ImageCodec`, `RawCodec` or `BytesListCodec`.
      preprocessors: run on the decoded array, e.g. `NormByChannelPreprocessor`.

    >>> BlobConf("class/label", shape=(), dtype="int32", codec=RawCodec()).shape
    ()
    """

    name: str
    shape: Sequence[int]
    dtype: npt.DTypeLike
    codec: Codec
    preprocessors: Sequence[Preprocessor] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        object.__setattr__(self, "preprocessors", tuple(self.preprocessors or ()))
        try:
            resolved = np.dtype(self.dtype)
        except TypeError:
            resolved = None
        if resolved is None or resolved.kind not in "biuf" or min(self.shape, default=0) < 0:
            raise ValueError(
                f"BlobConf({self.name!r}) got shape={self.shape}, dtype={self.dtype!r}, expected "
                "sizes >= 0 and a numeric dtype. Declare e.g. shape=(227, 227, 3), dtype='float32'."
            )
        object.__setattr__(self, "dtype", resolved)
        is_normalised = any(isinstance(p, NormByChannelPreprocessor) for p in self.preprocessors)
        if is_normalised and resolved.kind != "f":
            raise ValueError(
                f"BlobConf({self.name!r}) got dtype={resolved} with NormByChannelPreprocessor, "
                "expected a float dtype. Declare dtype='float32'."
            )

    @property
    def is_random(self) -> bool:
        """Return whether decoding it draws random numbers."""
        return self.codec.is_random or any(step.is_random for step in self.preprocessors)

    def decode(self, features: messages.FeatureMap, random: Random) -> np.ndarray:
        """Return the blob of one parsed record.

        Raises:
          RecordError: the record does not hold what is declared.
        """
        found = messages.find_list(features, self.name)
        if found is None:
            raise missing(self.name, features)
        shape, dtype = tuple(self.shape), np.dtype(self.dtype)
        # What these refuse is not made an array first.
        is_refused = isinstance(self.codec, (ImageCodec, BytesListCodec)) or (
            isinstance(self.codec, RawCodec) and len(found[1]) > math.prod(shape)
        )
        values = messages.describe_list(*found) if is_refused else messages.convert_list(*found)
        array = self.codec.decode(values, self.name, shape, dtype, random)
        return run_preprocessors(self.preprocessors, array, random)


def parse_ofrecord(
    payload: bytes, blobs: Sequence[BlobConf], random: Random = None
) -> tuple[np.ndarray, ...]:
    """Parse one serialised OFRecord into the declared blobs, in their order.

    Raises:
      RecordError: the payload is not an OFRecord, or does not hold what the blobs declare.

    >>> label = BlobConf("class/label", shape=(), dtype="int32", codec=RawCodec())
    >>> parse_ofrecord(bytes.fromhex("0a140a0b636c6173732f6c6162656c120522030a0107"), [label])
    (array(7, dtype=int32),)
    """
    features = messages.parse_ofrecord_features(payload)
    return tuple(blob.decode(features, random) for blob in blobs)


def build_ofrecord(values: Mapping[str, object]) -> bytes:
    """Serialise values as an OFRecord: int32, int64, float, double and bytes lists by dtype.

    Python ints become int32 if they fit, else int64. Python floats become float.

    Raises:
      FeatureError: a value of another type, or an integer out of int64's range.

    >>> build_ofrecord({"class/label": 7}).hex()
    '0a140a0b636c6173732f6c6162656c120522030a0107'
    """
    record = messages.OFRecord()
    for name in sorted(values):
        value = values[name]
        # Python's numbers have no dtype to keep: ints take the narrowest list, floats the usual.
        # As an array each text would take as much memory as the longest.
        is_text = isinstance(value, bytes) or messages.is_list_of_texts(value)
        if not is_text and not isinstance(value, (np.ndarray, np.generic)):
            array = np.asarray(value)
            if array.dtype == np.float64 and array.size:
                value = array.astype(np.float32)
            elif array.dtype == np.int64 and array.size:
                limits = np.iinfo(np.int32)
                is_narrow = array.min() >= limits.min and array.max() <= limits.max
                value = array.astype(np.int32) if is_narrow else array
        messages.fill_feature(record.feature[name], name, value, has_narrow_types=True)
    return record.SerializeToString(deterministic=True)
