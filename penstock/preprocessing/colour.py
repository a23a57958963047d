"""Colour operations of one image as TensorFlow defines them, in JAX; `jax.vmap` makes a batch."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def flip(image: jax.Array, is_flipped: jax.Array) -> jax.Array:
    """Flip an image horizontally if `is_flipped`.

    Arguments:
      image: `[H, W, C]`.
      is_flipped: a bool scalar.

    >>> flip(jnp.array([[[1], [2]]]), jnp.array(True)).tolist()
    [[[2], [1]]]
    """
    return jnp.where(is_flipped, image[:, ::-1], image)


def adjust_brightness(image: jax.Array, delta: jax.Array) -> jax.Array:
    """Add `delta` to every value; nothing is clipped. Source: `tf.image.adjust_brightness`.

    >>> adjust_brightness(jnp.array([[[0.25, 0.5, 1.0]]]), jnp.array(0.25)).tolist()
    [[[0.5, 0.75, 1.25]]]
    """
    return image + delta


def adjust_contrast(image: jax.Array, factor: jax.Array) -> jax.Array:
    """Scale the distance from each channel's mean; nothing is clipped.

    Source: `tf.image.adjust_contrast`.

    Arguments:
      image: `[H, W, C]`.

    >>> adjust_contrast(jnp.array([[[1.0], [3.0]]]), jnp.array(0.5)).tolist()
    [[[1.5], [2.5]]]
    """
    mean = jnp.mean(image, axis=(0, 1), keepdims=True)
    return (image - mean) * factor + mean


def adjust_saturation(image: jax.Array, factor: jax.Array) -> jax.Array:
    """Scale the saturation, clipped to 0..1, and keep hue and value.

    The image's values may lie outside 0..1, as after `adjust_brightness`. Source:
    `tf.image.adjust_saturation`.

    Arguments:
      image: `[H, W, 3]`, RGB.
      factor: at least 0; 0 gives a grayscale image.

    >>> adjust_saturation(jnp.array([[[0.5, 0.25, 0.5]]]), jnp.array(1.5)).tolist()
    [[[0.5, 0.125, 0.5]]]
    """
    # With hue and value kept, a channel's distance from the largest one is proportional to the
    # saturation, so that the way through HSV and back is one multiplication.
    value = jnp.max(image, axis=-1, keepdims=True)
    spread = value - jnp.min(image, axis=-1, keepdims=True)
    # Saturation is spread / value, and 0 where the value is not positive.
    most = jnp.maximum(value, 0) / jnp.where(spread > 0, spread, 1)
    return value - (value - image) * jnp.minimum(factor, most)


def adjust_hue(image: jax.Array, delta: jax.Array) -> jax.Array:
    """Rotate the hue by `delta`, a fraction of the circle. Source: `tf.image.adjust_hue`.

    Arguments:
      image: `[H, W, 3]`, RGB.

    >>> adjust_hue(jnp.array([[[1.0, 0.0, 0.0]]]), jnp.array(1 / 3)).round(6).tolist()
    [[[0.0, 1.0, 0.0]]]
    """
    red, green, blue = image[..., 0], image[..., 1], image[..., 2]
    high, low = jnp.max(image, axis=-1), jnp.min(image, axis=-1)
    spread = high - low
    scale = 1 / jnp.where(spread > 0, spread, 1)
    # Not `high == red`: XLA may compute an image once for `high` and once more for `red`, rounded
    # otherwise, and where no channel is the largest, colours change places.
    is_red, is_green = (red >= green) & (red >= blue), green >= blue
    sector = jnp.where(
        is_red,
        (green - blue) * scale,
        jnp.where(is_green, (blue - red) * scale + 2, (red - green) * scale + 4),
    )
    # From 0 to 6: red, yellow, green, cyan, blue, magenta.
    hue = jnp.mod(sector + 6 * delta, 6)
    ramps = [jnp.abs(hue - 3) - 1, 2 - jnp.abs(hue - 2), 2 - jnp.abs(hue - 4)]
    return jnp.stack([low + spread * jnp.clip(ramp, 0, 1) for ramp in ramps], axis=-1)


def standardize(image: jax.Array) -> jax.Array:
    """Subtract an image's mean, and divide by its standard deviation, at least `1 / sqrt(size)`.

    A constant image becomes 0. Source: `tf.image.per_image_standardization`.

    Arguments:
      image: `[H, W, C]` float.

    >>> standardize(jnp.array([[[1.0], [3.0]]])).tolist()
    [[[-1.0], [1.0]]]
    """
    deviation = jnp.maximum(jnp.std(image), image.size**-0.5)
    return (image - jnp.mean(image)) / deviation
