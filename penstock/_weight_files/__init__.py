"""Weights that others wrote: TensorFlow checkpoints, Keras files, torch and safetensors files.

Each format has a file that turns it into names and arrays, as its writer named and laid them out;
what they are called here is for the name maps to say. Nothing in a weight file is ever run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from penstock._errors import ParameterError, nearest
from penstock._weight_files import (
    _keras,
    _safetensors,
    _tensorflow,
    _torch_legacy,
    _torch_tar,
    _torch_zip,
)
from penstock._weight_files._archive import Archive
from penstock._weight_files._file import Format, Refusal, WeightFile

__all__ = ["Format", "WeightFile", "format_of", "read_weights"]

EXPECTED = (
    "a TensorFlow checkpoint, a Keras .h5, .keras or .weights.h5 file, or a torch state dict as "
    ".safetensors, .pth or .pt"
)
ADVICE = "Give the file as it was published, or save it again in one of these formats."

# What is often found in place of weights, by its first bytes.
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
    """Read the arrays of a weight file; its format is told from its content.

    Names are the file's own; of torch checkpoints the state dict is found and common prefixes are
    cut off, of Keras files names are `<layer>/<variable>` in every layout. `notes` says what was
    chosen and left out.

    Arguments:
      path: the file; of a TensorFlow checkpoint in several files, their common prefix.

    Raises:
      FileNotFoundError: there is no such file.
      ParameterError: the file is damaged, foreign, or would run code.
      ModuleNotFoundError: its format needs an optional package; says what to install.
    """
    path = Path(path)
    try:
        if not path.is_file():
            return _tensorflow.read(_checkpoint_prefix(path))
        return _reader_of(path)(path)
    except Refusal as error:
        raise ParameterError(f"weights file {str(path)!r} {error}") from error


def format_of(path: str | os.PathLike[str]) -> Format:
    """Return whose names and layouts a weight file has, without reading its arrays.

    Raises: as `read_weights`.
    """
    path = Path(path)
    try:
        if not path.is_file():
            _checkpoint_prefix(path)
            return "tf_slim"
        return _FORMATS.get(_reader_of(path), "torch")
    except Refusal as error:
        raise ParameterError(f"weights file {str(path)!r} {error}") from error


def _checkpoint_prefix(path: Path) -> Path:
    """Return a path that is no file, if it is the prefix of a checkpoint's files."""
    if path.is_dir():
        names = sorted(file.name for file in path.iterdir())
        found = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "") or "nothing"
        raise Refusal(
            f"got a folder that holds {found}, expected {EXPECTED}. Give one file; of a TensorFlow "
            "checkpoint in several files, their path without .index or .data-..."
        )
    if not path.with_name(path.name + _tensorflow.INDEX_SUFFIX).is_file():
        siblings = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
        raise FileNotFoundError(
            f"weights file got {str(path)!r}, which does not exist, expected {EXPECTED}."
            + nearest(path.name, siblings)
        )
    return path


def _reader_of(path: Path) -> Callable[[Path], WeightFile]:
    """Return the reader for the content of a file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(512)
        file.seek(max(0, size - 8))
        tail = file.read()
    if head.startswith(b"PK\x03\x04"):
        return _reader_of_archive(path)
    if head.startswith(_keras.HDF5_SIGNATURE):
        return _keras.read
    if _torch_legacy.MAGIC_BYTES in head[:32]:
        return _torch_legacy.read
    if head[257:262] == b"ustar":
        return _torch_tar.read
    if tail == _tensorflow.TABLE_MAGIC:
        return _tensorflow.read
    if _safetensors.begins(head):
        return _safetensors.read
    what = f"a file of {size} bytes that begins with {head[:16]!r}" if size else "an empty file"
    guess = next((text for start, text in FOREIGN.items() if head.startswith(start)), "")
    if _tensorflow.PART.search(path.name):
        guess = "is one part of a TensorFlow checkpoint: give its path without .data-..."
    raise Refusal(f"got {what}, expected {EXPECTED}. " + (f"It {guess}." if guess else ADVICE))


def _reader_of_archive(path: Path) -> Callable[[Path], WeightFile]:
    """Return the reader for the entries of a zip archive."""
    with Archive(path) as archive:
        names = archive.names
    if any(name.split("/")[-1] == "data.pkl" for name in names):
        return _torch_zip.read
    if _keras.WEIGHTS_ENTRY in names:
        return _keras.read_archive
    found = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "") or "nothing"
    raise Refusal(
        f"got a zip archive that holds {found}, expected data.pkl (torch) or "
        f"{_keras.WEIGHTS_ENTRY} (Keras) in it. {ADVICE}"
    )


_FORMATS: Mapping[Callable[[Path], WeightFile], Format] = MappingProxyType(
    {_tensorflow.read: "tf_slim", _keras.read: "keras", _keras.read_archive: "keras"}
)
