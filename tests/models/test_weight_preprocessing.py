"""Weights bring the preprocessing of their source along, moving averages, and maps of one's own."""

import dataclasses
import json

import h5py
import numpy as np
import pytest
from safetensors.numpy import save_file

from penstock import layers, models, preprocessing
from penstock._errors import ParameterError
from penstock._weight_files import WeightFile
from penstock.models._registry import get
from penstock.models._weight_maps import vgg
from penstock.models._weight_names import _USER_MAPS, choose_names, find_family_names
from penstock.models.report import build_forward
from penstock.models.weights import find_preprocessing, fit, list_shapes
from penstock.preprocessing import Torchvision
from tests.models.shapes import drawn

FIRST = "conv1/conv1_1/conv/w"


@pytest.fixture
def any_torch_file(tmp_path):
    save_file({"fc.weight": np.zeros([2, 2], np.float32)}, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet50", Torchvision()),
        ("resnext50", Torchvision()),
        ("vgg_16", Torchvision()),
        ("vgg_16_bn", Torchvision()),
        ("mobilenet_v3_large", Torchvision(means=(0.5,) * 3, deviations=(0.5,) * 3)),
        ("lenet", preprocessing.get("lenet")),
    ],
)
def test_weights_of_torch_want_torchs_images(name, expected, any_torch_file):
    assert find_preprocessing(get(name), any_torch_file) == expected


def test_what_timm_says_beside_a_file_counts(any_torch_file):
    config = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.2, 0.2], "crop_pct": 0.95}
    described = {"pretrained_cfg": {**config, "interpolation": "bicubic"}}
    any_torch_file.with_name("config.json").write_text(json.dumps(described))
    assert find_preprocessing(get("resnet50"), any_torch_file) == Torchvision(
        means=(0.5, 0.4, 0.3),
        deviations=(0.2, 0.2, 0.2),
        crop_fraction=0.95,
        interpolation="bicubic",
    )
    for other in ({"model": {}}, [], {"mean": [1], "std": [2]}, {"mean": None}, "x"):
        any_torch_file.with_name("config.json").write_text(json.dumps(other))
        assert find_preprocessing(get("resnet50"), any_torch_file) == Torchvision()


def test_torchvisions_second_weights_are_told_by_their_content(any_torch_file, monkeypatch):
    import hashlib

    digest = hashlib.sha256(any_torch_file.read_bytes()).hexdigest()
    module = "penstock.models.weights._SECOND_VERSIONS"
    monkeypatch.setattr(module, (digest[:8],))
    prep = find_preprocessing(get("resnet50"), any_torch_file)
    assert prep == preprocessing.get("torchvision_v2")
    assert prep.host(np.zeros((300, 400, 3), np.uint8), 224, 224, is_training=False).any() == 0


def fitted(name, format, arrays, *, moving_averages=True, num_classes=3, path=None):
    """Return what arrays of a file become for a network."""
    model = get(name)
    ten, eleven = (list_shapes(build_forward(model, number)) for number in (10, 11))
    file = WeightFile(path=path, format=format, arrays=arrays)
    return fit(model, file, ten, eleven, moving_averages=moving_averages)


