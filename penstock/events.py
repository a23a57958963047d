"""The events of a training run, in the order they fire.

`Trainer.train(reader, event_handler)` calls the handler, or each of a list of handlers, with every
event. A handler tells them apart by class. The training loop, with each event in its place:

    BeginTraining
    for each epoch:
        BeginEpoch                          trainer.stop() here: no batch is read
        for each launch of steps_per_call batches (one by default):
            read, check and place the batches
            BeginStep                       once for each step of the launch;
                                            set event.fetch_metrics = False to fetch nothing
            launch the steps                the host does not wait for the device
            EndStep                         once for each step of the launch;
                                            reading event.metrics waits for the device
            if stop() was called: leave both loops, without EndEpoch
        EndEpoch                            event.metrics is the mean over the epoch's examples
        if stop() was called: leave the loop
    EndTraining                             always, after an exception too

`stop()` ends training after the current step's `EndStep`. If a launch has several steps, all their
`EndStep`s fire. A handler may call `trainer.test` and `trainer.save_params` at any event. An
exception from a handler ends training with `EndTraining("failed")` and reaches the caller of
`train`; the trainer stays valid. If it comes at `EndStep`, the handlers after it still see the
step. Fluid's names work too: `BeginEpochEvent` is `BeginEpoch`.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol

import numpy as np

from penstock._parameter_updates import ParameterUpdate as ParameterUpdate
from penstock._parameter_updates import Updates


class _ShortRepr(reprlib.Repr):
    """`repr` that fits a line: few items, numbers of four digits, arrays as dtype and shape."""

    def __init__(self) -> None:
        super().__init__()
        self.maxother = 100  # characters of an exception

    def repr_ndarray(self, value: np.ndarray, level: int) -> str:
        return f"{value.dtype}{list(value.shape)}"

    def repr_float(self, value: float, level: int) -> str:
        return f"{value:.4g}"


_shorten = _ShortRepr().repr


Metrics = float | np.ndarray | Sequence["Metrics"] | Mapping[str, "Metrics"] | None
"""What a program function returned, in its structure: a Python number for a scalar, an array for a
value with a batch axis. With several objectives, a dict by objective."""

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    M = TypeVar("M", default=Metrics)
else:  # Python 3.11 has no defaults yet
    from typing import TypeVar

    M = TypeVar("M")
"""The type of the metrics: `EndStep[tuple[float, float]]` is an event of a program that returns two
scalars. `EndStep` alone has `Metrics`; a handler without annotations may take them as anything."""

Rate = float | dict[str, float] | None
"""The learning rate of a step; with several objectives, a dict by objective."""

ReaderLike = Callable[[], Iterable[object]] | Iterable[object]
"""What yields batches or samples, again on every pass; see `penstock.readers`."""

FeedOrder = Sequence[str] | Mapping[str, int]
"""The input names in the order of a sample's fields, or a dict from name to index."""

HandlerState = dict[str, Any]
"""What a handler's `get_state` returns for a checkpoint: values that JSON can hold."""

Reason = Literal["completed", "stopped", "interrupted", "failed"]
"""Why training ended: all epochs done, `stop()`, Ctrl-C, or an exception."""


class Training(Protocol):
    """What a handler may use of the trainer that calls it; see `penstock.Trainer`."""

    @property
    def update_scale(self) -> float:
        """The factor of every parameter update; can be set."""
        ...

    @update_scale.setter
    def update_scale(self, scale: float) -> None: ...

    @property
    def epoch(self) -> int:
        """The current epoch; between calls of `train`, the next one."""
        ...

    @property
    def global_step(self) -> int:
        """Steps done, over all calls of `train`."""
        ...

    @property
    def secs_beside(self) -> float:
        """Seconds so far in `test`, `save_params` and `save_checkpoint`, compiles included."""
        ...

    @property
    def parameters(self) -> MutableMapping[str, np.ndarray]:
        """The parameters and running statistics by name."""
        ...

    @property
    def builder(self) -> Any:
        """The `penstock.ProgramBuilder` of the programs that run."""
        ...

    def describe(self) -> dict[str, object]:
        """Return versions, devices, configuration and number of parameters of the run."""
        ...

    def stop(self) -> None:
        """End training after the current step's `EndStep`."""

    def test(
        self, reader: ReaderLike, feed_order: FeedOrder | None = None, *, averaged: bool = False
    ) -> Any:
        """Return the mean of the metrics over every example of `reader`, in test mode."""
        ...

    def infer(self, feed: Any) -> Any:
        """Return what `infer_func` returns for a feed, with the current parameters."""
        ...

    def save_params(self, param_path: str | PathLike[str], *, averaged: bool = False) -> None:
        """Write parameters and running statistics to a folder."""

    def load_params(self, param_path: str | PathLike[str]) -> dict[str, list[str]]:
        """Read parameters and running statistics from a folder."""
        ...


