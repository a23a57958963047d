"""What programs return: its structure, its running mean on the device, its lazy reading.

Means are kept on the device as pairs of float32 (a sum and what rounding took from it, renormalised
after each addition), because a plain float32 sum is 9 % off after ten million additions of 0.1;
the pair is exact to float64 there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from penstock._errors import ProgramError
from penstock._program import sequences

T = TypeVar("T")

Outline: TypeAlias = "Mapping[Hashable, Outline] | Sequence[Outline] | type[Any] | None"
"""What a program returned, with None in place of each value, and its class of each sequence."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Structure:
    """How the values of a program function are arranged, and which of them have a batch axis.

    `keys[i]` names value `i`: its key or number, and where `is_nested[i]` a path such as
    `accuracy/top_1`. `rows[i]` is how many rows of axis 0 of value `i` belong to one example, 0 for
    values without a batch axis; `is_scalar[i]` is whether it has no axes, `is_word_mean[i]` whether
    it is a mean over words. `loss_index` is the value that a train program minimises.
    """

    keys: tuple[Hashable, ...] | None
    build: Callable[[Sequence[Any]], Any]
    rows: tuple[int, ...] = ()
    is_scalar: tuple[bool, ...] = ()
    is_nested: tuple[bool, ...] = ()
    is_word_mean: tuple[bool, ...] = ()
    loss_index: int = 0

    def label(self, number: int) -> str:
        """Return how an error names value `number`."""
        if self.keys is None:
            return "the returned value"
        return f"returned value {self.keys[number]!r}"


def flatten_returned(
    returned: object, owner: str, *, is_averaged: bool = False
) -> tuple[Structure, list[jax.Array]]:
    """Return the structure of what a program function returned, and its values in order.

    Those of train and test are averaged, and may not be sequences.

    Raises:
      ProgramError: nothing was returned, or a value is not an array.
    """
    keys, values, is_nested = [], [], []
    for path, value in _iterate(returned, ()):
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
            keys.append(whole[0] if len(whole) == 1 else "/".join(map(str, whole)))
            is_nested.append(len(whole) > 1)
            values.append(leaf)
    # Values are tracers, which must not outlive their trace.
    outline = _remove_values(returned)
    structure = Structure(
        # A value by itself has none.
        keys=tuple(keys) if isinstance(returned, (Mapping, tuple, list)) else None,
        build=lambda items: _fill(outline, iter(items)),
        is_nested=tuple(is_nested),
    )
    expected = "expected an array, or a tuple, list or dict of arrays, nested or not"
    if returned is None or not values:
        raise ProgramError(
            f"{owner} returned {returned!r}, {expected}. A program is derived from what its "
            "function returns. Is a return statement missing?"
        )
    for number, value in enumerate(values):
        if not isinstance(value, (jax.Array, np.ndarray, np.generic, float, int, bool)):
            raise ProgramError(
                f"{owner} has {type(value).__name__} as {structure.label(number)}, {expected}. "
                "Return the arrays inside."
            )
        values[number] = jnp.asarray(value)
    return structure, values


def list_values(returned: object) -> list[Any]:
    """Return the values of a nested structure in the order of its `Structure`."""
    return [value for _, value in _iterate(returned, ())]


def _iterate(
    returned: object, path: tuple[Hashable, ...]
) -> Iterator[tuple[tuple[Hashable, ...], object]]:
    """Yield path and value of each leaf. Not JAX's order, which sorts the keys of dicts."""
    if isinstance(returned, (Mapping, tuple, list)):
        inner = returned.items() if isinstance(returned, Mapping) else enumerate(returned)
        for key, value in inner:
            yield from _iterate(value, (*path, key))
    else:
        yield path, returned


def _remove_values(returned: object) -> Outline:
    """Return the structure with no values, which are tracers that nothing may keep."""
    if isinstance(returned, (sequences.Sequence, sequences.NestedSequence)):
        return type(returned)
    if isinstance(returned, Mapping):
        return {key: _remove_values(value) for key, value in returned.items()}
    if isinstance(returned, (tuple, list)):
        return _rebuild(returned, map(_remove_values, returned))
    return None


def _fill(outline: Outline, items: Iterator[Any]) -> object:
    if isinstance(outline, type):
        return outline(*[next(items) for _ in dataclasses.fields(outline)])
    if isinstance(outline, dict):
        return {key: _fill(part, items) for key, part in outline.items()}
    if isinstance(outline, (tuple, list)):
        return _rebuild(outline, [_fill(part, items) for part in outline])
    return next(items)


