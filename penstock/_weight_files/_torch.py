"""Files of pickles: torch's tar archives, its rows of pickles, its zip archives, Paddle's one."""

from __future__ import annotations

import io
import mmap
import struct
import tarfile
from pathlib import Path

import numpy as np

from penstock._weight_files import _pickle
from penstock._weight_files._file import Archive, Content, WeightFileError, damaged
from penstock._weight_files._numpy import MAX_DIMENSIONS
from penstock._weight_files._state_dict import read_state_dict
from penstock._weight_files._torch_tensors import GLOBALS, Storage, Tensor, find_storage

PICKLE = "data.pkl"
# The first of five pickles in a file from before 1.6; the second is the protocol.
MAGIC = 0x1950A86A20F9469CFC6C
MAGIC_BYTES = MAGIC.to_bytes(10, "little")
PROTOCOL = 1001
# The number of elements that stands before each storage.
LENGTH_BYTES = 8


def read_pickle(path: Path, moving_averages: bool) -> Content:
    """Read a file that is one pickle of arrays by name, as Paddle's `.pdparams` is."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        value = _pickle.load(content, GLOBALS)
    return read_state_dict(value, _refuse_key, moving_averages)


def _refuse_key(key: str) -> bytes:
    raise WeightFileError(
        f"got a reference to {key[:60]!r} in its pickle and nothing beside it, expected arrays. "
        "Save the state dict alone: torch.save(model.state_dict(), ...), or as safetensors."
    )


def read_zip(path: Path, moving_averages: bool) -> Content:
    """Read a `.pth` or `.pt` file that is a zip archive of a pickle and of storages."""
    with Archive(path) as archive:
        names = archive.namelist()
        folder = next(n for n in names if n.split("/")[-1] == PICKLE).removesuffix(PICKLE)
        if f"{folder}constants.pkl" in names:
            raise WeightFileError(
                "got a TorchScript archive, a program with its weights, expected a state dict. It "
                "would have to be run. Save it with torch.save(model.state_dict(), ...)."
            )
        order = f"{folder}byteorder"
        if order in names and archive.read_entry(order) != b"little":
            raise WeightFileError(
                "got weights in another byte order than little-endian, expected that. They come "
                "from a big-endian machine. Save them there as safetensors."
            )
        pickle = io.BytesIO(archive.read_entry(folder + PICKLE))
        value = _pickle.load(pickle, GLOBALS, find_storage)

        def read_storage(key: str) -> bytes:
            return archive.read_entry(f"{folder}data/{key}")

        return read_state_dict(value, read_storage, moving_averages)


def read_pickles(path: Path, moving_averages: bool) -> Content:
    """Read a `.pth` or `.pt` file that begins with torch's magic number: pickles, then storages."""
    content = path.read_bytes()
    file = io.BytesIO(content)
    magic, protocol = _pickle.load(file, {}), _pickle.load(file, {})
    if (magic, protocol) != (MAGIC, PROTOCOL):
        raise WeightFileError(
            f"got another header than torch's, expected its magic number and protocol {PROTOCOL}. "
            "It is damaged, or of a torch that is not known: save it as safetensors."
        )
    # The writer's byte order and sizes. Storages are little-endian whatever it says.
    _pickle.load(file, {})
    storages: dict[str, Storage] = {}

    def resolve(reference: object) -> Storage:
        storage = find_storage(reference)
        # Storages lie one behind the other, so that each one's size must be known.
        if not isinstance(storage, Storage):
            raise WeightFileError(
                f"got a storage of {storage.name}, expected one of numbers that NumPy has. Save "
                "the state dict alone, as safetensors."
            )
        storages.setdefault(storage.key, storage)
        return storage

    value = _pickle.load(file, GLOBALS, resolve)
    keys = _pickle.load(file, {})
    # Without a tensor it is no state dict, which is said below.
    content_of: dict[str, memoryview] = {}
    if storages:
        content_of = _cut_storages(memoryview(content), file.tell(), keys, storages)
    return read_state_dict(value, lambda key: content_of.get(key, b""), moving_averages)


