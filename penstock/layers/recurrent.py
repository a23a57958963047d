"""Recurrent layers over sequences: LSTM, LSTM with a projection, GRU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from penstock._program import sequences
from penstock._program.frame import current_frame
from penstock.layers.initializers import XAVIER
from penstock.layers.parameters import Attr, add_to_name, parameter
from penstock.layers.recurrence import LSTM, Gate, check_projected, run_gru
from penstock.layers.words import check_features, check_sequence


def dynamic_lstm(
    input: sequences.Sequence,
    size: int,
    h_0: jax.Array | None = None,
    c_0: jax.Array | None = None,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: Gate = "sigmoid",
    cell_activation: Gate = "tanh",
    candidate_activation: Gate = "tanh",
    dtype: DTypeLike = "float32",
    name: str | None = None,
) -> tuple[sequences.Sequence, sequences.Sequence]:
    """Apply an LSTM to sequences of projected words.

    With the gates `a = x + h w + b`, in the order candidate, input, forget, output, and the
    peepholes `p`, a step computes

        i = sigmoid(a_i + p_i c),  f = sigmoid(a_f + p_f c),  c' = f c + i tanh(a_c),
        o = sigmoid(a_o + p_o c'),  h' = o tanh(c')

    Parameters: `w` `[hidden, 4 * hidden]`, Xavier uniform; `b` `[1, 7 * hidden]`, zeros. `b` holds
    the biases of the gates in their order, then the peepholes of the input, forget and output gate;
    without peepholes it is `[1, 4 * hidden]`. Source: Fluid's `dynamic_lstm`; Gers et al. 2002.

    Arguments:
      input: a sequence with values `[B, T, 4 * hidden]`, usually from `layers.fc` of that size.
      size: `4 * hidden`.
      h_0: the initial hidden state `[B, hidden]`, by default zeros; only together with `c_0`.
      c_0: the initial cell state `[B, hidden]`.
      bias_attr: for the biases and the peepholes.
      is_reverse: whether each sequence is read from its last word to its first.
      cell_activation: applied to `c'` in `h'`; `candidate_activation`: applied to `a_c`.

    Returns:
      The hidden states and the cell states after each word, two sequences with values
      `[B, T, hidden]`. Cell states are float32 whatever the program's precision.

    >>> def program():
    ...     words = layers.data("words", [8], lod_level=1)
    ...     return layers.dynamic_lstm(words, size=8)[0].values
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"words": [[[0.0] * 8] * 3, [[0.0] * 8]]}).shape
    (2, 16, 2)
    """
    frame = current_frame("dynamic_lstm")
    words = check_projected("dynamic_lstm", input, size, 4)
    lstm = LSTM(
        layer="dynamic_lstm",
        use_peepholes=use_peepholes,
        is_reverse=is_reverse,
        activations=(gate_activation, cell_activation, candidate_activation),
    )
    path = frame.names.layer("dynamic_lstm", name)
    return lstm.run(frame, path, words, param_attr, bias_attr, (h_0, c_0), dtype=dtype)


def dynamic_lstmp(
    input: sequences.Sequence,
    size: int,
    proj_size: int,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: Gate = "sigmoid",
    cell_activation: Gate = "tanh",
    candidate_activation: Gate = "tanh",
    proj_activation: Gate = "tanh",
    dtype: DTypeLike = "float32",
    name: str | None = None,
    h_0: jax.Array | None = None,
    c_0: jax.Array | None = None,
    cell_clip: float | None = None,
    proj_clip: float | None = None,
) -> tuple[sequences.Sequence, sequences.Sequence]:
    """Apply an LSTM whose hidden state is projected to fewer features (Sak et al. 2014).

    It is `dynamic_lstm` with `r' = tanh(h' w_proj)` in place of the hidden state, both in the gates
    and in the output. Parameters: `w` `[proj_size, 4 * hidden]` and `w_proj` `[hidden, proj_size]`,
    Xavier uniform; `b` as in `dynamic_lstm`. A name in `param_attr` names `w`; `w_proj` then has
    that name followed by `_proj`. Source: Fluid's `dynamic_lstmp`.

    Arguments:
      input: a sequence with values `[B, T, 4 * hidden]`.
      size: `4 * hidden`.
      proj_size: the number of features after the projection.
      h_0: the initial projected state `[B, proj_size]`; only together with `c_0`, `[B, hidden]`.
      cell_clip: the limit for the magnitude of cell states; `proj_clip`: of projected states.

    Returns:
      Two sequences: the projected states `[B, T, proj_size]` and the cell states `[B, T, hidden]`.

    >>> def program():
    ...     words = layers.data("words", [8], lod_level=1)
    ...     return [each.values for each in layers.dynamic_lstmp(words, size=8, proj_size=1)]
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> out = builder.infer(builder.init(), {"words": [[[0.0] * 8] * 3]})
    >>> [each.shape for each in out]
    [(1, 16, 1), (1, 16, 2)]
    """
    frame = current_frame("dynamic_lstmp")
    words = check_projected("dynamic_lstmp", input, size, 4)
    path = frame.names.layer("dynamic_lstmp", name)
    lstm = LSTM(
        layer="dynamic_lstmp",
        use_peepholes=use_peepholes,
        is_reverse=is_reverse,
        activations=(gate_activation, cell_activation, candidate_activation),
        proj_size=proj_size,
        proj_activation=proj_activation,
        clips=(cell_clip, proj_clip),
    )
    return lstm.run(frame, path, words, param_attr, bias_attr, (h_0, c_0), dtype=dtype)


def dynamic_gru(
    input: sequences.Sequence,
    size: int,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    is_reverse: bool = False,
    gate_activation: Gate = "sigmoid",
    candidate_activation: Gate = "tanh",
    h_0: jax.Array | None = None,
    origin_mode: bool = False,
    name: str | None = None,
) -> sequences.Sequence:
    """Apply a GRU to sequences of projected words.

    With the input `x` and the columns of `w` in the order update, reset, candidate, a step computes

        u = sigmoid(x_u + h w_u + b_u),  r = sigmoid(x_r + h w_r + b_r),
        m = tanh(x_m + (r h) w_m + b_m),  h' = (1 - u) h + u m

    Parameters: `w` `[hidden, 3 * hidden]`, Xavier uniform; `b` `[1, 3 * hidden]`, zeros. Fluid's
    files store `w` as two matrices one after the other, `[hidden, 2 * hidden]` and
    `[hidden, hidden]`. Source: Fluid's `dynamic_gru`; Chung et al. 2014.

    Arguments:
      input: a sequence with values `[B, T, 3 * hidden]`, usually from `layers.fc` of that size.
      size: `hidden`.
      is_reverse: whether each sequence is read from its last word to its first.
      h_0: the initial state `[B, hidden]`, by default zeros.
      origin_mode: use `h' = u h + (1 - u) m`, as in Cho et al. 2014.

    Returns:
      The states after each word, a sequence with values `[B, T, hidden]`.

    >>> def program():
    ...     words = layers.data("words", [6], lod_level=1)
    ...     return layers.dynamic_gru(words, size=2).values
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"words": [[[0.0] * 6] * 3, [[0.0] * 6]]}).shape
    (2, 16, 2)
    """
    frame = current_frame("dynamic_gru")
    words = check_projected("dynamic_gru", input, 3 * size, 3)
    path = frame.names.layer("dynamic_gru", name)
    activations = (gate_activation, candidate_activation)
    return run_gru(
        frame, path, words, param_attr, bias_attr, h_0, layer="dynamic_gru",
        is_reverse=is_reverse, activations=activations, is_origin_mode=origin_mode,
    )  # fmt: skip


def bidirectional_lstm(
    input: sequences.Sequence,
    size: int,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    use_peepholes: bool = True,
    name: str | None = None,
) -> sequences.Sequence:
    """Project words and read them with two LSTMs, one in each direction (Graves et al. 2005).

    Parameters, both under `forward` and under `backward`: `w_x` `[features, 4 * size]`, Xavier
    uniform, for the words; `w` and `b` as in `dynamic_lstm`. The direction is appended to a name in
    `param_attr` or `bias_attr`.

    Arguments:
      input: a sequence with values `[B, T, features]`.
      size: the number of features of each direction.
      bias_attr: for the biases and the peepholes.

    Returns:
      The hidden states of both directions at each word, a sequence with values `[B, T, 2 * size]`;
      the forward features come first.

    >>> def program():
    ...     return layers.bidirectional_lstm(layers.data("words", [3], lod_level=1), size=2).values
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"words": [[[0.0] * 3] * 3, [[0.0] * 3]]}).shape
    (2, 16, 4)
    """
    layer = "bidirectional_lstm"

    def read(is_reverse: bool, *at: Any) -> sequences.Sequence:
        lstm = LSTM(layer=layer, use_peepholes=use_peepholes, is_reverse=is_reverse)
        return lstm.run(*at)[0]

    return _read_both(layer, 4, input, size, (param_attr, bias_attr), name, read)


def bidirectional_gru(
    input: sequences.Sequence,
    size: int,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    name: str | None = None,
) -> sequences.Sequence:
    """Project words and read them with two GRUs, one in each direction; see `bidirectional_lstm`.

    Parameters, both under `forward` and under `backward`: `w_x` `[features, 3 * size]`, Xavier
    uniform, for the words; `w` and `b` as in `dynamic_gru`.

    >>> def program():
    ...     return layers.bidirectional_gru(layers.data("words", [3], lod_level=1), size=2).values
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"words": [[[0.0] * 3] * 3, [[0.0] * 3]]}).shape
    (2, 16, 4)
    """
    layer = "bidirectional_gru"

    def read(is_reverse: bool, *at: Any) -> sequences.Sequence:
        return run_gru(*at, layer=layer, is_reverse=is_reverse)

    return _read_both(layer, 3, input, size, (param_attr, bias_attr), name, read)


def _read_both(
    layer: str,
    gates: int,
    input: sequences.Sequence,
    size: int,
    attrs: tuple[Attr, Attr],
    name: str | None,
    read: Callable[..., sequences.Sequence],
) -> sequences.Sequence:
    """Return what `read` makes of words projected to their gates, in each direction, joined."""
    frame = current_frame(layer)
    shape = [check_features(layer, check_sequence(layer, input)), gates * size]
    path, results = frame.names.layer(layer, name), []
    for direction in ("forward", "backward"):
        own = (*path, direction)
        for_words, for_state, for_bias = (
            add_to_name(layer, "param_attr", attr, f"{direction}_{leaf}")
            for leaf, attr in (("w_x", attrs[0]), ("w", attrs[0]), ("b", attrs[1]))
        )
        w = parameter(frame, own, "w_x", shape, XAVIER, for_words, layer=layer)
        x, w = frame.promote(input.values, w)
        words = input.with_values(x @ w)
        results.append(read(direction == "backward", frame, own, words, for_state, for_bias).values)
    return input.with_values(jnp.concatenate(results, axis=-1))
