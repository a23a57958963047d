"""MobileNet v2 (Sandler et al. 2018), from TF-Slim's mobilenet_v2.py."""

from __future__ import annotations

import functools

import jax

from penstock.models import _mobilenet
from penstock.models._registry import EndPoints, Outputs, Settings, slim_model
from penstock.models._style import classify_in_scope

# Table 2 of the paper: expansion, depth, number of repeats, stride of the first.
BOTTLENECKS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenet_v2(
    images: jax.Array,
    num_classes: int | None,
    *,
    settings: Settings,
    depth_multiplier: float = 1.0,
) -> Outputs:
    """Build MobileNet v2: a convolution, seventeen inverted residual bottlenecks, a 1x1, logits.

    Arguments:
      depth_multiplier: scales the channels of every layer; below 1 the last 1x1 keeps its width.
    """
    style = _mobilenet.make_style(settings, "relu6")
    points: EndPoints = {}
    rows = [
        (expansion, depth, 1 if repeat else stride)
        for expansion, depth, count, stride in BOTTLENECKS
        for repeat in range(count)
    ]
    depth = _mobilenet.round_to_multiple(32 * depth_multiplier)
    net = points["layer_1"] = style.conv(images, depth, 3, stride=2, name="Conv")
    for number, (expansion, depth, stride) in enumerate(rows):
        # TF-Slim rounds only what is expanded.
        divisor = 8 if expansion > 1 else 1
        width = _mobilenet.round_to_multiple(net.shape[-1] * expansion, divisor)
        shape = _mobilenet.Bottleneck(
            width, _mobilenet.round_to_multiple(depth * depth_multiplier), stride
        )
        name = _mobilenet.name_bottleneck(number)
        net = _mobilenet.bottleneck(
            net, shape, style, points, name=name, point=f"layer_{number + 2}"
        )
    # As in the paper: thin networks keep their last features.
    depth = _mobilenet.round_to_multiple(1280 * max(depth_multiplier, 1.0))
    net = points[f"layer_{len(rows) + 2}"] = style.conv(net, depth, 1, name="Conv_1")
    return classify_in_scope(net, num_classes, style, points, name="Conv2d_1c_1x1")


MODELS = tuple(
    slim_model(
        f"mobilenet_v2{suffix}",
        functools.partial(mobilenet_v2, depth_multiplier=depth_multiplier),
        224,
        _mobilenet.SETTINGS,
    )
    for suffix, depth_multiplier in (("", 1.0), ("_140", 1.4), ("_035", 0.35))
)
