"""The batches of a reader on several processes: as many launches on each, whatever each has."""

from __future__ import annotations

import contextlib
import itertools
import logging
import zlib
from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import jax
import numpy as np

from penstock import _batches
from penstock._errors import ReaderError
from penstock._program import sequences
from penstock._program.requests import Feed
from penstock.program_builder.programs import Programs

_LOGGER = logging.getLogger("penstock")

OnUnequal = Literal["pad", "raise"]
"""What a process does whose reader ends before another's: feed empty batches, or raise."""

_HASHED_BYTES = 1 << 20
_SAID: WeakKeyDictionary[Programs, set[str]] = WeakKeyDictionary()
"""What was said of the readers of each trainer: once, and not in every epoch."""


_MOST_AHEAD = 16
_MOST_AHEAD_BYTES = 64 << 20
"""What a process reads ahead at most; an exchange of all takes a millisecond."""


class Launch(NamedTuple):
    """The batches of this process for one launch.

    Attributes:
      feeds: of as many examples each.
      shares: the examples that each process brings to each of them.
      state: where this process's reader is after them.
    """

    feeds: list[Feed]
    shares: tuple[int, ...]
    state: object


class SharedBatches:
    """Levels the readers of several processes, so that each launch finds all of them.

    A program is compiled for the examples that each process brings, so all must know of all. They
    read some batches ahead and tell each other how long they are, once for all of those.

    Arguments:
      mode: `"train"` or `"test"`.
      steps: batches of a launch.
    """

    def __init__(self, programs: Programs, mode: str, *, steps: int, on_unequal: OnUnequal) -> None:
        self._programs, self._what = programs, f"trainer.{mode}"
        self._group, self._steps = programs.group, steps
        self._empty = _batches.make_empty(programs.network.inputs(mode))
        self._on_unequal: OnUnequal = on_unequal
        self._num_batches = 0

    def level(
        self, feeds: Generator[Feed, None, None], get_state: Callable[[], object] | None = None
    ) -> Generator[Launch, None, None]:
        """Yield the batches of each launch, empty ones where this process has no more. Collective.

        Arguments:
          feeds: this process's batches; closed at the end.
          get_state: tells the reader's position after a batch.

        Raises:
          ReaderError: a reader ended before another's, and that is not to be padded.
        """
        with contextlib.closing(feeds):
            batches = ((each, get_state() if get_state is not None else None) for each in feeds)
            taken = list(itertools.islice(batches, 1))
            number = self._meet_first([feed for feed, _ in taken])
            taken += itertools.islice(batches, number - 1)
            while True:
                counts = [count_examples(feed) for feed, _ in taken]
                rows = self._group.exchange(f"{self._what} (its batches)", counts)
                yield from self._group_alike(taken, rows)
                if max(map(len, rows)) < number:
                    return
                taken = list(itertools.islice(batches, number))

    def _group_alike(
        self, taken: list[tuple[Feed, object]], rows: Sequence[Sequence[int]]
    ) -> Generator[Launch, None, None]:
        """Yield the launches of some batches, each of as many examples in all of its steps."""
        longest = max(map(len, rows))
        if min(map(len, rows)) < longest:
            self._check_unequal([self._num_batches + len(row) for row in rows])
        self._num_batches += len(taken)
        state = taken[-1][1] if taken else None
        taken = taken + [(self._empty, state)] * (longest - len(taken))
        shares = list(itertools.zip_longest(*rows, fillvalue=0))
        for first in range(0, longest, self._steps):
            places = range(first, min(first + self._steps, longest))
            is_alike = len(places) == self._steps and len({shares[n] for n in places}) == 1
            # Else one by one: a launch of another number of steps would be one more to compile.
            for some in [places] if is_alike else [(n,) for n in places]:
                feeds = [taken[n][0] for n in some]
                yield Launch(feeds, shares[some[-1]], taken[some[-1]][1])

    def _meet_first(self, first: list[Feed]) -> int:
        """Return how many batches all read ahead, from their first ones. Collective."""
        # None where a reader has none.
        size = sum(_count_bytes(feed) for feed in first)
        rows = self._group.gather(self._what, [size, _hash(first[0] if first else None)])
        hashes = [digest for its, digest in rows if its]
        is_same = len(hashes) > 1 and len(set(hashes)) == 1
        if is_same and is_first_time(self._programs, f"{self._what} same"):
            _warn_of_same(self._what, len(hashes))
        largest = self._group.broadcast(self._what, max([its for its, _ in rows], default=0))
        number = _MOST_AHEAD_BYTES // max(1, largest)
        return self._steps * max(1, min(number, _MOST_AHEAD) // self._steps)

    def _check_unequal(self, numbers: Sequence[int]) -> None:
        if self._on_unequal == "pad" and not is_first_time(self._programs, f"{self._what} unequal"):
            return
        longest = max(numbers)
        counts = ", ".join(
            f"process {index} has {n if n < longest else f'more than {min(numbers)}'}"
            for index, n in enumerate(numbers)
        )
        text = f"{self._what} got readers of different lengths: of batches {counts}"
        if self._on_unequal == "raise":
            raise ReaderError(
                f"{text}; expected the same number on every process. Give every process as much, "
                "or pass on_unequal='pad', which feeds empty batches."
            )
        _LOGGER.warning("%s. Those that have no more feed empty batches, which count nothing", text)


def is_first_time(programs: Programs, saying: str) -> bool:
    """Return whether something is said for the first time of a trainer's programs."""
    said = _SAID.setdefault(programs, set())
    is_first = saying not in said
    said.add(saying)
    return is_first


def count_examples(feed: Feed) -> int:
    """Return how many examples a feed has; 0 of one that is no feed, which is found later."""
    for value in feed.values():
        if isinstance(value, (sequences.Sequence, sequences.NestedSequence)):
            return value.lengths.shape[0]
        if isinstance(value, (list, tuple)):
            return len(value)  # of sequences, which may differ in length
        shape: tuple[int, ...] = np.shape(value)
        return shape[0] if shape else 0
    return 1


def _warn_of_same(what: str, num_processes: int) -> None:
    _LOGGER.warning(
        "%s got the same first batch on all %d processes, expected a part of the data on each: "
        "every example would count several times. Readers of penstock share the data by "
        "themselves; of a reader of your own yield jax.process_index()'s part.",
        what,
        num_processes,
    )


def _count_bytes(feed: Feed) -> int:
    return sum(_join(value).nbytes for value in feed.values())


def _join(value: Any) -> np.ndarray:
    """Return an input as one array, what is in lists and sequences end to end."""
    if isinstance(value, np.ndarray):
        return value
    arrays = [np.ravel(each) for each in jax.tree.leaves(value)]
    return np.concatenate(arrays) if arrays else np.zeros(0)


def _hash(feed: Feed | None) -> int:
    digest = 0
    for _, value in sorted((feed or {}).items()):
        array = np.atleast_1d(_join(value))
        if array.dtype != object and array.size:
            # The first examples alone: it is done at the start of every epoch.
            num_rows = max(1, _HASHED_BYTES * len(array) // array.nbytes)
            digest = zlib.crc32(array[:num_rows].tobytes(), digest)
    return digest
