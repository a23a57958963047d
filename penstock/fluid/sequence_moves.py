"""Layers of sequences that Fluid's scripts call; `penstock.layers` loads them on first use.

Where words move, zeros are left behind them. Wrong lengths in a feed cannot be detected before a
program runs: such examples become nan if the values are floats.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from penstock._errors import ProgramError, check_choice, check_int
from penstock._program import sequences
from penstock._program.frame import align, current_frame, spread
from penstock.layers import arguments
from penstock.layers.activations import Activation, activate
from penstock.layers.arguments import DataFormat, Padding, check_shape
from penstock.layers.initializers import XAVIER
from penstock.layers.parameters import Attr, parameter
from penstock.layers.sequence_layers import sequence_unpad
from penstock.layers.words import (
    as_lengths,
    check_features,
    check_padded,
    check_sequence,
    gather_words,
    match_length,
    shift_words,
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

    Returns:
      A sequence `[B, T, ...]` with the lengths of `y`.

    >>> words = sequences.Sequence(jnp.zeros([2, 3, 5]), jnp.array([2, 1]))
    >>> sequence_expand(jnp.array([[1.0], [4.0]]), words).values[..., 0].tolist()
    [[1.0, 1.0, 0.0], [4.0, 0.0, 0.0]]
    """
    like = check_sequence("sequence_expand", y, "y")
    why = "Sequences have one level, their words. Leave it out."
    check_choice("layers.sequence_expand got ref_level=", ref_level, (0, -1), why)
    lengths = like.lengths
    if isinstance(x, sequences.Sequence):
        values = spoil(x.values[:, 0], x.lengths <= 1)
        lengths = jnp.where(x.lengths == 0, 0, lengths)
    else:
        values = jnp.asarray(x)
    why = "Each example of x is spread over the words of the same of y. Keep the batch in front."
    check_shape("layers.sequence_expand got x", values, why, [like.values.shape[0], ...])
    shape = (values.shape[0], like.max_length, *values.shape[1:])
    words = spread(values[:, None], jax.ShapeDtypeStruct(shape, values.dtype))
    repeated = sequences.Sequence(jnp.broadcast_to(words, shape), lengths)
    return repeated.with_values(repeated.masked())


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
    values = x.values if isinstance(x, sequences.Sequence) else check_padded("lod_reset", x)
    wanted = y.lengths if isinstance(y, sequences.Sequence) else y
    wanted = as_lengths("lod_reset", "lengths in y", wanted, values.shape[0])
    if isinstance(x, sequences.Sequence):
        values = spoil(values, wanted == x.lengths)
    return sequence_unpad(values, wanted)


def sequence_reshape(input: sequences.Sequence, new_dim: int) -> sequences.Sequence:
    """Regroup the features of each sequence into words of another width. Source: Fluid's.

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
    why = "It is the width of a word. Use a divisor or a multiple of the width there is."
    check_int("layers.sequence_reshape got new_dim=", new_dim, 1, why, ProgramError)
    batch, length = words.values.shape[:2]
    new_length = -(-length * features // new_dim)
    flat = match_length(words.masked().reshape(batch, length * features), new_length * new_dim)
    counts = words.lengths * features
    values = spoil(flat.reshape(batch, new_length, new_dim), counts % new_dim == 0)
    return sequences.Sequence(values, counts // new_dim)


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

    Returns:
      A sequence `[B, T, win_size]` with the same lengths.

    >>> words = sequences.Sequence(jnp.array([[1, 2, 3, 0]]), jnp.array([3]))
    >>> sequence_enumerate(words, win_size=2, pad_value=9).cut()[0].tolist()
    [[1, 2], [2, 3], [3, 9]]
    """
    words = check_sequence("sequence_enumerate", input)
    shape = words.values.shape
    check_int("layers.sequence_enumerate got win_size=", win_size, 1, error=ProgramError)
    why = "A window holds one id for each word. Give the ids before they are embedded."
    thing = "layers.sequence_enumerate got a Sequence"
    check_shape(thing, words.values, why, ["B", "T", 1], ["B", "T"])
    ids = words.masked(pad_value).reshape(shape[:2])
    window = shift_words(ids, range(win_size), pad_value)
    return words.with_values(jnp.stack(window, axis=2))


