"""Convolutions against sums written out in numpy."""

import numpy as np
import pytest
import scipy.special as sp

from penstock import layers
from tests.layers.programs import Case, infer, initial, normal, run_all

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


SINGLE = [
    ({}, {}),
    ({"padding": "SAME", "stride": 2}, {"stride": (2, 2), "pads": ((1, 1), (0, 1))}),
    ({"padding": 1, "stride": 2}, {"stride": (2, 2), "pads": ((1, 1), (1, 1))}),
]
TRANSPOSED = [
    ({"filter_size": 3}, (6, 5)),
    ({"filter_size": 3, "stride": 2, "padding": 1}, (7, 5)),
    ({"filter_size": 3, "stride": 2, "padding": 1, "output_size": (8, 6)}, (8, 6)),
    ({"filter_size": 2, "stride": 2, "groups": 2}, (8, 6)),
    ({"filter_size": 3, "stride": 3, "padding": 1, "dilation": 2}, (12, 9)),
    ({"filter_size": 2, "padding": 1}, (3, 2)),
]


def of_conv2d(arguments, options):
    return Case(
        lambda x: layers.conv2d(x, 6, **{"filter_size": (3, 2), **arguments}, name="of"),
        lambda p, x: convolve(x, p["of"]["w"], **options) + p["of"]["b"],
        (IMAGE,),
        atol=1e-4,
    )


def of_single_channels(arguments, options):
    def call(x):
        return [
            layers.depthwise_conv2d(x, 3, depth_multiplier=2, name="a", **arguments),
            layers.separable_conv2d(x, 3, 3, depth_multiplier=2, name="b", **arguments),
        ]

    def expect(p, x):
        middle = depthwise(x, p["b"]["depthwise"], **options)
        single = depthwise(x, p["a"]["depthwise"], **options) + p["a"]["b"]
        return [single, middle @ p["b"]["w"][0, 0] + p["b"]["b"]]

    return Case(call, expect, (IMAGE,), atol=1e-4)


def of_transpose(arguments, size):
    options = {k: v for k, v in arguments.items() if k not in ("filter_size", "output_size")}
    return Case(
        lambda x: layers.conv2d_transpose(x, 6, **arguments, name="of"),
        lambda p, x: spread(x, p["of"]["w"], size, **options) + p["of"]["b"],
        (normal(2, 4, 3, 4),),
    )


def of_squeeze_excite(gate, function):
    def expect(p, x):
        squeezed = x.mean((1, 2)) @ p["of"]["squeeze"]["w"] + p["of"]["squeeze"]["b"]
        gates = np.maximum(squeezed, 0) @ p["of"]["expand"]["w"] + p["of"]["expand"]["b"]
        return x * function(gates)[:, None, None, :]

    return Case(lambda x: layers.squeeze_excite(x, 2, gate_act=gate, name="of"), expect, (IMAGE,))


CASES = {
    **{f"conv2d {row[0]}": of_conv2d(*row) for row in CONVOLUTIONS},
    **{f"single channels {row[0]}": of_single_channels(*row) for row in SINGLE},
    **{f"conv2d_transpose {row[0]}": of_transpose(*row) for row in TRANSPOSED},
    "squeeze_excite": of_squeeze_excite("sigmoid", sp.expit),
    "squeeze_excite by a function": of_squeeze_excite(
        lambda x: np.float32(0.5) * x, lambda x: x / 2
    ),
}


@pytest.fixture(scope="module")
def measured():
    return run_all(CASES)


@pytest.mark.parametrize("name", CASES)
def test_convolution_is_the_sum_written_out(name, measured):
    CASES[name].check(*measured[name])


def test_squeeze_excite_with_a_name_names_each_of_its_parameters():
    def program():
        return layers.squeeze_excite(layers.data("x", [2, 2, 4]), 4, "relu", "sigmoid", "w", "b")

    names = ["b_expand_b", "b_squeeze_b", "w_expand_w", "w_squeeze_w"]
    assert sorted(initial(program)["params"]) == names


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
