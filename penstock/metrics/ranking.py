"""Metrics of the order of scores: exact ones keep the rows of a test, binned ones count by bin."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from penstock._errors import ProgramError, check_choice
from penstock.metrics._metric import Metric, RowMetric, Values, Weights, read_rows
from penstock.metrics.classification import IGNORE_INDEX, SETTING, divide, is_of_label, is_of_labels

RankedBy: TypeAlias = Literal["micro", "macro", "weighted"] | None
"""How one number is made of those of the classes, each against the rest; None is an array."""

Curve: TypeAlias = Callable[[np.ndarray, np.ndarray], float]
"""What is made of the weights of positives and of negatives at and above each score, falling."""


class _Columns(NamedTuple):
    """Scores `[N, K]`, whether each is of its label's class, and weights `[N, 1]` or `[N, K]`."""

    scores: jax.Array
    positive: jax.Array
    weights: jax.Array


def _read_columns(
    owner: str,
    input: Values,
    label: Values,
    average: RankedBy,
    sample_weight: Weights,
    ignore_index: int | None,
) -> _Columns:
    """Return a column for each class against the rest, or for each of several labels."""
    if average is not None:
        check_choice(f"metrics.{owner} got average=", average, ("micro", "macro", "weighted"))
    rows = read_rows(owner, input, label, sample_weight, ignore_index)
    weights = rows.weights[:, None]
    if rows.input.ndim == 2:
        positive = is_of_label(rows)
        # Of two classes the second: the first is the same question again.
        first = 1 if rows.input.shape[1] == 2 else 0
        return _Columns(rows.input[:, first:], positive[:, first:], weights)
    shape = rows.shape if is_of_labels(input, rows.shape) else (-1, 1)
    scores, label_, weights = (array.reshape(shape) for array in rows[:3])
    return _Columns(scores, label_ == 1, weights)


def _area_under_roc(positives: np.ndarray, negatives: np.ndarray) -> float:
    if not len(positives) or not positives[-1] or not negatives[-1]:
        return float("nan")
    area = np.trapezoid(np.append(0, positives), np.append(0, negatives))
    return float(area / positives[-1] / negatives[-1])


def _average_precision(positives: np.ndarray, negatives: np.ndarray) -> float:
    if not len(positives) or not positives[-1]:
        return 0.0
    precision = positives / (positives + negatives)
    return float(np.sum(np.diff(positives, prepend=0) * precision) / positives[-1])


