"""What the MobileNets share: widths, bottlenecks, strides that give way to dilation, the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import jax

from penstock import layers
from penstock.models._registry import EndPoints
from penstock.models._settings import Settings
from penstock.models._style import Style, global_pool, scope, truncated_normal

GATE_SLOPE = 0.16667
"""TF-Slim's sixth; with 1/6 in its place, which Keras and timm have, logits differ by 2e-4."""


class Step(NamedTuple):
    """How a layer moves over its image."""

    stride: int
    dilation: int


def steps_of(strides: Iterable[int], output_stride: int | None = None) -> Iterator[Step]:
    """Yield stride and dilation of each layer.

    Arguments:
      strides: of the layers, as the network has them.
      output_stride: how far apart pixels of the last layer may be, in pixels of the image; from
        where it is reached layers are dilated in place of strided. None leaves them as they are.

    >>> [tuple(step) for step in steps_of([2, 2, 1, 2], output_stride=2)]
    [(2, 1), (1, 1), (1, 2), (1, 2)]
    """
    reached, dilation = 1, 1
    for stride in strides:
        if reached == output_stride:
            yield Step(1, dilation)
            dilation *= stride
        else:
            yield Step(stride, 1)
            reached *= stride


def rounded(size: float, divisor: int = 8) -> int:
    """Return the multiple of `divisor` next to `size`, or the one above if it were 10 % less.

    >>> rounded(33.6), rounded(11.2)
    (32, 16)
    """
    near = max(divisor, int(size + divisor / 2) // divisor * divisor)
    return near + divisor if near < 0.9 * size else near


def style_of(settings: Settings, act: str) -> Style:
    """Return how TF-Slim makes the layers of every MobileNet."""
    return Style(settings=settings, act=act, weights=truncated_normal(0.09), has_scale=True)


class Bottleneck(NamedTuple):
    """A depthwise convolution between a 1x1 that widens and a 1x1 that narrows.

    Arguments:
      width: the number of channels in between; no first 1x1 where that is the input's.
      depth: the number of channels that come out.
      size: of the depthwise kernel.
      squeeze_width: of the squeeze-and-excite after it; None for none.
      gate_slope: of its gate, `relu6(x + 3)` times it.
    """

    width: int
    depth: int
    step: Step
    size: int = 3
    squeeze_width: int | None = None
    gate_slope: float = GATE_SLOPE


def bottleneck(
    x: jax.Array, shape: Bottleneck, style: Style, points: EndPoints, *, name: str, point: str
) -> jax.Array:
    """Return an inverted residual bottleneck (Sandler et al. 2018).

    Arguments:
      point: of the end points that are added.
    """
    net = x
    with scope(name):
        if shape.width > x.shape[-1]:
            net = style.conv(net, shape.width, 1, name="expand")
            points[f"{point}/expansion_output"] = net
        stride, dilation = shape.step
        net = style.depthwise(net, shape.size, stride=stride, dilation=dilation, name="depthwise")
        points[f"{point}/depthwise_output"] = net
        if shape.squeeze_width is not None:
            net = layers.squeeze_excite(
                net,
                shape.squeeze_width,
                gate_act=lambda gate: layers.relu6(gate + 3) * shape.gate_slope,
                param_attr=style.weights,
                name="squeeze_excite",
            )
        net = style.linear(net, shape.depth, 1, name="project")
    if stride == 1 and net.shape == x.shape:
        net = net + x
    points[point] = points[f"{point}/output"] = net
    return net


def finished(
    x: jax.Array, num_classes: int | None, style: Style, points: EndPoints, *, pooled: str
) -> tuple[jax.Array, EndPoints]:
    """Return global pooling, dropout and the last layer, and the end points with theirs.

    Arguments:
      pooled: the end point of what is pooled.
    """
    features = points[pooled] = global_pool(x)
    if num_classes is None:
        return features, points
    features = style.dropout(features)
    with scope("Logits"):
        logits = points["Logits"] = style.logits(features, num_classes, name="Conv2d_1c_1x1")
    points["Predictions"] = layers.softmax(logits)
    return logits, points
