"""A program whose readers keep worker processes from pass to pass, and which drops the readers.

It runs alone, without the collector: what other tests leave to be collected has processes too.
"""

import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from penstock import readers

# Many more than are in work at a time: where a pass is closed, some are left that nobody began.
NUM_SAMPLES = 48
HANGS_AFTER_SECS = 60  # a bound on a test that fails, not a time that one that passes waits


def children() -> set[BaseProcess]:
    """Return the processes that this one has started and that run."""
    return set(multiprocessing.active_children())


def add_process(sample: dict[str, Any]) -> dict[str, Any]:
    """Add the number of the process that decodes."""
    return {**sample, "process": os.getpid()}


def find_process(sample: int) -> int:
    """Return the number of the process that maps."""
    return os.getpid()


def read_records(folder: Path) -> tuple[Any, Callable[[Any], int]]:
    """Return a reader of files in processes, and what tells a batch's process."""
    with readers.RecordWriter(folder / "0.tfrecord") as writer:
        for number in range(NUM_SAMPLES):
            writer.write(readers.build_example({"label": number}))
    reader = readers.tfrecord(
        folder / "*.tfrecord",
        {"label": readers.FixedLenFeature((), "int32")},
        batch_size=4,
        look_ahead=8,
        decode=add_process,
        num_workers=1,
        workers="process",
    )
    return reader, lambda batch: int(batch["process"][0])


def map_samples(folder: Path) -> tuple[Any, Callable[[Any], int]]:
    """Return a map over processes with decorators around it, and what tells a sample's process."""
    mapped = readers.xmap_readers(
        find_process, lambda: range(NUM_SAMPLES), 1, 16, workers="process"
    )
    reader = readers.compose(
        readers.cache(lambda: range(NUM_SAMPLES)), readers.firstn(mapped, NUM_SAMPLES)
    )
    return reader, lambda sample: int(sample[1])


def main() -> None:
    """Read three times, close in mid-pass, read once more, drop the reader."""
    gc.disable()
    make = {"records": read_records, "map": map_samples}[sys.argv[1]]
    reader, find = make(Path(sys.argv[2]))
    kept = [{find(item) for item in reader} for _ in range(3)]
    (child,) = children()
    assert kept == [{child.pid}] * 3
    with reader() as iterator:
        next(iterator)
    assert children() == {child}
    reader.close()
    reader.close()
    assert not children()
    assert {find(item) for item in reader}.isdisjoint(kept[0])
    assert len(children()) == 1
    del reader, iterator  # nobody waits for them then, but they end
    ended_by = time.monotonic() + HANGS_AFTER_SECS
    while children() and time.monotonic() < ended_by:
        time.sleep(0.01)
    assert not children()


if __name__ == "__main__":
    main()
