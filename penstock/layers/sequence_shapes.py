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
from penstock.layers._words import (
    as_lengths,
    check_features,
    check_sequence,
    gather_words,
    match_length,
    spoil,
)


def sequence_expand(
    x: jax.Array | sequences.Sequence,
    y: sequences.Sequence,
    ref_level: int = -1,
    name: str | None = None,
) -> sequences.Sequence:
    """Repeat the value of each example once for each word of `y`.

    Source: Fluid's `sequence_expand`, which can also repeat sequences of several words.

    Arguments:
      x: `[B, ...]`, or a sequence with one word for each example. An example with several words
        gives nan; an empty one gives an empty sequence.
      y: the sequence whose lengths are used.
      ref_level: 0 or -1; `y` has only one level.
      name: has no effect, as there are no parameters.

    Returns:
      A sequence `[B, T, ...]` with the lengths of `y`.

    >>> words = sequences.Sequence(jnp.zeros([2, 3, 5]), jnp.array([2, 1]))
    >>> sequence_expand(jnp.array([[1.0], [4.0]]), words).values[..., 0].tolist()
    [[1.0, 1.0, 0.0], [4.0, 0.0, 0.0]]
    """
    like = check_sequence("sequence_expand", y, "y")
    if ref_level not in (-1, 0):
        raise ProgramError(
            f"layers.sequence_expand got ref_level={ref_level}, expected 0 or -1. Sequences have "
            "one level, their words. Leave ref_level out."
        )
    lengths = like.lengths
    if isinstance(x, sequences.Sequence):
        values = spoil(x.values[:, 0], x.lengths <= 1)
        lengths = jnp.where(x.lengths == 0, 0, lengths)
    else:
        values = jnp.asarray(x)
    if not values.ndim or values.shape[0] != like.values.shape[0]:
        raise ProgramError(
            f"layers.sequence_expand got x of shape {values.shape} for {like.values.shape[0]} "
            "examples of y, expected as many. Each example of x is spread over the words of the "
            "same example of y. Keep the batch axis in front."
        )
    shape = (values.shape[0], like.max_length, *values.shape[1:])
    spread = sequences.Sequence(jnp.broadcast_to(values[:, None], shape), lengths)
    return spread.with_values(spread.masked())


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


