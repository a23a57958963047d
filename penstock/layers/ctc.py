"""Connectionist temporal classification: its loss, its decoder, and the distance of two strings."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax
from jax import lax

from penstock._errors import ProgramError, check_number
from penstock._program import sequences
from penstock.layers import words
from penstock.layers.recurrent import Hold, scan_words

_LOG_OF_ZERO = -1e30
"""Below the log probability of every path: optax's own, -1e5, is above that of a long one."""


def warpctc(
    input: sequences.Sequence,
    label: sequences.Sequence,
    blank: int = 0,
    norm_by_times: bool = False,
) -> jax.Array:
    """Return the connectionist temporal classification loss, per example (Graves et al. 2006).

    It is the negative log likelihood of the labels, summed over all alignments with the steps. In
    an alignment each label takes one or more steps. Blanks may lie between labels, and at least one
    lies between two equal labels. Labels that do not fit into their steps cost 0 and have no
    gradient. A label outside the classes, or equal to the blank, gives nan. It is computed in
    float32 or wider. Source: Fluid's `warpctc`, computed with optax's `ctc_loss`.

    Arguments:
      input: logits, a sequence `[B, T, C]`, with the blank among the C classes.
      label: classes, a sequence `[B, L, 1]`; its lengths may differ from those of the input.
      blank: the class that stands for no label.
      norm_by_times: divide the gradient by the number of steps. The loss is not divided.

    Returns:
      `[B, 1]`.

    >>> logits = sequences.Sequence(jnp.zeros([1, 2, 2]), jnp.array([2]))
    >>> label = sequences.Sequence(jnp.array([[[1]]]), jnp.array([1]))
    >>> np.exp(-warpctc(logits, label)).round(4).tolist()  # 11, 10 and 01, of four
    [[0.75]]
    """
    logits = words.check_scores("warpctc", "an input", input, least=2)
    ids = words.check_ids("warpctc", "labels", label)
    num_classes = logits.values.shape[-1]
    _check_blank("warpctc", blank, num_classes)
    # Not of TF32, which GPUs take for a product of float32: the loss would keep three digits.
    with jax.default_matmul_precision("highest"):
        loss = optax.ctc_loss(
            logits.values,
            (~logits.mask).astype(logits.values.dtype),
            ids.values,
            (~ids.mask).astype(logits.values.dtype),
            blank_id=blank,
            log_epsilon=_LOG_OF_ZERO,
        )
    is_pair = (ids.values[:, 1:] == ids.values[:, :-1]) & ids.mask[:, 1:]
    num_steps = ids.lengths + jnp.sum(is_pair, axis=1, dtype=ids.lengths.dtype)
    loss = words.choose_examples(num_steps <= logits.lengths, loss, 0.0)
    if norm_by_times:
        shared = loss / jnp.maximum(logits.lengths, 1).astype(loss.dtype)
        loss = lax.stop_gradient(loss - shared) + shared
    is_label = words.are_classes(ids, num_classes)
    is_label &= ~jnp.any((ids.values == blank) & ids.mask, axis=1)
    return words.choose_examples(is_label, loss, jnp.nan).reshape(-1, 1)


def ctc_greedy_decoder(input: sequences.Sequence, blank: int) -> sequences.Sequence:
    """Decode labels from the most likely class of each step.

    Repeated classes are merged, and then blanks are removed. Ties go to the lower class. If nothing
    is left, the length is 0; Fluid returns a label -1. Source: Fluid's `ctc_greedy_decoder`.

    Arguments:
      input: probabilities or logits, a sequence `[B, T, C]`, with the blank among the C classes.
      blank: the class that stands for no label.

    Returns:
      Labels, a sequence `[B, T, 1]`, int32, with its own lengths.

    >>> steps = jax.nn.one_hot(jnp.array([[1, 1, 0, 1, 2]]), 3)
    >>> ctc_greedy_decoder(sequences.Sequence(steps, jnp.array([5])), blank=0).cut()[0].tolist()
    [[1], [1], [2]]
    """
    scores = words.check_scores("ctc_greedy_decoder", "an input", input, least=2)
    _check_blank("ctc_greedy_decoder", blank, scores.values.shape[-1])
    best = jnp.argmax(scores.values, axis=2).astype(jnp.int32)
    # Before the first step stands no class.
    (before,) = words.shift_words(best, [-1], fill=-1)
    keep = (best != before) & (best != blank)
    labels = words.compact(scores.with_values(best), keep, fill=blank)
    return labels.with_values(labels.values[..., None])


