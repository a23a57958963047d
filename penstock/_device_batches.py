"""Feeds: checked against what the program declared, padded to a static size, put on the devices."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from penstock import _mesh, _sequence_feeds
from penstock._errors import FeedError, listed, nearest
from penstock._program import sequences
from penstock._program.requests import Feed, FeedSpec

Array: TypeAlias = np.ndarray | jax.Array
"""An array of a batch, on the host or on the devices."""

Column: TypeAlias = "Array | _sequence_feeds.Words"
"""One input of a batch that was checked."""

Placed: TypeAlias = "Array | sequences.Sequence | sequences.NestedSequence"
"""One input of a batch that is ready for a program."""

Exchange: TypeAlias = Callable[[str, object], list[Any]]
"""Returns what every process gives under a name. Collective."""

HOST_FEED_LIMIT_BYTES = 1 << 16
"""Below this, on one device, a batch rides along with the launch: 11 us an array against 30 us for
`jax.device_put`, and a batch this small hides no transfer worth hiding. On one CPU device every
batch does, since there is no transfer at all."""


BYTES = np.dtype(np.uint8)
"""What images are: they go to the device as they are, a quarter of the bytes of float32."""


class DeviceBatch(NamedTuple):
    """A batch ready for a program: `feed` and `weights` padded to the program's batch size.

    With several steps in one launch every array has a leading step axis. `counts` is the number of
    valid examples of each step, `size` what they are padded to, and `reader_state` the reader's
    position after them. `totals` counts those of all processes, where there are several.
    """

    feed: Mapping[str, Placed]
    weights: jax.Array
    counts: tuple[int, ...]
    size: int
    reader_state: object = None
    totals: tuple[int, ...] = ()


def check_feed(
    feed: Feed, specs: Mapping[str, FeedSpec], known: Mapping[str, FeedSpec]
) -> tuple[dict[str, Column], int]:
    """Return the inputs that `specs` name, in their declared shapes and dtypes, and their length.

    Arguments:
      feed: name to array-like with a leading batch axis.
      specs: what the program needs.
      known: what any program of the builder declares; other names are errors.

    Raises:
      FeedError: a name is missing or unknown, or a shape or dtype does not fit; all at once.
    """
    if not isinstance(feed, Mapping):
        raise FeedError(
            f"feed got {type(feed).__name__}, expected a dict of input name to array. Tuples are "
            "named by feed_order, which trainer.train and trainer.test take."
        )
    problems, columns = [], {}
    # All problems at once: a reader is most often wrong in several inputs.
    for name in feed:
        if name not in known and not _sequence_feeds.is_lengths(name, known):
            problems.append(
                f"feed got the unknown input {name!r}, expected {listed(known)}."
                + nearest(str(name), known)
            )
    for name, spec in specs.items():
        if name not in feed:
            problems.append(f"feed got {listed(feed)}, expected also {name!r}.")
            continue
        column = _convert(feed[name], spec, feed.get(f"{name}_length") if spec.lod_level else None)
        if isinstance(column, str):
            problems.append(column)
        else:
            columns[name] = column
    if problems:
        raise FeedError("\n".join(problems))
    sizes = {
        name: column.num_examples if isinstance(column, _sequence_feeds.Words) else column.shape[0]
        for name, column in columns.items()
    }
    if len(set(sizes.values())) > 1:
        raise FeedError(
            f"feed got batches of different lengths {sizes}, expected one length for all inputs. "
            "The first axis counts examples. See which input the reader cuts otherwise."
        )
    # A program without inputs computes as if for one example.
    size = next(iter(sizes.values()), 1)
    # Of several processes one may have no part of a short last batch.
    if not size and jax.process_count() == 1:
        raise FeedError("feed got a batch of 0 examples, expected at least 1.")
    return columns, size


def _is_masked(value: object) -> bool:
    """Say whether an array, or one in a list, has masked values: numpy drops the mask silently."""
    if isinstance(value, list | tuple):
        return any(isinstance(row, np.ma.MaskedArray) and np.ma.is_masked(row) for row in value)
    return isinstance(value, np.ma.MaskedArray) and bool(np.ma.is_masked(value))


def _convert(value: Any, spec: FeedSpec, lengths: object) -> Column | str:
    """Return the input as a batch of `spec`, or what is wrong with it as a string."""
    if _is_masked(value):
        return (
            f"feed {spec.name!r} got masked values, expected an array without a mask. What lies "
            "under it would be taken for data. Pass array.filled(0), and "
            "~np.ma.getmaskarray(array) as an input of its own."
        )
    if spec.lod_level:
        try:
            words = _sequence_feeds.read_words(value, lengths, spec)
        except FeedError as error:
            return str(error)
        cast = _cast(words.values, spec)
        return cast if isinstance(cast, str) else words._replace(values=np.asarray(cast))
    if isinstance(value, sequences.Sequence):
        # Fluid's scripts make tensors of sequences for dense inputs too.
        if np.any(np.asarray(value.lengths) != 1):
            return (
                f"feed {spec.name!r} got a Sequence of lengths {np.asarray(value.lengths)}, "
                "expected an array, or lengths of 1. The input is dense: it has one element for "
                "each example. Declare it with lod_level=1."
            )
        value = np.asarray(value.values)[:, 0]
    # The exact type: JAX takes no array of a subclass, such as one with a mask.
    if type(value) is not np.ndarray and not isinstance(value, jax.Array):
        try:
            value = np.asarray(value)
        except ValueError as error:
            return f"feed {spec.name!r} got what numpy makes no array of: {error}."
    is_shaped = value.shape[1:] == spec.shape and value.ndim
    shaped = value if is_shaped else _reshape(value, spec)
    return shaped if isinstance(shaped, str) else _cast(shaped, spec)


def _reshape(value: Array, spec: FeedSpec) -> Array | str:
    expected = f"expected [batch, {', '.join(map(str, spec.shape))}]"
    size = math.prod(spec.shape)
    # A scalar input's batch `[1]` has the shape of its example: it is taken for a batch.
    one_example = [spec.shape, (size,)] if size > 1 else [()]
    if value.shape in one_example:
        return (
            f"feed {spec.name!r} got shape {list(value.shape)}, {expected}. This is one example "
            "without a batch axis. Use readers.batch, or value[None] for a batch of one."
        )
    if not value.ndim or value.size != value.shape[0] * size:
        return (
            f"feed {spec.name!r} got shape {list(value.shape)}, {expected}. Without the batch "
            "axis that is what layers.data declares. Change the shape there, or what the reader "
            "yields."
        )
    # Only these can be reshaped without moving one axis into another.
    is_flat = value.ndim <= 2 or spec.shape == (1,)
    if value.shape[1:] != spec.shape and not is_flat:
        return (
            f"feed {spec.name!r} got shape {list(value.shape)}, {expected}. Only flat examples are "
            "reshaped; these axes are in another order or another grouping. Transpose or reshape "
            "them in the reader, or declare them so with layers.data."
        )
    return value.reshape(value.shape[0], *spec.shape)


def _cast(value: Array, spec: FeedSpec) -> Array | str:
    """Return `value` in the declared dtype when that loses nothing but precision.

    Bytes for a floating dtype are cast inside the program, by `layers.data`.
    """
    if value.dtype == BYTES and _is_floating(spec.dtype):
        return value
    if not np.can_cast(value.dtype, spec.dtype, "same_kind"):
        return (
            f"feed {spec.name!r} got dtype {value.dtype}, expected {spec.dtype}. It is not "
            "converted, since that would lose information. Convert it in the reader."
        )
    problem = spec.find_out_of_range(value)
    return problem or (value if value.dtype == spec.dtype else value.astype(spec.dtype))


def _is_floating(dtype: np.dtype) -> bool:
    return jnp.issubdtype(dtype, jnp.floating)


def _stack(arrays: list[Array]) -> np.ndarray:
    """Return arrays of one shape on a new leading axis; a third of the time of `np.stack`."""
    return np.concatenate(arrays).reshape(len(arrays), *arrays[0].shape)


def _pad(columns: Mapping[str, Any], count: int, size: int) -> Mapping[str, Any]:
    """Return arrays of `count` examples padded to `size`."""
    missing = size - count
    if not missing:
        return columns
    # Copies of the last example rather than zeros: whatever the program computes of a real
    # example is as finite on its copy, so that 0 * nan cannot reach a gradient.
    # A process without examples in a short batch has none to copy.
    return {
        name: np.concatenate([column, np.repeat(np.asarray(column[-1:]), missing, axis=0)])
        if count
        else np.zeros((missing, *column.shape[1:]), column.dtype)
        for name, column in columns.items()
    }


class Feeder:
    """Checks, pads and places the batches of one program.

    Its batch size is the largest it has seen.

    Arguments:
      specs: the inputs the program needs.
      known: the inputs of any program of the builder; other names are errors.
      num_micro_batches: what each device's share must be a multiple of.
      exchange: of several processes, which pad their sequences to one length.

    Attributes:
      has_sequences: whether an input is of sequences.
      sizes: then, the batch size for each choice of their lengths.
    """

    def __init__(
        self,
        mesh: Mesh,
        specs: Mapping[str, FeedSpec],
        known: Mapping[str, FeedSpec],
        num_micro_batches: int = 1,
        exchange: Exchange | None = None,
    ) -> None:
        self.mesh = mesh
        self.batch_size = 0
        self.is_single_cpu = mesh.size == 1 and _mesh.is_on_cpu(mesh)
        self._specs, self._known = specs, known
        # Of one batch, and of several stacked for one launch.
        self._shardings = _mesh.batch_sharding(mesh), _mesh.batch_sharding(mesh, 1)
        self._multiple = mesh.local_mesh.size * num_micro_batches
        self._full_weights: dict[tuple[int, int], jax.Array] = {}
        self._full: list[tuple[FeedSpec, np.dtype, tuple[int, ...]]] = []
        self.has_sequences = any(map(operator.attrgetter("lod_level"), specs.values()))
        self.sizes: dict[tuple[int, ...], int] = {}
        self._exchange = exchange

    def fit(self, size: int, lengths: tuple[int, ...] = ()) -> None:
        """Make the batch size at least `size`, rounded up to whole micro-batches.

        Arguments:
          lengths: those that the sequences are padded to; without them the size is for all.
        """
        if lengths:
            self.sizes[lengths] = max(self.sizes.get(lengths, 0), size)
        elif size > self.batch_size:
            self.batch_size = -(-size // self._multiple) * self._multiple
            # They have the old length.
            self._full_weights = {}
            self._full = [
                (spec, spec.dtype, (self.batch_size, *spec.shape)) for spec in self._specs.values()
            ]

    def list_sizes(self, mode: str) -> list[tuple[str, int]]:
        """Return the sizes under `mode`, those of sequences under such as `train 16 32`."""
        by_lengths = [(" ".join(map(str, (mode, *key))), size) for key, size in self.sizes.items()]
        return [(mode, self.batch_size), *by_lengths]

    def place(self, batches: Sequence[Feed]) -> DeviceBatch:
        """Return batches checked, padded, stacked if they are several, and on the devices.

        Raises:
          FeedError: a batch does not fit the specs.
        """
        steps = len(batches)
        # Full batches share one array of ones on the devices: a transfer less a step.
        weights = self._full_weights.get((steps, self.batch_size))
        if weights is not None and self._are_ready(batches):
            size = self.batch_size
            counts, padded = (size,) * steps, batches
        else:
            ready = [check_feed(batch, self._specs, self._known) for batch in batches]
            counts = tuple([size for _, size in ready])
            if self.has_sequences:
                size, lengths = self._choose_sizes(ready)
                padded = [self._pad_sequences(columns, size, lengths) for columns, _ in ready]
            else:
                self.fit(max(counts))
                size = self.batch_size
                padded = [_pad(columns, count, size) for columns, count in ready]
            weights = self._make_weights(counts, size)
        feed: Any = padded[0]
        if steps > 1:
            feed = jax.tree.map(lambda *arrays: _stack(list(arrays)), *padded)
        if not (self.is_single_cpu or self._rides_along(feed)):
            feed = _mesh.put(feed, self._shardings[steps > 1])
        return DeviceBatch(feed, weights, counts, size)

    def _are_ready(self, batches: Sequence[Feed]) -> TypeGuard[Sequence[Mapping[str, np.ndarray]]]:
        """Return whether batches need nothing done; a tenth of the time of finding out slowly.

        It is the common case, and on the smallest networks its price shows: Python is several times
        slower between two launches than in a loop of its own.
        """
        if self.has_sequences:
            return False
        for batch in batches:
            if batch.__class__ is not dict or len(batch) != len(self._full):
                return False
            for spec, dtype, shape in self._full:
                value: Any = batch.get(spec.name)
                if value.__class__ is not np.ndarray:
                    return False
                # By identity, as numpy keeps one object of each plain dtype: a comparison takes
                # longer.
                if value.dtype is not dtype and not (value.dtype is BYTES and _is_floating(dtype)):
                    return False
                if value.shape != shape:
                    return False
                if spec.ids is not None and not spec.ids.holds(value.min(), value.max()):
                    return False
        return True

    def _choose_sizes(
        self, batches: Sequence[tuple[Mapping[str, Column], int]]
    ) -> tuple[int, dict[str, int]]:
        """Return what a launch's batches and their sequences are padded to, on all processes.

        A batch of long sequences may have fewer examples than one of short ones, so there is a
        batch size for each choice of lengths, the largest seen.
        """
        longest = _sequence_feeds.find_longest([columns for columns, _ in batches])
        # Of each device and micro-batch: processes may have other numbers of devices.
        part = max([-(-count // self._multiple) for _, count in batches])
        if self._exchange is not None:
            shares = self._exchange("the sizes of a batch", [part, longest])
            part = max([each for each, _ in shares])
            longest = {name: max([each[name] for _, each in shares]) for name in longest}
        lengths = _sequence_feeds.choose_lengths(self._specs, longest)
        key = tuple(lengths.values())
        self.fit(part * self._multiple, key)
        return max(self.sizes[key], self.batch_size), lengths

    def _pad_sequences(
        self, columns: Mapping[str, Column], size: int, lengths: Mapping[str, int]
    ) -> dict[str, Any]:
        return {
            name: _sequence_feeds.pad_input(name, column, size, lengths)
            if isinstance(column, _sequence_feeds.Words)
            else _pad({name: column}, column.shape[0], size)[name]
            for name, column in columns.items()
        }

    def _make_weights(self, counts: tuple[int, ...], size: int) -> jax.Array:
        steps = len(counts)
        is_full, key = min(counts) == size, (steps, size)
        if is_full and key in self._full_weights:
            return self._full_weights[key]
        weights = (np.arange(size)[None, :] < np.asarray(counts)[:, None]).astype(np.float32)
        placed = _mesh.put(weights if steps > 1 else weights[0], self._shardings[steps > 1])
        if is_full:
            self._full_weights[key] = placed
        return placed

    def _rides_along(self, feed: Mapping[str, Placed]) -> bool:
        arrays: Any = jax.tree.leaves(feed) if self.has_sequences else feed.values()
        if self.mesh.size > 1 or not all(isinstance(x, np.ndarray) for x in arrays):
            return False
        return sum(value.nbytes for value in arrays) <= HOST_FEED_LIMIT_BYTES
