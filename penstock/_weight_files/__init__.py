"""Weight files of other systems: TensorFlow checkpoints, Keras, torch and safetensors files.

Each format has a module that reads names and arrays as their writer named and laid them out. The
weight maps of `penstock.models` know which parameters they are. Nothing in a weight file is ever
run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from penstock._errors import ParameterError, nearest
from penstock._weight_files import (
    _keras,
    _safetensors,
    _tensorflow,
    _torch,
    _torch_tar,
)
from penstock._weight_files._archive import Archive
from penstock._weight_files._file import Format, WeightFile, WeightFileError
from penstock._weight_files._keras_layers import KERAS_VARIABLES

__all__ = ["KERAS_VARIABLES", "Format", "WeightFile", "find_format", "read_weights"]

T = TypeVar("T")
Reader = Callable[[Path], WeightFile]

EXPECTED = (
    "a TensorFlow checkpoint, a Keras .h5, .keras or .weights.h5 file, or a torch state dict as "
    ".safetensors, .pth or .pt"
)
ADVICE = "Give the file as it was published, or save it again in one of these formats."

# What people often give in place of weights, by its first bytes.
FOREIGN: Mapping[bytes, str] = MappingProxyType(
    {
        b"<": "looks like a web page, so the download failed",
        b"version https://git-lfs": "is a Git LFS pointer: run git lfs pull",
        b"\x1f\x8b": "is compressed with gzip: unpack it first",
        b"\x93NUMPY": "is a NumPy array without a name",
        b"\x80": "is a plain pickle, which runs code when it is loaded and is never loaded here",
        b"{": "is JSON: give the file with the weights that it belongs to",
    }
)


def read_weights(path: str | os.PathLike[str]) -> WeightFile:
    """Read the arrays of a weight file; its content says which format it has.

    Names are the file's own. In torch checkpoints the state dict is found and prefixes that all
    names share are cut off; in Keras files names are `<layer>/<variable>`, whatever the layout.
    `notes` says what was chosen and left out.

    Arguments:
      path: the file, or the prefix of a TensorFlow checkpoint in several files.

    Raises:
      FileNotFoundError: there is no such file.
      ParameterError: the file is damaged, foreign, or would run code.
      ModuleNotFoundError: its format needs an optional package; says what to install.
    """
    return _read(Path(path), lambda read: read(Path(path)))


def find_format(path: str | os.PathLike[str]) -> Format:
    """Return whose names and layouts a weight file has, without reading its arrays.

    Raises:
      FileNotFoundError: there is no such file.
      ParameterError: its content is of no known format.
    """
    return _read(Path(path), lambda read: _FORMATS.get(read, "torch"))


def _read(path: Path, use: Callable[[Reader], T]) -> T:
    """Return what `use` makes of the reader for a path, with the path in each error."""
    try:
        if path.is_file():
            return use(_choose_reader(path))
        _check_is_checkpoint_prefix(path)
        return use(_tensorflow.read)
    except WeightFileError as error:
        raise ParameterError(f"weights file {str(path)!r} {error}") from error


def _check_is_checkpoint_prefix(path: Path) -> None:
    """Raise unless a path that is no file is the prefix of a checkpoint's files."""
    if path.is_dir():
        names = sorted(file.name for file in path.iterdir())
        found = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "") or "nothing"
        raise WeightFileError(
            f"got a folder that holds {found}, expected {EXPECTED}. Give one file. For a "
            "TensorFlow checkpoint in several files, give their path without .index or .data-..."
        )
    if not path.with_name(path.name + _tensorflow.INDEX_SUFFIX).is_file():
        siblings = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
        raise FileNotFoundError(
            f"weights file got {str(path)!r}, which does not exist, expected {EXPECTED}."
            + nearest(path.name, siblings)
        )


def _choose_reader(path: Path) -> Reader:
    """Return the reader for the content of a file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(512)
        file.seek(max(0, size - 8))
        tail = file.read()
    if head.startswith(b"PK\x03\x04"):
        return _choose_archive_reader(path)
    if head.startswith(_keras.HDF5_SIGNATURE):
        return _keras.read
    if _torch.MAGIC_BYTES in head[:32]:
        return _torch.read_pickles
    # The magic of a tar archive stands behind the name of its first entry.
    if head[257:262] == b"ustar":
        return _torch_tar.read
    if tail == _tensorflow.TABLE_MAGIC:
        return _tensorflow.read
    if _safetensors.is_safetensors(head):
        return _safetensors.read
    what = f"a file of {size} bytes that begins with {head[:16]!r}" if size else "an empty file"
    guess = next((text for start, text in FOREIGN.items() if head.startswith(start)), "")
    if _tensorflow.PART.search(path.name):
        guess = "is one part of a TensorFlow checkpoint: give its path without .data-..."
    raise WeightFileError(
        f"got {what}, expected {EXPECTED}. " + (f"It {guess}." if guess else ADVICE)
    )


def _choose_archive_reader(path: Path) -> Reader:
    """Return the reader for the entries of a zip archive."""
    with Archive(path) as archive:
        names = archive.names
    if any(name.split("/")[-1] == "data.pkl" for name in names):
        return _torch.read_zip
    if _keras.WEIGHTS_ENTRY in names:
        return _keras.read_archive
    found = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "") or "nothing"
    raise WeightFileError(
        f"got a zip archive that holds {found}, expected data.pkl (torch) or "
        f"{_keras.WEIGHTS_ENTRY} (Keras) in it. {ADVICE}"
    )


_FORMATS: Mapping[Reader, Format] = MappingProxyType(
    {_tensorflow.read: "tf_slim", _keras.read: "keras", _keras.read_archive: "keras"}
)
