"""What the first bytes of an image file say: its kind, and how many pixels it claims."""

from __future__ import annotations

import math
import struct

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


def find_kind(encoded: bytes) -> str | None:
    """Return the kind of an image file, which need not be one that is decoded; None of others.

    >>> find_kind(b"RIFF....WEBPVP8 "), find_kind(b"a text")
    ('WebP', None)
    """
    is_bmp = encoded[:2] == b"BM" and int.from_bytes(encoded[14:18], "little") in _BMP_HEADERS
    is_at = ((kind, encoded[at : at + len(mark)] == mark) for at, mark, kind in _MARKS)
    return "BMP" if is_bmp else next((kind for kind, is_there in is_at if is_there), None)


def image_size(encoded: bytes) -> tuple[int, int] | None:
    """Return (height, width) from the header of an image that is decoded; None of anything else.

    Of a PNG too whose chunks are not whole it is None. Of a TIFF in tiles larger than the image it
    is the size of a tile, which is what is decoded.

    >>> from penstock._images import encode_png
    >>> import numpy as np
    >>> image_size(encode_png(np.zeros((4, 6, 3), np.uint8)))
    (4, 6)
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
