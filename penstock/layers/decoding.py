"""Decoding: searches for sentences in one call, and a step of Fluid's beam search at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from penstock._errors import ProgramError, check_choice, check_int, check_number
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
    why = "Logits are divided by it. Use layers.greedy_decode for the likeliest words."
    check_number(
        "layers.sample_decode got temperature=", temperature, "(0, inf)", why, ProgramError
    )
    if top_k is not None:
        check_int("layers.sample_decode: top_k", top_k, 1)
    if top_p is not None:
        why = "It is the share of the probability to draw from. 0.9 is usual."
        check_number("layers.sample_decode got top_p=", top_p, "(0, 1]", why, ProgramError)


def _make_keys(seed: int | jax.Array, num_rows: int, name: str | None) -> jax.Array:
    layer = "sample_decode"
    frame = current_frame(layer)
    # Asked for whatever the seed is, so that automatic names agree between programs.
    path = frame.names.layer(layer, name)
    if isinstance(seed, int | np.integer):
        return jax.random.split(frame.layer_key(path, int(seed)), num_rows)
    seeds = arguments.integers(layer, "seed", seed)
    why = 'Or a number. Examples are drawn by their own: layers.data("seed", [1], "int32").'
    arguments.check_shape(f"layers.{layer} got seed", seeds, why, [num_rows], [num_rows, 1])
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
        check_int(f"layers.{layer}: end_id", end_id, 0)
    check_int(f"layers.{layer}: max_length", max_length, 1)
    ids = arguments.integers(layer, "first_ids", first_ids)
    # Fluid's ids come as `[B, 1]`.
    why = "A sentence is written after one word. Give that which starts a sentence."
    arguments.check_shape(f"layers.{layer} got first_ids", ids, why, ["B"], ["B", 1])
    return ids.reshape(-1).astype(jnp.int32)


def check_state(layer: str, state: State, batch_size: int) -> State:
    """Return a state as a loop carries it: arrays of fixed dtypes, the batch in front."""

    def check(leaf: Any) -> jax.Array:
        x = jnp.asarray(leaf)
        why = "Each example has a state of its own, as first_ids has rows."
        thing = f"layers.{layer} got a state with an array"
        arguments.check_shape(thing, x, why, [batch_size, ...], [])
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
    why = "Each row has a number for each word. Let step reshape them."
    arguments.check_shape(f"layers.{layer} got logits", logits, why, [num_rows, "V"])
    # -1 where no word ends a sentence.
    thing = f"layers.{layer} got logits of {logits.shape[1]} words and end_id="
    why = "No sentence would ever end. Give the id of the word that ends one."
    check_number(thing, max(end_id, 0), f"[0, {logits.shape[1]})", why, ProgramError)
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


T = TypeVar("T")


class Sentences(NamedTuple):
    """Hold the sentences that a beam search found, the best of each example first.

    There are K beams, and at most S words in a sentence.

    Attributes:
      ids: `[B, K, S]`, int32; after the end of a sentence, `end_id`.
      lengths: `[B, K]`, int32, including `end_id`; 0 where there are fewer sentences than beams.
      scores: `[B, K]`, float32; -inf where there is no sentence.

    >>> sentences = Sentences(jnp.array([[[4, 2, 0]]]), jnp.array([[3]]), jnp.array([[-1.5]]))
    >>> sentences.ids[0, 0, : sentences.lengths[0, 0]].tolist()
    [4, 2, 0]
    """

    ids: jax.Array
    lengths: jax.Array
    scores: jax.Array


def beam_search(
    pre_ids: jax.Array,
    pre_scores: jax.Array,
    ids: jax.Array | None,
    scores: jax.Array,
    beam_size: int,
    end_id: int,
    level: int = 0,
    name: str | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Extend the best sentences by one word, which is one step of a beam search.

    For each example, the `beam_size` candidates with the highest scores are kept, best first. Ties
    go to the lower beam, then to the earlier candidate. A beam whose last word is `end_id` has one
    candidate: itself, with its old score. If there are fewer candidates than beams, the other beams
    have a score of -inf.

    Source: Fluid's `beam_search`. There, beams are the levels of a LoD tensor. Here they are an
    axis, beams are kept when all have ended, and their parents are returned too. Use the parents to
    reorder what belongs to the beams, such as `[B, K]` with `jnp.take_along_axis`.

    Arguments:
      pre_ids: the last words of the beams, `[B, J]`. `J` may be 1 at the first step.
      pre_scores: the scores of the beams, `[B, J]`.
      ids: the candidates for the next word, `[B, J, C]`; None if candidate c is word c.
      scores: the scores of the extended sentences, `[B, J, C]`: `pre_scores` plus the log
        probability of the candidate.
      level: as in Fluid; only level 0 exists.

    Returns:
      The words `[B, beam_size]`, int32; their scores `[B, beam_size]`; and their parents, the beams
      that they extend, `[B, beam_size]`, int32.

    >>> words, scores, parents = beam_search(
    ...     jnp.array([[1, 0]]),
    ...     jnp.array([[-1.0, -1.5]]),
    ...     jnp.array([[[1, 2], [1, 2]]]),
    ...     jnp.array([[[-1.25, -3.0], [-1.6, -1.6]]]),
    ...     beam_size=2,
    ...     end_id=0,
    ... )
    >>> words.tolist(), scores.tolist(), parents.tolist()
    ([[1, 0]], [[-1.25, -1.5]], [[0, 1]])
    """
    check_int("layers.beam_search: beam_size", beam_size, 1)
    check_choice("layers.beam_search got level=", level, (0,), "Beams are an axis. Leave it out.")
    scores, pre_scores = jnp.asarray(scores), jnp.asarray(pre_scores)
    pre_ids = arguments.integers("beam_search", "pre_ids", pre_ids)
    if ids is None:
        ids = lax.broadcasted_iota(jnp.int32, scores.shape, scores.ndim - 1)
    ids = arguments.integers("beam_search", "ids", ids)
    _check_candidates(pre_ids, pre_scores, ids, scores, beam_size)
    no_penalties = jnp.ones_like(pre_scores)
    return select_beams(pre_ids == end_id, pre_scores, ids, scores, beam_size, end_id, no_penalties)


