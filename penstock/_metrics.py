"""What programs return: its structure, its running mean on the device, its lazy reading.

Means are kept on the device as pairs of float32 (a sum and what rounding took from it, renormalised
after each addition), because a plain float32 sum is 9 % off after ten million additions of 0.1;
the pair is exact to float64 there.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from penstock._errors import ProgramError, UnknownNameError, listed
from penstock._program import sequences
from penstock.metrics import Metric, RowMetric

T = TypeVar("T")

Value: TypeAlias = "jax.Array | Metric"
"""What a program returns: an array, or the sums of a metric."""

_NUMBER = jax.ShapeDtypeStruct((), np.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
    """One value that a program function returns; its key is a number or a path too, `acc/top_1`.

    Attributes:
      shape: shape and dtype, batch axis included; of a metric one with those of each sum.
      rows: how many rows of axis 0 belong to one example, 0 without a batch axis.
      counts_words: whether it is a mean over words, or over labels that count.
      is_of_part: whether over those of the micro-batch, not of the batch.
    """

    key: Hashable = None
    shape: Any = _NUMBER
    rows: int = 0
    is_nested: bool = False
    is_mean: bool = False
    counts_words: bool = False
    is_of_part: bool = False

    @property
    def is_metric(self) -> bool:
        return isinstance(self.shape, Metric)

    @property
    def num_scalars(self) -> int:
        """How many numbers without axes its sums hold: one or none but for metrics."""
        return sum([not x.shape for x in list_sums(self.shape)])

    @property
    def label(self) -> str:
        return "the returned value" if self.key is None else f"returned value {self.key!r}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Structure:
    items: tuple[Item, ...]
    build: Callable[[Sequence[Any]], Any]
    loss_index: int = 0

    @property
    def are_numbers(self) -> list[bool]:
        """Whether each value is one number; a metric is taken for one."""
        return [item.is_metric or item.num_scalars == 1 for item in self.items]

    def list_doubted(self) -> list[int]:
        """Return which values are single numbers that no layer has made as a mean."""
        kinds = [(item.num_scalars, item.is_metric, item.is_mean) for item in self.items]
        return [number for number, kind in enumerate(kinds) if kind == (1, False, False)]


def flatten_returned(
    returned: object, owner: str, *, is_averaged: bool = False
) -> tuple[Structure, list[Value]]:
    """Return the structure of what a program function returned, and its values in order."""
    items: list[Item] = []
    values: list[Any] = []
    for path, value in iterate(returned, ()):
        leaves: Any = {"": value}
        if isinstance(value, (sequences.Sequence, sequences.NestedSequence)):
            if is_averaged:
                raise ProgramError(
                    f"{owner} returned a sequence, expected arrays, which are averaged over "
                    "batches. Return layers.mean or layers.sequence_pool of it."
                )
            leaves = vars(value)  # values, lengths and, where they are nested, counts
        for behind, leaf in leaves.items():
            whole = (*path, behind) if behind else path
            key = whole[0] if len(whole) == 1 else "/".join(map(str, whole)) if path else None
            items.append(Item(key=key, is_nested=len(whole) > 1))
            values.append(leaf)
    expected = "expected an array, or a tuple, list or dict of arrays, nested or not"
    if returned is None or not values:
        raise ProgramError(
            f"{owner} returned {returned!r}, {expected}. A program is derived from what its "
            "function returns. Is a return statement missing?"
        )
    for number, value in enumerate(values):
        if isinstance(value, Metric):
            values[number] = jax.tree.map(jnp.asarray, value)
            continue
        if not isinstance(value, (jax.Array, np.ndarray, np.generic, float, int, bool)):
            raise ProgramError(
                f"{owner} has {type(value).__name__} as {items[number].label}, {expected}. "
                "Return the arrays inside."
            )
        values[number] = jnp.asarray(value)
    # Values are tracers, which must not outlive their trace.
    kinds = (sequences.Sequence, sequences.NestedSequence)
    remove = lambda value: type(value) if isinstance(value, kinds) else None  # noqa: E731
    outline = map_leaves(remove, returned)

    def fill(values: Sequence[Any]) -> Any:
        remaining = iter(values)

        def take(kind: type[Any] | None) -> Any:
            if kind is None:
                return next(remaining)
            return kind(*[next(remaining) for _ in dataclasses.fields(kind)])

        return map_leaves(take, outline)

    build = operator.itemgetter(0) if outline is None else fill
    return Structure(items=tuple(items), build=build), values


def find_monitored(
    means: Mapping[str, Sequence[Any]], monitor: str, structures: Mapping[str, Structure]
) -> float | None:
    """Return the mean that a name stands for: `"loss"`, a key, a number, or `objective/name`."""
    objective, name = next(iter(structures)), monitor
    if len(structures) > 1:
        objective, _, name = monitor.partition("/")
        if objective not in structures:
            raise UnknownNameError(
                f"monitor got {monitor!r}, expected 'objective/metric' of {listed(structures)}."
            )
    if objective not in means:
        return None
    structure = structures[objective]
    named = zip(structure.items, means[objective], strict=True)
    values = {str(item.key): value for item, value in named if item.key is not None}
    values.setdefault("loss", means[objective][structure.loss_index])
    if name not in values:
        raise UnknownNameError(
            f"monitor got {monitor!r}, expected one of {listed(values)}, or a function."
        )
    if values[name] is None:
        raise UnknownNameError(
            f"monitor got {monitor!r}, expected a metric of sums. This one keeps rows, and an "
            "epoch of training keeps none. Use its form of sums, such as BinnedAUC, or ps.Evaluate."
        )
    is_number = np.ndim(values[name]) == 0 and not isinstance(values[name], Mapping)
    return float(values[name]) if is_number else None


def iterate(
    returned: object, path: tuple[Hashable, ...]
) -> Iterator[tuple[tuple[Hashable, ...], object]]:
    """Yield path and value of each leaf. Not JAX's order, which sorts the keys of dicts."""
    if isinstance(returned, (Mapping, tuple, list)):
        inner = returned.items() if isinstance(returned, Mapping) else enumerate(returned)
        for key, value in inner:
            yield from iterate(value, (*path, key))
    else:
        yield path, returned


