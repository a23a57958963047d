"""Keras files: those that Keras wrote, in every layout, and those that hold something else."""

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from penstock._errors import ParameterError
from penstock._weight_files import read_weights
from penstock._weight_files._keras import name_legacy_variables as legacy_names

h5py = pytest.importorskip("h5py")

DATA = Path(__file__).parent / "data"

# What tests/weight_files/data/make_keras_files.py saves: variable number i is full of i.
NET = {
    "conv1/kernel": (3, 3, 1, 2),
    "conv1/bias": (2,),
    "bn1/beta": (2,),
    "bn1/moving_mean": (2,),
    "bn1/moving_variance": (2,),
    "dw/kernel": (1, 1, 2, 1),
    "sep/depthwise_kernel": (1, 1, 2, 1),
    "sep/pointwise_kernel": (1, 1, 2, 1),
    "bn2/gamma": (1,),
    "bn2/beta": (1,),
    "bn2/moving_mean": (1,),
    "bn2/moving_variance": (1,),
    "head/logits/kernel": (4, 1),
    "head/logits/bias": (1,),
}


def number(names: Iterable[str]) -> list[str]:
    """Return names with the number of each variable in its layer."""
    layers = [name.rpartition("/")[0] for name in names]
    return [f"{layer}/{layers[:index].count(layer)}" for index, layer in enumerate(layers)]


def assert_is_net(path: Path) -> None:
    weights = read_weights(path)
    assert weights.format == "keras"
    names = list(NET) if path.suffix == ".h5" else number(NET)
    assert list(weights.arrays) == names
    assert [array.shape for array in weights.arrays.values()] == list(NET.values())
    for index, array in enumerate(weights.arrays.values()):
        assert array.dtype == np.float32
        assert (array == index).all()


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """Write what model.save_weights does: a .keras file's weights, without its configuration."""
    path = tmp_path / "net.weights.h5"
    with zipfile.ZipFile(DATA / "net.keras") as archive:
        path.write_bytes(archive.read("model.weights.h5"))
    return path


@pytest.mark.parametrize("file", ["net.keras", "legacy.h5"])
def test_network_that_keras_saved_comes_back_in_the_networks_order(file):
    assert_is_net(DATA / file)


def test_whole_model_in_the_older_layout_comes_back_without_its_optimizer(tmp_path):
    with h5py.File(DATA / "legacy.h5") as source, h5py.File(tmp_path / "whole.h5", "w") as file:
        source.copy(source, file, "model_weights")
        for name, value in source.attrs.items():
            file["model_weights"].attrs[name] = value
        file.create_group("optimizer_weights")["momentum"] = np.zeros(3)
    assert_is_net(tmp_path / "whole.h5")
    notes = read_weights(tmp_path / "whole.h5").notes
    assert notes == ("left out the group 'optimizer_weights'",)


def test_file_without_a_configuration_has_the_same_arrays(bare):
    values = {name: array.flat[0] for name, array in read_weights(bare).arrays.items()}
    assert values == {name: index for index, name in enumerate(number(NET))}


def test_layers_of_older_keras_are_called_by_their_configuration_or_by_class(bare, tmp_path):
    with h5py.File(bare, "a") as file:
        for group in [*file["layers"].values(), file["layers/sequential/layers/dense"]]:
            group["vars"].attrs.pop("name", None)
        file.move("layers", "_layer_checkpoint_dependencies")  # as Keras 2 called it
    assert "batch_normalization_1/3" in read_weights(bare).arrays
    assert "sequential/dense/1" in read_weights(bare).arrays
    with (
        zipfile.ZipFile(DATA / "net.keras") as source,
        zipfile.ZipFile(tmp_path / "old.keras", "w") as archive,
    ):
        archive.writestr("config.json", source.read("config.json"))
        archive.writestr("model.weights.h5", bare.read_bytes())
    assert_is_net(tmp_path / "old.keras")


def test_groups_are_sorted_by_number_and_the_optimizers_left_out(tmp_path):
    with h5py.File(tmp_path / "a.weights.h5", "w") as file:
        for number in range(12):
            suffix = f"_{number}" if number else ""
            file[f"layers/dense{suffix}/vars/0"] = np.full((1, 1), number)
        file["optimizer/vars/0"] = np.zeros(3)
        file["layers/own/vars/10"] = file["layers/own/vars/9"] = np.zeros(1)
    weights = read_weights(tmp_path / "a.weights.h5")
    dense = [array.item() for name, array in weights.arrays.items() if name.startswith("dense")]
    assert dense == list(range(12))
    assert list(weights.arrays)[-2:] == ["own/9", "own/10"]
    assert weights.notes == ("left out the group 'optimizer'",)


