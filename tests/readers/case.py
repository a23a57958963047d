"""What the contract's battery knows of a reader under test."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from penstock.readers import Shard
from tests.readers.samples import columns


@dataclass(frozen=True, kw_only=True)
class Case:
    """A reader under test.

    Args:
      name: the test's id.
      make: builds the reader for a shard.
      with_workers: builds the reader with a number of workers, where it has any.
      broken: builds a reader, and what the notes must say, that raises at sample `BROKEN`.
      is_complete: all samples come in every pass.
      is_ordered: the order is fixed (given seed and epoch).
      is_lockstep: every shard yields the same number of items.
      resume_warns: position is restored by counting, which warns.
      has_length: the reader knows how many items a pass has.
    """

    name: str
    make: Callable[[Shard], Any]
    with_workers: Callable[[int], Any] | None = None
    broken: Callable[[], tuple[Any, str]] | None = None
    is_complete: bool = True
    is_ordered: bool = True
    is_lockstep: bool = False
    resume_warns: bool = False
    has_length: bool = True


@cache
def scratch() -> Path:
    """Return a folder for files that cases read."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-cases-"))
    np.save(folder / "id.npy", columns()["id"])
    return folder
