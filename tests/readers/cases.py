"""The readers the contract's battery runs over. A new reader joins by a `Case` in a list here.

Every sample carries a number of its own, 0 to `NUM_SAMPLES - 1`; `samples.ids` finds them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock import readers
from penstock.readers import Shard
from tests.readers.case import Case, require, scratch
from tests.readers.record_cases import NAMED, RECORDS
from tests.readers.samples import (
    BATCH_SIZE,
    NUM_SAMPLES,
    BrokenRecords,
    Records,
    broken_batch,
    broken_source,
    columns,
    double,
    fail_at_broken,
)
from tests.readers.sequence_cases import SEQUENCES


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


def grain_map_dataset(shard: Shard) -> Any:
    import grain

    shuffled = grain.MapDataset.source(Records()).shuffle(seed=1)
    return readers.of(shuffled[shard.index :: shard.count])


def grain_dataset(shard: Shard) -> Any:
    return readers.of(grain_map_dataset(shard).source.to_iter_dataset())


def grain_loader(shard: Shard, num_workers: int = 0, operation: Any = None) -> Any:
    import grain
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # Grain's workers ask them, and expect an absl program
    options = grain.sharding.ShardOptions(shard_index=shard.index, shard_count=shard.count)
    return readers.of(
        grain.DataLoader(
            data_source=Records(),
            sampler=grain.samplers.IndexSampler(
                NUM_SAMPLES, shard_options=options, shuffle=True, num_epochs=1, seed=4
            ),
            operations=[] if operation is None else [operation],
            worker_count=num_workers,
        )
    )


def broken_grain_loader(num_workers: int) -> Callable[[], tuple[Any, str]]:
    def make() -> tuple[Any, str]:
        import grain

        class FailAtBroken(grain.transforms.Map):
            def map(self, element: Any) -> Any:
                return fail_at_broken(element)

        return grain_loader(Shard(), num_workers, FailAtBroken()), "from reader of type DataLoader"

    return make


def broken_grain_dataset() -> tuple[Any, str]:
    import grain

    dataset = grain.MapDataset.source(Records()).map(fail_at_broken)
    return readers.of(dataset), "while reading item 13 of epoch 0 from reader of type MapMapDataset"


def torch_loader(shard: Shard, num_workers: int = 0, source: Any = None) -> Any:
    loader = require("torch").utils.data.DataLoader(
        source or Records(),
        batch_size=2,
        sampler=range(shard.index, NUM_SAMPLES, shard.count),
        num_workers=num_workers,
        multiprocessing_context="spawn" if num_workers else None,  # JAX does not survive a fork
    )
    return readers.of(loader)


def broken_torch_loader(num_workers: int) -> Callable[[], tuple[Any, str]]:
    return lambda: (
        torch_loader(Shard(), num_workers, BrokenRecords()),
        "while reading item 6 of epoch 0 from reader of type DataLoader",
    )


def tf_data(shard: Shard) -> Any:
    dataset = require("tensorflow").data.Dataset.from_tensor_slices(columns())
    shuffled = dataset.shuffle(NUM_SAMPLES, seed=8, reshuffle_each_iteration=False)
    return readers.of(shuffled.shard(shard.count, shard.index).batch(2))


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
        with_workers=lambda *workers: index_reader(Shard(), *workers),
        broken=lambda: (
            readers.indexed(Records(), BATCH_SIZE, decode=fail_at_broken, num_workers=2),
            "in indexed, record 13: part-1, record 5",
        ),
        is_lockstep=True,
    ),
    Case(
        name="indexed-in-processes",
        make=lambda shard: index_reader(shard, workers="process"),
        broken=lambda: (
            readers.indexed(
                Records(), BATCH_SIZE, decode=fail_at_broken, num_workers=2, workers="process"
            ),
            "in indexed, record 13: part-1, record 5",
        ),
        is_lockstep=True,
        is_costly=True,
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


def xmap(shard: Shard, num_workers: int = 2, workers: Any = "thread") -> Any:
    return readers.xmap_readers(double, samples(shard), num_workers, 3, order=True, workers=workers)


def broken_xmap(*, order: bool = False, workers: Any = "thread") -> tuple[Any, str]:
    reader = readers.xmap_readers(
        fail_at_broken, lambda: range(NUM_SAMPLES), 2, 3, order=order, workers=workers
    )
    return reader, "in xmap_readers(fail_at_broken), sample 13 of epoch 0"


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
        make=xmap,
        with_workers=lambda *workers: xmap(Shard(), *workers),
        broken=lambda: broken_xmap(order=True),
        min_workers=1,
    ),
    Case(
        name="xmap_readers-as-ready",
        make=lambda shard: readers.xmap_readers(double, samples(shard), 2, 3),
        broken=broken_xmap,
        is_ordered=False,
    ),
    Case(
        name="xmap_readers-in-processes",
        make=lambda shard: xmap(shard, workers="process"),
        broken=lambda: broken_xmap(order=True, workers="process"),
        is_costly=True,
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
        broken=lambda: (readers.of(broken_source), "while reading item 13 of epoch 0"),
        resume_warns=True,
        has_length=False,
    ),
    Case(
        name="of-list",
        make=lambda shard: readers.of(list(range(shard.index, NUM_SAMPLES, shard.count))),
        resume_warns=True,
    ),
    Case(name="of-grain-map-dataset", make=grain_map_dataset, broken=broken_grain_dataset),
    Case(name="of-grain-dataset", make=grain_dataset, has_length=False),
    Case(
        name="of-grain-loader",
        make=grain_loader,
        broken=broken_grain_loader(0),
        is_complete=False,  # its shards are equal
        has_length=False,
    ),
    Case(
        name="of-grain-loader-in-processes",
        make=lambda shard: grain_loader(shard, 2),
        broken=broken_grain_loader(1),
        is_complete=False,
        has_length=False,
        is_costly=True,
    ),
    Case(
        name="of-torch-loader",
        make=torch_loader,
        broken=broken_torch_loader(0),
        resume_warns=True,
        needs="torch",
    ),
    Case(
        name="of-torch-loader-in-processes",
        make=lambda shard: torch_loader(shard, 2),
        broken=broken_torch_loader(2),
        resume_warns=True,
        is_costly=True,
        needs="torch",
    ),
    Case(name="of-tf-data", make=tf_data, resume_warns=True, needs="tensorflow"),
]

ALL = [*IN_MEMORY, *INDEXED, *RECORDS, *NAMED, *DECORATORS, *SEQUENCES, *FOREIGN]
