"""Encoded images: bytes to arrays, with a bound on what they may claim."""

from __future__ import annotations

import errno
import math
import os
import stat
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from penstock._image_resizing import Interpolation, resize
from penstock.readers._errors import RecordError

# 8192 x 8192. A kilobyte of PNG may claim 10^18 pixels, which opencv would allocate.
_MAX_PIXELS = 1 << 26
# Noise of as many pixels takes 200 MB without compression.
_MAX_FILE_BYTES = 1 << 29
_PNG_END = b"\0\0\0\0IEND\xae\x42\x60\x82"
_ENDS = {"PNG": _PNG_END, "JPEG": b"\xff\xd9"}
DECODED = "a JPEG, PNG, WebP, BMP or TIFF"
"""What is decoded, in words."""
# What says that there is no such file; anything else is a failure of the disk.
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EACCES, errno.EISDIR)
KINDS = ("JPEG", "PNG", "WebP", "BMP", "TIFF")
"""The kinds of images that are decoded."""
HEAD_BYTES = 18
"""So many bytes of a file say its kind."""
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
# Where in a file its kind stands; those of phones and of the web that are not decoded too.
_MARKS = (
    (0, b"\xff\xd8", "JPEG"),
    (0, PNG_MAGIC, "PNG"),
    (8, b"WEBP", "WebP"),
    (0, b"II*\0", "TIFF"),
    (0, b"MM\0*", "TIFF"),
    (0, b"GIF8", "GIF"),
    (4, b"ftypavif", "AVIF"),
    (4, b"ftyphe", "HEIC"),
    (4, b"ftypmif1", "HEIC"),
)
# The two letters of a BMP begin texts too: the length of its second header is one of these.
_BMP_HEADERS = (12, 40, 52, 56, 64, 108, 124)
# C0 to CF begin a frame, but for Huffman tables, a reserved one and arithmetic coding's.
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_TIFF_WIDTH, _TIFF_HEIGHT, _TIFF_TILE_WIDTH, _TIFF_TILE_HEIGHT = 256, 257, 322, 323


class ImageError(RecordError):
    """Encoded bytes are no image opencv can decode, or one of another shape than declared."""


def read_image(path: str | Path) -> bytes:
    """Return the bytes of an image file; only the first 18 if they are not those of an image."""
    with _open_image(path) as file:
        head = file.read(HEAD_BYTES)
        return head + file.read(_MAX_FILE_BYTES) if find_kind(head) in KINDS else head


def is_whole_image(path: str | Path) -> bool:
    """Say whether a file is an image that begins and ends as one of its kind does.

    A JPEG that goes on after the image, as some phones write it, or is cut, is decoded, at an
    eighth of its size; and so are images of kinds without an end. Only these are read whole. Other
    damage shows when an image is decoded.
    """
    import cv2

    try:
        with _open_image(path) as file:
            kind = find_kind(file.read(HEAD_BYTES))
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - len(_PNG_END)))
            is_end = file.read().endswith(_ENDS.get(kind or "", ()))
        if kind in KINDS and not is_end:
            _decode(read_image(path), cv2.IMREAD_REDUCED_GRAYSCALE_8, str(path))
        return kind in KINDS
    except ImageError:
        return False


def _open_image(path: str | Path) -> BinaryIO:
    """Open a plain file."""
    try:
        # Without blocking: to open a pipe would wait for somebody to write to it.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        what = "a broken link" if os.path.islink(path) else f"what cannot be opened ({error})"
        raise _build_image_error(f"'{path}'", what, "a file that can be read") from None
    about = os.fstat(descriptor)
    # A pipe or a device may never end.
    if not stat.S_ISREG(about.st_mode):
        os.close(descriptor)
        raise _build_image_error(f"'{path}'", "a pipe, a device or a folder", "a file")
    if about.st_size >= _MAX_FILE_BYTES:
        os.close(descriptor)
        expected = f"an image file below {_MAX_FILE_BYTES} bytes"
        raise _build_image_error(f"'{path}'", f"{about.st_size} bytes", expected)
    return open(descriptor, "rb")


