"""`arrays`: views, orders, structures, foreign arrays, transforms and refusals."""

import json
import re
from collections import namedtuple

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from penstock import readers

IMAGES = np.arange(24).reshape(6, 2, 2)


def test_batches_in_order_are_views_of_the_data():
    batch = next(readers.arrays({"image": IMAGES}, 4)())
    assert np.shares_memory(batch["image"], IMAGES)


def test_order_of_a_seed_is_pinned():
    reader = readers.arrays((np.arange(8),), 8, shuffle=True, seed=42)
    assert [batch[0].tolist() for batch in (*reader, *reader)] == [
        [3, 4, 2, 7, 6, 1, 5, 0],
        [0, 4, 6, 1, 2, 7, 3, 5],
    ]


def test_state_of_another_seed_is_refused_and_moves_nothing():
    iterator = readers.arrays({"image": IMAGES}, 4, shuffle=True, seed=2).iterate(0)
    start = iterator.get_state()
    with pytest.raises(readers.ReaderStateError, match=r"'seed': 9, .*, expected one of .*: 2, "):
        iterator.set_state({**start, "epoch": 5, "seed": 9})
    assert iterator.get_state() == start


def test_rows_need_a_shape_a_dtype_and_slices_and_no_more():
    class Rows:
        shape, dtype = IMAGES.shape, IMAGES.dtype

        def __getitem__(self, rows):
            return IMAGES[rows]

    reader = readers.arrays({"image": Rows()}, 4)
    assert [len(batch["image"]) for batch in reader] == [4, 2]


def test_structure_of_the_data_is_the_structure_of_a_batch():
    pair = namedtuple("pair", ["image", "label"])
    data = pair(image={"left": IMAGES, "right": [IMAGES, IMAGES]}, label=np.arange(6))
    batch = next(readers.arrays(data, 2)())
    assert isinstance(batch, pair)
    assert batch.image["right"][1].shape == (2, 2, 2)


def test_hdf5_rows_come_in_the_shuffled_order(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = IMAGES
        from_file = readers.arrays({"x": file["x"]}, 4, shuffle=True, seed=1)
        from_memory = readers.arrays({"x": IMAGES}, 4, shuffle=True, seed=1)
        for one, other in zip(from_file(), from_memory(), strict=True):
            np.testing.assert_array_equal(one["x"], other["x"])


def test_archive_of_arrays_is_read_as_a_dict_of_them(tmp_path):
    np.savez(tmp_path / "x.npz", x=IMAGES, y=IMAGES[:, 0])
    with np.load(tmp_path / "x.npz") as archive:
        reader = readers.arrays(archive, 4)
    batch = next(reader())
    assert {name: array.shape for name, array in batch.items()} == {"x": (4, 2, 2), "y": (4, 2)}


class Column:
    """What a column or a frame of polars, pandas and Arrow has: no dtype of numpy."""

    shape = (6, 2, 2)

    def __array__(self, dtype=None, copy=None):
        return IMAGES


class TypedColumn(Column):
    dtype = object()


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("column", [Column(), TypedColumn()])
def test_columns_of_tables_are_read_as_numpy(column, shuffle):
    batch = next(readers.arrays({"x": column}, 4, shuffle=shuffle)())
    expected = next(readers.arrays({"x": IMAGES}, 4, shuffle=shuffle)())
    np.testing.assert_array_equal(batch["x"], expected["x"])


def test_arrays_of_jax_are_read_as_numpy():
    jnp = pytest.importorskip("jax.numpy")
    batch = next(readers.arrays((jnp.arange(4),), 2)())
    assert type(batch[0]) is np.ndarray


def test_memory_map_is_not_read_into_memory(tmp_path):
    np.save(tmp_path / "x.npy", IMAGES)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    reader = readers.arrays({"x": mapped}, 4)
    assert reader.data["x"] is mapped
    assert np.shares_memory(next(reader())["x"], mapped)


@pytest.mark.parametrize(
    "read",
    [
        lambda x, size, seed: readers.arrays((x,), size, shuffle=True, seed=seed),
        lambda x, size, seed: readers.batch_by_length(
            lambda: ([n] * 3 for n in x), words_per_batch=size * 3, seed=seed
        ),
        lambda x, size, seed: readers.pack(lambda: ([n] * 3 for n in x), field="a", length=seed),
    ],
    ids=["arrays", "by length", "pack"],
)
def test_numbers_of_numpy_are_taken_and_leave_a_state_for_json(read):
    states = []
    for kind in (int, np.int64):
        iterator = iter(read(np.arange(8), kind(2), kind(3)))
        next(iterator)
        states.append(json.dumps(iterator.get_state()))
    assert states[0] == states[1]


def test_seed_below_zero_is_refused():
    with pytest.raises(ValueError, match="seed got -1, expected an integer of 0 or more"):
        readers.arrays((np.arange(6),), 2, seed=-1)


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        ({}, ValueError, "arrays got no array, expected arrays of one length >= 1."),
        ((np.zeros(3), np.zeros(4)), ValueError, "lengths {'data[0]': 3, 'data[1]': 4}"),
        ((np.zeros((0, 2)),), ValueError, "lengths {'data[0]': 0}"),
        ({"x": np.float32(1)}, ValueError, "arrays: data['x'] got a scalar, expected an array"),
        ([[1, 2]], TypeError, "arrays: data got list, expected an array."),
        ("x", TypeError, "arrays: data got str, expected an array."),
        ([csr_matrix(np.eye(2))], TypeError, "arrays: data[0] got csr_matrix, expected an array."),
    ],
)
def test_data_that_holds_no_samples_is_refused(data, error, text):
    with pytest.raises(error, match=re.escape(text)):
        readers.arrays(data, 2)


MASKED = np.ma.masked_array(np.arange(4096.0), mask=np.arange(4096) == 1)


@pytest.mark.parametrize(
    "read",
    [
        lambda: readers.arrays({"x": MASKED}, 2),
        lambda: list(readers.indexed([{"x": MASKED}] * 2, 2)),
        lambda: list(
            readers.indexed([{"x": MASKED}, {"x": MASKED[:5]}], 2, pad={"x": readers.Padding()})
        ),
    ],
)
def test_masked_values_are_refused_wherever_their_mask_would_be_lost(read):
    with pytest.raises(ValueError, match=r"masked.* values masked, expected an array without a m"):
        read()


def test_masked_array_in_which_nothing_is_masked_is_an_array():
    (batch,) = readers.arrays({"x": np.ma.masked_array([1.0, 2.0])}, 2)
    assert type(batch["x"]) is np.ndarray
