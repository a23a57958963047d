"""The sizes of what networks compute at their end points, and at which images they work."""

import pytest

from penstock._errors import ProgramError
from tests.models.shapes import shapes_of, slow_if_large


def numbered(pattern, sizes, widths, first=1):
    """Return the shapes of square end points that are numbered."""
    squares = zip(sizes, sizes, widths, strict=True)
    return {pattern.format(number): shape for number, shape in enumerate(squares, first)}


CLASSES = {"Logits": (1000,), "Predictions": (1000,)}
FIVE_STAGES = {
    **numbered("pool{}", [112, 56, 28, 14, 7], [64, 128, 256, 512, 512]),
    "conv3/conv3_2": (56, 56, 256),
    "fc6": (1, 1, 4096),
    "fc7": (1, 1, 4096),
}
SLIM_RESNET = {
    "block1/unit_2/bottleneck_v{}": (56, 56, 256),
    "block1/unit_3/bottleneck_v{}": (28, 28, 256),
    **numbered("block{}", [28, 14, 7, 7], [256, 512, 1024, 2048]),
    "global_pool": (2048,),
}
TORCHVISION_RESNET = {
    **numbered("block{}", [56, 28, 14, 7], [256, 512, 1024, 2048]),
    "block2/unit_1": (28, 28, 512),
}
NUM_CONVOLUTIONS = {"vgg_a": 8, "vgg_16": 13, "vgg_19": 16, "vgg_16_bn": 13}
# One end point for each size and width that a network goes through, its own image size given.
POINTS = {
    "alexnet_v2": {
        "conv1": (54, 54, 64),
        **numbered("pool{}", [26, 12], [64, 192]),
        "conv5": (12, 12, 256),
        "pool5": (5, 5, 256),
        "fc6": (1, 1, 4096),
        "fc7": (1, 1, 4096),
        "fc8": (1000,),
        "Logits": (1000,),
    },
    "oneflow_alexnet": {
        "conv1": (55, 55, 64),
        **numbered("pool{}", [27, 13], [64, 192]),
        "pool5": (6, 6, 256),
    },
    "overfeat": {
        **numbered("conv{}", [56, 24], [64, 256]),
        **numbered("pool{}", [28, 12], [64, 256]),
        "conv5": (12, 12, 1024),
        "pool5": (6, 6, 1024),
        "fc6": (1, 1, 3072),
        "fc7": (1, 1, 4096),
    },
    **dict.fromkeys(NUM_CONVOLUTIONS, FIVE_STAGES),
    "inception_v1": {
        "Conv2d_1a_7x7": (112, 112, 64),
        "MaxPool_3a_3x3": (28, 28, 192),
        "Mixed_3c": (28, 28, 480),
        "MaxPool_4a_3x3": (14, 14, 480),
        "Mixed_4f": (14, 14, 832),
        "MaxPool_5a_2x2": (7, 7, 832),
        "Mixed_5c": (7, 7, 1024),
        "global_pool": (1024,),
        **CLASSES,
        "AuxLogits": None,
    },
    "inception_v2": {
        "Conv2d_1a_7x7": (112, 112, 64),
        "Mixed_3c": (28, 28, 320),
        "Mixed_4a": (14, 14, 576),
        "Mixed_4e": (14, 14, 576),
        "Mixed_5a": (7, 7, 1024),
        "Mixed_5c": (7, 7, 1024),
        **CLASSES,
        "AuxLogits": None,
    },
    "inception_v3": {
        "Conv2d_1a_3x3": (149, 149, 32),
        "Conv2d_2b_3x3": (147, 147, 64),
        "MaxPool_3a_3x3": (73, 73, 64),
        "Conv2d_4a_3x3": (71, 71, 192),
        "MaxPool_5a_3x3": (35, 35, 192),
        "Mixed_5b": (35, 35, 256),
        "Mixed_5d": (35, 35, 288),
        "Mixed_6e": (17, 17, 768),
        "Mixed_7a": (8, 8, 1280),
        "Mixed_7c": (8, 8, 2048),
        "PreLogits": (2048,),
        **CLASSES,
        "AuxLogits": (1000,),
    },
    "inception_v4": {
        "Mixed_3a": (73, 73, 160),
        "Mixed_4a": (71, 71, 192),
        "Mixed_5a": (35, 35, 384),
        "Mixed_5e": (35, 35, 384),
        "Mixed_6h": (17, 17, 1024),
        "Mixed_7d": (8, 8, 1536),
        "PreLogitsFlatten": (1536,),
        **CLASSES,
        "AuxLogits": (1000,),
    },
    "inception_resnet_v2": {
        "MaxPool_5a_3x3": (35, 35, 192),
        "Mixed_5b": (35, 35, 320),
        "Mixed_6a": (17, 17, 1088),
        "PreAuxLogits": (17, 17, 1088),
        "Mixed_7a": (8, 8, 2080),
        "Conv2d_7b_1x1": (8, 8, 1536),
        **CLASSES,
        "AuxLogits": (1000,),
    },
    # TF-Slim's stride in the last unit of a block, torchvision's in the first.
    "resnet_v1_50": {key.format(1): shape for key, shape in SLIM_RESNET.items()},
    "resnet_v2_50": {key.format(2): shape for key, shape in SLIM_RESNET.items()},
    "keras_resnet_v2_50": {key.format(2): shape for key, shape in SLIM_RESNET.items()},
    "resnet50": TORCHVISION_RESNET,
    "resnext50": TORCHVISION_RESNET,
    "resnet_cifar10": numbered("res{}", [32, 16, 8], [16, 32, 64]),
    "mobilenet_v1": {
        "Conv2d_0": (112, 112, 32),
        **numbered(
            "Conv2d_{}_pointwise",
            [112, 56, 56, 28, 28, *[14] * 6, 7, 7],
            [64, 128, 128, 256, 256, *[512] * 6, 1024, 1024],
        ),
        "Conv2d_12_depthwise": (7, 7, 512),
        "AvgPool_1a": (1024,),
        **CLASSES,
    },
    "mobilenet_v2": {
        **numbered(
            "layer_{}",
            [112, 112, 56, 56, *[28] * 3, *[14] * 7, *[7] * 5],
            [32, 16, 24, 24, *[32] * 3, *[64] * 4, *[96] * 3, *[160] * 3, 320, 1280],
        ),
        "layer_2/expansion_output": None,
        "layer_3/expansion_output": (112, 112, 96),
        "layer_3/depthwise_output": (56, 56, 96),
        "global_pool": (1280,),
    },
    "mobilenet_v3_large": numbered(
        "layer_{}",
        [112, 112, 56, 56, *[28] * 3, *[14] * 6, *[7] * 4, 1, 1],
        [16, 16, 24, 24, *[40] * 3, *[80] * 4, 112, 112, *[160] * 3, 960, 960, 1280],
    ),
    "nasnet_mobile": {
        "Stem": (28, 28, 88),
        "Cell_0": (28, 28, 264),
        "Reduction_Cell_0": (14, 14, 352),
        "Cell_11": (7, 7, 1056),
        "global_pool": (1056,),
        **CLASSES,
        "AuxLogits": (1000,),
    },
    "nasnet_cifar": {"Stem": (32, 32, 96), "Cell_17": (8, 8, 768)},
}


