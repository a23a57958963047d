"""Readers whose threads call a function of the test's, and passes that are left unfinished."""

from collections.abc import Callable, Iterator
from typing import Any

from penstock import readers

NUM_ITEMS = 100
AHEAD = 4
"""Items that every reader below takes from its source once the first is asked for."""

Step = Callable[[int], int]


class Source:
    """A random-access source that calls a function for each item."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def __len__(self) -> int:
        """Return the number of items."""
        return NUM_ITEMS

    def __getitem__(self, index: int) -> dict[str, int]:
        """Return an item."""
        return {"x": self._step(index)}


def _items(step: Step) -> Callable[[], Iterator[int]]:
    return lambda: map(step, range(NUM_ITEMS))


def _xmap(step: Step, *, order: bool) -> Any:
    return readers.xmap_readers(step, lambda: range(NUM_ITEMS), 2, AHEAD, order=order)


MAKERS: dict[str, Callable[[Step], Any]] = {
    "buffered": lambda step: readers.buffered(_items(step), AHEAD),
    "batches of buffered": lambda step: readers.batch(readers.buffered(_items(step), AHEAD), 4),
    "xmap": lambda step: _xmap(step, order=False),
    "xmap in order": lambda step: _xmap(step, order=True),
    "indexed": lambda step: readers.indexed(Source(step), 4, num_workers=2),
}
"""Readers whose threads call a function for each item, by name."""


def unfinished() -> list[Any]:
    """Return an unfinished pass over each reader, and leave one more behind in a cycle."""
    held = []
    for make in MAKERS.values():
        reader = make(abs)
        in_cycle = reader()
        next(in_cycle)
        in_cycle.itself = in_cycle
        held.append(reader())
        next(held[-1])
    return held
