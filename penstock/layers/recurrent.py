"""LSTM, LSTM with a projection and GRU over sequences; their gates, and one loop over the words."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.nn import initializers
from jax.typing import DTypeLike

from penstock._errors import ProgramError, check_choice, check_number
from penstock._parameter_names import Path
from penstock._program import sequences
from penstock._program.frame import Frame, align, current_frame, widen
from penstock.layers.arguments import check_shape
from penstock.layers.initializers import XAVIER
from penstock.layers.parameters import Attr, add_to_name, parameter
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


Gate = Literal["sigmoid", "tanh", "relu", "identity"]
"""The activations of recurrent layers, Fluid's four."""

GATES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "identity": lambda x: x,
}


Hold = Callable[[Any, Any], Any]
"""Takes trees `new` and `old`, returns `new` of the examples that have a word at this step."""

Step = Callable[[Any, Any, Hold], tuple[Any, Any]]


def scan_words(
    step: Step, state: Any, words: Any, lengths: jax.Array, *, is_reverse: bool = False
) -> tuple[Any, Any]:
    """Return the state after the last word, and what the steps give; padding holds the state."""

    def body(state: Any, at: tuple[jax.Array, Any]) -> tuple[Any, Any]:
        place, word = at
        return step(state, word, functools.partial(_hold, place < lengths))

    # The loop takes slices of the first axis.
    by_time = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), words)
    places = lax.iota(lengths.dtype, jax.tree.leaves(by_time)[0].shape[0])
    # One word a turn: 2, 4, 8 take 1.05, 1.17, 1.38 of the time.
    state, outputs = lax.scan(body, state, (places, by_time), reverse=is_reverse)
    return state, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), outputs)


def _hold(is_word: jax.Array, new: Any, old: Any) -> Any:
    def choose(new: Any, old: Any) -> jax.Array:
        old = jnp.asarray(old)
        return jnp.where(align(is_word, old.ndim, 0), jnp.asarray(new, old.dtype), old)

    return jax.tree.map(choose, new, old)


def find_gate(layer: str, argument: str, name: Gate) -> Callable[[jax.Array], jax.Array]:
    """Return the activation of a gate by name."""
    check_choice(f"layers.{layer} got {argument}=", name, tuple(GATES))
    return GATES[name]


def multiply(frame: Frame, x: jax.Array, w: jax.Array) -> jax.Array:
    """Return `x @ w`, computed in the program's precision and summed in float32 or wider."""
    x, w = frame.promote(x, w)
    return jnp.matmul(x, w, preferred_element_type=jnp.promote_types(x.dtype, jnp.float32))


def check_projected(layer: str, input: Any, size: int, gates: int) -> sequences.Sequence:
    """Return the input, raising unless it is a sequence of `size`, `gates * hidden`, features."""
    got = check_sequence(layer, input).values.shape
    is_size = isinstance(size, int | np.integer) and size > 0 and size % gates == 0
    if not is_size or got[2:] != (size,):
        raise ProgramError(
            f"layers.{layer} got a sequence of shape {got} and {gates} * hidden = {size!r}, "
            f"expected [B, T, {gates} * hidden]. Its words are projected to {gates} gates before "
            "the recurrence. Apply layers.fc of that size first."
        )
    return input


def make_state(layer: str, argument: str, value: jax.Array | None, like: jax.Array) -> jax.Array:
    """Return an initial state `[B, hidden]`, by default zeros; float32 or wider as sums are."""
    if value is None:
        return jnp.zeros_like(widen(like))
    state = jnp.asarray(value)
    why = "It is the state before the first word. Give one row for each example."
    check_shape(f"layers.{layer} got {argument}", state, why, like.shape)
    return jnp.asarray(state, widen(like).dtype)


States = tuple[jax.Array, ...]
Cell = Callable[[jax.Array, States, Any], States]
"""Takes the gates `[B, G]`, the state and parameters; returns the state after."""


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def scan_gates(
    frame: Frame,
    cell: Cell,
    is_reverse: bool,
    w: jax.Array,
    parameters: Any,
    state: States,
    words: jax.Array,
    is_word: jax.Array,
) -> States:
    """Return the state after each word, `[T, B, ...]`, held at padding.

    The derivative of a plain `lax.scan` adds to the gradient of `w` at every word, here a sum over
    all of them: training an LSTM of 256 at batch 64 and 100 words takes 0.80 to 0.83 of the
    processor time (two cores, JAX 0.10.2). What it needs of a cell is computed again from its
    gates, which are kept. `cell` closes over no array, `state[0]` is `h`, and `words` `[T, B, G]`
    are finite at padding.
    """
    return _scan(frame, cell, is_reverse, (w, parameters, state, words, is_word))[0]


