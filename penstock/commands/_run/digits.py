"""Handwritten digits: what a network reads, shown as text at the end of a run on them; as files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from penstock import readers
from penstock._images import encode_png
from penstock.commands._run.samples import Batch, BatchReader, to_bytes

SHADES = " ░▒▓█"
ASCII_SHADES = " .:*#"
NUM_SHOWN = 4
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def show_digits(infer: Callable[[Batch], np.ndarray], reader: BatchReader) -> None:
    """Print a few held-out digits and what is read, a wrong one among them where there is one.

    Arguments:
      infer: gives probabilities `[B, 10]` of a feed.
      reader: yields the prepared images of the test split, in its order.
    """
    # Read again, as the reader's images are prepared for the network; the order is the same.
    digits = next(iter(readers.dataset("digits", "test", 10_000)))
    probabilities = np.concatenate([infer({"image": batch["image"]}) for batch in reader()])
    predicted, labels = probabilities.argmax(axis=1), digits["label"]
    is_right = predicted == labels
    right, wrong = np.flatnonzero(is_right), np.flatnonzero(~is_right)
    chosen = [*right[: NUM_SHOWN - 1], *wrong[:1], *right[NUM_SHOWN - 1 :]][:NUM_SHOWN]
    pictures = [picture(digits["image"][i, :, :, 0]) for i in chosen]
    captions = [f"{predicted[i]}: {probabilities[i].max():.1%}" for i in chosen]
    a = ["an" if digit == 8 else "a" for digit in range(10)]
    truths = ["" if is_right[i] else f"it is {a[labels[i]]} {labels[i]}" for i in chosen]
    print("\nDigits it was not trained on, what it reads, and how sure it is:\n")
    for line in [*zip(*pictures, strict=True), captions, truths]:
        print("  " + "   ".join(f"{part:^16}" for part in line).rstrip())


def write_digits(folder: Path) -> None:
    """Write a held-out digit of each kind, `zero.png` to `nine.png`, to try a network on.

    Raises:
      OSError: they cannot be written.
    """
    digits = next(iter(readers.dataset("digits", "test", 10_000)))
    folder.mkdir(exist_ok=True)
    for digit, name in enumerate(NAMES):
        image = digits["image"][np.flatnonzero(digits["label"] == digit)[0]]
        (folder / f"{name}.png").write_bytes(encode_png(to_bytes(image)))


def picture(image: np.ndarray) -> list[str]:
    """Return an image `[H, W]` in 0..1 as lines of text, two characters a pixel.

    >>> picture(np.ones((1, 1)))[0] in ("██", "##")
    True
    """
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    shades = np.array(list(SHADES if is_unicode else ASCII_SHADES))
    levels = np.rint(image * (len(shades) - 1)).astype(int)
    return ["".join(shades[row].repeat(2)) for row in levels]