def sequence_reshape(input: sequences.Sequence, new_dim: int) -> sequences.Sequence:
    """Regroup the features of each sequence into words of another width.

    Source: Fluid's `sequence_reshape`.

    Arguments:
      input: a sequence with values `[B, T, D]`.
      new_dim: the new width. It must divide `length * D`; examples where it does not give nan.

    Returns:
      A sequence `[B, ceil(T * D / new_dim), new_dim]`, with lengths `length * D / new_dim`.

    >>> words = sequences.Sequence(jnp.array([[[1, 2], [3, 4]]]), jnp.array([1]))
    >>> sequence_reshape(words, 1).cut()[0].tolist()
    [[1], [2]]
    """
    words = check_sequence("sequence_reshape", input)
    features = check_features("sequence_reshape", words)
    if new_dim < 1:
        raise ProgramError(
            f"layers.sequence_reshape got new_dim={new_dim}, expected 1 or more. It is the width "
            "of a word. Use a divisor or a multiple of the width there is."
        )
    batch, length = words.values.shape[:2]
    new_length = -(-length * features // new_dim)
    flat = match_length(words.masked().reshape(batch, length * features), new_length * new_dim)
    counts = words.lengths * features
    values = spoil(flat.reshape(batch, new_length, new_dim), counts % new_dim == 0)
    return sequences.Sequence(values, counts // new_dim)


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
    values = _check_padded("sequence_unpad", x)
    lengths = as_lengths("sequence_unpad", "length", length, values.shape[0])
    clipped = jnp.clip(lengths, 0, values.shape[1])
    return sequences.Sequence(spoil(values, clipped == lengths), clipped)


def lod_reset(
    x: jax.Array | sequences.Sequence,
    y: jax.Array | sequences.Sequence | None = None,
    target_lod: Sequence[int] | None = None,
) -> sequences.Sequence:
    """Return the words of `x` with the lengths of `y`.

    Source: Fluid's `lod_reset`. There, all words of a batch lie end to end and can be regrouped
    into other examples. Here each example keeps its words.

    Arguments:
      x: `[B, T, ...]`, or a sequence. An example whose length differs from that in `y` gives nan.
      y: required; a sequence, or integers `[B]` or `[B, 1]`, which are lengths and not offsets.
      target_lod: must be None, because offsets would fix the number of examples in a batch.

    Returns:
      A sequence `[B, T, ...]` with the lengths of `y`.

    >>> words = sequences.Sequence(jnp.array([[1, 2], [3, 9]]), jnp.array([2, 1]))
    >>> [each.tolist() for each in lod_reset(10 * words.values, words).cut()]
    [[10, 20], [30]]
    """
    if y is None or target_lod is not None:
        raise ProgramError(
            f"layers.lod_reset got target_lod={target_lod!r} and {'no ' if y is None else ''}y, "
            "expected y alone. Offsets fix the number of examples, and a program takes batches of "
            "any size. Pass the Sequence whose lengths are meant, or an array of lengths [B]."
        )
    values = x.values if isinstance(x, sequences.Sequence) else _check_padded("lod_reset", x)
    wanted = y.lengths if isinstance(y, sequences.Sequence) else y
    wanted = as_lengths("lod_reset", "lengths in y", wanted, values.shape[0])
    if isinstance(x, sequences.Sequence):
        values = spoil(values, wanted == x.lengths)
    return sequence_unpad(values, wanted)


def sequence_slice(
    input: sequences.Sequence,
    offset: jax.Array,
    length: jax.Array,
    name: str | None = None,
) -> sequences.Sequence:
    """Return a slice of each sequence. Source: Fluid's `sequence_slice`.

    Arguments:
      input: a sequence with values `[B, T, ...]`.
      offset: the first word of each example's slice, integers `[B]` or `[B, 1]`.
      length: the number of words in each example's slice, integers `[B]` or `[B, 1]`. A slice that
        extends beyond its example gives nan.
      name: has no effect, as there are no parameters.

    Returns:
      A sequence `[B, T, ...]` with the lengths `length`.

    >>> words = sequences.Sequence(jnp.array([[1, 2, 3], [4, 5, 0]]), jnp.array([3, 2]))
    >>> part = sequence_slice(words, offset=jnp.array([1, 0]), length=jnp.array([2, 1]))
    >>> [each.tolist() for each in part.cut()]
    [[2, 3], [4]]
    """
    words = check_sequence("sequence_slice", input)
    batch = words.values.shape[0]
    starts = as_lengths("sequence_slice", "offset", offset, batch)
    lengths = as_lengths("sequence_slice", "length", length, batch)
    is_inside = (starts >= 0) & (lengths >= 0) & (starts + lengths <= words.lengths)
    places = align(starts, 2, 0) + align(jnp.arange(words.max_length), 2, 1)
    part = gather_words(words.values, places, jnp.clip(lengths, 0, words.max_length))
    return part.with_values(spoil(part.values, is_inside))


def sequence_enumerate(
    input: sequences.Sequence, win_size: int, pad_value: int = 0, name: str | None = None
) -> sequences.Sequence:
    """Return, for each word, the window of ids that starts at it.

    Source: Fluid's `sequence_enumerate`.

    Arguments:
      input: a sequence of ids, `[B, T, 1]` or `[B, T]`.
      win_size: the number of ids in a window.
      pad_value: the id that stands for words after the last one.
      name: has no effect, as there are no parameters.

    Returns:
      A sequence `[B, T, win_size]` with the same lengths.

    >>> words = sequences.Sequence(jnp.array([[1, 2, 3, 0]]), jnp.array([3]))
    >>> sequence_enumerate(words, win_size=2, pad_value=9).cut()[0].tolist()
    [[1, 2], [2, 3], [3, 9]]
    """
    words = check_sequence("sequence_enumerate", input)
    shape = words.values.shape
    if win_size < 1 or (len(shape) != 2 and shape[2:] != (1,)):
        raise ProgramError(
            f"layers.sequence_enumerate got win_size={win_size} and a Sequence of values {shape}, "
            "expected 1 or more and [B, T, 1] or [B, T]. A window holds one id for each word. "
            "Give the ids before they are embedded."
        )
    ids = words.masked(pad_value).reshape(shape[:2])
    behind = jnp.full((shape[0], win_size - 1), pad_value, ids.dtype)
    padded = jnp.concatenate([ids, behind], axis=1)
    window = [padded[:, place : place + shape[1]] for place in range(win_size)]
    return words.with_values(jnp.stack(window, axis=2))


def _check_padded(layer: str, x: jax.Array) -> jax.Array:
    values = jnp.asarray(x)
    if values.ndim < 2:
        raise ProgramError(
            f"layers.{layer} got an array of shape {values.shape}, expected [B, T, ...]. Time "
            "comes behind the batch. Reshape it, or declare it with layers.data(..., lod_level=1)."
        )
    return values