def _check_candidates(
    pre_ids: jax.Array, pre_scores: jax.Array, ids: jax.Array, scores: jax.Array, beam_size: int
) -> None:
    why, layer = "Each of the J beams has a score, and C candidates.", "layers.beam_search"
    arguments.check_shape(f"{layer} got scores", scores, why, ["B", "J", "C"])
    arguments.check_shape(f"{layer} got ids", ids, why, scores.shape)
    for name, array in (("pre_ids", pre_ids), ("pre_scores", pre_scores)):
        arguments.check_shape(f"{layer} got {name}", array, why, scores.shape[:2])
    why = "So many candidates all beams have together."
    most = math.prod(scores.shape[1:])
    check_number(f"{layer} got beam_size=", beam_size, f"[1, {most}]", why, ProgramError)


def select_beams(
    is_kept: jax.Array,
    pre_scores: jax.Array,
    ids: jax.Array,
    scores: jax.Array,
    beam_size: int,
    end_id: int,
    penalties: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return words, scores and parents `[B, beam_size]`, best first.

    Arguments:
      is_kept: beams that have but themselves to offer, `[B, J]`.
      penalties: `[B, J]`, what the scores of their candidates are divided by to be compared.
    """
    batch, _, width = scores.shape
    is_first = lax.broadcasted_iota(jnp.int32, scores.shape, 2) == 0
    itself = jnp.where(is_first, pre_scores[..., None], -jnp.inf)
    scores = jnp.where(is_kept[..., None], itself, scores)
    words = jnp.where(is_kept[..., None], end_id, ids).astype(jnp.int32)
    ranks = scores / penalties[..., None]
    _, chosen = lax.top_k(ranks.reshape(batch, -1), beam_size)

    def pick(x: jax.Array) -> jax.Array:
        return pick_beams(x.reshape(batch, -1), chosen)

    return pick(words), pick(scores), chosen // width


def pick_beams(x: jax.Array, beams: jax.Array) -> jax.Array:
    """Return of each example's beams `[B, J, ...]` those of numbers `[B, K]`."""
    return jax.vmap(lambda row, numbers: jnp.take(row, numbers, axis=0))(x, beams)


def beam_search_decode(
    ids: jax.Array,
    scores: jax.Array,
    parents: jax.Array,
    beam_size: int,
    end_id: int,
    name: str | None = None,
) -> Sentences:
    """Trace the sentences of a beam search back from its last step.

    A sentence includes its first `end_id` and ends there. Source: Fluid's `beam_search_decode`,
    which reads the parents from the levels of LoD tensors and returns a score for each word. Here
    a sentence has one score, that of its last word.

    Arguments:
      ids: the words that each step chose, `[S, B, K]`, as `lax.scan` stacks them.
      scores, parents: the scores and parents of each step, `[S, B, K]`.
      beam_size: `K`.

    Returns:
      The sentences, best first. Ties go to the lower beam.

    >>> ids = jnp.array([[[3, 5]], [[4, 0]]])
    >>> scores = jnp.array([[[-1.0, -2.0]], [[-2.5, -2.25]]])
    >>> sentences = beam_search_decode(ids, scores, jnp.array([[[0, 1]], [[0, 0]]]), 2, end_id=0)
    >>> sentences.ids.tolist(), sentences.lengths.tolist(), sentences.scores.tolist()
    ([[[3, 0], [3, 4]]], [[2, 2]], [[-2.25, -2.5]])
    """
    scores = jnp.asarray(scores)
    ids = arguments.integers("beam_search_decode", "ids", ids).astype(jnp.int32)
    parents = arguments.integers("beam_search_decode", "parents", parents).astype(jnp.int32)
    shapes = [x.shape for x in (ids, scores, parents)]
    is_stack = ids.ndim == 3 and ids.shape[0] > 0 and ids.shape[2] == beam_size
    if not is_stack or len(set(shapes)) > 1:
        raise ProgramError(
            f"layers.beam_search_decode got ids, scores and parents of shapes {shapes} and "
            f"beam_size={beam_size}, expected three of shape [S, B, {beam_size}], of one step or "
            "more. Each step chooses a word for each beam. Stack what the steps return."
        )
    best, order = lax.top_k(scores[-1], beam_size)
    words = trace_back(ids, parents, order)
    is_end = words == end_id
    ends = jnp.where(jnp.any(is_end, axis=2), jnp.argmax(is_end, axis=2) + 1, ids.shape[0])
    return finish_sentences(words, ends, best, end_id)


def trace_back(ids: jax.Array, parents: jax.Array, beams: jax.Array) -> jax.Array:
    """Return the words that led to the last beams of numbers `[B, K]`, `[B, K, S]`."""

    def go_back(beams: jax.Array, turn: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        words, before = turn
        return pick_beams(before, beams), pick_beams(words, beams)

    _, words = lax.scan(go_back, beams, (ids, parents), reverse=True)
    return jnp.moveaxis(words, 0, 2)


def finish_sentences(
    words: jax.Array, lengths: jax.Array, scores: jax.Array, end_id: int
) -> Sentences:
    """Return sentences with nothing behind their ends; none where the score is -inf."""
    lengths = jnp.where(scores == -jnp.inf, 0, lengths).astype(jnp.int32)
    places = lax.broadcasted_iota(jnp.int32, words.shape, 2)
    return Sentences(jnp.where(places < lengths[..., None], words, end_id), lengths, scores)


def tile_beams(tree: T, beam_size: int) -> T:
    """Repeat each example's row for its beams, in all arrays of a pytree.

    Use it for arrays that the `step` of `beam_decode` reads besides its state, such as the output
    of an encoder.

    Arguments:
      tree: a pytree of arrays `[B, ...]`, or a `Sequence`. Scalars stay as they are.

    Returns:
      The tree with arrays `[B * beam_size, ...]`. The rows of an example are next to each other.

    >>> tile_beams(jnp.array([1, 2]), 3).tolist()
    [1, 1, 1, 2, 2, 2]
    """
    check_int("layers.tile_beams: beam_size", beam_size, 1)

    def repeat(leaf: jax.Array) -> jax.Array:
        x = jnp.asarray(leaf)
        if not x.ndim:
            return x
        rows = jnp.broadcast_to(x[:, None], (x.shape[0], beam_size, *x.shape[1:]))
        return rows.reshape(x.shape[0] * beam_size, *x.shape[1:])

    return jax.tree.map(repeat, tree)


_LAYER = "beam_decode"


class _Search(NamedTuple):
    """What a search carries from step to step; beams stand best first.

    `words` and `parents`, `[S, B, K]`, hold `end_id` and each beam itself for later steps, so that
    a search that stops early is read back as any other. Beams of examples that are done stay.
    """

    number: jax.Array
    words: jax.Array
    parents: jax.Array
    last: jax.Array
    scores: jax.Array
    lengths: jax.Array
    has_ended: jax.Array
    is_done: jax.Array


class _Rules(NamedTuple):
    """The arguments of a search; see `beam_decode`."""

    beam_size: int
    end_id: int
    max_length: int
    length_penalty: float
    stop_at_best: bool

    def check(self) -> None:
        check_int(f"layers.{_LAYER}: beam_size", self.beam_size, 1)
        why = "Scores are divided by a power of the length. 0.6 is usual."
        check_number(
            f"layers.{_LAYER} got length_penalty=",
            self.length_penalty,
            "[0, inf)",
            why,
            ProgramError,
        )

    def penalty(self, lengths: jax.Array | int) -> jax.Array:
        """Return what the log probabilities of sentences of these lengths are divided by."""
        return ((5.0 + jnp.asarray(lengths, jnp.float32)) / 6.0) ** self.length_penalty

    def find_done(self, search: _Search) -> jax.Array:
        """Return which examples more steps would change nothing for, `[B]`."""
        is_over = search.has_ended | (search.scores == -jnp.inf)
        is_done = jnp.all(is_over, axis=1)
        if not self.stop_at_best:
            return is_done
        # Scores only fall, and no length divides by more than the greatest one.
        hopes = jnp.where(is_over, -jnp.inf, search.scores / self.penalty(self.max_length))
        best = search.scores[:, :1] / self.penalty(search.lengths[:, :1])
        return is_done | (search.has_ended[:, 0] & jnp.all(hopes <= best, axis=1))


def beam_decode(
    step: Step[State],
    state: State,
    first_ids: jax.Array,
    *,
    beam_size: int,
    end_id: int,
    max_length: int,
    length_penalty: float = 0.0,
    stop_at_best: bool = False,
) -> Sentences:
    """Find the most likely sentences with a beam search, all steps in one loop.

    Each step is a `beam_search`: the words of all beams compete, and a beam that has ended stays as
    long as its score is among the best. The loop ends when all beams of all examples have ended,
    or at `max_length`. There are no gradients.

    `step` is traced once and runs in a `lax.while_loop`. To share the parameters of a training
    program, give its layers explicit names or put them in a `layers.scope`.

    The score of a sentence is its log probability divided by `((5 + length) / 6)**length_penalty`
    (Wu et al. 2016). The length includes `end_id`.

    Arguments:
      step: takes words `[N]`, int32, and a state of `N` rows, where `N = B * beam_size`. It returns
        logits or log probabilities `[N, V]` and the new state. The beams of an example are next to
        each other, as in `tile_beams`. Floats in the state keep their initial dtypes.
      state: the initial state, a pytree of arrays `[B, ...]`. Scalars are shared by all beams.
      first_ids: the start words, `[B]` or `[B, 1]`. They are not part of the sentences.
      beam_size: the number of sentences of each example.
      end_id: the word that ends a sentence.
      max_length: the maximum length of a sentence, including `end_id`.
      length_penalty: 0 for none. Larger values prefer longer sentences.
      stop_at_best: stop an example when its best sentence has ended and no other can overtake it.
        Its other sentences may then be unfinished.

    Returns:
      The sentences with their scores, best first, with `S = max_length`.

    >>> table = jnp.log(jnp.array([[0.1, 0.5, 0.4], [0.4, 0.3, 0.3], [0.9, 0.05, 0.05]]))
    >>> def step(words, state):
    ...     return table[words], state
    >>> found = beam_decode(step, (), jnp.array([0]), beam_size=2, end_id=0, max_length=3)
    >>> found.ids.tolist(), found.lengths.tolist()
    ([[[2, 0, 0], [1, 0, 0]]], [[2, 2]])
    >>> [f"{p:.2f}" for p in jnp.exp(found.scores)[0]]
    ['0.36', '0.20']
    """
    rules = _Rules(beam_size, end_id, max_length, length_penalty, stop_at_best)
    rules.check()
    first = check_search(_LAYER, first_ids, end_id, max_length)
    state = tile_beams(check_state(_LAYER, state, first.shape[0]), beam_size)
    search = _run(step, state, _begin(first, rules), rules)
    itself = lax.broadcasted_iota(jnp.int32, search.last.shape, 1)
    sentences = trace_back(search.words, search.parents, itself)
    scores = search.scores / rules.penalty(search.lengths)
    return finish_sentences(sentences, search.lengths, scores, end_id)


def _run(step: Step[State], state: State, begin: _Search, rules: _Rules) -> _Search:
    def advance(carry: tuple[_Search, State]) -> tuple[_Search, State]:
        search, before = carry
        words = search.last.reshape(-1)
        logits, after = call_step(_LAYER, step, words, before, rules.end_id)
        search, parents = _choose_words(search, logits, rules)
        return search, _reorder(after, parents)

    return lax.while_loop(
        lambda carry: (carry[0].number < rules.max_length) & ~jnp.all(carry[0].is_done),
        advance,
        (begin, state),
    )[0]


def _begin(first: jax.Array, rules: _Rules) -> _Search:
    """Return the search before the first step: of an example's beams one has a chance."""
    size = (first.shape[0], rules.beam_size)
    number = lax.broadcasted_iota(jnp.int32, size, 1)
    stack = (rules.max_length, *size)
    return _Search(
        number=jnp.zeros((), jnp.int32),
        words=jnp.full(stack, rules.end_id, jnp.int32),
        parents=lax.broadcasted_iota(jnp.int32, stack, 2),
        last=jnp.broadcast_to(first[:, None], size),
        scores=jnp.where(number == 0, 0.0, -jnp.inf).astype(jnp.float32),
        lengths=jnp.zeros(size, jnp.int32),
        has_ended=jnp.zeros(size, bool),
        is_done=jnp.zeros(size[:1], bool),
    )


def _choose_words(search: _Search, logits: jax.Array, rules: _Rules) -> tuple[_Search, jax.Array]:
    size, number = search.last.shape, search.number
    is_kept = search.has_ended | search.is_done[:, None]
    # More than K words of one beam cannot be chosen. Sorting all words of all beams is slower.
    num_words = min(rules.beam_size, logits.shape[1])
    gains, ids = lax.top_k(jax.nn.log_softmax(logits), num_words)
    scores = search.scores[..., None] + gains.reshape(*size, num_words)
    lengths = jnp.where(is_kept, search.lengths, number + 1)
    words, scores, parents = select_beams(
        is_kept,
        search.scores,
        ids.reshape(*size, num_words),
        scores,
        rules.beam_size,
        rules.end_id,
        rules.penalty(lengths),
    )
    was_kept = pick_beams(is_kept, parents)
    had_ended = pick_beams(search.has_ended, parents)
    longer = search._replace(
        number=number + 1,
        words=lax.dynamic_update_index_in_dim(search.words, words, number, 0),
        parents=lax.dynamic_update_index_in_dim(search.parents, parents, number, 0),
        last=words,
        scores=scores,
        lengths=pick_beams(lengths, parents),
        # The word of a beam that is kept without having ended says nothing.
        has_ended=had_ended | (~was_kept & (words == rules.end_id)),
    )
    return longer._replace(is_done=search.is_done | rules.find_done(longer)), parents


def _reorder(state: State, parents: jax.Array) -> State:
    """Return a state `[B * K, ...]` whose rows go with the beams that were chosen."""

    def reorder(x: jax.Array) -> jax.Array:
        if not x.ndim:
            return x
        beams = x.reshape(*parents.shape, *x.shape[1:])
        return pick_beams(beams, parents).reshape(x.shape)

    return jax.tree.map(reorder, state)
