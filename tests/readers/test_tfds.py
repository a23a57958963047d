"""TFDS without TensorFlow: a real set, prepared here as ArrayRecord, and its absence."""

import subprocess
import sys
import types

import numpy as np
import pytest

from penstock import readers
from penstock.readers.tfds_sets import KeptFeatures
from tests.readers.case import require

PREPARE = """
import sys
import numpy as np
import tensorflow_datasets as tfds

class Tiny(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "image": tfds.features.Tensor(shape=(4, 4, 1), dtype=np.uint8),
            "label": tfds.features.ClassLabel(num_classes=10),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for i in range(23):
            yield i, {"image": np.full((4, 4, 1), i, np.uint8), "label": i % 10}

Tiny(data_dir=sys.argv[1], file_format="array_record").download_and_prepare()
"""


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    require("tensorflow_datasets")
    folder = tmp_path_factory.mktemp("tfds")
    subprocess.run([sys.executable, "-c", PREPARE, str(folder)], check=True, capture_output=True)
    return folder


def read(data_dir, **options):
    return readers.tfds("tiny", "train", 6, data_dir=data_dir, num_workers=2, **options)


@pytest.mark.filterwarnings("default")  # those of the package itself
def test_set_is_read_completely(data_dir):
    batches = list(read(data_dir, shuffle=True))
    images = np.concatenate([batch["image"] for batch in batches])
    labels = np.concatenate([batch["label"] for batch in batches])
    assert images.dtype == np.uint8
    assert sorted(images[:, 0, 0, 0].tolist()) == list(range(23))
    np.testing.assert_array_equal(images[:, 0, 0, 0] % 10, labels)


def test_tensorflow_is_not_imported(data_dir):
    program = (
        "import sys; from penstock import readers; "
        "reader = readers.tfds('tiny', 'train', 6, data_dir=sys.argv[1], num_workers=2); "
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


@pytest.mark.filterwarnings("default")
def test_position_is_restored(data_dir):
    iterator = read(data_dir, shuffle=True)()
    next(iterator)
    state, rest = iterator.get_state(), list(iterator)
    fresh = read(data_dir, shuffle=True)()
    fresh.set_state(state)
    for one, other in zip(fresh, rest, strict=True):
        np.testing.assert_array_equal(one["image"], other["image"])


def test_kept_features_keep_their_order_and_name_the_record():
    source = KeptFeatures([{"a": 1, "b": 2}], ("b", "a"), "tiny[train]")
    assert list(source[0].items()) == [("b", 2), ("a", 1)]
    assert source.origin(0) == "TFDS tiny[train], record 0"


def test_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ModuleNotFoundError, match=r'Run pip install "penstock\[tfds\]"\.'):
        readers.tfds("mnist", "train", 32)


def test_single_samples_come_without_a_batch_size(monkeypatch):
    fake = types.ModuleType("tensorflow_datasets")
    fake.data_source = lambda name, **_: [{"label": number} for number in range(3)]
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", fake)
    assert list(readers.tfds("tiny", "train", cache_records=True)) == [
        {"label": 0},
        {"label": 1},
        {"label": 2},
    ]
