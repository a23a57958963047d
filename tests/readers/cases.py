"""The readers the contract's battery runs over. A new reader joins by a `Case` in a list here.

Every sample carries a number of its own, 0 to `NUM_SAMPLES - 1`; `samples.ids` finds them.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from penstock import readers
from penstock.readers import Shard
from tests.readers.case import Case, scratch
from tests.readers.record_cases import RECORDS
from tests.readers.samples import (
    BATCH_SIZE,
    BROKEN,
    NUM_SAMPLES,
    Records,
    broken_batch,
    broken_source,
    columns,
    double,
    fail_at_broken,
)


def samples(shard: Shard) -> Any:
    """Return a shuffled reader of this shard's samples, for decorators."""
    return readers.arrays(columns(), None, shuffle=True, seed=3, shard=shard)


def memory_mapped(shard: Shard) -> Any:
    data = {"id": np.load(scratch() / "id.npy", mmap_mode="r")}
    return readers.arrays(data, BATCH_SIZE, shuffle=True, shard=shard)


def hdf5(shard: Shard) -> Any:
    import h5py

    path = scratch() / "columns.h5"
    if not path.exists():
        with h5py.File(path, "w") as file:
            for name, column in columns().items():
                file[name] = column
    file = h5py.File(path)
    return readers.arrays(
        {name: file[name] for name in columns()}, BATCH_SIZE, shuffle=True, shard=shard
    )


def in_halves(shard: Shard) -> Any:
    halves = [
        {key: column[part] for key, column in columns().items()}
        for part in (slice(0, 11), slice(11, None))
    ]
    return readers.chain(
        *(readers.arrays(half, None, shuffle=True, shard=shard) for half in halves)
    )


def grain_dataset(shard: Shard) -> Any:
    import grain

    dataset = grain.MapDataset.source(Records()).shuffle(seed=1)[shard.index :: shard.count]
    return readers.of(dataset.to_iter_dataset())


def grain_loader(shard: Shard) -> Any:
    import grain

    options = grain.sharding.ShardOptions(shard_index=shard.index, shard_count=shard.count)
    return readers.of(
        grain.DataLoader(
            data_source=Records(),
            sampler=grain.samplers.IndexSampler(
                NUM_SAMPLES, shard_options=options, shuffle=True, num_epochs=1, seed=4
            ),
        )
    )


IN_MEMORY = [
    Case(
        name="arrays-in-order",
        make=lambda shard: readers.arrays(columns(), BATCH_SIZE, shard=shard),
        broken=lambda: (
            readers.arrays(columns(), BATCH_SIZE, transform=broken_batch),
            "in arrays(transform=), epoch 0, rows 12 to 17",
        ),
        is_lockstep=True,
    ),
    Case(
        name="arrays-shuffled",
        make=lambda shard: readers.arrays(columns(), BATCH_SIZE, shuffle=True, seed=5, shard=shard),
        is_lockstep=True,
    ),
    Case(
        name="arrays-nested",
        make=lambda shard: readers.arrays(
            ({"id": columns()["id"]}, [columns()["x"]]), BATCH_SIZE, shuffle=True, shard=shard
        ),
        is_lockstep=True,
    ),
    Case(
        name="arrays-full-batches-only",
        make=lambda shard: readers.arrays(
            columns(), BATCH_SIZE, shuffle=True, drop_remainder=True, shard=shard
        ),
        is_complete=False,
        is_lockstep=True,
    ),
    Case(name="arrays-samples", make=samples),
    Case(name="arrays-memory-mapped", make=memory_mapped, is_lockstep=True),
    Case(name="arrays-hdf5", make=hdf5, is_lockstep=True),
]


def index_reader(shard: Shard, num_workers: int = 2, workers: Any = "thread") -> Any:
    return readers.indexed(
        Records(),
        BATCH_SIZE,
        shuffle=True,
        seed=6,
        decode=double,
        num_workers=num_workers,
        workers=workers,
        shard=shard,
    )


def by_files(rule: Any) -> Callable[[Shard], Any]:
    def make(shard: Shard) -> Any:
        ruled = Shard(shard.index, shard.count, rule=rule)
        if rule == "files_round_robin" and shard.count == 2:
            import warnings

            with warnings.catch_warnings(action="ignore"):  # 3 files over 2 processes
                return readers.indexed(Records(), BATCH_SIZE, shuffle=True, shard=ruled)
        return readers.indexed(Records(), BATCH_SIZE, shuffle=True, shard=ruled)

    return make


INDEXED = [
    Case(
        name="indexed-in-caller",
        make=lambda shard: readers.indexed(Records(), BATCH_SIZE, shard=shard),
        broken=lambda: (
            readers.indexed(Records(), BATCH_SIZE, decode=fail_at_broken),
            "in indexed, record 13: part-1, record 5",
        ),
        is_lockstep=True,
    ),
    Case(
        name="indexed-in-threads",
        make=index_reader,
        with_workers=lambda n: index_reader(Shard(), n),
        broken=lambda: (
            readers.indexed(Records(), BATCH_SIZE, decode=fail_at_broken, num_workers=2),
            "in indexed, record 13: part-1, record 5",
        ),
        is_lockstep=True,
    ),
    Case(
        name="indexed-samples-in-threads",
        make=lambda shard: readers.indexed(
            Records(), None, shuffle=True, num_workers=2, shard=shard
        ),
    ),
    Case(name="indexed-by-files-round-robin", make=by_files("files_round_robin"), is_lockstep=True),
    Case(name="indexed-by-files-contiguous", make=by_files("files_contiguous"), is_lockstep=True),
]

