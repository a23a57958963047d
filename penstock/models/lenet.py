"""LeNet as TF-Slim has it: LeCun et al. 1998, with ReLU, max pooling and dropout."""

from __future__ import annotations

import jax

from penstock import layers
from penstock.models._registry import EndPoints, Outputs, slim_model
from penstock.models._settings import Settings
from penstock.models._style import Style, max_pool, truncated_normal


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
    logits = points["Logits"] = style.logits(net, num_classes, name="fc4")
    points["Predictions"] = layers.softmax(logits)
    return logits, points


MODELS = (
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
