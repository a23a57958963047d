"""VGG: TF-Slim's, OneFlow's with batch norm, and Fluid's for CIFAR-10."""

import re

import jax
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from penstock._errors import ProgramError
from penstock.models._weight_maps import vgg as names
from penstock.models._weight_maps._layer_names import slim_name
from tests.models.shapes import changed, shapes_of

NUM_CONVOLUTIONS = {"vgg_a": 8, "vgg_16": 13, "vgg_19": 16, "vgg_16_bn": 13}


@pytest.mark.parametrize(("name", "count"), NUM_CONVOLUTIONS.items())
def test_vgg_has_its_convolutions_in_five_stages(name, count):
    points = shapes_of(name, 224).points
    assert sum(point.startswith("conv") for point in points) == count
    pooled = [points[f"pool{stage}"] for stage in range(1, 6)]
    assert pooled == [(112, 112, 64), (56, 56, 128), (28, 28, 256), (14, 14, 512), (7, 7, 512)]
    assert points["conv3/conv3_2"] == (56, 56, 256)
    assert points["fc6"] == points["fc7"] == (1, 1, 4096)


def test_vgg_has_the_same_parameters_from_32_pixels_on():
    own = shapes_of("vgg_a", 224)
    assert own.parameters["fc6/conv/w"] == (7, 7, 512, 4096)
    assert shapes_of("vgg_a", 32).parameters == own.parameters
    assert shapes_of("vgg_a", 288).points["fc6"] == (3, 3, 4096)
    with pytest.raises(ProgramError, match=r"layers.pool2d got an input of shape"):
        shapes_of("vgg_a", 31)


def test_vgg_16_bn_has_batch_norm_and_biases_in_its_convolutions():
    shapes = shapes_of("vgg_16_bn", 224, num_classes=1000)
    # torchvision's count of vgg16_bn
    assert sum(int(np.prod(shape)) for shape in shapes.trained.values()) == 138_365_992
    assert len(shapes.trained) == 58
    convolution = {path for path in shapes.parameters if path.startswith("conv1/conv1_1/")}
    leaves = ("conv/w", "conv/b", "norm/scale", "norm/bias", "norm/mean", "norm/variance")
    assert convolution == {f"conv1/conv1_1/{leaf}" for leaf in leaves}
    assert {path for path in shapes.parameters if path.startswith("fc6/")} == {
        "fc6/conv/w",
        "fc6/conv/b",
    }


def test_vgg_bn_drop_is_the_network_of_the_book():
    shapes = shapes_of("vgg_bn_drop", 32)
    in_out = [(3, 64), (64, 64), (64, 128), (128, 128), (128, 256), *[(256, 256)] * 2]
    in_out += [(256, 512), *[(512, 512)] * 5]
    convolutions = sum(9 * i * o + 3 * o for i, o in in_out)  # kernel, bias, batch norm
    dense = 2 * (512 * 512 + 512) + 2 * 512 + 512 * 10 + 10
    trained = sum(int(np.prod(shape)) for shape in shapes.trained.values())
    assert trained == convolutions + dense
    assert shapes.points["pool5"] == (1, 1, 512)
    assert shapes.parameters["fc1/norm/mean"] == (512,)
    assert "fc2/norm/mean" not in shapes.parameters


@pytest.mark.slow
def test_vgg_bn_drop_drops_at_the_rates_of_the_book():
    assert _kept_shares(dropout=0.5) == {0.7: 1, 0.6: 7, 0.5: 2}
    assert not _kept_shares(dropout=0.0)


def _kept_shares(dropout):
    """Return by what the train program divides, and how often: the shares its dropouts keep."""
    model = changed("vgg_bn_drop", dropout=dropout)

    def train_program():
        return layers.mean(model(layers.data("image", [32, 32, 3]), 10)[0])

    builder = ps.ProgramBuilder(train_program, optax.sgd(0.0), place=jax.devices()[:1])
    trace = builder.inspect("train", batch_size=2).jaxpr
    shares = [round(float(share), 3) for share in re.findall(r" = div \w+ (0\.\d+)", trace)]
    return {share: shares.count(share) // 2 for share in shares}  # forward and back


@pytest.mark.parametrize("name", ["vgg_a", "vgg_16", "vgg_19"])
def test_vgg_names_are_those_of_tf_slim(name):
    slim = [slim_name(name, path) for path in shapes_of(name, 224).parameters]
    assert len(slim) == len(set(slim))
    assert f"{name}/conv5/conv5_2/biases" in slim
    assert f"{name}/fc8/weights" in slim


@pytest.mark.parametrize(
    ("source", "name", "examples"),
    [
        (names.keras, "vgg_16", {"block4_conv3/kernel", "fc1/bias", "predictions/kernel"}),
        (names.keras, "vgg_19", {"block5_conv4/kernel", "fc2/bias", "predictions/kernel"}),
        (names.torch, "vgg_a", {"features.18.weight", "classifier.0.weight"}),
        (names.torch, "vgg_16", {"features.28.weight", "classifier.3.bias"}),
        (names.torch, "vgg_19", {"features.34.weight", "classifier.6.bias"}),
        (names.torch, "vgg_16_bn", {"features.40.weight", "features.41.running_var"}),
        (names.timm, "vgg_16", {"features.28.bias", "pre_logits.fc1.weight", "head.fc.weight"}),
    ],
)
def test_vgg_name_map_has_every_path_once(source, name, examples):
    theirs = source(name)
    assert set(theirs) == set(shapes_of(name, 224).parameters)
    assert len(set(theirs.values())) == len(theirs)
    assert examples <= set(theirs.values())
