"""MobileNet v1 (Howard et al. 2017), from TF-Slim's mobilenet_v1.py."""

from __future__ import annotations

import functools

import jax

from penstock.models._mobilenet import finished, steps_of, style_of
from penstock.models._registry import EndPoints, Model
from penstock.models._settings import Settings

# Depth and stride: a convolution, then pairs of a depthwise one, which strides, and a 1x1.
LAYERS = (
    (32, 2),
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *[(512, 1)] * 5,
    (1024, 2),
    (1024, 1),
)


def mobilenet_v1(
    images: jax.Array,
    num_classes: int | None,
    *,
    settings: Settings,
    depth_multiplier: float = 1.0,
    output_stride: int | None = None,
) -> tuple[jax.Array, EndPoints]:
    """Build MobileNet v1: a convolution, thirteen depthwise separable ones, logits.

    Arguments:
      depth_multiplier: of the channels of every layer, of which none has less than 8.
      output_stride: 8 or 16 dilates the last layers in place of striding in them.
    """
    style = style_of(settings, "relu6")
    points: EndPoints = {}
    net = images
    steps = steps_of([stride for _, stride in LAYERS], output_stride)
    for number, ((depth, _), step) in enumerate(zip(LAYERS, steps, strict=True)):
        depth, name = max(int(depth * depth_multiplier), 8), f"Conv2d_{number}"
        if number == 0:
            net = points[name] = style.conv(net, depth, 3, stride=step.stride, name=name)
            continue
        for_each, mixing = f"{name}_depthwise", f"{name}_pointwise"
        net = points[for_each] = style.depthwise(
            net, 3, stride=step.stride, dilation=step.dilation, name=for_each
        )
        net = points[mixing] = style.conv(net, depth, 1, name=mixing)
    return finished(net, num_classes, style, points, pooled="AvgPool_1a")


MODELS = tuple(
    Model(
        name=f"mobilenet_v1{suffix}",
        function=functools.partial(mobilenet_v1, depth_multiplier=depth_multiplier),
        default_image_size=224,
        preprocessing="inception",
        num_classes=1001,
        settings=Settings(
            batch_norm_decay=0.9997,
            batch_norm_epsilon=1e-3,
            unbiased_running_variance=True,
            dropout=0.001,
            weight_decay=4e-5,
        ),
        source=f"TF-Slim's mobilenet_v1{suffix}",
    )
    for suffix, depth_multiplier in (("", 1.0), ("_075", 0.75), ("_050", 0.5), ("_025", 0.25))
)
