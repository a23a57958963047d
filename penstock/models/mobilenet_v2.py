"""MobileNet v2 (Sandler et al. 2018), from TF-Slim's mobilenet_v2.py."""

from __future__ import annotations

import functools

import jax

from penstock.models._mobilenet import Bottleneck, bottleneck, finished, rounded, steps_of, style_of
from penstock.models._registry import EndPoints, Model
from penstock.models._settings import Settings

# Table 2 of the paper: expansion, depth, how many times, stride of the first.
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
    output_stride: int | None = None,
) -> tuple[jax.Array, EndPoints]:
    """Build MobileNet v2: a convolution, seventeen inverted residual bottlenecks, a 1x1, logits.

    Arguments:
      depth_multiplier: of the channels of every layer; a multiplier below 1 leaves the last 1x1 as
        it is.
      output_stride: 8 or 16 dilates the last layers in place of striding in them.
    """
    style = style_of(settings, "relu6")
    points: EndPoints = {}
    rows = [
        (expansion, depth, 1 if repeat else stride)
        for expansion, depth, count, stride in BOTTLENECKS
        for repeat in range(count)
    ]
    first, *steps = steps_of([2, *[stride for *_, stride in rows]], output_stride)
    depth = rounded(32 * depth_multiplier)
    net = points["layer_1"] = style.conv(images, depth, 3, stride=first.stride, name="Conv")
    for number, ((expansion, depth, _), step) in enumerate(zip(rows, steps, strict=True)):
        divisor = 8 if expansion > 1 else 1
        width = rounded(net.shape[-1] * expansion, divisor)
        shape = Bottleneck(width, rounded(depth * depth_multiplier), step)
        name = f"expanded_conv_{number}" if number else "expanded_conv"
        net = bottleneck(net, shape, style, points, name=name, point=f"layer_{number + 2}")
    depth = rounded(1280 * max(depth_multiplier, 1.0))
    net = points[f"layer_{len(rows) + 2}"] = style.conv(net, depth, 1, name="Conv_1")
    return finished(net, num_classes, style, points, pooled="global_pool")


MODELS = tuple(
    Model(
        name=f"mobilenet_v2{suffix}",
        function=functools.partial(mobilenet_v2, depth_multiplier=depth_multiplier),
        default_image_size=224,
        preprocessing="inception",
        num_classes=1001,
        settings=Settings(
            batch_norm_decay=0.997,
            batch_norm_epsilon=1e-3,
            unbiased_running_variance=True,
            dropout=0.2,
            weight_decay=4e-5,
        ),
        source=f"TF-Slim's mobilenet_v2{suffix}",
    )
    for suffix, depth_multiplier in (("", 1.0), ("_140", 1.4), ("_035", 0.35))
)
