"""The accuracy of `penstock train FOLDER` on your own pictures, and how many seconds it takes.

    python -m benchmarks own_photos
    python -m benchmarks own_photos --flags="--model_name=cifarnet --train_image_size=32"

The pictures are generated: crops of scikit-learn's two photographs, as in `first_hours`, and shapes
of any colour, size and position drawn over parts of those photographs and over patches of colour.
Each folder has a `train` and a `test`. The table shows the test accuracy after the last step, from
random weights, one run each. Seconds are those of the whole command.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import _timing, first_hours

SHAPES = ("circle", "ring", "square", "triangle", "star", "cross", "stripes", "checks")
NUM_TESTED = 50


@dataclasses.dataclass(frozen=True, kw_only=True)
class Folder:
    """Pictures of some classes.

    Arguments:
      shapes: the shapes to draw; none for crops of the two photographs.
      num_images: training images per class.
    """

    name: str
    shapes: Sequence[str]
    num_images: int


FOLDERS = (
    Folder(name="two photographs", shapes=(), num_images=150),
    Folder(name="three shapes", shapes=("circle", "cross", "stripes"), num_images=250),
    Folder(name="eight shapes", shapes=SHAPES, num_images=250),
    Folder(name="eight shapes, few", shapes=SHAPES, num_images=60),
    Folder(name="two shapes, very few", shapes=("circle", "star"), num_images=20),
)


def _draw_background(random: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Return a part of a photograph, or patches of colour, `[height, width, 3]` of bytes."""
    import cv2
    from sklearn.datasets import load_sample_images

    photographs = load_sample_images().images
    number = int(random.integers(len(photographs) + 1))
    if number == len(photographs):
        patches = random.integers(0, 256, (4, 4, 3), np.uint8)
        return cv2.resize(patches, (width, height), interpolation=cv2.INTER_CUBIC)
    top = int(random.integers(photographs[number].shape[0] - height))
    left = int(random.integers(photographs[number].shape[1] - width))
    return photographs[number][top : top + height, left : left + width].copy()


def _find_corners(shape: str) -> list[np.ndarray]:
    """Return the polygons of a shape around 0, in a circle of radius 1."""
    if shape == "cross":
        bar = np.array([(-0.28, -1), (0.28, -1), (0.28, 1), (-0.28, 1)])
        return [bar, bar[:, ::-1]]
    number = {"triangle": 3, "square": 4, "star": 10}.get(shape, 40)
    angles = 2 * math.pi * np.arange(number) / number
    radii = np.where(np.arange(number) % 2, 0.4, 1.0) if shape == "star" else 1.0
    return [np.stack([radii * np.cos(angles), radii * np.sin(angles)], 1)]


def draw(random: np.random.Generator, shape: str) -> np.ndarray:
    """Return a picture of a shape, some 90 to 260 pixels high and wide, with noise."""
    import cv2

    height, width = (int(each) for each in random.integers(90, 260, 2))
    image = _draw_background(random, height, width)
    colour = random.integers(0, 256, 3)
    angle, radius = random.uniform(0, 2 * math.pi), random.uniform(0.22, 0.45) * min(height, width)
    turn = np.array([(math.cos(angle), math.sin(angle)), (-math.sin(angle), math.cos(angle))])
    mask = np.zeros((height, width), np.uint8)
    if shape in ("stripes", "checks"):
        period = min(height, width) / random.uniform(4, 9)
        places = np.moveaxis(np.mgrid[0:height, 0:width], 0, -1) @ turn * (2 * math.pi / period)
        waves = np.sin(places)
        mask = (waves[..., 0] if shape == "stripes" else waves.prod(-1)) > 0
    else:
        centre = [random.uniform(radius, side - radius) for side in (width, height)]
        for corners in _find_corners(shape):
            cv2.fillPoly(mask, [np.asarray(centre + radius * corners @ turn, np.int32)], 1)
        if shape == "ring":
            cv2.circle(mask, (int(centre[0]), int(centre[1])), int(0.7 * radius), 0, -1)
    image = np.where(mask[..., None] > 0, colour, image)
    noisy = image + random.normal(0, random.uniform(3, 14), image.shape)
    return np.clip(noisy, 0, 255).astype(np.uint8)


def write(folder: Folder, path: Path, *, num_images: int | None = None) -> None:
    """Write the pictures of a folder.

    Arguments:
      num_images: training images per class; the folder's own number by default.
    """
    import cv2

    number = num_images or folder.num_images
    random = np.random.default_rng(0)
    for shape in folder.shapes:
        for part, count in (("train", number), ("test", NUM_TESTED)):
            place = path / part / shape
            place.mkdir(parents=True)
            for i in range(count):
                cv2.imwrite(str(place / f"{i}.jpg"), draw(random, shape))
    if folder.shapes:
        return
    first_hours.write_photos(path, num_photos=number, num_new=NUM_TESTED)
    (path / "photos").rename(path / "train")
    for image in (path / "new").iterdir():
        place = path / "test" / image.name.partition("_")[0]
        place.mkdir(parents=True, exist_ok=True)
        image.rename(place / image.name)
    (path / "new").rmdir()


def measure(folder: Folder, flags: Sequence[str], num_images: int | None) -> list[str]:
    """Train on a folder; return a row of the table.

    Raises:
      RuntimeError: the command fails.
    """
    with tempfile.TemporaryDirectory() as temporary:
        write(folder, Path(temporary, "photos"), num_images=num_images)
        words = [sys.executable, "-m", "penstock", "train", "photos", *flags]
        start = time.perf_counter()
        done = subprocess.run(words, cwd=temporary, capture_output=True, text=True)
        seconds = time.perf_counter() - start
    found = re.search(r"last: .*?accuracy ([\d.]+%)", done.stdout)
    if found is None:
        raise RuntimeError(f"{shlex.join(words)} ended with {done.returncode}: {done.stderr}")
    number = str(num_images or folder.num_images)
    return [folder.name, str(len(folder.shapes) or 2), number, found[1], f"{seconds:.0f}"]


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks own_photos")
    parser.add_argument("--flags", default="", help="more flags of penstock train, in one word")
    parser.add_argument("--folder", help="only this one", choices=[each.name for each in FOLDERS])
    parser.add_argument("--num_images", type=int, help="of a class, to train on")
    options = parser.parse_args(arguments)
    print(f"{_timing.environment()}\n")
    header = ["pictures", "classes", "images a class", "accuracy", "seconds"]
    print(_timing.table(header, []), flush=True)
    for folder in FOLDERS:
        if options.folder in (None, folder.name):
            row = measure(folder, shlex.split(options.flags), options.num_images)
            print(_timing.row(row), flush=True)
