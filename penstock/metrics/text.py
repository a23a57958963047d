"""Metrics of words: perplexity, and distances of decoded ones from the labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence as Several
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from penstock._program.sequences import Sequence
from penstock.layers.arguments import widen_bytes
from penstock.layers.ctc import levenshtein
from penstock.layers.words import compact
from penstock.metrics._metric import Metric, Rows, Values
from penstock.metrics.classification import IGNORE_INDEX, SETTING, RowAverage, divide, is_of_label


class Perplexity(RowAverage):
    """Hold the sum of the cross entropies of words, of whose mean it is the exponential.

    As torchmetrics' `Perplexity`, of logits `[B, ..., C]` or a sequence of them.

    >>> round(Perplexity.of(jnp.zeros([2, 3, 5]), jnp.zeros([2, 3], int)).compute(), 4)
    5.0
    """

    _takes = "classes"

    @staticmethod
    def _value(rows: Rows) -> jax.Array:
        log_probabilities = jax.nn.log_softmax(rows.input)
        return -jnp.sum(jnp.where(is_of_label(rows), log_probabilities, 0), axis=1)

    def compute(self) -> float:
        """Return the exponential of the mean."""
        return float(np.exp(super().compute()))


def _read_words(words: Values, ignore_index: int | None) -> Sequence:
    """Return ids as a sequence `[B, T]` without those that count for nothing."""
    if not isinstance(words, Sequence):
        array = jnp.asarray(words)
        words = Sequence(array, jnp.full(array.shape[0], array.shape[1], jnp.int32))
    words = words.with_values(words.values.reshape(words.values.shape[:2]))
    if ignore_index is None:
        return words
    return compact(words, words.mask & (widen_bytes(words.values) != ignore_index), fill=0)


def _weigh(sample_weight: ArrayLike | None, words: Sequence) -> jax.Array:
    if sample_weight is None:
        return jnp.ones(words.lengths.shape, jnp.float32)
    return jnp.asarray(sample_weight, jnp.float32).reshape(-1)


@dataclasses.dataclass(frozen=True)
class EditDistance(Metric):
    """Hold the sum of the edit distances of words from labels (Levenshtein 1966).

    By default it is the mean over examples, as torchmetrics' `EditDistance`; normalised, the word
    error rate: the edits of all examples by the words of their labels.

    >>> words, label = jnp.array([[1, 2, 3], [4, 5, -100]]), jnp.array([[1, 2, 3], [5, -100, -100]])
    >>> EditDistance.of(words, label).compute()
    0.5
    >>> EditDistance.of(words, label, normalized=True).compute()
    0.25
    """

    distance: jax.Array
    count: jax.Array

    @classmethod
    def of(
        cls,
        input: Values,
        label: Values,
        *,
        normalized: bool = False,
        sample_weight: ArrayLike | None = None,
        ignore_index: int | None = IGNORE_INDEX,
    ) -> Self:
        """Return the sums of a batch.

        Arguments:
          input: decoded ids, `[B, T]` or a sequence.
          label: true ids, `[B, L]` or a sequence.
          normalized: divide by the number of words in the labels.
          sample_weight: of each example, `[B]`.
          ignore_index: ids that are no words, such as padding.
        """
        predicted, true = (_read_words(ids, ignore_index) for ids in (input, label))
        weights = _weigh(sample_weight, true)
        counts = true.lengths if normalized else jnp.ones_like(true.lengths)
        return cls(jnp.sum(weights * levenshtein(predicted, true)), jnp.sum(weights * counts))

    def compute(self) -> float:
        """Return the distance, 0 or more."""
        return float(divide(self.distance, self.count))


@dataclasses.dataclass(frozen=True)
class BLEU(Metric):
    """Hold how many n-grams of decoded words are in the references, and how many words there are.

    BLEU of the whole set (Papineni et al. 2002), as torchmetrics' `BLEUScore`, 0 to 1.

    >>> words, label = jnp.array([[1, 2, 3, 4, 5, 6]]), jnp.array([[1, 2, 3, 4, 5, 7]])
    >>> round(BLEU.of(words, label).compute(), 4)
    0.7598
    """

    matches: jax.Array
    totals: jax.Array
    length: jax.Array
    reference_length: jax.Array
    smooth: bool = dataclasses.field(default=False, metadata=SETTING)

    @classmethod
    def of(
        cls,
        input: Values,
        label: Values | Several[Values],
        *,
        n_gram: int = 4,
        smooth: bool = False,
        sample_weight: ArrayLike | None = None,
        ignore_index: int | None = IGNORE_INDEX,
    ) -> Self:
        """Return the counts of a batch.

        Arguments:
          input: decoded ids, `[B, T]` or a sequence.
          label: the ids of a reference, `[B, L]` or a sequence, or a list of references.
          n_gram: the longest n-grams that count.
          smooth: add 1 to the counts of n-grams of two and more words (Lin and Och 2004).
          sample_weight: of each example, `[B]`.
          ignore_index: ids that are no words, such as padding.
        """
        words = _read_words(input, ignore_index)
        labels: Any = label if isinstance(label, list | tuple) else [label]
        references = [_read_words(ids, ignore_index) for ids in labels]
        weights, lengths = _weigh(sample_weight, words), words.lengths
        # The closest reference counts for the length, and of two the shorter.
        gaps = jnp.stack([2 * abs(r.lengths - lengths) + (r.lengths > lengths) for r in references])
        closest = jnp.argmin(gaps, axis=0)[None, :]
        nearest = jnp.take_along_axis(jnp.stack([r.lengths for r in references]), closest, 0)[0]
        among, *across = (_count_equal(words, other, n_gram) for other in (words, *references))
        # The k-th of equal n-grams matches where a reference has at least k of them.
        in_any = jnp.max(jnp.stack([jnp.sum(equal, axis=3) for equal in across]), axis=0)
        before = jnp.sum(jnp.tril(among, -1), axis=3)
        is_there = jnp.diagonal(among, axis1=2, axis2=3)
        matches = jnp.sum(is_there & (before < in_any), axis=2)
        totals = jnp.sum(is_there, axis=2)
        return cls(
            jnp.sum(matches * weights[None, :], axis=1),
            jnp.sum(totals * weights[None, :], axis=1),
            jnp.sum(lengths * weights),
            jnp.sum(nearest * weights),
            smooth,
        )

    def compute(self) -> float:
        """Return BLEU, 0 to 1."""
        matches, totals = np.asarray(self.matches, np.float64), np.asarray(self.totals, np.float64)
        if self.smooth:
            more = np.arange(len(matches)) > 0
            matches, totals = matches + more, totals + more
        if not matches.all() or not totals.all():
            return 0.0
        shortness = min(0.0, 1 - float(self.reference_length) / float(self.length))
        return float(np.exp(shortness + np.mean(np.log(matches / totals))))


def _count_equal(words: Sequence, other: Sequence, n_gram: int) -> jax.Array:
    """Return whether the n-grams that begin at two places are equal, `[n_gram, B, T, L]`."""
    equal = words.values[:, :, None] == other.values[:, None, :]
    equal &= words.mask[:, :, None] & other.mask[:, None, :]
    grams = [equal]
    for _ in range(1, n_gram):
        # One word more: the pair after it is equal too.
        after = jnp.pad(grams[-1][:, 1:, 1:], ((0, 0), (0, 1), (0, 1)))
        grams.append(equal & after)
    return jnp.stack(grams)