def decode_image(
    encoded: bytes,
    *,
    channels: int = 3,
    is_upright: bool = False,
    name: str = "image",
    shorter_side: int | None = None,
) -> np.ndarray:
    """Decode a JPEG, PNG, WebP, BMP or TIFF to `[H, W, channels]` uint8, RGB or gray.

    EXIF orientation is ignored, as TensorFlow and OneFlow ignore it, except that of a TIFF; alpha
    is dropped.

    Args:
      encoded: the bytes of a file.
      channels: 3 for RGB, 1 for gray.
      is_upright: turn the image as EXIF orientation says; a phone's may be stored on its side.
      name: of the image in errors.
      shorter_side: how many pixels of it are enough; a JPEG of at least twice as many is then
        decoded at a half, a quarter or an eighth of its size.

    Raises:
      ImageError: of another kind, damaged, or larger than 2**26 pixels.

    >>> from penstock._image_resizing import encode_png
    >>> decode_image(encode_png(np.zeros((4, 6, 3), np.uint8))).shape
    (4, 6, 3)
    """
    import cv2

    flag = cv2.IMREAD_COLOR_RGB if channels == 3 else cv2.IMREAD_GRAYSCALE
    part = 1 if shorter_side is None else _choose_part(encoded, shorter_side)
    if part > 1:
        flag = getattr(cv2, f"IMREAD_REDUCED_{'COLOR' if channels == 3 else 'GRAYSCALE'}_{part}")
    image = _decode(encoded, flag if is_upright else flag | cv2.IMREAD_IGNORE_ORIENTATION, name)
    # There is no flag for a part of the size in this order.
    return np.ascontiguousarray(image[..., ::-1]) if part > 1 and channels == 3 else image


def store_upright(encoded: bytes, *, name: str = "image") -> tuple[bytes, str, tuple[int, int]]:
    """Return an image as a JPEG or PNG that is upright as stored, "jpg" or "png", and its size.

    They are the same bytes unless EXIF turns the image, or it is of another kind. Then it is
    encoded again: a JPEG at quality 95 with all its colours, in which a pixel changes by a few
    steps of 255; anything else as a PNG.

    Returns:
      The bytes, their format, and (height, width).
    """
    import cv2

    kind = find_kind(encoded)
    image_format = "jpg" if kind == "JPEG" else "png"
    image = decode_image(encoded, name=name)
    is_kept = kind in ("JPEG", "PNG")
    # JPEG's segment, PNG's chunk: others are not decoded twice.
    if not is_kept or b"Exif\0\0" in encoded or b"eXIf" in encoded:
        upright = decode_image(encoded, is_upright=True, name=name)
        is_kept = is_kept and np.array_equal(upright, image)
        image = upright
    if not is_kept:
        # Colours at full resolution, as a turned one's would be thinned along the other axis.
        full = cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444
        quality = [cv2.IMWRITE_JPEG_QUALITY, 95, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, full]
        bgr = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
        options = quality if image_format == "jpg" else []
        encoded = cv2.imencode(f".{image_format}", bgr, options)[1].tobytes()
    return encoded, image_format, (image.shape[0], image.shape[1])


