"""Checks of sequences, and moves of their words, that several layers of sequences share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock._errors import ProgramError
from penstock._program import sequences
from penstock._program.frame import align, widen
from penstock.layers import arguments


def check_sequence(layer: str, value: object, argument: str = "input") -> sequences.Sequence:
    """Return `value`, raising unless it is a sequence."""
    if not isinstance(value, sequences.Sequence):
        is_array = isinstance(value, (jax.Array, np.ndarray))
        kind = f"an array of shape {value.shape}" if is_array else f"a {type(value).__name__}"
        raise ProgramError(
            f"layers.{layer} got {kind} as {argument}, expected a Sequence. The layer needs to "
            "know how long each example is. Declare the input with layers.data(..., lod_level=1), "
            "or make ps.Sequence(values, lengths)."
        )
    return value


def check_features(layer: str, input: sequences.Sequence) -> int:
    """Return the number of features of a word, raising unless values are `[B, T, D]`."""
    why = "Words are vectors. Reshape them with sequence.map, or use layers.embedding for ids."
    arguments.check_shape(f"layers.{layer} got a Sequence", input.values, why, ["B", "T", "D"])
    return input.values.shape[2]


def as_lengths(layer: str, argument: str, value: Any, batch_size: int | None = None) -> jax.Array:
    """Return a whole number for each example, `[B]` and int32, given as `[B]` or `[B, 1]`."""
    counts = arguments.integers(layer, argument, value)
    size, why = "B" if batch_size is None else batch_size, "There is one for each example."
    arguments.check_shape(f"layers.{layer} got {argument}", counts, why, [size], [size, 1])
    return counts.reshape(-1).astype(jnp.int32)


def gather_words(
    values: jax.Array, places: jax.Array, lengths: jax.Array, fill: float = 0
) -> sequences.Sequence:
    """Return the words at places `[B, S]` along time, moved inside, and `fill` in the padding."""
    places = jnp.clip(places, 0, values.shape[1] - 1)
    places = places.reshape(*places.shape, *(1,) * (values.ndim - 2))
    moved = sequences.Sequence(jnp.take_along_axis(values, places, axis=1), lengths)
    return moved.with_values(moved.masked(fill))


def spoil(values: jax.Array, is_good: jax.Array) -> jax.Array:
    """Return values `[B, ...]` with nan in examples that are not good; integers as they are."""
    if not jnp.issubdtype(values.dtype, jnp.inexact):
        return values
    return choose_examples(is_good, values, jnp.nan)


def match_length(values: jax.Array, length: int) -> jax.Array:
    """Return values `[B, length, ...]`, cut or padded with zeros behind."""
    missing = max(length - values.shape[1], 0)
    pads = [(0, 0), (0, missing)] + [(0, 0)] * (values.ndim - 2)
    return jnp.pad(values[:, :length], pads)


def shift_words(values: jax.Array, offsets: Sequence[int], fill: float = 0) -> list[jax.Array]:
    """Return for each offset the words that lie so much later, `fill` beyond the ends."""
    length = values.shape[1]
    before, behind = max(0, -min(offsets)), max(0, *offsets)
    pads = [(0, 0), (before, behind)] + [(0, 0)] * (values.ndim - 2)
    padded = jnp.pad(values, pads, constant_values=fill)
    return [padded[:, before + offset : before + offset + length] for offset in offsets]


def check_padded(layer: str, x: jax.Array) -> jax.Array:
    """Return `x`, raising unless it is `[B, T, ...]`."""
    values = jnp.asarray(x)
    why = "Time is behind the batch. Reshape it, or declare it with layers.data(..., lod_level=1)."
    arguments.check_shape(f"layers.{layer} got an array", values, why, ["B", "T", ...])
    return values


def check_scores(layer: str, argument: str, value: object, least: int = 1) -> sequences.Sequence:
    """Return a sequence of `[B, T, C]` in float32 or wider, zeros in its padding."""
    sequence = check_sequence(layer, value, argument)
    shape = sequence.values.shape
    if len(shape) != 3 or shape[-1] < least:
        raise ProgramError(
            f"layers.{layer} got {argument} of shape {shape}, expected [B, T, C] with C of at "
            f"least {least}. Each word has a score for each class. Use layers.fc with that size."
        )
    values = sequence.masked()
    return sequence.with_values(widen(values))


def check_ids(layer: str, argument: str, value: object) -> sequences.Sequence:
    """Return integers `[B, T]`, zeros in their padding; a last axis of 1 is dropped."""
    sequence = check_sequence(layer, value, argument)
    shape = sequence.values.shape
    why = (
        'Each word has one id. Declare the input with layers.data(..., [1], "int32", lod_level=1).'
    )
    forms = ["B", "T"], ["B", "T", 1]
    arguments.check_shape(f"layers.{layer} got {argument}", sequence.values, why, *forms)
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
    """Return the ids `[B, T]` that are kept, moved to the front in their order, then `fill`."""
    keep = keep & sequence.mask
    order = jnp.argsort(~keep, axis=1, stable=True)
    lengths = jnp.sum(keep, axis=1, dtype=jnp.int32)
    return gather_words(sequence.values, order, lengths, fill)


def choose_examples(condition: jax.Array, values: jax.Array, fill: float) -> jax.Array:
    """Return values `[B, ...]` with `fill` for the examples where `condition` `[B]` is false."""
    return jnp.where(align(condition, values.ndim, 0), values, jnp.asarray(fill, values.dtype))
