"""How far and how fast a training run is, from its events."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol


class Device(Protocol):
    """A device of JAX, as far as it is used; a checker does not take `jax.Device` for a class."""

    def memory_stats(self) -> Mapping[str, int] | None:
        """Return the bytes in use and others, where the backend counts them."""
        ...


class Pace:
    """Where training stands, how fast it is, how long it will take, and what memory it needs.

    The first launch is left out of the rates, as it compiles.
    """

    def __init__(
        self, first_epoch: int = 0, num_epochs: int = 0, device: Device | None = None
    ) -> None:
        self.step = 0
        self.num_steps: int | None = None
        self._first_epoch = first_epoch
        self._num_epochs = num_epochs
        self._epoch = first_epoch
        self._num_examples = 0
        self._last_rate: float | None = None
        self._device = device
        self.data_wait: float | None = None
        # Time, examples of this epoch and steps of all epochs, where counting began.
        self._epoch_start: tuple[float, int] | None = None
        self._start: tuple[float, int] | None = None
        self.total_steps = 0

    def begin_epoch(self, epoch: int, num_steps: int | None) -> None:
        self._epoch, self.step, self._num_examples = epoch, 0, 0
        # A reader without a length has, after one epoch, that of the last.
        self.num_steps = num_steps or self.num_steps
        self._epoch_start = (time.monotonic(), 0) if self._start else None

    def begin_launch(self) -> None:
        # From the second launch on: the first compiles.
        if self._epoch_start is None and self.step:
            now = time.monotonic()
            self._epoch_start = (now, self._num_examples)
            self._start = self._start or (now, self.total_steps)

    def end_step(self, num_examples: int) -> None:
        self.step += 1
        self.total_steps += 1
        self._num_examples += num_examples

    def end_epoch(self, data_wait: float | None = None) -> None:
        self.data_wait = data_wait
        # Counted, where the reader did not say: the next epoch's bar has an end.
        self.num_steps = self.step
        self._last_rate = self.examples_per_sec
        self._epoch_start = None  # the test that may follow does not count
        self._start = self._start or (time.monotonic(), self.total_steps)

    @property
    def epoch(self) -> str:
        last = self._first_epoch + self._num_epochs
        return f"epoch {self._epoch + 1:{len(str(last))}}/{last}"

    @property
    def examples_per_sec(self) -> float | None:
        """The epoch's speed so far, or at its beginning that of the last one."""
        if self._epoch_start is None or self._num_examples <= self._epoch_start[1]:
            return self._last_rate
        secs = time.monotonic() - self._epoch_start[0]
        return (self._num_examples - self._epoch_start[1]) / max(secs, 1e-9)

    @property
    def secs_left(self) -> float | None:
        """The time left, epochs' tests included; None when unknown or nothing is left."""
        if self._start is None or self.all_steps is None:
            return None
        # Over all epochs, tests included: they take their time in those to come too.
        secs, num_steps = time.monotonic() - self._start[0], self.total_steps - self._start[1]
        steps_left = max(self.all_steps - self.total_steps, 0)
        return secs / num_steps * steps_left if num_steps > 0 and steps_left else None

    @property
    def all_steps(self) -> int | None:
        """The steps of all epochs together, if the length of one is known."""
        return None if self.num_steps is None else self._num_epochs * self.num_steps

    @property
    def steps(self) -> str:
        return f"{self.step}" if self.num_steps is None else f"{self.step}/{self.num_steps}"

    @property
    def wait(self) -> str:
        """The share of its time that the last epoch waited for the reader, from 1 % on."""
        return f"  {self.data_wait:.0%} data wait" if (self.data_wait or 0) >= 0.01 else ""

    def rates(self) -> list[str]:
        """Return speed, time left, data wait and memory as far as known, most important first.

        Each has two spaces before it.
        """
        speed, left = self.examples_per_sec, self.secs_left
        return [
            "" if speed is None else f"  {_format_count(speed)} ex/s",
            "" if left is None else f"  {_format_duration(left)} left",
            self.wait,
            _format_memory(self._device),
        ]


def _format_memory(device: Device | None) -> str:
    """Return the memory in use on a device as text, empty where the backend does not count it."""
    stats = None if device is None else device.memory_stats()
    # CPU devices have none.
    if not stats or "bytes_in_use" not in stats:
        return ""
    limit = f"/{stats['bytes_limit'] / 2**30:.1f}" if "bytes_limit" in stats else ""
    return f"  {stats['bytes_in_use'] / 2**30:.1f}{limit} GiB"


def _format_count(count: float) -> str:
    for size, suffix in ((1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.1f}{suffix}"
    return f"{count:.3g}"


def _format_duration(secs: float) -> str:
    minutes, seconds = divmod(round(secs), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
