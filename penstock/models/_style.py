"""What the convolutions of one network have in common, and layers made that way.

Every layer gets a name, under which its kernel is `<name>/conv/w` and its batch norm `<name>/norm`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.nn import initializers

from penstock import layers
from penstock.layers import _frame
from penstock.layers._arguments import Padding
from penstock.layers._frame import Initializer
from penstock.layers._widening import widened
from penstock.layers.activations import activate
from penstock.models._settings import Settings

Size = int | tuple[int, int]


def scope(name: str) -> contextlib.AbstractContextManager[None]:
    """Put the layers made inside the `with` block below `name`."""
    return _frame.current("scope").inside(name)


@functools.cache
def truncated_normal(stddev: float) -> Initializer:
    """Return TensorFlow's truncated normal: cut at two deviations, the deviation that before it."""
    return initializers.truncated_normal(stddev)


@functools.cache
def variance_scaling(factor: float = 2.0) -> Initializer:
    """Return TF-Slim's `variance_scaling_initializer`: deviation `sqrt(1.3 * factor / fan_in)`.

    1.3 makes up, roughly, for what the truncation takes; JAX's own corrects for it exactly.
    """

    def initialize(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        fan_in = 1.0
        for size in shape[:-1]:
            fan_in *= size
        return truncated_normal((1.3 * factor / fan_in) ** 0.5)(key, shape, dtype)

    return initialize


@dataclasses.dataclass(frozen=True, kw_only=True)
class Style:
    """How the layers of one network are made; TF-Slim calls it an arg scope.

    Arguments:
      settings: batch norm's decay and epsilon are taken from it.
      act: name of the activation after each layer, or None.
      weights: initialises kernels.
      biases: initialises biases, where there is no batch norm.
      is_normalized: batch norm in place of the bias.
      has_bias: of convolutions and dense layers; None gives one where there is no batch norm.
      has_scale: whether batch norm has one.
      scales: initialises it.
      padding: of convolutions.
    """

    settings: Settings
    act: str | None = "relu"
    weights: Initializer = initializers.glorot_uniform()
    biases: Initializer = initializers.zeros
    is_normalized: bool = True
    has_bias: bool | None = None
    has_scale: bool = False
    scales: Initializer = initializers.ones
    padding: Padding = "SAME"

    def replace(self, **changes: Any) -> Style:
        """Return the style with some fields changed."""
        return dataclasses.replace(self, **changes)

    def conv(
        self,
        x: jax.Array,
        num_filters: int,
        size: Size,
        *,
        name: str,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
        padding: Padding | None = None,
    ) -> jax.Array:
        """Return convolution, batch norm or bias, activation: `[B, H', W', num_filters]`."""
        with scope(name):
            y = layers.conv2d(
                x,
                num_filters,
                size,
                stride=stride,
                padding=self.padding if padding is None else padding,
                dilation=dilation,
                groups=groups,
                param_attr=self.weights,
                bias_attr=self._bias_attr,
                name="conv",
            )
            return self.finished(y)

    def linear(self, x: jax.Array, num_filters: int, size: Size, *, name: str) -> jax.Array:
        """Return what `conv` does without the activation."""
        return self.replace(act=None).conv(x, num_filters, size, name=name)

    def depthwise(
        self,
        x: jax.Array,
        size: Size,
        *,
        name: str,
        stride: int = 1,
        dilation: int = 1,
        padding: Padding | None = None,
    ) -> jax.Array:
        """Return one filter a channel, then batch norm or bias, then activation."""
        with scope(name):
            y = layers.depthwise_conv2d(
                x,
                size,
                stride=stride,
                padding=self.padding if padding is None else padding,
                dilation=dilation,
                param_attr=self.weights,
                bias_attr=self._bias_attr,
                name="conv",
            )
            return self.finished(y)

    def fc(self, x: jax.Array, size: int, *, name: str) -> jax.Array:
        """Return a fully connected layer, then batch norm or bias, then activation, `[B, size]`."""
        with scope(name):
            y = layers.fc(
                x,
                size,
                param_attr=self.weights,
                bias_attr=self._bias_attr,
                name="fc",
            )
            return self.finished(y)

    def logits(self, x: jax.Array, num_classes: int, *, name: str) -> jax.Array:
        """Return the last layer: a bias, no batch norm, no activation, in float32 or better."""
        plain = self.replace(act=None, is_normalized=False)
        return widened(plain.fc(x, num_classes, name=name))

    @property
    def _bias_attr(self) -> Initializer | Literal[False]:
        has_bias = not self.is_normalized if self.has_bias is None else self.has_bias
        return self.biases if has_bias else False

    def finished(self, y: jax.Array) -> jax.Array:
        """Return batch norm, if any, and the activation of what a layer computed."""
        if self.is_normalized:
            return self.batch_norm(y, name="norm", act=self.act)
        return activate(y, self.act, "conv2d")

    def batch_norm(self, x: jax.Array, *, name: str, act: str | None = None) -> jax.Array:
        """Return batch norm with the decay and epsilon of the settings."""
        settings = self.settings
        assert settings.batch_norm_decay is not None
        assert settings.batch_norm_epsilon is not None
        return layers.batch_norm(
            x,
            act=act,
            momentum=settings.batch_norm_decay,
            epsilon=settings.batch_norm_epsilon,
            param_attr=self.scales if self.has_scale else False,
            unbiased_running_variance=bool(settings.unbiased_running_variance),
            momentum_warmup=settings.batch_norm_warmup is not False,
            name=name,
        )

    def dropout(self, x: jax.Array) -> jax.Array:
        """Return the features with the share dropped that the settings say."""
        return layers.dropout(x, self.settings.dropout or 0.0, name="dropout")


def global_pool(x: jax.Array) -> jax.Array:
    """Return the mean over height and width, `[B, C]`."""
    return jnp.mean(x, axis=(1, 2))


def max_pool(x: jax.Array, size: Size, stride: int, padding: Padding = "VALID") -> jax.Array:
    """Return the maximum of windows, `[B, H', W', C]`."""
    return layers.pool2d(x, size, "max", stride, padding)


def avg_pool(x: jax.Array, size: Size, stride: int, padding: Padding = "VALID") -> jax.Array:
    """Return the mean of windows, padding left out of it, `[B, H', W', C]`."""
    return layers.pool2d(x, size, "avg", stride, padding)
