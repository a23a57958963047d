"""TF-Slim's networks for small images: CifarNet (Krizhevsky's cuda-convnet) and LeNet.

LeNet is that of LeCun et al. 1998, with ReLU, max pooling and dropout.
"""

from __future__ import annotations

from dataclasses import replace

import jax
from jax.nn import initializers

from penstock import layers
from penstock.layers.initializers import truncated_normal
from penstock.models._registry import EndPoints, Outputs, Settings, slim_model
from penstock.models._style import Style, max_pool, predict


def cifarnet(images: jax.Array, num_classes: int | None, *, settings: Settings) -> Outputs:
    """Build CifarNet: two convolutions with pooling and LRN, 384 and 192 features, logits."""
    convs = Style(settings=settings, weights=truncated_normal(0.05), is_normalized=False)
    dense = replace(convs, weights=truncated_normal(0.04), biases=initializers.constant(0.1))
    points: EndPoints = {}
    net = points["conv1"] = convs.conv(images, 64, 5, name="conv1")
    net = points["pool1"] = max_pool(net, 2, 2)
    net = _normalize(net)
    net = points["conv2"] = convs.conv(net, 64, 5, name="conv2")
    net = _normalize(net)
    net = points["pool2"] = max_pool(net, 2, 2)
    net = points["Flatten"] = layers.flatten(net)
    net = points["fc3"] = dense.fc(net, 384, name="fc3")
    net = points["dropout3"] = dense.dropout(net)
    net = points["fc4"] = dense.fc(net, 192, name="fc4")
    if num_classes is None:
        return net, points
    last = replace(convs, weights=truncated_normal(1 / 192.0))
    return predict(last.logits(net, num_classes, name="logits"), points)


def _normalize(x: jax.Array) -> jax.Array:
    return layers.lrn(x, n=9, k=1.0, alpha=0.001 / 9.0, beta=0.75)


def lenet(images: jax.Array, num_classes: int | None, *, settings: Settings) -> Outputs:
    """Build LeNet: two convolutions of 5x5 with pooling, 1024 features, logits."""
    style = Style(settings=settings, weights=truncated_normal(0.1), is_normalized=False)
    points: EndPoints = {}
    net = points["conv1"] = style.conv(images, 32, 5, name="conv1")
    net = points["pool1"] = max_pool(net, 2, 2)
    net = points["conv2"] = style.conv(net, 64, 5, name="conv2")
    net = points["pool2"] = max_pool(net, 2, 2)
    net = points["Flatten"] = layers.flatten(net)
    net = points["fc3"] = style.fc(net, 1024, name="fc3")
    if num_classes is None:
        return net, points
    net = points["dropout3"] = style.dropout(net)
    return predict(style.logits(net, num_classes, name="fc4"), points)


MODELS = (
    slim_model(
        "cifarnet",
        cifarnet,
        32,
        Settings(dropout=0.5, weight_decay=0.004),
        preprocessing="cifarnet",
        num_classes=10,
        decays=lambda path: path in ("fc3/fc/w", "fc4/fc/w"),
    ),
    slim_model(
        "lenet",
        lenet,
        28,
        Settings(dropout=0.5, weight_decay=0.0),
        preprocessing="lenet",
        num_classes=10,
        num_channels=1,
    ),
)