def _rebuild(sequence: Any, items: Iterable[T]) -> Sequence[T]:
    """Return a tuple, named tuple or list of the kind of `sequence`."""
    return type(sequence)(*items) if hasattr(sequence, "_fields") else type(sequence)(items)


class Totals(NamedTuple):
    """The values of a program function for the global batch.

    Attributes:
      values: those with a batch axis are this device's rows, the others means over the batch.
      row_sums: the sums over examples of those with a batch axis; empty on one device, where they
        cost no all-reduce later.
      total_weight: the number of valid examples.
      word_counts: the number of words, for each of the values that is a mean over words.
    """

    values: list[jax.Array]
    row_sums: list[jax.Array]
    total_weight: jax.Array
    word_counts: list[jax.Array]


class Accumulator(NamedTuple):
    """Sums over examples since the last reset, on the device.

    `scalars` `[2, S + W + 1]` holds the pairs of the values without axes, of the words that each of
    the means over words counts, and, last, of the examples; `arrays` holds `[2, ...]` for each of
    the other values, without the batch axis. A sum that met a nan or an infinity is never finite
    again.
    """

    scalars: jax.Array
    arrays: tuple[jax.Array, ...]

    def loss_sum(self, structure: Structure) -> jax.Array:
        """Return the sum of the loss, whose being finite tells whether every loss was."""
        return self.scalars[0, sum(structure.is_scalar[: structure.loss_index])]


def zeros(
    structure: Structure,
    shapes: Sequence[tuple[int, ...]],
    make: Callable[..., Any] = jnp.zeros,
) -> Accumulator:
    """Return an empty accumulator for values of the given shapes (batch axis included).

    Arguments:
      make: `jnp.zeros`, `np.zeros` for one on the host, or `jax.ShapeDtypeStruct` for its shapes.
    """
    return Accumulator(
        scalars=make((2, sum(structure.is_scalar) + sum(structure.is_word_mean) + 1), np.float32),
        arrays=tuple(
            make((2, *(shape[1:] if rows else shape)), np.float32)
            for shape, rows in zip(shapes, structure.rows, strict=True)
            if shape
        ),
    )


def accumulate(
    accumulator: Accumulator, found: Totals, structure: Structure, weights: jax.Array
) -> Accumulator:
    """Add a global batch's values, weighted by its examples or words. Runs inside a program."""
    values, row_sums, total_weight, word_counts = found
    scalars, array_sums, known = [], [], iter(row_sums)
    counts = iter(word_counts)
    is_word_mean = structure.is_word_mean or (False,) * len(values)
    for value, per_example, is_mean in zip(values, structure.rows, is_word_mean, strict=True):
        if not per_example:
            value = value.astype(jnp.float32)
            # Weighted by the examples: a short last batch counts less in the mean.
            weight = next(counts) if is_mean else total_weight
            (array_sums if value.ndim else scalars).append(value * weight)
        else:
            array_sums.append(next(known) if row_sums else sum_rows(value, weights, per_example))
    return Accumulator(
        scalars=_add_pair(accumulator.scalars, jnp.stack([*scalars, *word_counts, total_weight])),
        arrays=tuple(
            _add_pair(pair, total)
            for pair, total in zip(accumulator.arrays, array_sums, strict=True)
        ),
    )


def sum_rows(value: jax.Array, weights: jax.Array, per_example: int) -> jax.Array:
    """Return the sum over examples of a value with a batch axis, of each example the mean row."""
    # The rows of one example share its weight.
    row_weights = jnp.repeat(weights, per_example) / per_example
    return jnp.tensordot(row_weights, value.astype(jnp.float32), axes=(0, 0))


def _add_pair(pair: jax.Array, term: jax.Array) -> jax.Array:
    """Add `term` `[...]` to the double-single sums `pair` `[2, ...]`."""
    high, low = pair
    total = high + term
    # Knuth's two-sum: what rounding took from `total`, exactly.
    carried = total - high
    rounding = (high - (total - carried)) + (term - carried) + low
    # Renormalised: without it the low half grows until it rounds too, and the mean is 0.2 % off.
    high = total + rounding
    return jnp.stack([high, rounding - (high - total)])


