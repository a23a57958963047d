"""A program with worker processes of every kind, which says who they are and waits to be killed."""

import multiprocessing
import sys
import time
from typing import Any

from penstock import readers
from penstock.readers import Shard
from tests.readers.cases import grain_loader
from tests.readers.samples import Records


def stay_at_the_last(sample: Any) -> Any:
    """Map a sample; the last of the data is never done with."""
    while sample["id"] == len(Records()) - 1:
        time.sleep(0.01)
    return sample


def main() -> None:
    """Start the workers, print the numbers of their processes, and wait."""
    rows = [Records()[number] for number in range(len(Records()))]
    read = [
        readers.indexed(Records(), 1, decode=stay_at_the_last, num_workers=1, workers="process"),
        readers.xmap_readers(stay_at_the_last, rows, 1, len(rows), workers="process"),
        grain_loader(Shard(), 1),
    ]
    iterators = [reader() for reader in read]
    for iterator in iterators:
        next(iterator)
    for _ in range(len(rows) - 3):  # the first reader's worker is at the last record now
        next(iterators[0])
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