def edit_distance(
    input: sequences.Sequence,
    label: sequences.Sequence,
    normalized: bool = True,
    ignored_tokens: Sequence[int] | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Return the edit distance between two sequences of ids, per example (Levenshtein 1966).

    It is the smallest number of insertions, deletions and replacements that turn one sequence into
    the other. If it is normalised and the label is empty, the distance is 0 for an empty input and
    infinite for any other; Fluid raises an error. Source: Fluid's `edit_distance`.

    Arguments:
      input: predicted ids, a sequence `[B, T, 1]`.
      label: true ids, a sequence `[B, L, 1]`.
      normalized: whether to divide by the length of the label.
      ignored_tokens: ids that are first removed from both sequences.

    Returns:
      The distances, `[B, 1]`, float32, and the number of examples, an int32 scalar.

    >>> a = sequences.Sequence(jnp.array([[1, 2, 3]]), jnp.array([3]))
    >>> b = sequences.Sequence(jnp.array([[2, 3, 4, 5]]), jnp.array([4]))
    >>> distance, count = edit_distance(a, b, normalized=False)
    >>> distance.tolist(), int(count)
    ([[3.0]], 1)
    """
    predicted, true = (
        _leave_out(words.check_ids("edit_distance", what, ids), ignored_tokens or ())
        for what, ids in (("an input", input), ("labels", label))
    )
    distance = levenshtein(predicted, true).astype(jnp.float32)
    if normalized:
        rate = distance / jnp.maximum(true.lengths, 1).astype(jnp.float32)
        is_defined = (true.lengths > 0) | (predicted.lengths == 0)
        distance = jnp.where(is_defined, rate, jnp.inf)
    return distance.reshape(-1, 1), jnp.asarray(distance.size, jnp.int32)


def _leave_out(string: sequences.Sequence, tokens: Sequence[int]) -> sequences.Sequence:
    if not tokens:
        return string
    keep = string.mask
    for token in tokens:
        keep = keep & (string.values != token)
    return words.compact(string, keep, fill=0)


def levenshtein(predicted: sequences.Sequence, true: sequences.Sequence) -> jax.Array:
    """Return the distances of ids `[B, T]` and `[B, L]`, whole numbers `[B]`."""
    batch, length = true.values.shape
    places = lax.broadcasted_iota(jnp.int32, (batch, length + 1), 1)

    def step(row: jax.Array, token: jax.Array, hold: Hold) -> tuple[jax.Array, None]:
        replaced = row[:, :-1] + (true.values != token[:, None]).astype(row.dtype)
        deleted = row + 1
        least = jnp.minimum(deleted[:, 1:], replaced)
        least = jnp.concatenate([deleted[:, :1], least], axis=1)
        # Each insertion costs 1 a place: the least over all places before is a running minimum.
        least = lax.cummin(least - places, axis=1) + places
        return hold(least, row), None

    rows, _ = scan_words(step, places, predicted.values, predicted.lengths)
    return jnp.take_along_axis(rows, true.lengths[:, None], axis=1)[:, 0]


def _check_blank(layer: str, blank: int, num_classes: int) -> None:
    why = "It is one of the classes. Use another, or one class more."
    check_number(f"layers.{layer} got blank=", blank, f"[0, {num_classes - 1}]", why, ProgramError)
