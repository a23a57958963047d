"""VGG (Simonyan and Zisserman 2014): TF-Slim's, OneFlow's with batch norm, Fluid's for CIFAR-10."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import jax
from jax.nn import initializers

from penstock import layers
from penstock.models._registry import EndPoints, Model, Outputs, Settings, slim_model
from penstock.models._style import Style, dense_head, max_pool, predict, scope

NUM_FILTERS = (64, 128, 256, 512, 512)
VGG_A = (1, 1, 2, 2, 2)
VGG_16 = (2, 2, 3, 3, 3)
VGG_19 = (2, 2, 4, 4, 4)

# Dropout after each convolution of vgg_bn_drop, as a share of the rate of its dense layers: the
# book's 0.3 and 0.4 to its 0.5.
_DROPOUT_SHARES = ((0.6, 0.0), (0.8, 0.0), (0.8, 0.8, 0.0), (0.8, 0.8, 0.0), (0.8, 0.8, 0.0))


def vgg(
    images: jax.Array, num_classes: int | None, *, settings: Settings, depths: Sequence[int]
) -> Outputs:
    """Build VGG without batch norm, for images of at least 32 pixels.

    Arguments:
      depths: how many convolutions each of the five stages has.
    """
    style = Style(settings=settings, is_normalized=False)
    points: EndPoints = {}
    net = _apply_stages(style, images, depths, points)
    return dense_head(net, num_classes, window=7, widths=(4096, 4096), style=style, points=points)


def vgg_bn(
    images: jax.Array, num_classes: int | None, *, settings: Settings, depths: Sequence[int]
) -> Outputs:
    """Build VGG with batch norm after each convolution, whose bias stays: OneFlow's, torchvision's.

    Arguments:
      depths: how many convolutions each of the five stages has.
    """
    he = initializers.variance_scaling(2.0, "fan_out", "normal")
    style = Style(settings=settings, weights=he, has_bias=True, has_scale=True)
    dense = replace(style, is_normalized=False, weights=initializers.normal(0.01))
    points: EndPoints = {}
    net = _apply_stages(style, images, depths, points)
    return dense_head(net, num_classes, window=7, widths=(4096, 4096), style=dense, points=points)


def vgg_bn_drop(images: jax.Array, num_classes: int | None, *, settings: Settings) -> Outputs:
    """Build the VGG-16 of Fluid's book: batch norm, dropout between convolutions, 512 features.

    `Settings.dropout` is the rate in the dense layers; those in the convolutions are shares of it.
    """
    rate = settings.dropout or 0.0
    # Fluid's initial values: Xavier uniform for dense layers.
    he = initializers.variance_scaling(2.0, "fan_in", "normal")
    style = Style(settings=settings, weights=he, has_bias=True, has_scale=True)
    dense = replace(style, weights=initializers.glorot_uniform())
    points: EndPoints = {}
    rates = [[share * rate for share in shares] for shares in _DROPOUT_SHARES]
    net = _apply_stages(style, images, VGG_16, points, rates)
    net = layers.dropout(layers.flatten(net), rate, name="dropout1")
    net = points["fc1"] = dense.fc(net, 512, name="fc1")
    net = layers.dropout(net, rate, name="dropout2")
    # The book's last features have neither activation nor batch norm.
    net = points["fc2"] = dense.plain.fc(net, 512, name="fc2")
    if num_classes is None:
        return net, points
    return predict(dense.logits(net, num_classes, name="fc3"), points)


def _apply_stages(
    style: Style,
    x: jax.Array,
    depths: Sequence[int],
    points: EndPoints,
    rates: Sequence[Sequence[float]] | None = None,
) -> jax.Array:
    """Apply five stages of convolutions and pooling; `rates` of dropout after each convolution."""
    for stage, (num_filters, depth) in enumerate(zip(NUM_FILTERS, depths, strict=True), 1):
        with scope(f"conv{stage}"):
            for layer in range(1, depth + 1):
                name = f"conv{stage}_{layer}"
                x = points[f"conv{stage}/{name}"] = style.conv(x, num_filters, 3, name=name)
                if rates is not None:
                    x = layers.dropout(x, rates[stage - 1][layer - 1], name=f"dropout{layer}")
        x = points[f"pool{stage}"] = max_pool(x, 2, 2)
    return x


MODELS = (
    *(
        slim_model(
            name,
            functools.partial(vgg, depths=depths),
            224,
            Settings(dropout=0.5, weight_decay=5e-4),
            preprocessing="vgg",
            num_classes=1000,
        )
        for name, depths in (("vgg_a", VGG_A), ("vgg_16", VGG_16), ("vgg_19", VGG_19))
    ),
    Model(
        name="vgg_16_bn",
        function=functools.partial(vgg_bn, depths=VGG_16),
        default_image_size=224,
        preprocessing="torchvision",
        settings=Settings(
            batch_norm_decay=0.997,
            batch_norm_epsilon=1.001e-5,
            unbiased_running_variance=True,
            dropout=0.5,
            weight_decay=5e-5,
        ),
        source="OneFlow-Benchmark's vgg16bn",
    ),
    Model(
        name="vgg_bn_drop",
        function=vgg_bn_drop,
        default_image_size=32,
        preprocessing="cifarnet",
        num_classes=10,
        settings=Settings(
            batch_norm_decay=0.9,
            batch_norm_epsilon=1e-5,
            unbiased_running_variance=False,
            dropout=0.5,
            weight_decay=0.0,
        ),
        source="Fluid's book, image classification",
    ),
)
