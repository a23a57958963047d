"""What is computed over all words of a sequence: pooling, and softmax.

Every layer is the same in train, test and infer. Sums are computed in float32 or better.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from penstock._errors import ProgramError, check_choice
from penstock._program import sequences
from penstock._program.frame import align
from penstock._program.precision import widen
from penstock.layers.words import check_sequence

PoolType = Literal["sum", "average", "sqrt", "max", "last", "first"]
_KINDS: tuple[PoolType, ...] = ("sum", "average", "sqrt", "max", "last", "first")


def sequence_pool(input: sequences.Sequence, pool_type: PoolType) -> jax.Array:
    """Reduce each sequence to one word: a sum, a mean, a maximum, or its first or last word.

    An empty sequence gives 0. Source: Fluid's `sequence_pool`.

    Arguments:
      input: a sequence with values `[B, T, ...]`.
      pool_type: `"sum"`; `"average"`, the sum divided by the length; `"sqrt"`, the sum divided by
        the square root of the length; `"max"`, the maximum of each feature, where the gradient
        goes to the first of equal maxima; `"first"` or `"last"`, the first or last word.

    Returns:
      `[B, ...]`.

    >>> words = sequences.Sequence(jnp.array([[1.0, 3.0], [5.0, 9.0]]), jnp.array([2, 1]))
    >>> sequence_pool(words, "average").tolist(), sequence_pool(words, "max").tolist()
    ([2.0, 5.0], [3.0, 5.0])
    """
    words = check_sequence("sequence_pool", input)
    check_choice("layers.sequence_pool", "pool_type", pool_type, _KINDS)
    if pool_type == "first":
        return _pick(words, jnp.zeros_like(words.lengths))
    if pool_type == "last":
        return _pick(words, jnp.maximum(words.lengths - 1, 0))
    if pool_type == "max":
        return _largest(words)
    masked = words.masked()
    is_floating = jnp.issubdtype(masked.dtype, jnp.floating)
    total = jnp.sum(widen(masked) if is_floating else masked, axis=1)
    if pool_type != "sum":
        count = align(jnp.maximum(words.lengths, 1), total.ndim, 0).astype(jnp.float32)
        total = total / (jnp.sqrt(count) if pool_type == "sqrt" else count)
    return total.astype(masked.dtype) if is_floating else total


def sequence_first_step(input: sequences.Sequence) -> jax.Array:
    """Return the first word of each sequence, `[B, ...]`; 0 for an empty one.

    Source: Fluid's `sequence_first_step`.

    >>> words = sequences.Sequence(jnp.array([[1.0, 3.0], [5.0, 9.0]]), jnp.array([2, 0]))
    >>> sequence_first_step(words).tolist()
    [1.0, 0.0]
    """
    return sequence_pool(check_sequence("sequence_first_step", input), "first")


def sequence_last_step(input: sequences.Sequence) -> jax.Array:
    """Return the last word of each sequence, `[B, ...]`; 0 for an empty one.

    Source: Fluid's `sequence_last_step`.

    >>> words = sequences.Sequence(jnp.array([[1.0, 3.0], [5.0, 9.0]]), jnp.array([2, 1]))
    >>> sequence_last_step(words).tolist()
    [3.0, 5.0]
    """
    return sequence_pool(check_sequence("sequence_last_step", input), "last")


def sequence_softmax(input: sequences.Sequence, name: str | None = None) -> sequences.Sequence:
    """Return the softmax over the words of each sequence, weights that sum to 1.

    Source: Fluid's `sequence_softmax`.

    Arguments:
      input: a sequence with one number for each word, `[B, T, 1]` or `[B, T]`.
      name: has no effect, as there are no parameters.

    Returns:
      A sequence of the same shape and lengths, zeros in the padding.

    >>> scores = sequences.Sequence(
    ...     jnp.array([[1.0, 1.0, 9.0], [7.0, 0.0, 0.0]]), jnp.array([2, 1])
    ... )
    >>> sequence_softmax(scores).values.tolist()
    [[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]
    """
    words = check_sequence("sequence_softmax", input)
    shape = words.values.shape
    if len(shape) != 2 and shape[2:] != (1,):
        raise ProgramError(
            f"layers.sequence_softmax got a Sequence of values {shape}, expected [B, T, 1] or "
            "[B, T]. Words are weighed against each other by one number each. Use layers.fc with "
            "size=1 first, or layers.softmax for a softmax over the features of each word."
        )
    mask = words.aligned_mask()
    scores = widen(words.masked())
    # A constant, as any shift gives the same. An empty sequence has no largest: 0.
    top = jnp.max(jnp.where(mask, scores, -jnp.inf), axis=1, keepdims=True, initial=-jnp.inf)
    top = jax.lax.stop_gradient(jnp.where(jnp.isneginf(top), 0, top))
    powers = jnp.where(mask, jnp.exp(jnp.where(mask, scores - top, 0)), 0)
    total = jnp.sum(powers, axis=1, keepdims=True)
    weights = powers / jnp.where(total > 0, total, 1)
    is_floating = jnp.issubdtype(words.values.dtype, jnp.floating)
    return words.with_values(weights.astype(words.values.dtype) if is_floating else weights)


def _pick(words: sequences.Sequence, places: jax.Array) -> jax.Array:
    """Return the words at places `[B]`; 0 for an empty sequence."""
    values = words.values
    picked = jnp.take_along_axis(values, align(places, values.ndim, 0), axis=1)[:, 0]
    return _clear_empty(words, picked)


def _largest(words: sequences.Sequence) -> jax.Array:
    """Return the largest of each feature; of equal ones the first has the gradient.

    Neighbours are compared, then the larger ones, and so on. With gradients on two cores of a CPU,
    `[64, 100, 512]` takes 9 ms, by `argmax` and a gather 34; JAX's maximum, whose gradient is
    shared among equal ones, takes 13.
    """
    dtype = words.values.dtype
    least = -jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min
    best = words.masked(least)
    while best.shape[1] > 1:
        batch, length, *word = best.shape
        pads = [(0, 0), (0, length % 2)] + [(0, 0)] * len(word)
        pairs = jnp.pad(best, pads, constant_values=least)
        pairs = pairs.reshape(batch, (length + 1) // 2, 2, *word)
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        is_second = second > first
        # nan is greater than nothing, and must be noticed.
        is_second = is_second | jnp.isnan(second) if least == -jnp.inf else is_second
        best = jnp.where(is_second, second, first)
    return _clear_empty(words, best[:, 0])


def _clear_empty(words: sequences.Sequence, values: jax.Array) -> jax.Array:
    """Return `[B, ...]` with 0 for empty sequences."""
    is_empty = align(words.lengths == 0, values.ndim, 0)
    return jnp.where(is_empty, jnp.zeros((), values.dtype), values)
