"""Others' readers as they are: Grain, `tf.data`, torch, Fluid's callables, generators, lists."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from penstock._json_values import decode_bytes, encode_bytes
from penstock._parent_watch import WatchedChildren, warn_of_forked_workers
from penstock.readers import _tree
from penstock.readers._contract import (
    Item,
    IteratorBase,
    ReaderBase,
    ReaderLike,
    State,
    refuse_short,
)
from penstock.readers._errors import ReaderExhaustedError, note


class ForeignReader(ReaderBase[Item]):
    """Something that can be read, under our contract. Made by `of`, which documents it."""

    def __init__(self, source: Iterable[Item] | Callable[[], Iterable[Item]]) -> None:
        super().__init__()
        self.source = source
        self.name = _describe(source)
        self._is_one_shot = isinstance(source, Iterator)
        self._is_spent = False

    def __len__(self) -> int:
        """Return the source's length.

        Raises:
          TypeError: the source has none.
        """
        return len(self.source)  # type: ignore[arg-type]

    def iterate(self, epoch: int) -> ForeignIterator[Item]:
        """Return an iterator over the source's pass of that number, where it has numbers."""
        return ForeignIterator(self, epoch)

    def start_pass(self) -> Any:
        """Return the source for one more pass over it."""
        if self._is_spent:
            raise ReaderExhaustedError(
                f"reader {self.name} got a second pass, expected something that can be read again. "
                "Pass the function that makes it, not its result."
            )
        self._is_spent = self._is_one_shot
        return self.source


class ForeignIterator(IteratorBase[Item]):
    """One pass over a foreign source; counts items where the source cannot tell its position."""

    kind = "foreign"

    def __init__(self, reader: ForeignReader[Item], epoch: int) -> None:
        self.epoch = epoch
        self._owner = reader
        self._position = 0
        self._needs_numpy: bool | None = None
        self._children = WatchedChildren()
        self._iterator = self._open(reader.start_pass())

    def _open(self, source: Any) -> Iterator[Item]:
        try:
            # What a function returns may number its passes, as our readers do.
            if not hasattr(source, "iterate") and not hasattr(source, "__iter__"):
                source = source()
            self._numbered = self.epoch if hasattr(source, "iterate") else None
            if self._numbered is not None:
                return source.iterate(self.epoch)
            warn_of_forked_workers(source)
            # Of `tf.data`: its tensors would each be copied to numpy afterwards.
            if hasattr(source, "as_numpy_iterator"):
                return source.as_numpy_iterator()
            return iter(source)
        except Exception as error:
            note(error, f"while opening reader {self._owner.name}, epoch {self.epoch}")
            raise

    def __next__(self) -> Item:
        """Return the source's next item, tensors of torch and TensorFlow as numpy arrays."""
        if self._closed:
            raise StopIteration
        try:
            item = self._to_numpy(next(self._iterator))
        # The end of a pass is no failure, and gets no note.
        except StopIteration:
            raise
        except Exception as error:
            note(
                error,
                f"while reading item {self._position} of epoch {self.epoch} from reader "
                f"{self._owner.name}",
            )
            raise
        self._position += 1
        # Grain and torch start their workers with the first item, or with a later epoch.
        self._children.watch_new()
        return item

    def _to_numpy(self, item: Item) -> Item:
        # Asked once a pass: to look at every leaf of every item costs more than most of them.
        if self._needs_numpy is None:
            leaves = _tree.leaves_with_path(item, "")
            self._needs_numpy = any(_is_tensor(leaf) for _, leaf in leaves)
        if not self._needs_numpy:
            return item
        return _tree.tree_map(lambda leaf: leaf.numpy() if _is_tensor(leaf) else leaf, item)

    @property
    def _is_stateful(self) -> bool:
        return hasattr(self._iterator, "get_state") and hasattr(self._iterator, "set_state")

    def _save(self) -> State:
        if not self._is_stateful:
            return {"position": self._position}
        state = self._iterator.get_state()  # type: ignore[attr-defined]
        return {"position": self._position, "source": encode_bytes(state)}

    def _load(self, state: Mapping[str, Any]) -> None:
        if self._numbered not in (None, self.epoch):
            self._reopen()
        if "source" in state and self._is_stateful:
            # The key of an earlier release, whose checkpoints can still be resumed.
            source = decode_bytes(state["source"], older_key="base64")
            self._iterator.set_state(source)  # type: ignore[attr-defined]
        else:
            self._skip(state["position"])
        self._position = state["position"]

    def _skip(self, count: int) -> None:
        if count:
            warnings.warn(
                f"reader {self._owner.name} cannot restore its position: reading and dropping "
                f"{count} items. The order must be the one of the saved run. Use a reader with "
                "get_state() and set_state() to resume at once.",
                UserWarning,
                stacklevel=2,
            )
        if self._position:
            self._reopen()
        for self._position in range(1, count + 1):
            # A marker that no source yields: `None` may be an item.
            if next(self._iterator, self) is self:
                raise refuse_short(f"reader {self._owner.name}", self._position - 1, count)

    def _reopen(self) -> None:
        # Asked first: what is read only once cannot go back, and goes on where it is.
        source = self._owner.start_pass()
        self._close_source()
        self._iterator, self._position = self._open(source), 0

    def _close_source(self) -> None:
        close = getattr(self._iterator, "close", None)
        if callable(close):
            close()

    def _release(self) -> None:
        self._close_source()
        # torch ends its workers when its iterator is dropped.
        self._iterator = iter(())


def of(source: ReaderLike[Item]) -> ReaderBase[Item]:
    """Wrap any iterable or data loader as a penstock reader.

    Accepted are: a zero-argument callable that returns an iterable (Fluid's reader), any iterable,
    what has `iterate(epoch)`, Grain's datasets and loaders, `tf.data` datasets (read as numpy),
    torch `DataLoader`s (their CPU tensors become numpy arrays), and an iterator or generator, for
    one pass only. A penstock reader is returned unchanged. Grain's iterators save their own
    position. For sources that cannot, items are counted, and resuming reads and discards that many.

    Raises:
      TypeError: `source` is none of these.
      ReaderExhaustedError: on a second pass over an iterator or generator.

    >>> reader = of(lambda: iter([1, 2, 3]))
    >>> iterator = reader()
    >>> next(iterator), iterator.get_state()
    (1, {'kind': 'foreign', 'epoch': 0, 'position': 1})
    """
    if isinstance(source, ReaderBase):
        return source
    is_readable = hasattr(source, "__iter__") or hasattr(source, "iterate") or callable(source)
    if not is_readable or isinstance(source, (type, str, bytes, Mapping)):
        raise TypeError(
            f"reader got {type(source).__name__} {_describe(source)}, expected an iterable, or a "
            "zero-argument callable that returns one. Pass readers.arrays(...), a function that "
            "yields samples, or a list of them."
        )
    return ForeignReader(source)


def _describe(source: object) -> str:
    name = getattr(source, "__qualname__", None) or getattr(source, "__name__", None)
    return name if isinstance(name, str) else f"of type {type(source).__name__}"


def _is_tensor(leaf: object) -> bool:
    # Told by what they can do: torch and TensorFlow are not imported for it.
    return hasattr(leaf, "numpy") and hasattr(leaf, "shape")