DECORATORS = [
    Case(
        name="batch",
        make=lambda shard: readers.batch(samples(shard), 4),
        broken=lambda: (readers.batch(broken_source, 4), "while reading item 13 of epoch 0"),
    ),
    Case(
        name="batch-of-a-global-stream",
        make=lambda shard: readers.batch(samples(Shard()), BATCH_SIZE, shard=shard),
        is_lockstep=True,
    ),
    Case(
        name="shuffle",
        make=lambda shard: readers.shuffle(samples(shard), 5, seed=2),
        broken=lambda: (readers.shuffle(broken_source, 5), "while reading item 13 of epoch 0"),
    ),
    Case(
        name="map_readers",
        make=lambda shard: readers.map_readers(double, samples(shard)),
        broken=lambda: (
            readers.map_readers(fail_at_broken, lambda: range(NUM_SAMPLES)),
            "in map_readers(fail_at_broken), sample 13 of epoch 0",
        ),
    ),
    Case(
        name="xmap_readers-in-order",
        make=lambda shard: readers.xmap_readers(double, samples(shard), 2, 3, order=True),
        with_workers=lambda n: readers.xmap_readers(double, samples(Shard()), n, 3, order=True),
        broken=lambda: (
            readers.xmap_readers(fail_at_broken, lambda: range(NUM_SAMPLES), 2, 3, order=True),
            "in xmap_readers(fail_at_broken), sample 13 of epoch 0",
        ),
    ),
    Case(
        name="xmap_readers-as-ready",
        make=lambda shard: readers.xmap_readers(double, samples(shard), 2, 3),
        broken=lambda: (
            readers.xmap_readers(fail_at_broken, lambda: range(NUM_SAMPLES), 2, 3),
            "in xmap_readers(fail_at_broken), sample 13 of epoch 0",
        ),
        is_ordered=False,
    ),
    Case(
        name="buffered",
        make=lambda shard: readers.buffered(samples(shard), 4),
        broken=lambda: (readers.buffered(broken_source, 4), "while reading item 13 of epoch 0"),
    ),
    Case(
        name="chain",
        make=in_halves,
        broken=lambda: (readers.chain(broken_source), "while reading item 13 of epoch 0"),
    ),
    Case(
        name="compose",
        make=lambda shard: readers.compose(
            readers.map_readers(lambda s: {"id": s["id"]}, samples(shard)),
            readers.map_readers(lambda s: {"x": s["x"]}, samples(shard)),
        ),
        broken=lambda: (readers.compose(broken_source), "while reading item 13 of epoch 0"),
    ),
    Case(
        name="firstn",
        make=lambda shard: readers.firstn(samples(shard), 5),
        broken=lambda: (readers.firstn(broken_source, 20), "while reading item 13 of epoch 0"),
        is_complete=False,
    ),
    Case(
        name="cache",
        make=lambda shard: readers.cache(samples(shard)),
        broken=lambda: (readers.cache(broken_source), "while reading item 13 of epoch 0"),
    ),
    Case(
        name="all-together",
        make=lambda shard: readers.buffered(
            readers.batch(
                readers.xmap_readers(double, readers.shuffle(samples(shard), 5), 2, 2, order=True),
                4,
            ),
            2,
        ),
    ),
]

FOREIGN = [
    Case(
        name="of-callable",
        make=lambda shard: readers.of(lambda: range(shard.index, NUM_SAMPLES, shard.count)),
        resume_warns=True,
        has_length=False,
    ),
    Case(
        name="of-list",
        make=lambda shard: readers.of(list(range(shard.index, NUM_SAMPLES, shard.count))),
        resume_warns=True,
    ),
    Case(name="of-grain-dataset", make=grain_dataset, has_length=False),
    Case(
        name="of-grain-loader", make=grain_loader, is_complete=False, has_length=False
    ),  # its shards are equal,
]


@cache
def pictures() -> Path:
    """Return a folder of as many classes as samples, an image each: the label is the number."""
    import cv2

    folder = scratch() / "pictures"
    for number in range(NUM_SAMPLES):
        (folder / f"{number:02}").mkdir(parents=True)
        cv2.imwrite(str(folder / f"{number:02}" / "it.png"), np.full((8, 8, 3), number, np.uint8))
    return folder


def broken_pictures() -> tuple[Any, str]:
    return (
        readers.image_folder(pictures(), BATCH_SIZE, decode=fail_at_broken, num_workers=2),
        f"in image_folder, record {BROKEN}: {pictures() / str(BROKEN) / 'it.png'}",
    )


NAMED = [
    Case(
        name="image_folder",
        make=lambda shard: readers.image_folder(
            pictures(), BATCH_SIZE, shuffle=True, num_workers=2, shard=shard
        ),
        with_workers=lambda n: readers.image_folder(
            pictures(), BATCH_SIZE, shuffle=True, num_workers=n
        ),
        broken=broken_pictures,
        is_lockstep=True,
    ),
]

ALL = [*IN_MEMORY, *INDEXED, *RECORDS, *NAMED, *DECORATORS, *FOREIGN]
