"""The samples the readers' tests read: numbered, so that order and completeness show."""

import sys
import types
from importlib.machinery import ModuleSpec
from typing import Any

import numpy as np

NUM_SAMPLES = 23
BATCH_SIZE = 6  # a multiple of 1, 2 and 3 shards
BROKEN = 13  # the sample that raises in `Case.broken`


def ids(item: Any) -> list[int]:
    """Return the numbers of the samples in a sample or batch of any structure."""
    if isinstance(item, dict):
        return ids(next(item[key] for key in ("id", "label", *item) if key in item))
    if isinstance(item, tuple):
        return ids(item[0])
    if isinstance(item, list):
        return [number for one in item for number in ids(one)]
    return [int(number) for number in np.asarray(item).reshape(-1)]


def columns() -> dict[str, np.ndarray]:
    """Return the samples as arrays: a number, and features made of it."""
    numbers = np.arange(NUM_SAMPLES)
    return {"id": numbers, "x": np.repeat(numbers[:, None], 3, axis=1).astype(np.float32)}


def double(sample: dict[str, Any]) -> dict[str, Any]:
    """Map a sample."""
    return {**sample, "x": sample["x"] * 2}


def fail_at_broken(sample: Any) -> Any:
    """Map a sample, but for one."""
    if ids(sample) == [BROKEN]:
        raise FloatingPointError("no such luck")
    return sample


def broken_source() -> Any:
    """Yield samples, then raise."""
    for number in range(NUM_SAMPLES):
        yield fail_at_broken({"id": number})


def broken_batch(batch: dict[str, Any]) -> Any:
    """Fail on the batch that holds sample `BROKEN`."""
    return [fail_at_broken({"id": number}) for number in batch["id"]] and batch


class Records:
    """A random-access source that tells where its records come from."""

    file_names = ("part-0", "part-1", "part-2")
    file_sizes = (8, 8, 7)

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {key: column[index] for key, column in columns().items()}

    def __repr__(self) -> str:  # Grain's loader puts it into its state
        return "Records()"

    def origin(self, index: int) -> str:
        return f"part-{index // 8}, record {index % 8}"


class BrokenRecords(Records):
    """A source that raises at one record."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return fail_at_broken(super().__getitem__(index))


def fake_tfds(monkeypatch: Any, data_source: Any) -> None:
    """Put a `tensorflow_datasets` in place that has this function alone."""
    fake: Any = types.ModuleType("tensorflow_datasets")
    fake.__spec__, fake.data_source = ModuleSpec("tensorflow_datasets", None), data_source
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", fake)
