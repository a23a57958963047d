"""Which files in a folder are images, and which of them are whole."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
"""How the names of images end that are read."""
OTHER_SUFFIXES = (".heic", ".heif", ".gif", ".avif")
"""How the names of images end that are not read, and are left out."""


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
    """Return the indices of files that are no images, by their first and last bytes.

    Raises:
      OSError: the disk fails.
    """
    from penstock.readers.records.image_bytes import is_whole_image

    # Threads, as a folder may be on another machine, where each file is a question.
    with ThreadPoolExecutor(16) as pool:
        return [i for i, is_whole in enumerate(pool.map(is_whole_image, paths)) if not is_whole]


def describe_left_out(others: Mapping[str, int]) -> str:
    """Return a sentence about images of kinds that are not read, by the ends of their names.

    >>> describe_left_out({".heic": 3, ".gif": 1})
    'left out 3 .heic, 1 .gif: JPEG, PNG, WebP, BMP and TIFF are read'
    """
    what = ", ".join(f"{count:,} {suffix}" for suffix, count in others.items())
    return f"left out {what}: JPEG, PNG, WebP, BMP and TIFF are read"
