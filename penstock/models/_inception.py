"""What the Inception networks are built of: modules of branches side by side, stem, heads.

Layers have TF-Slim's names: a layer's place in its branch, and the size of its kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from penstock.models import _style
from penstock.models._registry import EndPoints, Settings

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
      place: of the convolution in its branch, `"0a"` in `Conv2d_0a_1x1`; may be empty.
      alias: TF-Slim's name where it breaks the rule.
      weights: initialises the kernel; None for the style's.
    """

    place: str
    num_filters: int
    size: _style.Size
    stride: int = 1
    padding: _style.Padding = "SAME"
    alias: str | None = None
    weights: _style.Initializer | None = None

    @property
    def name(self) -> str:
        height, width = (self.size, self.size) if isinstance(self.size, int) else self.size
        return self.alias or "_".join(filter(None, ["Conv2d", self.place, f"{height}x{width}"]))


class Pool(NamedTuple):
    """A pooling with windows of 3x3 in a branch."""

    kind: Literal["max", "avg"]
    stride: int = 1
    padding: _style.Padding = "SAME"


class Fork(NamedTuple):
    """Convolutions of one input, whose results are concatenated."""

    convs: tuple[Conv, ...]


Step = Conv | Pool | Fork
Branches = Sequence[Sequence[Step]]


def apply_conv(x: jax.Array, conv: Conv, style: _style.Style) -> jax.Array:
    style = style if conv.weights is None else replace(style, weights=conv.weights)
    return style.conv(
        x, conv.num_filters, conv.size, stride=conv.stride, padding=conv.padding, name=conv.name
    )


def apply_branches(x: jax.Array, branches: Branches, style: _style.Style) -> jax.Array:
    results = []
    for number, steps in enumerate(branches):
        y = x
        with _style.scope(f"Branch_{number}"):
            for step in steps:
                y = _apply_step(y, step, style)
        results.append(y)
    return jnp.concatenate(results, axis=-1)


def _apply_step(x: jax.Array, step: Step, style: _style.Style) -> jax.Array:
    match step:
        case Conv():
            return apply_conv(x, step, style)
        case Fork(convs):
            return jnp.concatenate([apply_conv(x, conv, style) for conv in convs], axis=-1)
        case Pool(kind, stride, padding):
            return (_style.max_pool if kind == "max" else _style.avg_pool)(x, 3, stride, padding)


def apply_module(x: jax.Array, branches: Branches, style: _style.Style, *, name: str) -> jax.Array:
    with _style.scope(name):
        return apply_branches(x, branches, style)


def name_convs(branches: Branches, name: str) -> Iterator[str]:
    """Yield the paths of a module's convolutions, in the order in which they are made."""
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


def apply_stem(images: jax.Array, style: _style.Style, points: EndPoints) -> jax.Array:
    """Apply the stem: 192 channels at a stride of 8. Its end points go into `points`."""
    net = images
    for convs, pool in zip(STEM, _STEM_POOLS, strict=True):
        for conv in convs:
            net = points[conv.name] = apply_conv(net, conv, style)
        net = points[pool] = _style.max_pool(net, 3, 2)
    return net


def auxiliary_input(x: jax.Array, style: _style.Style) -> jax.Array:
    """Return the 128 channels of 5x5 means at a stride of 3 that auxiliary heads begin with."""
    # TF-Slim fails on an image that is smaller than the window.
    return style.conv(_style.avg_pool(x, cut_to_image(x, 5), 3), 128, 1, name="Conv2d_1b_1x1")


def cut_to_image(x: jax.Array, size: int) -> tuple[int, int]:
    return min(size, x.shape[1]), min(size, x.shape[2])