@pytest.mark.parametrize(
    ("layer", "weights", "names"),
    [
        # As published: vgg16 by Keras 1, resnet50 and mobilenet by Keras 2.
        ("block1_conv1", ["block1_conv1_W_1:0", "block1_conv1_b_1:0"], ["kernel", "bias"]),
        ("bn", ["bn_running_mean:0", "bn_running_std:0"], ["moving_mean", "moving_variance"]),
        ("conv1_bn", ["conv1_bn_2/gamma:0", "conv1_bn_2/beta:0"], ["gamma", "beta"]),
        ("conv_dw_1", ["conv_dw_1/depthwise_kernel:0"], ["kernel"]),
        (
            "sep",
            ["sep/depthwise_kernel:0", "sep/pointwise_kernel:0"],
            ["depthwise_kernel", "pointwise_kernel"],
        ),
        ("expanded_conv/project", ["expanded_conv/project/kernel:0"], ["kernel"]),
        ("bn_0", ["block_0/adjust/bn_0/beta", "block_0/adjust/bn_0/gamma"], ["beta", "gamma"]),
        ("inner", ["a/kernel:0", "b/kernel:0"], ["a/kernel", "b/kernel"]),
        ("inner", ["inner/a/kernel", "inner/a/bias"], ["a/kernel", "a/bias"]),
    ],
)
def test_names_in_the_older_layout_are_layer_and_variable(layer, weights, names):
    assert legacy_names(layer, weights) == [f"{layer}/{name}" for name in names]


def test_names_split_over_attributes_and_written_as_bytes_are_read(tmp_path):
    with h5py.File(tmp_path / "old.h5", "w") as file:  # Keras 2 on Python 2
        layers = [f"fc{index}" for index in range(12)]
        for index, layer in enumerate(layers):
            file.attrs[f"layer_names{index}"] = np.asarray([layer.encode()])
            file.create_group(layer).attrs["weight_names"] = np.asarray([b"kernel:0"])
            file[layer]["kernel:0"] = np.full(1, index, ">f4")
    arrays = read_weights(tmp_path / "old.h5").arrays
    assert list(arrays) == [f"{layer}/kernel" for layer in layers]
    assert [array.item() for array in arrays.values()] == list(range(12))
    assert {array.dtype for array in arrays.values()} == {np.dtype("=f4")}


def test_bfloat16_comes_back(tmp_path):
    values = np.asarray([1, -3, 256], jnp.bfloat16)
    with h5py.File(tmp_path / "a.weights.h5", "w") as file:
        file.create_dataset("layers/dense/vars/0", data=values).attrs["dtype"] = "bfloat16"
    array = read_weights(tmp_path / "a.weights.h5").arrays["dense/0"]
    np.testing.assert_array_equal(array, values, strict=True)


def test_values_in_other_files_are_never_read(tmp_path):
    (tmp_path / "secret").write_bytes(bytes(8))
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["0"] = np.zeros(2)
    with h5py.File(tmp_path / "a.weights.h5", "w") as file:
        group = file.create_group("layers/dense/vars")
        group.create_dataset("0", (2,), "f4", external=[(tmp_path / "secret", 0, 8)])
    text = "got a data set 'layers/dense/vars/0' whose values lie in another file"
    with pytest.raises(ParameterError, match=text):
        read_weights(tmp_path / "a.weights.h5")
    with h5py.File(tmp_path / "a.weights.h5", "w") as file:
        layout = h5py.VirtualLayout((2,), "f8")
        layout[:] = h5py.VirtualSource(tmp_path / "other.h5", "0", (2,))
        file.create_group("layers/dense/vars").create_virtual_dataset("0", layout)
    with pytest.raises(ParameterError, match=text):
        read_weights(tmp_path / "a.weights.h5")
    with h5py.File(tmp_path / "a.weights.h5", "w") as file:
        file.create_group("layers/dense/vars")["0"] = h5py.ExternalLink(tmp_path / "other.h5", "0")
    assert not read_weights(tmp_path / "a.weights.h5").arrays


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"shape": (2**40,), "dtype": "f4"},
            r"of shape \(1099511627776,\), expected at most the ",
        ),
        (
            {"data": np.zeros(10**6), "compression": "gzip"},
            r"of shape \(1000000,\), expected at most the \d+ bytes of the file",
        ),
        ({"data": "text"}, "of type object, expected numbers"),
        ({"data": np.zeros(2, complex)}, "of type complex128, expected numbers"),
    ],
)
def test_data_set_of_another_kind_is_refused(tmp_path, options, text):
    with h5py.File(tmp_path / "a.weights.h5", "w") as file:
        file.create_group("layers/dense/vars").create_dataset("0", **options)
    with pytest.raises(ParameterError, match=f"got a data set 'layers/dense/vars/0' {text}"):
        read_weights(tmp_path / "a.weights.h5")


