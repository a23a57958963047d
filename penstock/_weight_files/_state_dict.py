"""Where in a torch checkpoint the state dict is, and what its names have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeGuard

import numpy as np

from penstock._weight_files._file import WeightFile, WeightFileError
from penstock._weight_files._torch_tensors import Tensor, find_tensor, read_arrays

# Where training scripts keep the state dict in a checkpoint; the first of these entries is taken.
ENTRIES = (
    "state_dict",
    "model_state_dict",
    "model",
    "state_dict_ema",
    "model_ema",
    "net",
    "module",
)

# What torch's wrappers DataParallel and torch.compile put before every name.
PREFIXES = ("module.", "_orig_mod.")


def read_state_dict(
    path: Path, value: object, read_bytes: Callable[[str], bytes | memoryview]
) -> WeightFile:
    """Return the weights in the value of a torch pickle.

    Arguments:
      path: the file.
      value: a state dict, or a checkpoint with one among its entries.
      read_bytes: gives the content of the storage with a key.
    """
    entry, state_dict = _find_state_dict(value)
    notes = []
    if entry and isinstance(value, dict):
        left = _list_some(name for name in value if name != entry)
        notes.append(f"took the state dict under {entry!r}, left out {left}")
    tensors = {name: found for name, item in state_dict.items() if (found := find_tensor(item))}
    if len(tensors) < len(state_dict):
        left = _list_some(name for name in state_dict if name not in tensors)
        notes.append(f"left out {left}, which are no tensors")
    arrays, cut = cut_prefixes(read_arrays(tensors, read_bytes))
    return WeightFile(path=path, format="torch", arrays=arrays, notes=(*notes, *cut))


def cut_prefixes(
    arrays: Mapping[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Return arrays without the prefixes that all their names share, and a note for each prefix."""
    arrays, notes = dict(arrays), []
    while arrays:
        shared = [p for p in PREFIXES if all(n.startswith(p) and n != p for n in arrays)]
        if not shared:
            break
        arrays = {name.removeprefix(shared[0]): array for name, array in arrays.items()}
        notes.append(f"cut {shared[0]!r} off every name")
    return arrays, tuple(notes)


def _find_state_dict(value: object) -> tuple[str | None, dict[str, object]]:
    """Return the state dict in a checkpoint, and the entry that holds it."""
    if _is_state_dict(value):
        return None, value
    entries = value if isinstance(value, dict) else {}
    for name in ENTRIES:
        found = entries.get(name)
        if _is_state_dict(found):
            return name, found
    what = f"a dict with {_list_some(entries)}" if entries else f"a {type(value).__name__}"
    raise WeightFileError(
        f"got {what} and no state dict, expected tensors by name, or one of {', '.join(ENTRIES)} "
        "with them. Save the state dict alone: torch.save(model.state_dict(), ...)."
    )


def _is_state_dict(value: object) -> TypeGuard[dict[str, object]]:
    """Return whether a value holds tensors by name; other values may stand beside them."""
    return (
        isinstance(value, dict)
        and all(isinstance(name, str) for name in value)
        and any(isinstance(find_tensor(item), Tensor) for item in value.values())
    )


def _list_some(names: Iterable[object]) -> str:
    """Return the first names of many. In a hostile file they may be of any kind and length."""
    shown = [repr(name[:60]) if isinstance(name, str) else type(name).__name__ for name in names]
    return ", ".join(shown[:5]) + (", ..." if len(shown) > 5 else "") or "nothing"