def compute_means(accumulator: Accumulator, structure: Structure) -> Any:
    """Return the example-weighted means since the reset, in the program's structure.

    Waits for the device. Scalars are Python floats; values with a batch axis are averaged over it.
    """
    scalars, arrays = jax.device_get((accumulator.scalars, accumulator.arrays))
    # Both halves of the pair, in float64 on the host.
    sums = scalars.astype(np.float64).sum(axis=0)
    count = sums[-1]
    if not count:
        raise ValueError("a mean over examples got no example, expected at least one.")
    scalar_values = iter(_divide(sums, structure))
    array_values = iter([np.asarray(pair, np.float64).sum(axis=0) / count for pair in arrays])
    return structure.build(
        [
            next(scalar_values) if is_scalar else _to_plain(next(array_values))
            for is_scalar in structure.is_scalar
        ]
    )


def _divide(sums: np.ndarray, structure: Structure) -> list[float]:
    """Return the means of the values without axes: over words or over examples."""
    flags = structure.is_word_mean or (False,) * len(structure.is_scalar)
    over_words = [mean for mean, scalar in zip(flags, structure.is_scalar, strict=True) if scalar]
    number = len(over_words)
    counts = np.full(number, sums[-1])
    # An epoch without a word has the mean 0, as a batch has.
    counts[over_words] = np.maximum(sums[number:-1], 1)
    return (sums[:number] / counts).tolist()


def read(values: Sequence[jax.Array], structure: Structure, num_examples: int) -> Any:
    """Return values on the host in the program's structure; rows of padding are cut off.

    Waits for the device. Values without axes become Python numbers, sequences lists of arrays, each
    of its own length.
    """
    host = fetch(list(values))
    return sequences.cut_all(
        structure.build(
            [_cut(v, r, num_examples) for v, r in zip(host, structure.rows, strict=True)]
        )
    )


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
    shards = sorted(value.addressable_shards, key=lambda shard: shard.index[axis].start or 0)
    return np.concatenate([jax.device_get(shard.data) for shard in shards], axis=axis)


def _cut(value: np.ndarray, rows: int, num_examples: int) -> np.ndarray | float:
    return np.array(value[: num_examples * rows]) if rows else _to_plain(value)


def _to_plain(value: np.ndarray) -> np.ndarray | float:
    return value.item() if np.ndim(value) == 0 else np.array(value)


class LaunchValues:
    """The values of the steps of one launch; the first reading fetches them all, once.

    Arguments:
      values: of each objective, on the device.
      counts: the examples of each step.
      rates: the learning rates of the optimizers that have one in their state.

    Attributes:
      num_steps: of the launch.
      has_rates: whether there are learning rates.
      is_read: whether the values are on the host already.
    """

    __slots__ = (
        "_counts",
        "_host",
        "_rates",
        "_structures",
        "_values",
        "has_rates",
        "is_read",
        "num_steps",
    )

    def __init__(
        self,
        values: Mapping[str, Sequence[jax.Array]],
        structures: Mapping[str, Structure],
        counts: Sequence[int],
        rates: Mapping[str, jax.Array],
    ) -> None:
        self._values: Any = values
        self._rates = rates
        self._structures = structures
        self._counts = counts
        self._host: Any = None
        # Plain attributes: each is looked at in every step.
        self.num_steps, self.has_rates, self.is_read = len(counts), bool(rates), False

    def at(self, number: int) -> Any:
        """Return the metrics of step `number` of the launch; waits for the device."""
        if self._host is None:
            self._host, self.is_read = fetch(self._values), True
            self._values = None  # lets go of the device's buffers
        # With several steps in a launch every value has an axis of them in front.
        single, many = len(self._structures) == 1, len(self._counts) > 1
        metrics = {
            name: self._structures[name].build(
                [
                    _cut(v[number] if many else v, rows, self._counts[number])
                    for v, rows in zip(values, self._structures[name].rows, strict=True)
                ]
            )
            for name, values in self._host.items()
        }
        return next(iter(metrics.values())) if single else metrics

    def rate_at(self, number: int) -> float | dict[str, float]:
        """Return the learning rate of step `number`; waits for the device."""
        many = len(self._counts) > 1
        rates = {
            name: float(rate[number] if many else rate)
            for name, rate in jax.device_get(dict(self._rates)).items()
        }
        return next(iter(rates.values())) if len(self._structures) == 1 else rates

    def losses(self, number: int) -> dict[str, float]:
        """Return each objective's loss at step `number`, from values that are read already."""
        structures, many = self._structures, len(self._counts) > 1
        return {
            name: float(
                v[structures[name].loss_index][number] if many else v[structures[name].loss_index]
            )
            for name, v in self._host.items()
        }
