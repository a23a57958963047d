"""Weight files of other systems: of TensorFlow, Keras, torch and Paddle, safetensors and NumPy's.

Each format has a module that reads names and arrays as their writer named and laid them out. The
weight maps of `penstock.models` know which parameters they are. Nothing in a weight file is ever
run.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock._errors import ParameterError, listed, nearest
from penstock._weight_files import _keras, _numpy, _safetensors, _tensorflow, _torch
from penstock._weight_files._file import Archive, Content, Format, WeightFile, WeightFileError
from penstock._weight_files._safetensors import find_in_folder
from penstock._weight_files._torch import HOW_TO_READ_RAW, cut_prefixes

__all__ = [
    "HOW_TO_READ_RAW",
    "Format",
    "WeightFile",
    "find_format",
    "find_in_folder",
    "read_weights",
]

Reader = Callable[..., Content]

EXPECTED = (
    "a TensorFlow checkpoint, a Keras .h5, .keras or .weights.h5 file, a torch state dict as "
    ".safetensors, .pth or .pt, a Paddle .pdparams, or a .npz"
)
ADVICE = "Give the file as it was published, or save it again in one of these formats."

# What people often give in place of weights, by its first bytes.
_FOREIGN = {
    b"<": "looks like a web page, so the download failed",
    b"version https://git-lfs": "is a Git LFS pointer: run git lfs pull",
    b"\x1f\x8b": "is compressed with gzip: unpack it first",
    b"\x93NUMPY": "is a NumPy array without a name",
}


def read_weights(path: str | os.PathLike[str], *, moving_averages: bool = True) -> WeightFile:
    """Read the arrays of a weight file; its content says which format it has.

    Names are the file's own. In checkpoints of torch and Paddle the state dict is found, and
    prefixes of torch's wrappers are cut off. In Keras files names are `<layer>/<variable>`, and
    `<layer>/<number>` where the file numbers a layer's variables. `notes` says what was chosen.

    Arguments:
      path: the file, the prefix of a TensorFlow checkpoint in several files, or the index of
        safetensors in parts or their folder.
      moving_averages: take the average of the weights where a torch checkpoint has both. A
        TensorFlow checkpoint has each under a name of its own.
    """
    with _naming(Path(path)):
        format, read, file = _choose_reader(Path(path))
        content = read(file, moving_averages) if read in _HAVE_AVERAGES else read(file)
    arrays, notes = content
    # Of torch's wrappers.
    if format in ("torch", "paddle", "numpy"):
        arrays, cut = cut_prefixes(arrays)
        notes += cut
    return WeightFile(path=file, format=format, arrays=arrays, notes=notes)


def find_format(path: str | os.PathLike[str]) -> Format:
    """Return whose names and layouts a weight file has, without reading its arrays."""
    with _naming(Path(path)):
        return _choose_reader(Path(path))[0]


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except WeightFileError as error:
        raise ParameterError(f"weights file {str(path)!r} {error}") from error


def _choose_reader(path: Path) -> tuple[Format, Reader, Path]:
    inside = find_in_folder(path) if path.is_dir() else None
    file = path if inside is None else inside
    if not file.is_file():
        _check_is_checkpoint_prefix(path)
        return "tf_slim", _tensorflow.read, path
    size = file.stat().st_size
    with file.open("rb") as opened:
        head = opened.read(512)
        opened.seek(max(0, size - 8))
        tail = opened.read()
    return *_find_reader(file, head, tail), file


def _find_reader(file: Path, head: bytes, tail: bytes) -> tuple[Format, Reader]:
    if head.startswith(b"PK\x03\x04"):
        return _find_archive_reader(file)
    if head.startswith(_keras.HDF5_SIGNATURE):
        return "keras", _keras.read
    if _torch.MAGIC_BYTES in head[:32]:
        return "torch", _torch.read_pickles
    # The magic of a tar archive stands behind the name of its first entry.
    if head[257:262] == b"ustar":
        return "torch", _torch.read_tar
    if tail == _tensorflow.TABLE_MAGIC:
        return "tf_slim", _tensorflow.read
    # Behind the length of its header stands JSON.
    if head[8:9] == b"{":
        return "torch", _safetensors.read
    if head.startswith(b"{"):
        return "torch", _safetensors.read_parts
    # The instruction that every pickle since protocol 2 begins with, and the last of each.
    if head.startswith(b"\x80") and tail.endswith(b"."):
        return "paddle", _torch.read_pickle
    size = file.stat().st_size
    what = f"a file of {size} bytes that begins with {head[:16]!r}" if size else "an empty file"
    guess = next((text for start, text in _FOREIGN.items() if head.startswith(start)), "")
    if _tensorflow.PART.search(file.name):
        guess = "is one part of a TensorFlow checkpoint: give its path without .data-..."
    raise WeightFileError(
        f"got {what}, expected {EXPECTED}. " + (f"It {guess}." if guess else ADVICE)
    )


def _find_archive_reader(file: Path) -> tuple[Format, Reader]:
    with Archive(file) as archive:
        names = archive.namelist()
    if any(name.split("/")[-1] == "data.pkl" for name in names):
        return "torch", _torch.read_zip
    if _keras.WEIGHTS_ENTRY in names:
        return "keras", _keras.read_archive
    if names and all(name.endswith(_numpy.SUFFIX) for name in names):
        return "numpy", _numpy.read_npz
    raise WeightFileError(
        f"got a zip archive that holds {listed(names, most=5)}, expected data.pkl (torch), "
        f"{_keras.WEIGHTS_ENTRY} (Keras) or arrays (.npz) in it. {ADVICE}"
    )


def _check_is_checkpoint_prefix(path: Path) -> None:
    if path.is_dir():
        names = sorted(file.name for file in path.iterdir())
        raise WeightFileError(
            f"got a folder that holds {listed(names, most=5)}, expected {EXPECTED}. Give one file. "
            "For a TensorFlow checkpoint in several, give their path without .index or .data-..."
        )
    if not path.with_name(path.name + _tensorflow.INDEX_SUFFIX).is_file():
        siblings = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
        raise FileNotFoundError(
            f"weights file got {str(path)!r}, which does not exist, expected {EXPECTED}."
            + nearest(path.name, siblings)
        )


# Whose checkpoints may hold weights and their moving average.
_HAVE_AVERAGES = (_torch.read_zip, _torch.read_pickles, _torch.read_pickle, _torch.read_tar)
