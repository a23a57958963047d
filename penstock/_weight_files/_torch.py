"""Files of pickles: torch's zip archives since 1.6, its rows of pickles before, Paddle's one."""

from __future__ import annotations

import io
import mmap
from pathlib import Path

from penstock._weight_files import _pickle
from penstock._weight_files._archive import Archive
from penstock._weight_files._file import WeightFile, WeightFileError
from penstock._weight_files._state_dict import read_state_dict
from penstock._weight_files._torch_tensors import GLOBALS, Storage, find_storage

PICKLE = "data.pkl"
# The first of five pickles in a file from before 1.6; the second is the protocol.
MAGIC = 0x1950A86A20F9469CFC6C
MAGIC_BYTES = MAGIC.to_bytes(10, "little")
PROTOCOL = 1001
# The number of elements that stands before each storage.
LENGTH_BYTES = 8


def read_pickle(path: Path, *, moving_averages: bool) -> WeightFile:
    """Read a file that is one pickle of arrays by name, as Paddle's `.pdparams` is."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        value = _pickle.load(content, GLOBALS)
    return read_state_dict(
        path, value, _refuse_key, moving_averages=moving_averages, format="paddle"
    )


def _refuse_key(key: str) -> bytes:
    raise WeightFileError(
        f"got a reference to {key[:60]!r} in its pickle and nothing beside it, expected arrays. "
        "Save the state dict alone: torch.save(model.state_dict(), ...), or as safetensors."
    )


def read_zip(path: Path, *, moving_averages: bool) -> WeightFile:
    """Read a `.pth` or `.pt` file that is a zip archive of a pickle and of storages."""
    with Archive(path) as archive:
        folder = next(n for n in archive.names if n.split("/")[-1] == PICKLE).removesuffix(PICKLE)
        if f"{folder}constants.pkl" in archive.names:
            raise WeightFileError(
                "got a TorchScript archive, a program with its weights, expected a state dict. It "
                "would have to be run. Save it with torch.save(model.state_dict(), ...)."
            )
        order = f"{folder}byteorder"
        if order in archive.names and archive.read(order) != b"little":
            raise WeightFileError(
                "got weights in another byte order than little-endian, expected that. They come "
                "from a big-endian machine. Save them there as safetensors."
            )
        pickle = io.BytesIO(archive.read(folder + PICKLE))
        value = _pickle.load(pickle, GLOBALS, find_storage)
        return read_state_dict(
            path,
            value,
            lambda key: archive.read(f"{folder}data/{key}"),
            moving_averages=moving_averages,
        )


def read_pickles(path: Path, *, moving_averages: bool) -> WeightFile:
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
    return read_state_dict(
        path, value, lambda key: content_of.get(key, b""), moving_averages=moving_averages
    )


def _cut_storages(
    content: memoryview, position: int, keys: object, storages: dict[str, Storage]
) -> dict[str, memoryview]:
    """Return the storages by key; each is stored as its number of elements and the elements."""
    # A list of exactly this kind: the file decides what the pickle holds.
    if type(keys) is not list or not all(type(key) is str and key in storages for key in keys):
        raise WeightFileError(
            "got storages that no tensor refers to, expected the keys of those that the pickle "
            "names. It is damaged: download it again."
        )
    parts = {}
    for key in keys:
        storage = storages[key]
        begin = position + LENGTH_BYTES
        numel = int.from_bytes(content[position:begin], "little")
        position = begin + storage.numel * storage.dtype.itemsize
        if numel != storage.numel or position > len(content):
            raise WeightFileError(
                f"got a storage cut off or of another length than its tensor's at byte {begin} of "
                f"{len(content)}, expected all of it. Download it again."
            )
        parts[key] = content[begin:position]
    return parts
