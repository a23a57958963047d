"""`indexed`: sources, workers, augmentation, stacking, and refusals."""

import re

import numpy as np
import pytest

from penstock import readers
from penstock.readers import RecordError
from tests.readers.samples import Records


def add_noise(sample, random):
    return {**sample, "x": sample["x"] + random.integers(1000)}


def noisy(num_workers=0, workers="thread"):
    return readers.indexed(
        Records(), 6, shuffle=True, augment=add_noise, num_workers=num_workers, workers=workers
    )


def test_augmentation_depends_on_the_epoch_and_survives_a_resume():
    reader = noisy(2)
    first, second = list(reader), list(reader)
    assert not np.array_equal(
        np.sort(np.concatenate([b["x"] for b in first]), axis=0),
        np.sort(np.concatenate([b["x"] for b in second]), axis=0),
    )
    fresh = noisy(2)()
    iterator = noisy(2)()
    next(iterator)
    fresh.set_state(iterator.get_state())
    np.testing.assert_array_equal(next(fresh)["x"], first[1]["x"])


def test_samples_of_different_structure_are_refused():
    with pytest.raises(ValueError, match=re.escape("got ['y'] [] int64, expected ['x'] [] int64")):
        list(readers.indexed([{"x": 1}, {"y": 2}], 2))


@pytest.mark.parametrize("other", [2.5, np.float32(2), np.zeros((), np.int32), b"2", None])
def test_samples_of_another_dtype_are_not_converted(other):
    with pytest.raises(ValueError, match=re.escape("expected [] int64")):
        list(readers.indexed([1, other], 2))


def test_numbers_and_arrays_of_one_dtype_are_stacked():
    (batch,) = readers.indexed([1, np.int64(2), np.asarray(3)], 3)
    assert batch.tolist() == [1, 2, 3]


def test_look_ahead_bounds_the_records_read():
    taken = []

    class Counted(Records):
        def __getitem__(self, index):
            taken.append(index)
            return super().__getitem__(index)

    with readers.indexed(Counted(), 2, num_workers=2, look_ahead=1)() as iterator:
        next(iterator)
    assert len(taken) <= 4


def test_exception_in_a_transform_names_the_records():
    def broken(batch):
        raise FloatingPointError("no such luck")

    with pytest.raises(FloatingPointError) as caught:
        list(readers.indexed(Records(), 6, transform=broken))
    assert caught.value.__notes__ == ["in indexed(transform=), epoch 0, records 0 to 5"]


def test_exception_in_a_process_arrives_with_its_origin():
    class_at_top = readers.indexed(
        ["1", "x"], 2, decode=float, num_workers=1, workers="process", name="numbers"
    )
    with pytest.raises(ValueError, match="could not convert") as caught:
        list(class_at_top)
    origin, traceback = caught.value.__notes__
    assert origin == "in numbers, record 1"
    assert traceback.startswith("Traceback (most recent call last):")


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: readers.indexed([], 2), ValueError, "indexed(number of records) got 0"),
        (lambda: readers.indexed(iter([1]), 2), TypeError, "expected a source with len(source)"),
        (lambda: readers.indexed([1], 1, num_workers=-1), ValueError, "got -1, expected an int"),
        (lambda: readers.indexed([1], 1, look_ahead=None), ValueError, "look_ahead) got None"),
    ],
)
def test_argument_out_of_range_is_refused(make, error, text):
    with pytest.raises(error, match=re.escape(text)):
        make()


def _write(sample, *_):
    sample["x"] += 1
    return sample


_ZEROS = np.zeros((2, 2, 3))
_ROWS = [{"x": row, "number": number} for number, row in enumerate(_ZEROS[0])]


@pytest.mark.parametrize(
    "make",
    [
        lambda: readers.indexed(_ROWS, 2, decode=_write),
        lambda: readers.indexed(_ROWS, 2, augment=_write, cache_records=True),
        lambda: readers.indexed(_ROWS, None, transform=_write),
        lambda: readers.arrays({"x": _ZEROS[1]}, 2, transform=_write),
        lambda: readers.arrays({"x": _ZEROS[1]}, None, transform=_write),
    ],
)
def test_function_that_writes_into_a_sample_writes_into_no_data(make):
    """The next epoch found what the last one had left."""
    reader = make()
    for _ in range(2):
        assert all((item["x"] == 1).all() for item in reader)
    assert not _ZEROS.any()


def test_function_that_appends_to_a_list_appends_to_a_list_of_its_own():
    rows = [{"ids": [1, 2], "pair": ([3], "a")}]

    def close(sample):
        sample["ids"].append(0)
        sample["pair"][0].append(0)
        return {"x": np.array([*sample["ids"], *sample["pair"][0]])}

    reader = readers.indexed(rows, 1, decode=close)
    for _ in range(2):
        assert next(iter(reader))["x"].tolist() == [[1, 2, 0, 3, 0]]


def test_array_that_cannot_be_written_is_not_copied():
    """As a memory map of a file, of which a sample is a part."""
    whole = np.zeros(8)
    whole.flags.writeable = False
    seen = []

    def cut(sample):
        seen.append(np.shares_memory(sample["whole"], whole))
        return {"x": sample["whole"][:2]}

    list(readers.indexed([{"whole": whole}], 1, decode=cut))
    assert seen == [True]


SIZE = 2048  # float64: beyond the size from which arrays are placed in the batch's memory


def make_large(number):
    return {"x": np.full(SIZE, number, float), "id": number}


def test_batches_that_are_held_keep_their_values():
    reader = readers.indexed(range(40), 3, decode=make_large, num_workers=2, shuffle=True)
    for batches in (list(reader), list(reader)):
        for batch in batches:
            np.testing.assert_array_equal(batch["x"], np.repeat(batch["id"][:, None], SIZE, 1))


def test_batch_that_is_skipped_into_has_the_rows_that_are_left():
    def refuse_four(number):
        if number == 4:
            raise RecordError("it is 4")
        return make_large(number)

    _, batch = readers.indexed(range(6), 3, decode=refuse_four, on_error="skip")
    assert batch["id"].tolist() == batch["x"][:, 0].tolist() == [3, 5]


def test_large_rows_of_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"got \['x'\] \[2049\] .*expected \['x'\] \[2048\]"):
        list(readers.indexed([{"x": np.zeros(SIZE + row)} for row in range(2)], 2))


def test_structures_other_than_dicts_are_stacked():
    ((first, second),) = readers.indexed([[np.full(SIZE, i), {"y": i}] for i in range(2)], 2)
    assert first[:, 0].tolist() == second["y"].tolist() == [0, 1]
    ((rows, _),) = readers.indexed([(np.full(SIZE, i), i) for i in range(2)], 2)
    assert rows[:, 0].tolist() == [0, 1]


def test_array_of_the_users_own_is_copied():
    own = np.zeros((2, SIZE))
    (batch,) = readers.indexed([0, 1], 2, decode=lambda row: {"x": own[row]})
    assert not np.shares_memory(batch["x"], own)


def test_texts_of_python_and_of_numpy_are_stacked_as_texts():
    (batch,) = readers.indexed(["a", np.str_("b")], 2)
    assert batch.dtype == object
    assert list(map(type, batch)) == [str, np.str_]
