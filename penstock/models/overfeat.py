"""OverFeat, the fast network of Sermanet et al. 2014, as TF-Slim has it."""

from __future__ import annotations

from dataclasses import replace

import jax

from penstock.models._heads import dense_head
from penstock.models._registry import EndPoints, Outputs, slim_model
from penstock.models._settings import Settings
from penstock.models._style import Style, max_pool, truncated_normal


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
        "overfeat", overfeat, 231, Settings(dropout=0.5, weight_decay=5e-4), num_classes=1000
    ),
)
