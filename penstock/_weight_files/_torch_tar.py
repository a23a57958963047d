"""Torch files of 2016 and early 2017: a tar archive of the storages, the tensors and a pickle.

The first torchvision models (resnet50-19c8e357.pth and its like) were published in this form.
"""

from __future__ import annotations

import io
import struct
import tarfile
from pathlib import Path

import numpy as np

from penstock._weight_files import _pickle
from penstock._weight_files._file import WeightFile, WeightFileError
from penstock._weight_files._numpy import MAX_DIMENSIONS
from penstock._weight_files._state_dict import read_state_dict
from penstock._weight_files._torch_tensors import GLOBALS, Storage, Tensor

LENGTH_BYTES = 8
# Keys were addresses in memory.
MAX_KEY = 2**64
TENSOR_TYPES = (
    "Float", "Double", "Half", "Long", "Int", "Short", "Char", "Byte",
)  # fmt: skip


def read(path: Path, *, moving_averages: bool) -> WeightFile:
    """Read a `.pth` file that is a tar archive."""
    storages, content = _read_storages(_read_entry(path, "storages"))
    tensors = _read_tensors(_read_entry(path, "tensors"), storages)

    def resolve(reference: object) -> Tensor:
        if type(reference) is not str or reference not in tensors:
            raise _damage_error("a tensor that it does not hold")
        return tensors[reference]

    value = _pickle.load(io.BytesIO(_read_entry(path, "pickle")), GLOBALS, resolve)
    return read_state_dict(path, value, content.__getitem__, moving_averages=moving_averages)


def _read_entry(path: Path, name: str) -> bytes:
    try:
        with tarfile.open(path, "r:") as archive:
            entry = archive.getmember(name)
            # A sparse entry may be larger than the archive.
            file = archive.extractfile(entry) if entry.isreg() and not entry.issparse() else None
            content = file.read() if file and entry.size <= path.stat().st_size else b""
    except (tarfile.TarError, KeyError, OSError, ValueError, EOFError) as error:
        raise _damage_error(f"no entry {name!r} ({error})") from error
    if not content or len(content) != entry.size:
        raise _damage_error(f"an entry {name!r} that is cut off")
    return content


def _read_storages(data: bytes) -> tuple[dict[int, Storage], dict[str, memoryview]]:
    """Return the storages and views of storages by number, and the content by key."""
    file, storages, content = io.BytesIO(data), {}, {}
    for _ in range(_read_count(file)):
        match _pickle.load(file, GLOBALS):
            case (int() as number, str(), np.dtype() as dtype) if 0 <= number < MAX_KEY:
                pass
            case _:
                raise _damage_error("a storage without its type")
        numel = int.from_bytes(file.read(LENGTH_BYTES), "little")
        begin = file.tell()
        end = begin + numel * dtype.itemsize
        if end > len(data):
            raise _damage_error("a storage that is cut off")
        file.seek(end)
        storages[number] = Storage(str(number), dtype, numel, 0, numel)
        content[str(number)] = memoryview(data)[begin:end]
    views = _pickle.load(file, {})
    for view in views if type(views) is list else ():
        match view:
            case (int() as number, int() as root, int() as start, int() as length) if (
                root in storages and 0 <= start <= start + length <= storages[root].numel
            ):
                whole = storages[root]
                storages[number] = Storage(whole.key, whole.dtype, whole.numel, start, length)
            case _:
                raise _damage_error("a view of a storage that it does not hold")
    return storages, content


def _read_tensors(data: bytes, storages: dict[int, Storage]) -> dict[str, Tensor]:
    """Return the tensors by the number that the pickle refers to them by, as text."""
    file, tensors = io.BytesIO(data), {}
    names = {**GLOBALS, **{f"torch {name}Tensor": name for name in TENSOR_TYPES}}
    for _ in range(_read_count(file)):
        match _pickle.load(file, names):
            case (int() as number, int() as storage, str()) if (
                0 <= number < MAX_KEY and storage in storages
            ):
                pass
            case _:
                raise _damage_error("a tensor without its storage")
        (dimensions,) = struct.unpack("<q", _read_exactly(file, 8))
        # torch 0.1 did not always set the upper half of the number.
        dimensions &= 0xFFFFFFFF
        if dimensions > MAX_DIMENSIONS:
            raise _damage_error(f"a tensor of {dimensions} dimensions")
        numbers = struct.unpack(f"<{2 * dimensions + 1}q", _read_exactly(file, 16 * dimensions + 8))
        sizes, strides = numbers[:dimensions], numbers[dimensions:-1]
        tensors[str(number)] = Tensor(storages[storage], numbers[-1], sizes, strides)
    return tensors


def _read_count(file: io.BytesIO) -> int:
    # It needs no bound: each part takes bytes, so that a false count ends with the file.
    count = _pickle.load(file, {})
    if type(count) is not int:
        raise _damage_error("no count of its parts")
    return count


def _read_exactly(file: io.BytesIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise _damage_error("a tensor that is cut off")
    return data


def _damage_error(what: str) -> WeightFileError:
    return WeightFileError(
        f"got {what}, expected a tar archive as torch 0.1 wrote it. Download it again, or a newer "
        "form of the same weights."
    )
