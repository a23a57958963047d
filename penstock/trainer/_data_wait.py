"""The share of its time that training waits for data."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

from penstock._interrupts import Interrupts

_LOGGER = logging.getLogger("penstock")

T = TypeVar("T")

SAMPLE_EVERY = 16
LONG_SECS = 1e-3
WARN_SHARE = 0.1
WARN_AFTER_SECS = 5.0


class DataWait:
    """The account of waiting for data: which share of its time training spends on the reader.

    It samples one launch in 16: reading the clock at each would cost the smallest networks 2 %.
    While 16 launches take more than 16 ms, it samples each of them: an epoch of 20 launches would
    otherwise be judged by a single one.

    Taking the next launch from the reader counts as waiting while the device has nothing to do. It
    counts whole where the device was idle before, half where it became idle meanwhile.

    Arguments:
      is_idle: whether the device has done everything it was given.
      interrupts: open while the reader is waited for.
    """

    def __init__(
        self,
        is_idle: Callable[[], bool],
        interrupts: Interrupts,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._interrupts = interrupts
        self._is_idle, self._clock = is_idle, clock
        self._number, self._every = 0, SAMPLE_EVERY
        # The samples since the interval between them was chosen.
        self._num_recent, self._recent_secs = 0, 0.0
        # Seconds of all launches that the samples stand for.
        self._waited = self._passed = 0.0
        self._is_warned = False

    def watch(self, launches: Iterable[T]) -> Generator[T, None, None]:
        """Yield the launches; look at the clock around some of them.

        An interrupt is raised at once while the reader is waited for.
        """
        iterator, interrupts = iter(launches), self._interrupts
        start, was_idle = -1.0, False
        while True:
            # From one sampled launch's beginning to the next: waiting and running together.
            if start >= 0.0:
                seconds = self._clock() - start
                self._passed += self._every * seconds
                start = -1.0
                self._num_recent += 1
                self._recent_secs += seconds
                # A mean over several: the host runs ahead of the device for a few launches.
                if self._every * self._num_recent >= SAMPLE_EVERY:
                    is_long = self._recent_secs > self._num_recent * LONG_SECS
                    self._every = 1 if is_long else SAMPLE_EVERY
                    self._num_recent, self._recent_secs = 0, 0.0
            self._number += 1
            is_sampled = self._number % self._every == 0
            if is_sampled:
                # Asked before the clock is read, so that asking is no waiting.
                was_idle, start = self._is_idle(), self._clock()
            # Nothing is in a launch now: an exception may come at any line of the reader's.
            interrupts.is_open = True
            try:
                launch = next(iterator)
            except StopIteration:
                interrupts.is_open = False
                return
            interrupts.is_open = False
            if is_sampled:
                share = 1.0 if was_idle else 0.5 if self._is_idle() else 0.0
                self._waited += self._every * share * (self._clock() - start)
            yield launch

    def end_epoch(self, epoch: int) -> float | None:
        """Return the share since the last epoch's end, None without a sample; warn if high."""
        if not self._passed:
            return None
        share, seconds = self._waited / self._passed, self._passed
        self._waited = self._passed = 0.0
        if share > WARN_SHARE and seconds > WARN_AFTER_SECS and not self._is_warned:
            # Once for a run: what to do about it is the same in every epoch.
            self._is_warned = True
            _LOGGER.warning(
                "training waited for data %.0f %% of the time in epoch %d. Let the reader decode "
                "in more threads or in processes (num_workers=, workers=), keep what it decodes "
                "(readers.cache), read ahead (readers.buffered), or leave casts and normalisation "
                "to the program.",
                100 * share,
                epoch,
            )
        return share
