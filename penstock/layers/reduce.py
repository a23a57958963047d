"""Reductions over axes of a batch, as those of `jax.numpy`; `dim` names axes as in Fluid."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from penstock._errors import ProgramError
from penstock._program.frame import current_frame, widen
from penstock._program.sequences import Sequence

Axes = int | abc.Sequence[int] | None
"""Axes to reduce, all where it is None."""


def reduce_sum(input: jax.Array | Sequence, dim: Axes = None, keep_dim: bool = False) -> jax.Array:
    """Return the sum over axes.

    Source, of the maximum, the minimum, the mean and the product too: Fluid's `reduce_sum`.

    Arguments:
      input: `[B, ...]`; or, without `dim`, a sequence, whose words are summed.
      dim: the axis or axes to reduce, by default all; 0 is the batch.
      keep_dim: whether reduced axes are kept, with size 1.

    Returns:
      A scalar, or the shape of `input` without the reduced axes; over the batch, float32 or wider.

    >>> reduce_sum(jnp.array([[1.0, 2.0], [3.0, 6.0]]), dim=0).tolist()
    [4.0, 8.0]
    """
    if isinstance(input, Sequence) and dim is None and not keep_dim:
        input = input.masked()
    return _reduce("reduce_sum", jnp.sum, input, dim, keep_dim, is_wide=True)


def reduce_mean(input: jax.Array | Sequence, dim: Axes = None, keep_dim: bool = False) -> jax.Array:
    """Return the mean over axes; over all of them it is `layers.mean`. See `reduce_sum`.

    >>> reduce_mean(jnp.array([[1.0, 2.0], [3.0, 6.0]]), dim=0).tolist()
    [2.0, 4.0]
    """
    if dim is None and not keep_dim:
        frame = current_frame("reduce_mean")
        return frame.mean_words(input) if isinstance(input, Sequence) else frame.mean(input)
    return _reduce("reduce_mean", jnp.mean, input, dim, keep_dim, is_wide=True)


def reduce_max(input: jax.Array, dim: Axes = None, keep_dim: bool = False) -> jax.Array:
    """Return the maximum over axes; equal maxima share the gradient, as with `jnp.max`.

    >>> reduce_max(jnp.array([[1.0, 2.0], [3.0, 6.0]]), dim=0).tolist()
    [3.0, 6.0]
    """
    return _reduce("reduce_max", jnp.max, input, dim, keep_dim)


def reduce_min(input: jax.Array, dim: Axes = None, keep_dim: bool = False) -> jax.Array:
    """Return the minimum over axes; equal minima share the gradient, as with `jnp.min`.

    >>> reduce_min(jnp.array([[1.0, 2.0], [3.0, 6.0]]), dim=0).tolist()
    [1.0, 2.0]
    """
    return _reduce("reduce_min", jnp.min, input, dim, keep_dim)


def reduce_prod(input: jax.Array, dim: Axes = None, keep_dim: bool = False) -> jax.Array:
    """Return the product over axes; see `reduce_sum`.

    >>> reduce_prod(jnp.array([[1.0, 2.0], [3.0, 6.0]]), dim=0).tolist()
    [3.0, 12.0]
    """
    return _reduce("reduce_prod", jnp.prod, input, dim, keep_dim, is_wide=True)


def _reduce(
    layer: str,
    reduce: Callable[..., jax.Array],
    input: jax.Array | Sequence,
    dim: Axes,
    keep_dim: bool,
    *,
    is_wide: bool = False,
) -> jax.Array:
    """Reduce over the axes that `dim` names; `is_wide`: in float32 or better.

    What is so reduced over the batch stays wide; else it has the dtype of the input's floats.
    """
    if isinstance(input, Sequence):
        raise ProgramError(
            f"layers.{layer} got a sequence and dim={dim!r}, expected an array: its padding would "
            "count. Use layers.sequence_pool for one result an example, or layers.mean or "
            "layers.reduce_sum over all words."
        )
    x = jnp.asarray(input)
    axes = range(x.ndim) if dim is None else [dim] if isinstance(dim, int | np.integer) else dim
    if not all(isinstance(a, int | np.integer) and -x.ndim <= a < x.ndim for a in axes):
        raise ProgramError(
            f"layers.{layer} got dim={dim!r} and an array of {x.ndim} axes, expected axes from "
            f"{-x.ndim} to {x.ndim - 1}, or None for all. Axis 0 is the batch."
        )
    axes = tuple(dict.fromkeys(a % x.ndim for a in axes))
    is_wide = is_wide and jnp.issubdtype(x.dtype, jnp.floating)
    # A sum of float16 would overflow where the mean does not.
    result = reduce(widen(x) if is_wide else x, axes, keepdims=keep_dim)
    return result.astype(x.dtype) if is_wide and 0 not in axes else result
