"""Safetensors files, in which weights of torch and timm are shared, whole or in parts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np

from penstock._weight_files._file import Content, WeightFileError, damaged

# Hugging Face writes large networks in parts, and beside them which part has which tensor.
INDEX_SUFFIX = ".safetensors.index.json"
PART = re.compile(r"-(\d{5})-of-(\d{5})\.safetensors$")


def find_in_folder(folder: Path) -> Path | None:
    """Return the index of a folder's parts, or its only `.safetensors` file; None without one."""
    for pattern in (f"*{INDEX_SUFFIX}", "*.safetensors"):
        files = sorted(folder.glob(pattern))
        if len(files) == 1:
            return files[0]
    return None


def read(path: Path) -> Content:
    """Read a `.safetensors` file, bfloat16 included."""
    if (part := PART.search(path.name)) and int(part[2]) > 1:
        whole = f"{path.name[: part.start()]}{INDEX_SUFFIX}"
        raise WeightFileError(
            f"got part {int(part[1])} of {int(part[2])}, expected all of them. Each has some of "
            f"the network's weights. Give {whole} beside it, or their folder."
        )
    return _load(path), ()


def read_parts(path: Path) -> Content:
    """Read the parts that an index names, which lie beside it."""
    arrays: dict[str, np.ndarray] = {}
    parts = _read_index(path)
    for part in parts:
        if not path.with_name(part).is_file():
            raise WeightFileError(
                f"got no file {part!r} beside it, expected all {len(parts)} parts. The index "
                "names it. Download it as well."
            )
        arrays |= _load(path.with_name(part))
    return {name: arrays[name] for name in sorted(arrays)}, (f"read from {len(parts)} parts",)


def _read_index(path: Path) -> list[str]:
    try:
        index = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise damaged(f"a damaged index ({str(error)[:200]})", "JSON") from error
    parts = index.get("weight_map") if isinstance(index, dict) else None
    names = list(parts.values()) if isinstance(parts, dict) else []
    # Names of files in its own folder: an index leads nowhere else.
    if not names or any(type(name) is not str or Path(name).name != name for name in names):
        raise WeightFileError(
            "got JSON without the parts of weights, expected an index as Hugging Face writes it, "
            "with file names under weight_map. It may belong to weights beside it: give those."
        )
    return sorted(set(names))


def _load(path: Path) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        tensors = load_file(path)
    # A dtype that NumPy lacks raises one of the last three; which one depends on the library's
    # version.
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightFileError(
            f"got a damaged header or a dtype that NumPy lacks ({error}), expected a safetensors "
            "file. Download it again, or save it as float32."
        ) from error
    return {name: tensors[name] for name in sorted(tensors)}
