import gc
import itertools
import pickle
import time
from pathlib import Path

import numpy as np
import pytest

from penstock.readers.records import (
    FeatureError,
    FixedLenFeature,
    RecordError,
    SequenceFeature,
    VarLenFeature,
    build_example,
)
from penstock.readers.records.files import RecordReader
from penstock.readers.sharding import PerDevice, Shard
from penstock.readers.tfrecord_files import tfrecord
from tests.held import open_files, threads
from tests.readers.published import write_examples

SPEC = {"id": FixedLenFeature((), "int32"), "x": FixedLenFeature((2,), "float32")}
SIZES = (7, 8, 9)  # records a file; record `i` of all has id `i`


@pytest.fixture
def folder(tmp_path):
    """Three files of 24 records in all."""
    numbers = iter(range(sum(SIZES)))
    for file, size in enumerate(SIZES):
        examples = [{"id": n, "x": [n / 2, 0.5]} for n in itertools.islice(numbers, size)]
        write_examples(tmp_path / f"{file}.tfrecord", examples)
    return tmp_path


def reader_of(folder: Path, **options) -> RecordReader:
    return tfrecord(f"{folder}/*.tfrecord", SPEC, **{"batch_size": 5, **options})


def ids(batches) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def damage(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)


def test_batches_come_in_file_order_with_a_short_last_one(folder):
    reader = reader_of(folder)
    batches = list(reader)
    assert len(reader) == len(batches) == 5
    assert ids(batches) == [list(range(i, min(i + 5, 24))) for i in range(0, 24, 5)]
    assert batches[1]["x"].tolist() == [[i / 2, 0.5] for i in range(5, 10)]
    assert batches[1]["x"].dtype == np.float32
    assert ids(reader_of(folder, drop_remainder=True)) == ids(batches[:4])
    assert ids(reader_of(folder, batch_size=PerDevice(batch_size=3, num_devices=4)))[1] == list(
        range(12, 24)
    )


def test_records_come_as_bytes_without_features(folder):
    payloads = list(tfrecord(folder / "0.tfrecord", None))
    assert payloads[3] == build_example({"id": 3, "x": [1.5, 0.5]})


@pytest.mark.parametrize("workers", [0, 2])
def test_damaged_record_is_an_error_with_file_and_byte_offset(workers, folder):
    record = 16 + len(build_example({"id": 7, "x": [3.5, 0.5]}))
    path, before = folder / "1.tfrecord", threads("penstock-reader")
    damage(path, record * 3 + 20)
    iterator = iter(reader_of(folder, num_workers=workers))
    assert next(iterator)["id"].tolist() == [0, 1, 2, 3, 4]
    assert next(iterator)["id"].tolist() == [5, 6, 7, 8, 9]
    state = iterator.get_state()
    expected = f"'{path}', record 3 at byte {record * 3}: TFRecord payload got checksum"
    with pytest.raises(RecordError) as caught:
        next(iterator)
    assert str(caught.value).startswith(expected)
    assert (caught.value.path, caught.value.offset, caught.value.index) == (
        str(path),
        record * 3,
        3,
    )
    assert iterator.get_state() == state
    assert threads("penstock-reader") <= before
    with pytest.raises(RecordError):
        next(iterator)


def test_skipping_keeps_shards_in_step_and_survives_a_resume(folder):
    record = 16 + len(build_example({"id": 7, "x": [3.5, 0.5]}))
    for index in range(3):
        damage(folder / "0.tfrecord", record * index + 20)
    options = {"batch_size": 6, "on_error": "skip"}
    shards = [iter(reader_of(folder, **options, shard=Shard(i, 2))) for i in range(2)]
    assert [next(shard)["id"].tolist() for shard in shards] == [[], [3, 4, 5]]
    resumed = iter(reader_of(folder, **options, shard=Shard(0, 2)))
    resumed.set_state(shards[0].get_state())
    assert resumed.num_skipped == 3
    assert ids(resumed) == ids(shards[0])


def test_damage_is_an_error_before_the_first_batch_when_a_file_ends_early(folder):
    path = folder / "1.tfrecord"
    path.write_bytes(path.read_bytes()[:-1])
    reader = reader_of(folder)
    for use in (iter, len):
        with pytest.raises(RecordError, match=r"1\.tfrecord', record 7 at byte"):
            use(reader)


def test_pass_that_skips_everything_is_an_error(folder):
    reader = tfrecord(
        f"{folder}/*", {"idd": FixedLenFeature((), "int32")}, batch_size=5, on_error="skip"
    )
    with pytest.raises(FeatureError, match="Did you mean 'id'") as caught:
        list(reader)
    assert caught.value.__notes__ == ["every record of the pass was skipped"]


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("option", ["decode", "augment"])
def test_exception_of_the_users_function_says_which_record(option, on_error, folder):
    def fail_at_nine(sample, random=None):
        if sample["id"] == 9:
            raise KeyError("mine")
        return sample

    before = threads("penstock-reader")
    with pytest.raises(KeyError, match="mine") as caught:
        list(reader_of(folder, **{option: fail_at_nine}, on_error=on_error))
    (note,) = caught.value.__notes__
    assert note.startswith(f"in record 2 of '{folder}/1.tfrecord' at byte ")
    assert threads("penstock-reader") <= before


def test_reader_travels_to_other_processes(folder):
    reader = reader_of(folder, shuffle=True, cache_records=True)
    list(reader)
    assert ids(pickle.loads(pickle.dumps(reader))) == ids(reader)


def test_two_iterators_of_one_reader_do_not_disturb_each_other(folder):
    reader = reader_of(folder)
    assert all(ids([a]) == ids([b]) for a, b in zip(reader, reader, strict=True))


def test_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\*', which matches no file"):
        tfrecord(f"{tmp_path}/none*", SPEC)
    with pytest.raises(FileNotFoundError, match="paths got"):
        tfrecord([], SPEC)


def test_dropped_iterator_leaves_no_thread_or_file_without_the_collector(folder):
    reader = reader_of(folder, batch_size=2, num_workers=2)
    len(reader)
    before, earlier = open_files(), threads("penstock-reader")
    gc.disable()  # nothing holds it in a cycle
    try:
        iterator = iter(reader)
        next(iterator)
        del iterator
        deadline = time.monotonic() + 60  # it is not waited for
        while threads("penstock-reader") - earlier and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        gc.enable()
    assert threads("penstock-reader") <= earlier
    assert open_files() - before == set()


@pytest.mark.parametrize("varying", [VarLenFeature("int64"), SequenceFeature(FixedLenFeature())])
def test_feature_in_the_place_of_anothers_length_is_an_error(varying, tmp_path):
    write_examples(tmp_path / "a.tfrecord", [])
    features = {"ids_length": FixedLenFeature((), "int64"), "ids": varying}
    with pytest.raises(ValueError, match="features got 'ids_length', expected another name"):
        tfrecord(tmp_path / "a.tfrecord", features)
