"""AlexNet, TF-Slim's and OneFlow's."""

import jax
import numpy as np
import pytest

import penstock as ps
from penstock import layers, models
from penstock._errors import ProgramError
from penstock.models._weight_maps._layer_names import slim_name
from tests.models.shapes import ones_for, shapes_of


def test_alexnet_v2_pools_224_pixels_down_to_5():
    points = shapes_of("alexnet_v2", 224).points
    assert points["conv1"] == (54, 54, 64)
    assert points["pool1"] == (26, 26, 64)
    assert points["pool2"] == (12, 12, 192)
    assert points["conv5"] == (12, 12, 256)
    assert points["pool5"] == (5, 5, 256)
    assert points["fc6"] == points["fc7"] == (1, 1, 4096)
    assert points["fc8"] == points["Logits"] == (10,)


def test_alexnet_v2_has_the_same_parameters_at_every_image_size():
    own = shapes_of("alexnet_v2", 224).parameters
    assert shapes_of("alexnet_v2", 67).parameters == own
    larger = shapes_of("alexnet_v2", 320)
    assert larger.points["fc6"] == (4, 4, 4096)
    assert larger.parameters == own


def test_alexnet_v2_refuses_images_of_66_pixels():
    with pytest.raises(ProgramError, match=r"layers.pool2d got an input of shape \[B, 2, 2, 256\]"):
        shapes_of("alexnet_v2", 66)


def test_alexnet_v2_features_are_those_of_fc7():
    shapes = shapes_of("alexnet_v2", 224, num_classes=None)
    assert shapes.points["global_pool"] == (4096,)
    assert not any(name.startswith("fc8") for name in shapes.parameters)


def test_alexnet_v2_names_are_those_of_tf_slim():
    paths = shapes_of("alexnet_v2", 224).parameters
    slim = {slim_name("alexnet_v2", path) for path in paths}
    layers_of_slim = ["conv1", "conv2", "conv3", "conv4", "conv5", "fc6", "fc7", "fc8"]
    assert slim == {f"alexnet_v2/{n}/{v}" for n in layers_of_slim for v in ("weights", "biases")}


def test_oneflow_alexnet_has_61831872_parameters_at_1001_classes_and_no_biases():
    shapes = shapes_of("oneflow_alexnet", 227, num_classes=1001)
    assert sum(int(np.prod(shape)) for shape in shapes.parameters.values()) == 61_831_872
    assert shapes.parameters == {
        "conv1/conv/w": (11, 11, 3, 64),
        "conv2/conv/w": (5, 5, 64, 192),
        "conv3/conv/w": (3, 3, 192, 384),
        "conv4/conv/w": (3, 3, 384, 384),
        "conv5/conv/w": (3, 3, 384, 256),
        "fc1/fc/w": (9216, 4096),
        "fc2/fc/w": (4096, 4096),
        "fc3/fc/w": (4096, 1001),
    }
    assert shapes.points["conv1"] == (55, 55, 64)
    assert shapes.points["pool1"] == (27, 27, 64)
    assert shapes.points["pool2"] == (13, 13, 192)
    assert shapes.points["pool5"] == (6, 6, 256)


@pytest.mark.slow
def test_oneflow_alexnet_starts_with_weights_that_keep_the_scale_of_its_activations():
    model = models.get("oneflow_alexnet")

    def program():
        return model(layers.data("image", [67, 67, 3]), 10)[1]

    builder = ps.ProgramBuilder(infer_func=program, place=jax.devices()[:1])
    image = np.random.default_rng(0).standard_normal([2, 67, 67, 3]).astype(np.float32)
    points = builder.infer(builder.init(seed=0), {"image": image})
    # The tutorial's weights from 0 to 1 multiply the scale by hundreds in each layer.
    assert all(1e-3 < np.std(point) < 10 for point in points.values())


def test_oneflow_alexnet_pools_to_the_average():
    model = models.get("oneflow_alexnet")

    def program():
        points = model(layers.data("image", [67, 67, 3]), 10)[1]
        return points["conv1"], points["pool1"]

    builder = ps.ProgramBuilder(infer_func=program, place=jax.devices()[:1])
    image = np.random.default_rng(0).uniform(0, 1, [2, 67, 67, 3]).astype(np.float32)
    conv, pooled = builder.infer(ones_for(builder), {"image": image})
    assert np.ptp(conv) > 1
    np.testing.assert_allclose(pooled[:, 0, 0], conv[:, :3, :3].mean((1, 2)), rtol=1e-5)
