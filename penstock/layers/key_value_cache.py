"""What cached decoding keeps of the words before: their keys and values."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from penstock._errors import ProgramError
from penstock._program.frame import find_frame


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class KeyValueCache:
    """Store the keys and values of an attention layer's past words, for decoding word by word.

    It is a pytree, and the batch is the first axis of every leaf. It can be the carry of a
    `lax.scan` or `lax.while_loop`, and a beam search can reorder it with
    `jax.tree.map(lambda x: x[rows], cache)`.

    Arguments:
      keys: `[B, max_length, num_kv_heads, head_dim]`.
      values: of the same shape.
      position: the number of words that each example has so far, `[B]`, int32.

    >>> cache = init_cache(2, max_length=8, num_kv_heads=1, head_dim=4)
    >>> cache = cache.append(jnp.ones([2, 3, 1, 4]), jnp.ones([2, 3, 1, 4]), jnp.array([3, 1]))
    >>> cache.position.tolist(), cache.keys[:, :4, 0, 0].tolist()
    ([3, 1], [[1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    """

    keys: jax.Array
    values: jax.Array
    position: jax.Array

    @property
    def max_length(self) -> int:
        """The number of words that the cache has room for."""
        return self.keys.shape[1]

    def places(self, count: int) -> jax.Array:
        """Return the positions of the next `count` words, `[B, count]`."""
        return self.position[:, None] + jax.lax.iota(jnp.int32, count)[None]

    def append(
        self, keys: jax.Array, values: jax.Array, lengths: jax.Array | None = None
    ) -> KeyValueCache:
        """Return the cache with more words; words that it has no room for are dropped.

        Arguments:
          keys, values: `[B, T, num_kv_heads, head_dim]`.
          lengths: the number of valid words of each example, `[B]`; by default all are valid.
        """
        batch, count = keys.shape[:2]
        places = self.places(count)
        if lengths is not None:
            # Behind the end, where nothing is written.
            is_valid = jax.lax.iota(jnp.int32, count)[None] < lengths[:, None]
            places = jnp.where(is_valid, places, self.max_length)
        rows = jax.lax.iota(jnp.int32, batch)[:, None]

        def write(old: jax.Array, new: jax.Array) -> jax.Array:
            return old.at[rows, places].set(new.astype(old.dtype), mode="drop")

        added = count if lengths is None else lengths
        return KeyValueCache(
            write(self.keys, keys), write(self.values, values), self.position + added
        )


def init_cache(
    batch_size: int,
    max_length: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: DTypeLike | None = None,
) -> KeyValueCache:
    """Return an empty cache for the `cache` of `layers.multi_head_attention`.

    Arguments:
      batch_size: the number of examples; inside a program, `x.shape[0]`.
      max_length: the number of words that the cache has room for.
      num_kv_heads: the attention layer's `num_kv_heads`, or its `num_heads` if that is not set.
      head_dim: the attention layer's `head_dim`.
      dtype: by default the program's precision; outside a program, float32.

    >>> init_cache(2, max_length=16, num_kv_heads=4, head_dim=8).keys.shape
    (2, 16, 4, 8)
    """
    shape = (batch_size, max_length, num_kv_heads, head_dim)
    if not all(size >= 1 for size in shape):
        raise ProgramError(
            f"layers.init_cache got the shape {shape}, expected positive sizes. They are batch "
            "size, max_length, num_kv_heads and head_dim. Check the arguments."
        )
    frame = find_frame()
    own = frame.compute_dtype if frame is not None else None
    zeros = jnp.zeros(shape, dtype or own or jnp.float32)
    return KeyValueCache(zeros, zeros, jnp.zeros([batch_size], jnp.int32))