def _cut_storages(
    content: memoryview, position: int, keys: object, storages: dict[str, Storage]
) -> dict[str, memoryview]:
    """Return the storages by key; each is stored as its number of elements and the elements."""
    # A list of exactly this kind: the file decides what the pickle holds.
    if type(keys) is not list or not all(type(key) is str and key in storages for key in keys):
        expected = "the keys of those that the pickle names"
        raise damaged("storages that no tensor refers to", expected)
    parts = {}
    for key in keys:
        storage = storages[key]
        begin = position + LENGTH_BYTES
        numel = int.from_bytes(content[position:begin], "little")
        position = begin + storage.numel * storage.dtype.itemsize
        if numel != storage.numel or position > len(content):
            got = f"a storage of another length than its tensor's at byte {begin} of {len(content)}"
            raise damaged(got, "all of it")
        parts[key] = content[begin:position]
    return parts


# Keys were addresses in memory.
MAX_KEY = 2**64


def read_tar(path: Path, moving_averages: bool) -> Content:
    """Read a `.pth` file of 2016 or early 2017: a tar archive of storages, tensors and a pickle.

    torchvision's first models (resnet50-19c8e357.pth and its like) were published in this form.
    """
    storages, content = _read_storages(_read_entry(path, "storages"))
    tensors = _read_tensors(_read_entry(path, "tensors"), storages)

    def resolve(reference: object) -> Tensor:
        if type(reference) is not str or reference not in tensors:
            raise _tar_error("a tensor that it does not hold")
        return tensors[reference]

    value = _pickle.load(io.BytesIO(_read_entry(path, "pickle")), GLOBALS, resolve)
    return read_state_dict(value, content.__getitem__, moving_averages)


def _read_entry(path: Path, name: str) -> bytes:
    try:
        with tarfile.open(path, "r:") as archive:
            entry = archive.getmember(name)
            # A sparse entry may be larger than the archive.
            file = archive.extractfile(entry) if entry.isreg() and not entry.issparse() else None
            content = file.read() if file and entry.size <= path.stat().st_size else b""
    except (tarfile.TarError, KeyError, OSError, ValueError, EOFError) as error:
        raise _tar_error(f"no entry {name!r} ({error})") from error
    if not content or len(content) != entry.size:
        raise _tar_error(f"an entry {name!r} that is cut off")
    return content


def _read_storages(data: bytes) -> tuple[dict[int, Storage], dict[str, memoryview]]:
    """Return the storages and views of storages by number, and the content by key."""
    file, storages, content = io.BytesIO(data), {}, {}
    for _ in range(_read_count(file)):
        match _pickle.load(file, GLOBALS):
            case (int() as number, str(), np.dtype() as dtype) if 0 <= number < MAX_KEY:
                pass
            case _:
                raise _tar_error("a storage without its type")
        numel = int.from_bytes(file.read(LENGTH_BYTES), "little")
        begin = file.tell()
        end = begin + numel * dtype.itemsize
        if end > len(data):
            raise _tar_error("a storage that is cut off")
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
                raise _tar_error("a view of a storage that it does not hold")
    return storages, content


def _read_tensors(data: bytes, storages: dict[int, Storage]) -> dict[str, Tensor]:
    """Return the tensors by the number that the pickle refers to them by, as text."""
    file, tensors = io.BytesIO(data), {}
    types = ("Float", "Double", "Half", "Long", "Int", "Short", "Char", "Byte")
    names = {**GLOBALS, **{f"torch {name}Tensor": name for name in types}}
    for _ in range(_read_count(file)):
        match _pickle.load(file, names):
            case (int() as number, int() as storage, str()) if (
                0 <= number < MAX_KEY and storage in storages
            ):
                pass
            case _:
                raise _tar_error("a tensor without its storage")
        (dimensions,) = struct.unpack("<q", _read_exactly(file, 8))
        # torch 0.1 did not always set the upper half of the number.
        dimensions &= 0xFFFFFFFF
        if dimensions > MAX_DIMENSIONS:
            raise _tar_error(f"a tensor of {dimensions} dimensions")
        numbers = struct.unpack(f"<{2 * dimensions + 1}q", _read_exactly(file, 16 * dimensions + 8))
        sizes, strides = numbers[:dimensions], numbers[dimensions:-1]
        tensors[str(number)] = Tensor(storages[storage], numbers[-1], sizes, strides)
    return tensors


def _read_count(file: io.BytesIO) -> int:
    # It needs no bound: each part takes bytes, so that a false count ends with the file.
    count = _pickle.load(file, {})
    if type(count) is not int:
        raise _tar_error("no count of its parts")
    return count


def _read_exactly(file: io.BytesIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise _tar_error("a tensor that is cut off")
    return data


def _tar_error(what: str) -> WeightFileError:
    return WeightFileError(
        f"got {what}, expected a tar archive as torch 0.1 wrote it. Download it again, or a newer "
        "form of the same weights."
    )
