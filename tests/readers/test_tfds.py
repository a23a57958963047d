"""TFDS without TensorFlow: a real set, prepared here as ArrayRecord, a stand-in, and none."""

import subprocess
import sys

import numpy as np
import pytest

from penstock import readers
from penstock.readers import DatasetNotFoundError
from tests.readers.case import require
from tests.readers.record_cases import prepared
from tests.readers.samples import fake_tfds


@pytest.fixture
def data_dir():
    require("tensorflow_datasets")
    return prepared()


def test_tensorflow_is_not_imported(data_dir):
    program = (
        "import sys; from penstock import readers; "
        "reader = readers.tfds('numbered', 'train', 6, data_dir=sys.argv[1], num_workers=2); "
        "print(len(list(reader)), 'tensorflow' in sys.modules)"
    )
    command = [sys.executable, "-c", program, str(data_dir)]  # other tests import TensorFlow here
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["4", "False"]


@pytest.mark.filterwarnings("default")  # those of the package itself
def test_features_can_be_chosen_and_unknown_ones_are_refused(data_dir):
    def read(**options):
        return readers.tfds("numbered", "train", 23, data_dir=data_dir, **options)

    (batch,) = read()
    np.testing.assert_array_equal(batch["image"][:, 0, 0, 0], batch["label"])
    assert batch["image"].dtype == np.uint8
    assert list(next(read(features=["label"])())) == ["label"]
    with pytest.raises(ValueError, match="Did you mean 'label'"):
        read(features=["labels"])


def test_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ModuleNotFoundError, match=r'Run pip install "penstock\[tfds\]"\.'):
        readers.tfds("mnist", "train", 32)


def test_single_samples_come_without_a_batch_size(monkeypatch):
    samples = [{"label": number} for number in range(3)]
    fake_tfds(monkeypatch, lambda name, **_: samples)
    assert list(readers.tfds("tiny", "train", cache_records=True)) == samples


NUM_IMAGES = 5


class FakeSource:
    """What `tfds.data_source` returns: records by number, with more features than are asked for."""

    def __len__(self):
        return NUM_IMAGES

    def __getitem__(self, index):
        image = np.full((28, 28, 1), index, np.uint8)
        return {"id": b"x", "label": int(index) * 2, "image": image}


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Put a `tensorflow_datasets` in place that knows mnist's train split; return what it is asked.

    It has the set in its own folder, not in the data set's.
    """
    asked = []
    monkeypatch.setenv("PENSTOCK_DATA", str(tmp_path / "data"))

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
    with pytest.raises(DatasetNotFoundError, match=r"`splits` is empty\. Check both names, pass d"):
        readers.tfds(name, split)
