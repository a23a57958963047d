"""Folders of images: one folder per class, decoded by opencv."""

from __future__ import annotations

import copy
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypedDict, Unpack, get_args

import numpy as np

from penstock._errors import check_int, check_known, nearest
from penstock.readers._read_options import ReadKeywords, ReadOptions
from penstock.readers.random_access import IndexedReader
from penstock.readers.sharding import BatchSize

# Files that are named where some are left out.
_MOST_NAMED = 3
_LOGGER = logging.getLogger("penstock")
Fit = Literal["crop", "stretch"]
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
"""How the names of images end that are read."""
OTHER_SUFFIXES = (".heic", ".heif", ".gif", ".avif")
"""How the names of images end that are not read, and are left out."""


class ImageSample(TypedDict):
    """An image `[H, W, C]` uint8, and its class, an int32."""

    image: np.ndarray
    label: np.int32


class ImageFolder:
    """Random access to a folder of images, each sample `{"image": ..., "label": ...}`.

    Within a class, files are sorted by path, so the order is the same on every machine. They are
    opened only when they are read. `class_names`, `files`, `labels` and `len()` say what was found,
    and `left_out` how many images of other kinds, such as `.heic`, are not read. Names that begin
    with a dot (macOS writes `._x.png`, which is no image) and folders named `__MACOSX` are ignored.
    Links to folders are followed, each folder of a class once. Images are rotated upright by their
    EXIF orientation.

    Args:
      path: the folder with one subfolder per class, of JPEG, PNG, WebP, BMP and TIFF files.
      size: `(height, width)` to resize to; `None` keeps each image's own size. Large JPEGs are
        decoded at a fraction of their size, which takes less time and memory.
      fit: `"crop"` scales the image to cover `size` and crops the centre, `"stretch"` ignores the
        aspect ratio.
      shorter_side: scale larger images down so that their shorter side has this many pixels;
        `None` keeps them as they are. `cache_records` then keeps the small images. Large JPEGs
        are decoded at a fraction of their size here too.
      channels: 3 for RGB, 1 for grayscale.
      class_names: the classes in the order of their labels; by default the folder names, sorted.

    Raises:
      FileNotFoundError: no such folder.
      ValueError: no class or no image was found, or a class has images of other kinds alone; an
        unknown class name, `fit` or number of channels; `shorter_side` below 1; or both `size` and
        `shorter_side`.

    >>> import cv2, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp())
    >>> for name in ("cat", "dog"):
    ...     (path / name).mkdir()
    ...     _ = cv2.imwrite(str(path / name / "1.png"), np.zeros((6, 8, 3), np.uint8))
    >>> folder = ImageFolder(path, size=(4, 4))
    >>> folder.class_names, folder[1]["image"].shape, int(folder[1]["label"])
    (('cat', 'dog'), (4, 4, 3), 1)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        size: tuple[int, int] | None = None,
        fit: Fit = "crop",
        shorter_side: int | None = None,
        channels: int = 3,
        class_names: Sequence[str] | None = None,
    ) -> None:
        self.path = Path(path)
        self.size = size
        self.shorter_side = shorter_side
        if shorter_side is not None:
            check_int("image_folder(shorter_side)", shorter_side, 1, "It counts pixels.")
            if size is not None:
                raise ValueError(
                    f"image_folder(shorter_side) got {shorter_side}, with size={size}, expected "
                    "one of the two. Leave size out to keep the shape of each image."
                )
        why = "It says what is cut off."
        check_known("image_folder(fit)", fit, get_args(Fit), why, ValueError)
        check_known("image_folder(channels)", channels, (1, 3), "Gray or RGB.", ValueError)
        self.fit, self.channels = fit, channels
        self.class_names = _find_classes(self.path, class_names)
        self.files: list[str] = []
        self.left_out: Counter[str] = Counter()
        labels: list[int] = []
        for label, name in enumerate(self.class_names):
            images, unread = list_images(self.path / name)
            if unread and not images:
                raise ValueError(
                    f"image_folder({str(self.path)!r}) got nothing but {' and '.join(unread)} "
                    f"files in {name!r}, expected images ending in {', '.join(SUFFIXES)} in the "
                    "folder of each class. Others are not read. Convert them, or remove the folder."
                )
            self.files += images
            self.left_out += unread
            labels += [label] * len(images)
        self.labels = np.asarray(labels, np.int32)
        if not self.files:
            raise ValueError(
                f"image_folder({str(self.path)!r}) got no image, expected files ending in "
                f"{', '.join(SUFFIXES)} in one folder per class. The classes are "
                f"{list(self.class_names)}. Check the path."
            )

    def take(self, rows: np.ndarray) -> ImageFolder:
        """Return a folder of some of the images, by their indices `[n]`."""
        part = copy.copy(self)
        part.files, part.labels = [self.files[row] for row in rows], self.labels[rows]
        return part

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> ImageSample:
        """Return `{"image": [H, W, channels] uint8, "label": int32}`."""
        return self.decoded(index, self.encoded(index))

    def encoded(self, index: int) -> bytes | np.ndarray:
        """Return the bytes of a file; with `shorter_side`, the image scaled down.

        Raises:
          RecordError: the path is not a regular file, cannot be opened, or holds no image.
        """
        # Imported here and below: records load protobuf and checksums, which commands that read no
        # image do without.
        from penstock.readers.records.image_decoding import decode_small, read_image

        name, side = self.files[index], self.shorter_side
        encoded = read_image(name)
        if side is None:
            return encoded
        return decode_small(encoded, channels=self.channels, shorter_side=side, name=name)

    def decoded(self, index: int, encoded: bytes | np.ndarray) -> ImageSample:
        """Decode what `encoded` returned, and return the sample.

        Raises:
          RecordError: the bytes are not an image.
        """
        from penstock.readers.records.image_decoding import decode_image

        if isinstance(encoded, np.ndarray):
            return {"image": encoded, "label": self.labels[index]}
        name, enough = self.files[index], None if self.size is None else max(self.size)
        image = decode_image(
            encoded, channels=self.channels, is_upright=True, name=name, shorter_side=enough
        )
        if self.size is not None:
            image = _fit_image(image, *self.size, self.fit)
        return {"image": image, "label": self.labels[index]}

    def __repr__(self) -> str:
        side = "" if self.shorter_side is None else f", shorter_side={self.shorter_side}"
        return f"ImageFolder({str(self.path)!r}, size={self.size}, fit={self.fit!r}{side})"

    def origin(self, index: int) -> str:
        """Return the path of a sample's file."""
        return self.files[index]


