"""The residual networks: where they stride, what they pad, what their parameters are called."""

import functools

import jax
import numpy as np
import pytest

import penstock as ps
from penstock import layers, models
from penstock.models.resnet import resnet_v1, resnet_v2
from penstock.models.resnet_cifar10 import resnet_cifar10
from penstock.models.resnet_v1_5 import resnet_v1_5
from tests.layers.programs import infer, normal
from tests.models.shapes import count, ones_for, shapes_of

SETTINGS = models.get("resnet_v1_50").settings


@pytest.mark.slow
def test_units_of_resnet_v1_5_start_as_the_identity():
    def program():
        image, settings = layers.data("image", [32, 32, 3]), models.get("resnet50").settings
        few = {"num_units": (2, 1, 1, 1), "group_width": 8}
        points = resnet_v1_5(image, None, settings=settings, **few)[1]
        return points["block1/unit_1"], points["block1/unit_2"]

    first, second = infer(program, {"image": normal(1, 32, 32, 3)})
    np.testing.assert_array_equal(first, second)
    assert np.ptp(first) > 0


def run_with_ones(network, point, image, **options):
    """Return an end point of a residual network all of whose variables are 1."""

    def program():
        images = layers.data("image", image.shape[1:])
        four = {"settings": SETTINGS, "num_units": (1, 1, 1, 1)}
        return network(images, None, **four, **options)[1][point]

    builder = ps.ProgramBuilder(infer_func=program, place=jax.devices()[:1])
    return np.asarray(builder.infer(ones_for(builder), {"image": image}))


@pytest.mark.quick("resnet_v1")
@pytest.mark.parametrize("network", [resnet_v1, resnet_v2])
def test_strided_convolutions_pad_both_sides_alike(network):
    def lit_rows(row):
        image = np.zeros([1, 32, 32, 3], np.float32)
        image[:, row] = 1
        made = run_with_ones(network, "conv1", image)[0, :, 8, 0]
        return np.flatnonzero(made > made.min()).tolist()

    # Output i sees rows 2i - 3 to 2i + 3. With "SAME" padding it would be 2i - 2 to 2i + 4.
    assert lit_rows(3) == [0, 1, 2, 3]
    assert lit_rows(31) == [14, 15]


def test_keras_frames_the_first_pooling_with_zeros_and_slim_does_not():
    image = -np.ones([1, 32, 32, 3], np.float32)
    keras, slim = (
        run_with_ones(resnet_v2, "pool1", image, is_pool_padded=is_padded)[0, :, :, 0]
        for is_padded in (True, False)
    )
    assert keras.shape == slim.shape == (8, 8)
    assert (keras[0] == 0).all()
    assert (keras[1:, 1:] < 0).all()
    assert (slim < 0).all()


def cifar10_of(depth):
    settings = models.get("resnet_cifar10").settings
    return functools.partial(resnet_cifar10, settings=settings, depth=depth)


@pytest.mark.quick("20")
@pytest.mark.parametrize("depth", [20, 32])
def test_resnet_cifar10_has_the_parameters_of_the_book(depth):
    shapes = shapes_of(cifar10_of(depth), 32, 10)
    units = (depth - 2) // 6
    kernels = 27 * 16 + sum(
        9 * (before * width + (2 * units - 1) * width**2) + before * width * (before != width)
        for before, width in ((16, 16), (16, 32), (32, 64))
    )
    norms = 2 * 16 + sum(4 * units * w + 2 * w * (w > 16) for w in (16, 32, 64))
    biases = units * (16 + 32 + 64)
    assert count(shapes.trained) == kernels + norms + biases + 64 * 10 + 10


@pytest.mark.parametrize("depth", [30, 2])
def test_resnet_cifar10_of_a_depth_that_does_not_exist_is_an_error(depth):
    with pytest.raises(ValueError, match=f"got depth={depth}, expected 8, 14, 20 and so on"):
        shapes_of(cifar10_of(depth), 32)
