"""TensorFlow checkpoints: in one file, in several, and damaged."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from penstock._errors import ParameterError
from penstock._weight_files import read_weights
from tests.readers.case import is_missing

pytestmark = [
    pytest.mark.skipif(is_missing("tensorflow"), reason="tensorflow is not installed"),
    # TensorFlow warns about itself and its packages as it is imported.
    pytest.mark.filterwarnings("default"),
]

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize("name", ["v1.ckpt", "v2.ckpt", "v2.ckpt.index"])
def test_checkpoint_comes_back_with_slots_and_counters(name):
    weights = read_weights(DATA / name)
    assert weights.format == "tf_slim"
    expected = {
        "global_step": np.asarray(7),
        "lenet/conv1/biases": np.ones(2, np.float32),
        "lenet/conv1/weights": np.arange(8, dtype=np.float32).reshape(2, 2, 1, 2),
        "lenet/conv1/weights/Momentum": np.zeros((2, 2, 1, 2), np.float32),
    }
    assert list(weights.arrays) == list(expected)
    for key, value in expected.items():
        np.testing.assert_array_equal(weights.arrays[key], value, strict=True)


def test_strings_in_a_checkpoint_are_left_out():
    weights = read_weights(DATA / "object.ckpt")
    assert list(weights.arrays) == ["kernel/.ATTRIBUTES/VARIABLE_VALUE"]
    assert weights.notes == ("left out _CHECKPOINTABLE_OBJECT_GRAPH, which hold strings",)


def test_checkpoint_without_its_data_is_refused_with_what_to_do(tmp_path):
    shutil.copy(DATA / "v2.ckpt.index", tmp_path)
    with pytest.raises(ParameterError, match=r"Put all files v2\.ckpt\.index and v2\.ckpt\.data-"):
        read_weights(tmp_path / "v2.ckpt")


@pytest.mark.parametrize(
    ("damaged", "name"),
    [
        ("v1.ckpt", "v1.ckpt"),
        ("v2.ckpt.index", "v2.ckpt"),
        ("v2.ckpt.data-00000-of-00001", "v2.ckpt"),
    ],
)
def test_damaged_checkpoint_is_refused_or_read(tmp_path, damaged, name):
    for file in DATA.glob("v*.ckpt*"):
        shutil.copy(file, tmp_path)
    content = (DATA / damaged).read_bytes()
    random = np.random.default_rng(0)
    num_refused = 0
    for _ in range(300):
        changed = bytearray(content)
        for place in random.integers(len(content), size=random.integers(1, 4)):
            changed[place] = random.integers(256)
        (tmp_path / damaged).write_bytes(changed[: random.integers(1, 2 * len(content))])
        try:
            read_weights(tmp_path / name)
        except ParameterError:
            num_refused += 1
    assert num_refused > 200
