"""`LearningRateFinder`: the loss at learning rates from tiny to far too large."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import jax
import numpy as np

from penstock._errors import check_installed, check_int, check_number
from penstock.events import BeginStep, BeginTraining, EndStep, EndTraining, Event, Training
from penstock.handlers._arguments import make_folder
from penstock.handlers._monitor import Monitor, get_trainer
from penstock.handlers.figures import Line, Panel, check_path, draw, smooth

_DIVERGED = 4.0  # times the best loss so far
_MIN_POINTS = 10  # a slope of fewer is noise


class LearningRateFinder:
    """Raise the learning rate at every step, record the loss, and suggest a rate.

    This is the range test of Leslie Smith (https://arxiv.org/abs/1506.01186). The rate grows
    exponentially from `low` to `high`, until the loss exceeds four times its best value. Then
    training stops, the initial parameters and running statistics are restored, and a plot and a
    printed line show the result: the rate at which the loss falls fastest. The rate of the lowest
    loss is close to divergence.

    The rate is set through `Trainer.update_scale`, for optimizers whose updates are proportional to
    it. Optimizer state and the counts of epochs and steps are not restored: use a separate trainer,
    with `on_non_finite="skip"`, so that an infinite loss ends the test and is not an error. The
    loss is read at every step.

    Arguments:
      low: the first learning rate.
      high: the last learning rate.
      num_steps: how many rates to try, one per step; `train` needs enough epochs for them.
      base_learning_rate: the learning rate of the trainer's optimizer.
      path: the plot; its suffix sets the format: `.png`, `.svg` or `.pdf`.
      monitor: the name of the loss among the metrics.
      names: names for the values of a program function that returns a single value, a tuple or a
        list. A dict has its own.

    Attributes:
      rates: the learning rates that were tried.
      losses: the loss after the step at each rate.
      suggestion: the rate at which the smoothed loss falls fastest; `None` if it never falls.

    Raises:
      ModuleNotFoundError: matplotlib is not installed; the extra `plot` installs it.
      OSError: at `BeginTraining`, if the folder of `path` cannot be created.
      UnknownNameError: at `BeginTraining`, if there is no metric `monitor`.
      ValueError: `low` and `high` are no range, or `num_steps` is below 10.

    >>> import os, tempfile, numpy as np, optax, penstock as ps
    >>> def train_program():
    ...     prediction = ps.layers.fc(ps.layers.data("x", shape=[2]), size=1)
    ...     return ps.layers.mean((prediction - 1) ** 2)
    >>> reader = ps.readers.arrays({"x": np.ones([64, 2], "float32")}, batch_size=8)
    >>> trainer = ps.Trainer(train_program, optax.sgd(0.1), place="cpu", on_non_finite="skip")
    >>> path = os.path.join(tempfile.mkdtemp(), "rates.png")
    >>> finder = LearningRateFinder(low=1e-4, base_learning_rate=0.1, path=path)
    >>> trainer.train(reader, finder, num_epochs=20)
    LearningRateFinder: the loss falls fastest at a learning rate of 0...; see ...rates.png
    >>> 0.001 < finder.suggestion < 0.1
    True
    """

    def __init__(
        self,
        *,
        low: float = 1e-6,
        high: float = 10.0,
        num_steps: int = 100,
        base_learning_rate: float = 1.0,
        path: str | os.PathLike[str] = "learning_rate.png",
        monitor: str = "loss",
        names: Sequence[str] = ("loss",),
    ) -> None:
        check_installed("matplotlib", "plot", "LearningRateFinder")
        _check(low, high, num_steps, base_learning_rate)
        self._low, self._high, self._num_steps = low, high, num_steps
        self._base_learning_rate = base_learning_rate
        self._path = check_path("LearningRateFinder", path)
        self._monitor = Monitor("LearningRateFinder", monitor, "min", 0.0, names)
        self._trainer: Training | None = None
        self._kept: dict[str, np.ndarray] = {}
        self._old_scale = self._rate = 1.0
        self._forget()

    def _forget(self) -> None:
        self.rates: list[float] = []
        self.losses: list[float] = []
        self.suggestion: float | None = None
        self._used: list[float] = []
        self._num_done = 0
        self._mean = self._best = math.inf

    def __call__(self, event: Event) -> None:
        """Raise the rate before each step, and read the loss after it."""
        match event:
            case BeginTraining():
                self._begin(event, get_trainer(event, "LearningRateFinder"))
            case BeginStep():
                # Another handler may have said that nobody reads this step.
                event.fetch_metrics = True
                self._used.append(self._rate)
            case EndStep() if self._trainer is not None:
                self._end_step(event, self._trainer)
            case EndTraining() if self._trainer is not None:
                self._end(self._trainer)

    def _begin(self, event: BeginTraining, trainer: Training) -> None:
        self._monitor.check(trainer)
        if not jax.process_index():
            make_folder("LearningRateFinder", self._path.parent)
        self._trainer = trainer
        self._forget()
        # In memory: of several processes only the first writes files, where others may not look.
        self._kept = dict(trainer.parameters)
        self._old_scale = trainer.update_scale
        self._set_rate(trainer)

    def _set_rate(self, trainer: Training) -> None:
        part = min(self._num_done / (self._num_steps - 1), 1.0)
        # By a constant factor: rates of every magnitude get as many steps.
        self._rate = self._low * (self._high / self._low) ** part
        # The scale is in the state, so a change compiles nothing, and any optimizer has it.
        trainer.update_scale = self._rate / self._base_learning_rate

    def _end_step(self, event: EndStep, trainer: Training) -> None:
        loss = self._monitor.get_value(event.metrics)
        is_diverged = self._is_diverged(loss)
        if self._num_done and math.isfinite(loss):
            # A loss is computed before its step's update: it shows what the step before has done.
            self.rates.append(self._used[self._num_done - 1])
            self.losses.append(loss)
        self._num_done += 1
        if is_diverged or self._num_done > self._num_steps:
            trainer.stop()
            self._end(trainer)
        else:
            self._set_rate(trainer)

    def _is_diverged(self, loss: float) -> bool:
        """Return whether the running mean is far above its best; one bad batch is not enough."""
        if not math.isfinite(loss):
            return True
        self._mean = loss if math.isinf(self._mean) else 0.8 * self._mean + 0.2 * loss
        self._best = min(self._best, self._mean)
        return self._mean > self._best + (_DIVERGED - 1) * abs(self._best)

    def _end(self, trainer: Training) -> None:
        """Restore the parameters and the scale, and report what was found."""
        self._trainer = None
        trainer.update_scale = self._old_scale
        trainer.parameters.update(self._kept)
        self._kept = {}
        curve = smooth(self.losses, max(len(self.losses) / 40, 1.0))
        self.suggestion = _find_steepest(self.rates, curve)
        if jax.process_index():
            return
        if self.rates:
            draw(self._path, [self._panel()])
        result = (
            "the loss never falls, or there were too few steps: look at the curve"
            if self.suggestion is None
            else f"the loss falls fastest at a learning rate of {self.suggestion:.2g}"
        )
        print(f"LearningRateFinder: {result}; see {self._path}", flush=True)

    def _panel(self) -> Panel:
        x = self.suggestion
        mark = None if x is None else (x, f"falls fastest at {x:.2g}")
        line = Line(label=self._monitor.name, x=self.rates, y=self.losses)
        return Panel(
            title=f"{self._monitor.name} after a step at each learning rate",
            lines=[line],
            x_label="learning rate",
            is_x_log=True,
            mark=mark,
        )


def _check(low: float, high: float, num_steps: int, base_learning_rate: float) -> None:
    owner, why = "LearningRateFinder", "The rate grows from low to high by a constant factor."
    check_number(f"{owner} got low=", low, "(0, inf)", why)
    check_number(f"{owner} got high=", high, f"({low}, inf)", why)
    check_number(f"{owner} got base_learning_rate=", base_learning_rate, "(0, inf)", why)
    check_int("num_steps", num_steps, _MIN_POINTS)


def _find_steepest(rates: Sequence[float], losses: np.ndarray) -> float | None:
    """Return the rate below the minimum at which the loss falls fastest, if it falls there."""
    if len(rates) < _MIN_POINTS:
        return None
    # By point: rates grow by a constant factor, so this is the slope over their logarithm.
    slopes = np.gradient(losses)[: int(np.argmin(losses)) + 1]
    number = int(np.argmin(slopes))
    return float(rates[number]) if slopes[number] < 0 else None
