"""Convolutions against sums written out in numpy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from penstock import layers
from penstock._errors import ProgramError
from penstock.layers import _convolution
from penstock.layers._convolution import Geometry
from tests.layers.programs import infer, initial, normal


def convolve(x, w, stride=(1, 1), pads=((0, 0), (0, 0)), dilation=(1, 1), groups=1):
    """Sum over the kernel, pixel by pixel."""
    x = np.pad(x.astype(np.float64), [(0, 0), *pads, (0, 0)])
    kh, kw, per_group, num_filters = w.shape
    height = (x.shape[1] - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    width = (x.shape[2] - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    y = np.zeros((x.shape[0], height, width, num_filters))
    for f in range(num_filters):
        first = f // (num_filters // groups) * per_group
        for i in range(height):
            for j in range(width):
                for a in range(kh):
                    for b in range(kw):
                        row, column = (
                            i * stride[0] + a * dilation[0],
                            j * stride[1] + b * dilation[1],
                        )
                        pixel = x[:, row, column, first : first + per_group]
                        y[:, i, j, f] += pixel @ w[a, b, :, f]
    return y


def spread(x, w, size, stride, padding, dilation, groups=1):
    """Add every input pixel times the kernel to the output."""
    kh, kw, per_group, num_filters = w.shape
    per_out = num_filters // groups
    y = np.zeros((x.shape[0], size[0] + 20, size[1] + 20, num_filters))
    for i in range(x.shape[1]):
        for j in range(x.shape[2]):
            for a in range(kh):
                for b in range(kw):
                    row = i * stride - padding + a * dilation + 10
                    column = j * stride - padding + b * dilation + 10
                    for g in range(groups):
                        out = slice(g * per_out, (g + 1) * per_out)
                        pixel = x[:, i, j, g * per_group : (g + 1) * per_group]
                        y[:, row, column, out] += pixel @ w[a, b, :, out]
    return y[:, 10 : 10 + size[0], 10 : 10 + size[1]]


@pytest.mark.parametrize(
    ("arguments", "reference"),
    [
        ({}, {}),
        ({"padding": 1}, {"pads": ((1, 1), (1, 1))}),
        ({"padding": (2, 1), "stride": (2, 1)}, {"pads": ((2, 2), (1, 1)), "stride": (2, 1)}),
        ({"padding": [(1, 0), (0, 2)]}, {"pads": ((1, 0), (0, 2))}),
        ({"padding": "VALID", "dilation": 2}, {"dilation": (2, 2)}),
        ({"padding": "SAME"}, {"pads": ((1, 1), (0, 1))}),
        ({"padding": "SAME", "stride": 2}, {"pads": ((1, 1), (0, 0)), "stride": (2, 2)}),
        ({"groups": 2}, {"groups": 2}),
    ],
)
def test_conv2d_equals_the_sum_written_out(arguments, reference):
    image = normal(2, 7, 6, 4)

    def program():
        return layers.conv2d(layers.data("x", [7, 6, 4]), 6, (3, 2), **arguments)

    variables = initial(program)
    variables["params"]["conv2d_0"]["b"] = bias = normal(6, seed=1)
    expected = convolve(image, variables["params"]["conv2d_0"]["w"], **reference) + bias
    np.testing.assert_allclose(infer(program, {"x": image}, variables), expected, atol=1e-5)


def test_conv2d_channels_first_uses_the_same_kernel():
    image = normal(2, 7, 6, 4)

    def program(shape, data_format):
        return lambda: layers.conv2d(
            layers.data("x", shape), 3, 3, data_format=data_format, act="tanh"
        )

    last = program([7, 6, 4], "NHWC")
    first = program([4, 7, 6], "NCHW")
    variables = initial(last)
    variables["params"]["conv2d_0"]["b"] = normal(3, seed=1)
    np.testing.assert_allclose(
        infer(first, {"x": image.transpose(0, 3, 1, 2)}, variables).transpose(0, 2, 3, 1),
        infer(last, {"x": image}, variables),
        atol=1e-6,
    )


@pytest.mark.parametrize("groups", [1, 8])
def test_conv2d_initial_kernel_has_the_deviation_of_its_fan_in(groups):
    variables = initial(
        lambda: layers.conv2d(layers.data("x", [5, 5, 8]), 512, 5, groups=groups, bias_attr=False)
    )
    assert list(variables["params"]["conv2d_0"]) == ["w"]
    deviation = np.std(variables["params"]["conv2d_0"]["w"])
    assert deviation == pytest.approx(np.sqrt(2 / (25 * 8 / groups)), rel=0.03)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation", "groups", "output_size", "size"),
    [
        (3, 1, 0, 1, 1, None, (6, 5)),
        (3, 2, 1, 1, 1, None, (7, 5)),
        (3, 2, 1, 1, 1, (8, 6), (8, 6)),
        (2, 2, 0, 1, 2, None, (8, 6)),
        (3, 3, 1, 2, 1, None, (12, 9)),
        (2, 1, 1, 1, 1, None, (3, 2)),
    ],
)
def test_conv2d_transpose_equals_the_sum_written_out(
    kernel, stride, padding, dilation, groups, output_size, size
):
    image = normal(2, 4, 3, 4)

    def program():
        return layers.conv2d_transpose(
            layers.data("x", [4, 3, 4]),
            6,
            output_size=output_size,
            filter_size=kernel,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
        )

    variables = initial(program)
    w = variables["params"]["conv2d_transpose_0"]["w"]
    assert w.shape == (kernel, kernel, 4 // groups, 6)
    expected = spread(image, w, size, stride, padding, dilation, groups)
    np.testing.assert_allclose(infer(program, {"x": image}, variables), expected, atol=1e-5)


def test_conv2d_transpose_finds_the_filter_size_of_an_output_size():
    def program():
        return layers.conv2d_transpose(layers.data("x", [4, 4, 2]), 3, output_size=9, stride=2)

    assert initial(program)["params"]["conv2d_transpose_0"]["w"].shape == (3, 3, 2, 3)
    assert infer(program, {"x": normal(1, 4, 4, 2)}).shape == (1, 9, 9, 3)


def test_conv2d_transpose_channels_first_uses_the_same_kernel():
    image = normal(2, 4, 3, 2)

    def program(shape, data_format):
        return lambda: layers.conv2d_transpose(
            layers.data("x", shape), 3, filter_size=3, stride=2, data_format=data_format
        )

    last, first = program([4, 3, 2], "NHWC"), program([2, 4, 3], "NCHW")
    variables = initial(last)
    np.testing.assert_allclose(
        infer(first, {"x": image.transpose(0, 3, 1, 2)}, variables).transpose(0, 2, 3, 1),
        infer(last, {"x": image}, variables),
        atol=1e-6,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"filter_size": 0}, r"filter_size=0, expected an integer of at least 1 or a pair"),
        ({"filter_size": (3, 3, 3)}, r"filter_size=\(3, 3, 3\), expected"),
        ({"filter_size": 3, "stride": (1.5, 1)}, r"stride=\(1.5, 1\), expected"),
        ({"filter_size": 3, "padding": -1}, r"padding=-1, expected an integer of at least 0"),
        ({"filter_size": 3, "padding": "SMAE"}, r"expected one of .* Did you mean 'SAME'"),
        ({"filter_size": 3, "padding": [(1, 1, 1), (0, 0)]}, r"padding=\(1, 1, 1\), expected"),
        ({"filter_size": 9}, r"expected a padded height and width of at least \(9, 9\)"),
        ({"filter_size": 3, "groups": 3}, r"groups=3, num_filters=4 and 4 input channels"),
        ({"filter_size": 3, "data_format": "NWHC"}, r"Did you mean 'NHWC'"),
        ({"filter_size": 3, "act": "rleu"}, r"act='rleu'.* Did you mean 'relu'"),
    ],
)
def test_conv2d_with_a_wrong_argument_says_what_it_expects(arguments, message):
    with pytest.raises(ProgramError, match=r"layers.conv2d got .*" + message):
        initial(lambda: layers.conv2d(layers.data("x", [7, 6, 4]), 4, **arguments))


def test_conv2d_of_flat_images_says_what_shape_it_expects():
    with pytest.raises(ProgramError, match=r"shape \[B, 16\], expected \[B, H, W, C\]"):
        initial(lambda: layers.conv2d(layers.data("x", [16]), 4, 3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "got neither output_size nor filter_size"),
        (
            {"filter_size": 3, "output_size": 12, "stride": 2},
            r"from \(9, 9\) to less than a stride",
        ),
        ({"output_size": 2}, "expected an output_size"),
    ],
)
def test_conv2d_transpose_with_an_impossible_size_says_so(arguments, message):
    with pytest.raises(ProgramError, match=message):
        initial(lambda: layers.conv2d_transpose(layers.data("x", [4, 4, 1]), 1, **arguments))


def test_conv2d_whose_kernel_covers_the_image_sums_over_all_of_it():
    x, w = normal(2, 3, 5, 4), normal(3, 5, 4, 6, seed=1)

    def program():
        return layers.conv2d(layers.data("x", [3, 5, 4]), 6, (3, 5), bias_attr=False, name="conv")

    y = infer(program, {"x": x}, {"params": {"conv": {"w": w}}, "batch_stats": {}})
    assert y.shape == (2, 1, 1, 6)
    np.testing.assert_allclose(y, convolve(x, w), rtol=1e-4, atol=1e-5)


def test_conv2d_padded_beyond_its_kernel_has_the_gradient_of_a_padded_image():
    # XLA's CPU backend reads beyond the image here, see _convolution._pad_beyond_reach.
    x, w = (jnp.asarray(normal(*shape, seed=4)) for shape in ((2, 9, 8, 3), (3, 2, 3, 6)))
    geometry = Geometry(dilations=(1, 1), pads=((4, 0), (1, 1)), groups=1)
    unpadded = dataclasses.replace(geometry, pads=((0, 0), (0, 0)))

    def loss(x, geometry):
        return jnp.sum(_convolution.convolve(x, w, geometry, "NHWC", is_on_cpu=True) ** 2)

    padded = jnp.pad(x, ((0, 0), *geometry.pads, (0, 0)))
    expected = jax.grad(loss)(padded, unpadded)[:, 4:, 1:-1]
    np.testing.assert_allclose(jax.grad(loss)(x, geometry), expected, rtol=1e-4, atol=1e-4)
