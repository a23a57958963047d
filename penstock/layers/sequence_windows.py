"""Windows of words: convolutions over time, and images as sequences of windows."""

from __future__ import annotations

import jax.numpy as jnp

from penstock._errors import ProgramError
from penstock._program import sequences
from penstock._program.frame import current_frame
from penstock.layers.activations import Activation, activate
from penstock.layers.parameters import XAVIER, Attr, apply_shift, parameter
from penstock.layers.words import check_features, check_sequence, shift_words


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