def test_moving_averages_are_taken_or_left_and_either_is_said(tmp_path):
    (tmp_path / "lenet.ckpt.index").touch()
    ours = drawn("lenet")
    slim = {"w": "weights", "b": "biases"}
    names = {n: f"LeNet/{n.split('/')[0]}/{slim[n.rsplit('/', 1)[-1]]}" for n in ours}
    raw = {names[n]: value for n, value in ours.items()}
    averages = {f"{name}/ExponentialMovingAverage": value + 1 for name, value in raw.items()}
    del averages["LeNet/fc4/biases/ExponentialMovingAverage"]
    arrays = {**raw, **averages, "global_step": np.array(7)}
    path = tmp_path / "lenet.ckpt"
    weights = fitted("lenet", "tf_slim", arrays, path=path)
    for name, value in ours.items():
        np.testing.assert_array_equal(weights[name], value + (name != "fc4/fc/b"))
    assert any("moving averages of 7 of 8 arrays" in note for note in weights.notes)
    assert weights.ignored == ("global_step",)
    left = fitted("lenet", "tf_slim", arrays, moving_averages=False, path=path)
    np.testing.assert_array_equal(left["conv1/conv/w"], ours["conv1/conv/w"])
    assert any("the raw arrays, though" in note for note in left.notes)
    assert fitted("lenet", "tf_slim", raw, path=path).notes == ()
    for name in list(names.values())[:-1]:
        del arrays[name]
    only = fitted(
        "lenet", "tf_slim", arrays | {"LeNet/fc4/biases": raw["LeNet/fc4/biases"]}, path=path
    )
    np.testing.assert_array_equal(only["conv1/conv/w"], weights["conv1/conv/w"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nasnet_cifar", "inception_v3"])
def test_checkpoint_of_an_evaluation_graph_has_no_auxiliary_head(name, tmp_path):
    (tmp_path / "net.ckpt.index").touch()
    ours = drawn(name)
    family = find_family_names(get(name))
    head = [n for n in ours if "AuxLogits" in n or "aux_logits" in n]
    assert head
    arrays = {family.tf_slim(name, n): value for n, value in ours.items()}
    without = {k: v for k, v in arrays.items() if "AuxLogits" not in k and "aux_logits" not in k}
    weights = fitted(name, "tf_slim", without, path=tmp_path / "net.ckpt")
    assert set(weights.left_initial) == set(head)
    assert set(weights) == set(ours) - set(head)
    part = dict(arrays)
    del part[family.tf_slim(name, head[0])]
    with pytest.raises(ParameterError, match="missing: "):
        fitted(name, "tf_slim", part, path=tmp_path / "net.ckpt")


def keras_file(folder):
    """Return a file of Keras's format, in which there is nothing."""
    h5py.File(folder / "empty.weights.h5", "w").close()
    return folder / "empty.weights.h5"


def keras_vgg(tmp_path, shapes):
    """Return a file of Keras's VGG16, zeros but for its first kernel."""
    names = vgg.keras("vgg_16")
    arrays = {theirs: np.broadcast_to(np.float32(0), shapes[n]) for n, theirs in names.items()}
    kernel = np.random.default_rng(0).normal(size=shapes[FIRST]).astype(np.float32)
    arrays[names[FIRST]] = kernel
    return WeightFile(path=keras_file(tmp_path), format="keras", arrays=arrays), kernel


@pytest.mark.slow
def test_keras_vgg_gets_its_first_kernel_turned_round(tmp_path):
    shapes = list_shapes(build_forward(get("vgg_16"), 10))
    file, kernel = keras_vgg(tmp_path, shapes)
    weights = fitted("vgg_16", "keras", file.arrays, path=file.path)
    assert weights.preprocessing == preprocessing.get("vgg")
    assert any("blue, green, red" in note for note in weights.notes)
    image = np.random.default_rng(1).normal(size=(3, 3, 3))
    there = np.tensordot(image[..., ::-1], kernel, 3)
    np.testing.assert_allclose(np.tensordot(image, weights[FIRST], 3), there, rtol=1e-5)


@pytest.fixture
def own_network():
    """Register a network of one's own, and take it away again."""
    from penstock.models import _registry, _weight_names

    @models.register("of_my_own", default_image_size=4, preprocessing="lenet", num_classes=2)
    def of_my_own(images, num_classes):
        return layers.fc(layers.flatten(images), num_classes or 2, name="head"), {}

    yield "of_my_own"
    del _registry._MODELS["of_my_own"]
    for key in [key for key in _weight_names._USER_MAPS if key[0] == "of_my_own"]:
        del _weight_names._USER_MAPS[key]


def test_weight_map_of_ones_own_reads_a_file(own_network, tmp_path):
    weight = np.arange(96, dtype=np.float32).reshape(2, 48)
    file = tmp_path / "own.safetensors"
    save_file({"out.weight": weight, "out.bias": np.ones(2, np.float32)}, file)
    with pytest.raises(ParameterError, match=r"register_weight_map"):
        models.load_weights(own_network, file)
    own = Torchvision(crop_fraction=1.0)

    @models.register_weight_map(own_network, "torch", preprocessing=own)
    def names():
        return {"head/w": "out.weight", "head/b": "out.bias"}

    weights = models.load_weights(own_network, file)
    np.testing.assert_array_equal(weights["head/w"], weight.T)
    assert (weights.preprocessing, weights.num_classes) == (own, 2)

    models.register_weight_map(own_network, "keras")(
        lambda: {"head/w": models.Entry("out/kernel"), "head/b": "out/bias"}
    )
    # As a .keras file has them.
    arrays = {"out/0": weight.T, "out/1": np.ones(2, np.float32)}
    weights = fitted(own_network, "keras", arrays, path=keras_file(tmp_path))
    np.testing.assert_array_equal(weights["head/w"], weight.T)
    del _USER_MAPS[own_network, "keras"]
    models.register_weight_map(own_network, "keras")(lambda: {"head/w": "out/kernel"})
    with pytest.raises(ParameterError, match=r"of_my_own: 1 left over\.\n.*left over: out/1"):
        fitted(own_network, "keras", arrays, path=keras_file(tmp_path))

    @models.register_weight_map(own_network, "torch")
    def wrong():
        return {"haed/w": "out.weight"}

    with pytest.raises(ParameterError, match=r"of_my_own got the name 'haed/w'.*'head/w'"):
        models.load_weights(own_network, file)
    with pytest.raises(ValueError, match="Did you mean 'torch'"):
        models.register_weight_map("x", "torhc")  # pyright: ignore[reportArgumentType]


def test_network_of_ones_own_is_none_of_the_librarys(own_network, tmp_path, monkeypatch):
    file = tmp_path / "own.safetensors"
    save_file({"out.weight": np.ones((2, 48)), "out.bias": np.ones(2)}, file)
    for name in (own_network, "of_nobody"):
        maps = [(lambda: {"head/w": "out.weight", "head/b": "out.bias"}, None)]
        monkeypatch.setitem(_USER_MAPS, (name, "torch"), maps)
    network = get(own_network)
    # As the module of a file of one's own may be called too.
    monkeypatch.setattr(network.function, "__module__", "inception_v4")
    weights = models.load_weights(own_network, file)
    assert weights.preprocessing == preprocessing.get(network.preprocessing)
    # One that is not registered.
    weights = models.load_weights(dataclasses.replace(network, name="of_nobody"), file)
    assert (weights.model_name, weights.num_classes) == ("of_nobody", 2)


def test_classes_are_counted_in_a_last_layer_without_a_bias(own_network, tmp_path, monkeypatch):
    def headless(images, num_classes):
        return layers.fc(layers.flatten(images), num_classes or 2, bias_attr=False, name="head"), {}

    model = dataclasses.replace(get(own_network), function=headless)
    names = {"head/w": models.Entry("both.weight", part=(1, 2))}
    monkeypatch.setitem(_USER_MAPS, (own_network, "torch"), [(lambda: names, None)])
    save_file({"both.weight": np.ones((14, 48))}, tmp_path / "own.safetensors")
    weights = models.load_weights(model, tmp_path / "own.safetensors")
    assert (weights.num_classes, weights["head/w"].shape) == (7, (48, 7))
    save_file({"both.weight": np.ones(())}, tmp_path / "own.safetensors")
    with pytest.raises(ParameterError, match=r"mismatched: both\.weight"):
        models.load_weights(model, tmp_path / "own.safetensors")


@pytest.mark.parametrize("name", ["resnet_v2_50", "nasnet_mobile", "nasnet_cifar", "vgg_bn_drop"])
def test_network_that_keras_does_not_have_refuses_its_files_by_name(name, tmp_path):
    file = WeightFile(path=tmp_path / "a.h5", format="keras", arrays={})
    with pytest.raises(ParameterError, match=f"no network that coincides with {name}"):
        choose_names(get(name), file, ["a"])
