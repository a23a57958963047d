"""Encoded images: JPEG and PNG bytes to arrays, with a bound on what they may claim."""

from __future__ import annotations

import errno
import os
import stat
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np

from penstock._images import Interpolation, resize
from penstock.readers.records.errors import ImageError

# 8192 x 8192. A kilobyte of PNG may claim 10^18 pixels, which opencv would allocate.
_MAX_PIXELS = 1 << 26
# Noise of as many pixels takes 200 MB without compression.
_MAX_FILE_BYTES = 1 << 29
_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_JPEG_MAGIC = b"\xff\xd8"
_PNG_END = b"\0\0\0\0IEND\xae\x42\x60\x82"
_JPEG_END = b"\xff\xd9"
# Where in a file of another kind its name is: pictures from the web and of phones.
_OTHER_KINDS = (
    (0, b"GIF8", "GIF"),
    (0, b"BM", "BMP"),
    (0, b"II*\0", "TIFF"),
    (0, b"MM\0*", "TIFF"),
    (8, b"WEBP", "WebP"),
    (4, b"ftypavif", "AVIF"),
    (4, b"ftyphe", "HEIC"),
    (4, b"ftypmif1", "HEIC"),
)
# What says that there is no such file; anything else is a failure of the disk.
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EACCES, errno.EISDIR)
# C0 to CF begin a frame, but for Huffman tables, a reserved one and arithmetic coding's.
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def image_size(encoded: bytes) -> tuple[int, int] | None:
    """Return (height, width) from the header of a whole PNG or a JPEG; `None` for anything else.

    >>> from penstock._images import encode_png
    >>> image_size(encode_png(np.zeros((4, 6, 3), np.uint8)))
    (4, 6)
    """
    if encoded[:8] == _PNG_MAGIC and len(encoded) >= 24:
        width, height = struct.unpack_from(">II", encoded, 16)
        # opencv allocates what a chunk claims before it reads it: up to 4 GiB by a damaged length.
        return (height, width) if _has_whole_chunks(encoded) else None
    if encoded[:2] != _JPEG_MAGIC:
        return None
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


def _has_whole_chunks(png: bytes) -> bool:
    at = len(_PNG_MAGIC)
    while at + 12 <= len(png):
        at += 12 + int.from_bytes(png[at : at + 4], "big")
        if at <= len(png) and png[at - 8 : at - 4] == b"IEND":
            return True
    return False


def read_image(path: str | Path) -> bytes:
    """Return the bytes of an image file; only the first 12 if they are not those of an image.

    Raises:
      ImageError: no plain file that can be read (a broken link too), or one of 512 MiB and more.
      OSError: the disk fails.
    """
    with _open_image(path) as file:
        head = file.read(len(_PNG_MAGIC))
        return head + file.read(_MAX_FILE_BYTES if _begins_as_image(head) else 4)


def is_whole_image(path: str | Path) -> bool:
    """Say whether a file begins and ends as a JPEG or PNG does.

    A file that goes on after the image, as some phones write it, or is cut, is decoded, at an
    eighth of its size; only these are read whole. Other damage shows when an image is decoded.

    Raises:
      OSError: the disk fails.
    """
    import cv2

    try:
        with _open_image(path) as file:
            head = file.read(len(_PNG_MAGIC))
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - len(_PNG_END)))
            ends = file.read().endswith(_PNG_END if head == _PNG_MAGIC else _JPEG_END)
        if _begins_as_image(head) and not ends:
            _decode(read_image(path), cv2.IMREAD_REDUCED_GRAYSCALE_8, str(path))
        return _begins_as_image(head)
    except ImageError:
        return False


def _begins_as_image(head: bytes) -> bool:
    return head == _PNG_MAGIC or head.startswith(_JPEG_MAGIC)


