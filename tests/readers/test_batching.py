from pathlib import Path

import numpy as np
import pytest

from penstock.readers._batching import BatchMemory, stack_samples
from penstock.readers.records import FixedLenFeature, RecordWriter, build_example
from penstock.readers.tfrecord_files import tfrecord

SIZE = 2048  # float32: beyond the size from which arrays are placed in the batch's memory


@pytest.fixture
def path(tmp_path):
    with RecordWriter(tmp_path / "a.tfrecord") as writer:
        for number in range(40):
            writer.write(build_example({"x": np.full(SIZE, number, np.float32), "id": number}))
    return writer.path


def read(path: Path, **options):
    spec = {"x": FixedLenFeature((SIZE,)), "id": FixedLenFeature((), "int32")}
    return tfrecord(path, spec, **{"batch_size": 3, "num_workers": 2, **options})


def test_batches_that_are_held_keep_their_values(path):
    reader = read(path, shuffle=True)
    for batches in (list(reader), list(reader)):
        for batch in batches:
            np.testing.assert_array_equal(batch["x"], np.repeat(batch["id"][:, None], SIZE, 1))


def test_batch_that_is_skipped_into_has_the_rows_that_are_left(path):
    record = path.stat().st_size // 40
    data = bytearray(path.read_bytes())
    data[record * 4 + 100] ^= 1
    path.write_bytes(data)
    batches = list(read(path, on_error="skip"))
    assert batches[1]["id"].tolist() == [3, 5]
    assert batches[1]["x"][:, 0].tolist() == [3.0, 5.0]


def test_rows_of_other_shapes_are_not_placed():
    memory = BatchMemory(2)
    samples = [memory.place(row, {"x": np.zeros(SIZE + row)}) for row in range(2)]
    with pytest.raises(ValueError, match=r"got \['x'\] \[2049\] .*expected \['x'\] \[2048\]"):
        stack_samples(samples, memory)


def test_structures_other_than_dicts_and_tuples_are_stacked():
    memory = BatchMemory(2)
    samples = [memory.place(row, [np.full(SIZE, row), {"y": row}]) for row in range(2)]
    first, second = stack_samples(samples, memory)
    assert first[:, 0].tolist() == second["y"].tolist() == [0, 1]
    pairs = [memory.place(row, (np.full(SIZE, row), row)) for row in range(2)]
    assert stack_samples(pairs, memory)[0][:, 0].tolist() == [0, 1]


def test_array_of_the_users_own_is_copied():
    own = np.zeros((2, SIZE))
    batch = stack_samples([{"x": own[0]}, {"x": own[1]}], BatchMemory(2))
    assert not np.shares_memory(batch["x"], own)


def test_texts_of_python_and_of_numpy_are_stacked_as_texts():
    stacked = stack_samples(["a", np.str_("b")])
    assert stacked.dtype == object
    assert list(map(type, stacked)) == [str, np.str_]
