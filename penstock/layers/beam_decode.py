"""Beam search in one call: all steps in one loop."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from penstock._errors import ProgramError, check_count
from penstock.layers import _searches, beam
from penstock.layers._searches import State, Step
from penstock.layers.beam import Sentences

_LAYER = "beam_decode"


class _Search(NamedTuple):
    """What a search carries from step to step; beams stand best first.

    Attributes:
      number: of the step.
      words, parents: of the steps up to now, `[S, B, K]`; later ones hold `end_id` and each beam
        itself, so that a search that stops early is read back as any other.
      last: the last words, `[B, K]`.
      scores: log probabilities, `[B, K]`.
      lengths: `[B, K]`.
      has_ended: `[B, K]`.
      is_done: examples whose beams stay as they are, `[B]`.
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
        """Raise unless the numbers are in range."""
        check_count(f"layers.{_LAYER}: beam_size", self.beam_size, 1)
        if not 0 <= self.length_penalty < math.inf:
            raise ProgramError(
                f"layers.{_LAYER} got length_penalty={self.length_penalty!r}, expected a number of "
                "0 or more. Scores are divided by a power of the length. 0.6 is usual."
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
    or at `max_length`. The same in train, test and infer; there are no gradients.

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
    first = _searches.check_search(_LAYER, first_ids, end_id, max_length)
    state = beam.tile_beams(_searches.check_state(_LAYER, state, first.shape[0]), beam_size)
    search = _run(step, state, _begin(first, rules), rules)
    itself = lax.broadcasted_iota(jnp.int32, search.last.shape, 1)
    sentences = beam.trace_back(search.words, search.parents, itself)
    scores = search.scores / rules.penalty(search.lengths)
    return beam.finish_sentences(sentences, search.lengths, scores, end_id)


def _run(step: Step[State], state: State, begin: _Search, rules: _Rules) -> _Search:
    def advance(carry: tuple[_Search, State]) -> tuple[_Search, State]:
        search, before = carry
        words = search.last.reshape(-1)
        logits, after = _searches.call_step(_LAYER, step, words, before, rules.end_id)
        search, parents = _choose_words(search, logits, rules)
        return search, _reorder(after, parents)

    return lax.while_loop(
        lambda carry: _searches.goes_on(carry[0].number, rules.max_length, carry[0].is_done),
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
    """Return the search one word further, and the beams that its beams continue, `[B, K]`."""
    size, number = search.last.shape, search.number
    is_kept = search.has_ended | search.is_done[:, None]
    # More than K words of one beam cannot be chosen. Sorting all words of all beams is slower.
    num_words = min(rules.beam_size, logits.shape[1])
    gains, ids = lax.top_k(jax.nn.log_softmax(logits), num_words)
    scores = search.scores[..., None] + gains.reshape(*size, num_words)
    lengths = jnp.where(is_kept, search.lengths, number + 1)
    words, scores, parents = beam.select_beams(
        is_kept,
        search.scores,
        ids.reshape(*size, num_words),
        scores,
        rules.beam_size,
        rules.end_id,
        rules.penalty(lengths),
    )
    was_kept = beam.pick_beams(is_kept, parents)
    had_ended = beam.pick_beams(search.has_ended, parents)
    longer = search._replace(
        number=number + 1,
        words=lax.dynamic_update_index_in_dim(search.words, words, number, 0),
        parents=lax.dynamic_update_index_in_dim(search.parents, parents, number, 0),
        last=words,
        scores=scores,
        lengths=beam.pick_beams(lengths, parents),
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
        return beam.pick_beams(beams, parents).reshape(x.shape)

    return jax.tree.map(reorder, state)
