"""Torch files: those that torch wrote, and those that no torch would."""

import shutil
import zipfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from penstock._errors import ParameterError
from penstock._weight_files import read_weights
from tests.weight_files.torch_files import (
    floats,
    group,
    mapping,
    number,
    pickled,
    storage,
    tar_entries,
    tar_pickle,
    tensor,
    text,
    vector,
    write_legacy,
    write_tar,
    write_zip,
)

DATA = Path(__file__).parent / "data"

# What tests/weight_files/data/make_torch_files.py saves.
STATE_DICT = {
    "conv.weight": (np.arange(24, dtype=np.float32) / 8).reshape(2, 3, 2, 2),
    "transposed": np.asarray([[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]),
    "rows": np.asarray([[3, 4, 5], [6, 7, 8]], np.float32),
    "every_other": np.asarray([1, 3, 5, 7, 9, 11], np.float32),
    "half": np.asarray([0.5, -2.0], np.float16),
    "brain": np.asarray([1.0, -3.0, 256.0], jnp.bfloat16),
    "num_batches_tracked": np.asarray(7),
    "mask": np.asarray([True, False, True]),
    "bytes": np.asarray([0, 255], np.uint8),
    "empty": np.zeros((0, 4), np.float32),
    "parameter": np.ones(2, np.float32),
}


@pytest.mark.parametrize("file", ["state_dict.pth", "legacy.pth"])
def test_state_dict_that_torch_saved_comes_back(file):
    weights = read_weights(DATA / file)
    assert weights.format == "torch"
    assert weights.notes == ()
    assert list(weights.arrays) == list(STATE_DICT)
    for name, expected in STATE_DICT.items():
        assert weights.arrays[name].dtype == expected.dtype
        np.testing.assert_array_equal(weights.arrays[name], expected, strict=True)


@pytest.mark.parametrize("file", ["state_dict.pth", "legacy.pth"])
def test_tensors_of_one_storage_share_memory_and_cannot_be_written_to(file):
    arrays = read_weights(DATA / file).arrays
    assert np.shares_memory(arrays["rows"], arrays["every_other"])
    assert not any(array.flags.writeable for array in arrays.values() if array.size)


def test_state_dict_in_a_training_checkpoint_is_found_and_said():
    weights = read_weights(DATA / "checkpoint.pth")
    assert weights.notes == (
        "took the state dict under 'state_dict', left out 'epoch', 'optimizer'",
        "cut 'module.' off every name",
    )
    shapes = {name: array.shape for name, array in weights.arrays.items()}
    assert shapes == {
        "0.weight": (2, 3),
        "0.bias": (2,),
        "1.weight": (2,),
        "1.bias": (2,),
        "1.running_mean": (2,),
        "1.running_var": (2,),
        "1.num_batches_tracked": (),
    }
    assert all((array == 3).all() for array in weights.arrays.values())


def test_average_is_taken_or_left_and_what_is_no_tensor_left_out(tmp_path):
    value = {
        "model_ema": mapping({"_orig_mod.module.w": vector("0", 2)}),
        "model": mapping({"_orig_mod.module.w": vector("1", 2), "_orig_mod.module.n": number(1)}),
        "arch": text("resnet50"),
    }
    storages = {"0": floats(1, 2), "1": floats(3, 4)}
    path = write_zip(tmp_path / "a.pth", pickled(mapping(value)), storages)
    raw = read_weights(path, moving_averages=False)
    assert {name: array.tolist() for name, array in raw.arrays.items()} == {"w": [3, 4]}
    assert raw.notes == (
        "took the state dict under 'model', left out 'model_ema', 'arch'",
        "the raw weights, though the file has an average under 'model_ema'",
        "left out '_orig_mod.module.n', which are no tensors",
        "cut '_orig_mod.' off every name",
        "cut 'module.' off every name",
    )
    average = read_weights(path)
    assert average.arrays["w"].tolist() == [1, 2]
    assert any("is a moving average of the weights; moving_ave" in note for note in average.notes)


@pytest.mark.parametrize("names", [["module.a", "b"], ["module.", "module.a"]])
def test_prefix_that_is_not_on_every_name_stays(tmp_path, names):
    value = mapping({name: vector("0", 2) for name in names})
    weights = read_weights(write_zip(tmp_path / "a.pth", pickled(value), {"0": floats(1, 2)}))
    assert list(weights.arrays) == names
    assert weights.notes == ()


def test_pickled_network_is_refused_with_what_to_save():
    text = r"got the global torch\.nn\.modules\.container\.Sequential .* torch\.save\(model\.state_"
    with pytest.raises(ParameterError, match=text):
        read_weights(DATA / "module.pth")


def test_oldest_format_of_torch_is_read(tmp_path):
    # torch 2.15 reads this file as the same tensors.
    path = write_tar(tmp_path / "old.pth", tar_pickle(), tar_entries())
    arrays = read_weights(path).arrays
    assert list(arrays) == ["weight", "bias"]
    np.testing.assert_array_equal(arrays["weight"], [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(arrays["bias"], [4, 5])
    assert arrays["weight"].dtype == np.float32


@pytest.mark.parametrize("entry", ["storages", "tensors"])
def test_oldest_format_with_a_part_cut_off_is_refused(tmp_path, entry):
    whole = tar_entries()
    for length in range(len(whole[entry])):
        path = write_tar(
            tmp_path / "old.pth", tar_pickle(), {**whole, entry: whole[entry][:length]}
        )
        with pytest.raises(ParameterError, match="weights file"):
            read_weights(path)


def test_stretch_of_a_storage_in_the_older_format_is_read(tmp_path):
    # torch 2.15 reads this file as the same tensors.
    stretch = storage("FloatStorage", "7", 6, group(text("v"), number(2), number(3)))
    part = tensor(stretch, 1, group(number(2)), group(number(1)))
    value = pickled(mapping({"part": part, "whole": vector("9", 2, b"N")}))
    storages = {"7": floats(0, 1, 2, 3, 4, 5), "9": floats(8, 9)}
    arrays = read_weights(write_legacy(tmp_path / "a.pth", value, storages, 4)).arrays
    assert {name: array.tolist() for name, array in arrays.items()} == {
        "part": [3, 4],
        "whole": [8, 9],
    }


def view(offset: int, size: list[int], stride: list[int]) -> bytes:
    """Return a state dict of a tensor that is a part of a storage of two elements."""
    sizes, strides = (group(*map(number, numbers)) for numbers in (size, stride))
    return mapping({"w": tensor(storage("FloatStorage", "0", 2), offset, sizes, strides)})


OUTSIDE = [
    (0, [3], [1]),  # past the end of two elements
    (1, [2], [1]),
    (-1, [1], [1]),
    (0, [2], [-1]),
    (0, [-2], [1]),
    (0, [2], [2**62]),
    (0, [2**40, 2**40], [0, 0]),  # a terabyte of the first element
    (0, [3], [0]),
    (0, [0, 2**62], [1, 1]),
    (0, [2], []),
    (0, [1] * 40, [1] * 40),
    (2**70, [1], [1]),
]
# Their product is a terabyte of x.
NO_SIZES = group(text("x"), number(10**12)), group(number(1), number(1))
VECTOR = mapping({"w": vector("0", 2)})


@pytest.mark.parametrize(
    ("value", "num_values", "message"),
    [
        *((view(*place), 2, "got a tensor of sizes .* expected .* damaged") for place in OUTSIDE),
        (
            mapping({"w": tensor(storage("FloatStorage", "0", 2), 0, *NO_SIZES)}),
            2,
            r"got a tensor of sizes \[\?, 1000000000000\]",
        ),
        *((VECTOR, n, f"got {n * 4} bytes for the tensor 'w', exp") for n in (0, 1, 3)),
        (VECTOR, None, "got no entry 'archive/data/0', expected one"),
        (b"]", 2, "got a list and no state dict, expected tensors by name, or one of state_dict, "),
        (mapping({}), 2, "got a dict and no state dict"),
        (mapping({"epoch": number(1)}), 2, "got a dict with 'epoch' and no state dict"),
        (b"}" + number(10**9000) + b"Ns", 2, "got a dict with int and no state dict"),
        (
            mapping(dict.fromkeys(("student", "teacher"), VECTOR)),
            2,
            "got a dict with 'student', 'teacher' and no",
        ),
        (vector("0", 2), 2, "got a Tensor and no state dict"),
    ],
)
def test_file_without_whole_tensors_by_name_is_refused(tmp_path, value, num_values, message):
    storages = {} if num_values is None else {"0": floats(*range(num_values))}
    with pytest.raises(ParameterError, match=message):
        read_weights(write_zip(tmp_path / "a.pth", pickled(value), storages))


@pytest.mark.parametrize("num_values", [0, 1, 3])
def test_storage_of_another_length_in_the_older_format_is_refused(tmp_path, num_values):
    value, storages = mapping({"w": vector("0", 2, b"N")}), {"0": floats(*range(num_values))}
    with pytest.raises(ParameterError, match="got a storage of another length"):
        read_weights(write_legacy(tmp_path / "a.pt", pickled(value), storages, 4))


@pytest.mark.parametrize(
    ("entry", "content", "text"),
    [
        ("archive/byteorder", b"big", "got weights in another byte order than little-endian"),
        ("archive/constants.pkl", b"", "got a TorchScript archive, a program with its weights"),
    ],
)
def test_archive_of_another_kind_is_refused(tmp_path, entry, content, text):
    path = tmp_path / "a.pth"
    shutil.copy(write_zip(tmp_path / "b.pth", pickled(mapping({})), {}), path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(entry, content)
    with pytest.raises(ParameterError, match=text):
        read_weights(path)


def test_key_of_thousands_of_digits_in_the_oldest_format_is_refused(tmp_path):
    # Python raises an error of its own when such a number is to be text.
    entries = tar_entries()
    for entry, part in (("storages", number(70)), ("tensors", number(1))):
        changed = entries[entry].replace(b"(" + part, b"(" + number(10**9000), 1)
        assert changed != entries[entry]
        path = write_tar(tmp_path / "old.pth", tar_pickle(), {**entries, entry: changed})
        with pytest.raises(ParameterError, match=r"got a (storage|tensor) without its"):
            read_weights(path)