def _scan(
    frame: Frame, cell: Cell, is_reverse: bool, operands: Any, *, keeps_gates: bool = False
) -> tuple[States, Any]:
    w, parameters, state, words, is_word = operands

    def body(state: States, at: tuple[jax.Array, jax.Array]) -> tuple[States, Any]:
        word, here = at
        gates = word + multiply(frame, state[0], w)
        state = _hold(here, cell(gates, state, parameters), state)
        return state, (state, gates if keeps_gates else None)

    return lax.scan(body, state, (words, is_word), reverse=is_reverse)[1]


@scan_gates.defjvp
def _differentiate(
    frame: Frame, cell: Cell, is_reverse: bool, primals: Any, tangents: Any
) -> tuple[States, States]:
    w, parameters, state, _, is_word = primals
    d_w, d_parameters, d_state, d_words, _ = tangents
    states, gates = _scan(frame, cell, is_reverse, primals, keeps_gates=True)
    before = tuple(map(functools.partial(_shift, is_reverse), state, states))
    d_gates = d_words + multiply(frame, before[0], d_w)

    # Computed again in the loop back: else each factor of the derivative is an array of all words.
    @jax.checkpoint
    def push(gates: jax.Array, state: States, d_gates: jax.Array, d_state: States, d: Any) -> Any:
        _, d_after = jax.jvp(cell, (gates, state, parameters), (d_gates, d_state, d))
        return d_after

    def body(d_state: States, at: Any) -> tuple[States, States]:
        d_word, gates, state, here = at
        d_word = d_word + multiply(frame, d_state[0], w)
        d_state = _hold(here, push(gates, state, d_word, d_state, d_parameters), d_state)
        return d_state, d_state

    at = (d_gates, gates, before, is_word)
    return states, lax.scan(body, d_state, at, reverse=is_reverse)[1]


def _shift(is_reverse: bool, first: jax.Array, after: jax.Array) -> jax.Array:
    parts = [after[1:], first[None]] if is_reverse else [first[None], after[:-1]]
    return jnp.concatenate(parts)