def test_links_in_a_circle_end(tmp_path):
    with h5py.File(tmp_path / "a.weights.h5", "w") as file:
        file["layers/dense/vars/0"] = np.zeros((2, 2))
        file["layers/dense/again"] = file["layers"]
    assert list(read_weights(tmp_path / "a.weights.h5").arrays) == ["dense/0"]


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        ("bn1", "got no group 'bn1' with the names of its weights, expected one"),
        ("bn1/bn1", "got no data set 'bn1/bn1/beta', expected it, as the file lists it"),
    ],
)
def test_file_that_lists_what_it_lacks_is_refused(tmp_path, missing, text):
    path = tmp_path / "legacy.h5"
    path.write_bytes((DATA / "legacy.h5").read_bytes())
    with h5py.File(path, "a") as file:
        del file[missing]
    with pytest.raises(ParameterError, match=text):
        read_weights(path)


def test_names_that_are_no_text_are_refused(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.attrs["layer_names"] = np.zeros(3)
    with pytest.raises(ParameterError, match="got an attribute 'layer_names' that is no text"):
        read_weights(tmp_path / "a.h5")


@pytest.mark.parametrize(
    ("layers", "text"),
    [(["a", "a"], "got two weights 'a/kernel', expected one of a name"), ([], None)],
)
def test_layers_of_one_name_are_refused(tmp_path, layers, text):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.attrs["layer_names"] = layers
        file.create_group("a").attrs["weight_names"] = ["kernel:0"]
        file["a/kernel:0"] = np.zeros(1)
    if text is None:
        assert not read_weights(tmp_path / "a.h5").arrays
        return
    with pytest.raises(ParameterError, match=text):
        read_weights(tmp_path / "a.h5")


def test_hdf5_file_of_something_else_says_what_it_holds(tmp_path):
    with h5py.File(tmp_path / "images.h5", "w") as file:
        file["images/train"] = np.zeros(3)
    with pytest.raises(ParameterError, match="got an HDF5 file with images, expected Keras weigh"):
        read_weights(tmp_path / "images.h5")


@pytest.mark.parametrize("config", [b"{", b"[" * 100_000, b"\xff", b"[]"])
def test_damaged_configuration_is_refused_or_without_use(bare, tmp_path, config):
    with zipfile.ZipFile(tmp_path / "net.keras", "w") as archive:
        archive.writestr("config.json", config)
        archive.writestr("model.weights.h5", bare.read_bytes())
    if config == b"[]":
        assert "bn1/0" in read_weights(tmp_path / "net.keras").arrays
        return
    with pytest.raises(ParameterError, match=r"got a damaged config\.json"):
        read_weights(tmp_path / "net.keras")


def test_heap_that_the_library_never_leaves_is_refused(tmp_path):
    path = tmp_path / "legacy.h5"
    content = bytearray((DATA / "legacy.h5").read_bytes())
    heap = content.index(b"GCOL")
    content[heap + 16 : heap + 18] = b"\0\0"  # the first object becomes free space ...
    content[heap + 24 : heap + 32] = bytes(8)  # ... of length 0
    path.write_bytes(content)
    with pytest.raises(ParameterError, match=f"got damage at byte {heap + 16}, expected an HDF5"):
        read_weights(path)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("keras") is None, reason="keras is not installed")
def test_files_of_the_installed_keras_are_like_those_here(tmp_path):
    script = DATA / "make_keras_files.py"
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    subprocess.run([sys.executable, script, tmp_path], check=True, env=environment)
    assert_is_net(tmp_path / "net.keras")
    assert_is_net(tmp_path / "legacy.h5")


def test_data_sets_larger_together_than_the_file_are_refused(tmp_path):
    """Each is declared as large as the file, and holds nothing."""
    path = tmp_path / "hostile.weights.h5"
    with h5py.File(path, "w") as file:
        file["layers/dense/vars/0"] = np.ones(1 << 16, np.float32)
        for number in range(1, 50):
            name = f"layers/dense_{number}/vars/0"
            file.create_dataset(name, (1 << 16,), "f4", chunks=(1 << 16,))
    with pytest.raises(ParameterError, match=r"at most the .* of the file, with those before it"):
        read_weights(path)
