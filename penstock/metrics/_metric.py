"""The protocol of metrics, the rows of a batch that they count, and the mean."""

from __future__ import annotations

import abc
import dataclasses
import functools
import inspect
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, Self, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from penstock._errors import ProgramError
from penstock._program.sequences import Sequence
from penstock.layers.arguments import widen_bytes

Values: TypeAlias = "ArrayLike | Sequence"
"""An array, or a sequence, each word of which counts."""

Weights: TypeAlias = "Values | None"
"""A weight for each label or example; None is 1 each."""


class Rows(NamedTuple):
    """Rows of a batch; where weights are 0 the others are too. `shape` was that of the labels."""

    input: jax.Array
    label: jax.Array
    weights: jax.Array
    shape: tuple[int, ...]


def read_rows(
    owner: str,
    input: Values,
    label: Values,
    sample_weight: Weights,
    ignore_index: float | None,
    takes: Literal["numbers", "classes", "both"] = "both",
) -> Rows:
    """Return the rows of a batch, or raise.

    `input` is as the labels, `[B, ...]` or `[B, ..., 1]`, or `[B, ..., C]`; `takes` says whether
    each label has one number, one for every class, or any of the two.
    """
    lengths = [values.max_length for values in (input, label) if isinstance(values, Sequence)]
    masks = [values.mask for values in (input, label) if isinstance(values, Sequence)]
    length = min(lengths, default=None)
    input, label = (
        value.values[:, :length] if isinstance(value, Sequence) else jnp.asarray(value)
        for value in (input, label)
    )
    if label.shape in ((*input.shape, 1), (*input.shape[:-1], 1)) and input.shape != label.shape:
        label = label[..., 0]
    elif input.shape == (*label.shape, 1):
        input = input[..., 0]
    if not label.ndim or label.shape not in (input.shape, input.shape[:-1]):
        raise ProgramError(
            f"metrics.{owner} got an input of shape {input.shape} and labels of shape "
            f"{label.shape}, expected equal shapes, or inputs with an axis of classes behind. A "
            "row has one label. Reshape one of them."
        )
    has_classes = input.ndim > label.ndim
    if takes == ("numbers" if has_classes else "classes"):
        expected = "one for each class" if takes == "classes" else "one"
        raise ProgramError(
            f"metrics.{owner} got {input.shape[-1] if has_classes else 1} numbers for each label, "
            f"expected {expected}. It got an input of shape {input.shape} and labels of shape "
            f"{label.shape}. Pass scores [B, ..., C] where it needs those of all classes."
        )
    weights = jnp.ones(label.shape, jnp.float32)
    if sample_weight is not None:
        weights = spread_weights(owner, sample_weight, label.shape).astype(jnp.float32)
    counts = weights != 0
    for mask in masks:
        counts &= spread_weights(owner, mask[:, :length], label.shape)
    if ignore_index is not None:
        counts &= widen_bytes(label) != ignore_index
    # Selected, not multiplied by 0: what is left out may be nan.
    weights, label = jnp.where(counts, weights, 0), jnp.where(counts, label, 0)
    input = jnp.where(counts[..., None] if has_classes else counts, input, 0)
    if jnp.issubdtype(input.dtype, jnp.floating):
        input = input.astype(jnp.float32)
    shape = (-1, input.shape[-1]) if has_classes else (-1,)
    return Rows(
        input.reshape(shape),
        label.reshape(-1),
        weights.reshape(-1),
        (label.size,) if masks else label.shape,
    )


def spread_weights(owner: str, weight: Values, shape: tuple[int, ...]) -> jax.Array:
    """Return weights of the first axes of a shape, spread over the others."""
    weight = weight.values if isinstance(weight, Sequence) else jnp.asarray(weight)
    while weight.ndim > 1 and weight.shape != shape[: weight.ndim] and weight.shape[-1] == 1:
        weight = weight[..., 0]
    if (shape and not weight.ndim) or weight.shape != shape[: weight.ndim]:
        raise ProgramError(
            f"metrics.{owner} got a sample_weight of shape {weight.shape} for labels of shape "
            f"{shape}, expected {shape}, or its first axes. Each label has one weight, or each "
            "example. Reshape the weights."
        )
    weight = weight.reshape(*weight.shape, *(1,) * (len(shape) - weight.ndim))
    return jnp.broadcast_to(weight, shape)


def compare_classes(ids: jax.Array, num_classes: int) -> jax.Array:
    """Return whether each of the ids `[N]` is each of the classes, `[N, C]`."""
    # Compared, not indexed: it melts into the sum after it, and a class that there is not is none.
    return ids[:, None] == jnp.arange(num_classes)[None, :]


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
