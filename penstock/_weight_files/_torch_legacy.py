"""Torch files before 1.6: five pickles in a row, then the storages."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from penstock._weight_files import _pickle
from penstock._weight_files._file import Refusal, WeightFile
from penstock._weight_files._state_dict import weights_of
from penstock._weight_files._torch_tensors import NAMES, Storage, storage_of

MAGIC = 0x1950A86A20F9469CFC6C
MAGIC_BYTES = MAGIC.to_bytes(10, "little")
PROTOCOL = 1001
LENGTH_BYTES = 8


def read(path: Path) -> WeightFile:
    """Read a `.pth` or `.pt` file that begins with torch's magic number."""
    content = path.read_bytes()
    file = io.BytesIO(content)
    magic, protocol = _pickle.load(file, {}), _pickle.load(file, {})
    if (magic, protocol) != (MAGIC, PROTOCOL):
        raise Refusal(
            f"got another header than torch's, expected its magic number and protocol {PROTOCOL}. "
            "It is damaged, or of a torch that is not known: save it as safetensors."
        )
    _pickle.load(file, {})  # the writer's byte order and sizes; storages are little-endian anyway
    storages: dict[str, Storage] = {}

    def resolve(reference: Any) -> Storage:
        storage = storage_of(reference)
        storages.setdefault(storage.key, storage)
        return storage

    value = _pickle.load(file, NAMES, resolve)
    keys = _pickle.load(file, {})
    parts = _storages(memoryview(content), file.tell(), keys, storages)
    return weights_of(path, value, lambda key: parts.get(key, b""))


def _storages(
    content: memoryview, position: int, keys: Any, storages: dict[str, Storage]
) -> dict[str, memoryview]:
    """Return the storages by key, each stored as its number of elements and the elements."""
    if type(keys) is not list or not all(type(key) is str and key in storages for key in keys):
        raise Refusal(
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
            raise Refusal(
                f"got a storage cut off or of another length than its tensor's at byte {begin} of "
                f"{len(content)}, expected all of it. Download it again."
            )
        parts[key] = content[begin:position]
    return parts
