"""Safetensors files, in which weights of torch and timm are shared: a JSON header, the tensors."""

from __future__ import annotations

from pathlib import Path

from penstock._weight_files._file import WeightFile, WeightFileError
from penstock._weight_files._state_dict import cut_prefixes


def is_safetensors(head: bytes) -> bool:
    """Say whether a file begins with a header's length and the header's opening brace."""
    return head[8:9] == b"{"


def read(path: Path) -> WeightFile:
    """Read a `.safetensors` file, bfloat16 included."""
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
    arrays, notes = cut_prefixes({name: tensors[name] for name in sorted(tensors)})
    return WeightFile(path=path, format="torch", arrays=arrays, notes=notes)