def map_leaves(function: Callable[..., Any], first: Any, *rest: Any) -> Any:
    """Return nested values with a function of each leaf of one or several; sequences are leaves.

    Not JAX's, which sorts the keys of dicts.
    """
    if isinstance(first, Mapping):
        parts = {key: [value, *[other[key] for other in rest]] for key, value in first.items()}
        return {key: map_leaves(function, *part) for key, part in parts.items()}
    if isinstance(first, (tuple, list)):
        parts = [map_leaves(function, *part) for part in zip(first, *rest, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return function(first, *rest)


MAX_RESAMPLED = 4096
"""Sums of more numbers are not resampled: thousands of them would not fit."""


def is_resampled(sums: Any) -> bool:
    return sums.size <= MAX_RESAMPLED


class Returned(NamedTuple):
    """What a program function returned for a batch, and the words of each mean over words."""

    values: list[Value]
    word_counts: list[jax.Array]


class Sums(NamedTuple):
    """Sums over examples: `scalars` `[S + W + 1]` of numbers without axes, `arrays` of the others.

    After the sums of the numbers come the words that each of the means over words counts and, last,
    the examples. Since the last reset they are kept on the device as pairs, with an axis of 2 in
    front. A sum that met a nan or an infinity is never finite again.
    """

    scalars: jax.Array
    arrays: tuple[jax.Array, ...]

    def loss_sum(self, structure: Structure) -> jax.Array:
        """Return the sum of the loss, whose being finite tells whether every loss was."""
        # A metric before it may hold any number of sums, and so the loss is told from the end.
        before = structure.items[: structure.loss_index]
        return self.scalars[0, sum([item.num_scalars for item in before])]


def zeros(structure: Structure, make: Callable[..., Any] = jnp.zeros) -> Sums:
    items = structure.items
    num_scalars = 1 + sum([item.num_scalars + item.counts_words for item in items])
    shapes = [(item.rows, x.shape) for item in items for x in list_sums(item.shape) if x.shape]
    return Sums(
        scalars=make((2, num_scalars), np.float32),
        arrays=tuple([make((2, *(s[1:] if rows else s)), np.float32) for rows, s in shapes]),
    )


def list_sums(value: object) -> list[Any]:
    """Return what of a value is added up: the sums of a metric, none of one that keeps rows."""
    return [] if isinstance(value, RowMetric) else jax.tree.leaves(value)


def sum_up(returned: Returned, structure: Structure, num_examples: int) -> Sums:
    """Return what a batch's values add up to, weighted by its examples or words."""
    scalars: list[jax.Array] = []
    arrays: list[jax.Array] = []
    counts = iter(returned.word_counts)
    for value, item in zip(returned.values, structure.items, strict=True):
        if isinstance(value, Metric):
            sums = [x.astype(jnp.float32) for x in list_sums(value)]
        elif item.rows:
            sums = [jnp.sum(value.astype(jnp.float32), axis=0) / item.rows]
        else:
            weight = next(counts) if item.counts_words else num_examples
            sums = [value.astype(jnp.float32) * weight]
        for x in sums:
            # By the value's own axes: rows of one number each have a sum without any.
            (arrays if item.rows or x.ndim else scalars).append(x)
    examples = jnp.float32(num_examples)
    return Sums(jnp.stack([*scalars, *returned.word_counts, examples]), tuple(arrays))


def add(pairs: Sums, sums: Sums) -> Sums:
    return jax.tree.map(_add_pair, pairs, sums)


def add_counts(scalars: np.ndarray, structure: Structure) -> np.ndarray:
    """Return an accumulator's scalars with the counts of labels that it lacks up to 0.1."""
    num_sums, examples = sum([item.num_scalars for item in structure.items]), scalars[:, -1]
    are_of_part = [item.is_of_part for item in structure.items if item.counts_words]
    if scalars.shape[1] != num_sums + are_of_part.count(False) + 1:
        return scalars
    counts = iter(scalars[:, num_sums:-1].T)
    added = [examples if is_of_part else next(counts) for is_of_part in are_of_part]
    return np.stack([*scalars[:, :num_sums].T, *added, examples], axis=1)


def _add_pair(pair: jax.Array, term: jax.Array) -> jax.Array:
    """Add `term` `[...]` to the double-single sums `pair` `[2, ...]`."""
    high, low = pair
    total = high + term
    # Knuth's two-sum: what rounding took from `total`, exactly.
    carried = total - high
    rounding = (high - (total - carried)) + (term - carried) + low
    # An infinity stays what it is; what was taken from it would be infinity less infinity.
    rounding = jnp.where(jnp.isfinite(total), rounding, 0)
    # Renormalised: without it the low half grows until it rounds too, and the mean is 0.2 % off.
    high = total + rounding
    return jnp.stack([high, jnp.where(jnp.isfinite(high), rounding - (high - total), 0)])


class NoExamplesError(ValueError):
    """Nothing was added up since the last reset."""


def compute_values(
    accumulator: Sums,
    structure: Structure,
    rows: Sequence[RowMetric] = (),
) -> list[Any]:
    """Return means and metrics since the reset, one after the other; waits for the device.

    Scalars are Python floats; values with a batch axis are averaged over it. A metric that keeps
    rows is None without those of the whole set.
    """
    sums = add_halves(jax.device_get(accumulator))
    if not sums.scalars[-1]:
        raise NoExamplesError("a mean over examples got no example, expected at least one.")
    return compute_values_of(sums, structure, rows)


def add_halves(accumulator: Sums, axis: int = 0) -> Sums:
    """Return sums in float64 on the host: both halves of each pair, which are along the axis."""
    halves = jax.tree.map(lambda x: np.asarray(x, np.float64).sum(axis=axis), accumulator)
    return Sums(*halves)


def compute_values_of(
    sums: Sums, structure: Structure, rows: Sequence[RowMetric] = ()
) -> list[Any]:
    """Return means and metrics of sums in float64; see `compute_values`."""
    scalar_sums, array_sums = iter(sums.scalars), iter(sums.arrays)
    num_examples = sums.scalars[-1]
    num_counts = sum([item.counts_words for item in structure.items])
    # An epoch without a word has the mean 0, as a batch has.
    word_counts = iter(np.maximum(sums.scalars[-1 - num_counts : -1], 1))
    values: list[Any] = []
    row_metrics = iter(rows)
    for item in structure.items:
        if isinstance(item.shape, RowMetric):
            metric = next(row_metrics, None)
            values.append(None if metric is None else to_plain(metric.compute()))
            continue
        leaves, tree = jax.tree.flatten(item.shape)
        totals = [next(array_sums) if x.shape else next(scalar_sums) for x in leaves]
        if item.is_metric:
            # Exact over a data set, for counts of any size.
            kinds = [np.int64 if np.issubdtype(x.dtype, np.integer) else np.float64 for x in leaves]
            cast = [np.asarray(v).astype(kind) for v, kind in zip(totals, kinds, strict=True)]
            values.append(to_plain(jax.tree.unflatten(tree, cast).compute()))
        else:
            count = next(word_counts) if item.counts_words else num_examples
            values.append(to_plain(totals[0] / count))
    return values


def join_rows(metrics: Sequence[RowMetric], numpy: Any) -> RowMetric:
    return jax.tree.map(lambda *rows: numpy.concatenate(rows), *metrics)


def arrange(
    structures: Mapping[str, Structure], num_examples: int, name: str, values: Sequence[Any]
) -> Any:
    """Return values on the host as a program arranges them, metrics computed, padding cut off."""
    structure, shown = structures[name], []
    for value, item in zip(values, structure.items, strict=True):
        if isinstance(value, Metric):
            shown.append(to_plain(value.compute()))
        elif item.rows:
            shown.append(np.array(value[: num_examples * item.rows]))
        else:
            shown.append(value.item() if value.ndim == 0 else np.array(value))
    return structure.build(shown)


def fetch(values: object) -> Any:
    """Return arrays on the host; of one split over processes, this process's part."""
    if jax.process_count() == 1:
        return jax.device_get(values)
    return jax.tree.map(lambda x: _local_part(x) if isinstance(x, jax.Array) else x, values)


def _local_part(value: jax.Array) -> np.ndarray:
    if value.is_fully_replicated or value.is_fully_addressable:
        return jax.device_get(value)
    # The axis that is split: 0, or 1 where a launch stacks its steps in front.
    axis = next(number for number, name in enumerate(value.sharding.spec) if name)  # pyright: ignore
    # Devices may come in any order; rows are wanted in that of the batch.
    # Of a second axis of the mesh, several devices hold the same.
    parts = {shard.index[axis].start or 0: shard.data for shard in value.addressable_shards}
    return np.concatenate([jax.device_get(parts[start]) for start in sorted(parts)], axis=axis)


def to_plain(value: object) -> Any:
    """Return one number as Python has it, an array as a copy, and else what a metric computes."""
    if isinstance(value, Mapping):
        return {name: to_plain(item) for name, item in value.items()}
    value = np.asarray(value)
    return value.item() if value.ndim == 0 else np.array(value)


class StepValues:
    """What the steps of a launch gave, by objective; the first reading fetches it all, once."""

    def __init__(
        self,
        values: Mapping[str, Any],
        num_steps: int,
        is_single: bool,
        show: Callable[[str, Any], Any],
    ) -> None:
        self.values, self._show, self._is_single = values, show, is_single
        # Plain attributes: each is looked at in every step.
        self.num_steps, self.is_read = num_steps, False

    def at(self, number: int) -> Any:
        """Return what is shown of step `number` of the launch; waits for the device."""
        if not self.is_read:
            # Lets go of the device's buffers.
            self.values, self.is_read = fetch(self.values), True
        shown = {}
        for name, values in self.values.items():
            if self.num_steps > 1:
                values = jax.tree.map(operator.itemgetter(number), values)
            shown[name] = self._show(name, values)
        return shown.popitem()[1] if self._is_single else shown
