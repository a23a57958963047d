"""What the MobileNets share: settings, widths, bottlenecks."""

from __future__ import annotations

from typing import NamedTuple

import jax

from penstock import layers
from penstock.layers.activations import Activation
from penstock.layers.initializers import truncated_normal
from penstock.models._registry import EndPoints, Settings
from penstock.models._style import Style, scope

# TF-Slim's sixth. Keras and timm have 1/6: with the same weights their logits differ by 2e-4.
GATE_SLOPE = 0.16667

# Of v2 and v3.
SETTINGS = Settings(
    batch_norm_decay=0.997,
    batch_norm_epsilon=1e-3,
    unbiased_running_variance=True,
    dropout=0.2,
    weight_decay=4e-5,
)


def round_to_multiple(size: float, divisor: int = 8) -> int:
    """Return the multiple of `divisor` next to `size`; the one above it if that is 10 % smaller.

    >>> round_to_multiple(33.6), round_to_multiple(11.2)
    (32, 16)
    """
    near = max(divisor, int(size + divisor / 2) // divisor * divisor)
    return near + divisor if near < 0.9 * size else near


def make_style(settings: Settings, act: Activation) -> Style:
    """Return how TF-Slim makes the layers of every MobileNet."""
    return Style(settings=settings, act=act, weights=truncated_normal(0.09), has_scale=True)


def name_bottleneck(number: int) -> str:
    """Return TF-Slim's name of a bottleneck; the first has no number."""
    return f"expanded_conv_{number}" if number else "expanded_conv"


class Bottleneck(NamedTuple):
    """A depthwise convolution between a 1x1 that widens, where it does, and a 1x1 that narrows."""

    width: int
    depth: int
    stride: int
    size: int = 3
    squeeze_width: int | None = None
    gate_slope: float = GATE_SLOPE


def bottleneck(
    x: jax.Array, shape: Bottleneck, style: Style, points: EndPoints, *, name: str, point: str
) -> jax.Array:
    """Apply an inverted residual bottleneck (Sandler et al. 2018); `point` is its end point."""
    net = x
    with scope(name):
        # A first bottleneck as wide as its input has nothing to expand.
        if shape.width > x.shape[-1]:
            net = style.conv(net, shape.width, 1, name="expand")
            points[f"{point}/expansion_output"] = net
        net = style.depthwise(net, shape.size, stride=shape.stride, name="depthwise")
        points[f"{point}/depthwise_output"] = net
        if shape.squeeze_width is not None:
            net = layers.squeeze_excite(
                net,
                shape.squeeze_width,
                gate_act=lambda gate: layers.relu6(gate + 3) * shape.gate_slope,
                param_attr=style.weights,
                name="squeeze_excite",
            )
        net = style.linear.conv(net, shape.depth, 1, name="project")
    if shape.stride == 1 and net.shape == x.shape:
        net = net + x
    points[point] = points[f"{point}/output"] = net
    return net
