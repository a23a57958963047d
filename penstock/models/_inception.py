"""What the Inception networks are built of: branches side by side, and their two kinds of heads.

Layers have TF-Slim's names, which come from a layer's place in its branch and the kernel's size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from penstock import layers
from penstock.layers._arguments import Padding
from penstock.layers._frame import Initializer
from penstock.models._registry import EndPoints
from penstock.models._settings import Settings
from penstock.models._style import Size, Style, avg_pool, global_pool, max_pool, scope

SETTINGS = Settings(
    batch_norm_decay=0.9997,
    batch_norm_epsilon=1e-3,
    unbiased_running_variance=True,
    dropout=0.2,
    weight_decay=4e-5,
)


class Conv(NamedTuple):
    """A convolution in a branch, with batch norm and activation.

    Arguments:
      place: tells the convolutions of a branch apart, `"0a"` in `Conv2d_0a_1x1`; may be empty.
      alias: the name that TF-Slim gives it where that breaks the rule.
      weights: initialises the kernel; the style's when None.
    """

    place: str
    num_filters: int
    size: Size
    stride: int = 1
    padding: Padding = "SAME"
    alias: str | None = None
    weights: Initializer | None = None

    @property
    def name(self) -> str:
        """The layer's name, `Conv2d_<place>_<height>x<width>`."""
        height, width = (self.size, self.size) if isinstance(self.size, int) else self.size
        return self.alias or "_".join(filter(None, ["Conv2d", self.place, f"{height}x{width}"]))


class Pool(NamedTuple):
    """A pooling with windows of 3x3 in a branch."""

    kind: Literal["max", "avg"]
    stride: int = 1
    padding: Padding = "SAME"


class Fork(NamedTuple):
    """Convolutions of one input, whose results go on side by side."""

    convs: tuple[Conv, ...]


Step = Conv | Pool | Fork
Branches = Sequence[Sequence[Step]]


def convolution(x: jax.Array, conv: Conv, style: Style) -> jax.Array:
    """Return what one convolution gives, `[B, H', W', num_filters]`."""
    style = style if conv.weights is None else style.replace(weights=conv.weights)
    how = {"stride": conv.stride, "padding": conv.padding}
    return style.conv(x, conv.num_filters, conv.size, name=conv.name, **how)


def branched(x: jax.Array, branches: Branches, style: Style) -> jax.Array:
    """Return the results of all branches side by side, `[B, H', W', C']`."""
    results = []
    for number, steps in enumerate(branches):
        y = x
        with scope(f"Branch_{number}"):
            for step in steps:
                y = _applied(y, step, style)
        results.append(y)
    return jnp.concatenate(results, axis=-1)


def _applied(x: jax.Array, step: Step, style: Style) -> jax.Array:
    match step:
        case Conv():
            return convolution(x, step, style)
        case Fork(convs):
            return jnp.concatenate([convolution(x, conv, style) for conv in convs], axis=-1)
        case Pool(kind, stride, padding):
            return (max_pool if kind == "max" else avg_pool)(x, 3, stride, padding)


def mixed(x: jax.Array, branches: Branches, style: Style, *, name: str) -> jax.Array:
    """Return what `branched` does, its layers below `name`."""
    with scope(name):
        return branched(x, branches, style)


def conv_names(branches: Branches, name: str) -> Iterator[str]:
    """Yield the paths of the convolutions of a module, in the order they are made."""
    for number, steps in enumerate(branches):
        for step in steps:
            convs = step.convs if isinstance(step, Fork) else (step,)
            names = (conv.name for conv in convs if isinstance(conv, Conv))
            yield from (f"{name}/Branch_{number}/{conv}" for conv in names)


# The stem of v3 and Inception-ResNet v2, with a pooling after each row.
STEM = (
    (Conv("1a", 32, 3, 2, "VALID"), Conv("2a", 32, 3, padding="VALID"), Conv("2b", 64, 3)),
    (Conv("3b", 80, 1, padding="VALID"), Conv("4a", 192, 3, padding="VALID")),
)
_STEM_POOLS = ("MaxPool_3a_3x3", "MaxPool_5a_3x3")


def stem(images: jax.Array, style: Style, points: EndPoints) -> jax.Array:
    """Return the stem's 192 channels of a stride of 8; its end points go into `points`."""
    net = images
    for convs, pool in zip(STEM, _STEM_POOLS, strict=True):
        for conv in convs:
            net = points[conv.name] = convolution(net, conv, style)
        net = points[pool] = max_pool(net, 3, 2)
    return net


def auxiliary_input(x: jax.Array, style: Style) -> jax.Array:
    """Return 128 channels of 5x5 means at a stride of 3, what auxiliary heads begin with.

    Windows are no larger than the image; TF-Slim fails where they would be.
    """
    return style.conv(avg_pool(x, reduced(x, 5), 3), 128, 1, name="Conv2d_1b_1x1")


def reduced(x: jax.Array, size: int) -> tuple[int, int]:
    """Return a square window cut down to the image."""
    return min(size, x.shape[1]), min(size, x.shape[2])


def finished(
    x: jax.Array,
    num_classes: int | None,
    style: Style,
    points: EndPoints,
    *,
    name: str,
    dropped: str = "PreLogits",
) -> tuple[jax.Array, EndPoints]:
    """Return global pooling, dropout and the last layer, and the end points with theirs.

    Arguments:
      name: of the last layer, below `Logits`.
      dropped: the end point of what goes into it.
    """
    features = points["global_pool"] = global_pool(x)
    if num_classes is None:
        return features, points
    features = points[dropped] = style.dropout(features)
    with scope("Logits"):
        logits = points["Logits"] = style.logits(features, num_classes, name=name)
    points["Predictions"] = layers.softmax(logits)
    return logits, points
