"""Finding a data set's files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock.readers._archives import Limits
from penstock.readers.datasets.registry import DatasetRequest, missing

MIB = 1 << 20


def text_limits(file_mib: int, total_mib: int, num_entries: int = 10_000) -> Limits:
    """Return the limits of an archive of text."""
    return Limits(file_bytes=file_mib * MIB, total_bytes=total_mib * MIB, num_entries=num_entries)


def find(request: DatasetRequest, names: Sequence[str]) -> Path | None:
    """Return the first of `names` (relative to the folder) that is there."""
    for name in names:
        if (request.folder / name).exists():
            return request.folder / name
    return None


def find_records(request: DatasetRequest) -> list[Path]:
    """Return the TFRecord files TF-Slim's converter makes: `<name>_<split>*.tfrecord`, sorted."""
    split = "validation" if (request.name, request.split) == ("flowers", "test") else request.split
    return sorted(request.folder.glob(f"{request.name}_{split}*.tfrecord"))


def find_members(request: DatasetRequest, archives: Sequence[str], how: str) -> Path:
    """Return the archive, or the folder it was unpacked to.

    Raises:
      DatasetNotFoundError: neither is there.
    """
    found = find(request, archives)
    if found is None:
        raise missing(request, archives, how)
    return found
