"""One step of a recurrent layer: `lstm_unit` and `gru_unit`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.nn import initializers

from penstock._errors import ProgramError
from penstock._program.frame import current_frame, widen
from penstock.layers.initializers import XAVIER
from penstock.layers.parameters import Attr, parameter
from penstock.layers.recurrent import Gate, find_gate, multiply, update_gru


def lstm_unit(
    x_t: jax.Array,
    hidden_t_prev: jax.Array,
    cell_t_prev: jax.Array,
    forget_bias: float = 0.0,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    name: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Apply one step of an LSTM without peepholes (Zaremba et al. 2014).

    Parameters: `w` `[features + hidden, 4 * hidden]`, Xavier uniform, for the input and the state
    joined; `b` `[4 * hidden]`, zeros. The gates are in the order input, forget, output, candidate,
    unlike in `dynamic_lstm`. Source: Fluid's `lstm_unit`.

    Arguments:
      x_t: the input, `[B, features]`.
      hidden_t_prev: the hidden state, `[B, hidden]`.
      cell_t_prev: the cell state, `[B, hidden]`.
      forget_bias: added to the forget gate before its sigmoid.

    Returns:
      The new hidden state and the new cell state, `[B, hidden]` each; the cell state is float32
      whatever the program's precision.

    >>> def program():
    ...     x, state = layers.data("x", [3]), layers.data("state", [2])
    ...     return layers.lstm_unit(x, state, state)
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> hidden, cell = builder.infer(builder.init(), {"x": [[0.0] * 3], "state": [[0.0] * 2]})
    >>> hidden.shape, cell.shape
    ((1, 2), (1, 2))
    """
    frame = current_frame("lstm_unit")
    x, hidden, cell = map(jnp.asarray, (x_t, hidden_t_prev, cell_t_prev))
    if (
        not x.ndim == hidden.ndim == 2
        or hidden.shape != cell.shape
        or x.shape[0] != hidden.shape[0]
    ):
        raise ProgramError(
            f"layers.lstm_unit got x_t of shape {x.shape}, hidden_t_prev {hidden.shape} and "
            f"cell_t_prev {cell.shape}, expected [B, features], [B, hidden] and [B, hidden]. One "
            "step takes one word of each example. Use layers.dynamic_lstm for sequences."
        )
    size = hidden.shape[1]
    path = frame.names.layer("lstm_unit", name)
    shape = [x.shape[1] + size, 4 * size]
    w = parameter(frame, path, "w", shape, XAVIER, param_attr, layer="lstm_unit")
    x, hidden = frame.cast(x), frame.cast(hidden)
    gates = multiply(frame, jnp.concatenate([x, hidden.astype(x.dtype)], axis=1), w)
    if bias_attr is not False:
        zeros = initializers.zeros
        b = parameter(frame, path, "b", [4 * size], zeros, bias_attr, layer="lstm_unit")
        gates = gates + b.reshape(1, 4 * size)
    take, forget, give, candidate = jnp.split(gates, 4, axis=1)
    kept = jax.nn.sigmoid(forget + forget_bias) * widen(cell)
    new_cell = kept + jax.nn.sigmoid(take) * jnp.tanh(candidate)
    return (jax.nn.sigmoid(give) * jnp.tanh(new_cell)).astype(x.dtype), new_cell


def gru_unit(
    input: jax.Array,
    hidden: jax.Array,
    size: int,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    activation: Gate = "tanh",
    gate_activation: Gate = "sigmoid",
    origin_mode: bool = False,
    name: str | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Apply one step of a GRU to a projected input.

    The parameters and the formula are those of `dynamic_gru`. Source: Fluid's `gru_unit`.

    Arguments:
      input: `[B, 3 * hidden]`: the input projected to the update gate, reset gate and candidate.
      hidden: the state, `[B, hidden]`.
      size: `3 * hidden`.
      activation: the activation of the candidate.
      origin_mode: as in `dynamic_gru`: the update gate weights the old state, not the candidate.

    Returns:
      The new state `[B, hidden]`, the state after the reset gate `[B, hidden]`, and the gates and
      the candidate `[B, 3 * hidden]`.

    >>> def program():
    ...     return layers.gru_unit(layers.data("x", [6]), layers.data("state", [2]), size=6)
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> out = builder.infer(builder.init(), {"x": [[0.0] * 6], "state": [[2.0, 4.0]]})
    >>> [each.shape for each in out]
    [(1, 2), (1, 2), (1, 6)]
    """
    frame = current_frame("gru_unit")
    x, state = jnp.asarray(input), jnp.asarray(hidden)
    is_size = isinstance(size, int) and size > 0 and size % 3 == 0
    if not is_size or x.ndim != 2 or x.shape[1] != size or state.shape != (x.shape[0], size // 3):
        raise ProgramError(
            f"layers.gru_unit got an input of shape {x.shape}, hidden {state.shape} and size="
            f"{size!r}, expected [B, 3 * hidden], [B, hidden] and 3 * hidden. The input is "
            "projected to 3 gates before. Apply layers.fc of that size first."
        )
    gate = find_gate("gru_unit", "gate_activation", gate_activation)
    candidate = find_gate("gru_unit", "activation", activation)
    path = frame.names.layer("gru_unit", name)
    w = parameter(frame, path, "w", [size // 3, size], XAVIER, param_attr, layer="gru_unit")
    projected = widen(x)
    if bias_attr is not False:
        zeros = initializers.zeros
        projected += parameter(frame, path, "b", [1, size], zeros, bias_attr, layer="gru_unit")
    results = update_gru(frame, projected, widen(state), w, gate, candidate, origin_mode)
    dtype = frame.cast(state).dtype
    return results[0].astype(dtype), results[1].astype(dtype), results[2].astype(dtype)