def _add_up_above(
    scores: np.ndarray, positive: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights of positives and of negatives at and above each score, falling."""
    is_counted = weights > 0
    scores, positive = scores[is_counted], positive[is_counted]
    weights = weights[is_counted].astype(np.float64)
    # Not by `-scores`: unsigned bytes would wrap around.
    order = np.argsort(scores)[::-1]
    # Equal scores are one step of the curve, whatever their order.
    is_last = np.append(np.diff(scores[order]) != 0, True)[: len(order)]
    sums = [np.cumsum(np.where(mask, weights, 0)[order]) for mask in (positive, ~positive)]
    return sums[0][is_last], sums[1][is_last]


def _average(
    curve: Curve, columns: Iterator[tuple[np.ndarray, np.ndarray]], average: RankedBy
) -> float | np.ndarray:
    pairs = list(columns)
    values = np.array([curve(*pair) for pair in pairs])
    if average is None:
        return values
    support = np.array([above[-1] if len(above) else 0.0 for above, _ in pairs])
    weights = support if average == "weighted" else np.ones(len(values))
    # A class of which nothing can be told is left out, as torchmetrics does.
    is_known = ~np.isnan(values) & (weights > 0)
    if not is_known.any():
        return float("nan") if np.isnan(values).any() else 0.0
    values, weights = values[is_known], weights[is_known]
    return float(np.sum(values * weights) / np.sum(weights))


@dataclasses.dataclass(frozen=True)
class _Ranking(RowMetric):
    """Keep scores, whether each is of its label's class, and weights."""

    scores: jax.Array
    positive: jax.Array
    weights: jax.Array
    average: RankedBy = dataclasses.field(metadata=SETTING)
    _curve: ClassVar[Curve]

    @classmethod
    def of(
        cls,
        input: Values,
        label: Values,
        *,
        average: RankedBy = "macro",
        sample_weight: Weights = None,
        ignore_index: int | None = IGNORE_INDEX,
    ) -> Self:
        """Return the rows of a batch.

        Arguments:
          input: scores of class 1 `[B, ...]`, of any size; scores of classes `[B, ..., C]`, of each
            of which it is asked against the rest; or with labels `[B, L]` of zeros and ones,
            `[B, L]`.
          average: `"macro"` is the mean over classes, `"weighted"` by how often they are there,
            `"micro"` takes all together, None gives an array.
        """
        columns = _read_columns(cls.__name__, input, label, average, sample_weight, ignore_index)
        return cls(*columns, average=average)

    def compute(self) -> float | np.ndarray:
        """Return the value, or with `average=None` one for each class, `[C]`."""
        scores, positive, weights = map(np.asarray, (self.scores, self.positive, self.weights))
        weights = np.broadcast_to(weights, scores.shape)
        if self.average == "micro":
            scores, positive, weights = (x.reshape(-1, 1) for x in (scores, positive, weights))
        if np.isnan(scores).any():
            return float("nan")
        columns = zip(scores.T, positive.T, weights.T, strict=True)
        return _average(type(self)._curve, (_add_up_above(*args) for args in columns), self.average)


class AUC(_Ranking):
    """Keep scores and labels, of which the exact area under the ROC curve is made.

    As scikit-learn's `roc_auc_score` (`multi_class="ovr"`); nan without positives or negatives. For
    epochs of training there is `BinnedAUC`.

    >>> AUC.of(jnp.array([0.1, 0.4, 0.35, 0.8]), jnp.array([0, 0, 1, 1])).compute()
    0.75
    """

    _curve = staticmethod(_area_under_roc)


class AveragePrecision(_Ranking):
    """Keep scores and labels, of which the exact average precision is made.

    As scikit-learn's `average_precision_score`; 0 without a positive. For epochs of
    training there is `BinnedAveragePrecision`.

    >>> scores, label = jnp.array([0.1, 0.4, 0.35, 0.8]), jnp.array([0, 0, 1, 1])
    >>> round(AveragePrecision.of(scores, label).compute(), 4)
    0.8333
    """

    _curve = staticmethod(_average_precision)


@dataclasses.dataclass(frozen=True)
class _Histogram(Metric):
    """Hold the weights of positives and of negatives by bin of the probability, `[2, K, bins]`."""

    counts: jax.Array
    average: RankedBy = dataclasses.field(metadata=SETTING)
    _curve: ClassVar[Curve]

    @classmethod
    def of(
        cls,
        input: Values,
        label: Values,
        *,
        num_bins: int = 200,
        average: RankedBy = "macro",
        sample_weight: Weights = None,
        ignore_index: int | None = IGNORE_INDEX,
    ) -> Self:
        """Return the counts of a batch.

        Arguments:
          input: probabilities, 0 to 1; see `AUC.of` for their shapes.
          num_bins: equal parts of 0 to 1, within which no order is known.
        """
        columns = _read_columns(cls.__name__, input, label, average, sample_weight, ignore_index)
        bins = jnp.clip(jnp.floor(columns.scores * num_bins), 0, num_bins - 1)
        is_in = bins[..., None] == jnp.arange(num_bins, dtype=bins.dtype)[None, None, :]
        counts = [
            jnp.where(is_in, jnp.where(mask, columns.weights, 0)[..., None], 0).sum(axis=0)
            for mask in (columns.positive, ~columns.positive)
        ]
        return cls(jnp.stack(counts), average)

    def compute(self) -> float | np.ndarray:
        """Return the value, or with `average=None` one for each class, `[C]`."""
        counts = np.asarray(self.counts, np.float64)
        if self.average == "micro":
            counts = counts.sum(axis=1, keepdims=True)
        above = np.cumsum(counts[..., ::-1], axis=-1)
        # Not the bins at the top that are empty, of which there is no precision.
        columns = ((p[(p + n) > 0], n[(p + n) > 0]) for p, n in zip(*above, strict=True))
        return _average(type(self)._curve, columns, self.average)


class BinnedAUC(_Histogram):
    """Hold counts of a histogram, of which the area under the ROC curve is told within a bin.

    For epochs of training, which keep no rows. `AUC` is exact.

    >>> scores, label = jnp.array([0.1, 0.4, 0.35, 0.8]), jnp.array([0, 0, 1, 1])
    >>> BinnedAUC.of(scores, label, num_bins=4).compute()
    0.875
    """

    _curve = staticmethod(_area_under_roc)


class BinnedAveragePrecision(_Histogram):
    """Hold counts of a histogram, of which the average precision is told within a bin.

    For epochs of training, which keep no rows. `AveragePrecision` is exact.

    >>> scores, label = jnp.array([0.1, 0.4, 0.35, 0.8]), jnp.array([0, 0, 1, 1])
    >>> round(BinnedAveragePrecision.of(scores, label, num_bins=4).compute(), 4)
    0.8333
    """

    _curve = staticmethod(_average_precision)


@dataclasses.dataclass(frozen=True)
class Spearman(RowMetric):
    """Keep inputs and labels, of which the correlation of their ranks is made.

    As `scipy.stats.spearmanr`; equal values share a rank, and a weight of 2 is a row twice. It is
    nan where one of the two is constant.

    >>> Spearman.of(jnp.array([1.0, 2.0, 9.0]), jnp.array([3.0, 5.0, 4.0])).compute()
    0.5
    """

    input: jax.Array
    label: jax.Array
    weights: jax.Array

    @classmethod
    def of(
        cls,
        input: Values,
        label: Values,
        *,
        sample_weight: Weights = None,
        ignore_index: float | None = None,
    ) -> Self:
        """Return the rows of a batch, of inputs of the labels' shape."""
        rows = read_rows(cls.__name__, input, label, sample_weight, ignore_index, "numbers")
        return cls(*rows[:3])

    def compute(self) -> float:
        """Return the correlation, -1 to 1."""
        weights = np.asarray(self.weights, np.float64)
        is_counted = weights > 0
        weights = weights[is_counted]
        columns = [np.asarray(x)[is_counted] for x in (self.input, self.label)]
        ranks = [_rank(column, weights) for column in columns]
        if not len(weights) or np.isnan(columns).any() or 0 in map(np.ptp, ranks):
            return float("nan")
        covariance = np.cov(ranks[0], ranks[1], aweights=weights, ddof=0)
        return float(covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1]))


