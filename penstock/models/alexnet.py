"""AlexNet, TF-Slim's v2 (Krizhevsky 2014) and OneFlow's, and OverFeat (Sermanet et al. 2014)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax

from penstock import layers
from penstock.layers.initializers import truncated_normal, variance_scaling
from penstock.models._registry import EndPoints, Model, Outputs, Settings, slim_model
from penstock.models._style import Style, avg_pool, dense_head, max_pool


def alexnet_v2(images: jax.Array, num_classes: int | None, *, settings: Settings) -> Outputs:
    """Build AlexNet of "One weird trick", without LRN, for images of at least 67 pixels."""
    style = Style(settings=settings, is_normalized=False, biases=jax.nn.initializers.constant(0.1))
    points: EndPoints = {}
    net = _apply_convs(images, style, max_pool, points)
    dense = replace(style, weights=truncated_normal(0.005))
    return dense_head(net, num_classes, window=5, widths=(4096, 4096), style=dense, points=points)


def oneflow_alexnet(images: jax.Array, num_classes: int | None, *, settings: Settings) -> Outputs:
    """Build OneFlow's AlexNet: average pooling, no biases, dense layers over the whole image."""
    # The tutorial draws weights from 0 to 1, none of them negative, and the activations explode.
    # These keep the activations' scale.
    style = Style(
        settings=settings, is_normalized=False, has_bias=False, weights=variance_scaling()
    )
    points: EndPoints = {}
    net = _apply_convs(images, style, avg_pool, points)
    net = points["fc1"] = style.fc(layers.flatten(net), 4096, name="fc1")
    net = layers.dropout(net, settings.dropout or 0.0, name="dropout1")
    net = points["fc2"] = style.fc(net, 4096, name="fc2")
    if num_classes is None:
        return net, points
    net = layers.dropout(net, settings.dropout or 0.0, name="dropout2")
    logits = points["Logits"] = points["fc3"] = style.logits(net, num_classes, name="fc3")
    return logits, points


def _apply_convs(
    images: jax.Array, style: Style, pool: Callable[..., jax.Array], points: EndPoints
) -> jax.Array:
    net = points["conv1"] = style.conv(images, 64, 11, stride=4, padding="VALID", name="conv1")
    net = points["pool1"] = pool(net, 3, 2)
    net = points["conv2"] = style.conv(net, 192, 5, name="conv2")
    net = points["pool2"] = pool(net, 3, 2)
    net = points["conv3"] = style.conv(net, 384, 3, name="conv3")
    net = points["conv4"] = style.conv(net, 384, 3, name="conv4")
    net = points["conv5"] = style.conv(net, 256, 3, name="conv5")
    net = points["pool5"] = pool(net, 3, 2)
    return net


def overfeat(images: jax.Array, num_classes: int | None, *, settings: Settings) -> Outputs:
    """Build OverFeat: five convolutions, three dense layers; for images of at least 71 pixels."""
    style = Style(settings=settings, is_normalized=False)
    points: EndPoints = {}
    net = points["conv1"] = style.conv(images, 64, 11, stride=4, padding="VALID", name="conv1")
    net = points["pool1"] = max_pool(net, 2, 2)
    net = points["conv2"] = style.conv(net, 256, 5, padding="VALID", name="conv2")
    net = points["pool2"] = max_pool(net, 2, 2)
    net = points["conv3"] = style.conv(net, 512, 3, name="conv3")
    net = points["conv4"] = style.conv(net, 1024, 3, name="conv4")
    net = points["conv5"] = style.conv(net, 1024, 3, name="conv5")
    net = points["pool5"] = max_pool(net, 2, 2)
    dense = replace(
        style, weights=truncated_normal(0.005), biases=jax.nn.initializers.constant(0.1)
    )
    return dense_head(net, num_classes, window=6, widths=(3072, 4096), style=dense, points=points)


MODELS = (
    slim_model(
        "alexnet_v2",
        alexnet_v2,
        224,
        Settings(dropout=0.5, weight_decay=5e-4),
        num_classes=1000,
    ),
    Model(
        name="oneflow_alexnet",
        function=oneflow_alexnet,
        default_image_size=227,
        preprocessing="vgg",
        num_classes=1001,
        settings=Settings(dropout=0.5, weight_decay=0.0),
        source="OneFlow's AlexNet tutorial",
    ),
    slim_model(
        "overfeat", overfeat, 231, Settings(dropout=0.5, weight_decay=5e-4), num_classes=1000
    ),
)
