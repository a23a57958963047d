"""The files of a checkpoint: one for each process that has arrays of its own, else one."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from penstock._checkpoint import _contents
from penstock._checkpoint._contents import Contents
from penstock._errors import CheckpointError
from penstock._files import write_tensors

_FAILED = ".failed"

_POLL_SECS = 0.02

_GRACE_SECS = 5.0
"""How long a part is waited for after some process has failed."""


def name_part(number: int) -> str:
    return f"part_{number}.safetensors"


def write_part(folder: Path, contents: Contents) -> None:
    """Write the part of a process into a folder, whole or not at all; who waits is told which."""
    # As bytes, whatever the dtype: shapes and dtypes are in the description.
    tensors = {
        name: np.ascontiguousarray(x).reshape(-1).view(np.uint8)
        for name, x in contents.leaves.items()
    }
    metadata = {key: str(value) for key, value in contents.description().items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / name_part(contents.part), tensors, metadata)
    except BaseException as error:
        tell_failure(folder, contents.part, error)
        raise


def tell_failure(folder: Path, number: int, error: BaseException) -> None:
    path = folder / (name_part(number) + _FAILED)
    # On a full disk the name may fit, and the words not.
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()
        path.write_text(f"{type(error).__name__}: {error}")


def wait_for_part(folder: Path, number: int, is_given_up: Callable[[], bool]) -> None:
    """Wait until the file of a part is there.

    Arguments:
      is_given_up: whether some process has failed, and the part may not come any more.
    """
    path, end_secs = folder / name_part(number), math.inf
    failure = path.with_name(path.name + _FAILED)
    while not path.exists():
        if failure.exists():
            raise CheckpointError(
                f"process {number} could not write its part of the checkpoint, expected it to: "
                f"{failure.read_text()}"
            )
        if time.monotonic() > end_secs:
            raise CheckpointError(
                f"process {number} has not written its part of the checkpoint, expected it to "
                "before the run ended. The checkpoint before this one is kept."
            )
        if end_secs == math.inf and is_given_up():
            end_secs = time.monotonic() + _GRACE_SECS
        time.sleep(_POLL_SECS)


def read_description(path: Path) -> _contents.JSONObject:
    """Return the description in the file of a part, which is read no further."""
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        metadata = file.metadata() or {}
    return {"body": metadata["body"], "crc32c": int(metadata["crc32c"])}


def read_part(path: Path) -> Contents:
    from safetensors import safe_open

    try:
        description = read_description(path)
        with safe_open(path, framework="np") as file:
            table = _contents.parse(description, str(path))["leaves"]
            leaves = {
                name: file.get_tensor(name).view(jnp.dtype(entry["dtype"])).reshape(entry["shape"])
                for name, entry in table.items()
            }
    except CheckpointError:
        raise
    except Exception as error:  # whatever a damaged file makes the library raise
        raise CheckpointError(f"{path}: it cannot be read ({error})") from error
    return _contents.read(description, leaves, str(path))


def join(parts: Sequence[Contents], where: str) -> Contents:
    first = parts[0]
    if any(part.attempt != first.attempt for part in parts):
        raise CheckpointError(f"{where}: its parts are not of one save")
    leaves = {name: x for name, x in first.leaves.items() if name not in first.pieces}
    missing: dict[str, int] = {}
    for part in parts:
        for name, piece in part.pieces.items():
            block = part.leaves[name]
            if piece.leaf not in leaves:
                leaves[piece.leaf] = np.empty(piece.shape, block.dtype)
                missing[piece.leaf] = leaves[piece.leaf].size
            ends = map(slice, piece.begin, np.add(piece.begin, block.shape))
            leaves[piece.leaf][tuple(ends)] = block
            missing[piece.leaf] -= block.size
    if bad := [name for name, number in missing.items() if number]:
        raise CheckpointError(f"{where}: the array {bad[0]!r} is not whole")
    return dataclasses.replace(first, leaves=leaves, pieces={}, num_parts=1)
