"""The fully connected layers that end AlexNet, OverFeat and VGG, as convolutions.

TF-Slim makes them so, and so an image larger than the network's own has several windows for `fc6`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from penstock.models._registry import EndPoints
from penstock.models._style import Style, global_pool, scope


def dense_head(
    x: jax.Array,
    num_classes: int | None,
    *,
    window: int,
    widths: tuple[int, int],
    style: Style,
    points: EndPoints,
) -> tuple[jax.Array, EndPoints]:
    """Build `fc6`, which sees `window` by `window` pixels, `fc7` and `fc8`, with dropout between.

    Where an image has several windows, `fc8` gets the mean of their features, which is what TF-Slim
    does with `global_pool=True`. TF-Slim refuses an image that is smaller than the window; here
    it is padded with zeros.

    Arguments:
      x: `[B, H, W, C]`.
      widths: of `fc6` and `fc7`.
      points: gets what is computed on the way.

    Returns:
      What a network does: logits or features, and `points`.
    """
    net = _filled(x, window)
    convs = style.replace(padding="VALID")
    net = points["fc6"] = convs.conv(net, widths[0], window, name="fc6")
    net = _dropout(style, net, "dropout6")
    net = points["fc7"] = convs.conv(net, widths[1], 1, name="fc7")
    net = points["global_pool"] = global_pool(net)
    if num_classes is None:
        return net, points
    net = _dropout(style, net, "dropout7")
    last = style.replace(biases=jax.nn.initializers.zeros)
    logits = points["Logits"] = points["fc8"] = last.logits(net, num_classes, name="fc8")
    return logits, points


def _dropout(style: Style, x: jax.Array, name: str) -> jax.Array:
    with scope(name):  # its name decides what is dropped
        return style.dropout(x)


def _filled(x: jax.Array, window: int) -> jax.Array:
    """Return the image with zeros around it, if it is smaller than the window."""
    missing = [max(window - size, 0) for size in x.shape[1:3]]
    sides = [(pixels // 2, pixels - pixels // 2) for pixels in missing]
    return jnp.pad(x, ((0, 0), *sides, (0, 0))) if any(missing) else x