@dataclasses.dataclass(slots=True)
class BeginTraining:
    """Training begins; nothing has been read from the reader yet.

    Attributes:
      epoch: the number of the first epoch; a second call of `train` continues the count.
      num_epochs: how many epochs this call of `train` runs; after a resume, those that remain.
      global_step: steps done before, over all calls of `train`.
      trainer: the trainer, for handlers that stop it, test with it or save.
      updates_every: set it to n to get `EndStep.updates` at every n-th step; 0 for never. If there
        are other handlers, set it to `math.gcd(event.updates_every, n)`.
      feed_order: names for the fields of the reader's tuples, as passed to `train`.
    """

    epoch: int
    num_epochs: int
    global_step: int
    trainer: Training | None = dataclasses.field(default=None, repr=False, compare=False)
    updates_every: int = dataclasses.field(default=0, repr=False)
    feed_order: Sequence[str] | None = dataclasses.field(default=None, repr=False)


@dataclasses.dataclass(frozen=True, slots=True)
class BeginEpoch:
    """An epoch begins; none of its batches has been read yet.

    Attributes:
      epoch: the number of the epoch, from 0.
      global_step: the global number of the epoch's first step.
      num_steps: how many steps it will have; `None` if the reader has no length.
      first_step: the number of its first step: above 0 if a resumed run continues in its middle.
    """

    epoch: int
    global_step: int
    num_steps: int | None = None
    first_step: int = 0


@dataclasses.dataclass(slots=True)
class BeginStep:
    """A step is about to run; its batch has been read.

    Attributes:
      epoch: the number of the epoch.
      step: the number of the step in the epoch, from 0.
      global_step: the number of the step over all epochs, from 0.
      fetch_metrics: set it to `False`, and this step's `EndStep.metrics` is `None`.
    """

    epoch: int
    step: int
    global_step: int
    fetch_metrics: bool = True


class _LazyMetrics(Generic[M]):
    """Metrics that are fetched when they are first read."""

    __slots__ = ("_metrics", "_read", "epoch", "global_step", "num_examples")

    def __init__(self, read: Callable[[], M] | None) -> None:
        self._read = read
        self._metrics: Any = None

    @property
    def metrics(self) -> M:
        """The metrics; the first read waits for the device."""
        if self._read is not None:
            self._metrics = self._read()
            # Let go of: it holds the launch's arrays on the device.
            self._read = None
        return self._metrics

    def _describe(self) -> str:
        """Return the metrics for `repr` if they have been read; reading waits for the device."""
        return "" if self._metrics is None else f", metrics={_shorten(self._metrics)}"


class EndStep(_LazyMetrics[M]):
    """A step was launched.

    Attributes:
      epoch: the number of the epoch.
      step: the number of the step in the epoch, from 0.
      global_step: the number of the step over all epochs, from 0.
      num_examples: how many examples its batch had, without padding.
      metrics: what the program function returned, in its structure (tuple, list, dict or single
        value): Python numbers for scalars, numpy arrays for values with a batch axis. With several
        objectives, a dict by objective. `None` if `fetch_metrics` was set to `False`.
      learning_rate: the step's learning rate, if the optimizer's state holds it, as that of
        `optimizers.get` does; else `None`. Reading it waits for the device too.
      updates: a `ParameterUpdate` for each trained parameter, by name; with several objectives, by
        objective. `None` except at the steps that `BeginTraining.updates_every` selects.
      compile_secs: seconds of compilation, divided evenly among the launch's steps; usually 0.
      measure_secs: seconds spent on `updates`, divided the same way.

    >>> event = EndStep(epoch=0, step=3, global_step=3, num_examples=64, read=lambda: (0.5, 0.9))
    >>> loss, accuracy = event.metrics
    >>> loss
    0.5
    """

    __slots__ = ("_rate", "_updates", "compile_secs", "measure_secs", "step")

    def __init__(
        self,
        epoch: int,
        step: int,
        global_step: int,
        num_examples: int = 0,
        read: Callable[[], M] | None = None,
        read_rate: Callable[[], Rate] | None = None,
        read_updates: Callable[[], Updates | None] | None = None,
        compile_secs: float = 0.0,
        measure_secs: float = 0.0,
    ) -> None:
        super().__init__(read)
        self._rate, self._updates = read_rate, read_updates
        self.epoch, self.step, self.global_step = epoch, step, global_step
        self.num_examples = num_examples
        self.compile_secs, self.measure_secs = compile_secs, measure_secs

    @property
    def learning_rate(self) -> Rate:
        """The learning rate, if the optimizer's state holds it; waits for the device."""
        return None if self._rate is None else self._rate()

    @property
    def has_updates(self) -> bool:
        """Whether the step has `updates`; does not wait for the device."""
        return self._updates is not None

    @property
    def updates(self) -> Updates | None:
        """The gradient and update of each parameter; waits for the device."""
        return None if self._updates is None else self._updates()

    def __repr__(self) -> str:
        """Return the event on one line, with its metrics if they have been read."""
        numbers = f"epoch={self.epoch}, step={self.step}, global_step={self.global_step}"
        return f"EndStep({numbers}{self._describe()})"


