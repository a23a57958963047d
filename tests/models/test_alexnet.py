"""AlexNet, TF-Slim's and OneFlow's."""

import jax
import numpy as np
import pytest

import penstock as ps
from penstock import layers, models
from tests.layers.programs import infer, normal
from tests.models.shapes import count, ones_for, shapes_of


def test_oneflow_alexnet_has_61831872_parameters_at_1001_classes_and_no_biases():
    shapes = shapes_of("oneflow_alexnet", 227, num_classes=1001)
    assert count(shapes.parameters) == 61_831_872
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


@pytest.mark.slow
def test_oneflow_alexnet_starts_with_weights_that_keep_the_scale_of_its_activations():
    model = models.get("oneflow_alexnet")

    def program():
        return model(layers.data("image", [67, 67, 3]), 10)[1]

    points = infer(program, {"image": normal(2, 67, 67, 3)})
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
