"""What the contract's battery knows of a reader under test."""

import atexit
import importlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.readers import Shard
from tests.readers.samples import columns

# What penstock[test-all] installs beside the rest; torch is not in it: its wheel brings CUDA.
EXTRAS = {
    *("kubeflow_trainer_api", "mlflow", "tensorflow", "tensorflow_datasets", "tf_slim", "uvicorn"),
    "wandb",
}


@dataclass(frozen=True)
class Case:
    """A reader under test.

    Args:
      name: the test's id.
      make: builds the reader for a shard.
      with_workers: builds the reader from a number of workers and their kind, where it has any.
      broken: builds a reader, and what the notes must say, that raises at sample `BROKEN`.
      is_complete: all samples come in every pass.
      is_ordered: the order is fixed (given seed and epoch).
      is_lockstep: every shard yields the same number of items.
      resume_warns: position is restored by counting, which warns.
      has_length: the reader knows how many items a pass has.
      min_workers: the smallest number `with_workers` takes.
      is_costly: it starts processes, a second each time; it is tested for what they may change.
      needs: an optional package.
    """

    name: str
    make: Callable[[Shard], Any]
    with_workers: Callable[[int, Any], Any] | None = None
    broken: Callable[[], tuple[Any, str]] | None = None
    is_complete: bool = True
    is_ordered: bool = True
    is_lockstep: bool = False
    resume_warns: bool = False
    has_length: bool = True
    min_workers: int = 0
    is_costly: bool = False
    needs: str | None = None

    @property
    def marks(self) -> list[pytest.MarkDecorator]:
        """Return what its tests are marked with."""
        if self.needs is None:
            return []
        reason = f"{self.needs} is not installed"
        # TFDS and TensorFlow warn about themselves, as they are imported and later.
        ignored = pytest.mark.filterwarnings(f"default:::{self.needs}")
        return [pytest.mark.skipif(is_missing(self.needs), reason=reason), ignored]


def lockstep(name: str, make: Callable[[Shard], Any], **options: Any) -> Case:
    """Return the case of a reader whose shards all yield the same number of items."""
    return Case(name, make, is_lockstep=True, **options)


def is_missing(package: str) -> bool:
    """Say whether what needs a package is to be skipped: never an extra's in `make test-all`."""
    if package in EXTRAS and os.environ.get("PENSTOCK_REQUIRE_EXTRAS") == "1":
        return False
    return importlib.util.find_spec(package) is None


def require(package: str) -> Any:
    """Import an optional package; skip the test where `is_missing`, fail it otherwise."""
    if is_missing(package):
        pytest.skip(f"{package} is not installed")
    return importlib.import_module(package)


@cache
def scratch() -> Path:
    """Return a folder for files that cases read."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-cases-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    np.save(folder / "id.npy", columns()["id"])
    return folder