def image_folder(
    path: str | os.PathLike[str],
    batch_size: BatchSize | None,
    *,
    size: tuple[int, int] | None = None,
    fit: Fit = "crop",
    shorter_side: int | None = None,
    channels: int = 3,
    class_names: Sequence[str] | None = None,
    **options: Unpack[ReadKeywords],
) -> IndexedReader:
    """Read a folder of images, one folder per class, as batches of `uint8`.

    Cast and normalise in the program: `uint8` is a quarter of the bytes to transfer, and the
    conversion is cheap on the device. Images are rotated upright by their EXIF orientation; the
    readers of record files do not rotate images.

    Args:
      path: see `ImageFolder`, as for `size`, `fit`, `shorter_side`, `channels`, `class_names`.
      batch_size: the global batch size, `PerDevice(...)`, or `None` to yield single samples.
      options: keywords of `records.ReadOptions`, such as `shuffle=True`. With `cache_records` and
        `shorter_side` the small images are kept, and each file is decoded only once.
        `on_error="skip"` leaves out and counts files that are not images, and broken links.

    Returns:
      A reader of `{"image": [b, H, W, channels] uint8, "label": [b] int32}`.

    Raises:
      FileNotFoundError: no such folder.
      ValueError: no class or no image was found, an unknown class name, or an option out of range.
      RecordError: while reading, a file is not an image, unless `on_error="skip"`.
    """
    read_options = ReadOptions.from_keywords("image_folder", batch_size, options)
    source = ImageFolder(
        path,
        size=size,
        fit=fit,
        shorter_side=shorter_side,
        channels=channels,
        class_names=class_names,
    )
    if source.left_out:
        _LOGGER.warning("image_folder(%r): %s", str(path), describe_left_out(source.left_out))
    return IndexedReader(source, read_options)


def check_damaged(source: ImageFolder, damaged: Sequence[int]) -> tuple[str, ...]:
    """Return what to say of files of a folder that are no images, by their indices."""
    files = [os.path.relpath(source.files[index], source.path) for index in damaged]
    lost = Counter(Path(name).parts[0] for name in files)
    there = Counter(Path(os.path.relpath(name, source.path)).parts[0] for name in source.files)
    for name, count in lost.items():
        if count == there[name]:
            first = next(file for file in files if Path(file).parts[0] == name)
            raise ValueError(
                f"{str(source.path)!r} got no image that can be read in {name!r}, expected some in "
                f"the folder of each class. Its files, such as {first!r}, are empty, cut off or of "
                "another kind. Put images there, or remove it."
            )
    if not files:
        return ()
    more = f" and {len(files) - _MOST_NAMED:,} more" if len(files) > _MOST_NAMED else ""
    what = "file that is no whole image" if len(files) == 1 else "files that are no whole images"
    named = ", ".join(map(repr, files[:_MOST_NAMED]))
    return (f"left out of {str(source.path)!r}: {len(files):,} {what}, {named}{more}",)


