"""The residual network for CIFAR-10 of Fluid's book (He et al. 2015, section 4.2)."""

from __future__ import annotations

import functools
from dataclasses import replace

import jax
from jax.nn import initializers

from penstock.models._registry import EndPoints, Model, Outputs, Settings
from penstock.models._style import Style, classify, scope


def resnet_cifar10(
    images: jax.Array, num_classes: int | None, *, settings: Settings, depth: int = 32
) -> Outputs:
    """Build three stages of two-layer units, of 16, 32 and 64 channels.

    Arguments:
      depth: the number of layers with weights, without shortcuts: a multiple of 6, plus 2.

    Raises:
      ValueError: there is no network of this depth.
    """
    if depth < 8 or depth % 6 != 2:
        raise ValueError(
            f"resnet_cifar10 got depth={depth}, expected 8, 14, 20 and so on in steps of 6. Each "
            "of its three stages has as many units of two layers. 8 and 32 are usual."
        )
    # Fluid's initial values: Xavier uniform for dense layers.
    he = initializers.variance_scaling(2.0, "fan_in", "normal")
    style = Style(settings=settings, weights=he, has_scale=True)
    points: EndPoints = {}
    net = points["conv1"] = style.conv(images, 16, 3, name="conv1")
    for stage, num_filters in enumerate((16, 32, 64), 1):
        with scope(f"res{stage}"):
            for unit in range(1, (depth - 2) // 6 + 1):
                stride = 2 if stage > 1 and unit == 1 else 1
                with scope(f"unit_{unit}"):
                    net = _unit(style, net, num_filters, stride)
        points[f"res{stage}"] = net
    dense = replace(style, weights=initializers.glorot_uniform())
    return classify(net, num_classes, style=dense, points=points)


def _unit(style: Style, x: jax.Array, num_filters: int, stride: int) -> jax.Array:
    net = style.conv(x, num_filters, 3, stride=stride, padding=1, name="conv1")
    # The book gives this convolution a bias, which its batch norm takes out again.
    net = replace(style.linear, has_bias=True).conv(net, num_filters, 3, name="conv2")
    shortcut = x
    if x.shape[-1] != num_filters:
        shortcut = style.linear.conv(x, num_filters, 1, stride=stride, name="shortcut")
    return jax.nn.relu(net + shortcut)


_SETTINGS = Settings(
    batch_norm_decay=0.9,
    batch_norm_epsilon=1e-5,
    unbiased_running_variance=False,
    weight_decay=0.0,
)
MODELS = tuple(
    Model(
        name=name,
        function=functools.partial(resnet_cifar10, depth=depth),
        default_image_size=32,
        preprocessing="cifarnet",
        num_classes=10,
        settings=_SETTINGS,
        source=source,
    )
    for name, depth, source in (
        ("resnet_cifar10", 32, "Fluid's book, image classification"),
        ("resnet_cifar10_8", 8, "Fluid's book, with one unit in each stage"),
    )
)
