"""What readers yield, brought into one form: a dict of input name to array with a batch axis."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from penstock._errors import FeedError, ReaderError, check_int, listed
from penstock._parent_watch import warn_of_forked_workers
from penstock._program.inputs import Feed, FeedSpec
from penstock.events import FeedOrder as FeedOrder
from penstock.events import ReaderLike as ReaderLike

_LOGGER = logging.getLogger("penstock")


class Fields:
    """The inputs of a program and, where somebody said it, the order of a sample's fields.

    A sample may have other fields than the inputs, `specs`.
    """

    def __init__(self, specs: Mapping[str, FeedSpec], feed_order: FeedOrder | None) -> None:
        self.specs = specs
        self._names = list(specs) if len(specs) == 1 else None
        self.order: list[str] | None = None
        if feed_order is not None:
            self._names = self.order = _order_names(feed_order)
            # Other names are no mistake where none is missing: fields that are carried.
            unknown = [name for name in self._names if name not in specs]
            missing = [name for name in specs if name not in self._names]
            if missing:
                raise FeedError(
                    f"feed_order got {self._names}, expected the inputs that layers.data declares: "
                    f"{listed(specs)} (unknown: {listed(unknown)}; missing: {listed(missing)})."
                )

    def as_batch(self, item: Any) -> Feed:
        """Return what a reader yielded as a dict of arrays.

        Accepts a dict of arrays, a tuple of arrays, a single array where there is one input, and
        Fluid's list of samples (tuples, dicts or single values). Fields that are no inputs stay.
        A list of arrays is a tuple, which torch's `DataLoader` makes a list.
        """
        # The exact type first: an abstract class is slower to ask.
        if type(item) is dict or isinstance(item, Mapping):
            return item
        if isinstance(item, list) and not self._is_in_columns(item):
            return self._stack(item)
        if item is None or isinstance(item, (str, bytes)):
            raise FeedError(
                f"the reader yielded {item!r}, expected a batch: a dict, a tuple or an array. See "
                "what the function that makes it returns."
            )
        fields = item if isinstance(item, (tuple, list)) else (item,)
        return dict(zip(self._check_fields(len(fields), "a batch"), fields, strict=True))

    def _is_in_columns(self, items: list[Any]) -> bool:
        """Return whether a list has an array for each field, and not a sample of each example."""
        if not any(getattr(item, "ndim", 0) for item in items):
            return False
        if self._names is None or len(self._names) > 1:
            return True
        # Of one input, an array may be either: a sample has as many numbers as the input.
        spec = self.specs.get(self._names[0])
        if len(items) > 1 or spec is None or spec.lod_level:
            return False
        shape, size = tuple(items[0].shape), math.prod(spec.shape)
        return shape[1:] == spec.shape or shape == (1, size) or math.prod(shape) != size

    def _check_fields(self, num_fields: int, what: str) -> list[str]:
        if self._names is None:
            raise FeedError(
                f"the reader yielded {what} of {num_fields} unnamed fields, expected names for "
                f"them: the program declares {listed(self.specs)}. Pass feed_order=[...] with the "
                "names in the order of the fields, or let the reader yield dicts."
            )
        if num_fields != len(self._names):
            raise FeedError(
                f"the reader yielded {what} of {num_fields} fields, expected {len(self._names)}: "
                f"{listed(self._names)}. Each field is one input, in the order of feed_order."
            )
        return self._names

    def _stack(self, samples: list[Any]) -> dict[str, Any]:
        if not samples and jax.process_count() > 1:  # this process's part of a short batch
            return make_empty(self.specs)
        if not samples:
            raise FeedError("the reader yielded an empty list, expected a list of samples.")
        rows = []
        for number, sample in enumerate(samples):
            if isinstance(sample, Mapping):
                rows.append(sample)
                continue
            fields = sample if isinstance(sample, (tuple, list)) else (sample,)
            names = self._check_fields(len(fields), f"sample {number} of a batch")
            rows.append(dict(zip(names, fields, strict=True)))
        return {name: self._join(name, rows) for name in rows[0]}

    def _join(self, name: str, rows: list[Feed]) -> Any:
        spec = self.specs.get(name)
        # Sequences stay as they are: they are of any length.
        if spec is not None and spec.lod_level:
            return [row[name] for row in rows if name in row]
        try:
            return _stack_column(name, rows)
        except (FeedError, ValueError):
            if spec is not None:
                raise
            return [row.get(name) for row in rows]  # carried as it is


def make_empty(specs: Mapping[str, FeedSpec]) -> dict[str, Any]:
    return {
        name: [] if spec.lod_level else np.zeros((0, *spec.shape), spec.dtype)
        for name, spec in specs.items()
    }


def _order_names(feed_order: FeedOrder) -> list[str]:
    if isinstance(feed_order, Mapping):
        if sorted(feed_order.values()) != list(range(len(feed_order))):
            raise FeedError(
                f"feed_order got indices {sorted(feed_order.values())}, expected each of "
                f"{list(range(len(feed_order)))} once."
            )
        return sorted(feed_order, key=lambda name: feed_order[name])
    if isinstance(feed_order, str) or len(set(feed_order)) < len(feed_order):
        raise FeedError(f"feed_order got {feed_order!r}, expected a list of names, each once.")
    return list(feed_order)


def _stack_column(name: str, rows: list[Feed]) -> np.ndarray:
    values = [row[name] for row in rows if name in row]
    # With its mask: the check of feeds refuses one.
    values = [x if isinstance(x, np.ma.MaskedArray) else np.asarray(x) for x in values]
    shapes = {value.shape for value in values}
    if len(values) < len(rows) or len(shapes) > 1:
        raise FeedError(
            f"feed {name!r} got samples of shapes {sorted(shapes)} in {len(values)} of {len(rows)} "
            "samples of one batch, expected one shape in all of them. Declare sequences of any "
            "length with layers.data(..., lod_level=1)."
        )
    # numpy's own stack drops the mask without a word.
    is_masked = any(isinstance(value, np.ma.MaskedArray) for value in values)
    return np.ma.stack(values) if is_masked else np.stack(values)


def check_reader(reader: object, num_passes: int) -> None:
    """Raise unless `reader` can be read `num_passes` times, the argument `num_epochs`."""
    check_int("num_epochs", num_passes, 0)
    if not callable(reader) and not hasattr(reader, "__iter__") and not hasattr(reader, "iterate"):
        # As a Dataset of torch, which its DataLoader reads.
        is_source = hasattr(reader, "__getitem__")
        raise TypeError(
            f"reader got {type(reader).__name__}, expected a function without arguments that "
            "returns an iterator, or an iterable such as readers.arrays(...)."
            + " Samples by index are read by readers.indexed(source, batch_size)."
            * is_source
        )
    # They can be iterated over, by keys, rows or letters, and none of it is a batch.
    if isinstance(reader, (Mapping, np.ndarray, jax.Array, str)):
        raise TypeError(
            f"reader got {type(reader).__name__}, expected what yields batches. Data in memory "
            "becomes a reader with readers.arrays(data, batch_size=...)."
        )
    # For one pass an iterator is enough.
    if isinstance(reader, Iterator) and not callable(reader) and num_passes > 1:
        raise ReaderError(
            f"reader got a {type(reader).__name__} for {num_passes} epochs, expected what can be "
            "read again: an iterator runs only once. Pass the function that makes it."
        )


_NUM_READ = "num_batches_read"
"""The key of the position in a reader that cannot tell its own."""


class Pass:
    """One pass over a reader: its batches as dicts, and the position after the last of them."""

    def __init__(self, reader: Any, fields: Fields, epoch: int) -> None:
        self._iterator = open_pass(reader, epoch)
        self.fields = fields
        # Looked up once: it is asked for after every batch.
        self._set_state = getattr(self._iterator, "set_state", None)
        self._get_state = getattr(self._iterator, "get_state", None) if self._set_state else None
        # Readers with a position are ours, or keep to the protocol of ours.
        self._is_copied = self._set_state is None and not isinstance(reader, list | tuple)
        self._number = 0

    def __iter__(self) -> Generator[Feed, None, None]:
        """Yield the batches; closes the reader's iterator at the end."""
        try:
            for item in self._iterator:
                try:
                    batch = self.fields.as_batch(item)
                except FeedError as error:
                    error.add_note(f"In batch {self._number} of the reader.")
                    raise
                self._number += 1
                yield _copy_arrays(batch) if self._is_copied else batch
        finally:
            self.close()

    def state(self) -> object:
        """Return the position after the last batch: what the reader says, else their number."""
        return {_NUM_READ: self._number} if self._get_state is None else self._get_state()

    def go_to(self, state: object, num_batches: int) -> int:
        """Move to a position after so many steps; return how many batches were read over for it."""
        if isinstance(state, Mapping) and _NUM_READ in state:
            # Of several processes this one may have brought fewer than there were steps.
            num_batches = state[_NUM_READ]
        elif state is not None and self._set_state is not None:
            self._set_state(state)
            self._number = num_batches
            return 0
        for _ in range(num_batches):
            if next(self._iterator, None) is None:
                raise ReaderError(
                    f"the reader ended after {self._number} batches, expected at least the "
                    f"{num_batches} before the checkpoint. It must yield the same in every run."
                )
            self._number += 1
        return num_batches

    def close(self) -> None:
        close: Callable[[], object] | None = getattr(self._iterator, "close", None)
        if close is not None:
            close()


