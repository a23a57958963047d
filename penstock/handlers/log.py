"""`Log`: a text line every few steps, in FastNN's form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from penstock._text_tables import find_columns, wrap_parts
from penstock.events import Event
from penstock.handlers._arguments import as_names, check_file, name_scalars
from penstock.handlers._display import choose_output
from penstock.handlers._readings import Lap, Reading, Readings, Speed

_LEARNING_RATE_NAMES = ("lrate", "learning_rate")


class Log:
    """Print a line every `every_steps` steps, in the format of FastNN and TF-Slim.

    `[0.052 secs/step, 615.4 samples/sec] loss = 2.31, accuracy = 0.125, lrate = 0.01,
    global_step = 100`. Times are means over the steps since the previous line, without compilation
    and the time between epochs; `-` if there is no such step. `global_step` counts the steps done,
    as in TensorFlow: 100 means the event with `global_step` 99. `lrate` is the learning rate, if
    the optimizer's state holds it, as that of `optimizers.get` does; a metric named `lrate` or
    `learning_rate` takes precedence. Other steps are not read.

    Arguments:
      every_steps: the interval in steps; 0 or less prints nothing.
      names: names of metrics that have none: a program's single value, tuple or list.
      file: an open text file; standard output by default.

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
        self, every_steps: int = 10, *, names: Sequence[str] = ("loss",), file: TextIO | None = None
    ) -> None:
        check_file("Log", file)
        self._names = as_names(names)
        self._file = file
        self._readings = Readings(every_steps)
        self._speed = Speed()

    def __call__(self, event: Event) -> None:
        """Print the lines that are ready."""
        self._speed(event)
        readings = self._readings(event)
        # Those of one launch were computed together.
        lap = self._speed.end_lap() if readings else None
        for reading in readings:
            self._print(reading, lap)

    def _print(self, reading: Reading, lap: Lap | None) -> None:
        values = name_scalars(reading.metrics, self._names)
        # A program function that returns its learning rate knows better than the optimizer.
        own = [values.pop(name) for name in _LEARNING_RATE_NAMES if name in values]
        rates = {n.replace("learning_rate", "lrate"): rate for n, rate in reading.rates.items()}
        values |= {"lrate": own[0]} if own else rates
        values |= reading.norms
        parts = [f"{name} = {value:.6g}" for name, value in values.items()]
        parts.append(f"global_step = {reading.global_step + 1}")
        speed = "[- secs/step, - samples/sec]"
        if lap is not None:
            secs, samples = lap.secs / lap.num_steps, lap.num_examples / lap.secs
            speed = f"[{secs:.3g} secs/step, {samples:.1f} samples/sec]"
        file = choose_output(self._file)
        # With a comma behind each but the last, as between them the line may be broken.
        words = [f" {part}," for part in parts[:-1]] + [f" {parts[-1]}"]
        print(wrap_parts([speed, *words], find_columns(file)), file=file, flush=True)
