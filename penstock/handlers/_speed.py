"""Examples per second, over windows of steps."""

from __future__ import annotations

import time
from typing import Any

from penstock.events import BeginEpoch, BeginStep, BeginTraining, EndEpoch, EndStep


class Speed:
    """Time windows of steps: without the first launch, which compiles, and what is between epochs.

    Give it every event, and call `lap` at the end of a window.
    """

    def __init__(self) -> None:
        self._num_examples = 0
        self._start: tuple[float, int] | None = None
        self._paused: float | None = None

    def __call__(self, event: Any) -> None:
        """Take note of an event."""
        match event:
            case EndStep():
                self._num_examples += event.num_examples
            case BeginStep() if self._start is None and self._num_examples:
                self._start = (time.monotonic(), self._num_examples)
            case BeginTraining():
                self.__init__()
            case EndEpoch():
                self._paused = time.monotonic()
            case BeginEpoch() if self._start is not None and self._paused is not None:
                secs, num_examples = self._start
                self._start = (secs + time.monotonic() - self._paused, num_examples)

    def lap(self, num_examples: int) -> float | None:
        """Return the examples per second of the window that ends here, and begin the next.

        Arguments:
          num_examples: how many examples had been trained on when it ended, since training began.
        """
        now, start = time.monotonic(), self._start
        if start is None or num_examples <= start[1]:
            return None
        self._start = (now, num_examples)
        return (num_examples - start[1]) / max(now - start[0], 1e-9)