@pytest.mark.quick(
    "mobilenet_v2", "inception_v1", "resnet50", "vgg_16_bn", "alexnet_v2", "overfeat"
)
@pytest.mark.parametrize("name", slow_if_large(POINTS))
def test_end_points_have_the_published_shapes(name):
    points = shapes_of(name).points
    assert {point: points.get(point) for point in POINTS[name]} == POINTS[name]


@pytest.mark.parametrize(("name", "count"), NUM_CONVOLUTIONS.items())
def test_vgg_has_its_convolutions(name, count):
    points = shapes_of(name).points
    assert sum(point.startswith("conv") for point in points) == count


# The smallest image, and one whose first dense layer looks at several places.
SIZES = {
    "alexnet_v2": (67, 320, (4, 4, 4096)),
    "overfeat": (71, 295, (3, 3, 3072)),
    "vgg_a": (32, 288, (3, 3, 4096)),
}


@pytest.mark.parametrize("name", SIZES)
def test_dense_networks_have_the_same_parameters_at_every_image_size(name):
    smallest, large, shape = SIZES[name]
    own = shapes_of(name).parameters
    assert shapes_of(name, smallest).parameters == own
    assert shapes_of(name, large).points["fc6"] == shape
    with pytest.raises(ProgramError, match=r"layers.pool2d got an input of shape"):
        shapes_of(name, smallest - 1)


@pytest.mark.parametrize("name", slow_if_large(["inception_v3", "inception_v4"]))
def test_image_too_small_for_valid_padding_is_an_error(name):
    with pytest.raises(ProgramError, match=r"conv2d got an input of shape \[?.*at least \(3, 3\)"):
        shapes_of(name, 70)


FEATURES = {
    "alexnet_v2": 4096,
    "inception_v3": 2048,
    "inception_v4": 1536,
    "inception_resnet_v2": 1536,
}


@pytest.mark.parametrize("name", slow_if_large(FEATURES))
def test_features_come_without_the_last_layer_and_an_auxiliary_head(name):
    found = shapes_of(name, 75, num_classes=None)
    heads = ("AuxLogits", "Logits", "fc8")
    assert not any(path.startswith(heads) for path in found.parameters)
    assert found.points["global_pool"] == (FEATURES[name],)