def row_conv(
    input: sequences.Sequence,
    future_context_size: int,
    param_attr: Attr = None,
    act: Activation | None = None,
    name: str | None = None,
) -> sequences.Sequence:
    """Apply a lookahead convolution, feature by feature (Amodei et al. 2016).

    Output word t is `sum(w[j] * input[t + j])` for j from 0 to `future_context_size`, with zeros
    after the last word. Parameter: `w` `[future_context_size + 1, D]`, Xavier uniform. Source:
    Fluid's `row_conv`.

    Arguments:
      input: a sequence with values `[B, T, D]`.
      future_context_size: the number of later words that each word sees.

    Returns:
      A sequence `[B, T, D]` with the same lengths.

    >>> def program():
    ...     words = layers.data("words", shape=[1], lod_level=1)
    ...     return layers.row_conv(words, 1, param_attr=jax.nn.initializers.ones)
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.init().variables["params"]["row_conv_0"]["w"].shape
    (2, 1)
    """
    frame = current_frame("row_conv")
    words = check_sequence("row_conv", input)
    features = check_features("row_conv", words)
    path = frame.names.layer("row_conv", name)
    shape = [future_context_size + 1, features]
    w = parameter(frame, path, "w", shape, XAVIER, param_attr, layer="row_conv")
    x, w = frame.promote(words.masked(), w)
    y = jnp.zeros_like(x)
    for offset, later in enumerate(shift_words(x, range(future_context_size + 1))):
        y = y + later * spread(align(w[offset], 3), later)
    return words.with_values(activate(y, act, "row_conv"))


def im2sequence(
    input: jax.Array,
    filter_size: int | Sequence[int] = 1,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    name: str | None = None,
    data_format: DataFormat = "NHWC",
) -> sequences.Sequence:
    """Return the windows of an image as the words of a sequence, row by row from the left.

    Padding is zeros. Source: Fluid's `im2sequence`, whose images are channels first.

    Arguments:
      input: `[B, H, W, C]`, or `[B, C, H, W]` with `data_format="NCHW"`.
      filter_size: a number or `(height, width)`, like `stride`.
      padding: as for `pool2d`.

    Returns:
      A sequence `[B, rows * columns, height * width * C]` without padding. The features of a window
      are ordered by row, column and channel; with `data_format="NCHW"` by channel, row and column,
      as in Fluid.

    >>> image = jnp.arange(6.0).reshape(1, 2, 3, 1)
    >>> im2sequence(image, filter_size=2).values.tolist()
    [[[0.0, 1.0, 3.0, 4.0], [1.0, 2.0, 4.0, 5.0]]]
    """
    x = jnp.asarray(input)
    channels, sizes = arguments.check_image("im2sequence", x, data_format)
    windows = arguments.as_pair("im2sequence", "filter_size", filter_size, 1)
    strides = arguments.as_pair("im2sequence", "stride", stride, 1)
    pads = arguments.as_padding("im2sequence", "padding", padding, sizes, windows, strides)
    arguments.check_fits("im2sequence", x, sizes, windows, pads)
    x = jnp.moveaxis(x, 1, 3) if data_format == "NCHW" else x
    x = jnp.pad(x, [(0, 0), *pads, (0, 0)])
    rows, columns = (
        (size + sum(pad) - window) // step + 1
        for size, pad, window, step in zip(sizes, pads, windows, strides, strict=True)
    )
    # `[B, rows, columns, C]` for each pixel of a window.
    pixels = [
        x[:, i : i + strides[0] * (rows - 1) + 1 : strides[0]][
            :, :, j : j + strides[1] * (columns - 1) + 1 : strides[1]
        ]
        for i in range(windows[0])
        for j in range(windows[1])
    ]
    values = jnp.stack(pixels, axis=4 if data_format == "NCHW" else 3)
    values = values.reshape(x.shape[0], rows * columns, len(pixels) * channels)
    return sequences.Sequence(values, jnp.full(x.shape[:1], rows * columns, jnp.int32))
