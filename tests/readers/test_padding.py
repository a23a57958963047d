"""Entries whose length differs between samples: padded, with their lengths beside them."""

import re

import numpy as np
import pytest

from penstock import readers
from penstock.readers import Padding
from tests.readers.samples import fake_tfds

RAGGED = [{"ids": np.arange(1, n + 1, dtype=np.int64), "label": n} for n in (2, 0, 3)]


def test_batch_is_padded_to_its_longest_and_holds_the_lengths():
    (batch,) = readers.indexed(RAGGED, 3, pad={"ids": Padding(value=-1)})
    assert batch["ids"].tolist() == [[1, 2, -1], [-1, -1, -1], [1, 2, 3]]
    assert batch["ids_length"].tolist() == [2, 0, 3]
    assert (batch["ids"].dtype, batch["ids_length"].dtype) == (np.int64, np.int32)


def test_max_length_gives_all_batches_one_shape_and_bounds_every_sample():
    reader = readers.indexed(RAGGED, 2, pad={"ids": Padding(max_length=3)}, num_workers=2)
    assert [batch["ids"].shape for batch in reader] == [(2, 3), (1, 3)]
    bounded = {"ids": Padding(max_length=2)}
    with pytest.raises(readers.RecordError, match=r"'ids' got 3 values, expected at most 2\."):
        list(readers.indexed(RAGGED, 3, pad=bounded))
    (batch,) = readers.indexed(RAGGED, 3, pad=bounded, on_error="skip")
    assert batch["label"].tolist() == [2, 0]


def test_single_samples_have_their_lengths():
    samples = list(readers.indexed(RAGGED, None, pad={"ids": Padding()}))
    assert [(sample["ids"].shape, int(sample["ids_length"])) for sample in samples] == [
        ((2,), 2),
        ((0,), 0),
        ((3,), 3),
    ]


def test_shard_without_a_record_of_the_last_batch_keeps_the_structure():
    first, last = readers.indexed(
        RAGGED, 2, pad={"ids": Padding()}, shard=readers.Shard(1, 2), shuffle=True
    )
    assert sorted(first) == sorted(last) == ["ids", "ids_length", "label"]
    assert (last["ids"].shape[0], last["ids_length"].shape) == (0, (0,))


def test_tfds_features_in_nested_dicts_are_padded(monkeypatch):
    records = [
        {
            "objects": {"bbox": np.ones((count, 4), np.float32), "name": np.array([b"ab"] * count)},
            "image": np.zeros((2000,)),
        }
        for count in (1, 2)
    ]
    fake_tfds(monkeypatch, lambda name, **_: records)
    with pytest.raises(ValueError, match="The samples of a batch are stacked"):
        list(readers.tfds("boxes", "train", 2))
    pad = {"objects/bbox": Padding(), "objects/name": Padding(value=b"")}
    (batch,) = readers.tfds("boxes", "train", 2, pad=pad)
    assert batch["objects"]["bbox"].shape == (2, 2, 4)
    assert batch["objects"]["bbox_length"].tolist() == [1, 2]
    assert batch["objects"]["name"].tolist() == [[b"ab", b""], [b"ab", b"ab"]]


@pytest.mark.parametrize(
    ("pad", "text"),
    [
        ({"idss": Padding()}, "pad got the entry 'idss', expected entries among ['ids', 'label']."),
        ({"label": Padding()}, "pad got the entry 'label' of shape [], expected an entry [L, ...]"),
        ({"ids": Padding(value=b"")}, "got Padding(value=b'') for the entry 'ids' of dtype int64"),
        ({"ids": Padding(value=0.5)}, "got Padding(value=0.5) for the entry 'ids' of dtype int64"),
    ],
)
def test_padding_that_does_not_fit_the_samples_is_refused(pad, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        list(readers.indexed(RAGGED, 3, pad=pad))


@pytest.mark.parametrize(("dtype", "value"), [("uint8", 300), ("int8", 200), ("bool", 2)])
def test_padding_that_would_wrap_around_is_refused(dtype, value):
    source = [{"ids": np.zeros(size, dtype)} for size in (1, 2)]
    with pytest.raises(ValueError, match=rf"Padding\(value={value}\) .* of dtype {dtype}"):
        list(readers.indexed(source, 2, pad={"ids": Padding(value=value)}))


@pytest.mark.parametrize("name", ["ids", "outer/ids"])
def test_entry_in_the_place_of_a_length_is_refused(name):
    sample = {"ids": [1, 2], "ids_length": 7}
    source = [{"outer": sample} if "/" in name else sample]
    with pytest.raises(ValueError, match=f"pad got the entry '{name}' beside 'ids_length', expect"):
        list(readers.indexed(source, 1, pad={name: Padding()}))


def test_misspelled_entry_of_a_nested_dict_is_told_the_nearest():
    text = r"got the entry 'outer/idss', expected entries among \['ids'\]. .* Did you mean 'ids'\?"
    with pytest.raises(ValueError, match=text):
        list(readers.indexed([{"outer": {"ids": [1]}}], 1, pad={"outer/idss": Padding()}))


def test_padding_that_is_none_is_refused_at_once():
    with pytest.raises(TypeError, match=r"indexed\(pad\['ids'\]\) got 3, expected a readers.Pad"):
        readers.indexed(RAGGED, 3, pad={"ids": 3})
    with pytest.raises(
        ValueError, match=r"Padding\(max_length\) got 0, expected an integer of 1 or more"
    ):
        Padding(max_length=0)
