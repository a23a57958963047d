"""One loop over the words of sequences, and the gates that recurrent layers share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from penstock._errors import ProgramError, check_choice
from penstock._program import sequences
from penstock._program.frame import Frame, align
from penstock._program.precision import widen

UNROLL = 1
"""How many words one turn of the compiled loop takes; 2, 4, 8 take 1.05, 1.17, 1.38 of the time."""

Gate = Literal["sigmoid", "tanh", "relu", "identity"]
"""The activations of recurrent layers, Fluid's four."""

GATES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "identity": lambda x: x,
}


class Hold(Protocol):
    """Return `new` of the examples that have a word at this step, `old` of the others."""

    def __call__(self, new: Any, old: Any) -> Any:
        """Choose between arrays `[B, ...]`, in the dtype of `old`."""
        ...


Step = Callable[[Any, Any, Hold], tuple[Any, Any]]


def scan_words(
    step: Step, state: Any, words: Any, lengths: jax.Array, *, is_reverse: bool = False
) -> tuple[Any, Any]:
    """Return the state after the last word, and what the steps give, `[B, T, ...]`.

    Backwards the loop begins at the end of the padding. The state is held there, and so each
    sequence begins at its own last word.

    Arguments:
      step: takes the state, one word of each example and a `Hold`; returns the state and outputs.
        It is called at padding too, and holds what must not change there.
      state: a pytree of `[B, ...]`.
      words: a pytree of `[B, T, ...]`.
      lengths: `[B]`.
    """

    def body(state: Any, at: tuple[jax.Array, Any]) -> tuple[Any, Any]:
        place, word = at
        is_word = place < lengths

        def hold(new: Any, old: Any) -> Any:
            old = jnp.asarray(old)
            return jnp.where(align(is_word, old.ndim, 0), jnp.asarray(new, old.dtype), old)

        return step(state, word, hold)

    # The loop takes slices of the first axis.
    by_time = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), words)
    places = lax.iota(lengths.dtype, jax.tree.leaves(by_time)[0].shape[0])
    state, outputs = lax.scan(
        body, state, (places, by_time), reverse=is_reverse, unroll=min(UNROLL, places.shape[0])
    )
    return state, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), outputs)


def find_gate(layer: str, argument: str, name: Gate) -> Callable[[jax.Array], jax.Array]:
    """Return the activation of a gate by name."""
    check_choice(f"layers.{layer}", argument, name, tuple(GATES))
    return GATES[name]


def multiply(frame: Frame, x: jax.Array, w: jax.Array) -> jax.Array:
    """Return `x @ w`, computed in the program's precision and summed in float32 or wider."""
    x, w = frame.promote(x, w)
    return jnp.matmul(x, w, preferred_element_type=jnp.promote_types(x.dtype, jnp.float32))


def check_projected(layer: str, input: Any, size: int, gates: int) -> sequences.Sequence:
    """Return the input, raising unless it is a sequence of `[gates * hidden]` features.

    Arguments:
      size: the number of features, `gates * hidden`.
    """
    got = None if not isinstance(input, sequences.Sequence) else input.values.shape
    is_size = isinstance(size, int) and size > 0 and size % gates == 0
    if got is None or not is_size or got[2:] != (size,):
        kind = f"a sequence of shape {got}" if got else f"{type(input).__name__}"
        raise ProgramError(
            f"layers.{layer} got {kind} and {gates} * hidden = {size!r}, expected a Sequence of "
            f"shape [B, T, {gates} * hidden]. Its words are projected to {gates} gates before "
            f"the recurrence. Apply layers.fc of that size first."
        )
    return input


def make_state(layer: str, argument: str, given: jax.Array | None, like: jax.Array) -> jax.Array:
    """Return an initial state: zeros, or what was given; float32 or wider as sums are.

    Arguments:
      like: `[B, hidden]`, of the shape it must have.
    """
    if given is None:
        return jnp.zeros_like(widen(like))
    state = jnp.asarray(given)
    if state.shape != like.shape:
        raise ProgramError(
            f"layers.{layer} got {argument} of shape {state.shape}, expected {like.shape}. It is "
            "the state before the first word of each example. Give one row for each example."
        )
    return jnp.asarray(state, widen(like).dtype)
