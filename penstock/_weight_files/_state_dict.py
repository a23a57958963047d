"""Where in a checkpoint the state dict is, and what its names have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from penstock._weight_files._file import Content, WeightFileError
from penstock._weight_files._pickle import StandIn
from penstock._weight_files._torch_tensors import find_tensor, read_arrays

# Where training scripts keep the moving average of the weights in a checkpoint, and the weights
# themselves; the first of these entries is taken.
AVERAGES = (
    "state_dict_ema", "model_ema", "ema_state_dict", "ema_model", "params_ema", "ema",
)  # fmt: skip
ENTRIES = ("state_dict", "model_state_dict", "model", "net", "module", "params")

# What torch's wrappers DataParallel, AveragedModel and torch.compile put before every name.
PREFIXES = ("module.", "_orig_mod.")
# How many steps an AveragedModel has averaged.
NUM_AVERAGED = "n_averaged"
# Paddle's own names of the arrays beside them.
PADDLE_NAMES = "StructuredToParameterName@@"

HOW_TO_READ_RAW = (
    "moving_averages=False, or --moving_averages=False of penstock import-weights, takes the raw "
    "ones"
)


def read_state_dict(
    value: object, read_bytes: Callable[[str], bytes | memoryview], moving_averages: bool
) -> Content:
    """Return the weights in a pickle: in a state dict, or in one among a checkpoint's entries."""
    entry, state_dict = _find_state_dict(value, moving_averages)
    notes = []
    if entry and isinstance(value, dict):
        left = _list_some(name for name in value if name != entry)
        left_out = f", left out {left}" if len(value) > 1 else ""
        notes.append(f"took the state dict under {entry!r}{left_out}")
        if entry in AVERAGES:
            notes.append(f"{entry!r} is a moving average of the weights; {HOW_TO_READ_RAW}")
        elif averages := [name for name in AVERAGES if _has_tensors(value.get(name))]:
            notes.append(f"the raw weights, though the file has an average under {averages[0]!r}")
    # A key that is no string names no weight.
    named = {
        name: found for name, item in state_dict.items() if (found := find_tensor(item)) is not None
    }
    tensors = {name: found for name, found in named.items() if isinstance(name, str)}
    if left := [name for name in state_dict if name not in tensors and name != PADDLE_NAMES]:
        notes.append(f"left out {_list_some(left)}, which are no tensors")
    return read_arrays(tensors, read_bytes), tuple(notes)


def cut_prefixes(arrays: Mapping[str, np.ndarray]) -> Content:
    """Return arrays without the prefixes that all their names share, and a note for each prefix."""
    arrays, notes = dict(arrays), []
    if NUM_AVERAGED in arrays and all(n.startswith((NUM_AVERAGED, "module.")) for n in arrays):
        del arrays[NUM_AVERAGED]
        notes.append("an average of weights, made by torch's AveragedModel")
    while arrays:
        shared = [p for p in PREFIXES if all(n.startswith(p) and n != p for n in arrays)]
        if not shared:
            break
        arrays = {name.removeprefix(shared[0]): array for name, array in arrays.items()}
        notes.append(f"cut {shared[0]!r} off every name")
    return arrays, tuple(notes)


def _find_state_dict(
    value: object, moving_averages: bool
) -> tuple[str | None, dict[object, object]]:
    """Return the state dict in a checkpoint, and the entry that holds it."""
    entries = value if isinstance(value, dict) else {}
    inside = {name: held for name, held in entries.items() if _has_tensors(held)}
    order = (*AVERAGES, *ENTRIES) if moving_averages else (*ENTRIES, *AVERAGES)
    # A state dict holds no dict with tensors. Where one does, tensors beside it are others: the
    # best accuracy, the state of the random numbers.
    known = [name for name in order if name in inside]
    if known or len(inside) == 1:
        name = known[0] if known else next(iter(inside))
        return (name if isinstance(name, str) else repr(name)[:60]), inside[name]
    if not inside and _has_tensors(value):
        return None, entries
    raise WeightFileError(
        f"got {_describe(value)} and no state dict, expected tensors by name, or one of "
        f"{', '.join(ENTRIES)} with them. Nothing else in a pickle is loaded, as it may run code. "
        "Save the state dict alone: torch.save(model.state_dict(), ...)."
    )


def _describe(value: object) -> str:
    held = value.values() if isinstance(value, dict) else [value]
    below = [item for each in held if isinstance(each, dict) for item in each.values()]
    unknown = [item.name for item in (*held, *below) if isinstance(item, StandIn)]
    what = f"a dict with {_list_some(value)}" if isinstance(value, dict) else "a pickle"
    if unknown:
        return f"the global {', '.join(list(dict.fromkeys(unknown))[:3])} in {what}"
    return what if isinstance(value, dict) and value else f"a {type(value).__name__}"


def _has_tensors(value: object) -> bool:
    return isinstance(value, dict) and any(
        isinstance(name, str) and find_tensor(item) is not None for name, item in value.items()
    )


def _list_some(names: Iterable[object]) -> str:
    """Return the first names of many. In a hostile file they may be of any kind and length."""
    shown = [repr(name[:60]) if isinstance(name, str) else type(name).__name__ for name in names]
    return ", ".join(shown[:5]) + (", ..." if len(shown) > 5 else "") or "nothing"
