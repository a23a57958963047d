"""What searches for sentences have in common: their arguments, one step, when they stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp

from penstock._errors import ProgramError, check_count
from penstock.layers import arguments

State = TypeVar("State")

Step: TypeAlias = Callable[[jax.Array, State], tuple[jax.Array, State]]
"""Takes words `[N]` and the state before them, returns logits `[N, V]` and the state after."""


def check_search(layer: str, first_ids: jax.Array, end_id: int, max_length: int) -> jax.Array:
    """Return the first words, `[B]`, int32; raise unless there is one for each example."""
    check_count(f"layers.{layer}: end_id", end_id, 0)
    check_count(f"layers.{layer}: max_length", max_length, 1)
    ids = arguments.integers(layer, "first_ids", first_ids)
    # Fluid's ids come as `[B, 1]`.
    if ids.ndim == 2 and ids.shape[1] == 1:
        ids = ids[:, 0]
    if ids.ndim != 1:
        raise ProgramError(
            f"layers.{layer} got first_ids of shape {ids.shape}, expected [B] or [B, 1]. Each "
            "example's sentence is written after one word. Give that which starts a sentence."
        )
    return ids.astype(jnp.int32)


def check_state(layer: str, state: State, batch_size: int) -> State:
    """Return a state as a loop carries it: arrays of fixed dtypes, the batch in front."""

    def check(leaf: Any) -> jax.Array:
        x = jnp.asarray(leaf)
        if x.ndim and x.shape[0] != batch_size:
            raise ProgramError(
                f"layers.{layer} got a state with an array of shape {x.shape}, expected "
                f"{batch_size} rows as first_ids has, or no axes. Each example has a state of its "
                "own. Move the batch axis to the front."
            )
        # A weak dtype may change in the loop, which would then be traced twice.
        return x.astype(x.dtype) if x.aval.weak_type else x

    return jax.tree.map(check, state)


def call_step(
    layer: str, step: Step[State], ids: jax.Array, state: State, end_id: int
) -> tuple[jax.Array, State]:
    """Return the logits `[N, V]` of a step, float32, and the new state in the old one's dtypes."""
    returned = step(ids, state)
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise ProgramError(
            f"layers.{layer} got {type(returned).__name__} from step, expected a tuple of logits "
            "and the new state. Both are needed for the next word. Return (logits, state)."
        )
    logits, after = jnp.asarray(returned[0]), returned[1]
    num_rows = ids.shape[0]
    if logits.ndim != 2 or logits.shape[0] != num_rows:
        raise ProgramError(
            f"layers.{layer} got logits of shape {logits.shape} from step, expected "
            f"[{num_rows}, V]. Each row has a number for each word. Reshape them."
        )
    if end_id >= logits.shape[1]:
        raise ProgramError(
            f"layers.{layer} got end_id={end_id} and logits of {logits.shape[1]} words, expected "
            "an id among them. No sentence would ever end. Give the id of the word that ends one."
        )
    return logits.astype(jnp.float32), _keep_dtypes(layer, state, after)


def _keep_dtypes(layer: str, before: State, after: State) -> State:
    old, new = jax.tree.structure(before), jax.tree.structure(after)
    if old != new:
        raise ProgramError(
            f"layers.{layer} got a state of structure {new} from step, expected {old}. The next "
            "step takes what this one returns. Return what step was given, with new values."
        )

    def keep(x: jax.Array, y: Any) -> jax.Array:
        y = jnp.asarray(y)
        is_float = [jnp.issubdtype(array.dtype, jnp.floating) for array in (x, y)]
        # Floats may come back in the program's precision.
        if x.shape != y.shape or (x.dtype != y.dtype and not all(is_float)):
            raise ProgramError(
                f"layers.{layer} got an array of shape {y.shape} and dtype {y.dtype} in the state "
                f"that step returns, expected shape {x.shape} and dtype {x.dtype} as before. A "
                "loop's state keeps its shapes. Begin with the shapes that step returns."
            )
        return y.astype(x.dtype)

    return jax.tree.map(keep, before, after)


def goes_on(number: jax.Array, max_length: int, is_done: jax.Array) -> jax.Array:
    return (number < max_length) & ~jnp.all(is_done)
