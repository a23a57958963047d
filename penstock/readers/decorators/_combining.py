"""`map_readers`, `chain`, `compose` and `firstn`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.readers._contract import (
    Item,
    IteratorBase,
    ReaderBase,
    ReaderLike,
    State,
    reader_length,
)
from penstock.readers._errors import ComposeNotAligned, check_int, note
from penstock.readers._foreign import of
from penstock.readers.decorators._decorated import (
    DecoratedIterator,
    DecoratedReader,
    get_name,
    origin,
)


class _MapIterator(DecoratedIterator[object, Item]):
    kind = "map_readers"

    def __init__(
        self, function: Callable[..., Item], sources: Sequence[ReaderBase[object]], epoch: int
    ) -> None:
        super().__init__(sources, epoch)
        self._function = function

    def __next__(self) -> Item:
        if self._closed:
            raise StopIteration
        # The first source that ends lets its StopIteration through, and so ends the pass.
        items = [next(inner) for inner in self._inner]
        try:
            mapped = self._function(*items)
        except Exception as error:
            where = f"map_readers({get_name(self._function)})"
            note(error, origin(where, self.position, self.epoch))
            raise
        self.position += 1
        return mapped


def map_readers(func: Callable[..., Item], *readers: ReaderLike[object]) -> DecoratedReader[Item]:
    """Yield `func(a, b, ...)` for the items of readers in parallel: Fluid's `map_readers`.

    Stops with the shortest reader. An exception from `func` has the sample's number in a note.

    Args:
      func: a function of one item from each reader.
      readers: one reader or more.

    Raises:
      ValueError: no reader was given.

    >>> list(map_readers(lambda a, b: a + b, lambda: [1, 2, 3], lambda: [10, 20]))
    [11, 22]
    """
    sources = _sources("map_readers", readers)
    return DecoratedReader(
        "map_readers",
        lambda epoch: _MapIterator(func, sources, epoch),
        lambda: _shortest(sources),
        sources,
    )


class _ChainIterator(IteratorBase[Item]):
    kind = "chain"

    def __init__(self, sources: Sequence[ReaderBase[Item]], epoch: int) -> None:
        self.epoch = epoch
        self._sources = sources
        self._part = 0
        self._inner: IteratorBase[Item] | None = None

    def __next__(self) -> Item:
        while self._part < len(self._sources) and not self._closed:
            if self._inner is None:
                self._inner = self._sources[self._part].iterate(self.epoch)
            for item in self._inner:
                return item
            # Closed at its end: threads and files of one part at a time.
            self._inner.close()
            self._inner = None
            self._part += 1
        raise StopIteration

    def _save(self) -> State:
        return {"part": self._part, "source": self._inner and self._inner.get_state()}

    def _load(self, state: Mapping[str, Any]) -> None:
        self._release()
        self._inner = None
        self._part = state["part"]
        if state["source"] is not None:
            inner = self._inner = self._sources[self._part].iterate(self.epoch)
            inner.set_state(state["source"])

    def _release(self) -> None:
        if self._inner is not None:
            self._inner.close()


def chain(*readers: ReaderLike[Item]) -> DecoratedReader[Item]:
    """Yield all items of the first reader, then of the second, and so on: Fluid's `chain`.

    Each reader is opened when its turn comes.

    Raises:
      ValueError: no reader was given.

    >>> list(chain(lambda: [1, 2], lambda: [3]))
    [1, 2, 3]
    """
    sources = _sources("chain", readers)

    def length() -> int | None:
        lengths = [reader_length(source) for source in sources]
        return None if None in lengths else sum(n for n in lengths if n is not None)

    return DecoratedReader("chain", lambda epoch: _ChainIterator(sources, epoch), length, sources)


_END = object()


class _ComposeIterator(DecoratedIterator[object, Any]):
    kind = "compose"

    def __init__(
        self, sources: Sequence[ReaderBase[object]], epoch: int, check_alignment: bool
    ) -> None:
        super().__init__(sources, epoch)
        self._check_alignment = check_alignment

    def __next__(self) -> tuple[object, ...] | dict[str, object]:
        if self._closed:
            raise StopIteration
        # A marker of its own: `None` is a sample like any other.
        items = [next(inner, _END) for inner in self._inner]
        ended = [number for number, item in enumerate(items) if item is _END]
        if ended:
            if self._check_alignment and len(ended) < len(items):
                self.close()
                raise ComposeNotAligned(
                    f"compose got readers of different length: of {len(items)}, number "
                    f"{', '.join(map(str, ended))} ended after {self.position} samples, expected "
                    "readers of one length. Sample i is put together from sample i of each. Make "
                    "them of one length, or pass check_alignment=False to stop with the shortest."
                )
            raise StopIteration
        self.position += 1
        return _merge(items)


def _merge(items: Sequence[Any]) -> tuple[object, ...] | dict[str, object]:
    if not all(isinstance(item, dict) for item in items):
        return tuple(x for item in items for x in (item if isinstance(item, tuple) else (item,)))
    merged: dict[str, object] = {}
    for item in items:
        if twice := merged.keys() & item.keys():
            raise ValueError(
                f"compose got the key {min(map(str, twice))!r} twice, expected dict samples with "
                "different keys. Their dicts are merged into one sample. Rename it with "
                "map_readers."
            )
        merged |= item
    return merged


def compose(*readers: ReaderLike[object], check_alignment: bool = True) -> DecoratedReader[Any]:
    """Join the samples of several readers into one: Fluid's `compose`.

    Tuples are flattened: `(1, 2)` and `3` give `(1, 2, 3)`. If all samples are dicts, they are
    merged.

    Args:
      readers: one reader or more.
      check_alignment: raise if one reader ends before another; otherwise stop with the shortest.

    Raises:
      ValueError: no reader was given.
      ComposeNotAligned: while reading, once a reader ends before the others.

    >>> list(compose(lambda: [(1, 2), (4, 5)], lambda: [3, 6]))
    [(1, 2, 3), (4, 5, 6)]
    """
    sources = _sources("compose", readers)
    return DecoratedReader(
        "compose",
        lambda epoch: _ComposeIterator(sources, epoch, check_alignment),
        lambda: _shortest(sources),
        sources,
    )


class _FirstnIterator(DecoratedIterator[Item, Item]):
    kind = "firstn"

    def __init__(self, source: ReaderBase[Item], epoch: int, n: int) -> None:
        super().__init__([source], epoch)
        self._n = n

    def __next__(self) -> Item:
        # Asked before the source is: nothing is read that is not returned.
        if self.position >= self._n or self._closed:
            raise StopIteration
        item = next(self._inner[0])
        self.position += 1
        return item


def firstn(reader: ReaderLike[Item], n: int) -> DecoratedReader[Item]:
    """Yield the first `n` items of each pass: Fluid's `firstn`.

    Raises:
      ValueError: `n` is not an int >= 0.

    >>> list(firstn(lambda: range(10), 3))
    [0, 1, 2]
    """
    source = of(reader)
    check_int("firstn(n)", n, 0, "It counts items")

    def length() -> int | None:
        num_items = reader_length(source)
        return None if num_items is None else min(n, num_items)

    return DecoratedReader(
        "firstn", lambda epoch: _FirstnIterator(source, epoch, n), length, [source]
    )


def _sources(decorator: str, readers: Sequence[ReaderLike[Item]]) -> list[ReaderBase[Item]]:
    if not readers:
        raise ValueError(
            f"{decorator} got no reader, expected one reader or more. It yields what its readers "
            "yield. Pass the readers as arguments, not as a list."
        )
    return [of(reader) for reader in readers]


def _shortest(sources: Sequence[ReaderBase[object]]) -> int | None:
    lengths = [reader_length(source) for source in sources]
    return None if None in lengths else min(n for n in lengths if n is not None)
