"""Draws that follow an example's place in the global batch, not the device that holds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from penstock._program.frame import Frame


def row_keys(frame: Frame, key: jax.Array, num_rows: int) -> jax.Array:
    """Return a key a row, `[num_rows]`, which depends on the row's place in the global batch."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, frame.examples.row_ids(num_rows))


def draw_mask(
    frame: Frame, key: jax.Array, keep_prob: float | jax.Array, shape: Sequence[int]
) -> jax.Array:
    """Draw a mask of `shape`, whose axis 0 is the batch axis; true with `keep_prob`."""
    # A key a row costs nothing: 1.63 ms against 1.65 ms for one draw of [64, 4096] on 2 CPU cores.
    keys = row_keys(frame, key, shape[0])
    return jax.vmap(lambda key: jax.random.bernoulli(key, keep_prob, tuple(shape[1:])))(keys)


def drop_elements(
    frame: Frame,
    x: jax.Array,
    key: jax.Array,
    rate: float,
    broadcast_dims: Sequence[int],
    path: tuple[str, ...],
) -> jax.Array:
    """Drop elements as flax's `Dropout` does, by the rows' places where `x` has a batch axis.

    Arguments:
      broadcast_dims: axes along which all elements are kept or dropped together.
      path: of the module, under which the probe's finding about its batch axis is kept.
    """
    together = {axis % x.ndim for axis in broadcast_dims}
    # An axis of 1 is broadcast over what is dropped together.
    shape = [1 if axis in together else size for axis, size in enumerate(x.shape)]
    keep_prob = 1.0 - rate
    if frame.examples.rows.answer_module(path, x.shape) and 0 not in together:
        mask = draw_mask(frame, key, keep_prob, shape)
    else:
        mask = jax.random.bernoulli(key, keep_prob, shape)
    # Scaled here and left alone in the other modes, as flax does.
    return jnp.where(mask, x / keep_prob, 0).astype(x.dtype)
