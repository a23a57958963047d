"""What layers that compare sequences expect: features or ids a word, and equal lengths."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from penstock._errors import ProgramError
from penstock._program import sequences
from penstock._program.frame import align
from penstock.layers import arguments
from penstock.layers._words import check_sequence


def features(layer: str, argument: str, value: object, least: int = 1) -> sequences.Sequence:
    """Return a sequence of `[B, T, C]` in float32 or wider, zeros in its padding.

    Raises:
      ProgramError: it is none, or `C` is below `least`.
    """
    sequence = check_sequence(layer, value, argument)
    shape = sequence.values.shape
    if len(shape) != 3 or shape[-1] < least:
        raise ProgramError(
            f"layers.{layer} got {argument} of shape {shape}, expected [B, T, C] with C of at "
            f"least {least}. Each word has a score for each class. Use layers.fc with that size."
        )
    values = sequence.masked()
    return sequence.with_values(values.astype(jnp.promote_types(values.dtype, jnp.float32)))


def ids(layer: str, argument: str, value: object) -> sequences.Sequence:
    """Return a sequence of integers `[B, T]`, zeros in its padding; a last axis of 1 is dropped.

    Raises:
      ProgramError: it is no sequence, not of integers, or has several numbers a word.
    """
    sequence = check_sequence(layer, value, argument)
    shape = sequence.values.shape
    if len(shape) != 2 and (len(shape) != 3 or shape[-1] != 1):
        raise ProgramError(
            f"layers.{layer} got {argument} of shape {shape}, expected [B, T, 1]. Each word has "
            'one id. Declare the input with layers.data(..., [1], "int32", lod_level=1).'
        )
    values = arguments.integers(layer, argument, sequence.masked())
    return sequence.with_values(values.reshape(shape[:2]))


def cut_alike(
    first: sequences.Sequence, second: sequences.Sequence
) -> tuple[sequences.Sequence, sequences.Sequence]:
    """Return both padded to one length, enough for sequences whose lengths are equal."""
    length = min(first.max_length, second.max_length)
    return first.with_values(first.values[:, :length]), second.with_values(
        second.values[:, :length]
    )


def are_classes(sequence: sequences.Sequence, num_classes: int) -> jax.Array:
    """Return which examples hold nothing but numbers of classes, `[B]`; padding is ignored."""
    values = sequence.values
    is_class = (values >= 0) & (values < num_classes)
    return jnp.all(is_class | ~sequence.mask, axis=1)


def compact(sequence: sequences.Sequence, keep: jax.Array, fill: int) -> sequences.Sequence:
    """Return the ids `[B, T]` that are kept, moved to the front in their order.

    Arguments:
      keep: `[B, T]`; padding is never kept.
      fill: stands behind them.
    """
    keep = keep & sequence.mask
    order = jnp.argsort(~keep, axis=1, stable=True)
    lengths = jnp.sum(keep, axis=1, dtype=jnp.int32)
    moved = sequences.Sequence(jnp.take_along_axis(sequence.values, order, axis=1), lengths)
    return moved.with_values(moved.masked(fill))


def choose_examples(condition: jax.Array, values: jax.Array, fill: float) -> jax.Array:
    """Return values `[B, ...]` with `fill` for the examples where `condition` `[B]` is false."""
    return jnp.where(align(condition, values.ndim, 0), values, jnp.asarray(fill, values.dtype))
