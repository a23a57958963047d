"""Feeds: checked against what the program declared, padded on the host, cut to the examples inside.

A batch that is split over devices needs a multiple of their number of rows: the host adds some, and
the program cuts them off again before a layer sees any. A program sees exactly the examples.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh

from penstock import _mesh, _sequence_feeds
from penstock._errors import FeedError, listed, nearest
from penstock._mesh import Layout
from penstock._program import sequences
from penstock._program.inputs import DeviceFeed, Feed, FeedSpec

Array: TypeAlias = np.ndarray | jax.Array
"""An array of a batch, on the host or on the devices."""

Column: TypeAlias = "Array | _sequence_feeds.Words"
"""One input of a batch that was checked."""

Placed: TypeAlias = "Array | sequences.Sequence | sequences.NestedSequence"
"""One input of a batch that is ready for a program."""

HostFeed: TypeAlias = Mapping[str, Any]
"""The inputs of a checked batch on the host, arrays and words of sequences."""

Exchange: TypeAlias = Callable[[str, object], list[Any]]
"""Returns what every process gives under a name. Collective."""

HOST_FEED_LIMIT_BYTES = 1 << 16
"""Below this, on one device, a batch rides along with the launch: 11 us an array against 30 us for
`jax.device_put`, and a batch this small hides no transfer worth hiding. On one CPU device every
batch does, since there is no transfer at all."""


BYTES = np.dtype(np.uint8)
"""What images are: they go to the device as they are, a quarter of the bytes of float32."""


class Share(NamedTuple):
    """What a process brings to a batch: how many examples, and which inputs as bytes."""

    num_examples: int
    in_bytes: Sequence[str] = ()


class Rows(NamedTuple):
    """Which rows of a program's arrays are examples; a program is compiled for each that comes.

    `parts` are the begin and end of the examples, in as many pieces as processes have brought.
    """

    size: int
    num_examples: int
    parts: tuple[tuple[int, int], ...]

    def cut(self, feed: DeviceFeed, mesh: Mesh, layout: Layout) -> DeviceFeed:
        """Return a batch without the rows that the host has added; inside a program."""
        spec = _mesh.WHOLE if self.is_whole(layout) else _mesh.SPLIT
        if self.num_examples == self.size:
            return feed if spec == _mesh.SPLIT else _mesh.lay_out(feed, mesh, spec)

        def cut_one(x: jax.Array) -> jax.Array:
            parts = [
                jax.lax.slice_in_dim(x, begin, end) for begin, end in self.parts if end > begin
            ]
            return parts[0] if len(parts) == 1 else jnp.concatenate(parts)

        return _mesh.lay_out(jax.tree.map(cut_one, feed), mesh, spec)

    def is_whole(self, layout: Layout) -> bool:
        """Return whether every device computes the whole batch."""
        return layout == "whole" or (layout == "even" and self.num_examples < self.size)

    def spread(self, value: jax.Array, rows: int, mesh: Mesh, layout: Layout) -> jax.Array:
        """Return rows of examples where `cut` took them from, zeros between; inside a program."""
        if self.is_whole(layout):
            value = _mesh.lay_out(value, mesh, _mesh.WHOLE)
        if self.num_examples == self.size:
            return value
        pieces, taken, place = [], 0, 0
        for begin, end in self.parts:
            pieces.append(jnp.zeros(((begin - place) * rows, *value.shape[1:]), value.dtype))
            pieces.append(value[taken * rows : (taken + end - begin) * rows])
            taken, place = taken + end - begin, end
        pieces.append(jnp.zeros(((self.size - place) * rows, *value.shape[1:]), value.dtype))
        return jnp.concatenate([piece for piece in pieces if piece.shape[0]])


class DeviceBatch(NamedTuple):
    """A batch ready for a program, or several for one launch, then with a step axis in front.

    `size` is how many examples this process has brought to each step.
    """

    feed: Mapping[str, Placed]
    rows: Rows
    size: int
    num_steps: int = 1
    reader_state: object = None


def check_feed(
    feed: Feed, specs: Mapping[str, FeedSpec], declared: Mapping[str, FeedSpec] | None = None
) -> tuple[dict[str, Column], int]:
    """Return the inputs that `specs` name, in their declared shape and dtype, and their length."""
    if not isinstance(feed, Mapping):
        raise FeedError(
            f"feed got {type(feed).__name__}, expected a dict of input name to array. Tuples are "
            "named by feed_order, which trainer.train and trainer.test take."
        )
    problems, columns = [], {}
    # All problems at once: a reader is most often wrong in several inputs.
    inputs = specs if declared is None else declared
    carried = [
        name for name in feed if name not in specs and not _sequence_feeds.is_lengths(name, inputs)
    ]
    for name in carried:
        if declared is not None and name not in declared:
            problems.append(
                f"feed got the unknown input {name!r}, expected {listed(declared)}."
                + nearest(str(name), declared)
            )
    for name, spec in specs.items():
        if name not in feed:
            hint = nearest(name, map(str, carried), "Is it misspelt as")
            problems.append(f"feed got {listed(feed)}, expected also {name!r}.{hint}")
            continue
        try:
            columns[name] = _convert(feed[name], spec, feed, carried)
        except FeedError as error:
            problems.append(str(error))
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


def list_bytes(feed: Feed, specs: Mapping[str, FeedSpec]) -> list[str]:
    """Return the inputs that go to the devices as bytes, to be cast there."""
    return [name for name, spec in specs.items() if name in feed and _is_in_bytes(feed[name], spec)]


def _is_in_bytes(column: Any, spec: FeedSpec) -> bool:
    values = column.values if isinstance(column, _sequence_feeds.Words) else column
    if not isinstance(values, np.ndarray | jax.Array):
        try:
            values = np.asarray(values)
        except Exception:  # what is no array is told apart later, and told
            return False
    return values.dtype == BYTES and _is_floating(spec.dtype)


def _is_masked(value: object) -> bool:
    """Say whether an array, or one in a list, has masked values: numpy drops the mask silently."""
    if isinstance(value, list | tuple):
        return any(isinstance(row, np.ma.MaskedArray) and np.ma.is_masked(row) for row in value)
    return isinstance(value, np.ma.MaskedArray) and bool(np.ma.is_masked(value))


def _convert(value: Any, spec: FeedSpec, feed: Feed, carried: Sequence[str]) -> Column:
    """Return an input of a feed as a batch of `spec`."""
    if _is_masked(value):
        raise spec.refuse(
            "masked values, expected an array without a mask. What lies under it would be taken "
            "for data. Pass array.filled(0), and ~np.ma.getmaskarray(array) as an input of its own."
        )
    if spec.lod_level:
        lengths = feed.get(f"{spec.name}_length")
        words = _sequence_feeds.read_words(value, lengths, spec)
        words = words._replace(values=np.asarray(_cast(words.values, spec)))
        if f"{spec.name}_length" not in feed:
            _sequence_feeds.check_spelling(spec, value, carried)
        return words
    if isinstance(value, sequences.Sequence):
        # Fluid's scripts make tensors of sequences for dense inputs too.
        if np.any(np.asarray(value.lengths) != 1):
            raise spec.refuse(
                f"a Sequence of lengths {np.asarray(value.lengths)}, expected an array, or lengths "
                "of 1. The input is dense, one element an example. Declare it with lod_level=1."
            )
        value = np.asarray(value.values)[:, 0]
    if isinstance(value, Tracer):
        raise spec.refuse(
            "an array that is traced, expected one with values. To ask another network, call its "
            "function in a layers.scope; trainer.load_params(..., rename=) loads what was saved."
        )
    # The exact type: JAX takes no array of a subclass, such as one with a mask.
    if type(value) is not np.ndarray and not isinstance(value, jax.Array):
        kind = type(value).__name__
        try:
            value = np.asarray(value)
        # Such as torch's TypeError for a tensor on a GPU, and RuntimeError for one with a gradient.
        except Exception as error:
            reason = str(error).rstrip(".")
            message = f"what numpy makes no array of: {reason}. Convert it in the reader."
            raise spec.refuse(message) from error
        if value.dtype == object and not value.ndim:
            raise spec.refuse(f"{kind}, expected an array. Convert it in the reader.")
    is_shaped = value.shape[1:] == spec.shape and value.ndim
    return _cast(value if is_shaped else _reshape(value, spec), spec)


def _reshape(value: Array, spec: FeedSpec) -> Array:
    got = f"shape {list(value.shape)}, expected [batch, {', '.join(map(str, spec.shape))}]"
    size = math.prod(spec.shape)
    # A scalar input's batch `[1]` has the shape of its example: it is taken for a batch.
    if value.shape in ([spec.shape, (size,)] if size > 1 else [()]):
        raise spec.refuse(
            f"{got}. This is one example without a batch axis. Use readers.batch or value[None]."
        )
    if not value.ndim or value.size != value.shape[0] * size:
        raise spec.refuse(
            f"{got}. Without the batch axis that is what layers.data declares. Change the shape "
            "there, or what the reader yields."
        )
    # Only flat ones can be reshaped without moving one axis into another.
    if value.shape[1:] != spec.shape and value.ndim > 2 and spec.shape != (1,):
        raise spec.refuse(
            f"{got}. Only flat examples are reshaped; these axes are in another order or grouping. "
            "Transpose or reshape them in the reader, or declare them so with layers.data."
        )
    return value.reshape(value.shape[0], *spec.shape)


def _cast(value: Array, spec: FeedSpec) -> Array:
    """Return `value` in the declared dtype when that loses nothing but precision.

    Bytes for a floating dtype are cast inside the program, by `layers.data`.
    """
    if _is_in_bytes(value, spec):
        return value
    if not np.can_cast(value.dtype, spec.dtype, "same_kind"):
        raise spec.refuse(
            f"dtype {value.dtype}, expected {spec.dtype}. It is not converted, since that would "
            "lose information. Convert it in the reader."
        )
    spec.check_range(value)
    return value if value.dtype == spec.dtype else value.astype(spec.dtype)


def _is_floating(dtype: np.dtype) -> bool:
    return jnp.issubdtype(dtype, jnp.floating)


def _stack(arrays: list[Array]) -> np.ndarray:
    """Return arrays of one shape on a new leading axis; a third of the time of `np.stack`."""
    return np.concatenate(arrays).reshape(len(arrays), *arrays[0].shape)


NUM_SPOILED = 3
"""How many kinds of padding a program is tried with."""


def _spoil(column: Placed, count: int, kind: int) -> Placed:
    """Return an input with nan, very large or very negative numbers behind `count` rows."""
    if isinstance(column, sequences.Sequence | sequences.NestedSequence):
        return dataclasses.replace(column, values=_spoil(column.values, count, kind))
    spoilt = np.array(column)
    if _is_floating(spoilt.dtype):
        large = float(jnp.finfo(spoilt.dtype).max) ** 0.75
        spoilt[count:] = (np.nan, large, -large)[kind]
    else:
        is_flag = spoilt.dtype == np.bool_
        spoilt[count:] = kind == 0 if is_flag else (np.iinfo(spoilt.dtype).max, 0, 1)[kind]
    return spoilt


class HostBatch(NamedTuple):
    """Batches for one launch that were checked."""

    columns: Sequence[HostFeed]
    size: int
    rows: Rows
    lengths: Mapping[str, int]


class Feeder:
    """Checks, pads and places the batches of one program."""

    def __init__(
        self,
        mesh: Mesh,
        specs: Mapping[str, FeedSpec],
        declared: Mapping[str, FeedSpec] | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        self.mesh = mesh
        self.is_single_cpu = mesh.size == 1 and _mesh.is_on_cpu(mesh)
        self._specs, self._declared = specs, declared
        self._shardings = _mesh.batch_sharding(mesh), _mesh.batch_sharding(mesh, 1)
        self._owners = [0] * _mesh.count_parts(mesh) if exchange is None else _mesh.owners(mesh)
        self._num_local = _mesh.count_parts(mesh.local_mesh)
        self._rows: dict[tuple[int, ...], Rows] = {}
        self.has_sequences = any(map(operator.attrgetter("lod_level"), specs.values()))
        self._exchange = exchange

    def place(self, batches: Sequence[Feed], shares: Sequence[Share] | None = None) -> DeviceBatch:
        """Return batches checked, padded, stacked if they are several, and on the devices."""
        return self.put(self.prepare(batches, shares))

    def prepare(self, batches: Sequence[Feed], shares: Sequence[Share] | None = None) -> HostBatch:
        """Return batches checked, and what they are to be padded to."""
        count = self._count_ready(batches)
        columns: Any = batches
        if count is not None and max(map(len, batches)) > len(self._specs):
            columns = [{name: batch[name] for name in self._specs} for batch in batches]
        elif count is None:
            ready = [check_feed(batch, self._specs, self._declared) for batch in batches]
            columns, count = [feed for feed, _ in ready], ready[0][1]
            if any(number != count for _, number in ready):
                raise FeedError(
                    f"a launch got batches of {', '.join(str(number) for _, number in ready)} "
                    "examples, expected one number. Its steps are one program."
                )
        if self._exchange is None and not self.has_sequences:
            key = (count,)
            rows = self._rows.get(key)  # a call less in each step
            return HostBatch(columns, count, rows or self.choose_rows(key), {})
        shares, lengths = self._agree(columns, count, shares)
        if not count:
            columns = [self._empty_as_others(feed, shares) for feed in columns]
        rows = self.choose_rows(tuple([share.num_examples for share in shares]))
        return HostBatch(columns, count, rows, lengths)

    def put(
        self, batch: HostBatch, rows: Rows | None = None, *, spoiled: int | None = None
    ) -> DeviceBatch:
        """Return batches padded, stacked and on the devices.

        `spoiled` pads with what no program gives; it is one of `NUM_SPOILED` kinds.
        """
        rows, steps = rows or batch.rows, len(batch.columns)
        own_size = rows.size // len(self._owners) * self._num_local
        padded: Any = batch.columns
        if self.has_sequences or batch.size < own_size:
            padded = [self._pad(feed, own_size, batch.lengths) for feed in batch.columns]
        if spoiled is not None:
            padded = [
                {name: _spoil(x, batch.size, spoiled) for name, x in feed.items()}
                for feed in padded
            ]
        feed: Any = padded[0]
        if steps > 1:
            feed = jax.tree.map(lambda *arrays: _stack(list(arrays)), *padded)
        if not (self.is_single_cpu or self._rides_along(feed)):
            feed = _mesh.put(feed, self._shardings[steps > 1])
        return DeviceBatch(feed, rows, batch.size, steps)

    def _count_ready(self, batches: Sequence[Feed]) -> int | None:
        """Return the size of batches that need nothing done, a tenth of the time of a check."""
        if self.has_sequences:
            return None
        count = None
        for batch in batches:
            if batch.__class__ is not dict:
                return None
            if self._declared is not None and len(batch) > len(self._specs):
                return None
            for name, spec in self._specs.items():
                value: Any = batch.get(name)
                if value.__class__ is not np.ndarray or not value.shape:
                    return None
                # By identity, as numpy keeps one object of each plain dtype: a comparison takes
                # longer.
                dtype = spec.dtype
                if value.dtype is not dtype and not (value.dtype is BYTES and _is_floating(dtype)):
                    return None
                if count is None:
                    count = value.shape[0]
                if value.shape[0] != count or value.shape[1:] != spec.shape:
                    return None
                if spec.ids and count and not spec.ids.holds(value.min(), value.max()):
                    return None
        return count or None

    def _agree(
        self, batches: Sequence[HostFeed], count: int, shares: Sequence[Share] | None
    ) -> tuple[Sequence[Share], dict[str, int]]:
        """Return what each process brings, and what all pad their sequences to."""
        longest = _sequence_feeds.find_longest(batches) if self.has_sequences else {}
        if self._exchange is None:
            shares = (Share(count),)
        elif shares is None or longest:
            own = Share(count, list_bytes(batches[0], self._specs))
            rows = self._exchange("the sizes of a batch", [own, longest])
            shares = [Share(*share) for share, _ in rows]
            longest = {name: max([value[name] for _, value in rows]) for name in longest}
        in_bytes = {tuple(share.in_bytes) for share in shares if share.num_examples}
        if len(in_bytes) > 1:
            differing = set().union(*in_bytes).difference(set.intersection(*map(set, in_bytes)))
            raise FeedError(
                f"feed got bytes for {listed(sorted(differing))} on some processes and other "
                "numbers on others, expected one dtype. Let every process read the same way."
            )
        return shares, _sequence_feeds.choose_lengths(self._specs, longest)

    def _empty_as_others(self, feed: HostFeed, shares: Sequence[Share]) -> HostFeed:
        """Return a batch of no examples in the dtypes of those that have some."""
        in_bytes = next((share.in_bytes for share in shares if share.num_examples), ())

        def cast(name: str, values: Array) -> Array:
            return values.astype(BYTES if name in in_bytes else self._specs[name].dtype)

        return {
            name: column._replace(values=cast(name, column.values))
            if isinstance(column, _sequence_feeds.Words)
            else cast(name, column)
            for name, column in feed.items()
            if name in self._specs
        }

    def choose_rows(self, shares: tuple[int, ...]) -> Rows:
        """Return the rows of a batch of which each process brings so many examples."""
        rows = self._rows.get(shares)
        if rows is not None:
            return rows
        if not sum(shares):
            raise FeedError("feed got a batch of 0 examples on all processes, expected 1 or more.")
        # Of each device as many, since arrays at a program's door are split evenly.
        height = max([-(-s // self._owners.count(n)) for n, s in enumerate(shares)])
        left, parts = list(shares), [(0, 0)]
        for place, owner in enumerate(self._owners):
            begin, number = place * height, min(left[owner], height)
            left[owner] -= number
            if parts[-1][1] == begin:
                parts[-1] = (parts[-1][0], begin + number)
            else:
                parts.append((begin, begin + number))
        full = tuple([(begin, end) for begin, end in parts if end > begin])
        rows = self._rows[shares] = Rows(len(self._owners) * height, sum(shares), full)
        return rows

    def _pad(self, batch: HostFeed, size: int, lengths: Mapping[str, int]) -> Any:
        return {
            name: _sequence_feeds.pad_input(name, batch[name], size, lengths)
            if isinstance(batch[name], _sequence_feeds.Words)
            else _sequence_feeds.pad_rows(batch[name], size)
            for name in self._specs
        }

    def _rides_along(self, feed: Mapping[str, Placed]) -> bool:
        arrays: Any = jax.tree.leaves(feed) if self.has_sequences else feed.values()
        if self.mesh.size > 1 or not all(isinstance(x, np.ndarray) for x in arrays):
            return False
        return sum(value.nbytes for value in arrays) <= HOST_FEED_LIMIT_BYTES