class EndEpoch(_LazyMetrics[M]):
    """An epoch ended; an epoch that is stopped in the middle has no such event.

    Attributes:
      epoch: the number of the epoch, from 0.
      global_step: steps done so far, over all epochs.
      num_steps: steps in this epoch.
      num_examples: examples in this epoch.
      metrics: the mean over the epoch's examples, in the program function's structure. A metric is
        computed of all of them; one that keeps rows, such as `metrics.AUC`, is None.
      data_wait: the fraction of the epoch, 0 to 1, that training waited for the reader. It is
        sampled; `None` if the epoch was too short to sample.
    """

    __slots__ = ("data_wait", "num_steps")

    def __init__(
        self,
        epoch: int,
        global_step: int,
        num_steps: int = 0,
        num_examples: int = 0,
        read: Callable[[], M] | None = None,
        data_wait: float | None = None,
    ) -> None:
        super().__init__(read)
        self.epoch, self.global_step = epoch, global_step
        self.num_steps, self.num_examples = num_steps, num_examples
        self.data_wait = data_wait

    def __repr__(self) -> str:
        """Return the event on one line, with its metrics if they have been read."""
        return f"EndEpoch(epoch={self.epoch}, global_step={self.global_step}{self._describe()})"


@dataclasses.dataclass(frozen=True, slots=True)
class EndTraining:
    """Training ended; always the last event.

    Attributes:
      reason: `"completed"`, `"stopped"`, `"interrupted"` or `"failed"`.
      error: the exception that ended it, which `train` raises afterwards.
      global_step: steps done so far, over all calls of `train`.
    """

    reason: Reason
    error: BaseException | None = None
    global_step: int = 0

    def __repr__(self) -> str:
        """Return the event on one line, with a long error message cut."""
        error = "" if self.error is None else f", error={_shorten(self.error)}"
        return f"EndTraining(reason={self.reason!r}{error}, global_step={self.global_step})"


Event = BeginTraining | BeginEpoch | BeginStep | EndStep | EndEpoch | EndTraining
Handler = Callable[[Any], object]
"""A function that takes an `Event`. Its argument is `Any`, so that type checkers accept
`lambda event: event.step`."""

BeginEpochEvent = BeginEpoch
BeginStepEvent = BeginStep
EndStepEvent = EndStep
EndEpochEvent = EndEpoch


def combine_handlers(event_handler: Handler | Sequence[Handler] | None) -> Handler:
    """Return one function that calls every handler with an event, in order.

    Raises:
      TypeError: a handler cannot be called.
    """
    if event_handler is None:
        return lambda event: None
    is_many = isinstance(event_handler, Sequence)
    handlers: list[Handler] = list(event_handler) if is_many else [event_handler]  # pyright: ignore
    for handler in handlers:
        if not callable(handler):
            hint = ""
            if isinstance(event_handler, int):  # Keras's and PyTorch's users count epochs there
                hint = f" For the number of epochs pass num_epochs={event_handler}."
            raise TypeError(
                f"event_handler got {type(handler).__name__}, expected a function that takes an "
                f"event, or a list of such functions.{hint}"
            )
        if isinstance(handler, type):
            raise TypeError(
                f"event_handler got the class {handler.__qualname__}, expected an object that is "
                f"called with each event. Make one: {handler.__qualname__}(...)."
            )

    def emit(event: Event) -> None:
        failed: BaseException | None = None
        for handler in handlers:
            try:
                handler(event)
            except BaseException as error:
                name = getattr(handler, "__qualname__", type(handler).__qualname__)
                # The end reaches every handler: what they hold open must be closed.
                if isinstance(event, EndTraining) and event.error is not None:
                    text = f"{type(error).__name__}: {error}"
                    event.error.add_note(f"The event handler {name} failed at the end too: {text}")
                    if isinstance(error, Exception):
                        continue  # what ended the training is what is raised
                error.add_note(f"Raised by the event handler {name} at {event!r}.")
                # A step that is done is not told again: what others count of it must hold.
                if not isinstance(event, (EndStep, EndTraining)):
                    raise
                failed = failed or error
        if failed is not None:
            raise failed

    return emit
