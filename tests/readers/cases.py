"""The readers the contract's battery runs over. A new reader joins by a `Case` in a list here.

Every sample carries a number of its own, 0 to `NUM_SAMPLES - 1`; `samples.ids` finds them.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock import readers
from penstock.readers import Shard
from tests.readers.case import Case, lockstep, require, scratch
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

Make = Callable[[Shard], Any]
Broken = Callable[[], tuple[Any, str]]


def samples(shard: Shard) -> Any:
    """Return a shuffled reader of this shard's samples, for decorators."""
    return readers.arrays(columns(), None, shuffle=True, seed=3, shard=shard)


def arrays(data: Callable[[], Any] = columns, **options: Any) -> Make:
    return lambda shard: readers.arrays(data(), BATCH_SIZE, shard=shard, **options)


def memory_mapped() -> Any:
    return {"id": np.load(scratch() / "id.npy", mmap_mode="r")}


def hdf5() -> Any:
    import h5py

    path = scratch() / "columns.h5"
    if not path.exists():
        with h5py.File(path, "w") as file:
            for name, column in columns().items():
                file[name] = column
    file = h5py.File(path)
    return {name: file[name] for name in columns()}


def in_halves(shard: Shard) -> Any:
    halves = [
        {key: column[part] for key, column in columns().items()}
        for part in (slice(0, 11), slice(11, None))
    ]
    return readers.chain(
        *(readers.arrays(half, None, shuffle=True, shard=shard) for half in halves)
    )


IN_MEMORY = [
    lockstep(
        "arrays-in-order",
        arrays(),
        broken=lambda: (
            readers.arrays(columns(), BATCH_SIZE, transform=broken_batch),
            "in arrays(transform=), epoch 0, rows 12 to 17",
        ),
    ),
    lockstep("arrays-shuffled", arrays(shuffle=True, seed=5)),
    lockstep(
        "arrays-nested", arrays(lambda: ({"id": columns()["id"]}, [columns()["x"]]), shuffle=True)
    ),
    lockstep(
        "arrays-full-batches-only", arrays(shuffle=True, drop_remainder=True), is_complete=False
    ),
    Case("arrays-samples", samples),
    lockstep("arrays-memory-mapped", arrays(memory_mapped, shuffle=True)),
    lockstep("arrays-hdf5", arrays(hdf5, shuffle=True)),
]


def indexed(*sizes: Any, **options: Any) -> Make:
    return lambda shard: readers.indexed(
        Records(), *(sizes or [BATCH_SIZE]), shard=shard, **options
    )


def index_reader(shard: Shard, num_workers: int = 2, workers: Any = "thread") -> Any:
    options = {"num_workers": num_workers, "workers": workers, "decode": double}
    return indexed(shuffle=True, seed=6, **options)(shard)


def broken_index(**options: Any) -> Broken:
    return lambda: (
        indexed(decode=fail_at_broken, **options)(Shard()),
        "in indexed, record 13: part-1, record 5",
    )


def by_files(rule: Any) -> Make:
    def make(shard: Shard) -> Any:
        with warnings.catch_warnings(action="ignore"):  # 3 files over 2 processes
            return indexed(shuffle=True)(Shard(shard.index, shard.count, rule=rule))

    return make


INDEXED = [
    lockstep("indexed-in-caller", indexed(), broken=broken_index()),
    lockstep(
        "indexed-in-threads",
        index_reader,
        with_workers=lambda *workers: index_reader(Shard(), *workers),
        broken=broken_index(num_workers=2),
    ),
    lockstep(
        "indexed-in-processes",
        lambda shard: index_reader(shard, workers="process"),
        broken=broken_index(num_workers=2, workers="process"),
        is_costly=True,
    ),
    Case("indexed-samples-in-threads", indexed(None, shuffle=True, num_workers=2)),
    lockstep("indexed-by-files-round-robin", by_files("files_round_robin")),
    lockstep("indexed-by-files-contiguous", by_files("files_contiguous")),
]


def xmap(shard: Shard, num_workers: int = 2, workers: Any = "thread") -> Any:
    return readers.xmap_readers(double, samples(shard), num_workers, 3, order=True, workers=workers)


def broken_xmap(*, order: bool = False, workers: Any = "thread") -> Broken:
    return lambda: (
        readers.xmap_readers(
            fail_at_broken, lambda: range(NUM_SAMPLES), 2, 3, order=order, workers=workers
        ),
        "in xmap_readers(fail_at_broken), sample 13 of epoch 0",
    )


def broken_under(decorate: Callable[[Any], Any]) -> Broken:
    return lambda: (decorate(broken_source), "while reading item 13 of epoch 0")


def decorated(name: str, decorate: Callable[[Any], Any], **options: Any) -> Case:
    """Return the case of a decorator of a reader of samples."""
    make = lambda shard: decorate(samples(shard))  # noqa: E731
    return Case(name, make, broken=broken_under(decorate), **options)


