"""Layers over the words of sequences: pooling, softmax, windows, words that move, arrays.

Sums are computed in float32 or better. Where words move, zeros are left behind them. Wrong lengths
in a feed cannot be detected before a program runs: such examples become nan if the values are
floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax import dtypes
from jax.typing import DTypeLike

from penstock._errors import ProgramError, check_choice, check_int
from penstock._program import sequences
from penstock._program.frame import align, current_frame, widen
from penstock.layers.activations import Activation, activate
from penstock.layers.arguments import check_shape, integers
from penstock.layers.initializers import XAVIER
from penstock.layers.parameters import Attr, apply_shift, parameter
from penstock.layers.words import (
    as_lengths,
    check_features,
    check_padded,
    check_sequence,
    choose_examples,
    gather_words,
    match_length,
    shift_words,
    spoil,
)

PoolType = Literal["sum", "average", "sqrt", "max", "last", "first"]


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
    check_choice("layers.sequence_pool got pool_type=", pool_type, get_args(PoolType))
    if pool_type == "first":
        return _pick(words, jnp.zeros_like(words.lengths))
    if pool_type == "last":
        return _pick(words, jnp.maximum(words.lengths - 1, 0))
    if pool_type == "max":
        masked = words.masked(_find_least(words.values.dtype))
        return choose_examples(words.lengths > 0, _maximum(masked), 0)
    masked = words.masked()
    is_floating = jnp.issubdtype(masked.dtype, jnp.floating)
    total = jnp.sum(widen(masked) if is_floating else masked, axis=1)
    if pool_type != "sum":
        count = align(jnp.maximum(words.lengths, 1), total.ndim, 0).astype(jnp.float32)
        total = total / (jnp.sqrt(count) if pool_type == "sqrt" else count)
    return total.astype(masked.dtype) if is_floating else total


def sequence_first_step(input: sequences.Sequence) -> jax.Array:
    """Return the first word of each sequence, `[B, ...]`; 0 for an empty one. Source: Fluid's.

    >>> words = sequences.Sequence(jnp.array([[1.0, 3.0], [5.0, 9.0]]), jnp.array([2, 0]))
    >>> sequence_first_step(words).tolist()
    [1.0, 0.0]
    """
    return sequence_pool(check_sequence("sequence_first_step", input), "first")


def sequence_last_step(input: sequences.Sequence) -> jax.Array:
    """Return the last word of each sequence, `[B, ...]`; 0 for an empty one. Source: Fluid's.

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

    Returns:
      A sequence of the same shape and lengths, zeros in the padding.

    >>> scores = sequences.Sequence(
    ...     jnp.array([[1.0, 1.0, 9.0], [7.0, 0.0, 0.0]]), jnp.array([2, 1])
    ... )
    >>> sequence_softmax(scores).values.tolist()
    [[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]
    """
    words = check_sequence("sequence_softmax", input)
    why = "A word has one number. Apply layers.fc of size 1, or layers.softmax over the features."
    thing = "layers.sequence_softmax got a Sequence"
    check_shape(thing, words.values, why, ["B", "T", 1], ["B", "T"])
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


def sequence_conv(
    input: sequences.Sequence,
    num_filters: int,
    filter_size: int = 3,
    filter_stride: int = 1,
    padding: bool | None = True,
    bias_attr: Attr = None,
    param_attr: Attr = None,
    act: Activation | None = None,
    name: str | None = None,
    padding_start: int | None = None,
) -> sequences.Sequence:
    """Apply a convolution over time.

    Output word t depends on the input words `t + padding_start` to
    `t + padding_start + filter_size - 1`, with zeros outside the sequence. Parameters: `w`
    `[filter_size * D, num_filters]`, Xavier uniform, with the features of the first word first; `b`
    `[num_filters]`, zeros. Source: Fluid's `sequence_conv`.

    Arguments:
      input: a sequence with values `[B, T, D]`.
      filter_stride: must be 1, as in Fluid.
      padding: must be `True` or `None`: zeros outside the sequence, as in Fluid.
      padding_start: by default `-(filter_size // 2)`. `1 - filter_size` makes it causal.

    Returns:
      A sequence `[B, T, num_filters]` with the same lengths.

    >>> def program():
    ...     words = layers.data("words", shape=[2], lod_level=1)
    ...     return layers.sequence_conv(words, num_filters=4)
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> state = builder.init()
    >>> state.variables["params"]["sequence_conv_0"]["w"].shape
    (6, 4)
    """
    frame = current_frame("sequence_conv")
    words = check_sequence("sequence_conv", input)
    features = check_features("sequence_conv", words)
    start = -(filter_size // 2) if padding_start is None else padding_start
    check_int("layers.sequence_conv got filter_size=", filter_size, 1, error=ProgramError)
    why = "There is a result for each word, as in Fluid. Leave it out."
    check_choice("layers.sequence_conv got filter_stride=", filter_stride, [1], why)
    check_choice("layers.sequence_conv got padding=", padding, [True, None], why)
    path = frame.names.layer("sequence_conv", name)
    shape = [filter_size * features, num_filters]
    w = parameter(frame, path, "w", shape, XAVIER, param_attr, layer="sequence_conv")
    x, w = frame.promote(words.masked(), w)
    # One product of all words in the window, not a sum of products, which are smaller.
    window = jnp.concatenate(shift_words(x, range(start, start + filter_size)), axis=-1)
    y = apply_shift(frame, window @ w, path, bias_attr, axis=-1, layer="sequence_conv", leaf="b")
    return words.with_values(activate(y, act, "sequence_conv"))


def sequence_concat(
    input: Sequence[sequences.Sequence], name: str | None = None
) -> sequences.Sequence:
    """Concatenate the sequences of each example along time. Source: Fluid's `sequence_concat`.

    Arguments:
      input: sequences `[B, T_i, ...]` that agree in all axes except time.

    Returns:
      A sequence `[B, sum of T_i, ...]`, whose lengths are the sums of the input lengths.

    >>> first = sequences.Sequence(jnp.array([[1, 2], [3, 0]]), jnp.array([2, 1]))
    >>> second = sequences.Sequence(jnp.array([[7, 0], [8, 9]]), jnp.array([1, 2]))
    >>> sequence_concat([first, second]).values.tolist()
    [[1, 2, 7, 0], [3, 8, 9, 0]]
    """
    is_list = isinstance(input, (list, tuple))
    parts = [check_sequence("sequence_concat", part) for part in (input if is_list else [input])]
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
    """Reverse the words of each sequence; the padding stays at the end. Source: Fluid's.

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

    Returns:
      `[..., maxlen]`. For lengths `[B, 1]` that is `[B, 1, maxlen]`.

    >>> sequence_mask(jnp.array([2, 0]), maxlen=3).tolist()
    [[1, 1, 0], [0, 0, 0]]
    """
    if isinstance(x, sequences.Sequence):
        lengths, maxlen = x.lengths, x.max_length if maxlen is None else maxlen
    else:
        lengths = integers("sequence_mask", "lengths", x)
    why = "The largest length is known only when a program runs. Pass it, or the Sequence itself."
    maxlen = check_int("layers.sequence_mask got maxlen=", maxlen, 1, why, ProgramError)
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
    """Return a sequence made of a padded array and the lengths of its examples. Source: Fluid's.

    Arguments:
      x: `[B, T, ...]`.
      length: integers `[B]` or `[B, 1]`, from 0 to T. An example with any other length gives nan.

    >>> words = sequence_unpad(jnp.array([[1, 2], [3, 9]]), jnp.array([2, 1]))
    >>> [each.tolist() for each in words.cut()]
    [[1, 2], [3]]
    """
    values = check_padded("sequence_unpad", x)
    lengths = as_lengths("sequence_unpad", "length", length, values.shape[0])
    clipped = jnp.clip(lengths, 0, values.shape[1])
    return sequences.Sequence(spoil(values, clipped == lengths), clipped)


def _pick(words: sequences.Sequence, places: jax.Array) -> jax.Array:
    """Return the words at places `[B]`; 0 for an empty sequence."""
    values = words.values
    picked = jnp.take_along_axis(values, align(places, values.ndim, 0), axis=1)[:, 0]
    return choose_examples(words.lengths > 0, picked, 0)


def _find_least(dtype: jnp.dtype) -> float:
    """Return what no number of a dtype is below; False for booleans."""
    if jnp.issubdtype(dtype, jnp.floating):
        return -jnp.inf
    return False if jnp.issubdtype(dtype, jnp.bool_) else jnp.iinfo(dtype).min


@jax.custom_jvp
def _maximum(values: jax.Array) -> jax.Array:
    return jnp.max(values, axis=1)


@_maximum.defjvp
def _differentiate(primals: Any, tangents: Any) -> Any:
    # An exported program has any number of words, and needs no gradient.
    return jax.jvp(_compare_pairs, primals, tangents)


def _compare_pairs(best: jax.Array) -> jax.Array:
    """Return the maximum over axis 1.

    Neighbours are compared, then the larger ones, and so on. With gradients on two cores of a CPU,
    `[64, 100, 512]` takes 9 ms, by `argmax` and a gather 34; JAX's maximum, whose gradient is
    shared among equal ones, takes 13.
    """
    is_float = jnp.issubdtype(best.dtype, jnp.floating)
    least = _find_least(best.dtype)
    while best.shape[1] > 1:
        batch, length, *word = best.shape
        pads = [(0, 0), (0, length % 2)] + [(0, 0)] * len(word)
        pairs = jnp.pad(best, pads, constant_values=least)
        pairs = pairs.reshape(batch, (length + 1) // 2, 2, *word)
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        is_second = second > first
        # nan is greater than nothing, and must be noticed.
        is_second = is_second | jnp.isnan(second) if is_float else is_second
        best = jnp.where(is_second, second, first)
    return best[:, 0]
