"""Events sent to handlers by hand, and a note of what they read."""

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

import optax
import pytest

import penstock as ps
from penstock.events import (
    BeginEpoch,
    BeginStep,
    BeginTraining,
    EndEpoch,
    EndStep,
    EndTraining,
    combine_handlers,
)
from tests.networks import linear_program


class Source:
    """Metrics of steps and epochs, with a note of each reading.

    Arguments:
      metrics: what a step's metrics are, by its global step; a value on its own for all.
    """

    def __init__(self, metrics: Any = 0.5) -> None:
        self._metrics = metrics
        self.launched = -1
        self.steps: list[int] = []
        self.late: list[bool] = []
        self.epochs: list[int] = []

    def step(self, global_step: int) -> Callable[[], Any]:
        def read() -> Any:
            self.steps.append(global_step)
            self.late.append(self.launched > global_step)
            return self._metrics(global_step) if callable(self._metrics) else self._metrics

        return read

    def epoch(self, epoch: int, last_step: int) -> Callable[[], Any]:
        """Return what reads an epoch's metrics, which are those of its last step."""

        def read() -> Any:
            self.epochs.append(epoch)
            return self._metrics(last_step) if callable(self._metrics) else self._metrics

        return read


def drive(
    handlers: Any,
    *,
    num_epochs: int = 1,
    num_steps: int = 8,
    first: int = 0,
    source: Source | None = None,
    trainer: Any = None,
    on_begin: Callable[[], Any] = lambda: None,
    on_step: Callable[[int], Any] = lambda global_step: None,
    beside: Callable[[int], tuple[float, float]] = lambda global_step: (0.0, 0.0),
    data_wait: float | None = None,
    has_length: bool = True,
    end: EndTraining | None = None,
) -> Source:
    """Send the events of a run of `num_epochs` in all, of 10 examples a step; one step a launch.

    Arguments:
      first: the global step at which the run begins, as one that is resumed.
      on_begin: called after `BeginTraining`.
      on_step: called with each step when it is launched.
      beside: the seconds in which a step compiled and measured.
      data_wait: the share of an epoch that it waited for data.
      has_length: whether the reader tells how many batches it has.
      end: how it ends.
    """
    source = source or Source()
    emit = combine_handlers(handlers)
    emit(BeginTraining(first // num_steps, num_epochs - first // num_steps, first, trainer))
    on_begin()
    for epoch in range(first // num_steps, num_epochs):
        begin = max(first - epoch * num_steps, 0)
        length = num_steps if has_length else None
        emit(BeginEpoch(epoch, epoch * num_steps + begin, length, begin))
        for step in range(begin, num_steps):
            global_step = epoch * num_steps + step
            emit(BeginStep(epoch, step, global_step))
            source.launched = global_step
            on_step(global_step)
            read, secs = source.step(global_step), beside(global_step)
            emit(EndStep(epoch, step, global_step, 10, read, None, None, *secs))
        done = (epoch + 1) * num_steps
        read = source.epoch(epoch, done - 1)
        emit(EndEpoch(epoch, done, num_steps, 10 * num_steps, read, data_wait))
    emit(end or EndTraining("completed", None, num_epochs * num_steps))
    return source


def drive_killed(
    make: Callable[[], Any],
    *,
    saved_at: int,
    killed_at: int,
    source: Source | None = None,
    **run: Any,
) -> tuple[Any, Any]:
    """Drive a handler until it is killed at a step, and another from a state before that.

    Returns:
      The other handler, and the state that it went on from.
    """
    killed, states = make(), []

    def on_step(global_step: int) -> None:
        if global_step == saved_at:
            states.append(json.loads(json.dumps(killed.get_state(), allow_nan=False)))
        if global_step == killed_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drive(killed, source=source, on_step=on_step, **run)
    combine_handlers(killed)(EndTraining("interrupted", KeyboardInterrupt(), killed_at))
    other = make()
    drive(other, first=saved_at, source=source, **run, **resumed(other, states[0]))
    return other, states[0]


def epochs(
    handlers: Any, values: Sequence[Any], *, trainer: Any, first: int = 0, **options: Any
) -> None:
    """Send the events of epochs of one step each, whose metrics are `values`."""
    drive(
        handlers,
        num_epochs=first + len(values),
        num_steps=1,
        first=first,
        trainer=trainer,
        source=Source(lambda global_step: values[global_step - first]),
        **options,
    )


def resumed(handler: Any, state: Any) -> dict[str, Any]:
    """Return options of `drive` that give a handler a state after `BeginTraining`."""
    return {"on_begin": lambda: handler.set_state(state)}


@functools.cache
def driven_trainer() -> ps.Trainer:
    """Return one trainer for all handlers that are driven by hand: making one takes a while."""
    return linear_trainer()


def linear_trainer(**options: Any) -> ps.Trainer:
    return ps.Trainer(linear_program, optax.sgd(0.05), place="cpu", **options)


def two_objectives() -> dict[str, ps.Objective]:
    other = ps.layers.scope("other")(linear_program)
    return {
        "one": ps.Objective(linear_program, optax.sgd(0.1), updates="fc_0"),
        "two": ps.Objective(other, optax.sgd(0.1), updates="other"),
    }
