"""OverFeat."""

import pytest

from penstock._errors import ProgramError
from penstock.models._weight_maps._layer_names import slim_name
from tests.models.shapes import shapes_of


def test_overfeat_pools_231_pixels_down_to_6():
    points = shapes_of("overfeat", 231).points
    assert points["conv1"] == (56, 56, 64)
    assert points["pool1"] == (28, 28, 64)
    assert points["conv2"] == (24, 24, 256)
    assert points["pool2"] == (12, 12, 256)
    assert points["conv5"] == (12, 12, 1024)
    assert points["pool5"] == (6, 6, 1024)
    assert points["fc6"] == (1, 1, 3072)
    assert points["fc7"] == (1, 1, 4096)


def test_overfeat_has_the_same_parameters_from_71_pixels_on():
    assert shapes_of("overfeat", 71).parameters == shapes_of("overfeat", 231).parameters
    with pytest.raises(ProgramError, match=r"layers.pool2d got an input of shape"):
        shapes_of("overfeat", 70)


def test_overfeat_names_are_those_of_tf_slim():
    slim = {slim_name("overfeat", path) for path in shapes_of("overfeat", 231).parameters}
    layers_of_slim = ["conv1", "conv2", "conv3", "conv4", "conv5", "fc6", "fc7", "fc8"]
    assert slim == {f"overfeat/{n}/{v}" for n in layers_of_slim for v in ("weights", "biases")}
