"""Windows of words: convolutions over time, and images as sequences of windows."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from penstock._errors import ProgramError
from penstock._program import sequences
from penstock._program.frame import align, current_frame
from penstock.layers import arguments
from penstock.layers._words import check_features, check_sequence, shift_words
from penstock.layers.activations import Activation, activate
from penstock.layers.arguments import DataFormat, Padding
from penstock.layers.parameters import XAVIER, Attr, apply_shift, parameter


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

    Output word t depends on the input words `t + padding_start` to `t + padding_start + filter_size
    - 1`, with zeros outside the sequence. Parameters: `w` `[filter_size * D, num_filters]`, Xavier
    uniform, with the features of the first word first; `b` `[num_filters]`, zeros. The same in
    train, test and infer. Source: Fluid's `sequence_conv`.

    Arguments:
      input: a sequence with values `[B, T, D]`.
      filter_stride: must be 1, as in Fluid.
      padding: must be `True` or `None`: zeros outside the sequence, as in Fluid.
      act: name of an activation, applied last.
      padding_start: by default `-(filter_size // 2)`. `1 - filter_size` makes it causal.

    Returns:
      A sequence `[B, T, num_filters]` with the same lengths.

    >>> import penstock as ps
    >>> from penstock import layers
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
    if filter_size < 1 or filter_stride != 1 or padding is False:
        raise ProgramError(
            f"layers.sequence_conv got filter_size={filter_size}, filter_stride={filter_stride} "
            f"and padding={padding}, expected a filter_size of 1 or more, filter_stride=1 and "
            "padding=True. There is a result for each word, as in Fluid. Leave filter_stride and "
            "padding out."
        )
    path = frame.names.layer("sequence_conv", name)
    shape = [filter_size * features, num_filters]
    w = parameter(frame, path, "w", shape, XAVIER, param_attr, layer="sequence_conv")
    x, w = frame.promote(words.masked(), w)
    # One product of all words in the window, not a sum of products, which are smaller.
    window = jnp.concatenate(shift_words(x, range(start, start + filter_size)), axis=-1)
    y = apply_shift(frame, window @ w, path, bias_attr, axis=-1, layer="sequence_conv", leaf="b")
    return words.with_values(activate(y, act, "sequence_conv"))


def row_conv(
    input: sequences.Sequence,
    future_context_size: int,
    param_attr: Attr = None,
    act: Activation | None = None,
    name: str | None = None,
) -> sequences.Sequence:
    """Apply a lookahead convolution, feature by feature (Amodei et al. 2016).

    Output word t is `sum(w[j] * input[t + j])` for j from 0 to `future_context_size`, with zeros
    after the last word. Parameter: `w` `[future_context_size + 1, D]`, Xavier uniform. The same in
    train, test and infer. Source: Fluid's `row_conv`.

    Arguments:
      input: a sequence with values `[B, T, D]`.
      future_context_size: the number of later words that each word sees.
      act: name of an activation, applied last.

    Returns:
      A sequence `[B, T, D]` with the same lengths.

    >>> import penstock as ps
    >>> from penstock import layers
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
    if future_context_size < 0:
        raise ProgramError(
            f"layers.row_conv got future_context_size={future_context_size}, expected 0 or more. "
            "It counts the later words that a word sees. Use 2, say."
        )
    path = frame.names.layer("row_conv", name)
    shape = [future_context_size + 1, features]
    w = parameter(frame, path, "w", shape, XAVIER, param_attr, layer="row_conv")
    x, w = frame.promote(words.masked(), w)
    y = jnp.zeros_like(x)
    for offset, later in enumerate(shift_words(x, range(future_context_size + 1))):
        y = y + later * align(w[offset], 3)
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

    Padding is zeros. The same in train, test and infer. Source: Fluid's `im2sequence`, whose images
    are channels first.

    Arguments:
      input: `[B, H, W, C]`, or `[B, C, H, W]` with `data_format="NCHW"`.
      filter_size: a number or `(height, width)`, like `stride`.
      padding: as for `pool2d`.
      name: has no effect, as there are no parameters.

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
