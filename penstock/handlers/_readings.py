"""Steps at an interval with their metrics, and how much had been trained by then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.events import BeginEpoch, BeginTraining, EndStep, EndTraining
from penstock.handlers._interval import Interval


class Reading(NamedTuple):
    """A step's numbers and metrics; the counts are since training began, this step included.

    Attributes:
      rates: the learning rate by name, nothing where the optimizer does not tell it.
    """

    epoch: int
    step: int
    global_step: int
    num_steps: int
    num_examples: int
    metrics: Any
    rates: dict[str, float]


class Readings:
    """Read every `every_steps`-th step's metrics, one launch late; other steps are only counted.

    Arguments:
      every_steps: the interval; 0 or less reads nothing.

    Attributes:
      num_steps: steps since training began.
      num_examples: examples since training began.
    """

    def __init__(self, every_steps: int) -> None:
        if isinstance(every_steps, bool) or not isinstance(every_steps, int):
            raise ValueError(
                f"every_steps got {every_steps!r}, expected an integer. It is how many steps lie "
                "between two readings; 0 reads none."
            )
        self._every_steps = every_steps
        self._interval = Interval(every_steps) if every_steps > 0 else lambda event: None
        self._counts: dict[int, tuple[int, int]] = {}
        self.num_steps = self.num_examples = 0

    def __call__(self, event: Any) -> Reading | None:
        """Return what is to be read at this event, if there is something."""
        match event:
            case EndStep():
                self.num_steps += 1
                self.num_examples += event.num_examples
                if self._every_steps > 0 and (event.global_step + 1) % self._every_steps == 0:
                    self._counts[event.global_step] = (self.num_steps, self.num_examples)
            case BeginTraining():
                self.num_steps = self.num_examples = 0
                self._counts.clear()
            case BeginEpoch():
                self._counts.clear()
        held = self._interval(event)
        has_failed = isinstance(event, EndTraining) and event.error is not None
        return None if held is None else self._read(held, may_fail=has_failed)

    def take(self) -> Reading | None:
        """Return at once what would be read after the next launch, if there is something."""
        held = self._interval(EndTraining("stopped"))  # at the end of training it is given
        return None if held is None else self._read(held, may_fail=True)

    def _read(self, held: EndStep, *, may_fail: bool) -> Reading | None:
        try:
            metrics, rate = held.metrics, held.learning_rate
        except Exception:
            if may_fail:
                return None  # the step itself failed, and its error is on its way to the caller
            raise
        counts = self._counts.pop(held.global_step)
        rates = {} if rate is None else {"learning_rate": rate}
        if isinstance(rate, dict):
            rates = {f"learning_rate/{name}": value for name, value in rate.items()}
        return Reading(held.epoch, held.step, held.global_step, *counts, metrics, rates)


def as_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return names as a tuple; one name may be given as it is."""
    return (names,) if isinstance(names, str) else tuple(names)
