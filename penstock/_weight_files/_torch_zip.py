"""Torch files since 1.6: a zip archive of a pickle and of the storages that it refers to."""

from __future__ import annotations

import io
from pathlib import Path

from penstock._weight_files import _pickle
from penstock._weight_files._archive import Archive
from penstock._weight_files._file import Refusal, WeightFile
from penstock._weight_files._state_dict import weights_of
from penstock._weight_files._torch_tensors import NAMES, storage_of

PICKLE = "data.pkl"


def read(path: Path) -> WeightFile:
    """Read a `.pth` or `.pt` file that is a zip archive."""
    with Archive(path) as archive:
        folder = next(n for n in archive.names if n.split("/")[-1] == PICKLE).removesuffix(PICKLE)
        if f"{folder}constants.pkl" in archive.names:
            raise Refusal(
                "got a TorchScript archive, a program with its weights, expected a state dict. It "
                "would have to be run. Save it with torch.save(model.state_dict(), ...)."
            )
        order = f"{folder}byteorder"
        if order in archive.names and archive.read(order) != b"little":
            raise Refusal(
                "got weights in another byte order than little-endian, expected that. They come "
                "from a big-endian machine. Save them there as safetensors."
            )
        pickle = io.BytesIO(archive.read(folder + PICKLE))
        value = _pickle.load(pickle, NAMES, storage_of)
        return weights_of(path, value, lambda key: archive.read(f"{folder}data/{key}"))
