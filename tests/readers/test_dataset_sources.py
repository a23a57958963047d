"""Named data sets from TFDS, from damaged files, and with the options of readers from disk."""

import numpy as np
import pytest

from penstock import readers
from penstock.readers import DatasetNotFoundError
from tests.readers.samples import fake_tfds

NUM_IMAGES = 5


@pytest.fixture(autouse=True)
def no_files_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_DATA", str(tmp_path / "data"))


class FakeSource:
    """What `tfds.data_source` returns: records by number, with more features than are asked for."""

    def __len__(self):
        return NUM_IMAGES

    def __getitem__(self, index):
        image = np.full((28, 28, 1), index, np.uint8)
        return {"id": b"x", "image": image, "label": int(index) * 2}


@pytest.fixture
def asked(monkeypatch):
    """Put a `tensorflow_datasets` in place that knows mnist's train split; return what it is asked.

    It has the set in its own folder, not in the data set's.
    """
    asked = []

    def data_source(name, *, split, data_dir, download):
        asked.append((name, split, data_dir, download))
        if (name, split) != ("mnist", "train"):
            raise KeyError("Trying to access `splits['test']` but `splits` is empty.")  # TFDS 4.9
        if data_dir is not None:
            raise FileNotFoundError("no such set")
        return FakeSource()

    fake_tfds(monkeypatch, data_source)
    return asked


def test_prepared_tfds_set_is_read_without_a_download(asked, tmp_path):
    reader = readers.dataset("mnist", "train", 2, num_workers=2, transform=lambda batch: batch)
    batches = list(reader)
    assert asked == [
        ("mnist", "train", str(tmp_path / "data" / "mnist"), False),
        ("mnist", "train", None, False),
    ]
    assert [list(batch) for batch in batches] == [["image", "label"]] * 3
    assert batches[0]["image"].shape == (2, 28, 28, 1)
    assert batches[0]["image"].dtype == np.uint8
    assert np.concatenate([batch["image"][:, 0, 0, 0] for batch in batches]).tolist() == [*range(5)]
    assert np.concatenate([batch["label"] for batch in batches]).tolist() == [0, 2, 4, 6, 8]
    assert batches[0]["label"].dtype == np.int32


def test_error_in_a_tfds_record_names_the_set_and_the_record(asked):
    def fail(sample):
        raise FloatingPointError("no such luck")

    with pytest.raises(FloatingPointError) as caught:
        next(readers.dataset("mnist", batch_size=2, decode=fail)())
    assert caught.value.__notes__ == ["in dataset('mnist'), record 0: TFDS mnist, record 0"]


def test_tfds_set_of_another_shape_is_refused(asked):
    with pytest.raises(ValueError, match=r"got \[32, 32, 1\], expected \[28, 28, 1\]"):
        readers.dataset("mnist", image_shape=[32, 32, 1])


@pytest.mark.parametrize(("name", "split"), [("mnist", "test"), ("cifar10", "train")])
def test_set_that_tfds_has_not_prepared_is_missing(asked, name, split):
    with pytest.raises(DatasetNotFoundError, match="or prepare it with tensorflow-datasets"):
        readers.dataset(name, split)
    assert len(asked) == 2


def test_tfds_set_that_is_not_prepared_says_what_to_do(asked):
    with pytest.raises(DatasetNotFoundError, match=r"`splits` is empty\. Check both names, pass d"):
        readers.tfds("mnist", "test")


def add_draw(sample, random):
    return {**sample, "draw": random.random()}


def test_set_in_memory_is_decoded_and_augmented_by_sample_in_the_order_it_has_without():
    options = {"batch_size": 64, "shuffle": True, "seed": 3}
    plain = readers.dataset("digits", "test", **options)
    assert plain.data["image"].shape == (359, 8, 8, 1)
    drawn = readers.dataset(
        "digits", "test", decode=lambda s: {"label": s["label"] + 1}, augment=add_draw, **options
    )
    for _ in range(2):
        for one, other in zip(plain, drawn, strict=True):
            np.testing.assert_array_equal(one["label"] + 1, other["label"])
            assert len(set(other["draw"].tolist())) == len(other["draw"])


def test_set_in_memory_is_padded():
    batch = next(readers.dataset("digits", "test", 2, pad={"image": readers.Padding()})())
    assert batch["image_length"].tolist() == [8, 8]


def label_only(sample):
    return {"label": sample["label"]}


def parse(serialized):
    return {"label": np.frombuffer(serialized, np.uint8)}


@pytest.mark.quick("thread")
@pytest.mark.parametrize("workers", ["thread", "process"])
def test_decode_comes_after_the_sets_own_function(workers, tmp_path):
    with readers.RecordWriter(tmp_path / "parsed_0.tfrecord") as writer:
        writer.write(bytes([7]))
    readers.register_dataset("parsed", files={"train": "parsed_*.tfrecord"})(parse)
    reader = readers.dataset(
        "parsed", dataset_dir=tmp_path, decode=label_only, workers=workers, num_workers=1
    )
    assert [sample["label"].tolist() for sample in reader] == [[7]]


def test_option_out_of_range_is_refused_also_where_the_set_is_in_memory():
    with pytest.raises(ValueError, match=r"^dataset\('digits'\)\(on_error\) got 'ignore'"):
        readers.dataset("digits", on_error="ignore")
