"""Samples whose features are Python's lists, as JSON and Hugging Face's data sets have them."""

import re
from collections import UserDict

import numpy as np
import optax
import pytest

import penstock as ps
from penstock import readers
from tests.networks import linear_program, one_device

NUM_SAMPLES = 4  # as many as features: a batch that was transposed would fit
SAMPLES = [
    {"x": np.random.default_rng(k).normal(size=4).tolist(), "y": [float(k)]}
    for k in range(NUM_SAMPLES)
]
COLUMNS = {name: np.array([sample[name] for sample in SAMPLES]) for name in ("x", "y")}
READERS = {
    "indexed": lambda samples: readers.indexed(samples, NUM_SAMPLES),
    "indexed in threads": lambda samples: readers.indexed(samples, NUM_SAMPLES, num_workers=2),
    "batch": lambda samples: readers.batch(samples, NUM_SAMPLES),
    "batch of mapped": lambda samples: readers.batch(
        readers.map_readers(dict, readers.indexed(samples, None)), NUM_SAMPLES
    ),
}


def test_lists_of_numbers_are_tested_and_trained_on_as_arrays_are():
    of_lists, of_arrays = (
        ps.Trainer(linear_program, optax.sgd(0.1), place=one_device()) for _ in range(2)
    )
    for make in READERS.values():
        of_lists.train(make(SAMPLES))
        of_arrays.train(readers.arrays(COLUMNS, NUM_SAMPLES))
        expected = of_arrays.test(readers.arrays(COLUMNS, NUM_SAMPLES))
        assert of_lists.test(make(SAMPLES)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([1, 2, 3], (np.int64, [3])),
        ([[0.5, 1.0], [2.0, 3.0]], (np.float64, [2, 2])),
        ([(1, 2), (3, 4), (5, 6)], (np.int64, [3, 2])),
        ([True, False], (np.bool_, [2])),
        ([np.float32(1), np.float32(2)], (np.float32, [2])),
        (["a", "bcd"], (np.object_, [2])),
        ([b"a\0", b""], (np.object_, [2])),
        ([], (np.float64, [0])),
    ],
    ids=str,
)
def test_list_is_a_value_of_its_shape(value, expected):
    batch = next(readers.indexed([{"x": value, "n": 1}] * 2, 2)())
    assert (batch["x"].dtype.type, [*batch["x"].shape]) == (expected[0], [2, *expected[1]])
    assert batch["x"][0].tolist() == np.array(value, object).tolist()


def test_lists_of_arrays_and_tuples_hold_fields():
    columns = [np.arange(3), np.arange(3.0)]
    assert [len(column) for column in next(readers.arrays(columns, 2)())] == [2, 2]
    batch = next(readers.indexed([([1, 2, 3], 0), ([4, 5, 6], 1)], 2)())
    assert [field.tolist() for field in batch] == [[[1, 2, 3], [4, 5, 6]], [0, 1]]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (([1, 2], [1, 2, 3]), "got ['x'] [3] int64, expected ['x'] [2] int64."),
        (([1, 2], [0.5, 2]), "got ['x'] [2] float64, expected ['x'] [2] int64."),
        (([1, 2], 3), "got ['x'] [] int64, expected ['x'] [2] int64."),
        ((np.zeros(3), np.zeros(4)), "got ['x'] [4] float64, expected ['x'] [3] float64. The s"),
        (([[1, 2], [3, 4]], [[1, 2], [3]]), "got ['x'] [2] object, expected ['x'] [2, 2] int64."),
    ],
)
def test_lists_that_do_not_stack_name_the_record(values, text):
    with pytest.raises(ValueError, match=re.escape(text)) as caught:
        list(readers.indexed([{"x": value} for value in values], 2))
    assert caught.value.__notes__ == ["in indexed, record 1"]


def test_mapping_that_is_no_dict_is_a_sample_as_a_dict_is():
    """A tokenizer of Hugging Face's returns one; its keys were taken for the words."""

    def tokens(number: int) -> UserDict:
        return UserDict(ids=[number] * number, number=number)

    padded = readers.indexed([1, 2], 2, decode=tokens, pad={"ids": readers.Padding()})
    assert next(iter(padded))["ids"].tolist() == [[1, 0], [2, 2]]
    samples = readers.map_readers(tokens, [1, 2, 3])
    by_length = readers.batch_by_length(samples, field="ids", batch_size=2, shuffle=False)
    assert [[sample["number"] for sample in batch] for batch in by_length] == [[3, 2], [1]]
    with pytest.raises(ValueError, match="got a sample of type UserDict"):
        list(readers.batch_by_length(samples, batch_size=2))
    assert readers.learn_buckets(samples, field="ids") == [8]
    (row,) = readers.pack(samples, field="ids", length=6)
    assert row["ids"].tolist() == [1, 2, 2, 3, 3, 3]
    (joined,) = readers.compose([UserDict(a=1)], [UserDict(b=2)])
    assert joined == {"a": 1, "b": 2}
    columns = UserDict(x=np.arange(4), label=np.arange(4) % 2)
    part, _ = readers.split(readers.arrays(columns, 2), [0.5, 0.5], by="label")
    assert sorted(next(iter(part))["label"].tolist()) == [0, 1]
    rows = readers.indexed([UserDict(label=number % 2) for number in range(8)], 4)
    for part in readers.split(rows, [0.5, 0.5], by="label"):
        assert sorted(next(iter(part))["label"].tolist()) == [0, 0, 1, 1]
    with pytest.raises(TypeError, match="reader got UserDict"):
        readers.of(columns)
