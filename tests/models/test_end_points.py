"""The sizes of what networks compute at their end points, and at which images they work."""

import pytest

from penstock._errors import ProgramError
from tests.models.shapes import shapes_of, slow_if_large

# One end point for each size and width that a network goes through, at its own image size: a square
# of so many pixels and its channels, or features alone; none where there must be no such point.
# TF-Slim's ResNets stride in the last unit of a block, torchvision's in the first.
TABLE = """
alexnet_v2:  conv1 54x64  pool1 26x64  pool2 12x192  conv5 12x256  pool5 5x256  fc6 1x4096
  fc7 1x4096  fc8 1000  Logits 1000
oneflow_alexnet:  conv1 55x64  pool1 27x64  pool2 13x192  pool5 6x256
overfeat:  conv1 56x64  conv2 24x256  pool1 28x64  pool2 12x256  conv5 12x1024  pool5 6x1024
  fc6 1x3072  fc7 1x4096
vgg_a vgg_16 vgg_19 vgg_16_bn:  pool1 112x64  pool2 56x128  pool3 28x256  pool4 14x512  pool5 7x512
  conv3/conv3_2 56x256  fc6 1x4096  fc7 1x4096
inception_v1:  Conv2d_1a_7x7 112x64  MaxPool_3a_3x3 28x192  Mixed_3c 28x480  MaxPool_4a_3x3 14x480
  Mixed_4f 14x832  MaxPool_5a_2x2 7x832  Mixed_5c 7x1024  global_pool 1024  Logits 1000
  Predictions 1000  AuxLogits none
inception_v2:  Conv2d_1a_7x7 112x64  Mixed_3c 28x320  Mixed_4a 14x576  Mixed_4e 14x576
  Mixed_5a 7x1024  Mixed_5c 7x1024  Logits 1000  Predictions 1000  AuxLogits none
inception_v3:  Conv2d_1a_3x3 149x32  Conv2d_2b_3x3 147x64  MaxPool_3a_3x3 73x64
  Conv2d_4a_3x3 71x192  MaxPool_5a_3x3 35x192  Mixed_5b 35x256  Mixed_5d 35x288  Mixed_6e 17x768
  Mixed_7a 8x1280  Mixed_7c 8x2048  PreLogits 2048  Logits 1000  Predictions 1000  AuxLogits 1000
inception_v4:  Mixed_3a 73x160  Mixed_4a 71x192  Mixed_5a 35x384  Mixed_5e 35x384  Mixed_6h 17x1024
  Mixed_7d 8x1536  PreLogitsFlatten 1536  Logits 1000  Predictions 1000  AuxLogits 1000
inception_resnet_v2:  MaxPool_5a_3x3 35x192  Mixed_5b 35x320  Mixed_6a 17x1088  PreAuxLogits 17x1088
  Mixed_7a 8x2080  Conv2d_7b_1x1 8x1536  Logits 1000  Predictions 1000  AuxLogits 1000
resnet_v1_50:  block1/unit_2/bottleneck_v1 56x256  block1/unit_3/bottleneck_v1 28x256  block1 28x256
  block2 14x512  block3 7x1024  block4 7x2048  global_pool 2048
resnet_v2_50 keras_resnet_v2_50:  block1/unit_2/bottleneck_v2 56x256
  block1/unit_3/bottleneck_v2 28x256  block1 28x256  block2 14x512  block3 7x1024  block4 7x2048
  global_pool 2048
resnet50 resnext50:  block1 56x256  block2 28x512  block3 14x1024  block4 7x2048
  block2/unit_1 28x512
resnet_cifar10:  res1 32x16  res2 16x32  res3 8x64
mobilenet_v1:  Conv2d_0 112x32  Conv2d_1_pointwise 112x64  Conv2d_2_pointwise 56x128
  Conv2d_3_pointwise 56x128  Conv2d_4_pointwise 28x256  Conv2d_5_pointwise 28x256
  Conv2d_6_pointwise 14x512  Conv2d_7_pointwise 14x512  Conv2d_8_pointwise 14x512
  Conv2d_9_pointwise 14x512  Conv2d_10_pointwise 14x512  Conv2d_11_pointwise 14x512
  Conv2d_12_pointwise 7x1024  Conv2d_13_pointwise 7x1024  Conv2d_12_depthwise 7x512  AvgPool_1a 1024
  Logits 1000  Predictions 1000
mobilenet_v2:  layer_1 112x32  layer_2 112x16  layer_3 56x24  layer_4 56x24  layer_5 28x32
  layer_6 28x32  layer_7 28x32  layer_8 14x64  layer_9 14x64  layer_10 14x64  layer_11 14x64
  layer_12 14x96  layer_13 14x96  layer_14 14x96  layer_15 7x160  layer_16 7x160  layer_17 7x160
  layer_18 7x320  layer_19 7x1280  layer_2/expansion_output none  layer_3/expansion_output 112x96
  layer_3/depthwise_output 56x96  global_pool 1280
mobilenet_v3_large:  layer_1 112x16  layer_2 112x16  layer_3 56x24  layer_4 56x24  layer_5 28x40
  layer_6 28x40  layer_7 28x40  layer_8 14x80  layer_9 14x80  layer_10 14x80  layer_11 14x80
  layer_12 14x112  layer_13 14x112  layer_14 7x160  layer_15 7x160  layer_16 7x160  layer_17 7x960
  layer_18 1x960  layer_19 1x1280
nasnet_mobile:  Stem 28x88  Cell_0 28x264  Reduction_Cell_0 14x352  Cell_11 7x1056  global_pool 1056
  Logits 1000  Predictions 1000  AuxLogits 1000
nasnet_cifar:  Stem 32x96  Cell_17 8x768
"""


def parse_table():
    """Return the shapes of end points by network."""
    shapes, names = {}, []
    for line in TABLE.splitlines():
        words = line.split()
        if ":" in line:
            before, _, after = line.partition(":")
            names, words = before.split(), after.split()
            shapes |= {name: {} for name in names}
        for point, text in zip(words[::2], words[1::2], strict=True):
            sizes = () if text == "none" else tuple(map(int, text.split("x")))
            shape = (sizes[0], *sizes) if len(sizes) == 2 else sizes or None
            for name in names:
                shapes[name][point] = shape
    return shapes


POINTS = parse_table()


@pytest.mark.quick(
    "mobilenet_v2", "inception_v1", "resnet50", "vgg_16_bn", "alexnet_v2", "overfeat"
)
@pytest.mark.parametrize("name", slow_if_large(POINTS))
def test_end_points_have_the_published_shapes(name):
    points = shapes_of(name).points
    assert {point: points.get(point) for point in POINTS[name]} == POINTS[name]


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