def _copy_arrays(value: Any) -> Any:
    """Return a batch whose reader may fill its arrays again: they are read after its next batch.

    Other mappings than a dict, such as an npz archive, make their arrays when they are asked.
    """
    if type(value) is dict:
        return {name: _copy_arrays(child) for name, child in value.items()}
    if type(value) in (list, tuple):
        holds_sequences = bool(value) and isinstance(value[0], list | tuple | np.ndarray)
        return list(map(_copy_arrays, value)) if holds_sequences else value[:]
    if isinstance(value, np.ndarray) and value.dtype == object:
        return np.frompyfunc(_copy_arrays, 1, 1)(value, out=np.empty_like(value))
    return value.copy() if isinstance(value, np.ndarray) and value.flags.writeable else value


def open_pass(reader: Any, epoch: int) -> Any:
    """Return an iterator over the pass of a number.

    Who starts a pass says which one it is: the order of our readers is a function of it, and no
    other pass moves it. Readers without `iterate(epoch)` have no numbers.
    """
    is_reader = hasattr(reader, "iterate") or hasattr(type(reader), "__iter__")
    # What a function returns may be a reader of ours.
    source: Any = reader() if callable(reader) and not is_reader else reader
    if hasattr(source, "iterate"):
        return source.iterate(epoch)
    warn_of_forked_workers(source)
    return iter(source)


def resume_pass(
    reader: ReaderLike, fields: Fields, epoch: int, state: object, num_batches: int
) -> Pass:
    """Return a pass that begins where a checkpoint was written, after so many of its batches."""
    pass_ = Pass(reader, fields, epoch)
    if num_batches and (num_read := pass_.go_to(state, num_batches)):
        _LOGGER.warning(
            "the reader (%s) cannot tell its position: %d batches were read over to resume. That "
            "is exact if it yields the same batches in every run. readers.arrays and its like keep "
            "their position.",
            type(reader).__name__,
            num_read,
        )
    return pass_


def count_batches(reader: Any) -> int | None:
    """Return how many batches a reader yields in a pass, where it says so."""
    try:
        # Some have a length that raises, as that of a stream does.
        return len(reader)
    except (TypeError, NotImplementedError, ValueError):
        return None


def refuse_empty(what: str) -> ReaderError:
    """Return the error of a pass over a reader that yielded nothing."""
    return ReaderError(
        f"{what}, expected at least one. Is its data empty, or is it an iterator that an earlier "
        "pass used up?"
    )
