"""SIGINT and SIGTERM in every phase of training: how it ends, and that it goes on from there."""

import dataclasses
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import optax
import pytest

import penstock as ps
from penstock import readers
from penstock._checkpoint import Store
from tests.networks import (
    Recorder,
    assert_same_bits,
    host,
    linear_data,
    linear_program,
    one_device,
)

NUM_EPOCHS = 3
NUM_STEPS = 5  # in an epoch
MUCH_SECS = 250  # a test that waits for it is ended by pytest

SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)


def send(number: int) -> None:
    """Send a real signal to this process."""
    os.kill(os.getpid(), number)


def data_reader() -> Any:
    return readers.arrays(linear_data(18), batch_size=4, shuffle=True)


class Stalling:
    """A reader of which one pass yields three batches and then waits for ever, for a signal.

    It has the position of the reader that it reads.
    """

    def __init__(self, number: int, epoch: int = 1) -> None:
        self._source, self._number, self._epoch = data_reader(), number, epoch

    def __call__(self) -> Any:
        self._epoch -= 1
        return StallingPass(iter(self._source), self._number if self._epoch < 0 else None)


class StallingPass:
    """One pass over a `Stalling`; without a signal it does not stall."""

    def __init__(self, iterator: Any, number: int | None) -> None:
        self._iterator, self._number, self._num_left = iterator, number, 3

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        self._num_left -= 1
        if self._number is not None and self._num_left < 0:
            threading.Timer(0.3, send, [self._number]).start()  # when the main thread waits
            time.sleep(MUCH_SECS)
            raise AssertionError("the reader went on after the interrupt")
        return next(self._iterator)

    def get_state(self) -> Any:
        return self._iterator.get_state()


@dataclasses.dataclass
class Run:
    """A training run with a folder that a phase interrupts.

    Attributes:
      program: what is trained; a phase may act when it is traced.
      reader: what is read.
      handler: called with every event.
    """

    folder: Any
    number: int
    monkeypatch: Any
    reader: Any = dataclasses.field(default_factory=data_reader)
    handler: Callable[[Any], Any] = lambda event: None
    trainer: Any = None

    def make(self, program: Callable[[], Any] = linear_program) -> ps.Trainer:
        self.trainer = ps.Trainer(
            program,
            optax.adam(0.05),
            place=one_device(),
            checkpoint=ps.CheckpointConfig(directory=self.folder, save_interval_steps=3),
        )
        return self.trainer


def at_event(line: str) -> Callable[[Run], None]:
    """Return a phase: in a handler, at an event as `describe` gives it."""

    def phase(run: Run) -> None:
        run.handler = Recorder(line, lambda event: send(run.number))

    return phase


def in_the_compile(run: Run) -> None:
    signals: list[int] = []

    def program() -> Any:
        if signals:
            send(signals.pop())
        return linear_program()

    run.make(program)
    signals.append(run.number)


def in_a_reader_that_sleeps(run: Run) -> None:
    run.reader = Stalling(run.number)


def in_a_test_of_a_handler(run: Run) -> None:
    reader = Stalling(run.number, epoch=0)
    run.handler = Recorder("EndStep 1 2", lambda event: run.trainer.test(reader))


def in_a_save(is_this: Callable[[Any], bool], secs: float = 0.0) -> Callable[[Run], None]:
    """Return a phase: in the save of a position, which takes some seconds more."""

    def phase(run: Run) -> None:
        write = Store.write

        def interrupted(store: Store, contents: Any) -> None:
            if is_this(contents.position):
                send(run.number)
                time.sleep(secs)
            write(store, contents)

        run.monkeypatch.setattr(Store, "write", interrupted)

    return phase


IN_HANDLERS = ["BeginTraining 0", "BeginEpoch 1", "BeginStep 1 2", "EndStep 1 2", "EndEpoch 1"]
PHASES = {
    **{f"at {line}": at_event(line) for line in IN_HANDLERS},
    "in the compile": in_the_compile,
    "in a reader that sleeps": in_a_reader_that_sleeps,
    "in a test of a handler": in_a_test_of_a_handler,
    "in a save beside training": in_a_save(lambda position: position.global_step == 6),
    "in the last save": in_a_save(lambda position: position.epoch == NUM_EPOCHS, 0.5),
}


def expected_type(number: int) -> type[BaseException]:
    return KeyboardInterrupt if number == signal.SIGINT else SystemExit


def variables(trainer: ps.Trainer) -> Any:
    state = trainer._engine.state
    return host((state.step, state.variables, state.opt_state))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Return the state after a run that nothing interrupts."""
    run = Run(tmp_path_factory.mktemp("whole"), 0, None)
    run.make().train(run.reader, num_epochs=NUM_EPOCHS)
    return variables(run.trainer)


def interrupted_run(run: Run, phase: Callable[[Run], None]) -> Recorder:
    """Train until a phase interrupts it; return the events."""
    recorder = Recorder()
    with run.monkeypatch.context() as patch:
        run.monkeypatch = patch
        phase(run)
        if run.trainer is None:
            run.make()
        with pytest.raises(expected_type(run.number)) as caught:
            run.trainer.train(run.reader, [recorder, run.handler], num_epochs=NUM_EPOCHS)
    if run.number == signal.SIGTERM:
        assert caught.value.code == 143
    assert recorder.events[-1].error is caught.value
    return recorder


def check_and_resume(run: Run, recorder: Recorder, expected: Any) -> None:
    """Check how a run ended; train the rest in a new trainer, and compare the bits."""
    assert recorder.lines[-1] == "EndTraining interrupted"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    global_step, epoch = run.trainer.global_step, run.trainer.epoch
    assert global_step == len(recorder.of(ps.EndStep))
    assert Store(run.trainer._config).steps()[-1] == global_step
    assert run.trainer.test(data_reader()) > 0
    resumed = Run(run.folder, 0, None).make()
    assert resumed.global_step == global_step
    resumed.train(data_reader(), num_epochs=NUM_EPOCHS)
    assert resumed.global_step == NUM_EPOCHS * NUM_STEPS
    assert_same_bits(variables(resumed), expected)
    # The old one is valid too, and leaves the other's checkpoints alone.
    assert run.trainer.epoch == epoch
    if global_step < resumed.global_step:
        with pytest.raises(ps.FolderInUseError, match="got checkpoints of another run since"):
            run.trainer.train(data_reader())


@pytest.mark.quick("at EndStep 1 2")
@pytest.mark.parametrize(
    ("phase", "number"), [*zip(PHASES, itertools.cycle(SIGNALS.args[1]), strict=False)]
)
def test_signal_ends_training_after_the_step_saves_and_a_new_trainer_goes_on(
    phase, number, tmp_path, monkeypatch, uninterrupted
):
    run = Run(tmp_path, number, monkeypatch)
    recorder = interrupted_run(run, PHASES[phase])
    check_and_resume(run, recorder, uninterrupted)


def test_signal_at_the_end_of_training_is_raised_when_every_handler_has_seen_the_end(tmp_path):
    run, recorder = Run(tmp_path, signal.SIGTERM, None), Recorder()
    at_end = Recorder("EndTraining completed", lambda event: send(signal.SIGTERM))
    with pytest.raises(SystemExit):
        run.make().train(run.reader, [at_end, recorder], num_epochs=NUM_EPOCHS)
    assert recorder.lines[-1] == "EndTraining completed"
    assert run.make().global_step == NUM_EPOCHS * NUM_STEPS
