"""Metrics of numbers: errors, explained variance, correlation."""

from __future__ import annotations

import dataclasses
from typing import Literal, Self, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from penstock._errors import check_choice
from penstock.metrics._metric import Average, Metric, Values, Weights, read_rows
from penstock.metrics.classification import SETTING

MultiOutput: TypeAlias = Literal["uniform_average", "raw_values", "variance_weighted"]


class _MeanError(Average):
    """Hold the sum of a function of input and label; all numbers of an example count alike."""

    @classmethod
    def of(
        cls,
        input: Values,
        label: Values,
        *,
        sample_weight: Weights = None,
        ignore_index: float | None = None,
    ) -> Self:
        """Return the sums of a batch, of inputs of the labels' shape.

        Arguments:
          ignore_index: a label that counts for nothing; none by default, for any number may be one.
        """
        rows = read_rows(cls.__name__, input, label, sample_weight, ignore_index, "numbers")
        input, label = rows.input.astype(jnp.float32), rows.label.astype(jnp.float32)
        return cls.sum(cls._error(input, label), rows.weights)

    @staticmethod
    def _error(input: jax.Array, label: jax.Array) -> jax.Array:
        return (input - label) ** 2


class MSE(_MeanError):
    """Hold the sum of squared errors. As scikit-learn's `mean_squared_error`.

    >>> MSE.of(jnp.array([1.0, 2.0]), jnp.array([1.0, 4.0])).compute()
    2.0
    """


class RMSE(_MeanError):
    """Hold the sum of squared errors, of whose mean it is the root.

    As scikit-learn's `root_mean_squared_error` of one output.

    >>> RMSE.of(jnp.array([1.0, 1.0]), jnp.array([5.0, 5.0])).compute()
    4.0
    """

    def compute(self) -> float:
        """Return the root of the mean."""
        return super().compute() ** 0.5


class MAE(_MeanError):
    """Hold the sum of absolute errors. As scikit-learn's `mean_absolute_error`.

    >>> MAE.of(jnp.array([1.0, 2.0]), jnp.array([1.0, 4.0])).compute()
    1.0
    """

    @staticmethod
    def _error(input: jax.Array, label: jax.Array) -> jax.Array:
        return jnp.abs(input - label)


class MAPE(_MeanError):
    """Hold the sum of absolute errors, each divided by its label's size.

    As scikit-learn's `mean_absolute_percentage_error`, a share and no percentage. A label of 0
    gives an enormous number.

    >>> MAPE.of(jnp.array([1.0, 2.0]), jnp.array([1.0, 4.0])).compute()
    0.25
    """

    @staticmethod
    def _error(input: jax.Array, label: jax.Array) -> jax.Array:
        return jnp.abs(input - label) / jnp.maximum(jnp.abs(label), np.finfo(np.float64).eps)


def _sum_products(x: jax.Array, y: jax.Array, weights: jax.Array) -> jax.Array:
    """Return the sum over axis 0 of `weights * x * y`, in four parts that add up to it, `[4, D]`.

    In one float32 it would lose the variance of numbers far from zero, of which it is the
    difference of two: with mean 1000 and deviation 1, a tenth. So the products of the means are
    told apart from those of the differences from them, and their rounding is kept. The largest part
    has 12 binary digits, so that those of micro-batches add up exactly.
    """
    count = jnp.sum(weights, axis=0)
    size = jnp.where(count != 0, count, 1)
    x_mean, y_mean = (jnp.sum(weights * values, axis=0) / size for values in (x, y))
    dx, dy = x - x_mean[None], y - y_mean[None]
    product, rounding = _multiply(x_mean, y_mean)
    whole, part = _multiply(count, product)
    crossed = x_mean * jnp.sum(weights * dy, axis=0) + y_mean * jnp.sum(weights * dx, axis=0)
    return jnp.stack(
        [*_split(whole), part + count * rounding + crossed, jnp.sum(weights * dx * dy, axis=0)]
    )


