"""What `layers.data` declares: names, shapes and dtypes of inputs, and the forms of a batch.

It needs no flax, so that what only answers, such as an `InferenceModel`, is spared its import.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Sharding

from penstock._errors import FeedError
from penstock._program.sequences import NestedSequence, Sequence

Feed: TypeAlias = Mapping[str, npt.ArrayLike | Sequence | NestedSequence]
"""A batch by input name, each with a leading batch axis: arrays, or what NumPy makes one of."""

Fed: TypeAlias = "jax.Array | Sequence | NestedSequence"
"""One input as a program takes it."""

DeviceFeed: TypeAlias = "Mapping[str, Fed]"
"""A batch by input name as a program takes it: padded, on the devices."""

PROBE_LENGTH = 13
"""The length that sequences have while a program is probed; a prime, to share no size by chance."""

PROBE_COUNT = 7
"""How many sequences a sequence of sequences has then."""

LEAST_BUCKET = 16
"""The first length of the powers of two that sequences are padded to by default."""

LEAST_COUNT = 4
"""The first of the powers of two that the numbers of sequences of sequences are padded to."""


class Ids(NamedTuple):
    """The ids that a layer looks up in a table: from 0, and below the number of its rows."""

    num_rows: int
    layer: str

    def holds(self, low: int, high: int) -> bool:
        return low >= 0 and high < self.num_rows

    def refuse(self, low: int, high: int) -> str:
        """Return what an error says of ids from `low` to `high`, after `got`."""
        return (
            f"ids from {low} to {high}, expected ids from 0 to {self.num_rows - 1}. They are rows "
            f"of the table of {self.layer}. Give unknown words an id of their own, or the table "
            "more rows."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeedSpec:
    """What one `layers.data` call expects.

    `shape` leaves out the batch axis; with a `lod_level` of 1 or 2 it is that of one word, and
    `buckets` are the lengths that sequences are padded to, powers of two where it is empty. `ids`
    is the smallest table that a layer looks the input up in, None where there is none.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    lod_level: int = 0
    buckets: tuple[int, ...] = ()
    # Not a part of the declaration: programs that look up in other tables may share an input.
    ids: Ids | None = dataclasses.field(default=None, compare=False)

    def limited(self, ids: Ids | None) -> FeedSpec:
        """Return the input for ids of another table too."""
        tables = [table for table in (self.ids, ids) if table is not None]
        return dataclasses.replace(self, ids=min(tables, default=None))

    def refuse(self, what: str) -> FeedError:
        """Return the error of a feed, of what it got and what was expected."""
        return FeedError(f"feed {self.name!r} got {what}")

    def check_range(self, value: np.ndarray | jax.Array) -> None:
        """Raise for integers that the dtype cannot hold, or a layer's table."""
        # int64 from numpy for int32 is usual: fine, as long as the values fit.
        is_narrowed = not np.can_cast(value.dtype, self.dtype, "safe")
        # What is on the devices is waited for only where the cast would wrap it.
        is_looked_up = self.ids is not None and isinstance(value, np.ndarray)
        is_integer = jnp.issubdtype(self.dtype, jnp.integer)
        if not is_integer or not (is_narrowed or is_looked_up) or not value.size:
            return
        host = jax.device_get(value)
        low, high, limits = int(host.min()), int(host.max()), jnp.iinfo(self.dtype)
        if self.ids is not None and not self.ids.holds(low, high):
            raise self.refuse(self.ids.refuse(low, high))
        if low < limits.min or high > limits.max:
            raise self.refuse(
                f"{value.dtype} values from {low} to {high}, expected values that fit {self.dtype}."
            )

    @property
    def declaration(self) -> str:
        """What was declared, for people."""
        level = f", lod_level {self.lod_level} and buckets {self.buckets}" if self.lod_level else ""
        return f"shape {self.shape} and dtype {self.dtype}{level}"

    def build(
        self, sizes: tuple[int, int, int], make: Callable[[tuple[int, ...], np.dtype], Any]
    ) -> Any:
        """Return the input made of arrays, by the sizes of batch, nested sequences and words."""
        batch, inner, length = sizes
        if not self.lod_level:
            return make((batch, *self.shape), self.dtype)
        outer = (batch,) if self.lod_level == 1 else (batch, inner)
        values = make((*outer, length, *self.shape), self.dtype)
        lengths = make(outer, np.dtype(np.int32))
        if self.lod_level == 1:
            return Sequence(values, lengths)
        return NestedSequence(values, lengths, make((batch,), np.dtype(np.int32)))

    def describe(self, batch_size: int, sharding: Sharding) -> Any:
        """Return the input without values: of sequences, as long as the last bucket given."""
        length = self.buckets[-1] if self.buckets else LEAST_BUCKET
        make = functools.partial(jax.ShapeDtypeStruct, sharding=sharding)
        return self.build((batch_size, LEAST_COUNT, length), make)

    def split(self, fed: Any) -> dict[str, Any]:
        """Return the arrays of an input by the names that a file's programs take them under.

        A sequence's lengths are `<name>_length`, the numbers of nested ones `<name>_count`.
        """
        if not self.lod_level:
            return {self.name: fed}
        behind = ("", "_length", "_count")[: self.lod_level + 1]
        return {self.name + end: x for end, x in zip(behind, vars(fed).values(), strict=True)}

    def join(self, arrays: Mapping[str, Any]) -> Fed:
        """Return the input of what `split` made of it."""
        if not self.lod_level:
            return arrays[self.name]
        kind = (Sequence, NestedSequence)[self.lod_level - 1]
        behind = ("", "_length", "_count")[: self.lod_level + 1]
        return kind(*[arrays[self.name + end] for end in behind])
