"""OneFlow's blobs: what an OFRecord holds, the codecs that make arrays of it, and preprocessors.

Names and arguments are those of `oneflow.data`. Image preprocessors see `[H, W, C]` uint8 in BGR,
opencv's order; value preprocessors see the blob's array in its declared dtype. What is random
draws from `(seed, epoch, record)`, so that a resumed run sees the same images.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from penstock._errors import check_int, check_known
from penstock._image_resizing import resize
from penstock.readers._errors import FeatureError
from penstock.readers.records import messages
from penstock.readers.records.features import missing
from penstock.readers.records.image_decoding import ImageError, decode_bgr

Random = np.random.Generator | None


class Preprocessor(Protocol):
    """One step over an array."""

    @property
    def is_random(self) -> bool:
        """Return whether it draws random numbers."""
        ...

    def __call__(self, array: np.ndarray, random: Random) -> np.ndarray:
        """Return the processed array.

        Raises:
          RecordError: the array has a shape it cannot process.
        """
        ...


@dataclass(frozen=True)
class _SizedPreprocessor:
    """What the preprocessors to a size share. Width comes first, as in OneFlow."""

    width: int
    height: int

    def __post_init__(self) -> None:
        for name in ("width", "height"):
            why = "It counts pixels. Pass the width, then the height."
            check_int(f"{type(self).__name__} got {name}=", getattr(self, name), 1, why)


@dataclass(frozen=True)
class ImageResizePreprocessor(_SizedPreprocessor):
    """Resize to `[height, width, C]`, bilinear. Width comes first, as in OneFlow.

    >>> ImageResizePreprocessor(6, 4)(np.zeros((8, 8, 3), np.uint8), None).shape
    (4, 6, 3)
    """

    is_random: bool = field(default=False, init=False)

    def __call__(self, array: np.ndarray, random: Random) -> np.ndarray:
        """Return the resized image."""
        return _resize(array, self.height, self.width)


@dataclass(frozen=True)
class ImagePreprocessor:
    """Swap blue and red (`"bgr2rgb"`), or flip horizontally with probability 0.5 (`"mirror"`).

    >>> ImagePreprocessor("bgr2rgb")(np.asarray([[[1, 2, 3]]], np.uint8), None).tolist()
    [[[3, 2, 1]]]
    """

    preprocessor: Literal["bgr2rgb", "mirror"]

    def __post_init__(self) -> None:
        why = "OneFlow knows no other by name."
        names = ("bgr2rgb", "mirror")
        check_known("ImagePreprocessor", self.preprocessor, names, why, ValueError)

    @property
    def is_random(self) -> bool:
        """Return whether it flips at random."""
        return self.preprocessor == "mirror"

    def __call__(self, array: np.ndarray, random: Random) -> np.ndarray:
        """Return the image with colours swapped, or mirrored or not."""
        if self.preprocessor == "bgr2rgb":
            return array[..., ::-1]
        return array[:, ::-1] if _get_generator(random).random() < 0.5 else array


@dataclass(frozen=True)
class ImageCropPreprocessor(_SizedPreprocessor):
    """Crop `[height, width, C]` at a random position, or at the top left with `random_xy=False`.

    >>> ImageCropPreprocessor(2, 3, random_xy=False)(np.zeros((8, 8, 3), np.uint8), None).shape
    (3, 2, 3)
    """

    random_xy: bool = field(default=True, kw_only=True)

    @property
    def is_random(self) -> bool:
        """Return whether the position is random."""
        return self.random_xy

    def __call__(self, array: np.ndarray, random: Random) -> np.ndarray:
        """Return the part.

        Raises:
          ImageError: the image is smaller than the part.
        """
        high, wide = array.shape[0] - self.height, array.shape[1] - self.width
        if high < 0 or wide < 0:
            raise ImageError(
                f"ImageCropPreprocessor got an image of {array.shape[0]} x {array.shape[1]}, "
                f"expected at least {self.height} x {self.width}. Resize first."
            )
        y, x = (_get_generator(random).integers((high + 1, wide + 1))) if self.random_xy else (0, 0)
        return array[y : y + self.height, x : x + self.width]


@dataclass(frozen=True)
class ImageCenterCropPreprocessor(_SizedPreprocessor):
    """Crop the largest centred region of aspect ratio `width / height`, then resize it.

    >>> ImageCenterCropPreprocessor(4, 4)(np.zeros((8, 16, 3), np.uint8), None).shape
    (4, 4, 3)
    """

    is_random: bool = field(default=False, init=False)

    def __call__(self, array: np.ndarray, random: Random) -> np.ndarray:
        """Return the resized centre."""
        rows, columns = array.shape[:2]
        high = max(1, min(rows, columns * self.height // self.width))
        wide = max(1, min(columns, rows * self.width // self.height))
        y, x = (rows - high) // 2, (columns - wide) // 2
        return _resize(array[y : y + high, x : x + wide], self.height, self.width)


@dataclass(frozen=True)
class ImageRandomSizeCropPreprocessor(_SizedPreprocessor):
    """Crop a random area and aspect ratio, then resize: OneFlow's `crop_with_random_size`.

    If no crop fits within `max_num_attempts` draws, the centre is taken instead.

    Args:
      aspect_ratio: range of the crop's width / height.
      area: range of the crop's area, as a fraction of the image's.
      max_num_attempts: number of draws.

    >>> crop = ImageRandomSizeCropPreprocessor(4, 4)
    >>> crop(np.zeros((8, 16, 3), np.uint8), np.random.default_rng(0)).shape
    (4, 4, 3)
    """

    aspect_ratio: tuple[float, float] = field(default=(0.75, 1.33), kw_only=True)
    area: tuple[float, float] = field(default=(0.05, 1.0), kw_only=True)
    max_num_attempts: int = field(default=100, kw_only=True)
    is_random: bool = field(default=True, init=False)

    def __call__(self, array: np.ndarray, random: Random) -> np.ndarray:
        """Return the resized part."""
        generator = _get_generator(random)
        rows, columns = array.shape[:2]
        for _ in range(self.max_num_attempts):
            area = rows * columns * generator.uniform(*self.area)
            ratio = generator.uniform(*self.aspect_ratio)
            high, wide = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if 0 < high <= rows and 0 < wide <= columns:
                y, x = generator.integers((rows - high + 1, columns - wide + 1))
                return _resize(array[y : y + high, x : x + wide], self.height, self.width)
        # As OneFlow does, where no part fits: every image gives a sample.
        return ImageCenterCropPreprocessor(self.width, self.height)(array, None)


@dataclass(frozen=True)
class NormByChannelPreprocessor:
    """Normalise each channel of a float blob: `(x - mean) / std`.

    Args:
      mean: one value per channel.
      std: one value per channel, or one for all.
      data_format: `"channels_last"`, `"channels_first"`, or `"no_channel"` with one mean.

    Means are in the order of the image's channels: BGR, unless `ImagePreprocessor("bgr2rgb")`
    comes before. (OneFlow's AlexNet example subtracts RGB means from BGR images.)

    >>> norm = NormByChannelPreprocessor((1.0, 2.0, 3.0))
    >>> norm(np.full((1, 1, 3), 3.0, np.float32), None).tolist()
    [[[2.0, 1.0, 0.0]]]
    """

    mean: Sequence[float]
    std: Sequence[float] = (1.0, 1.0, 1.0)
    data_format: Literal["channels_last", "channels_first", "no_channel"] = "channels_last"
    is_random: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        mean = tuple(float(value) for value in np.atleast_1d(self.mean))
        std = tuple(float(value) for value in np.atleast_1d(self.std))
        # The default of three ones suits any number of channels.
        std = std[:1] if len(set(std)) == 1 else std
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "std", std)
        formats = ("channels_last", "channels_first", "no_channel")
        if self.data_format not in formats or len(std) not in (1, len(mean)) or 0.0 in std:
            raise ValueError(
                f"NormByChannelPreprocessor got {len(mean)} means, std={std}, "
                f"data_format={self.data_format!r}, expected one non-zero std a mean and a "
                f"data_format of {formats}. Give one value a channel."
            )

    def __call__(self, array: np.ndarray, random: Random) -> np.ndarray:
        """Return the normalised array.

        Raises:
          FeatureError: the array has another number of channels than means.
        """
        axis = {"channels_last": -1, "channels_first": 0, "no_channel": None}[self.data_format]
        channels = 1 if axis is None else array.shape[axis] if array.ndim else 0
        if channels != len(self.mean):
            raise FeatureError(
                f"NormByChannelPreprocessor got shape {array.shape} with "
                f"data_format={self.data_format!r}, expected {len(self.mean)} channels. There is "
                "one mean a channel. Give one mean a channel, or another data_format."
            )
        mean, std = np.asarray(self.mean, np.float32), np.asarray(self.std, np.float32)
        if self.data_format == "channels_first":
            shape = (-1,) + (1,) * (array.ndim - 1)
            mean, std = mean.reshape(shape), std.reshape(shape)
        return ((array - mean) / std).astype(array.dtype, copy=False)


def run_preprocessors(
    preprocessors: Sequence[Preprocessor], array: np.ndarray, random: Random
) -> np.ndarray:
    """Return the array after every preprocessor in turn."""
    for preprocessor in preprocessors:
        array = preprocessor(array, random)
    return array


def _resize(image: np.ndarray, height: int, width: int) -> np.ndarray:
    # opencv refuses a mirrored view, whose strides are negative.
    return resize(np.ascontiguousarray(image), height, width, "bilinear")


def _get_generator(random: Random) -> np.random.Generator:
    # Called by hand, without a reader and so without a seed.
    return np.random.default_rng() if random is None else random


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
        remedy = "Use RawCodec for pixels stored as numbers."
        encoded = messages.take_bytes(f"blob {name!r}", values, remedy)
        # Any other shape is refused below, by the shape that the image has.
        channels = shape[-1] if len(shape) == 3 and shape[-1] in (1, 3) else 3
        image = decode_bgr(encoded, channels=channels, name=f"blob {name!r}")
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
            remedy = "RawCodec takes a byte for an element. Use BytesListCodec for several values."
            stored = messages.take_bytes(f"blob {name!r}", values, remedy)
            values = np.frombuffer(stored, np.int8)
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
                f"most {shape[0]} of {shape[1]}. They are padded, not cut. Declare a larger shape."
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
        entry = messages.find_list(features, self.name)
        if entry is None:
            raise missing(self.name, features)
        shape, dtype = tuple(self.shape), np.dtype(self.dtype)
        # What these refuse is not made an array first.
        is_refused = isinstance(self.codec, (ImageCodec, BytesListCodec)) or (
            isinstance(self.codec, RawCodec) and len(entry[1]) > math.prod(shape)
        )
        values = messages.describe_list(*entry) if is_refused else messages.convert_list(*entry)
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
