"""The reader contract: what a reader is, and the two bases our readers are built on.

A *reader* yields samples or batches, more than once. Two forms are equivalent:

- Fluid's: a zero-argument callable that returns a fresh iterator, `for item in reader():`
- Python's: an iterable, `for item in reader:`

Our readers are both. One pass is one *epoch*. A reader shuffles by `(seed, epoch)`: the order never
depends on the machine, the number of workers or what ran before. Whoever starts a pass says which,
by `reader.iterate(epoch)`: the Trainer numbers its epochs, and tests on epoch 0. For those who loop
over a reader by themselves it counts: the first `iter(reader)` is epoch 0, the next epoch 1.

Our iterators also carry their position, with Grain's two methods: `get_state()` returns a
JSON-able dict, `set_state(state)` continues with the next item. A state also holds the epoch,
and restoring it moves the reader along: after the pass is over, the next `iter(reader)` is the
epoch after the restored one. A state may be restored in another process, and, where the reader
has a global batch size and divides by record, on another number of shards. `close()` ends a pass
early: it joins threads and closes files, and may be called twice. A garbage-collected iterator
tells its threads to end and does not wait for them.

Worker processes take about a second each to start, so they belong to the reader: they wait for
its next pass, and end with `reader.close()` or with the last reference to it.

To write a reader, subclass `ReaderBase` and return an `IteratorBase` from `iterate(epoch)`.
Sources inside a reader are wrapped once by `of(source)` and opened by `source.iterate(epoch)`,
never by `iter(source)`: the epoch of the outermost reader decides, so that no hidden counter has
to be restored.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

from penstock.readers._errors import ReaderStateError

Item = TypeVar("Item")
Item_co = TypeVar("Item_co", covariant=True)
Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
State: TypeAlias = "dict[str, Json]"


@runtime_checkable
class ReaderIterator(Protocol[Item_co]):
    """One pass over a reader, with a position that can be saved and restored.

    Grain's iterators have all of it except `close`.

    >>> import numpy as np
    >>> from penstock import readers
    >>> isinstance(iter(readers.arrays({"x": np.arange(4)}, 2)), ReaderIterator)
    True
    """

    def __iter__(self) -> Iterator[Item_co]:
        """Return the iterator itself."""
        ...

    def __next__(self) -> Item_co:
        """Return the next sample or batch; raise `StopIteration` at the end of the epoch."""
        ...

    def get_state(self) -> State:
        """Return the position after the last item returned, as a JSON-serialisable dict."""
        ...

    def set_state(self, state: State) -> None:
        """Move to the position in `state`, and continue with the item after it."""
        ...

    def close(self) -> None:
        """End the pass and release its threads and files."""
        ...


@runtime_checkable
class Reader(Protocol[Item_co]):
    """An object that starts a new epoch each time it is iterated over or called.

    It may also have `__len__`, the number of items per pass, and `iterate(epoch)`, which starts the
    pass of a number and moves nothing: the Trainer then calls that.
    """

    def __call__(self) -> Iterator[Item_co]:
        """Start the next epoch."""
        ...

    def __iter__(self) -> Iterator[Item_co]:
        """Start the next epoch."""
        ...


# `Reader` is an `Iterable` too: it stands here for the reader of a signature.
ReaderLike = Reader[Item] | Iterable[Item] | Callable[[], Iterable[Item]]


class IteratorBase(ABC, Generic[Item_co]):
    """The base of our iterators: state checked, closing idempotent, usable in a `with`.

    A subclass sets `kind` and `epoch` and implements `__next__`, `_save` and `_load`; where it
    holds threads or files it also implements `_release`, and where it holds threads `_abandon`. An
    exhausted iterator must keep raising `StopIteration`.
    """

    kind: str = "reader"
    epoch: int = 0
    # Set by `ReaderBase.__iter__` alone: whoever calls `iterate` has the epochs in its own hands.
    _reader: ReaderBase[Item_co] | None = None
    # On the class: `__del__` also runs where `__init__` has raised before it set anything.
    _closed: bool = False

    def __iter__(self) -> Self:
        return self

    @abstractmethod
    def __next__(self) -> Item_co:
        """Return the next item."""

    @abstractmethod
    def _save(self) -> State:
        """Return the JSON-able position, without kind and epoch."""

    @abstractmethod
    def _load(self, state: Mapping[str, Any]) -> None:
        """Move to the position in `state`; `self.epoch` is already the state's."""

    # Not abstract, as the next one: most iterators have no files and no threads.
    def _release(self) -> None:
        """End threads and close files, and wait for both; called once at most."""

    def _abandon(self) -> None:
        """Tell threads to end: wait for nothing, take no lock. Files close when they are freed.

        Also called of an iterator whose `__init__` has raised.
        """

    def get_state(self) -> State:
        """Return the position after the last item returned, as a JSON-able dict."""
        return {"kind": self.kind, "epoch": self.epoch, **self._save()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue with the item after the position in `state`.

        Raises:
          ReaderStateError: the state is not a dict of ours, or of another kind of reader; or
            the iterator is closed.
        """
        if self._closed:
            raise ReaderStateError(
                f"{self.kind}.set_state() got a closed iterator, expected an open one. Its threads "
                "and files are gone. Restore the state on a new iterator, iter(reader)."
            )
        is_ours = isinstance(state, dict) and isinstance(state.get("epoch"), int)
        got = state.get("kind") if is_ours else type(state).__name__
        check_state(self.kind, got, self.kind, "Other readers have other positions")
        # Before `_load`: what a subclass opens there, it opens at this epoch.
        epoch, self.epoch = self.epoch, state["epoch"]
        try:
            self._load(state)
        except BaseException:
            # A state that is refused moves nothing.
            self.epoch = epoch
            raise
        if self._reader is not None:
            # The pass after this one is then the next epoch, as in the run that was saved.
            self._reader.next_epoch = self.epoch + 1

    def close(self) -> None:
        """End the pass; release threads and files. Safe to call twice."""
        if not self._closed:
            self._closed = True
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        """Tell the threads of an iterator to end that was dropped in the middle of a pass."""
        # The collector runs this in any thread, at any line, while a lock is held or modules are
        # being taken apart. So it waits for nothing, takes no lock and looks up no global name.
        if not self._closed:
            self._closed = True
            self._abandon()


class ReaderBase(ABC, Generic[Item_co]):
    """The base of our readers: callable and iterable; it counts the passes of those who loop.

    `next_epoch` is the epoch that the next `iter(reader)` starts; it may be set. `is_common` means
    that every process reads the same samples in the same order, so `batch` divides them.
    """

    is_common: bool = False

    def __init__(self) -> None:
        self.next_epoch = 0
        self._lock = threading.RLock()

    @abstractmethod
    def iterate(self, epoch: int) -> IteratorBase[Item_co]:
        """Return an iterator over `epoch`; the reader's own counter is left alone."""

    def __iter__(self) -> IteratorBase[Item_co]:
        # Two threads may start a pass each: they must not get the same epoch.
        with self._lock:
            epoch, self.next_epoch = self.next_epoch, self.next_epoch + 1
        iterator = self.iterate(epoch)
        iterator._reader = self
        return iterator

    def __call__(self) -> IteratorBase[Item_co]:
        """Start the next epoch: Fluid's way to read."""
        return iter(self)

    # Not abstract: most readers keep nothing from pass to pass.
    def close(self) -> None:
        """End the worker processes kept from pass to pass. The next pass starts new ones."""

    def __repr__(self) -> str:
        # Not its length: record files are counted for that.
        return f"<{type(self).__name__.lstrip('_')}: next epoch {self.next_epoch}>"

    def __bool__(self) -> bool:
        # Without it `if reader` would ask for the length, which may be 0 or unknown.
        return True

    def __getstate__(self) -> dict[str, object]:
        # A lock cannot be pickled, and readers travel to worker processes.
        return {key: value for key, value in self.__dict__.items() if key != "_lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._lock = threading.RLock()


def check_state(kind: str, got: object, expected: object, why: str) -> None:
    """Check what a state says of the reader that it was taken from."""
    if got != expected:
        raise ReaderStateError(
            f"{kind}.set_state() got a state of {got!r}, expected one of {expected!r}. {why}. "
            "Build the reader as in the run that was saved, or start the epoch again."
        )


def refuse_short(kind: str, num_read: int, num_saved: int) -> ReaderStateError:
    """Return the error of a source that ends before the position to restore."""
    return ReaderStateError(
        f"{kind} got {num_read} items, expected at least the {num_saved} of the saved position. "
        "The source is shorter than in the run that was saved. Give the reader that run's data."
    )


def reader_length(reader: object) -> int | None:
    """Return the number of items a pass yields, `None` where the reader does not know."""
    # Not by `hasattr`: a decorator has `__len__`, which raises where its source has none, as that
    # of a stream does.
    try:
        return len(reader)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError, ValueError):
        return None
