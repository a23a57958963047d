"""Pictures of where a network looks for its answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from penstock._files import replacing

ENDING = ".explained.png"
# A digit of 28 pixels is shown as large as this at least.
_MIN_PIXELS = 224
_GAP = 8
# From cold to hot: dark blue, violet, red, orange, yellow.
_COLORS = np.array(
    [[13, 8, 80], [110, 20, 140], [215, 60, 70], [252, 150, 40], [252, 240, 110]], np.float32
)


def choose_names(images: Sequence[Path], folder: Path) -> list[Path]:
    """Return where in a folder the picture of each image goes.

    Images of one name, such as `a/1.png` and `b/1.jpg`, get numbers, and so does a name that an
    image has.

    >>> [path.name for path in choose_names([Path("a/1.png"), Path("b/1.jpg")], Path("out"))]
    ['1.explained.png', '1.explained-2.png']
    """
    taken = set(images)
    names: list[Path] = []
    for image in images:
        path = folder / f"{image.stem}{ENDING}"
        first, number = path, 1
        while path in taken:
            number += 1
            path = first.with_stem(f"{first.stem}-{number}")
        taken.add(path)
        names.append(path)
    return names


def is_explanation(path: Path) -> bool:
    """Return whether a file is such a picture, by its name.

    >>> is_explanation(Path("seven.explained-2.png")), is_explanation(Path("seven.png"))
    (True, False)
    """
    return path.suffix == ".png" and path.stem.rpartition(".")[2].split("-")[0] == "explained"


def write_explanation(path: Path, image: np.ndarray, heat: np.ndarray) -> None:
    """Write a picture: left what the network gets, right the same under its heat map.

    Arguments:
      path: a PNG file; it appears whole.
      image: `[H, W, C]` in 0..255.
      heat: `[h, w]` in 0..1.

    Raises:
      OSError: it cannot be written.
    """
    from penstock._images import encode_png

    with replacing(path) as temporary:
        temporary.write_bytes(encode_png(draw_explanation(image, heat)))


def draw_explanation(image: np.ndarray, heat: np.ndarray) -> np.ndarray:
    """Return the picture that `write_explanation` writes.

    Returns:
      `[H, W, 3]` uint8: two squares of at least 224 pixels side by side.

    >>> draw_explanation(np.zeros((28, 28, 1)), np.ones((7, 7))).shape
    (224, 456, 3)
    """
    from penstock.readers.records.image_bytes import resize_image

    channels = image if image.shape[-1] in (1, 3) else image.mean(axis=-1, keepdims=True)
    pixels = np.clip(np.rint(np.broadcast_to(channels, (*image.shape[:2], 3))), 0, 255)
    # Squares, not a blur: they are what the network gets.
    scale = max(-(-_MIN_PIXELS // min(image.shape[:2])), 1)
    seen = pixels.astype(np.float32).repeat(scale, axis=0).repeat(scale, axis=1)
    height, width = seen.shape[:2]
    shares = np.ascontiguousarray(heat, np.float32)[:, :, np.newaxis]
    heated = np.clip(resize_image(shares, height, width, "bilinear"), 0, 1)
    # In gray, so that each color is one of the heat map.
    gray = seen.mean(axis=-1, keepdims=True)
    over = 0.45 * gray + 0.55 * _color(heated[:, :, 0])
    gap = np.full((height, _GAP, 3), 255, np.float32)
    return np.rint(np.concatenate([seen, gap, over], axis=1)).astype(np.uint8)


def _color(shares: np.ndarray) -> np.ndarray:
    """Return a color `[H, W, 3]` in 0..255 for each share in 0..1."""
    places = np.linspace(0, 1, len(_COLORS))
    return np.stack([np.interp(shares, places, channel) for channel in _COLORS.T], axis=-1)
