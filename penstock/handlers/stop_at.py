"""`StopAt`: training ends at a step or after a time."""

from __future__ import annotations

import time

from penstock._errors import check_int, check_number
from penstock.events import BeginEpoch, BeginTraining, EndStep, Event, Training
from penstock.handlers._monitor import get_trainer


class StopAt:
    """Stop training after a number of steps or seconds, whichever comes first.

    Arguments:
      step: stop when `trainer.global_step` reaches it. It counts the steps of all calls of `train`,
        also before a resume, like FastNN's `stop_at_step`. If it is reached already, nothing is
        trained. If a launch has several steps, all of them run.
      seconds: how long this call of `train` may take. The current step is then the last; a test or
        a save may follow. If there are several processes, the first to reach it stops all of them.

    >>> import numpy as np, optax, penstock as ps
    >>> def train_program():
    ...     prediction = ps.layers.fc(ps.layers.data("x", shape=[2]), size=1)
    ...     return ps.layers.mean(prediction * prediction)
    >>> reader = ps.readers.arrays({"x": np.ones([8, 2], "float32")}, batch_size=4)
    >>> trainer = ps.Trainer(train_program, optax.sgd(0.1), place="cpu")
    >>> trainer.train(reader, StopAt(step=5), num_epochs=9)
    >>> trainer.global_step
    5
    """

    def __init__(self, *, step: int | None = None, seconds: float | None = None) -> None:
        if step is None and seconds is None:
            raise ValueError(
                "StopAt got neither step nor seconds, expected one or both. They say when to stop."
            )
        if step is not None:
            check_int("step", step, 0)
        if seconds is not None:
            check_number("StopAt got seconds=", seconds, "[0, inf]", "So long may training take.")
        self._step, self._seconds = step, seconds
        self._trainer: Training | None = None
        self._deadline = float("inf")

    def __call__(self, event: Event) -> None:
        """Stop training when it is time."""
        match event:
            case EndStep():
                self._stop_at(event.global_step + 1)
            case BeginTraining():
                self._trainer = get_trainer(event, "StopAt")
                if self._seconds is not None:
                    self._deadline = time.monotonic() + self._seconds
                self._stop_at(event.global_step)
            case BeginEpoch():
                self._stop_at(event.global_step)

    def _stop_at(self, num_steps: int) -> None:
        is_done = self._step is not None and num_steps >= self._step
        if self._trainer is not None and (is_done or time.monotonic() >= self._deadline):
            self._trainer.stop()
