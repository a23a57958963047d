"""The statistics of a global batch: mean and variance over its valid examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from penstock import _mesh
from penstock._program.examples import PER_DEVICE_SCOPE, align
from penstock._program.precision import widen

if TYPE_CHECKING:
    from penstock._program.frame import Frame


def batch_statistics(
    frame: Frame,
    x: jax.Array,
    axis: int,
    running: tuple[jax.Array, jax.Array],
    sync: bool,
    is_unbiased: bool,
    is_word: jax.Array | None = None,
    is_batch: bool | None = None,
) -> tuple[jax.Array, jax.Array, tuple[jax.Array, jax.Array]]:
    """Return mean, variance, and how far the global batch's are from the running ones.

    Arguments:
      is_word: which rows are words of sequences, and no padding of them.
      is_batch: whether axis 0 is over examples, where it is known.
    """
    is_batch = frame.examples.count_rows(x) > 0 if is_batch is None else is_batch
    frame.examples.needs_all_devices |= sync
    weights = (
        frame.examples.row_weights(x.shape[0]) if is_batch else jnp.ones(x.shape[:1], jnp.float32)
    )
    if is_word is not None:
        weights, x = weights * is_word, jnp.where(align(is_word, x.ndim, 0), x, 0)
    with frame.examples.note(PER_DEVICE_SCOPE):
        return _statistics(frame, x, weights, axis, running, sync, is_unbiased)


def _statistics(
    frame: Frame,
    x: jax.Array,
    weights: jax.Array,
    axis: int,
    running: tuple[jax.Array, jax.Array],
    sync: bool,
    is_unbiased: bool,
) -> tuple[jax.Array, jax.Array, tuple[jax.Array, jax.Array]]:
    """Return what `batch_statistics` does, with a weight for each row.

    One pass and one psum: the sums of `x - K` and of its square, K being the running mean. This is
    exact for any K; with K near the mean no large numbers cancel. Measured on data of mean 1000 and
    deviation 1: the variance is off by 0.3 at the first step and by 1e-5 after 50, with K = 0 by
    0.3 at every step.
    """
    num_rows, channels = x.shape[0], x.shape[axis]
    offsets = widen(x) - align(running[0], x.ndim, axis)
    # Row sums first: weights times [B, C] costs nothing, times the images a tenth of the layer.
    others = tuple(i for i in range(1, x.ndim) if i != axis)
    of_rows = (jnp.sum(offsets, others), jnp.sum(offsets * offsets, others))
    total, total_of_squares = (jnp.sum(align(weights, 2, 0) * s, 0) for s in of_rows)
    sums = (total, total_of_squares, jnp.sum(weights) * (x.size // (num_rows * channels)))
    if sync:
        sums = _mesh.psum(sums, frame.examples.num_devices)
    # A device that holds nothing but padding has sums of 0 and count 0: no nan, and no say below.
    total, total_of_squares, count = sums
    offset = total / jnp.maximum(count, 1)
    variance = jnp.maximum(total_of_squares / jnp.maximum(count, 1) - offset**2, 0)
    # A variance of 0 would blow the padding up layer by layer, to an infinity times a weight of 0.
    variance = jnp.where(count > 0, variance, running[1])
    # TensorFlow's fused kernel and torch keep the unbiased one; the normalisation is by the other.
    estimate = variance * (count / jnp.maximum(count - 1, 1)) if is_unbiased else variance
    # As sums, so that devices count by their examples.
    steps = lax.stop_gradient((total, (estimate - running[1]) * count, count))
    if not sync:
        steps = _mesh.psum(steps, frame.examples.num_averaged)
    examples = jnp.maximum(steps[2], 1)
    return running[0] + offset, variance, (steps[0] / examples, steps[1] / examples)


def sync_statistics(
    frame: Frame,
    x: jax.Array,
    axis: int,
    running: tuple[jax.Array, jax.Array],
    momentum: float,
) -> tuple[jax.Array, jax.Array, tuple[jax.Array, jax.Array]]:
    """Return mean and variance of the global batch, and the running ones after it; for flax's."""
    mean, variance, steps = batch_statistics(
        frame, x, axis % x.ndim, running, True, False, is_batch=True
    )
    pairs = zip(running, steps, strict=True)
    new_mean, new_variance = (
        (old + (1 - momentum) * step).astype(old.dtype) for old, step in pairs
    )
    return mean, variance, (new_mean, new_variance)


def has_example_axis(
    frame: Frame, x: jax.Array, axis: int | Sequence[int], path: tuple[str, ...]
) -> bool:
    """Return whether a flax batch norm is over the examples: `axis` is that of its features."""
    return (
        isinstance(axis, int)
        and axis % x.ndim > 0
        and frame.examples.rows.answer_module(path, x.shape) > 0
    )
