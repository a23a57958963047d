"""What every decorator is made of: a reader that opens its sources, an iterator that owns them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from penstock.readers._contract import Item_co, IteratorBase, ReaderBase, State

# An item of a source.
Read = TypeVar("Read")


class Closeable(Protocol):
    """What is kept from pass to pass: a source, or worker processes."""

    def close(self) -> None:
        """End it."""
        ...


class DecoratedReader(ReaderBase[Item_co]):
    """A reader made of other readers: opens an iterator an epoch, knows its length if they do."""

    def __init__(
        self,
        kind: str,
        open_epoch: Callable[[int], IteratorBase[Item_co]],
        length: Callable[[], int | None],
        kept: Sequence[Closeable],
    ) -> None:
        super().__init__()
        self._kind = kind
        self._open_epoch = open_epoch
        self._length = length
        self._kept = kept
        self.sources = [one for one in kept if isinstance(one, ReaderBase)]
        self.is_common = all(source.is_common for source in self.sources)

    def __len__(self) -> int:
        """Return the number of items in a pass.

        Raises:
          TypeError: a source does not know its length.
        """
        length = self._length()
        if length is None:
            raise TypeError(f"{self._kind}: the length is unknown, as a source has none")
        return length

    def __repr__(self) -> str:
        sources = ", ".join(repr(one) for one in self._kept if isinstance(one, ReaderBase))
        return f"<{self._kind} of {sources or 'a reader'}: next epoch {self.next_epoch}>"

    def iterate(self, epoch: int) -> IteratorBase[Item_co]:
        """Return an iterator over `epoch`, its sources opened at that epoch."""
        return self._open_epoch(epoch)

    def close(self) -> None:
        """Close the sources: end the worker processes they keep. Safe to call twice."""
        for one in self._kept:
            one.close()


class DecoratedIterator(IteratorBase[Item_co], Generic[Read, Item_co]):
    """The base of the decorators' iterators: owns source iterators and closes them.

    `position` counts the items returned in this pass. By default a state is the position and
    the sources' states: right for whatever keeps nothing else between two items.
    """

    def __init__(self, sources: Sequence[ReaderBase[Read]], epoch: int) -> None:
        self.epoch = epoch
        self.position = 0
        self._readers = list(sources)
        self._inner: list[IteratorBase[Read]] = []
        try:
            for source in self._readers:
                self._inner.append(source.iterate(epoch))
        except BaseException:
            # Not by `close`: what a subclass would release has not been made yet.
            self._closed = True
            DecoratedIterator._release(self)
            raise

    def _save(self) -> State:
        return {
            "position": self.position,
            "sources": [one.get_state() for one in self._inner],
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        self.position = state["position"]
        for inner, saved in zip(self._inner, state["sources"], strict=True):
            inner.set_state(saved)

    def _release(self) -> None:
        for inner in self._inner:
            inner.close()


def origin(function: str, index: int, epoch: int) -> str:
    """Return the note that says which sample an exception came from."""
    return f"in {function}, sample {index} of epoch {epoch}"


def get_name(function: Callable[..., object]) -> str:
    """Return a function's name for a message."""
    return getattr(function, "__qualname__", type(function).__name__)
