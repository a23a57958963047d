"""Steps at an interval, handed on when reading their metrics no longer holds the device up."""

from __future__ import annotations

from typing import Any

from penstock.events import BeginEpoch, BeginStep, BeginTraining, EndEpoch, EndStep, EndTraining


class Interval:
    """Give every `every_steps`-th step's `EndStep`, one launch late.

    Read at once, its metrics would have to be waited for while the device has nothing to go on
    with. One launch later the device works on that one. What is held at the end of an epoch, or of
    training, is given then. Steps at which it gives `None` cost no synchronisation.

    Arguments:
      every_steps: the interval; the steps with `(global_step + 1) % every_steps == 0` are given.

    >>> interval = Interval(2)
    >>> events = []
    >>> for number in range(3):
    ...     begin = BeginStep(0, number, number)
    ...     events.append((interval(begin), interval(EndStep(0, number, number))))
    >>> events[2]
    (None, EndStep(epoch=0, step=1, global_step=1))
    """

    def __init__(self, every_steps: int) -> None:
        if not isinstance(every_steps, int) or every_steps < 1:
            raise ValueError(
                f"every_steps got {every_steps!r}, expected a positive integer. It is how many "
                "steps lie between two readings."
            )
        self._every_steps = every_steps
        self._held: EndStep | None = None
        self._is_launched = False

    def __call__(self, event: Any) -> EndStep | None:
        """Return the step to read now, if there is one."""
        given = None
        match event:
            case EndStep():
                if self._held is not None and self._is_launched:
                    given, self._held = self._held, None
                if (event.global_step + 1) % self._every_steps == 0:
                    # With an interval of one a step is held at each: the one before is given.
                    given, self._held = given or self._held, event
                    self._is_launched = False
            case BeginStep():
                self._is_launched = self._held is not None
            case BeginTraining() | BeginEpoch():
                self._held = None
            case EndEpoch() | EndTraining():
                given, self._held = self._held, None
        return given