def _multiply(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return a product in float32 and what rounding took from it (Dekker 1971)."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _split(a), _split(b)
    rounding = a_high * b_high - product + a_high * b_low + a_low * b_high + a_low * b_low
    return product, rounding


def _split(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the upper 12 binary digits of a number, and the others."""
    # By its bits: compilers may simplify the sums that do it too.
    bits = lax.bitcast_convert_type(a, jnp.uint32) & np.uint32(0xFFFFF000)
    high = lax.bitcast_convert_type(bits, jnp.float32)
    return high, a - high


def _read_outputs(
    owner: str, input: Values, label: Values, sample_weight: Weights, ignore_index: float | None
) -> list[jax.Array]:
    """Return inputs, labels and weights, `[N, D]`, float32."""
    rows = read_rows(owner, input, label, sample_weight, ignore_index, "numbers")
    num_outputs = rows.shape[-1] if len(rows.shape) > 1 else 1
    return [column.reshape(-1, num_outputs).astype(jnp.float32) for column in rows[:3]]


def _variance(squares: np.ndarray, total: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Return the sum of squared differences from the mean; 0 where it is less than rounding."""
    mean = total / np.maximum(count, 1e-300)
    sum_of_squares = squares - total * mean
    return np.where(sum_of_squares > 1e-13 * np.abs(squares), sum_of_squares, 0)


@dataclasses.dataclass(frozen=True)
class R2(Metric):
    """Hold the sums of which the share of explained variance is made.

    As scikit-learn's `r2_score`: of a constant label it is 1 where all is right, and 0 else; of
    fewer than two rows nan. With labels `[B, D]` each column is an output.

    >>> R2.of(jnp.array([2.5, 0.0, 2.0, 8.0]), jnp.array([3.0, -0.5, 2.0, 7.0])).compute()
    0.9486081370449679
    """

    errors: jax.Array
    squares: jax.Array
    total: jax.Array
    count: jax.Array
    num_rows: jax.Array
    multioutput: MultiOutput = dataclasses.field(default="uniform_average", metadata=SETTING)

    @classmethod
    def of(
        cls,
        input: Values,
        label: Values,
        *,
        multioutput: MultiOutput = "uniform_average",
        sample_weight: Weights = None,
        ignore_index: float | None = None,
    ) -> Self:
        """Return the sums of a batch, of inputs of the labels' shape.

        Arguments:
          multioutput: the mean over outputs, an array of them (`"raw_values"`), or the mean by
            their variance.
        """
        check_choice("metrics.R2 got multioutput=", multioutput, get_args(MultiOutput))
        input, label, weights = _read_outputs("R2", input, label, sample_weight, ignore_index)
        return cls(
            jnp.sum(weights * (input - label) ** 2, axis=0),
            _sum_products(label, label, weights),
            _sum_products(label, jnp.ones_like(label), weights),
            jnp.sum(weights, axis=0),
            jnp.sum(weights != 0, axis=0),
            multioutput,
        )

    def compute(self) -> float | np.ndarray:
        """Return the value, at most 1, or with `"raw_values"` one for each output, `[D]`."""
        errors, squares, total, count, num_rows = (
            np.asarray(array, np.float64)
            for array in (self.errors, self.squares, self.total, self.count, self.num_rows)
        )
        variance = _variance(squares.sum(axis=0), total.sum(axis=0), count)
        explained = 1 - errors / np.where(variance > 0, variance, 1)
        values = np.where(variance > 0, explained, np.where(errors > 0, 0.0, 1.0))
        values = np.where(num_rows < 2, np.nan, values)
        if self.multioutput == "raw_values":
            return values
        is_weighted = self.multioutput == "variance_weighted" and variance.any()
        return float(np.average(values, weights=variance if is_weighted else None))


@dataclasses.dataclass(frozen=True)
class Pearson(Metric):
    """Hold the sums of which the correlation of inputs and labels is made.

    As `scipy.stats.pearsonr`; nan where one of the two is constant.

    >>> Pearson.of(jnp.array([1.0, 2.0, 3.0]), jnp.array([6.0, 4.0, 2.0])).compute()
    -1.0
    """

    products: jax.Array
    count: jax.Array

    @classmethod
    def of(
        cls,
        input: Values,
        label: Values,
        *,
        sample_weight: Weights = None,
        ignore_index: float | None = None,
    ) -> Self:
        """Return the sums of a batch, of inputs of the labels' shape."""
        columns = _read_outputs("Pearson", input, label, sample_weight, ignore_index)
        x, y, weights = (column.reshape(-1, 1) for column in columns)
        ones = jnp.ones_like(x)
        pairs = ((x, x), (y, y), (x, y), (x, ones), (y, ones))
        products = [_sum_products(a, b, weights)[:, 0] for a, b in pairs]
        return cls(jnp.stack(products), jnp.sum(weights))

    def compute(self) -> float:
        """Return the correlation, -1 to 1."""
        xx, yy, xy, x, y = np.asarray(self.products, np.float64).sum(axis=1)
        count = np.asarray(self.count, np.float64)
        size = _variance(xx, x, count) * _variance(yy, y, count)
        return float((xy - x * y / count) / np.sqrt(size)) if size > 0 else float("nan")
