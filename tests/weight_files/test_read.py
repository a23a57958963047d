"""Which reader a file gets, and what is said of a file that none can read."""

import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from penstock._errors import ParameterError
from penstock._weight_files import read_weights

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize(
    ("file", "name", "written_by", "num_arrays"),
    [
        ("state_dict.pth", "weights.h5", "torch", 11),
        ("legacy.pth", "weights.safetensors", "torch", 11),
        ("net.keras", "net.pth", "keras", 14),
        ("legacy.h5", "legacy.pt", "keras", 14),
    ],
)
def test_format_is_told_from_the_content_whatever_the_name(
    tmp_path, file, name, written_by, num_arrays
):
    shutil.copy(DATA / file, tmp_path / name)
    weights = read_weights(str(tmp_path / name))
    assert weights.format == written_by
    assert len(weights.arrays) == num_arrays
    assert weights.path == tmp_path / name


def test_safetensors_of_every_type_come_back_with_bfloat16_and_without_prefix(tmp_path):
    import jax.numpy as jnp

    tensors = {
        "module.brain": np.asarray([1, -3, 256], jnp.bfloat16),
        "module.half": np.asarray([[0.5, -2]], np.float16),
        "module.step": np.asarray(7, np.int64),
        "module.mask": np.asarray([True, False]),
        "module.empty": np.zeros((0, 4), np.float32),
    }
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    weights = read_weights(tmp_path / "model.safetensors")
    assert weights.format == "torch"
    assert weights.notes == ("cut 'module.' off every name",)
    assert set(weights.arrays) == {name.removeprefix("module.") for name in tensors}
    for name, tensor in tensors.items():
        array = weights.arrays[name.removeprefix("module.")]
        assert array.dtype == tensor.dtype
        np.testing.assert_array_equal(array, tensor, strict=True)


def test_arrays_cannot_be_replaced():
    weights = read_weights(DATA / "state_dict.pth")
    with pytest.raises(TypeError, match="does not support item assignment"):
        weights.arrays["half"] = np.zeros(2)  # pyright: ignore[reportIndexIssue]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "got an empty file, expected a TensorFlow checkpoint, a Keras"),
        (b"<!DOCTYPE html><html>", "It looks like a web page, so the download failed."),
        (b"version https://git-lfs.github.com/spec/v1\n", "It is a Git LFS pointer: run git lfs"),
        (b"\x1f\x8b\x08\0\0\0\0\0", "It is compressed with gzip: unpack it first."),
        (b"\x80\x04\x95\0\0.", "got a damaged pickle (unpack requires a buffer of 8 bytes)"),
        (b"\x80\x04].", "got a list and no state dict, expected tensors by name"),
        (b"\x93NUMPY\x01\0v\0", "It is a NumPy array without a name."),
        (b'{"weight_map": {}}', "got JSON without the parts of weights, expected an index as"),
        (b'{"weight_map": {"w": null}}', "got JSON without the parts of weights, expected an"),
        (b"\0\1\2\3", r"got a file of 4 bytes that begins with b'\x00\x01\x02\x03', expected a Te"),
        (b"PK\x03\x04 and no more", "got a zip archive of 16 bytes without its table of entries"),
        (b"\x89HDF\r\n\x1a\n", "got damage at byte 8, expected an HDF5 file that Keras wrote."),
        (b"\xff" * 8 + b"{", "got a damaged header or a dtype that NumPy lacks"),
    ],
)
def test_file_that_is_no_weights_says_what_it_is(tmp_path, content, text):
    path = tmp_path / "weights.bin"
    path.write_bytes(content)
    with pytest.raises(ParameterError) as caught:
        read_weights(path)
    assert str(caught.value).startswith(f"weights file {str(path)!r} got ")
    assert text in str(caught.value)


def test_archive_of_something_else_lists_its_entries(tmp_path):
    with zipfile.ZipFile(tmp_path / "weights.zip", "w") as archive:
        archive.writestr("kernel.txt", "0 0")
    text = (
        r"got a zip archive that holds 'kernel\.txt', expected data\.pkl \(torch\), model\.weights"
    )
    with pytest.raises(ParameterError, match=text):
        read_weights(tmp_path / "weights.zip")


def test_folder_is_refused_with_what_it_holds(tmp_path):
    for index in range(7):
        (tmp_path / f"{index}.ckpt").write_text("")
    text = r"got a folder that holds '0\.ckpt', .*, '4\.ckpt' and 2 more, expected a TensorFlow"
    with pytest.raises(ParameterError, match=text):
        read_weights(tmp_path)


def test_missing_file_is_an_error_with_the_nearest_name(tmp_path):
    (tmp_path / "resnet50.pth").write_text("")
    with pytest.raises(FileNotFoundError, match=r"does not exist.*Did you mean 'resnet50\.pth'\?"):
        read_weights(tmp_path / "resnet5O.pth")
    with pytest.raises(FileNotFoundError, match="does not exist, expected"):
        read_weights(tmp_path / "nowhere" / "resnet50.pth")


def test_part_of_a_checkpoint_is_refused_with_what_to_give():
    text = r"It is one part of a TensorFlow checkpoint: give its path without \.data-"
    with pytest.raises(ParameterError, match=text):
        read_weights(DATA / "v2.ckpt.data-00000-of-00001")


@pytest.mark.parametrize(
    ("file", "package", "extra"),
    [("legacy.h5", "h5py", "keras"), ("v1.ckpt", "tensorflow", "tensorflow")],
)
def test_missing_package_says_what_to_install(monkeypatch, file, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    text = rf'{file}\' got no {package}, expected .* Run pip install "penstock\[{extra}\]"\.'
    with pytest.raises(ModuleNotFoundError, match=text):
        read_weights(DATA / file)