def _rank(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the mean of the places that each value has, where each takes `weights` of them."""
    _, index = np.unique(values, return_inverse=True)
    total = np.bincount(index, weights)
    return (np.cumsum(total) - total / 2)[index]


@dataclasses.dataclass(frozen=True)
class RetrievalRecall(RowMetric):
    """Keep scores of documents, which of them are relevant, and the query of each.

    The mean over queries of the share of relevant documents that is among the `top_k` highest
    scores, as torchmetrics' `RetrievalRecall`. A query without a relevant one has 0. Of equal
    scores at the edge the expected number counts.

    >>> scores, relevant = jnp.array([0.9, 0.5, 0.3, 0.8]), jnp.array([1, 1, 0, 1])
    >>> queries = jnp.array([7, 7, 7, 8])
    >>> RetrievalRecall.of(scores, relevant, queries, top_k=1).compute()
    0.75
    """

    scores: jax.Array
    relevant: jax.Array
    weights: jax.Array
    queries: jax.Array | None
    top_k: int | None = dataclasses.field(metadata=SETTING)

    @classmethod
    def of(
        cls,
        input: Values,
        label: Values,
        indexes: Values | None = None,
        *,
        top_k: int | None = None,
        sample_weight: Weights = None,
        ignore_index: int | None = IGNORE_INDEX,
    ) -> Self:
        """Return the rows of a batch.

        Arguments:
          input: scores `[B]` of documents, or `[B, D]` of those of one query each.
          label: 1 for a relevant document, of the same shape.
          indexes: the query of each document, whole numbers of the same shape; None where each row
            is a query.
          top_k: how many documents are looked at; all by default.
          sample_weight: of a query, the largest of those of its documents.

        Raises:
          ProgramError: there are no indexes, and a row has one document.
        """
        rows = read_rows(cls.__name__, input, label, sample_weight, ignore_index, "numbers")
        if indexes is None and len(rows.shape) != 2:
            raise ProgramError(
                f"metrics.RetrievalRecall got scores of shape {rows.shape} and no indexes, "
                "expected [B, D], a query a row. They tell which are of one query. Pass indexes=..."
            )
        if indexes is None:
            scores, relevant, weights = (array.reshape(rows.shape) for array in rows[:3])
            return cls(scores, relevant, weights, None, top_k)
        queries = read_rows(cls.__name__, indexes, label, None, None).input
        return cls(*rows[:3], queries, top_k)

    def compute(self) -> float:
        """Return the mean recall, 0 to 1."""
        arrays: list[Any] = [np.asarray(x) for x in (self.scores, self.relevant, self.weights)]
        if self.queries is not None:
            order = np.argsort(self.queries, kind="stable")
            starts = np.flatnonzero(np.diff(np.asarray(self.queries)[order])) + 1
            arrays = [np.split(array[order], starts) for array in arrays]
        recalls, weights = [], []
        for scores, relevant, weight in zip(*arrays, strict=True):
            is_counted = weight > 0
            if is_counted.any():
                recalls.append(self._recall(scores[is_counted], relevant[is_counted] == 1))
                weights.append(weight.max())
        return float(np.average(recalls, weights=weights)) if recalls else 0.0

    def _recall(self, scores: np.ndarray, relevant: np.ndarray) -> float:
        num_taken = min(self.top_k or len(scores), len(scores))
        last = np.sort(scores)[::-1][num_taken - 1]
        above, at = scores > last, scores == last
        share = (num_taken - above.sum()) / at.sum()
        hits = relevant[above].sum() + relevant[at].sum() * share
        return float(divide(hits, relevant.sum()))
