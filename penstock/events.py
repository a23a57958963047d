"""The events of a training run, in the order they fire.

`Trainer.train(reader, event_handler)` calls the handler with each of them. A handler is a callable
or a list of callables; it tells events apart by their class. The whole loop, with every event in
its place:

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

`stop()` ends after the current step's `EndStep`; with several steps in a launch they are all done
by then, so their `EndStep`s all fire. A handler may call `trainer.test` and `trainer.save_params`
at any event. An exception from a handler ends training with `EndTraining("failed")`, leaves the
trainer valid, and reaches the caller of `train`. The classes carry Fluid's names too:
`BeginEpochEvent` is `BeginEpoch`, and so on.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol

import numpy as np

from penstock._parameter_updates import ParameterUpdate as ParameterUpdate
from penstock._parameter_updates import Updates
from penstock._short_repr import shorten

Metrics = float | np.ndarray | Sequence["Metrics"] | Mapping[str, "Metrics"] | None
"""What a program function returned, in its structure: a Python number for a scalar, an array for a
value with a batch axis; by objective, where there are several."""

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    M = TypeVar("M", default=Metrics)
else:  # Python 3.11 has no defaults yet
    from typing import TypeVar

    M = TypeVar("M")
"""The type of the metrics: `EndStep[tuple[float, float]]` is an event of a program that returns two
scalars. `EndStep` alone has `Metrics`, and in a handler without annotations they are anything."""

Rate = float | dict[str, float] | None
"""The learning rate of a step; by objective, where there are several."""

ReaderLike = Callable[[], Iterable[object]] | Iterable[object]
"""What yields batches or samples more than once; see `penstock.readers`."""

FeedOrder = Sequence[str] | Mapping[str, int]
"""The input names in the order of a sample's fields, or the field of each."""

HandlerState = dict[str, Any]
"""What a handler's `get_state` returns for a checkpoint: whatever JSON holds."""

Reason = Literal["completed", "stopped", "interrupted", "failed"]
"""Why training ended: all epochs done, `stop()`, Ctrl-C, or an exception."""


class Training(Protocol):
    """What a handler may ask of the trainer that calls it; `penstock.Trainer` documents each."""

    @property
    def update_scale(self) -> float:
        """What every update of the parameters is multiplied by; may be set."""
        ...

    @update_scale.setter
    def update_scale(self, scale: float) -> None: ...

    @property
    def epoch(self) -> int:
        """The epoch that runs, or runs next."""
        ...

    @property
    def global_step(self) -> int:
        """Steps done, over all calls of `train`."""
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
        """Return what the run is: versions, devices, configuration, number of parameters."""
        ...

    def stop(self) -> None:
        """End training after the current step's `EndStep`."""

    def test(
        self, reader: ReaderLike, feed_order: FeedOrder | None = None, *, averaged: bool = False
    ) -> Any:
        """Return the mean of the metrics over every example of `reader`, in test mode."""
        ...

    def infer(self, feed: Any) -> Any:
        """Return what `infer_func` returns for a feed, with the parameters of now."""
        ...

    def save_params(self, param_path: str | PathLike[str], *, averaged: bool = False) -> None:
        """Write parameters and running statistics to a folder."""

    def load_params(self, param_path: str | PathLike[str]) -> dict[str, list[str]]:
        """Read parameters and running statistics from a folder."""
        ...


@dataclasses.dataclass(slots=True)
class BeginTraining:
    """Training begins; nothing was read from the reader yet.

    Attributes:
      epoch: the number of the first epoch; a second call of `train` counts on.
      num_epochs: epochs that this call of `train` runs; of a resumed call those still to come.
      global_step: steps done before, over all calls of `train`.
      trainer: the trainer that calls, for handlers that stop it, test with it or save.
      updates_every: set it to n and every n-th step has `EndStep.updates`; 0 for none. Beside other
        handlers set it to `math.gcd(event.updates_every, n)`.
      feed_order: names for the fields of the reader's tuples, as `train` was given them.
    """

    epoch: int
    num_epochs: int
    global_step: int
    trainer: Training | None = dataclasses.field(default=None, repr=False, compare=False)
    updates_every: int = dataclasses.field(default=0, repr=False)
    feed_order: Sequence[str] | None = dataclasses.field(default=None, repr=False)


@dataclasses.dataclass(frozen=True, slots=True)
class BeginEpoch:
    """An epoch begins; nothing of it was read yet.

    Attributes:
      epoch: the number of the epoch, from 0.
      global_step: the number the epoch's first step will have.
      num_steps: how many steps it will have, where the reader has a length; else `None`.
      first_step: the number of its first step: above 0 where a resumed run goes on in its middle.
    """

    epoch: int
    global_step: int
    num_steps: int | None = None
    first_step: int = 0


