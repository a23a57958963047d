"""The protocol of metrics, and the mean."""

from __future__ import annotations

import abc
import dataclasses
import functools
import inspect
from collections.abc import Iterable
from typing import Any, Self, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from penstock.metrics._rows import spread_weights

M = TypeVar("M")

Auxiliary: TypeAlias = tuple[tuple[str, ...], tuple[object, ...]]
"""Names of all fields, sums first, and the values of the settings."""


@functools.cache  # a resampled test takes metrics apart thousands of times
def _name_fields(kind: type) -> tuple[list[str], list[str]]:
    if not dataclasses.is_dataclass(kind):
        raise TypeError(
            f"{kind.__name__} got no fields, expected a dataclass: its fields are the "
            "sums. Write @dataclasses.dataclass(frozen=True) above the class."
        )
    sums: list[str] = []
    settings: list[str] = []
    for field in dataclasses.fields(kind):
        (settings if field.metadata.get("static") else sums).append(field.name)
    return sums, settings


def _flatten(metric: object) -> tuple[list[tuple[object, object]], Auxiliary]:
    sums, settings = _name_fields(type(metric))
    values = [(jax.tree_util.GetAttrKey(name), getattr(metric, name)) for name in sums]
    return values, ((*sums, *settings), tuple(getattr(metric, name) for name in settings))


def _unflatten(kind: type[M], auxiliary: Auxiliary, values: Iterable[object]) -> M:
    metric = object.__new__(kind)
    for name, value in zip(auxiliary[0], (*values, *auxiliary[1]), strict=True):
        # By way of `object`, since the dataclass is frozen.
        object.__setattr__(metric, name, value)
    return metric


class _MetricType(abc.ABCMeta):
    """Adds how a metric is made to the error of one that got other arguments than its fields."""

    def __call__(cls, *sums: Any, **settings: Any) -> Any:
        try:
            return super().__call__(*sums, **settings)
        except TypeError as error:
            if of := getattr(cls, "of", None):
                inputs = ", ".join(list(inspect.signature(of).parameters)[:2])
                error.add_note(
                    f"A program makes one of its batch: {cls.__name__}.of({inputs}, ...)"
                )
            raise


class Metric(metaclass=_MetricType):
    """Hold sums over the examples of a batch, of which `compute` makes the value.

    A program function returns it beside the loss. Batches add their sums up, and `compute` is
    called at the end, once, on the host. So an epoch and a test are exact whatever the batch size,
    on any number of devices and processes. An `EndStep` shows the value of its batch.

    Write one of your own as a frozen dataclass whose fields are arrays to be added up. A field with
    `metadata={"static": True}` is a setting, and no sum.

    >>> import dataclasses
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import penstock as ps
    >>> from penstock import layers, metrics
    >>> @dataclasses.dataclass(frozen=True)
    ... class RootMeanSquare(metrics.Metric):
    ...     total: jax.Array
    ...     count: jax.Array
    ...
    ...     @classmethod
    ...     def of(cls, errors):
    ...         return cls(jnp.sum(errors**2), jnp.asarray(errors.size))
    ...
    ...     def compute(self):
    ...         return (self.total / self.count) ** 0.5
    >>> def program():
    ...     errors = layers.data("x", shape=[1]) - layers.data("y", shape=[1])
    ...     return {"loss": layers.mean(errors**2), "rmse": RootMeanSquare.of(errors)}
    >>> trainer = ps.Trainer(program)
    >>> batches = [{"x": [[3.0]], "y": [[0.0]]}, {"x": [[1.0], [2.0]], "y": [[1.0], [2.0]]}]
    >>> round(trainer.test(batches)["rmse"], 4)
    1.7321
    """

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        jax.tree_util.register_pytree_with_keys(cls, _flatten, functools.partial(_unflatten, cls))

    @abc.abstractmethod
    def compute(self) -> Any:
        """Return the value that the sums make, a number or an array; called outside of programs."""


class RowMetric(Metric):
    """Keep rows of examples, for what is no function of sums, such as a rank.

    Its fields are arrays whose first axis is the batch's, one row or several for each example.
    `trainer.test` keeps them on the host, as many bytes as they are, and `compute` gets those of
    the whole set as numpy arrays. `EndStep` shows the value of its batch. An epoch of training
    keeps no rows: `EndEpoch` shows None.

    >>> import dataclasses
    >>> import jax
    >>> import numpy as np
    >>> import penstock as ps
    >>> from penstock import layers, metrics
    >>> @dataclasses.dataclass(frozen=True)
    ... class Median(metrics.RowMetric):
    ...     values: jax.Array
    ...
    ...     def compute(self):
    ...         return np.median(self.values)
    >>> def program():
    ...     x = layers.data("x", shape=[1])
    ...     return {"loss": layers.mean(x), "median": Median(x)}
    >>> ps.Trainer(program).test([{"x": [[1.0], [2.0]]}, {"x": [[9.0]]}])["median"]
    2.0
    """


@dataclasses.dataclass(frozen=True)
class Interval:
    """A value that a test measured, and between what the value of all data lies.

    `trainer.test(reader, confidence=0.95)` returns one for each value, and
    `metrics.Interval.value` is what it returns without.

    Arguments:
      value: of the examples of the test, a number or an array.
      low: the lower end, of its shape; None where there is no interval.
      high: the upper end.

    >>> print(Interval(0.861, 0.8532, 0.8684))
    0.861 (0.8532 to 0.8684)
    """

    value: Any
    low: Any
    high: Any

    def __float__(self) -> float:
        return float(self.value)

    def __str__(self) -> str:
        if self.low is None or np.ndim(self.value):
            return str(self.value)
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"


@dataclasses.dataclass(frozen=True)
class Average(Metric):
    """Hold the sum of values times their weights, and the sum of the weights."""

    total: jax.Array
    count: jax.Array

    @classmethod
    def sum(cls, values: jax.Array, weights: jax.Array) -> Self:
        """Return the sums of values and weights of one shape."""
        return cls(jnp.sum(values * weights), jnp.sum(weights))

    def compute(self) -> float:
        """Return the mean; 0 where there is nothing to average."""
        return float(self.total) / float(self.count) if self.count else 0.0


class Mean(Average):
    """Hold the sum of values and how many they are.

    >>> Mean.of(jnp.array([1.0, 4.0]), weights=jnp.array([2.0, 1.0])).compute()
    2.0
    """

    @classmethod
    def of(cls, values: ArrayLike, weights: ArrayLike | None = None) -> Self:
        """Return the mean of all numbers of an array.

        Arguments:
          values: of any shape.
          weights: of the same shape, or of its first axes; 1 each by default.
        """
        return cls.sum(*_read_weighted(cls.__name__, values, weights))


class WeightedMean(Average):
    """Hold the sum of weighted values and of the weights: the `Mean` whose weights are required.

    >>> WeightedMean.of(jnp.array([1.0, 4.0]), jnp.array([2.0, 1.0])).compute()
    2.0
    """

    @classmethod
    def of(cls, values: ArrayLike, weights: ArrayLike) -> Self:
        """Return the weighted mean of an array; see `Mean.of`."""
        return cls.sum(*_read_weighted(cls.__name__, values, weights))


def _read_weighted(
    owner: str, values: ArrayLike, weights: ArrayLike | None
) -> tuple[jax.Array, jax.Array]:
    values = jnp.asarray(values).astype(jnp.float32)
    weights = 1 if weights is None else spread_weights(owner, weights, values.shape)
    return values, jnp.broadcast_to(weights, values.shape).astype(jnp.float32)
