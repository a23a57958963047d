"""Safetensors files: a JSON header, then the tensors; what timm and torch weights are shared as."""

from __future__ import annotations

from pathlib import Path

from penstock._weight_files._file import Refusal, WeightFile
from penstock._weight_files._state_dict import without_prefix


def begins(head: bytes) -> bool:
    """Say whether a file begins with a header's length and the header's opening brace."""
    return head[8:9] == b"{"


def read(path: Path) -> WeightFile:
    """Read a `.safetensors` file, bfloat16 included."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        tensors = load_file(path)
    # A dtype that NumPy lacks is one of the last three, by the library's version.
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Refusal(
            f"got a damaged header or a dtype that NumPy lacks ({error}), expected a safetensors "
            "file. Download it again, or save it as float32."
        ) from error
    arrays, notes = without_prefix({name: tensors[name] for name in sorted(tensors)})
    return WeightFile(path=path, format="torch", arrays=arrays, notes=notes)
