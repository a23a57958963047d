"""The benchmark mode: examples per second without the first steps, and the reader's share."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping

from penstock.commands._run.samples import Batch, BatchIterator, BatchReader
from penstock.events import BeginTraining, EndStep, EndTraining, Event

_WARM_UP_STEPS = 3


class TimedReader:
    """A reader that measures how long its user waits for batches.

    Arguments:
      reader: one whose iterators have positions.
    """

    def __init__(self, reader: BatchReader) -> None:
        self.reader = reader
        self.secs = 0.0
        self.num_batches = 0

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.reader)

    def __call__(self) -> _TimedIterator:
        """Return an iterator over epoch 0."""
        return self.iterate(0)

    def iterate(self, epoch: int) -> _TimedIterator:
        """Return an iterator over an epoch."""
        return _TimedIterator(self, self.reader.iterate(epoch))


class _TimedIterator:
    def __init__(self, timed: TimedReader, iterator: BatchIterator) -> None:
        self._timed, self._iterator = timed, iterator

    def __iter__(self) -> _TimedIterator:
        return self

    def __next__(self) -> Batch:
        start = time.perf_counter()
        try:
            return next(self._iterator)
        finally:
            self._timed.secs += time.perf_counter() - start
            self._timed.num_batches += 1

    def get_state(self) -> Mapping[str, object]:
        return self._iterator.get_state()

    def set_state(self, state: Mapping[str, object]) -> None:
        self._iterator.set_state(state)


class Benchmark:
    """Measure examples per second in windows of steps, and print them at the end of training.

    A window begins and ends when the device has done its steps. The first steps, which compile, and
    the first window are left out.

    Arguments:
      reader: what is trained on.
      every_steps: the length of a window.

    Attributes:
      rates: examples per second of each window.
    """

    def __init__(self, reader: TimedReader, every_steps: int) -> None:
        self._reader, self._every_steps = reader, max(1, every_steps)
        self._begin()

    def _begin(self) -> None:
        self.rates: list[float] = []
        self._step_secs: list[float] = []
        self._data_secs: list[float] = []
        self._num_steps = self._num_examples = 0
        self._start: tuple[float, float] | None = None

    def __call__(self, event: Event) -> None:
        """Measure a step, or print what was measured."""
        match event:
            case BeginTraining():
                self._begin()
            case EndStep():
                self._end_step(event)
            case EndTraining() if event.error is None:
                print(self.summary(), flush=True)

    def _end_step(self, event: EndStep) -> None:
        self._num_steps += 1
        self._num_examples += event.num_examples
        # The first steps compile.
        length = _WARM_UP_STEPS if self._start is None else self._every_steps
        if self._num_steps < length:
            return
        # Reading waits for the device: without it the clock would measure how fast steps are
        # queued.
        event.metrics  # noqa: B018
        now = (time.perf_counter(), self._reader.secs)
        if self._start is not None:
            secs, data_secs = now[0] - self._start[0], now[1] - self._start[1]
            self.rates.append(self._num_examples / max(secs, 1e-9))
            self._step_secs.append(secs / self._num_steps)
            self._data_secs.append(data_secs / self._num_steps)
        self._num_steps = self._num_examples = 0
        self._start = now

    def summary(self) -> str:
        """Return what was measured, as one line."""
        if not self.rates:
            return (
                f"benchmark: no window of {self._every_steps} steps after the first "
                f"{_WARM_UP_STEPS}; raise --stop_at_step"
            )
        # Medians: one window in which another program was busy does not count.
        step, data = statistics.median(self._step_secs), statistics.median(self._data_secs)
        return (
            f"benchmark: {statistics.median(self.rates):.1f} examples/s, "
            f"{min(self.rates):.1f} to {max(self.rates):.1f} in {len(self.rates)} windows of "
            f"{self._every_steps} steps; {1000 * step:.3g} ms a step, of which the reader took "
            f"{1000 * data:.3g} ms ({data / step:.1%})"
        )
