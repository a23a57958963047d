"""How networks end: global pooling and a last layer, or fully connected layers as convolutions."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp

from penstock import layers
from penstock.models._registry import EndPoints, Outputs
from penstock.models._style import Style, global_pool, scope


def classify(x: jax.Array, num_classes: int | None, *, style: Style, points: EndPoints) -> Outputs:
    """End a network with global pooling and a last layer.

    Returns:
      Logits, or the pooled features without `num_classes`; and `points`.
    """
    net = points["global_pool"] = global_pool(x)
    if num_classes is None:
        return net, points
    logits = points["Logits"] = style.logits(net, num_classes, name="logits")
    points["Predictions"] = layers.softmax(logits)
    return logits, points


def classify_in_scope(
    x: jax.Array,
    num_classes: int | None,
    style: Style,
    points: EndPoints,
    *,
    name: str,
    pooled: str = "global_pool",
    dropped: str | None = None,
) -> Outputs:
    """End a network with global pooling, dropout, and a last layer below `Logits`.

    Arguments:
      name: of the last layer.
      pooled: the end point of the pooled features.
      dropped: the end point of those after dropout; None for none.

    Returns:
      Logits, or the pooled features without `num_classes`; and `points`.
    """
    features = points[pooled] = global_pool(x)
    if num_classes is None:
        return features, points
    features = style.dropout(features)
    if dropped is not None:
        points[dropped] = features
    with scope("Logits"):
        logits = points["Logits"] = style.logits(features, num_classes, name=name)
    points["Predictions"] = layers.softmax(logits)
    return logits, points


def dense_head(
    x: jax.Array,
    num_classes: int | None,
    *,
    window: int,
    widths: tuple[int, int],
    style: Style,
    points: EndPoints,
) -> Outputs:
    """End a network with `fc6`, which sees `window` by `window` pixels, `fc7`, `fc8`, and dropout.

    An image that is larger than the network's own has several windows; `fc8` gets the mean of their
    features, as in TF-Slim with `global_pool=True`. TF-Slim refuses an image smaller than the
    window; here it is padded with zeros.

    Arguments:
      x: `[B, H, W, C]`.
      widths: of `fc6` and `fc7`.

    Returns:
      Logits, or the features of `fc7` without `num_classes`; and `points`.
    """
    net = _pad_to_window(x, window)
    convs = replace(style, padding="VALID")
    # Convolutions, as in TF-Slim: a larger image has several windows.
    net = points["fc6"] = convs.conv(net, widths[0], window, name="fc6")
    net = _dropout(style, net, "dropout6")
    net = points["fc7"] = convs.conv(net, widths[1], 1, name="fc7")
    net = points["global_pool"] = global_pool(net)
    if num_classes is None:
        return net, points
    net = _dropout(style, net, "dropout7")
    # TF-Slim starts the other biases of AlexNet and OverFeat at 0.1, those of the last layer at 0.
    last = replace(style, biases=jax.nn.initializers.zeros)
    logits = points["Logits"] = points["fc8"] = last.logits(net, num_classes, name="fc8")
    return logits, points


def _dropout(style: Style, x: jax.Array, name: str) -> jax.Array:
    # The scope makes each dropout's name, and the name its random key.
    with scope(name):
        return style.dropout(x)


def _pad_to_window(x: jax.Array, window: int) -> jax.Array:
    """Put zeros around an image that is smaller than the window."""
    missing = [max(window - size, 0) for size in x.shape[1:3]]
    sides = [(pixels // 2, pixels - pixels // 2) for pixels in missing]
    return jnp.pad(x, ((0, 0), *sides, (0, 0))) if any(missing) else x
