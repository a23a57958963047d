"""What an LSTM and a GRU compute: their parameters, one step, and the loop over the words."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.nn import initializers
from jax.typing import DTypeLike

from penstock._errors import ProgramError
from penstock._parameter_names import Path
from penstock._program import sequences
from penstock._program.frame import Frame
from penstock._program.precision import widen
from penstock.layers._gate_products import Cell, States, scan_gates
from penstock.layers._recurrence import (
    Gate,
    Hold,
    find_gate,
    make_state,
    multiply,
    scan_words,
)
from penstock.layers.parameters import XAVIER, Attr, parameter, resolve

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
            if clip is not None and not clip > 0:
                raise ProgramError(
                    f"layers.{self.layer} got {argument}={clip!r}, expected None or a positive "
                    "number. States are limited to that magnitude. Leave it out for no limit."
                )

    def run(
        self,
        frame: Frame,
        path: Path,
        words: sequences.Sequence,
        states: tuple[jax.Array | None, jax.Array | None],
        param_attr: Attr,
        bias_attr: Attr,
        *,
        dtype: DTypeLike = "float32",
    ) -> tuple[sequences.Sequence, sequences.Sequence]:
        """Return the hidden states and the cell states after each word."""
        layer, size = self.layer, words.values.shape[2] // 4
        if (states[0] is None) != (states[1] is None):
            given = "h_0 alone" if states[1] is None else "c_0 alone"
            raise ProgramError(
                f"layers.{layer} got {given}, expected both of h_0 and c_0 or neither. They are "
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
            attr = add_to_name(layer, param_attr, "proj")
            w_proj = parameter(
                frame, path, "w_proj", [size, features], XAVIER, attr, layer=layer, dtype=dtype
            )
        like = words.values[:, 0, :size]
        cell = make_state(layer, "c_0", states[1], like)
        like = jnp.zeros((len(like), features), _find_dtype(frame, words.values, w))
        hidden = make_state(layer, "h_0", states[0], like).astype(like.dtype)
        # Padding may hold numbers that a gate without bounds makes infinite.
        projected = words.with_values(widen(words.values) + b[None, :, : 4 * size]).masked()
        parameters = {"peepholes": b[:, 4 * size :], "w_proj": w_proj}
        after: States = scan_gates(
            frame, self._make_cell(frame), self.is_reverse, w, parameters, (hidden, cell),
            jnp.swapaxes(projected, 0, 1), words.mask.T,
        )  # fmt: skip
        hiddens, cells = (words.with_values(jnp.swapaxes(each, 0, 1)) for each in after)
        return hiddens, cells

    def _make_cell(self, frame: Frame) -> Cell:
        names = ("gate_activation", "cell_activation", "candidate_activation")
        gate, activate_cell, activate_candidate = (
            find_gate(self.layer, name, each)
            for name, each in zip(names, self.activations, strict=True)
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class GRU:
    """The options of a GRU. `activations` are those of gates and candidate."""

    layer: str
    is_reverse: bool
    activations: tuple[Gate, Gate] = ("sigmoid", "tanh")
    is_origin_mode: bool = False

    def run(
        self,
        frame: Frame,
        path: Path,
        words: sequences.Sequence,
        state: jax.Array | None,
        param_attr: Attr,
        bias_attr: Attr,
    ) -> sequences.Sequence:
        """Return the states after each word."""
        layer, size = self.layer, words.values.shape[2] // 3
        gate = find_gate(layer, "gate_activation", self.activations[0])
        candidate = find_gate(layer, "candidate_activation", self.activations[1])
        w = parameter(frame, path, "w", [size, 3 * size], XAVIER, param_attr, layer=layer)
        b: jax.Array | float = 0.0
        if bias_attr is not False:
            zeros = initializers.zeros
            b = parameter(frame, path, "b", [1, 3 * size], zeros, bias_attr, layer=layer)
        dtype = _find_dtype(frame, words.values, w)

        def step(state: jax.Array, word: jax.Array, hold: Hold) -> tuple[jax.Array, jax.Array]:
            projected = widen(hold(word, jnp.zeros_like(word))) + b
            new, _, _ = update_gru(frame, projected, state, w, gate, candidate, self.is_origin_mode)
            state = hold(new, state)
            return state, state.astype(dtype)

        first = make_state(layer, "h_0", state, words.values[:, 0, :size])
        _, states = scan_words(step, first, words.values, words.lengths, is_reverse=self.is_reverse)
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
    """Return the new state, the state after the reset gate, and the gates `[B, 3 * hidden]`.

    Arguments:
      projected: `[B, 3 * hidden]`, bias included, in the order update, reset, candidate.
      hidden: the state, `[B, hidden]`.
      w: `[hidden, 3 * hidden]`.
    """
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


def add_to_name(layer: str, attr: Attr, part: str) -> Attr:
    """Return an attribute for one of several parameters that it stands for."""
    if attr is False:
        return attr
    resolved = resolve(layer, "param_attr", attr)
    return (
        resolved
        if resolved.name is None
        else dataclasses.replace(resolved, name=f"{resolved.name}_{part}")
    )