@dataclasses.dataclass(slots=True)
class BeginStep:
    """A step is about to run; its batch was read.

    Attributes:
      epoch: the number of the epoch.
      step: the number of the step in the epoch, from 0.
      global_step: the number of the step over all epochs, from 0.
      fetch_metrics: set it to `False` and `EndStep.metrics` of this step is `None`.
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
        """The metrics; the first reading waits for the device, and nothing else does."""
        if self._read is not None:
            self._metrics = self._read()
            # Let go of: it holds the launch's arrays on the device.
            self._read = None
        return self._metrics

    def _describe(self) -> str:
        """Return the metrics for `repr` where they were read; others would be waited for."""
        return "" if self._metrics is None else f", metrics={shorten(self._metrics)}"


class EndStep(_LazyMetrics[M]):
    """A step was launched.

    Attributes:
      epoch: the number of the epoch.
      step: the number of the step in the epoch, from 0.
      global_step: the number of the step over all epochs, from 0.
      num_examples: how many examples its batch had, padding not counted.
      metrics: what the program function returned, in its structure (tuple, list, dict or single
        value): Python numbers for scalars, numpy arrays for values with a batch axis; by
        objective, where there are several. `None` when `fetch_metrics` was set to `False`.
      learning_rate: of the step, where the optimizer's state holds it, as those of `optimizers.get`
        do; by objective, where there are several. Reading it waits for the device too.
      updates: a `ParameterUpdate` of each trained parameter by name; by objective, where there are
        several. `None` but for steps that `BeginTraining.updates_every` asks for, `has_updates`.
      compile_secs: how long its launch compiled, shared out over the launch's steps; mostly 0.
      measure_secs: how long `updates` of its launch took beside training, shared out likewise.

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
        """The learning rate; the reading waits for the device, and nothing else does."""
        return None if self._rate is None else self._rate()

    @property
    def has_updates(self) -> bool:
        """Whether the step has `updates`; waits for nothing."""
        return self._updates is not None

    @property
    def updates(self) -> Updates | None:
        """What the step does to each parameter; waits for the device."""
        return None if self._updates is None else self._updates()

    def __repr__(self) -> str:
        """Return the event in a line, with its metrics in short where they were read already."""
        numbers = f"epoch={self.epoch}, step={self.step}, global_step={self.global_step}"
        return f"EndStep({numbers}{self._describe()})"


class EndEpoch(_LazyMetrics[M]):
    """An epoch ended; it does not fire for an epoch that was stopped in the middle.

    Attributes:
      epoch: the number of the epoch, from 0.
      global_step: steps done so far, over all epochs.
      num_steps: steps in this epoch.
      num_examples: examples in this epoch.
      metrics: the mean over the epoch's examples, in the program function's structure.
      data_wait: the share of its time that training waited for the reader, 0 to 1; sampled, `None`
        where the epoch was too short for it.
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
        """Return the event in a line, with its metrics in short where they were read already."""
        return f"EndEpoch(epoch={self.epoch}, global_step={self.global_step}{self._describe()})"


@dataclasses.dataclass(frozen=True, slots=True)
class EndTraining:
    """Training ended; always the last event.

    Attributes:
      reason: `"completed"`, `"stopped"`, `"interrupted"` or `"failed"`.
      error: the exception that ended it, which the caller of `train` gets afterwards.
      global_step: steps done so far, over all calls of `train`.
    """

    reason: Reason
    error: BaseException | None = None
    global_step: int = 0

    def __repr__(self) -> str:
        """Return the event in a line, a long message of its error cut."""
        error = "" if self.error is None else f", error={shorten(self.error)}"
        return f"EndTraining(reason={self.reason!r}{error}, global_step={self.global_step})"


Event = BeginTraining | BeginEpoch | BeginStep | EndStep | EndEpoch | EndTraining
Handler = Callable[[Any], object]
"""What is called with each `Event`; declared for any argument, as `lambda event: event.step` would
otherwise have to look at the event's class first."""

BeginEpochEvent = BeginEpoch
BeginStepEvent = BeginStep
EndStepEvent = EndStep
EndEpochEvent = EndEpoch


def _check_takes_an_event(handler: Handler) -> None:
    if isinstance(handler, type):
        raise TypeError(
            f"event_handler got the class {handler.__qualname__}, expected an object that is "
            f"called with each event. Make one: {handler.__qualname__}(...)."
        )
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # of some that are written in C
        return
    try:
        # Without calling it: it is said before training, and not at the first event.
        signature.bind(None)
    except TypeError:
        name = getattr(handler, "__qualname__", type(handler).__qualname__)
        raise TypeError(
            f"event_handler got {name}{signature}, expected a function of one argument. It is "
            "called with one event at a time: def on_event(event). Bind what else it needs with "
            "functools.partial."
        ) from None


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
            raise TypeError(
                f"event_handler got {type(handler).__name__}, expected a function that takes an "
                "event, or a list of such functions."
            )
        _check_takes_an_event(handler)

    def emit(event: Event) -> None:
        failed: BaseException | None = None
        for handler in handlers:
            try:
                handler(event)
            except BaseException as error:
                name = getattr(handler, "__qualname__", type(handler).__qualname__)
                # The end reaches every handler: what they hold open must be closed.
                if isinstance(event, EndTraining) and event.error is not None:
                    said = f"{type(error).__name__}: {error}"
                    event.error.add_note(f"The event handler {name} failed at the end too: {said}")
                    if isinstance(error, Exception):
                        continue  # what ended the training is what is raised
                error.add_note(f"Raised by the event handler {name} at {event!r}.")
                if not isinstance(event, EndTraining):
                    raise
                failed = failed or error
        if failed is not None:
            raise failed

    return emit
