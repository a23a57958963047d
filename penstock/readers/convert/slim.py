"""TF-Slim's dataset files: records with its keys, its shards, and `labels.txt`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from penstock.readers.convert.file_set import write_together
from penstock.readers.records.features import build_example
from penstock.readers.records.writers import RecordWriter

LABELS_FILENAME = "labels.txt"
_LOGGER = logging.getLogger("penstock")


def image_example(encoded: bytes, image_format: str, height: int, width: int, label: int) -> bytes:
    """Serialise one image as TF-Slim's converters do.

    >>> len(image_example(b"...", "png", 32, 32, 7))
    126
    """
    return build_example(
        {
            "image/encoded": encoded,
            "image/format": image_format,
            "image/class/label": label,
            "image/height": height,
            "image/width": width,
        }
    )


def write_labels(path: Path, names: Sequence[str]) -> Path:
    """Write `labels.txt`: one `id:name` a line, ids from 0.

    Raises:
      ValueError: a name that no line can hold.
    """
    check_label_names(names)
    path.write_text(_format_labels(names), encoding="utf-8")
    return path


def is_line(text: str) -> bool:
    r"""Say whether a text is one line, without bytes of a file's name that are no text.

    >>> is_line("two words"), is_line("two\nlines")
    (True, False)
    """
    # Python has such bytes as surrogates, which no file of text takes.
    is_text = not any("\ud800" <= letter <= "\udfff" for letter in text)
    return is_text and text.splitlines() in ([], [text])


def check_label_names(names: Iterable[str]) -> None:
    r"""Raise unless each name fits into a line of `labels.txt`.

    Raises:
      ValueError: one has a line break, or bytes that are no text.

    >>> check_label_names(["cat", "two words", "🐶"])
    """
    for name in names:
        if not is_line(name):
            raise ValueError(
                f"labels.txt got the class {name!r}, expected a name of one line of text. Each "
                "line of the file is a class. Rename it."
            )


def warn_of_other_labels(folder: str | Path, names: Sequence[str]) -> None:
    """Log that a folder's `labels.txt` is another dataset's and is about to be replaced."""
    path = Path(folder) / LABELS_FILENAME
    if path.is_file() and path.read_text(encoding="utf-8", errors="replace") != _format_labels(
        names
    ):
        _LOGGER.warning(
            "'%s' holds other names and is replaced. One folder has one: give each dataset its own "
            "folder.",
            path,
        )


def read_labels(folder: str | Path) -> dict[int, str]:
    """Return id -> name from `labels.txt`.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: a line is no `id:name`.
    """
    path = Path(folder) / LABELS_FILENAME
    names: dict[int, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        # Once: a name may hold colons.
        label, colon, name = line.partition(":")
        if line and not (colon and label.strip().isdecimal()):
            raise ValueError(
                f"'{path}' got the line {line!r}, expected a number, a colon and the name of a "
                "class. Each line of the file is a class. Mend it."
            )
        if line:
            names[int(label)] = name
    return names


def shard_name(dataset_name: str, split: str, shard: int, num_shards: int) -> str:
    """Return TF-Slim's name of a shard.

    >>> shard_name("flowers", "train", 2, 5)
    'flowers_train_00002-of-00005.tfrecord'
    """
    return f"{dataset_name}_{split}_{shard:05d}-of-{num_shards:05d}.tfrecord"


def write_records(path: str | Path, payloads: Iterable[bytes]) -> Path:
    """Write payloads to one TFRecord file, whole or not at all."""
    with RecordWriter(path) as writer:
        for payload in payloads:
            writer.write(payload)
    return Path(path)


def write_splits(
    targets: Sequence[Path], splits: Iterable[Iterable[bytes]], label_names: Sequence[str]
) -> None:
    """Write a file for the payloads of each split, and `labels.txt`, which is the last target."""
    with write_together(targets) as (*paths, labels_path):
        for path, payloads in zip(paths, splits, strict=True):
            write_records(path, payloads)
        write_labels(labels_path, label_names)
        # Inside the block: the old labels are still there to compare with.
        warn_of_other_labels(targets[-1].parent, label_names)


def _format_labels(names: Sequence[str]) -> str:
    return "".join(f"{label}:{name}\n" for label, name in enumerate(names))
