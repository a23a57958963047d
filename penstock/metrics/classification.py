"""Metrics of classes: shares of right ones, and what counts by class make."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal, Self, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from penstock._errors import ProgramError, check_choice
from penstock._program.sequences import Sequence
from penstock.layers.losses import is_right
from penstock.metrics._metric import (
    Average,
    Metric,
    Rows,
    Values,
    Weights,
    compare_classes,
    read_rows,
)

AveragedBy: TypeAlias = Literal["binary", "micro", "macro", "weighted"] | None
"""How one number is made of those of the classes; None leaves them as they are, `[C]`."""

Normalized: TypeAlias = Literal["true", "pred", "all"] | None
Norm: TypeAlias = Literal["l1", "l2", "max"]

AVERAGES = ("binary", "micro", "macro", "weighted")

IGNORE_INDEX = -100


SETTING = {"static": True}
"""Metadata of a field that is no sum."""


def _read_classes(
    owner: str,
    input: Values,
    label: Values,
    threshold: float,
    num_classes: int | None,
    sample_weight: Weights,
    ignore_index: int | None,
) -> tuple[Rows, int]:
    """Return rows whose input is the class predicted, and the number of classes."""
    rows = read_rows(owner, input, label, sample_weight, ignore_index)
    predicted = rows.input
    if predicted.ndim == 2:
        num_classes, predicted = predicted.shape[1], jnp.argmax(predicted, axis=1)
    elif predicted.dtype == bool or jnp.issubdtype(predicted.dtype, jnp.floating):
        num_classes = 2
        predicted = predicted if predicted.dtype == bool else predicted > threshold
    if num_classes is None:
        raise ProgramError(
            f"metrics.{owner} got integers as classes, expected num_classes too. It counts each "
            "class. Pass num_classes=..."
        )
    ids = [classes.astype(jnp.int32) for classes in (predicted, rows.label)]
    return rows._replace(input=ids[0], label=ids[1]), num_classes


class Accuracy(Average):
    """Hold how many labels are the predicted class. As scikit-learn's `accuracy_score`.

    >>> scores, label = jnp.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]), jnp.array([0, 1, -100])
    >>> Accuracy.of(scores, label).compute()
    0.5
    """

    @classmethod
    def of(
        cls,
        input: Values,
        label: Values,
        *,
        threshold: float = 0.5,
        sample_weight: Weights = None,
        ignore_index: int | None = IGNORE_INDEX,
    ) -> Self:
        """Return the accuracy of scores, of probabilities of class 1, or of classes."""
        name = cls.__name__
        rows, _ = _read_classes(name, input, label, threshold, 0, sample_weight, ignore_index)
        return cls.sum((rows.input == rows.label).astype(jnp.float32), rows.weights)


class TopK(Average):
    """Hold how many labels are among the `k` highest scores.

    As scikit-learn's `top_k_accuracy_score`; between equal scores the lower class ranks higher.

    >>> scores = jnp.array([[0.5, 0.2, 0.3], [0.5, 0.2, 0.3]])
    >>> TopK.of(scores, jnp.array([2, 1]), k=2).compute()
    0.5
    """

    @classmethod
    def of(
        cls,
        input: Values,
        label: Values,
        *,
        k: int = 5,
        sample_weight: Weights = None,
        ignore_index: int | None = IGNORE_INDEX,
    ) -> Self:
        """Return the metric of scores `[B, ..., C]`."""
        rows = read_rows(cls.__name__, input, label, sample_weight, ignore_index, "classes")
        return cls.sum(is_right(rows.input, rows.label.astype(jnp.int32), k), rows.weights)


@dataclasses.dataclass(frozen=True)
class _ClassCounts(Metric):
    """Hold for each class `[C]` how often it was right, predicted and there.

    With `average="binary"` there are two classes, and class 1 counts. `"macro"` is the mean over
    classes, without those that are neither predicted nor there; `"weighted"` the mean by how often
    they are there. A class whose denominator is 0 has the value 0.
    """

    right: jax.Array
    predicted: jax.Array
    actual: jax.Array
    average: AveragedBy = dataclasses.field(metadata=SETTING)
    is_multilabel: bool = dataclasses.field(metadata=SETTING)
    # What the value is: so many times the right ones, by so many times each of the three.
    _ratio: ClassVar[tuple[int, tuple[int, int, int]]]

    @classmethod
    def of(
        cls,
        input: Values,
        label: Values,
        *,
        average: AveragedBy = "binary",
        threshold: float = 0.5,
        num_classes: int | None = None,
        sample_weight: Weights = None,
        ignore_index: int | None = IGNORE_INDEX,
    ) -> Self:
        """Return the counts of a batch.

        Arguments:
          input: scores `[B, ..., C]`, probabilities of class 1 `[B, ...]`, or with `num_classes`
            integers, classes `[B, ...]`. With labels `[B, C]`, of which any number are 1, and
            another average than `"binary"`, probabilities `[B, C]` of each.
          average: `"binary"`, `"micro"`, `"macro"`, `"weighted"`, or None for an array by class.
          threshold: the probability above which class 1 is predicted.

        Raises:
          ProgramError: the shapes do not fit, or `"binary"` has more than two classes.
        """
        name = cls.__name__
        if average is not None:
            check_choice(f"metrics.{name} got average=", average, AVERAGES)
        is_multilabel = average != "binary" and num_classes is None
        rows, num_classes = _read_classes(
            name, input, label, threshold, num_classes, sample_weight, ignore_index
        )
        if average == "binary" and num_classes != 2:
            raise ProgramError(
                f"metrics.{name} got {num_classes} classes and average='binary', expected two. It "
                "is asked of class 1. Pass average='macro', 'micro', 'weighted' or None."
            )
        is_multilabel = is_multilabel and is_of_labels(input, rows.shape)
        if is_multilabel:
            predicted, actual, weights = (array.reshape(rows.shape) for array in rows[:3])
            predicted, actual = predicted == 1, actual == 1
        else:
            predicted, actual = (compare_classes(ids, num_classes) for ids in rows[:2])
            weights = rows.weights[:, None]
        sums = [
            jnp.sum(jnp.where(mask, weights, 0), axis=0)
            for mask in (predicted & actual, predicted, actual)
        ]
        return cls(*sums, average=average, is_multilabel=is_multilabel)

    def compute(self) -> float | np.ndarray:
        """Return the value, or with `average=None` one for each class, `[C]`."""
        right, predicted, actual = (
            np.asarray(count, np.float64) for count in (self.right, self.predicted, self.actual)
        )
        if self.average == "binary":
            right, predicted, actual = right[1:], predicted[1:], actual[1:]
        elif self.average == "micro":
            right, predicted, actual = ([count.sum()] for count in (right, predicted, actual))
        above, (of_right, of_predicted, of_actual) = self._ratio
        below = np.multiply(of_right, right) + np.multiply(of_predicted, predicted)
        values = divide(np.multiply(above, right), below + np.multiply(of_actual, actual))
        if self.average == "weighted":
            return float(divide(np.sum(values * actual), np.sum(actual)))
        if self.average == "macro" and not self.is_multilabel:
            is_there = np.add(predicted, actual) > 0
            return float(divide(np.sum(values * is_there), np.sum(is_there)))
        return values if self.average is None else float(np.mean(values))


def is_of_labels(input: Values, shape: tuple[int, ...]) -> bool:
    """Return whether an input has a number for each of several labels of an example, `[B, L]`."""
    is_array = not isinstance(input, Sequence)
    return is_array and len(shape) == 2 and shape[1] > 1 and jnp.shape(input) == shape


def divide(above: ArrayLike, below: ArrayLike) -> np.ndarray:
    """Return a quotient in float64, 0 where the denominator is."""
    above, below = np.asarray(above, np.float64), np.asarray(below, np.float64)
    return np.where(below != 0, above / np.where(below != 0, below, 1), 0.0)


class Precision(_ClassCounts):
    """Hold counts by class, of which precision is made: right ones among those predicted.

    As scikit-learn's `precision_score` with `zero_division=0`.

    >>> Precision.of(jnp.array([0.9, 0.6, 0.2]), jnp.array([1, 0, 1])).compute()
    0.5
    """

    _ratio = (1, (0, 1, 0))


class Recall(_ClassCounts):
    """Hold counts by class, of which recall is made: right ones among those there.

    As scikit-learn's `recall_score` with `zero_division=0`.

    >>> Recall.of(jnp.array([0.9, 0.6, 0.2]), jnp.array([1, 1, 1])).compute()
    0.6666666666666666
    """

    _ratio = (1, (0, 0, 1))


class F1(_ClassCounts):
    """Hold counts by class, of which F1 is made: the harmonic mean of precision and recall.

    As scikit-learn's `f1_score` with `zero_division=0`.

    >>> scores = jnp.array([[0.9, 0.1, 0.0], [0.1, 0.8, 0.1], [0.2, 0.7, 0.1]])
    >>> label = jnp.array([0, 1, 2])
    >>> F1.of(scores, label, average=None).compute().round(2).tolist()
    [1.0, 0.67, 0.0]
    """

    _ratio = (2, (0, 1, 1))


class MeanIoU(_ClassCounts):
    """Hold counts by class, of which the intersection over the union is made.

    As scikit-learn's `jaccard_score`, over all pixels of the set. With `average=None` it is an
    array by class.

    >>> predicted, label = jnp.array([[0, 1], [1, 1]]), jnp.array([[0, 0], [1, 1]])
    >>> MeanIoU.of(predicted, label, num_classes=2).compute()
    0.5833333333333333
    """

    _ratio = (1, (-1, 1, 1))

    @classmethod
    def of(
        cls,
        input: Values,
        label: Values,
        *,
        average: AveragedBy = "macro",
        threshold: float = 0.5,
        num_classes: int | None = None,
        sample_weight: Weights = None,
        ignore_index: int | None = IGNORE_INDEX,
    ) -> Self:
        """Return the counts of a batch; see `F1.of` for the arguments."""
        return super().of(
            input,
            label,
            average=average,
            threshold=threshold,
            num_classes=num_classes,
            sample_weight=sample_weight,
            ignore_index=ignore_index,
        )


class Dice(MeanIoU):
    """Hold counts by class, of which the Dice score is made: F1 by class, over all pixels.

    >>> Dice.of(jnp.array([0.9, 0.8, 0.1]), jnp.array([1, 0, 0]), average="binary").compute()
    0.6666666666666666
    """

    _ratio = (2, (0, 1, 1))


_ROWS_AT_ONCE = 512


@dataclasses.dataclass(frozen=True)
class ConfusionMatrix(Metric):
    """Hold how often each class was taken for each, `[C, C]`, a row for each class of the labels.

    As scikit-learn's `confusion_matrix`.

    >>> scores = jnp.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> ConfusionMatrix.of(scores, jnp.array([0, 1, 1])).compute().tolist()
    [[1.0, 0.0], [1.0, 1.0]]
    """

    counts: jax.Array
    normalize: Normalized = dataclasses.field(default=None, metadata=SETTING)

    @classmethod
    def of(
        cls,
        input: Values,
        label: Values,
        *,
        num_classes: int | None = None,
        threshold: float = 0.5,
        normalize: Normalized = None,
        sample_weight: Weights = None,
        ignore_index: int | None = IGNORE_INDEX,
    ) -> Self:
        """Return the counts of a batch; see `F1.of` for the arguments.

        Arguments:
          normalize: divide by the number of the row's class (`"true"`), of the column's (`"pred"`),
            or of all (`"all"`).
        """
        if normalize is not None:
            check_choice(
                "metrics.ConfusionMatrix got normalize=", normalize, ("true", "pred", "all")
            )
        rows, num_classes = _read_classes(
            cls.__name__, input, label, threshold, num_classes, sample_weight, ignore_index
        )
        predicted, actual = (compare_classes(ids, num_classes) for ids in rows[:2])
        weighted = jnp.where(actual, rows.weights[:, None], 0)
        # In parts: a product adds one number after the other, and in float32 2**24 + 1 is 2**24.
        size = min(len(weighted), _ROWS_AT_ONCE)
        parts = [
            jnp.pad(array, ((0, -len(array) % size), (0, 0))).reshape(-1, size, num_classes)
            for array in (weighted, predicted.astype(jnp.float32))
        ]
        # Not in bfloat16, which accelerators take for products: weights have more digits.
        counts = jnp.einsum("knc,knd->kcd", *parts, precision="highest").sum(axis=0)
        return cls(counts, normalize)

    def compute(self) -> np.ndarray:
        """Return the matrix, `[C, C]`."""
        counts = np.asarray(self.counts, np.float64)
        axis = {"true": 1, "pred": 0}.get(self.normalize or "")
        return counts if not self.normalize else divide(counts, counts.sum(axis, keepdims=True))


class RowAverage(Average):
    """Hold the sum of a function of each label and its probabilities or scores."""

    _takes: ClassVar[Literal["classes", "both"]] = "both"

    @classmethod
    def of(
        cls,
        input: Values,
        label: Values,
        *,
        sample_weight: Weights = None,
        ignore_index: int | None = IGNORE_INDEX,
    ) -> Self:
        """Return the sums of a batch, of `[B, ..., C]`, or of those of class 1, `[B, ...]`."""
        owner, takes = cls.__name__, cls._takes
        rows = read_rows(owner, input, label, sample_weight, ignore_index, takes)
        return cls.sum(cls._value(rows), rows.weights)

    @staticmethod
    def _value(rows: Rows) -> jax.Array:
        raise NotImplementedError


def is_of_label(rows: Rows) -> jax.Array:
    """Return whether each class is that of the label, `[N, C]`."""
    return compare_classes(rows.label.astype(jnp.int32), rows.input.shape[1])


class LogLoss(RowAverage):
    """Hold the sum of the logarithms of the probabilities of the labels.

    As scikit-learn's `log_loss`: probabilities of 0 are raised to float32's epsilon.

    >>> round(LogLoss.of(jnp.array([0.5, 0.25]), jnp.array([1, 0])).compute(), 4)
    0.4904
    """

    @staticmethod
    def _value(rows: Rows) -> jax.Array:
        if rows.input.ndim == 1:
            chosen = jnp.where(rows.label == 1, rows.input, 1 - rows.input)
        else:
            chosen = jnp.sum(jnp.where(is_of_label(rows), rows.input, 0), axis=1)
        epsilon = jnp.finfo(jnp.float32).eps
        return -jnp.log(jnp.clip(chosen, epsilon, 1 - epsilon))


class Brier(RowAverage):
    """Hold the sum of squared differences of probabilities and labels.

    As scikit-learn's `brier_score_loss`: of the probability of class 1, or summed over all classes.

    >>> Brier.of(jnp.array([0.5, 0.25]), jnp.array([1, 0])).compute()
    0.15625
    """

    @staticmethod
    def _value(rows: Rows) -> jax.Array:
        if rows.input.ndim == 1:
            return (rows.input - rows.label) ** 2
        return jnp.sum((rows.input - is_of_label(rows)) ** 2, axis=1)


@dataclasses.dataclass(frozen=True)
class CalibrationError(Metric):
    """Hold by bin of the confidence its sum, how often it was right, and the weights, `[3, bins]`.

    The expected calibration error (Naeini et al. 2015), as torchmetrics' `CalibrationError`. The
    confidence is the probability of class 1, or the highest of all classes.

    >>> probabilities, label = jnp.array([0.9, 0.8, 0.3, 0.2]), jnp.array([1, 0, 0, 0])
    >>> round(CalibrationError.of(probabilities, label, n_bins=2).compute(), 4)
    0.3
    """

    sums: jax.Array
    norm: Norm = dataclasses.field(default="l1", metadata=SETTING)

    @classmethod
    def of(
        cls,
        input: Values,
        label: Values,
        *,
        n_bins: int = 15,
        norm: Norm = "l1",
        sample_weight: Weights = None,
        ignore_index: int | None = IGNORE_INDEX,
    ) -> Self:
        """Return the sums of a batch.

        Arguments:
          input: probabilities `[B, ..., C]`, or of class 1, `[B, ...]`.
          n_bins: equal parts of 0 to 1; a probability at an edge belongs to the part below it.
          norm: the mean of the differences (`"l1"`), the root of that of their squares (`"l2"`), or
            the largest (`"max"`).
        """
        check_choice("metrics.CalibrationError got norm=", norm, ("l1", "l2", "max"))
        rows = read_rows(cls.__name__, input, label, sample_weight, ignore_index)
        confidence, is_right = rows.input, rows.label == 1
        if confidence.ndim == 2:
            is_right = jnp.argmax(confidence, axis=1) == rows.label
            confidence = jnp.max(confidence, axis=1)
        edges = jnp.linspace(0, 1, n_bins + 1)[1:-1]
        bins = jnp.sum(confidence[:, None] > edges[None, :], axis=1)
        is_in = compare_classes(bins, n_bins)
        columns = (confidence, is_right.astype(jnp.float32), jnp.ones_like(confidence))
        sums = [jnp.where(is_in, (term * rows.weights)[:, None], 0).sum(axis=0) for term in columns]
        return cls(jnp.stack(sums), norm)

    def compute(self) -> float:
        """Return the error, 0 to 1."""
        confidence, right, weights = np.asarray(self.sums, np.float64)
        gaps = np.abs(divide(right - confidence, weights))
        if self.norm == "max":
            return float(gaps.max())
        power = 1 if self.norm == "l1" else 2
        return float(divide(np.sum(gaps**power * weights), np.sum(weights)) ** (1 / power))
