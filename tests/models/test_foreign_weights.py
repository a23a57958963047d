"""Weights from elsewhere: read by name, checked, and everything that does not match listed."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from safetensors.numpy import save_file

import penstock as ps
from penstock import models
from penstock._errors import ParameterError, UnknownNameError
from penstock.commands import main
from penstock.models._weight_maps import mobilenet
from tests.models.shapes import drawn

NAME = "mobilenet_v1_025"


def write_keras(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write a `.h5` file as keras.applications publishes them: `<layer>/<variable>` to array."""
    with h5py.File(path, "w") as file:
        by_layer: dict[str, list[str]] = {}
        for name in arrays:
            by_layer.setdefault(name.rpartition("/")[0], []).append(name)
        file.attrs["layer_names"] = [layer.encode() for layer in by_layer]
        file.attrs["backend"], file.attrs["keras_version"] = b"tensorflow", b"2.2.4"
        for layer, names in by_layer.items():
            group = file.create_group(layer)
            group.attrs["weight_names"] = [f"{name}:0".encode() for name in names]
            for name in names:
                group.create_dataset(f"{name}:0", data=arrays[name])


@pytest.fixture(scope="module")
def ours() -> dict[str, np.ndarray]:
    return drawn(NAME, 7)


@pytest.fixture(scope="module")
def theirs(ours) -> dict[str, np.ndarray]:
    """Return the same in Keras's names and layout."""
    names = mobilenet.keras_v1(NAME)
    assert set(names) == set(ours)
    kernels = {"conv_preds/kernel": lambda array: array.reshape(1, 1, *array.shape)}
    return {
        names[path]: kernels.get(names[path], lambda array: array)(array)
        for path, array in ours.items()
    }


# 6 s with what it shares with the tests below: a whole network is traced and its weights written.
def test_weights_of_keras_arrive_under_our_names(ours, theirs, tmp_path):
    write_keras(tmp_path / "weights.h5", theirs)
    weights = models.load_weights(NAME, tmp_path / "weights.h5")
    assert (weights.source, weights.num_classes) == ("keras.applications", 7)
    assert set(weights) == set(ours)
    for path, array in ours.items():
        np.testing.assert_array_equal(weights[path], array)
    assert not weights.left_initial


@pytest.mark.slow
def test_file_of_another_network_and_of_another_place_say_so(theirs, tmp_path):
    write_keras(tmp_path / "weights.h5", theirs)
    with pytest.raises(ParameterError, match=r"does not fit mobilenet_v1_050"):
        models.load_weights("mobilenet_v1_050", tmp_path / "weights.h5")
    save_file({"fc1.weight": np.zeros([2, 2], np.float32)}, tmp_path / "other.safetensors")
    with pytest.raises(ParameterError, match=r"torchvision or timm, which has no network that coi"):
        models.load_weights("lenet", tmp_path / "other.safetensors")
    with pytest.raises(UnknownNameError, match="Did you mean 'lenet'"):
        models.load_weights("lenett", tmp_path / "weights.h5")
    with pytest.raises(FileNotFoundError):
        models.load_weights(NAME, tmp_path / "none.h5")


def test_import_weights_writes_parameters_that_an_inferencer_loads(ours, theirs, tmp_path, capsys):
    write_keras(tmp_path / "weights.h5", theirs)
    output = tmp_path / "params"
    words = ["import-weights", NAME, str(tmp_path / "weights.h5"), "--output", str(output)]
    assert main(words) == 0
    assert "137 arrays of keras.applications, 7 classes" in capsys.readouterr().out
    network = models.classifier(NAME, 7)
    inferencer = ps.Inferencer(network.infer_program, output)
    assert {name: value.shape for name, value in inferencer.parameters.items()} == {
        name: value.shape for name, value in ours.items()
    }
    np.testing.assert_array_equal(inferencer.parameters["Conv2d_0/conv/w"], ours["Conv2d_0/conv/w"])


def test_import_weights_of_a_wrong_file_ends_in_one_line_and_a_status(tmp_path, capsys):
    (tmp_path / "page.h5").write_text("<html>not found</html>")
    words = ["import-weights", NAME, str(tmp_path / "page.h5"), "--output", str(tmp_path / "out")]
    assert main(words) == 2
    assert "looks like a web page" in capsys.readouterr().err
    assert main(["import-weights", NAME, str(tmp_path / "none"), "--output", "out"]) == 1
    assert main(["import-weights", "lenett", "x", "--output", "out"]) == 2
    assert not (tmp_path / "out").exists()
