"""Results of tests during a run: of a function that is called each epoch, or of an `Evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.events import BeginTraining, EndEpoch
from penstock.handlers._names import named
from penstock.handlers.evaluate import Evaluate

Test = Callable[[], Any] | Evaluate
"""A function that returns metrics, called at the end of each epoch; or an `Evaluate` of the run,
whose results are taken when it has tested."""


class Tests:
    """Give the results of tests, each with the number of steps done before it.

    Arguments:
      test: where they come from; `None` gives none.
      names: names for unnamed metrics.
    """

    def __init__(self, test: Test | None, names: Sequence[str]) -> None:
        self._test, self._names = test, names
        self._tested = 0

    def __call__(self, event: Any) -> list[tuple[int, dict[str, float]]]:
        """Return the results that are new at this event."""
        if isinstance(event, BeginTraining):
            self._tested = event.global_step  # those before were given in their time
        if isinstance(self._test, Evaluate):
            new = [result for result in self._test.results if result[0] > self._tested]
            self._tested = new[-1][0] if new else self._tested
            return new
        if self._test is None or not isinstance(event, EndEpoch):
            return []
        return [(event.global_step, named(self._test(), self._names))]
