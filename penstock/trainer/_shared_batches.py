"""The batches of a reader on several processes: as many launches on each, whatever each has."""

from __future__ import annotations

import contextlib
import itertools
import logging
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import jax
import numpy as np

from penstock import _batches
from penstock._errors import FeedError, ReaderError
from penstock._program import sequences
from penstock._program.requests import Feed
from penstock.distributed.group import Group
from penstock.program_builder.programs import Programs

_LOGGER = logging.getLogger("penstock")

OnUnequal = Literal["pad", "raise"]
"""What a process does whose reader ends before another's: feed empty batches, or raise."""

_HASHED_BYTES = 1 << 20
_SAID: WeakKeyDictionary[Programs, set[str]] = WeakKeyDictionary()
"""What was said of the readers of each trainer: once, and not in every epoch."""


class Batch(NamedTuple):
    """A batch of this process, where its reader is after it, and its examples on all processes."""

    feed: Feed
    state: object = None
    total: int = 0


class First(NamedTuple):
    """What the first batches of all processes say.

    Attributes:
      size: how many examples a batch of this process is padded to.
      counts: how many the first batch of each process has.
      is_same: on process 0, whether all processes have the same first batch.
    """

    size: int
    counts: list[int]
    is_same: bool


class SharedBatches:
    """Levels the readers of several processes, so that each launch finds all of them.

    While readers are long enough nothing is exchanged. A process whose reader is short, or has a
    short batch, asks what the others have at the same place.

    Arguments:
      mode: `"train"` or `"test"`.
      steps: batches of a launch.
      num_before: examples of all processes in this pass before the readers' positions.

    Attributes:
      num_examples: of all processes in this pass, once the reader is over.
    """

    def __init__(
        self,
        programs: Programs,
        mode: str,
        *,
        steps: int,
        on_unequal: OnUnequal,
        num_before: int = 0,
    ) -> None:
        self._programs, self._mode, self._what = programs, mode, f"trainer.{mode}"
        self._group, self._steps = programs.group, steps
        self._empty = _batches.make_empty(programs.network.inputs(mode))
        self._on_unequal: OnUnequal = on_unequal
        self._num_batches = self._num_own = 0
        self.num_examples = num_before

    def level(
        self, feeds: Generator[Feed, None, None], get_state: Callable[[], object] | None = None
    ) -> Generator[list[Batch], None, None]:
        """Yield the batches of each launch, empty ones where this process has no more. Collective.

        Arguments:
          feeds: this process's batches; closed at the end.
          get_state: tells the reader's position after a batch.

        Raises:
          ReaderError: a reader ended before another's, and that is not to be padded.
          FeedError: a batch is larger than the processes have agreed on.
        """
        programs, mode = self._programs, self._mode
        with contextlib.closing(feeds):
            feed = next(feeds, None)
            num_devices = programs.mesh.local_mesh.size
            first = agree_on_first(self._group, feed, num_devices, self._what)
            if first.is_same and self._is_first_time("same"):
                _warn_of_same(self._what, first)
            # Of sequences the sizes are agreed on batch by batch, with their lengths.
            has_sequences = any(s.lod_level for s in programs.network.inputs(mode).values())
            programs.fit_batches({mode: 0 if has_sequences else first.size})
            size = programs.batch_sizes[mode]
            batches = (
                Batch(each, get_state() if get_state is not None else None)
                for each in itertools.chain([] if feed is None else [feed], feeds)
            )
            for taken in self._level(batches, first):
                for each in () if has_sequences else taken:
                    check_size(each.feed, size, self._what)
                yield taken

    def _level(self, batches: Iterator[Batch], first: First) -> Generator[list[Batch], None, None]:
        state: object = None
        own = first.counts[self._group.index]
        while True:
            taken = list(itertools.islice(batches, self._steps))
            counts = [count_examples(each.feed) for each in taken]
            self._num_batches += len(taken)
            self._num_own += sum(counts)
            state = taken[-1].state if taken else state
            is_full = len(taken) == self._steps and all(count >= own for count in counts)
            shares = None if is_full else self._share(counts)
            if shares is not None:
                most = max(len(each["counts"]) if each else self._steps for each in shares)
                if not most:
                    self.num_examples += sum(each["num_examples"] for each in shares if each)
                    return
                if len(taken) < most:
                    self._check_unequal(shares)
                    taken += [Batch(self._empty, state)] * (most - len(taken))
            self._group.take()
            totals = _add_up(len(taken), shares, first.counts)
            taken = [each._replace(total=n) for each, n in zip(taken, totals, strict=True)]
            if len(taken) == self._steps:
                yield taken
            else:
                # One by one: a launch of another number of steps would be one more to compile.
                yield from ([each] for each in taken)

    def _is_first_time(self, saying: str) -> bool:
        said = _SAID.setdefault(self._programs, set())
        key = f"{self._what} {saying}"
        is_first = key not in said
        said.add(key)
        return is_first

    def _share(self, counts: list[int]) -> list[dict[str, Any] | None]:
        return self._group.share(
            {"counts": counts, "num_batches": self._num_batches, "num_examples": self._num_own}
        )

    def _check_unequal(self, shares: Sequence[Mapping[str, int] | None]) -> None:
        if self._on_unequal == "pad" and not self._is_first_time("unequal"):
            return
        counts = ", ".join(
            f"process {index} has more than {self._num_batches}"
            if each is None
            else f"process {index} has {each['num_batches']}"
            for index, each in enumerate(shares)
        )
        text = f"{self._what} got readers of different lengths: of batches {counts}"
        if self._on_unequal == "raise":
            raise ReaderError(
                f"{text}; expected the same number on every process. Give every process as much, "
                "or pass on_unequal='pad', which feeds empty batches."
            )
        _LOGGER.warning("%s. Those that have no more feed empty batches, which count nothing", text)