def _find_classes(path: Path, class_names: Sequence[str] | None) -> tuple[str, ...]:
    if not path.is_dir():
        beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        got = "a file" if path.exists() else "no folder of that name"
        raise FileNotFoundError(
            f"image_folder({str(path)!r}) got {got}, expected a folder that holds one folder per "
            "class. The folders' names are the classes. Check the path."
            f"{'' if path.exists() else nearest(path.name, beside)}"
        )
    folders = sorted(entry.name for entry in path.iterdir() if entry.is_dir())
    folders = [name for name in folders if not is_hidden(name)]
    names = tuple(folders if class_names is None else class_names)
    missing = [name for name in names if name not in folders]
    if missing or not names:
        hint = nearest(missing[0], folders) if missing else ""
        loose = sum(entry.suffix.lower() in SUFFIXES for entry in path.iterdir())
        nothing = f"no class, but {loose} images in no folder" if loose else "no class"
        raise ValueError(
            f"image_folder({str(path)!r}) got {f'the classes {missing}' if missing else nothing}, "
            f"expected {f'folders among {folders}' if folders else 'one folder per class'}. Every "
            f"class is a folder.{hint} Create the folders, or change class_names."
        )
    return names


def list_images(folder: Path) -> tuple[list[str], Counter[str]]:
    """Return the images in a folder, and how many there are of the kinds that are not read."""
    files = list(walk_files(folder))
    images = [file for file in files if file.lower().endswith(SUFFIXES)]
    suffixes = (Path(file).suffix.lower() for file in files)
    unread = Counter(suffix for suffix in suffixes if suffix in OTHER_SUFFIXES)
    # By the parts of the path: "a-b/1.png" would come before "a/1.png", as "-" does before "/".
    return sorted(images, key=lambda file: file.split(os.sep)), unread


def _fit_image(image: np.ndarray, height: int, width: int, fit: str) -> np.ndarray:
    from penstock.readers.records.image_decoding import scale_image

    if fit == "crop":
        scale = max(height / image.shape[0], width / image.shape[1])
        # A strip may have less than half a pixel of a narrow image.
        rows, columns = max(1, round(height / scale)), max(1, round(width / scale))
        top, left = (image.shape[0] - rows) // 2, (image.shape[1] - columns) // 2
        image = image[top : top + rows, left : left + columns]
    return scale_image(image, height, width)


def is_hidden(name: str) -> bool:
    """Return whether a name is hidden, or one that macOS adds to archives."""
    return name.startswith(".") or name == "__MACOSX"


def walk_files(folder: str | os.PathLike[str]) -> Iterator[str]:
    """Yield the paths of the files in a folder and below it, without hidden ones.

    Links to folders are followed. Each folder is entered once, and none that the first one is in:
    so links that lead round in a circle end, whichever they are.
    """
    top = Path(folder).resolve()
    entered = {_identify(path) for path in (top, *top.parents)}
    for parent, folders, names in os.walk(folder, followlinks=True):
        # The folder itself before a link to it.
        folders.sort(key=lambda name: (os.path.islink(os.path.join(parent, name)), name))
        # In place: `os.walk` goes into the folders that are left in its list.
        folders[:] = [
            name
            for name in folders
            if not is_hidden(name) and _is_new(os.path.join(parent, name), entered)
        ]
        yield from (os.path.join(parent, name) for name in names if not is_hidden(name))


def _is_new(path: str, entered: set[tuple[int, int]]) -> bool:
    """Say whether a folder is not among those entered, and add it to them."""
    identity = _identify(path)
    is_new = identity not in entered
    entered.add(identity)
    return is_new


def _identify(path: str | Path) -> tuple[int, int]:
    about = os.stat(path)
    return about.st_dev, about.st_ino


def find_damaged(paths: Sequence[str]) -> list[int]:
    """Return the indices of files that are no images, by their first and last bytes."""
    from penstock.readers.records.image_decoding import is_whole_image

    # Threads, as a folder may be on another machine, where each file is a question.
    with ThreadPoolExecutor(16) as pool:
        return [i for i, is_whole in enumerate(pool.map(is_whole_image, paths)) if not is_whole]


def describe_left_out(unread: Mapping[str, int]) -> str:
    """Return a sentence about images of kinds that are not read, by the ends of their names."""
    what = ", ".join(f"{count:,} {suffix}" for suffix, count in unread.items())
    return f"left out {what}: JPEG, PNG, WebP, BMP and TIFF are read"