def _open_image(path: str | Path) -> BinaryIO:
    """Open a plain file.

    Raises: as `read_image`.
    """
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
    """Decode JPEG or PNG bytes to `[H, W, channels]` uint8, RGB or gray.

    EXIF orientation is ignored, as TensorFlow and OneFlow ignore it; alpha is dropped.

    Args:
      encoded: the bytes of a file.
      channels: 3 for RGB, 1 for gray.
      is_upright: turn the image as EXIF orientation says; a phone's may be stored on its side.
      name: of the image in errors.
      shorter_side: how many pixels of it are enough; a JPEG of at least twice as many is then
        decoded at a half, a quarter or an eighth of its size.

    Raises:
      ImageError: not a JPEG or PNG, damaged, or larger than 2**26 pixels.

    >>> from penstock._images import encode_png
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


def store_upright(encoded: bytes, *, name: str = "image") -> tuple[bytes, tuple[int, int]]:
    """Return the bytes of an image that is upright as stored, and its (height, width).

    They are the same bytes unless EXIF turns the image; then it is encoded again, a JPEG at quality
    95 with all its colours, in which a pixel changes by a few steps of 255.

    Raises:
      ImageError: as `decode_image`.

    >>> from penstock._images import encode_png
    >>> png = encode_png(np.zeros((4, 6, 3), np.uint8))
    >>> store_upright(png) == (png, (4, 6))
    True
    """
    import cv2

    stored = decode_image(encoded, name=name)
    # JPEG's segment, PNG's chunk: others are not decoded twice.
    if b"Exif\0\0" in encoded or b"eXIf" in encoded:
        upright = decode_image(encoded, is_upright=True, name=name)
        if not np.array_equal(upright, stored):
            suffix = ".png" if encoded[:8] == _PNG_MAGIC else ".jpg"
            # Colours at full resolution, as a turned one's would be thinned along the other axis.
            full = cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444
            quality = [cv2.IMWRITE_JPEG_QUALITY, 95, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, full]
            bgr = cv2.cvtColor(upright, cv2.COLOR_RGB2BGR)
            encoded = cv2.imencode(suffix, bgr, quality if suffix == ".jpg" else [])[1].tobytes()
            stored = upright
    return encoded, (stored.shape[0], stored.shape[1])


def _choose_part(encoded: bytes, shorter_side: int) -> int:
    """Return 1, 2, 4 or 8: an image of this part of the size still has the shorter side."""
    size = image_size(encoded)
    # Of other kinds of files opencv decodes the whole image, and shrinks it without a filter.
    if size is None or encoded[:2] != _JPEG_MAGIC:
        return 1
    return next(part for part in (8, 4, 2, 1) if part == 1 or min(size) // part >= shorter_side)


def decode_bgr(encoded: bytes, *, channels: int = 3, name: str = "image") -> np.ndarray:
    """Decode to `[H, W, channels]` uint8 in opencv's (and OneFlow's) BGR order.

    Raises:
      ImageError: as `decode_image`.
    """
    import cv2

    flag = cv2.IMREAD_COLOR_BGR if channels == 3 else cv2.IMREAD_GRAYSCALE
    return _decode(encoded, flag | cv2.IMREAD_IGNORE_ORIENTATION, name)


def _decode(encoded: bytes, flag: int, name: str) -> np.ndarray:
    import cv2

    size = image_size(encoded)
    if size is None and (kind := _find_other_kind(encoded)):
        raise ImageError(
            name,
            f"an image in the format {kind}",
            "a JPEG or PNG",
            "Only these are decoded",
            "Convert it to one of them or remove it; a reader leaves it out with on_error='skip'",
        )
    if size is None or not 0 < size[0] * size[1] <= _MAX_PIXELS:
        claimed = f"{size[0]} x {size[1]} pixels" if size else f"bytes {encoded[:8].hex()!r}..."
        raise _build_image_error(name, claimed, f"a JPEG or PNG of 1 to {_MAX_PIXELS} pixels")
    data = np.frombuffer(encoded, np.uint8)
    try:
        image = cv2.imdecode(data, flag)
    except cv2.error as error:
        raise _build_image_error(name, f"opencv error {error.code}", "a JPEG or PNG") from None
    if image is None:
        raise _build_image_error(
            name, f"{len(encoded)} bytes opencv cannot decode", "a JPEG or PNG"
        )
    # opencv gives gray images without an axis of channels.
    return image if image.ndim == 3 else image[..., None]


def _find_other_kind(encoded: bytes) -> str | None:
    is_at = ((kind, encoded[at : at + len(mark)] == mark) for at, mark, kind in _OTHER_KINDS)
    return next((kind for kind, is_there in is_at if is_there), None)


def resize_image(
    image: np.ndarray, height: int, width: int, how: Interpolation | None, *, name: str = "image"
) -> np.ndarray:
    """Return `[height, width, C]`; an image that has the size already is returned as it is.

    Raises:
      ImageError: it has another size and `how` is `None`.

    >>> resize_image(np.zeros((8, 8, 1), np.uint8), 4, 6, "bilinear").shape
    (4, 6, 1)
    """
    if image.shape[:2] == (height, width):
        return image
    if how is None:
        raise ImageError(
            name,
            f"an image of {image.shape[0]} x {image.shape[1]}",
            f"{height} x {width}",
            "The declared shape has another size and no resize is declared",
            "Pass resize='bilinear'",
        )
    return resize(image, height, width, how)


def _build_image_error(name: str, got: str, expected: str) -> ImageError:
    return ImageError(
        name,
        got,
        expected,
        "The bytes are damaged or hold something else",
        "Write it again or remove it; a reader leaves it out with on_error='skip'",
    )
