"""Layers in the style of one network: initializers, activation, normalisation, and its end.

Every layer has a name; its kernel is `<name>/conv/w` and its batch norm `<name>/norm`.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Literal

import jax
import jax.numpy as jnp
from jax.nn import initializers

from penstock import layers
from penstock._program.frame import Initializer, current_frame, widen
from penstock.layers.activations import Activation, activate
from penstock.models._registry import EndPoints, Outputs, Settings

Size = int | tuple[int, int]
Padding = Literal["SAME", "VALID"] | int


def scope(name: str) -> contextlib.AbstractContextManager[None]:
    """Put the layers that are made in the `with` block below `name`."""
    return current_frame("scope").names.open_scope(name)


@dataclass(frozen=True, kw_only=True)
class Style:
    """How the layers of one network are made; TF-Slim calls it an arg scope.

    `weights`, `biases` and batch norm's `scales` are initializers. `has_bias` is of convolutions
    and dense layers; None gives one where there is no batch norm.
    """

    settings: Settings
    act: Activation | None = "relu"
    weights: Initializer = initializers.glorot_uniform()
    biases: Initializer = initializers.zeros
    is_normalized: bool = True
    has_bias: bool | None = None
    has_scale: bool = False
    scales: Initializer = initializers.ones

    def conv(
        self,
        x: jax.Array,
        num_filters: int,
        size: Size,
        *,
        name: str,
        stride: int = 1,
        groups: int = 1,
        padding: Padding = "SAME",
    ) -> jax.Array:
        """Return convolution, batch norm or bias, activation: `[B, H', W', num_filters]`."""
        with scope(name):
            y = layers.conv2d(
                x,
                num_filters,
                size,
                stride=stride,
                padding=padding,
                groups=groups,
                param_attr=self.weights,
                bias_attr=self._bias_attr,
                name="conv",
            )
            return self.normalize_and_activate(y)

    def depthwise(self, x: jax.Array, size: Size, *, name: str, stride: int = 1) -> jax.Array:
        """Return a convolution with one filter for each channel, then as `conv`."""
        with scope(name):
            y = layers.depthwise_conv2d(
                x,
                size,
                stride=stride,
                padding="SAME",
                param_attr=self.weights,
                bias_attr=self._bias_attr,
                name="conv",
            )
            return self.normalize_and_activate(y)

    def fc(self, x: jax.Array, size: int, *, name: str) -> jax.Array:
        """Return a fully connected layer, then batch norm or bias, then activation, `[B, size]`."""
        with scope(name):
            y = layers.fc(x, size, param_attr=self.weights, bias_attr=self._bias_attr, name="fc")
            return self.normalize_and_activate(y)

    def logits(self, x: jax.Array, num_classes: int, *, name: str) -> jax.Array:
        """Return the last layer: a bias, no batch norm, no activation, in float32 or better."""
        return widen(self.plain.fc(x, num_classes, name=name))

    @property
    def linear(self) -> Style:
        return replace(self, act=None)

    @property
    def plain(self) -> Style:
        return replace(self, act=None, is_normalized=False)

    @property
    def _bias_attr(self) -> Initializer | Literal[False]:
        has_bias = not self.is_normalized if self.has_bias is None else self.has_bias
        return self.biases if has_bias else False

    def normalize_and_activate(self, y: jax.Array) -> jax.Array:
        if self.is_normalized:
            return self.batch_norm(y, name="norm", act=self.act)
        return activate(y, self.act, "conv2d")

    def batch_norm(self, x: jax.Array, *, name: str, act: Activation | None = None) -> jax.Array:
        settings = self.settings
        # Every network with a batch norm sets them.
        assert settings.batch_norm_decay is not None
        assert settings.batch_norm_epsilon is not None
        return layers.batch_norm(
            x,
            act=act,
            momentum=settings.batch_norm_decay,
            epsilon=settings.batch_norm_epsilon,
            param_attr=self.scales if self.has_scale else False,
            unbiased_running_variance=bool(settings.unbiased_running_variance),
            # Without it MobileNet, whose decay is 0.9997, tests at chance after 60 steps that tell
            # two classes apart.
            momentum_warmup=settings.batch_norm_warmup is not False,
            group_size=settings.batch_norm_group_size,
            name=name,
        )

    def dropout(self, x: jax.Array) -> jax.Array:
        return layers.dropout(x, self.settings.dropout or 0.0, name="dropout")


def global_pool(x: jax.Array) -> jax.Array:
    """Return the mean over height and width, `[B, C]`."""
    return jnp.mean(x, axis=(1, 2))


def max_pool(x: jax.Array, size: Size, stride: int, padding: Padding = "VALID") -> jax.Array:
    """Return the maximum of windows, `[B, H', W', C]`."""
    return layers.pool2d(x, size, "max", stride, padding)


def avg_pool(x: jax.Array, size: Size, stride: int, padding: Padding = "VALID") -> jax.Array:
    """Return the mean of windows, without their padding, `[B, H', W', C]`."""
    return layers.pool2d(x, size, "avg", stride, padding)


# How networks end: global pooling and a last layer, or fully connected layers as convolutions.


def predict(logits: jax.Array, points: EndPoints) -> Outputs:
    """End a network with its logits; they and their softmax become end points."""
    points["Logits"] = logits
    points["Predictions"] = layers.softmax(logits)
    return logits, points


def classify(x: jax.Array, num_classes: int | None, *, style: Style, points: EndPoints) -> Outputs:
    """End a network with global pooling and a last layer, which is left out without classes."""
    net = points["global_pool"] = global_pool(x)
    if num_classes is None:
        return net, points
    return predict(style.logits(net, num_classes, name="logits"), points)


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

    `pooled` and `dropped` are the end points of the features before and after dropout.
    """
    features = points[pooled] = global_pool(x)
    if num_classes is None:
        return features, points
    features = style.dropout(features)
    if dropped is not None:
        points[dropped] = features
    with scope("Logits"):
        logits = style.logits(features, num_classes, name=name)
    return predict(logits, points)


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

    Without classes the features of `fc7` are returned.
    """
    net = _pad_to_window(x, window)
    # Convolutions, as in TF-Slim: a larger image has several windows.
    net = points["fc6"] = style.conv(net, widths[0], window, padding="VALID", name="fc6")
    net = _dropout(style, net, "dropout6")
    net = points["fc7"] = style.conv(net, widths[1], 1, name="fc7")
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
    missing = [max(window - size, 0) for size in x.shape[1:3]]
    sides = [(pixels // 2, pixels - pixels // 2) for pixels in missing]
    return jnp.pad(x, ((0, 0), *sides, (0, 0))) if any(missing) else x
