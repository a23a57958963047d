"""Expanding, joining, reshaping and reversing sequences, and conversion from and to arrays.

Every layer is the same in train, test and infer. Where words move, zeros are left behind them.
Wrong lengths in a feed cannot be detected before a program runs: such examples become nan if the
values are floats.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import dtypes
from jax.typing import DTypeLike

from penstock._errors import ProgramError
from penstock._program import sequences
from penstock._program.frame import align
from penstock.layers.words import (
    as_lengths,
    check_padded,
    check_sequence,
    gather_words,
    match_length,
    spoil,
)


def sequence_concat(
    input: Sequence[sequences.Sequence], name: str | None = None
) -> sequences.Sequence:
    """Concatenate the sequences of each example along time.

    Source: Fluid's `sequence_concat`.

    Arguments:
      input: sequences `[B, T_i, ...]` that agree in all axes except time.
      name: has no effect, as there are no parameters.

    Returns:
      A sequence `[B, sum of T_i, ...]`, whose lengths are the sums of the input lengths.

    >>> first = sequences.Sequence(jnp.array([[1, 2], [3, 0]]), jnp.array([2, 1]))
    >>> second = sequences.Sequence(jnp.array([[7, 0], [8, 9]]), jnp.array([1, 2]))
    >>> sequence_concat([first, second]).values.tolist()
    [[1, 2, 7, 0], [3, 8, 9, 0]]
    """
    is_list = isinstance(input, (list, tuple))
    parts = [check_sequence("sequence_concat", each) for each in (input if is_list else [input])]
    shapes = [part.values.shape for part in parts]
    if len({(shape[0], *shape[2:]) for shape in shapes}) != 1:
        raise ProgramError(
            f"layers.sequence_concat got Sequences of values {shapes}, expected at least one, all "
            "of one batch and of words of one shape. Words are put behind words. Bring them to "
            "one width, e.g. with layers.fc."
        )
    values = jnp.concatenate([part.values for part in parts], axis=1)
    time = align(jnp.arange(values.shape[1]), 2, 1)
    places = time
    start, ends = 0, jnp.zeros_like(parts[0].lengths)
    for part in parts:
        # Behind the words before it, whatever their padding was. The next part overrides the rest.
        shifted = time - align(ends, 2, 0)
        places = jnp.where(shifted >= 0, start + shifted, places)
        start, ends = start + part.max_length, ends + part.lengths
    return gather_words(values, places, ends)


def sequence_reverse(x: sequences.Sequence, name: str | None = None) -> sequences.Sequence:
    """Reverse the words of each sequence; the padding stays at the end.

    Source: Fluid's `sequence_reverse`.

    >>> words = sequences.Sequence(jnp.array([[1, 2, 3], [4, 5, 0]]), jnp.array([3, 2]))
    >>> sequence_reverse(words).values.tolist()
    [[3, 2, 1], [5, 4, 0]]
    """
    words = check_sequence("sequence_reverse", x, "x")
    time = align(jnp.arange(words.max_length), 2, 1)
    return gather_words(words.values, align(words.lengths, 2, 0) - 1 - time, words.lengths)


def sequence_mask(
    x: jax.Array | sequences.Sequence,
    maxlen: int | None = None,
    dtype: DTypeLike = "int64",
    name: str | None = None,
) -> jax.Array:
    """Return a mask with 1 for words and 0 for padding. Source: Fluid's `sequence_mask`.

    Arguments:
      x: lengths, integers `[...]`, or a sequence.
      maxlen: the size of the new axis. For a sequence, the default is its T. For lengths it is
        required, because programs have static shapes.
      dtype: a numpy dtype or its name. `int64` becomes `int32` unless JAX's x64 mode is on.
      name: has no effect, as there are no parameters.

    Returns:
      `[..., maxlen]`. For lengths `[B, 1]` that is `[B, 1, maxlen]`.

    >>> sequence_mask(jnp.array([2, 0]), maxlen=3).tolist()
    [[1, 1, 0], [0, 0, 0]]
    """
    if isinstance(x, sequences.Sequence):
        lengths, maxlen = x.lengths, x.max_length if maxlen is None else maxlen
    else:
        lengths = jnp.asarray(x)
    if maxlen is None or maxlen < 1 or not jnp.issubdtype(lengths.dtype, jnp.integer):
        raise ProgramError(
            f"layers.sequence_mask got lengths of dtype {lengths.dtype} and maxlen={maxlen}, "
            "expected integers and a maxlen of 1 or more. Programs have static shapes, and the "
            "largest length is known only when they run. Pass maxlen, or the Sequence itself."
        )
    places = jnp.arange(maxlen).reshape(*(1,) * lengths.ndim, maxlen)
    return (places < lengths[..., None]).astype(dtypes.canonicalize_dtype(dtype))


def sequence_pad(
    x: sequences.Sequence,
    pad_value: jax.Array | float,
    maxlen: int | None = None,
    name: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Return the words as one array, with `pad_value` as padding, and the lengths.

    Source: Fluid's `sequence_pad`, which pads to the longest sequence of the batch.

    Arguments:
      x: a sequence with values `[B, T, ...]`.
      pad_value: a number, or an array in the shape of a word.
      maxlen: the size of the time axis, by default T. A longer example gives nan.
      name: has no effect, as there are no parameters.

    Returns:
      Values `[B, maxlen, ...]` and lengths `[B]`, int32.

    >>> words = sequences.Sequence(jnp.array([[1, 2], [3, 9]]), jnp.array([2, 1]))
    >>> padded, lengths = sequence_pad(words, -1, maxlen=3)
    >>> padded.tolist(), lengths.tolist()
    ([[1, 2, -1], [3, -1, -1]], [2, 1])
    """
    words = check_sequence("sequence_pad", x, "x")
    word = words.values.shape[2:]
    fill = jnp.asarray(pad_value, words.values.dtype)
    if (fill.size != 1 and fill.shape != word) or (maxlen is not None and maxlen < 1):
        raise ProgramError(
            f"layers.sequence_pad got pad_value of shape {fill.shape} and maxlen={maxlen} for "
            f"words of shape {word}, expected a number or a word, and a maxlen of 1 or more. It "
            "stands in the place of each missing word. Use 0.0, say."
        )
    length = words.max_length if maxlen is None else maxlen
    fill = fill.reshape(1, 1, *((1,) * len(word) if fill.size == 1 else word))
    cut = sequences.Sequence(match_length(words.values, length), words.lengths)
    values = jnp.where(cut.aligned_mask(), cut.values, fill)
    return spoil(values, words.lengths <= length), words.lengths


def sequence_unpad(x: jax.Array, length: jax.Array, name: str | None = None) -> sequences.Sequence:
    """Return a sequence made of a padded array and the lengths of its examples.

    Source: Fluid's `sequence_unpad`.

    Arguments:
      x: `[B, T, ...]`.
      length: integers `[B]` or `[B, 1]`, from 0 to T. An example with any other length gives nan.
      name: has no effect, as there are no parameters.

    >>> words = sequence_unpad(jnp.array([[1, 2], [3, 9]]), jnp.array([2, 1]))
    >>> [each.tolist() for each in words.cut()]
    [[1, 2], [3]]
    """
    values = check_padded("sequence_unpad", x)
    lengths = as_lengths("sequence_unpad", "length", length, values.shape[0])
    clipped = jnp.clip(lengths, 0, values.shape[1])
    return sequences.Sequence(spoil(values, clipped == lengths), clipped)
