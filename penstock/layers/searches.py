"""Searches for sentences: what all have in common, and those of one sentence for each example."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from penstock._errors import ProgramError, check_count
from penstock._program import sequences
from penstock._program.frame import current_frame
from penstock.layers import arguments

State = TypeVar("State")

Step: TypeAlias = Callable[[jax.Array, State], tuple[jax.Array, State]]
"""Takes words `[N]` and the state before them, returns logits `[N, V]` and the state after."""

Choose: TypeAlias = Callable[[jax.Array, jax.Array], jax.Array]
"""Takes logits `[B, V]` and the number of the step, returns words `[B]`."""

_Writing: TypeAlias = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]


def greedy_decode(
    step: Step[State],
    state: State,
    first_ids: jax.Array,
    *,
    end_id: int | None = None,
    max_length: int,
) -> sequences.Sequence:
    """Generate a sentence for each example, with the most likely word at each step.

    Ties go to the lower id. All steps run in one loop, which ends when all sentences have ended, or
    at `max_length`. It is `beam_decode` with one beam; the same rules apply to `step`.

    Arguments:
      step: takes words `[B]`, int32, and a state of `B` rows. It returns logits or log
        probabilities `[B, V]` and the new state. For the others see `beam_decode`.
      end_id: the word that ends a sentence; None if every one has `max_length` words.

    Returns:
      A sequence with words `[B, max_length]`, int32. Its lengths include `end_id`.

    >>> table = jnp.array([[0.0, 2.0, 1.0], [0.0, 1.0, 2.0], [2.0, 1.0, 0.0]])
    >>> def step(words, state):
    ...     return table[words], state
    >>> sentences = greedy_decode(step, (), jnp.array([1, 2]), end_id=0, max_length=5)
    >>> sentences.cut()
    [array([2, 0], dtype=int32), array([0], dtype=int32)]
    """

    def choose(logits: jax.Array, number: jax.Array) -> jax.Array:
        return lax.argmax(logits, 1, jnp.int32)

    return _write("greedy_decode", step, state, first_ids, end_id, max_length, choose)


def sample_decode(
    step: Step[State],
    state: State,
    first_ids: jax.Array,
    *,
    end_id: int | None = None,
    max_length: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | jax.Array = 0,
    name: str | None = None,
) -> sequences.Sequence:
    """Generate a sentence for each example, with words sampled from the probabilities of `step`.

    The draws depend on the seed, the layer's name, and the positions of the word and the example.
    In test and infer every batch has the same draws; to vary them, feed a seed for each example.

    `top_k` and `top_p` exclude words before one is drawn (Fan et al. 2018, Holtzman et al. 2020);
    `top_k` is applied first. All steps run in one loop, as in `greedy_decode`.

    Arguments:
      step: as in `greedy_decode`, and so `end_id`.
      temperature: the number that logits are divided by. Less than 1 favours likely words.
      top_k: draw only from the `top_k` most likely words. Ties go to the lower id.
      top_p: draw only from the smallest set of most likely words whose probabilities sum to at
        least `top_p`.
      seed: 0 draws from the program's seed. Any other number is used as the seed itself. Integers
        `[B]` or `[B, 1]`, one for each example, are mixed into the program's seed.

    Returns:
      A sequence with words `[B, max_length]`, int32. Its lengths include `end_id`.

    >>> def program():
    ...     first = layers.data("first", [1], "int32")
    ...
    ...     def step(words, state):
    ...         return jax.nn.one_hot(words + 1, 4), state
    ...
    ...     return layers.sample_decode(step, (), first, end_id=3, max_length=4, top_k=1)
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"first": [[0], [2]]})
    [array([1, 2, 3], dtype=int32), array([3], dtype=int32)]
    """
    _check_options(temperature, top_k, top_p)
    num_rows = jnp.shape(first_ids)[0] if jnp.ndim(first_ids) else 1
    keys = _make_keys(seed, num_rows, name)

    def choose(logits: jax.Array, number: jax.Array) -> jax.Array:
        turn = jax.vmap(jax.random.fold_in, (0, None))(keys, number)
        return draw_words(turn, logits, temperature, top_k, top_p)

    return _write("sample_decode", step, state, first_ids, end_id, max_length, choose)


def draw_words(
    keys: jax.Array,
    logits: jax.Array,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
) -> jax.Array:
    """Draw a word for each row of logits; see `sample_decode`.

    Arguments:
      keys: `[N]`.
      logits: `[N, V]`.

    Returns:
      `[N]`, int32.
    """
    logits = logits / temperature
    draw = jax.vmap(jax.random.categorical)
    if top_k is None and top_p is None:
        return draw(keys, logits).astype(jnp.int32)
    num_words = logits.shape[1]
    # Sorted, so that no more than `top_k` are left where several are equally likely.
    logits, words = lax.top_k(logits, min(top_k or num_words, num_words))
    if top_p is not None:
        shares = jax.nn.softmax(logits)
        # Of those before it: the likeliest word is always left.
        logits = jnp.where(jnp.cumsum(shares, axis=1) - shares < top_p, logits, -jnp.inf)
    places = draw(keys, logits)
    return jnp.take_along_axis(words, places[:, None], axis=1)[:, 0]


def _check_options(temperature: float, top_k: int | None, top_p: float | None) -> None:
    if not 0 < temperature < math.inf:
        raise ProgramError(
            f"layers.sample_decode got temperature={temperature!r}, expected a number above 0. "
            "Logits are divided by it. Use layers.greedy_decode for the likeliest words."
        )
    if top_k is not None:
        check_count("layers.sample_decode: top_k", top_k, 1)
    if top_p is not None and not 0 < top_p <= 1:
        raise ProgramError(
            f"layers.sample_decode got top_p={top_p!r}, expected a number above 0 and up to 1. It "
            "is the share of the probability to draw from. 0.9 is usual."
        )


def _make_keys(seed: int | jax.Array, num_rows: int, name: str | None) -> jax.Array:
    layer = "sample_decode"
    frame = current_frame(layer)
    # Asked for whatever the seed is, so that automatic names agree between programs.
    path = frame.names.layer(layer, name)
    if isinstance(seed, int | np.integer):
        return jax.random.split(frame.layer_key(path, int(seed)), num_rows)
    seeds = arguments.integers(layer, "seed", seed)
    if seeds.shape not in ((num_rows,), (num_rows, 1)):
        raise ProgramError(
            f"layers.{layer} got seed of shape {seeds.shape}, expected a number, or [{num_rows}] "
            f"or [{num_rows}, 1] as first_ids has rows. Each example is drawn by its own. Declare "
            'it with layers.data("seed", [1], "int32").'
        )
    keys = jax.random.split(frame.layer_key(path), num_rows)
    return jax.vmap(jax.random.fold_in)(keys, seeds.reshape(num_rows))


def _write(
    layer: str,
    step: Step[State],
    state: State,
    first_ids: jax.Array,
    end_id: int | None,
    max_length: int,
    choose: Choose,
) -> sequences.Sequence:
    first = check_search(layer, first_ids, end_id, max_length)
    # No step gives -1, and so it ends no sentence.
    end_id = -1 if end_id is None else end_id
    batch_size = first.shape[0]
    state = check_state(layer, state, batch_size)
    shape = (batch_size, max_length)
    # The number of the step, the words written, the last ones, the lengths, which have ended.
    begin = (
        jnp.zeros((), jnp.int32),
        jnp.full(shape, end_id, jnp.int32),
        first,
        jnp.zeros(batch_size, jnp.int32),
        jnp.zeros(batch_size, bool),
    )

    def advance(carry: tuple[_Writing, State]) -> tuple[_Writing, State]:
        (number, words, last, lengths, has_ended), before = carry
        logits, after = call_step(layer, step, last, before, end_id)
        last = jnp.where(has_ended, end_id, choose(logits, number))
        words = lax.dynamic_update_index_in_dim(words, last, number, 1)
        lengths = jnp.where(has_ended, lengths, number + 1)
        return (number + 1, words, last, lengths, has_ended | (last == end_id)), after

    (_, words, _, lengths, _), _ = lax.while_loop(
        lambda carry: (carry[0][0] < max_length) & ~jnp.all(carry[0][-1]),
        advance,
        (begin, state),
    )
    return sequences.Sequence(words, lengths)


def check_search(
    layer: str, first_ids: jax.Array, end_id: int | None, max_length: int
) -> jax.Array:
    """Return the first words, `[B]`, int32; raise unless there is one for each example."""
    if end_id is not None:
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
