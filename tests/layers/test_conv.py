"""Convolutions against sums written out in numpy."""

import numpy as np
import pytest
import scipy.special as sp

from penstock import layers
from tests.layers.programs import check, infer, initial, normal

IMAGE = normal(2, 7, 6, 4)


def convolve(x, w, stride=(1, 1), pads=((0, 0), (0, 0)), dilation=(1, 1), groups=1):
    """Sum over the kernel, pixel by pixel."""
    x = np.pad(x.astype(np.float64), [(0, 0), *pads, (0, 0)])
    kh, kw, per_group, num_filters = w.shape
    height = (x.shape[1] - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    width = (x.shape[2] - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    y = np.zeros((x.shape[0], height, width, num_filters))
    for f in range(num_filters):
        first = f // (num_filters // groups) * per_group
        for i, j, a, b in np.ndindex(height, width, kh, kw):
            row, column = i * stride[0] + a * dilation[0], j * stride[1] + b * dilation[1]
            y[:, i, j, f] += x[:, row, column, first : first + per_group] @ w[a, b, :, f]
    return y


def spread(x, w, size, stride=1, padding=0, dilation=1, groups=1):
    """Add every input pixel times the kernel to the output."""
    kh, kw, per_group, num_filters = w.shape
    per_out = num_filters // groups
    y = np.zeros((x.shape[0], size[0] + 20, size[1] + 20, num_filters))
    for i, j, a, b, g in np.ndindex(*x.shape[1:3], kh, kw, groups):
        row, column = i * stride - padding + a * dilation, j * stride - padding + b * dilation
        out = slice(g * per_out, (g + 1) * per_out)
        pixel = x[:, i, j, g * per_group : (g + 1) * per_group]
        y[:, row + 10, column + 10, out] += pixel @ w[a, b, :, out]
    return y[:, 10 : 10 + size[0], 10 : 10 + size[1]]


def depthwise(x, w, **options):
    """Convolve single channels; `w` is `[height, width, C, multiplier]`."""
    kernel = w.reshape(*w.shape[:2], 1, -1)
    return convolve(x, kernel, groups=w.shape[2], **options)


CONVOLUTIONS = [
    ({}, {}),
    ({"padding": np.int64(1)}, {"pads": ((1, 1), (1, 1))}),
    ({"padding": (2, 1), "stride": (2, 1)}, {"pads": ((2, 2), (1, 1)), "stride": (2, 1)}),
    ({"padding": [(1, 0), (0, 2)]}, {"pads": ((1, 0), (0, 2))}),
    ({"padding": "VALID", "dilation": 2}, {"dilation": (2, 2)}),
    ({"padding": "valid"}, {}),
    ({"padding": "SAME"}, {"pads": ((1, 1), (0, 1))}),
    ({"padding": "same"}, {"pads": ((1, 1), (0, 1))}),
    ({"padding": "SAME", "stride": 2}, {"pads": ((1, 1), (0, 0)), "stride": (2, 2)}),
    ({"groups": 2}, {"groups": 2}),
    ({"filter_size": (7, 6)}, {}),  # which covers the image
]


@pytest.mark.parametrize(("arguments", "options"), CONVOLUTIONS)
def test_conv2d_equals_the_sum_written_out(arguments, options):
    arguments = {"filter_size": (3, 2), **arguments}
    check(
        lambda: layers.conv2d(layers.data("x", [7, 6, 4]), 6, **arguments),
        {"x": IMAGE},
        lambda p: convolve(IMAGE, p["w"], **options) + p["b"],
        atol=1e-4,
    )


@pytest.mark.quick("arguments1")
@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ({}, {}),
        ({"padding": "SAME", "stride": 2}, {"stride": (2, 2), "pads": ((1, 1), (0, 1))}),
        ({"padding": 1, "stride": 2}, {"stride": (2, 2), "pads": ((1, 1), (1, 1))}),
    ],
)
def test_depthwise_and_separable_conv2d_equal_the_sum_written_out(arguments, options):
    def program():
        x = layers.data("x", [7, 6, 4])
        return [
            layers.depthwise_conv2d(x, 3, depth_multiplier=2, name="a", **arguments),
            layers.separable_conv2d(x, 3, 3, depth_multiplier=2, name="b", **arguments),
        ]

    def expect(p):
        middle = depthwise(IMAGE, p["b"]["depthwise"], **options)
        single = depthwise(IMAGE, p["a"]["depthwise"], **options) + p["a"]["b"]
        return [single, middle @ p["b"]["w"][0, 0] + p["b"]["b"]]

    check(program, {"x": IMAGE}, expect, atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "size"),
    [
        ({"filter_size": 3}, (6, 5)),
        ({"filter_size": 3, "stride": 2, "padding": 1}, (7, 5)),
        ({"filter_size": 3, "stride": 2, "padding": 1, "output_size": (8, 6)}, (8, 6)),
        ({"filter_size": 2, "stride": 2, "groups": 2}, (8, 6)),
        ({"filter_size": 3, "stride": 3, "padding": 1, "dilation": 2}, (12, 9)),
        ({"filter_size": 2, "padding": 1}, (3, 2)),
    ],
)
def test_conv2d_transpose_equals_the_sum_written_out(arguments, size):
    image = normal(2, 4, 3, 4)
    options = {k: v for k, v in arguments.items() if k not in ("filter_size", "output_size")}
    check(
        lambda: layers.conv2d_transpose(layers.data("x", [4, 3, 4]), 6, **arguments),
        {"x": image},
        lambda p: spread(image, p["w"], size, **options) + p["b"],
    )


def test_squeeze_excite_with_a_name_names_each_of_its_parameters():
    def program():
        return layers.squeeze_excite(layers.data("x", [2, 2, 4]), 4, "relu", "sigmoid", "w", "b")

    names = ["b_expand_b", "b_squeeze_b", "w_expand_w", "w_squeeze_w"]
    assert sorted(initial(program)["params"]) == names


@pytest.mark.parametrize("gate", ["sigmoid", lambda x: np.float32(0.5) * x])
def test_squeeze_excite_equals_its_definition(gate):
    def expect(p):
        squeezed = IMAGE.mean((1, 2)) @ p["squeeze"]["w"] + p["squeeze"]["b"]
        gates = np.maximum(squeezed, 0) @ p["expand"]["w"] + p["expand"]["b"]
        gates = sp.expit(gates) if gate == "sigmoid" else gates * 0.5
        return IMAGE * gates[:, None, None, :]

    check(
        lambda: layers.squeeze_excite(layers.data("x", [7, 6, 4]), 2, gate_act=gate),
        {"x": IMAGE},
        expect,
    )


def test_conv2d_transpose_finds_the_filter_size_of_an_output_size():
    def program():
        return layers.conv2d_transpose(layers.data("x", [4, 4, 2]), 3, output_size=9, stride=2)

    assert initial(program)["params"]["conv2d_transpose_0"]["w"].shape == (3, 3, 2, 3)
    assert infer(program, {"x": normal(1, 4, 4, 2)}).shape == (1, 9, 9, 3)


@pytest.mark.parametrize("groups", [1, 8])
def test_conv2d_initial_kernel_has_the_deviation_of_its_fan_in(groups):
    variables = initial(
        lambda: layers.conv2d(layers.data("x", [5, 5, 8]), 512, 5, groups=groups, bias_attr=False)
    )
    assert list(variables["params"]["conv2d_0"]) == ["w"]
    deviation = np.std(variables["params"]["conv2d_0"]["w"])
    assert deviation == pytest.approx(np.sqrt(2 / (25 * 8 / groups)), rel=0.03)
