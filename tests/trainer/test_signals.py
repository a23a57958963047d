"""Signals during training: the second one, whose handlers are left alone, and what is kept."""

import signal
import threading
import time
from signal import SIGINT, SIGTERM

import optax
import pytest

import penstock as ps
from penstock import _interrupts
from penstock._checkpoint import Store
from tests.networks import (
    PLACES,
    Recorder,
    assert_same_bits,
    compile_warnings,
    host,
    linear_program,
    linear_reader,
    one_device,
)
from tests.trainer.test_phases import SIGNALS, expected_type, send

DEFAULTS = {SIGINT: signal.default_int_handler, SIGTERM: signal.SIG_DFL}


def trainer_of(place=one_device, program=linear_program, **options):
    return ps.Trainer(program, optax.adam(0.05), place=place(), **options)


def ends_with(number):
    return pytest.raises(expected_type(number))


def handlers():
    return {number: signal.getsignal(number) for number in DEFAULTS}


@pytest.fixture(autouse=True)
def default_handlers():
    """Check that a test leaves Python's own handlers behind."""
    assert handlers() == DEFAULTS
    yield
    assert handlers() == DEFAULTS


# A second signal.


@PLACES
def test_second_ctrl_c_ends_the_handler_it_comes_in_and_the_trainer_is_valid(place):
    trainer = trainer_of(place)

    def twice(event):
        send(SIGINT)
        send(SIGINT)
        raise AssertionError("the handler went on after the second signal")

    recorder = Recorder("EndStep 0 1", twice)
    with pytest.raises(KeyboardInterrupt):
        trainer.train(linear_reader(), recorder)
    assert recorder.lines[-1] == "EndTraining interrupted"
    trainer.train(linear_reader())
    assert (trainer.epoch, trainer.global_step) == (2, 5)


@PLACES
def test_second_ctrl_c_in_a_launch_is_held_until_the_state_is_stored(place, monkeypatch):
    trainer, recorder = trainer_of(place), Recorder()
    launch = trainer.builder.programs.launch

    def interrupted(*args):
        launched = launch(*args)  # the old state is gone
        send(SIGINT)
        send(SIGINT)
        return launched

    with monkeypatch.context() as patch:
        patch.setattr(trainer.builder.programs, "launch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            trainer.train(linear_reader(), recorder)
    assert recorder.lines[-2:] == ["BeginStep 0 0", "EndTraining interrupted"]
    assert trainer.global_step == 1
    trainer.train(linear_reader())
    assert trainer.global_step == 4


# What is left alone.


@SIGNALS
def test_handler_of_the_users_own_is_called_and_stays(number):
    trainer, seen = trainer_of(), []

    def own(number, frame):
        seen.append(number)
        trainer.stop()

    signal.signal(number, own)
    try:
        recorder = Recorder("EndStep 0 1", lambda event: send(number))
        trainer.train(linear_reader(), recorder)
        assert signal.getsignal(number) is own
    finally:
        signal.signal(number, DEFAULTS[number])
    assert seen == [number]
    assert recorder.lines[-2:] == ["EndStep 0 1", "EndTraining stopped"]


def test_ctrl_c_that_a_script_ignores_is_ignored_in_training_too():
    signal.signal(SIGINT, signal.SIG_IGN)
    try:
        recorder = Recorder("EndStep 0 1", lambda event: send(SIGINT))
        trainer_of().train(linear_reader(), recorder)
        assert signal.getsignal(SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(SIGINT, DEFAULTS[SIGINT])
    assert recorder.lines[-1] == "EndTraining completed"


def test_signals_in_a_test_outside_of_training_are_pythons():
    seen = []

    def reader():
        seen.append(handlers())
        return linear_reader()

    trainer_of().test(reader)
    assert seen == [DEFAULTS]


# What is kept.


@pytest.mark.quick("SIGINT")
@SIGNALS
def test_signal_at_the_beginning_of_a_resumed_second_call_keeps_its_number_of_epochs(
    number, tmp_path
):
    def calls(folder, at, act):
        """Make the run's two calls of train; `act` at an event of the second."""
        trainer = trainer_of(checkpoint=folder)
        trainer.train(linear_reader(), num_epochs=2)
        trainer.train(linear_reader(), Recorder(at, act), num_epochs=3)
        return trainer

    whole = calls(tmp_path / "whole", "", None)
    for at in ("EndStep 3 1", "BeginTraining 3"):
        with ends_with(number):
            calls(tmp_path / "parts", at, lambda event: send(number))
    parts = calls(tmp_path / "parts", "", None)
    assert (parts.epoch, parts.global_step) == (whole.epoch, whole.global_step) == (5, 15)
    assert_same_bits(host(parts._engine.state), host(whole._engine.state))


@pytest.mark.quick("SIGINT")
@SIGNALS
def test_signal_in_the_last_save_after_a_reader_failed_lets_it_end(number, tmp_path, monkeypatch):
    write = Store.write

    def interrupted(store, contents):
        send(number)
        time.sleep(0.3)
        write(store, contents)

    def failing():
        yield from linear_reader()
        raise LookupError

    trainer, recorder = trainer_of(checkpoint=tmp_path), Recorder()
    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", interrupted)
        with pytest.raises(LookupError):
            trainer.train(failing, recorder)
    assert recorder.lines[-1] == "EndTraining failed"
    assert trainer_of(checkpoint=tmp_path).global_step == 3


@SIGNALS
@PLACES
def test_signal_while_a_test_compiles_in_a_handler_leaves_the_test_program_whole(
    place, number, caplog
):
    signals = []

    def program():
        if signals:
            send(signals.pop())
        return linear_program()

    trainer = trainer_of(place, program)

    def test(event):
        signals.append(number)
        trainer.test(linear_reader())

    recorder = Recorder("EndStep 0 1", test)
    with ends_with(number):
        trainer.train(linear_reader(), recorder)
    assert recorder.lines[-2:] == ["EndStep 0 1", "EndTraining interrupted"]
    assert trainer.test(linear_reader()) > 0
    assert compile_warnings(caplog) == []


def test_request_ends_training_in_a_thread_that_gets_no_signals(monkeypatch):
    monkeypatch.setattr(_interrupts._Thread, "signal", None)
    trainer, codes = trainer_of(), []
    recorder = Recorder("EndStep 0 1", lambda _: _interrupts.request_end(SIGTERM))

    def train():
        with pytest.raises(SystemExit) as caught:
            trainer.train(linear_reader(), recorder)
        codes.append(caught.value.code)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert codes == [143]
    assert recorder.lines[-2:] == ["EndStep 0 1", "EndTraining interrupted"]
    monkeypatch.undo()
    trainer.train(linear_reader())
    assert (trainer.epoch, trainer.global_step) == (2, 5)
