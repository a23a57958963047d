"""TFDS without TensorFlow: a real set, prepared here as ArrayRecord, and its absence."""

import subprocess
import sys

import numpy as np
import pytest

from penstock import readers
from penstock.readers.tfds_sets import KeptFeatures
from tests.readers.case import require
from tests.readers.record_cases import prepared
from tests.readers.samples import fake_tfds


@pytest.fixture
def data_dir():
    require("tensorflow_datasets")
    return prepared()


def read(data_dir, **options):
    return readers.tfds("numbered", "train", 6, data_dir=data_dir, num_workers=2, **options)


@pytest.mark.filterwarnings("default")  # those of the package itself
def test_set_is_read_completely(data_dir):
    batches = list(read(data_dir, shuffle=True))
    images = np.concatenate([batch["image"] for batch in batches])
    labels = np.concatenate([batch["label"] for batch in batches])
    assert images.dtype == np.uint8
    assert sorted(images[:, 0, 0, 0].tolist()) == list(range(23))
    np.testing.assert_array_equal(images[:, 0, 0, 0], labels)


def test_tensorflow_is_not_imported(data_dir):
    program = (
        "import sys; from penstock import readers; "
        "reader = readers.tfds('numbered', 'train', 6, data_dir=sys.argv[1], num_workers=2); "
        "print(len(list(reader)), 'tensorflow' in sys.modules)"
    )
    command = [sys.executable, "-c", program, str(data_dir)]  # other tests import TensorFlow here
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["4", "False"]


@pytest.mark.filterwarnings("default")
def test_features_can_be_chosen_and_unknown_ones_are_refused(data_dir):
    assert list(next(read(data_dir, features=["label"])())) == ["label"]
    with pytest.raises(ValueError, match="Did you mean 'label'"):
        read(data_dir, features=["labels"])


def test_kept_features_keep_their_order_and_name_the_record():
    source = KeptFeatures([{"a": 1, "b": 2}], ("b", "a"), "tiny[train]")
    assert list(source[0].items()) == [("b", 2), ("a", 1)]
    assert source.origin(0) == "TFDS tiny[train], record 0"


def test_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ModuleNotFoundError, match=r'Run pip install "penstock\[tfds\]"\.'):
        readers.tfds("mnist", "train", 32)


def test_single_samples_come_without_a_batch_size(monkeypatch):
    samples = [{"label": number} for number in range(3)]
    fake_tfds(monkeypatch, lambda name, **_: samples)
    assert list(readers.tfds("tiny", "train", cache_records=True)) == samples
