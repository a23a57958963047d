"""`Log`: a text line every few steps, in FastNN's form."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, TextIO

from penstock.events import BeginEpoch, BeginStep, BeginTraining, EndEpoch
from penstock.handlers._names import named
from penstock.handlers._readings import Reading, Readings, as_names

_LEARNING_RATE_NAMES = ("lrate", "learning_rate")


class _Mark(NamedTuple):
    """Where a window begins: a time, and the counts of steps and examples launched by then."""

    secs: float
    num_steps: int
    num_examples: int


class Log:
    """Print a line of text every `every_steps` steps, as FastNN and TF-Slim do.

    `[0.052 secs/step, 615.4 samples/sec] loss = 2.31, accuracy = 0.125, lrate = 0.01,
    global_step = 100`. Times are those of the steps launched since the line before; the first
    launch, which compiles, is left out, and so is what happens between epochs. Without a step to
    time they are `-`. `global_step` counts the steps done, as TensorFlow does: 100 is event number
    99. `lrate` is the learning rate of that step where the optimizer tells it, as those of
    `optimizers.get` do, or a metric called `lrate` or `learning_rate`.

    A line is printed one launch late, so that reading its metrics does not hold up the device. At
    other steps nothing is read.

    Arguments:
      every_steps: the interval; 0 or less prints nothing.
      names: names for the values of a program function that returns a tuple, a list or a single
        value; those beyond are called `metric_1` by their position. A dict brings its own names.
      file: where to write; standard output by default.

    >>> from penstock.events import BeginStep, BeginTraining, EndStep, EndTraining
    >>> log = Log(every_steps=1, names=("loss", "lrate"))
    >>> for event in [
    ...     BeginTraining(epoch=0, num_epochs=1, global_step=0),
    ...     BeginStep(epoch=0, step=0, global_step=0),
    ...     EndStep(epoch=0, step=0, global_step=0, num_examples=8, read=lambda: (0.5, 0.01)),
    ...     EndTraining("completed", global_step=1),
    ... ]:
    ...     log(event)
    [- secs/step, - samples/sec] loss = 0.5, lrate = 0.01, global_step = 1
    """

    def __init__(
        self,
        every_steps: int = 10,
        *,
        names: Sequence[str] = ("loss",),
        file: TextIO | None = None,
    ) -> None:
        self._names = as_names(names)
        self._file = file
        self._readings = Readings(every_steps)
        self._start: _Mark | None = None
        self._paused: float | None = None

    def __call__(self, event: Any) -> None:
        """Take note of an event, and at the interval print a line."""
        match event:
            case BeginTraining():
                self._start = self._paused = None
            case BeginEpoch():
                self._resume()
            case BeginStep() if self._start is None and self._readings.num_steps:
                self._start = self._mark()
        reading = self._readings(event)
        if reading is not None:
            now = self._mark()
            self._print(reading, now)
            self._start = now
        if isinstance(event, EndEpoch):
            self._paused = time.monotonic()

    def _resume(self) -> None:
        """Go on with the window, without the time since the last epoch's end: tests and saving."""
        if self._start is not None and self._paused is not None:
            secs = self._start.secs + time.monotonic() - self._paused
            self._start = self._start._replace(secs=secs)
        self._paused = None

    def _mark(self) -> _Mark:
        return _Mark(time.monotonic(), self._readings.num_steps, self._readings.num_examples)

    def _print(self, reading: Reading, now: _Mark) -> None:
        values = named(reading.metrics, self._names)
        own = [values.pop(name) for name in _LEARNING_RATE_NAMES if name in values]
        told = {n.replace("learning_rate", "lrate"): rate for n, rate in reading.rates.items()}
        values |= {"lrate": own[0]} if own else told
        parts = [f"{name} = {value:.6g}" for name, value in values.items()]
        parts.append(f"global_step = {reading.global_step + 1}")
        print(self._speed(now), ", ".join(parts), file=self._file or sys.stdout, flush=True)

    def _speed(self, now: _Mark) -> str:
        if self._start is None or now.num_steps == self._start.num_steps:
            return "[- secs/step, - samples/sec]"
        secs = max(now.secs - self._start.secs, 1e-9)
        num_steps = now.num_steps - self._start.num_steps
        num_examples = now.num_examples - self._start.num_examples
        return f"[{secs / num_steps:.3g} secs/step, {num_examples / secs:.1f} samples/sec]"