def _add_up(
    num_batches: int, shares: Sequence[Mapping[str, Any] | None] | None, full: Sequence[int]
) -> list[int]:
    """Return how many examples each batch of a launch has on all processes.

    Who asked for nothing is taken to have full batches, and so are all where nobody asked. Where
    the last batch is full on some and short on others, the former count too many here; the sum of
    an epoch is exact.
    """
    totals = [0] * num_batches
    for share, size in zip(shares or [None] * len(full), full, strict=True):
        counts = [size] * num_batches if share is None else share["counts"]
        for number, count in enumerate(counts):
            totals[number] += count
    return totals


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


def agree_on_first(group: Group, first: Feed | None, num_devices: int, what: str) -> First:
    """Return what the first batches say. Collective.

    Every device of the run gets as many examples; the largest first batch says how many.

    Arguments:
      first: this process's first batch, None where its reader has none.
      num_devices: the devices of this process.
    """
    count = 0 if first is None else count_examples(first)
    rows = group.exchange(what, [-(-count // num_devices), count, _hash(first)])
    hashes = [digest for _, its, digest in rows if its]
    is_same = not group.index and len(hashes) > 1 and len(set(hashes)) == 1
    size = max(share for share, _, _ in rows) * num_devices
    return First(size, [its for _, its, _ in rows], is_same)


def check_size(feed: Feed, size: int, what: str) -> None:
    """Raise if a batch has more examples than the processes agreed on.

    Raises:
      FeedError: it has.
    """
    count = count_examples(feed)
    if count > size:
        raise FeedError(
            f"{what} got a batch of {count} examples on one process, expected at most {size} as in "
            "the first batches. On several processes a batch must not grow, since the others would "
            "not know of it. Let the reader begin with its largest."
        )


def _warn_of_same(what: str, first: First) -> None:
    _LOGGER.warning(
        "%s got the same first batch on all %d processes, expected a part of the data on each: "
        "every example would count several times. Readers of penstock share the data by "
        "themselves; of a reader of your own yield jax.process_index()'s part.",
        what,
        sum(map(bool, first.counts)),
    )


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
