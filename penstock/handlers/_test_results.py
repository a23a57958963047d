"""Results of tests during a run: of a function that is called each epoch, or of an `Evaluate`."""

from __future__ import annotations

from collections.abc import Callable

from penstock.events import EndEpoch, Event, Metrics
from penstock.handlers.evaluate import Evaluate

Test = Callable[[], Metrics] | Evaluate
"""A function that returns metrics, called at the end of each epoch; or an `Evaluate` of the run,
whose results are taken when it has tested."""


class TestResults:
    """Return the results of tests, each with the number of steps done before it.

    Arguments:
      test: where they come from; with `None` there are none.
    """

    def __init__(self, test: Test | None) -> None:
        self._test = test
        self._last_step = 0

    def begin(self, last_step: int) -> None:
        """Return only results of more steps than `last_step` from now on."""
        self._last_step = last_step

    def __call__(self, event: Event) -> list[tuple[int, Metrics]]:
        """Return the results that are new at this event."""
        if isinstance(self._test, Evaluate):
            results: list[tuple[int, Metrics]] = [*self._test.results]
        elif self._test is not None and isinstance(event, EndEpoch):
            results = [(event.global_step, self._test())]
        else:
            results = []
        # A resumed run may test again at the step it was interrupted at.
        new = [result for result in results if result[0] > self._last_step]
        self._last_step = new[-1][0] if new else self._last_step
        return new
