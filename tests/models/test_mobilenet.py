"""The MobileNets: widths, strides, what a bottleneck computes, what their parameters are called."""

import functools

import numpy as np
import pytest

from penstock import layers, models
from penstock.models._mobilenet import Bottleneck, bottleneck, make_style
from penstock.models.mobilenet_v1 import mobilenet_v1
from penstock.models.mobilenet_v3 import VARIANTS, mobilenet_v3
from tests.layers.programs import infer, initial, normal
from tests.models.shapes import shapes_of


def test_mobilenet_v1_has_no_layer_of_less_than_8_channels():
    settings = models.get("mobilenet_v1").settings
    thin = functools.partial(mobilenet_v1, settings=settings, depth_multiplier=0.125)
    points = shapes_of(thin, 32).points
    assert points["Conv2d_0"] == (16, 16, 8)
    assert points["Conv2d_1_pointwise"] == (16, 16, 8)
    assert points["Conv2d_2_pointwise"] == (8, 8, 16)


def relu6(x):
    return np.clip(x, 0, 6)


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "slope", "is_residual"), [(8, None, True), (4, 0.2, False)])
def test_bottleneck_equals_the_sum_written_out(depth, slope, is_residual):
    settings = models.get("mobilenet_v3_small").settings
    shape = Bottleneck(width=16, depth=depth, stride=1, size=1, squeeze_width=4)
    shape = shape._replace(gate_slope=slope) if slope else shape
    points = {}

    def program():
        x = layers.data("x", [2, 3, 8])
        return bottleneck(x, shape, make_style(settings, "relu6"), points, name="b", point="p")

    variables, x = initial(program), normal(2, 2, 3, 8)
    own = variables["params"]["b"]
    for part in ("squeeze", "expand"):
        biases = own["squeeze_excite"][part]
        biases["b"] = normal(*biases["b"].shape)
    norm = 1 / np.sqrt(1 + 1e-3)
    net = relu6(x @ own["expand"]["conv"]["w"][0, 0] * norm)
    net = relu6(net * own["depthwise"]["conv"]["depthwise"][0, 0, :, 0] * norm)
    gates = net.mean((1, 2))
    for part, act in (("squeeze", lambda y: np.maximum(y, 0)), ("expand", None)):
        gates = gates @ own["squeeze_excite"][part]["w"] + own["squeeze_excite"][part]["b"]
        gates = act(gates) if act else relu6(gates + 3) * (slope or 0.16667)
    net = (net * gates[:, None, None]) @ own["project"]["conv"]["w"][0, 0] * norm
    expected = net + x if is_residual else net
    np.testing.assert_allclose(infer(program, {"x": x}, variables), expected, rtol=1e-4, atol=1e-6)
    assert set(points) == {f"p{end}" for end in ("", "/expansion_output", "/depthwise_output")} | {
        "p/output"
    }


def test_strided_bottleneck_of_one_width_has_no_residual():
    settings = models.get("mobilenet_v2").settings
    shape = Bottleneck(width=8, depth=8, stride=2)

    def program():
        x = layers.data("x", [1, 1, 8])
        return bottleneck(x, shape, make_style(settings, "relu6"), {}, name="b", point="p")

    variables = initial(program)
    assert "expand" not in variables["params"]["b"]
    kernel = variables["params"]["b"]["project"]["conv"]
    kernel["w"] = np.zeros_like(kernel["w"])
    assert not infer(program, {"x": np.ones([1, 1, 1, 8], np.float32)}, variables).any()


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "has_negatives"), [("", True), ("_minimalistic", False)])
def test_minimalistic_networks_end_in_relu_and_the_others_in_hard_swish(suffix, has_negatives):
    variant = VARIANTS[f"mobilenet_v3_small{suffix}"]
    short, settings = variant._replace(rows=variant.rows[:1]), models.get("mobilenet_v1").settings

    def features():
        x = layers.data("x", [8, 8, 3])
        return mobilenet_v3(x, None, settings=settings, variant=short)[0]

    assert (infer(features, {"x": normal(1, 8, 8, 3)}).min() < 0) == has_negatives


def test_weight_decay_leaves_depthwise_kernels_and_biases():
    model = models.get("mobilenet_v3_small")
    trained = shapes_of("mobilenet_v3_small", 32).trained
    decayed = [path for path in trained if model.decays(path)]
    assert len(decayed) == 43  # as many as TF-Slim regularizes
    assert "expanded_conv/squeeze_excite/expand/w" in decayed
    assert "Logits/Conv2d_1c_1x1/fc/w" in decayed
    assert not [path for path in decayed if "depthwise" in path or path.endswith("/b")]


def test_settings_are_those_of_slim():
    first, second = models.get("mobilenet_v1_025").settings, models.get("mobilenet_v2_140").settings
    assert (first.batch_norm_decay, first.dropout) == (0.9997, 0.001)
    assert (second.batch_norm_decay, second.dropout) == (0.997, 0.2)
    assert models.get("mobilenet_v3_large").settings == second
    for settings in (first, second):
        assert settings.batch_norm_epsilon == 1e-3
        assert settings.weight_decay == 4e-5
        assert settings.unbiased_running_variance