Activate = Callable[[jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LSTM:
    """The options of an LSTM. `activations` are those of gates, cell and candidate."""

    layer: str
    use_peepholes: bool
    is_reverse: bool
    activations: tuple[Gate, Gate, Gate] = ("sigmoid", "tanh", "tanh")
    proj_size: int | None = None
    proj_activation: Gate = "identity"
    clips: tuple[float | None, float | None] = (None, None)

    def __post_init__(self) -> None:
        for argument, clip in zip(("cell_clip", "proj_clip"), self.clips, strict=True):
            if clip is not None:
                why = "States are limited to that magnitude. Leave it out for no limit."
                check_number(
                    f"layers.{self.layer} got {argument}=", clip, "(0, inf]", why, ProgramError
                )

    def run(
        self,
        frame: Frame,
        path: Path,
        words: sequences.Sequence,
        param_attr: Attr,
        bias_attr: Attr,
        states: tuple[jax.Array | None, jax.Array | None] = (None, None),
        *,
        dtype: DTypeLike = "float32",
    ) -> tuple[sequences.Sequence, sequences.Sequence]:
        """Return the hidden states and the cell states after each word."""
        layer, size = self.layer, words.values.shape[2] // 4
        if (states[0] is None) != (states[1] is None):
            single = "h_0 alone" if states[1] is None else "c_0 alone"
            raise ProgramError(
                f"layers.{layer} got {single}, expected both of h_0 and c_0 or neither. They are "
                "one state. Give zeros for the other."
            )
        if bias_attr is False:
            raise ProgramError(
                f"layers.{layer} got bias_attr=False, expected a ParamAttr or None. Fluid's LSTM "
                "has biases always. Give a ParamAttr with trainable=False for biases of zero."
            )
        features = size if self.proj_size is None else self.proj_size
        num_biases = (7 if self.use_peepholes else 4) * size
        zeros = initializers.zeros
        w = parameter(
            frame, path, "w", [features, 4 * size], XAVIER, param_attr, layer=layer, dtype=dtype
        )
        b = parameter(frame, path, "b", [1, num_biases], zeros, bias_attr, layer=layer, dtype=dtype)
        w_proj = None
        if self.proj_size is not None:
            attr = add_to_name(layer, "param_attr", param_attr, "proj")
            w_proj = parameter(
                frame, path, "w_proj", [size, features], XAVIER, attr, layer=layer, dtype=dtype
            )
        like = words.values[:, 0, :size]
        cell = make_state(layer, "c_0", states[1], like)
        like = jnp.zeros((like.shape[0], features), _find_dtype(frame, words.values, w))
        hidden = make_state(layer, "h_0", states[0], like).astype(like.dtype)
        # Padding may hold numbers that a gate without bounds makes infinite.
        projected = words.with_values(widen(words.values) + b[None, :, : 4 * size]).masked()
        parameters = {"peepholes": b[:, 4 * size :], "w_proj": w_proj}
        after: States = scan_gates(
            frame, self._make_cell(frame), self.is_reverse, w, parameters, (hidden, cell),
            jnp.swapaxes(projected, 0, 1), words.mask.T,
        )  # fmt: skip
        hiddens, cells = (words.with_values(jnp.swapaxes(x, 0, 1)) for x in after)
        return hiddens, cells

    def _make_cell(self, frame: Frame) -> Cell:
        names = ("gate_activation", "cell_activation", "candidate_activation")
        gate, activate_cell, activate_candidate = (
            find_gate(self.layer, name, activation)
            for name, activation in zip(names, self.activations, strict=True)
        )
        project = find_gate(self.layer, "proj_activation", self.proj_activation)
        cell_clip, proj_clip = self.clips

        def cell(gates: jax.Array, state: States, parameters: Any) -> States:
            cell = state[1]
            size = cell.shape[1]
            candidate, take, forget, give = jnp.split(gates, 4, axis=1)
            peepholes = parameters["peepholes"]
            if self.use_peepholes:
                take = take + peepholes[:, :size] * cell
                forget = forget + peepholes[:, size : 2 * size] * cell
            new_cell = gate(forget) * cell + gate(take) * activate_candidate(candidate)
            new_cell = _clip(new_cell, cell_clip)
            if self.use_peepholes:
                give = give + peepholes[:, 2 * size :] * new_cell
            new = gate(give) * activate_cell(new_cell)
            if self.proj_size is not None:
                new = _clip(project(multiply(frame, new, parameters["w_proj"])), proj_clip)
            return new, new_cell

        return cell


def run_gru(
    frame: Frame,
    path: Path,
    words: sequences.Sequence,
    param_attr: Attr,
    bias_attr: Attr,
    state: jax.Array | None = None,
    *,
    layer: str,
    is_reverse: bool,
    activations: tuple[Gate, Gate] = ("sigmoid", "tanh"),
    is_origin_mode: bool = False,
) -> sequences.Sequence:
    """Return the states after each word; `activations` are those of gates and candidate."""
    size = words.values.shape[2] // 3
    gate = find_gate(layer, "gate_activation", activations[0])
    candidate = find_gate(layer, "candidate_activation", activations[1])
    w = parameter(frame, path, "w", [size, 3 * size], XAVIER, param_attr, layer=layer)
    b: jax.Array | float = 0.0
    if bias_attr is not False:
        b = parameter(frame, path, "b", [1, 3 * size], initializers.zeros, bias_attr, layer=layer)
    dtype = _find_dtype(frame, words.values, w)

    def step(state: jax.Array, word: jax.Array, hold: Hold) -> tuple[jax.Array, jax.Array]:
        projected = widen(hold(word, jnp.zeros_like(word))) + b
        new, _, _ = update_gru(frame, projected, state, w, gate, candidate, is_origin_mode)
        state = hold(new, state)
        return state, state.astype(dtype)

    first = make_state(layer, "h_0", state, words.values[:, 0, :size])
    _, states = scan_words(step, first, words.values, words.lengths, is_reverse=is_reverse)
    return words.with_values(states)


def update_gru(
    frame: Frame,
    projected: jax.Array,
    hidden: jax.Array,
    w: jax.Array,
    gate: Activate,
    candidate: Activate,
    is_origin_mode: bool,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the new state, that after the reset gate, and the gates `[B, 3 * hidden]`."""
    size = hidden.shape[1]
    gates = gate(projected[:, : 2 * size] + multiply(frame, hidden, w[:, : 2 * size]))
    update, reset = gates[:, :size], gates[:, size:]
    kept = reset * hidden
    new = candidate(projected[:, 2 * size :] + multiply(frame, kept, w[:, 2 * size :]))
    # Cho et al. 2014 keep by the update gate (`origin_mode`), Chung et al. 2014 renew by it.
    weight = 1 - update if is_origin_mode else update
    return hidden + weight * (new - hidden), kept, jnp.concatenate([gates, new], axis=1)


def _clip(x: jax.Array, largest: float | None) -> jax.Array:
    return x if largest is None else jnp.clip(x, -largest, largest)


def _find_dtype(frame: Frame, x: jax.Array, w: jax.Array) -> Any:
    """Return the dtype of the program's products, which hidden states are returned in."""
    return frame.cast(jnp.zeros((), jnp.result_type(x, w))).dtype
