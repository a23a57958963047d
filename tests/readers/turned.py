"""Images whose EXIF orientation says that they are stored turned, as phones write them."""

import struct
import zlib

import cv2
import numpy as np

# What turns an upright image into what is stored, by the number of the orientation.
STORE = {
    2: lambda image: image[:, ::-1],
    3: lambda image: image[::-1, ::-1],
    4: lambda image: image[::-1],
    6: lambda image: np.rot90(image, 1),
    8: lambda image: np.rot90(image, -1),
}
_COLOURS = np.array([[(200, 40, 40), (40, 200, 40)], [(40, 40, 200), (220, 220, 220)]])


def encode_turned(upright: np.ndarray, orientation: int, suffix: str = ".jpg") -> bytes:
    """Return an image `[H, W, 3]` as a file that stores it turned, and says so."""
    stored = np.ascontiguousarray(STORE[orientation](upright)[..., ::-1])
    encoded = cv2.imencode(suffix, stored)[1].tobytes()
    tag = struct.pack("<HHIHH", 0x0112, 3, 1, orientation, 0)
    tiff = b"II*\0" + struct.pack("<IH", 8, 1) + tag + bytes(4)
    if suffix == ".png":
        chunk = b"eXIf" + tiff
        chunk = struct.pack(">I", len(tiff)) + chunk + struct.pack(">I", zlib.crc32(chunk))
        return encoded[:33] + chunk + encoded[33:]
    segment = b"Exif\0\0" + tiff
    return encoded[:2] + b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment + encoded[2:]


def draw_quarters() -> np.ndarray:
    """Return an image `[16, 32, 3]` of four flat colours, different whichever way it is turned."""
    return np.kron(_COLOURS, np.ones((8, 16, 1))).astype(np.uint8)


def check_quarters(image: np.ndarray) -> None:
    """Raise unless an image is that of `draw_quarters`, as JPEG keeps it."""
    assert image.shape == (16, 32, 3)
    # The middle of each: where colours meet JPEG blurs them.
    np.testing.assert_allclose(image[4::8, 8::16].astype(int), _COLOURS, atol=12)