DECORATORS = [
    decorated("batch", lambda reader: readers.batch(reader, 4)),
    lockstep(
        "batch-of-a-global-stream",
        lambda shard: readers.batch(samples(Shard()), BATCH_SIZE, shard=shard),
    ),
    decorated("shuffle", lambda reader: readers.shuffle(reader, 5, seed=2)),
    Case(
        "map_readers",
        lambda shard: readers.map_readers(double, samples(shard)),
        broken=lambda: (
            readers.map_readers(fail_at_broken, lambda: range(NUM_SAMPLES)),
            "in map_readers(fail_at_broken), sample 13 of epoch 0",
        ),
    ),
    Case(
        "xmap_readers-in-order",
        xmap,
        with_workers=lambda *workers: xmap(Shard(), *workers),
        broken=broken_xmap(order=True),
        min_workers=1,
    ),
    Case(
        "xmap_readers-as-ready",
        lambda shard: readers.xmap_readers(double, samples(shard), 2, 3),
        broken=broken_xmap(),
        is_ordered=False,
    ),
    Case(
        "xmap_readers-in-processes",
        lambda shard: xmap(shard, workers="process"),
        broken=broken_xmap(order=True, workers="process"),
        is_costly=True,
    ),
    decorated("buffered", lambda reader: readers.buffered(reader, 4)),
    Case("chain", in_halves, broken=broken_under(readers.chain)),
    Case(
        "compose",
        lambda shard: readers.compose(
            readers.map_readers(lambda s: {"id": s["id"]}, samples(shard)),
            readers.map_readers(lambda s: {"x": s["x"]}, samples(shard)),
        ),
        broken=broken_under(readers.compose),
    ),
    Case(
        "firstn",
        lambda shard: readers.firstn(samples(shard), 5),
        broken=broken_under(lambda reader: readers.firstn(reader, 20)),
        is_complete=False,
    ),
    decorated("cache", readers.cache),
    Case(
        "all-together",
        lambda shard: readers.buffered(
            readers.batch(
                readers.xmap_readers(double, readers.shuffle(samples(shard), 5), 2, 2, order=True),
                4,
            ),
            2,
        ),
    ),
]


def by_length(of_stream: Shard, **options: Any) -> Any:
    length = lambda sample: int(sample["id"]) * 7 % 11  # noqa: E731
    return readers.batch_by_length(samples(of_stream), length=length, pool_batches=2, **options)


def packed(shard: Shard) -> Any:
    # Words that are the sample's number; as many for each, so that epochs are alike.
    sequences = readers.map_readers(lambda sample: np.full(4, sample["id"]), samples(shard))
    return readers.map_readers(
        lambda row: np.unique(row["words"][row["words_segment_ids"] > 0]),
        readers.pack(sequences, field="words", length=12, open_rows=3),
    )


SEQUENCES = [
    Case(
        "batch_by_length",
        lambda shard: by_length(shard, batch_size=4),
        broken=broken_under(
            lambda reader: readers.batch_by_length(reader, length=lambda _: 1, batch_size=4)
        ),
    ),
    lockstep(
        "batch_by_length-of-a-global-stream",
        lambda shard: by_length(Shard(), batch_size=BATCH_SIZE, shard=shard),
    ),
    lockstep(
        "batch_by_length-by-words",
        lambda shard: by_length(
            Shard(), words_per_batch=80, batch_multiple_of=6, boundaries=[4, 11], shard=shard
        ),
        has_length=False,
    ),
    Case(
        "pack",
        packed,
        broken=broken_under(
            lambda reader: readers.pack(
                readers.map_readers(lambda s: [s["id"]], reader), field="words", length=2
            )
        ),
        has_length=False,
    ),
]


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


def broken_grain_loader(num_workers: int) -> Broken:
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


def broken_torch_loader(num_workers: int) -> Broken:
    return lambda: (
        torch_loader(Shard(), num_workers, BrokenRecords()),
        "while reading item 6 of epoch 0 from reader of type DataLoader",
    )


def tf_data(shard: Shard) -> Any:
    dataset = require("tensorflow").data.Dataset.from_tensor_slices(columns())
    shuffled = dataset.shuffle(NUM_SAMPLES, seed=8, reshuffle_each_iteration=False)
    return readers.of(shuffled.shard(shard.count, shard.index).batch(2))


def counted(name: str, make: Make, **options: Any) -> Case:
    """Return the case of a reader whose position is restored by counting, which warns."""
    return Case(name, make, resume_warns=True, **options)


# Grain's shards are equal: not all samples come.
LOADER: Any = {"is_complete": False, "has_length": False}
FOREIGN = [
    counted(
        "of-callable",
        lambda shard: readers.of(lambda: range(shard.index, NUM_SAMPLES, shard.count)),
        broken=broken_under(readers.of),
        has_length=False,
    ),
    counted(
        "of-list", lambda shard: readers.of(list(range(shard.index, NUM_SAMPLES, shard.count)))
    ),
    Case("of-grain-map-dataset", grain_map_dataset, broken=broken_grain_dataset),
    Case("of-grain-dataset", grain_dataset, has_length=False),
    Case("of-grain-loader", grain_loader, broken=broken_grain_loader(0), **LOADER),
    Case(
        "of-grain-loader-in-processes",
        lambda shard: grain_loader(shard, 2),
        broken=broken_grain_loader(1),
        is_costly=True,
        **LOADER,
    ),
    counted("of-torch-loader", torch_loader, broken=broken_torch_loader(0), needs="torch"),
    counted(
        "of-torch-loader-in-processes",
        lambda shard: torch_loader(shard, 2),
        broken=broken_torch_loader(2),
        is_costly=True,
        needs="torch",
    ),
    counted("of-tf-data", tf_data, needs="tensorflow"),
]

ALL = [*IN_MEMORY, *INDEXED, *RECORDS, *NAMED, *DECORATORS, *SEQUENCES, *FOREIGN]