def _choose_part(encoded: bytes, shorter_side: int) -> int:
    """Return 1, 2, 4 or 8: an image of this part of the size still has the shorter side."""
    size = image_size(encoded)
    # Of other kinds of files opencv decodes the whole image, and shrinks it without a filter.
    if size is None or find_kind(encoded) != "JPEG":
        return 1
    return next(part for part in (8, 4, 2, 1) if part == 1 or min(size) // part >= shorter_side)


def decode_bgr(encoded: bytes, *, channels: int = 3, name: str = "image") -> np.ndarray:
    """Decode to `[H, W, channels]` uint8 in opencv's (and OneFlow's) BGR order."""
    import cv2

    flag = cv2.IMREAD_COLOR_BGR if channels == 3 else cv2.IMREAD_GRAYSCALE
    return _decode(encoded, flag | cv2.IMREAD_IGNORE_ORIENTATION, name)


def _decode(encoded: bytes, flag: int, name: str) -> np.ndarray:
    import cv2

    kind, size = find_kind(encoded), image_size(encoded)
    if kind is not None and kind not in KINDS:
        raise ImageError(
            f"{name} got an image in the format {kind}, expected {DECODED}. Convert it to one of "
            "them or remove it; a reader leaves it out with on_error='skip'."
        )
    if size is None or not 0 < size[0] * size[1] <= _MAX_PIXELS:
        claimed = f"{size[0]} x {size[1]} pixels" if size else f"bytes {encoded[:8].hex()!r}..."
        raise _build_image_error(name, claimed, f"{DECODED} of 1 to {_MAX_PIXELS} pixels")
    data = np.frombuffer(encoded, np.uint8)
    try:
        image = cv2.imdecode(data, flag)
    except cv2.error as error:
        raise _build_image_error(name, f"opencv error {error.code}", DECODED) from None
    if image is None:
        raise _build_image_error(name, f"{len(encoded)} bytes opencv cannot decode", DECODED)
    # opencv gives gray images without an axis of channels.
    return image if image.ndim == 3 else image[..., None]


def resize_image(
    image: np.ndarray, height: int, width: int, how: Interpolation | None, *, name: str = "image"
) -> np.ndarray:
    """Return `[height, width, C]`; an image that has the size already is returned as it is."""
    if image.shape[:2] == (height, width):
        return image
    if how is None:
        raise ImageError(
            f"{name} got an image of {image.shape[0]} x {image.shape[1]}, expected {height} x "
            f"{width}. Pass resize='bilinear'."
        )
    return resize(image, height, width, how)


def scale_image(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return `[height, width, C]`, smaller or larger."""
    # Bilinear looks at four pixels, so that it skips most of a large image: it would alias.
    is_smaller = height < image.shape[0] or width < image.shape[1]
    return resize_image(image, height, width, "area" if is_smaller else "bilinear")


def convert_channels(image: np.ndarray, num_channels: int) -> np.ndarray:
    """Return an image with so many channels: gray repeated, colours averaged by their lightness."""
    if image.shape[-1] == num_channels:
        return image
    if image.shape[-1] == 1:
        # Gray in three channels, as TF-Slim's decoders give it.
        return np.repeat(image, num_channels, axis=-1)
    import cv2

    return cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[..., np.newaxis]


def decode_small(encoded: bytes, *, channels: int, shorter_side: int, name: str) -> np.ndarray:
    """Return an upright image, scaled down where its shorter side has more pixels than that."""
    image = decode_image(
        encoded, channels=channels, is_upright=True, name=name, shorter_side=shorter_side
    )
    height, width = image.shape[:2]
    scale = min(1, shorter_side / min(height, width))
    return scale_image(image, round(height * scale), round(width * scale))


def decode_as_stored(
    encoded: bytes,
    *,
    channels: int,
    stored: Sequence[int] | None,
    shorter_side: int | None = None,
    name: str = "image",
) -> tuple[np.ndarray, bool]:
    """Return an image as those were that a network was trained on, and whether it was resized.

    Arguments:
      channels: how many the network takes.
      stored: `[H, W, ...]` of the images of its data set, where all had one size: a scan of a digit
        is first made as small as those, since the crop is for images as they were stored.
      shorter_side: that of the images of a folder, which were kept scaled down to it.
    """
    of_decoder = channels if channels in (1, 3) else 3
    if shorter_side is not None:
        small = decode_small(encoded, channels=of_decoder, shorter_side=shorter_side, name=name)
        return convert_channels(small, channels), False
    decoded = decode_image(
        encoded,
        channels=of_decoder,
        is_upright=True,
        name=name,
        shorter_side=None if stored is None else max(stored[:2]),
    )
    is_other = stored is not None and decoded.shape[:2] != tuple(stored[:2])
    if stored is not None and is_other:
        decoded = scale_image(decoded, stored[0], stored[1])
    return convert_channels(decoded, channels), is_other


def _build_image_error(name: str, got: str, expected: str) -> ImageError:
    return ImageError(
        f"{name} got {got}, expected {expected}. The bytes are damaged or hold something else. "
        "Write it again or remove it; a reader leaves it out with on_error='skip'."
    )


def find_kind(encoded: bytes) -> str | None:
    """Return the kind of an image file, which need not be one that is decoded; None of others."""
    is_bmp = encoded[:2] == b"BM" and int.from_bytes(encoded[14:18], "little") in _BMP_HEADERS
    is_at = ((kind, encoded[at : at + len(mark)] == mark) for at, mark, kind in _MARKS)
    return "BMP" if is_bmp else next((kind for kind, is_there in is_at if is_there), None)


def image_size(encoded: bytes) -> tuple[int, int] | None:
    """Return (height, width) from the header of an image that is decoded; None of anything else.

    Of a PNG too whose chunks are not whole it is None. Of a TIFF in tiles larger than the image it
    is the size of a tile, which is what is decoded.
    """
    readers = {
        "JPEG": _read_jpeg,
        "PNG": _read_png,
        "WebP": _read_webp,
        "BMP": _read_bmp,
        "TIFF": _read_tiff,
    }
    read = readers.get(find_kind(encoded) or "")
    try:
        return None if read is None else read(encoded)
    # The header is cut off.
    except (struct.error, IndexError):
        return None


def _read_png(encoded: bytes) -> tuple[int, int] | None:
    width, height = struct.unpack_from(">II", encoded, 16)
    # opencv allocates what a chunk claims before it reads it: up to 4 GiB by a damaged length.
    return (height, width) if _has_whole_chunks(encoded) else None


def _has_whole_chunks(png: bytes) -> bool:
    at = len(PNG_MAGIC)
    while at + 12 <= len(png):
        at += 12 + int.from_bytes(png[at : at + 4], "big")
        if at <= len(png) and png[at - 8 : at - 4] == b"IEND":
            return True
    return False


def _read_jpeg(encoded: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(encoded) and encoded[at] == 0xFF:
        marker = encoded[at + 1]
        if marker in _JPEG_FRAMES:
            return struct.unpack_from(">HH", encoded, at + 5)
        if marker == 0xFF or 0xD0 <= marker <= 0xD7 or marker == 0x01:
            # Fill bytes, and markers without a length.
            at += 1 if marker == 0xFF else 2
        else:
            at += 2 + int.from_bytes(encoded[at + 2 : at + 4], "big")
    return None


def _read_webp(encoded: bytes) -> tuple[int, int] | None:
    chunk = encoded[12:16]
    if chunk == b"VP8X":
        width, height = (int.from_bytes(encoded[at : at + 3], "little") + 1 for at in (24, 27))
        return (height, width) if len(encoded) >= 30 else None
    if chunk == b"VP8L":
        (bits,) = struct.unpack_from("<I", encoded, 21)
        return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
    if chunk == b"VP8 ":
        width, height = struct.unpack_from("<HH", encoded, 26)
        # The two bits above are how it is to be scaled up, which nobody does.
        return height & 0x3FFF, width & 0x3FFF
    return None


def _read_bmp(encoded: bytes) -> tuple[int, int]:
    is_old = encoded[14] == 12
    width, height = struct.unpack_from("<HH" if is_old else "<ii", encoded, 18)
    # Below 0 the rows are stored from the top.
    return abs(height), abs(width)


def _read_tiff(encoded: bytes) -> tuple[int, int] | None:
    order = "<" if encoded[:2] == b"II" else ">"
    (at,) = struct.unpack_from(f"{order}I", encoded, 4)
    (count,) = struct.unpack_from(f"{order}H", encoded, at)
    tags = dict.fromkeys((_TIFF_HEIGHT, _TIFF_WIDTH, _TIFF_TILE_HEIGHT, _TIFF_TILE_WIDTH), 0)
    for entry in range(at + 2, at + 2 + 12 * count, 12):
        tag, kind, length = struct.unpack_from(f"{order}HHI", encoded, entry)
        if tag not in tags:
            continue
        # A short or a long, as the rule is. Of others the number may stand elsewhere in the file.
        if kind not in (3, 4) or length != 1:
            return None
        (value,) = struct.unpack_from(f"{order}{'H' if kind == 3 else 'I'}", encoded, entry + 8)
        tags[tag] = max(tags[tag], value)
    image, tile = (tuple(tags.values())[at : at + 2] for at in (0, 2))
    return max((image[0], image[1]), (tile[0], tile[1]), key=math.prod)
